//! Reads of a store for another executor, such as a ring in GPU memory.
//!
//! A list is divided among the shards; each plans its share ([`crate::shard::Planned`]) and holds the objects. For
//! each transfer the executor reads from the device, asks [`ShardTransfers::certainty`] what the completion says
//! about the bytes, verifies bytes that nothing else has verified, and releases the plan after the last transfer.
//! While a plan is held, nothing is written where it reads. The plan's deadline bounds that hold, so that an executor
//! that disappears does not hold space for ever. A read after the deadline may return other data, which
//! [`PlannedItem::is_intact`] detects.

use adit_driver::CommandError;

use crate::model::plan::{Plan, Transfer};
use crate::shard::{Certainty, LeaseId, Planned, PlannedItem, Verification};

/// Reads of a list for another executor, with the lease that holds the objects meanwhile: a [`super::Lease`], which
/// ends when dropped, or a [`super::LocalLease`], for [`super::Local::release`].
#[derive(Debug)]
pub struct Transfers<L> {
    /// One part per shard that has some of the list.
    pub parts: Vec<ShardTransfers>,
    /// Holds the objects. Release it when every transfer has ended, successfully or not.
    pub lease: L,
}

/// The reads of the list's items in one shard.
#[derive(Clone, Debug)]
pub struct ShardTransfers {
    /// The transfers for the devices, over the items in `items`.
    pub plan: Plan,
    /// The planned items; `None` for misses, which the plan leaves out.
    pub items: Vec<Option<PlannedItem>>,
    /// The position of each item in the caller's list, ascending.
    pub positions: Vec<u32>,
}

impl ShardTransfers {
    /// Combines a shard's plan with its share's positions in the list, and returns its lease.
    pub(super) fn new(positions: Vec<u32>, planned: Planned) -> (ShardTransfers, LeaseId) {
        let Planned { plan, items, lease } = planned;
        (ShardTransfers { plan, items, positions }, lease)
    }

    /// Returns who verifies the bytes that this transfer reads.
    pub fn verification(&self, transfer: &Transfer) -> Verification {
        let first = self.plan.slices(transfer).first().expect("a transfer has a slice");
        let item = self.items[first.item as usize].as_ref();
        item.expect("what a plan reads is no miss").verification()
    }

    /// Returns what is known about the bytes of this transfer once it has ended with `result`.
    pub fn certainty(&self, transfer: &Transfer, result: &Result<u32, CommandError>) -> Certainty {
        self.verification(transfer).certainty(result)
    }
}

impl<L> Transfers<L> {
    /// Returns the planned item at this position of the list, or `None` for a miss.
    pub fn item(&self, position: u32) -> Option<&PlannedItem> {
        self.parts.iter().find_map(|part| {
            let at = part.positions.binary_search(&position).ok()?;
            part.items[at].as_ref()
        })
    }
}
