//! A promise that objects stay readable until it is dropped or expires.

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::job::{Job, Work};
use crate::shard::LeaseId;

/// Keeps objects readable until it is dropped or expires.
#[must_use = "dropping it ends the lease"]
pub struct Lease {
    core: Arc<Core>,
    parts: Vec<(u16, LeaseId)>,
    count: usize,
}

impl Lease {
    /// Creates a lease of `count` objects, made of each shard's lease.
    pub(super) fn new(core: Arc<Core>, parts: Vec<(u16, LeaseId)>, count: usize) -> Lease {
        Lease { core, parts, count }
    }

    /// Returns how many objects are leased: the keys before the first miss.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        for (shard, id) in self.parts.drain(..) {
            let deadline = adit_driver::Time::NEVER;
            let work = Work::Ask(Box::new(move |there| {
                // A lease ends with its shard.
                if let Ok((shard, _)) = there {
                    shard.release(id);
                }
            }));
            // A lease has ended with a store that has stopped.
            let _ = self.core.mailbox(shard).send_urgent(Job { shard, deadline, work });
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} objects)", self.count)
    }
}
