//! Reattaching a device that was lost.
//!
//! Its objects were misses meanwhile and become hits again if their bytes are still those that were put. A device
//! that lost power for a moment has forgotten unflushed data. On the journal's device that could lose records behind
//! the hole at the next opening, so all blocks that are not durable are written again before any later ones, and a
//! checkpoint in progress starts over.

use adit_driver::paths::CommandQueue;

use super::Shard;
use crate::error::{Error, Result};
use crate::io::lane::{Lane, Load};

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns whether a device failed and was not reattached.
    pub fn has_failed(&self, device: u8) -> bool {
        self.lanes.get(usize::from(device)).is_some_and(|lane| lane.failure().is_some())
    }

    /// Replaces the lane of a failed device and returns the old one. The caller must have checked the superblocks on
    /// the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device still works, still has commands in flight, or has a different size.
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
            // The flush in progress was dropped, so what it covered must be flushed again.
            let at_work = self.lanes.iter_mut().filter(|lane| lane.failure().is_none());
            at_work.for_each(|lane| lane.is_dirty = true);
        }
        let old = std::mem::replace(&mut self.lanes[usize::from(device)], lane);
        // Data written before the failure may not have been flushed.
        self.lanes[usize::from(device)].is_dirty = true;
        Ok(old)
    }
}
