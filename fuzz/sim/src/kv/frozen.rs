//! What a power cut at a command would find, kept while the run goes on: from there a cut can be tried by itself.
//!
//! A sweep makes one run and tries the cut at each of its commands, without the commands before them again.

use std::collections::{BTreeMap, VecDeque};

use super::faults::Faults;
use super::machine::Machine;
use super::media::Media;
use crate::random::Random;

/// A write that a device was told of and has not carried out.
#[derive(Clone, Debug)]
pub(crate) struct Unwritten {
    pub(crate) device: usize,
    pub(crate) lba: u64,
    pub(crate) data: Vec<u8>,
}

/// The devices at a command.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// Which command of the run it is.
    pub(crate) command: u64,
    media: Vec<Media>,
    unwritten: Vec<Unwritten>,
}

impl Frozen {
    /// A machine whose power is off: a part of what was in flight came to the cache.
    pub(crate) fn thaw(self, like: &Machine, random: Random) -> Machine {
        let mut machine = Machine::new(self.media, Faults::none(), like.pace, random);
        for Unwritten { device, lba, data } in self.unwritten {
            machine.write_in_part(device, lba, &data);
        }
        machine.cut_now();
        machine
    }
}

/// At which commands devices are frozen, and those that are.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    /// In order.
    at: VecDeque<u64>,
    /// In flight, by number.
    unwritten: BTreeMap<u64, Unwritten>,
    pub(crate) frozen: Vec<Frozen>,
}

impl Freezer {
    /// Of these commands of the run, in order.
    pub(crate) fn new(commands: impl IntoIterator<Item = u64>) -> Freezer {
        Freezer { at: commands.into_iter().collect(), ..Freezer::default() }
    }

    /// Whether there is a command to come.
    pub(crate) fn is_on(&self) -> bool {
        !self.at.is_empty()
    }

    /// This write is in flight.
    pub(crate) fn begin(&mut self, flight: u64, write: Unwritten) {
        self.unwritten.insert(flight, write);
    }

    /// It is carried out, or over.
    pub(crate) fn end(&mut self, flight: u64) {
        self.unwritten.remove(&flight);
    }

    /// The devices were told of this command.
    pub(crate) fn pass(&mut self, command: u64, media: &[Media]) {
        if self.at.front() == Some(&command) {
            self.at.pop_front();
            let unwritten = self.unwritten.values().cloned().collect();
            self.frozen.push(Frozen { command, media: media.to_vec(), unwritten });
        }
    }
}
