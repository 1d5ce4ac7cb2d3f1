//! A device that was lost comes back.
//!
//! Its objects were misses meanwhile and are hits again, as far as their bytes are still what was put. A device that was
//! without power for a moment has forgotten what it was not made to flush. Where it is the journal's, a record behind the
//! hole would be lost at the next opening: so all blocks that are not durable are written again, before anything that
//! comes after them, and a checkpoint under way is begun anew.

use adit_driver::device::CommandQueue;

use super::Shard;
use crate::error::{Error, Result};
use crate::io::lane::{Lane, Load};

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
    pub fn attach(&mut self, device: u8, lane: Lane<Q>) -> Result<Lane<Q>> {
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
        self.wake();
        // It may have failed since the last turn.
        self.note_failures();
        if usize::from(device) == self.home {
            self.fail_waiters();
            self.abandon_checkpoint();
            self.log.write_again();
            // A flush of theirs that is under way is not waited for any more.
            let at_work = self.lanes.iter_mut().filter(|lane| lane.failure().is_none());
            at_work.for_each(|lane| lane.is_dirty = true);
        }
        let old = std::mem::replace(&mut self.lanes[usize::from(device)], lane);
        // What was written before it failed may not have been flushed.
        self.lanes[usize::from(device)].is_dirty = true;
        Ok(old)
    }
}
