//! The machine with the store's devices: its power, its time and its faults.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_driver::Time;
use adit_driver::memory::Buffer;

use super::canary::StoreCanary;
use super::faults::Faults;
use super::frozen::Freezer;
use super::media::{Loss, Media};
use crate::random::Random;

/// How fast devices are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Bounds of a command's duration in nanoseconds.
    pub(crate) least_ns: u64,
    pub(crate) most_ns: u64,
}

/// State shared by all queues, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) media: Vec<Media>,
    pub(crate) faults: Faults,
    pub(crate) random: Random,
    pub(crate) pace: Pace,
    pub(crate) canary: Option<StoreCanary>,
    /// Commands sent to all devices since the start.
    commands: u64,
    /// The command at which the power goes.
    cut_at: Option<u64>,
    is_off: bool,
    is_hung_up: bool,
    lost: Vec<bool>,
    pub(crate) freezer: Freezer,
    /// The next event of each command in flight, by its number.
    agenda: BTreeMap<u64, Time>,
    next_flight: u64,
    /// Addresses of memory that no device can use.
    foreign: Range<u64>,
}

pub(crate) type Shared = Arc<Mutex<Machine>>;

/// Locks it. A panic elsewhere ends the run anyway.
pub(crate) fn lock(machine: &Shared) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    pub(crate) fn new(media: Vec<Media>, faults: Faults, pace: Pace, random: Random) -> Machine {
        Machine {
            lost: vec![false; media.len()],
            freezer: Freezer::default(),
            media,
            faults,
            random,
            pace,
            canary: None,
            commands: 0,
            cut_at: None,
            is_off: false,
            is_hung_up: false,
            agenda: BTreeMap::new(),
            next_flight: 0,
            foreign: 0..0,
        }
    }

    /// Makes memory unusable for every device.
    #[cfg(test)]
    pub(crate) fn set_foreign(&mut self, addresses: Range<u64>) {
        self.foreign = addresses;
    }

    /// Returns whether the devices can use this memory.
    pub(crate) fn accepts(&self, memory: &Buffer) -> bool {
        !self.foreign.contains(&memory.iova().0)
    }

    /// Counts a command, and cuts the power at the chosen one.
    pub(crate) fn count_command(&mut self) {
        self.commands += 1;
        self.is_off |= self.cut_at == Some(self.commands);
    }

    /// Keeps the state that a cut at the last command would leave, if a cut is to be tried there.
    pub(crate) fn freeze(&mut self) {
        self.freezer.pass(self.commands, &self.media);
    }

    pub(crate) fn commands(&self) -> u64 {
        self.commands
    }

    /// Cuts the power at command `command` of the run.
    pub(crate) fn cut_at(&mut self, command: Option<u64>) {
        self.cut_at = command;
    }

    pub(crate) fn cut_now(&mut self) {
        self.is_off = true;
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Disconnects the devices, because the process that used them is gone.
    pub(crate) fn hang_up(&mut self) {
        self.is_hung_up = true;
    }

    pub(crate) fn lose(&mut self, device: usize) {
        self.lost[device] = true;
    }

    /// Brings the device back.
    pub(crate) fn find(&mut self, device: usize) {
        self.lost[device] = false;
    }

    pub(crate) fn is_lost(&self, device: usize) -> bool {
        self.lost[device]
    }

    /// Returns whether a device no longer answers.
    pub(crate) fn is_dead(&self, device: usize) -> bool {
        self.is_off || self.is_hung_up || self.lost[device]
    }

    /// Restores the power and all devices. Earlier queues must be gone.
    pub(crate) fn restart(&mut self) {
        assert!(self.agenda.is_empty(), "queues are dropped before the power comes back");
        if self.is_off {
            let loss = Loss::draw(&mut self.random);
            let mut random = self.random.fork();
            self.media.iter_mut().for_each(|media| media.cut(loss, &mut random));
        }
        self.is_off = false;
        self.is_hung_up = false;
        self.cut_at = None;
        self.lost.fill(false);
    }

    /// Writes some, all or none of a write's LBAs to the cache.
    pub(crate) fn write_in_part(&mut self, device: usize, lba: u64, data: &[u8]) {
        let media = &mut self.media[device];
        let percent = self.random.pick(&[0, 50, 100]);
        for (index, bytes) in data.chunks(media.lba_bytes()).enumerate() {
            if self.random.chance(percent) {
                let write = media.write(lba + index as u64, bytes);
                // It stays in the cache: any later flush makes it durable.
                media.seen(write);
            }
        }
    }

    /// Returns a number for a command with its next event at `time`.
    pub(crate) fn begin(&mut self, time: Time) -> u64 {
        self.next_flight += 1;
        self.agenda.insert(self.next_flight, time);
        self.next_flight
    }

    pub(crate) fn end(&mut self, flight: u64) {
        self.agenda.remove(&flight);
        self.freezer.end(flight);
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.agenda.values().min().copied()
    }
}
