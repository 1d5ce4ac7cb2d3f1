//! Reads of a store for another executor, such as a ring in GPU memory.
//!
//! A list is divided among the shards; each plans its share ([`crate::shard::Planned`]) and holds the objects. For
//! each transfer the executor reads from the device, asks [`ShardTransfers::certainty`] what the completion says
//! about the bytes, verifies bytes that nothing else has verified ([`PlannedItem::checks`]), and releases the plan
//! after the last transfer. While a plan is held, nothing is written where it reads. The plan's deadline bounds that
//! hold, so that an executor that disappears does not hold space forever. A read after the deadline may return other
//! data, which the checksums detect.

use adit_driver::CommandError;
use adit_driver::transfer::{Direction, Slice, Transfer};

use crate::model::plan::Plan;
use crate::shard::{Certainty, LeaseId, Planned, PlannedItem, Verification};

/// Reads of a list for another executor, with the lease that holds the objects meanwhile: a
/// [`Lease`](crate::store::Lease), which ends when dropped, or a [`LocalLease`](crate::store::LocalLease), for
/// [`Local::release`](crate::store::Local::release).
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
    /// Its items are numbered by their positions in the caller's list.
    plan: Plan,
    lba_bytes: Vec<u32>,
    /// `None` for misses, which the plan leaves out.
    items: Vec<Option<PlannedItem>>,
    /// The position of each item in the caller's list, ascending.
    pub positions: Vec<u32>,
}

impl ShardTransfers {
    /// Combines a shard's plan with its share's positions in the list, and returns its lease.
    pub(crate) fn new(positions: Vec<u32>, planned: Planned) -> (ShardTransfers, LeaseId) {
        let Planned { mut plan, lba_bytes, items, lease } = planned;
        plan.renumber(&positions);
        (ShardTransfers { plan, lba_bytes, items, positions }, lease)
    }

    /// Returns how many items there are, misses not included.
    pub(crate) fn count(&self) -> usize {
        self.items.iter().flatten().count()
    }

    /// Returns the reads. A slice's region is the item's position in the caller's list, its offset that in the item.
    pub fn transfers(&self) -> impl ExactSizeIterator<Item = Transfer<&[Slice]>> {
        self.plan.transfers(Direction::Read, &self.lba_bytes)
    }

    /// Returns the planned item at this position of the caller's list, or `None` for a miss or another shard's item.
    pub fn item(&self, position: u32) -> Option<&PlannedItem> {
        let at = self.positions.binary_search(&position).ok()?;
        self.items[at].as_ref()
    }

    /// Returns which side verifies the bytes that this transfer reads.
    ///
    /// # Panics
    /// If the transfer is not one of these.
    pub fn verification(&self, transfer: &Transfer<&[Slice]>) -> Verification {
        let first = transfer.slices.first().expect("a transfer has a slice");
        self.item(first.region).expect("a plan reads no misses").verification()
    }

    /// Returns what is known about the bytes of this transfer once it has ended with `result`.
    pub fn certainty(
        &self,
        transfer: &Transfer<&[Slice]>,
        result: &Result<u32, CommandError>,
    ) -> Certainty {
        self.verification(transfer).certainty(result)
    }
}

impl<L> Transfers<L> {
    /// Returns the planned item at this position of the list, or `None` for a miss.
    pub fn item(&self, position: u32) -> Option<&PlannedItem> {
        self.parts.iter().find_map(|part| part.item(position))
    }
}
