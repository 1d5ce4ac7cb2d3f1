//! A device that was lost comes back.
//!
//! Its objects were misses meanwhile and are hits again, as far as their bytes are still what was put. What the journal
//! could not write is written now, before anything else.

use adit_driver::Time;
use adit_driver::device::CommandQueue;
use adit_driver::memory::AnyBuffer;

use super::Shard;
use super::lane::{Command, Finished, Lane, Load};
use crate::error::{Error, Result};
use crate::schedule::Class;

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Whether a device failed and was not attached again.
    pub fn has_failed(&self, device: u8) -> bool {
        self.lanes.get(usize::from(device)).is_some_and(|lane| lane.failure().is_some())
    }

    /// Puts a new lane in place of that of a device that failed, and gives the old one back. The device has its
    /// superblocks checked by whoever made the lane.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the device still works, still has commands in flight, or is of another size.
    pub fn attach(&mut self, now: Time, device: u8, lane: Lane<Q>) -> Result<Lane<Q>> {
        let Some(old) = self.lanes.get_mut(usize::from(device)) else {
            return Err(Error::invalid("device", device, "the store has no such device"));
        };
        if old.failure().is_none() {
            return Err(Error::invalid("device", device, "it works: there is nothing to attach"));
        }
        if !old.is_idle() {
            let fix = "it still has commands in flight: poll until they are over";
            return Err(Error::invalid("device", device, fix));
        }
        if old.units() != lane.units() || old.info.lba_bytes != lane.info.lba_bytes {
            let fix = "it has another size than the device that failed: attach that one";
            return Err(Error::invalid("device", device, fix));
        }
        if usize::from(device) == self.home && lane.memory.len() < self.unwritten.len() {
            let fix = "its lane has less memory than the one that failed: give it as much";
            return Err(Error::invalid("device", device, fix));
        }
        let mut old = std::mem::replace(old, lane);
        // What was written before it failed may not have been flushed.
        self.lanes[usize::from(device)].is_dirty = true;
        if usize::from(device) == self.home {
            self.abandon_checkpoint();
            self.write_again(now, &mut old);
        }
        Ok(old)
    }

    /// Writes the blocks of the journal that could not be written, from the new lane's memory.
    fn write_again(&mut self, now: Time, old: &mut Lane<Q>) {
        for unwritten in std::mem::take(&mut self.unwritten) {
            let Finished { purpose, operation, memory: AnyBuffer::One(blocks), .. } = unwritten
            else {
                unreachable!("blocks of the journal are in one buffer")
            };
            let lane = &mut self.lanes[self.home];
            let mut memory = lane.memory.pop().expect("a new lane has as much memory as the old");
            lane.keep(memory.split_off(blocks.len()));
            memory.copy_from_slice(&blocks);
            old.keep(blocks);
            let (bytes, memory) = (memory.len() as u64, AnyBuffer::One(memory));
            let (class, deadline) = (Class::Metadata, Time::NEVER);
            lane.push(now, Command { purpose, operation, class, memory, bytes, deadline });
        }
    }
}
