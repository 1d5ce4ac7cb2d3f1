//! A promise that objects stay readable, kept until it is dropped or its time is over.

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::job::{Job, Work};
use crate::shard::LeaseId;

/// See the module.
#[must_use = "dropping it ends the lease"]
pub struct Lease {
    core: Arc<Core>,
    parts: Vec<(u16, LeaseId)>,
    count: usize,
}

impl Lease {
    /// A lease of `count` objects, of which each shard holds its own.
    pub(super) fn new(core: Arc<Core>, parts: Vec<(u16, LeaseId)>, count: usize) -> Lease {
        Lease { core, parts, count }
    }

    /// How many of the keys there were before the first that was missing: so many objects stay.
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
            self.core.mailbox(shard).send_ending(Job { shard, deadline, work });
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} objects)", self.count)
    }
}
