//! The state that a power cut at a command would leave, kept while the run continues, so that the cut can be tried
//! separately.
//!
//! A sweep makes one run and tries the cut at each of its commands, without repeating the commands before it.

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
    pub(crate) command: u64,
    /// Whether completions were taken since: answers to them come only without the cut.
    pub(crate) is_before_reaping: bool,
    media: Vec<Media>,
    unwritten: Vec<Unwritten>,
}

impl Frozen {
    /// Returns a machine without power, to whose cache a part of the writes in flight has come.
    pub(crate) fn thaw(self, like: &Machine, random: Random) -> Machine {
        let mut machine = Machine::new(self.media, Faults::none(), like.pace, random);
        for Unwritten { device, lba, data } in self.unwritten {
            machine.write_in_part(device, lba, &data);
        }
        machine.cut_now();
        machine
    }
}

/// The commands at which to freeze the devices, and the frozen states.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    /// In order.
    at: VecDeque<u64>,
    /// Writes in flight, by number.
    unwritten: BTreeMap<u64, Unwritten>,
    pub(crate) frozen: Vec<Frozen>,
}

impl Freezer {
    /// Freezes at these commands of the run, in order.
    pub(crate) fn new(commands: impl IntoIterator<Item = u64>) -> Freezer {
        Freezer { at: commands.into_iter().collect(), ..Freezer::default() }
    }

    /// Returns whether commands are left to freeze at.
    pub(crate) fn is_on(&self) -> bool {
        !self.at.is_empty()
    }

    pub(crate) fn begin(&mut self, flight: u64, write: Unwritten) {
        self.unwritten.insert(flight, write);
    }

    /// Records that a write was carried out, or has ended.
    pub(crate) fn end(&mut self, flight: u64) {
        self.unwritten.remove(&flight);
    }

    /// Notes that completions are taken.
    pub(crate) fn reap(&mut self) {
        self.frozen.iter_mut().for_each(|frozen| frozen.is_before_reaping = true);
    }

    /// Freezes the devices if this command is one to freeze at.
    pub(crate) fn pass(&mut self, command: u64, media: &[Media]) {
        if self.at.front() == Some(&command) {
            self.at.pop_front();
            let unwritten = self.unwritten.values().cloned().collect();
            let (media, is_before_reaping) = (media.to_vec(), false);
            self.frozen.push(Frozen { command, is_before_reaping, media, unwritten });
        }
    }
}
