//! Reads of a store for somebody else to carry out, such as a ring in GPU memory.
//!
//! A list is dealt to the shards, each of which plans its share ([`crate::shard::Planned`]) and holds the objects. The
//! executor reads each transfer from its device, asks [`ShardTransfers::certainty`] what its end says of its bytes, looks
//! whether what it read is intact where nobody else did, and releases the plan when the last transfer is over. Nothing is written where a plan reads while it is held; its time bounds that, so that an
//! executor that is gone holds nothing for ever. What is carried out later than that may be something else, which
//! [`PlannedItem::is_intact`] sees.

use adit_driver::CommandError;

use crate::model::key::Key;
use crate::model::plan::{Plan, Transfer};
use crate::shard::{Certainty, LeaseId, Part, Planned, PlannedItem, Verification};

/// The reads of a list that somebody else carries out, and what holds the objects meanwhile: a [`super::Lease`], whose
/// drop ends it, or a [`super::LocalLease`], for [`super::Local::release`].
#[derive(Debug)]
pub struct Transfers<L> {
    /// A part of each shard that has some of the list.
    pub parts: Vec<ShardTransfers>,
    /// Holds what is read. To be released when every transfer is over, whatever came of it.
    pub lease: L,
}

/// The reads of those items of a list that one shard has.
#[derive(Clone, Debug)]
pub struct ShardTransfers {
    /// What the devices are to do. Items are counted in `items`.
    pub plan: Plan,
    /// What is known of each item; none of those that are misses, which the plan does not have.
    pub items: Vec<Option<PlannedItem>>,
    /// Where in the caller's list each item is, ascending.
    pub positions: Vec<u32>,
}

impl ShardTransfers {
    /// Who verifies what this transfer of the plan reads.
    pub fn verification(&self, transfer: &Transfer) -> Verification {
        let first = self.plan.slices(transfer).first().expect("a transfer has a slice");
        let item = self.items[first.item as usize].as_ref();
        item.expect("what a plan reads is no miss").verification()
    }

    /// What is known of the bytes of this transfer of the plan once it ended with `result`.
    pub fn certainty(&self, transfer: &Transfer, result: &Result<u32, CommandError>) -> Certainty {
        self.verification(transfer).certainty(result)
    }
}

impl<L> Transfers<L> {
    /// What is known of the item at this position of the list; none of a miss.
    pub fn item(&self, position: u32) -> Option<&PlannedItem> {
        self.parts.iter().find_map(|part| {
            let at = part.positions.binary_search(&position).ok()?;
            part.items[at].as_ref()
        })
    }
}

/// The items of a list that one shard has.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Their positions in the list, ascending.
    positions: Vec<u32>,
    pub(super) asked: Vec<(Key, Part)>,
}

impl Share {
    /// With what their shard planned, and what holds it.
    pub(super) fn planned(self, planned: Planned) -> (ShardTransfers, LeaseId) {
        let Planned { plan, items, lease } = planned;
        (ShardTransfers { plan, items, positions: self.positions }, lease)
    }
}

/// Deals a list to so many shards; those that get nothing are left out.
pub(super) fn deal(
    asked: &[(Key, Part)],
    shards: u16,
    route: impl Fn(&Key) -> u16,
) -> Vec<(u16, Share)> {
    let mut shares: Vec<Share> = (0..shards).map(|_| Share::default()).collect();
    for (item, position) in asked.iter().zip(0..) {
        let share = &mut shares[usize::from(route(&item.0))];
        share.positions.push(position);
        share.asked.push(item.clone());
    }
    (0..).zip(shares).filter(|(_, share)| !share.asked.is_empty()).collect()
}
