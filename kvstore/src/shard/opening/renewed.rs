//! Finds stale objects when a journal with lost blocks is replayed.
//!
//! A lost block may have held the record that ended an object: a later put or delete of its key, or its eviction. Such
//! an object reappears. It is removed if a later record shows that it ended: a delete of its key at any place, or a put
//! that took its units. Otherwise its checksums reveal it once its units are overwritten. Until then, an object ended
//! by the lost block cannot be told from one that the block did not name, so all objects put before the block are
//! *outdated*.
//!
//! Objects are ordered by the number of blocks lost before they were put.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::catalog::hash::NumberMap;
use crate::model::object::{LayoutId, ObjectId};

/// The units that an object needs: its own, or those of its slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitsNeeded {
    pub(super) device: u8,
    /// The first unit.
    pub(super) unit: u64,
    pub(super) units: Range<u64>,
    /// The layout of the slab, if the object lies in one.
    pub(super) slab: Option<LayoutId>,
}

/// The objects put after lost blocks.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    /// Blocks lost so far.
    losses: u32,
    /// Blocks lost before each object was put; missing objects have none.
    before: NumberMap<ObjectId, u32>,
}

impl Renewed {
    pub(super) fn lose_block(&mut self) {
        self.losses += 1;
    }

    /// Records that an object was put.
    #[inline]
    pub(super) fn put(&mut self, id: ObjectId) {
        if self.losses > 0 {
            self.before.insert(id, self.losses);
        }
    }

    /// Forgets a removed object.
    #[inline]
    pub(super) fn forget(&mut self, id: ObjectId) {
        if self.losses > 0 {
            self.before.remove(&id);
        }
    }

    /// Returns whether a block was lost since an object was put.
    pub(super) fn is_outdated(&self, id: ObjectId) -> bool {
        self.losses > 0 && self.before.get(&id) != Some(&self.losses)
    }

    /// Returns the objects put before the last lost block.
    pub(super) fn outdated(&self, objects: impl Iterator<Item = ObjectId>) -> Vec<ObjectId> {
        match self.losses {
            0 => Vec::new(),
            _ => objects.filter(|id| self.is_outdated(*id)).collect(),
        }
    }

    /// Returns the objects whose units are claimed by an object put after a lost block that they were put before.
    pub(super) fn overwritten(
        &self,
        objects: impl Iterator<Item = (ObjectId, UnitsNeeded)>,
    ) -> Vec<ObjectId> {
        if self.before.is_empty() {
            return Vec::new();
        }
        let mut later = Vec::new();
        let mut earlier = Vec::new();
        for (id, claim) in objects {
            match self.before.get(&id) {
                Some(before) => later.push((*before, id, claim)),
                None => earlier.push((id, claim)),
            }
        }
        later.sort_unstable_by_key(|(before, id, _)| (std::cmp::Reverse(*before), *id));
        let (mut kept, mut gone) = (Claimed::default(), Vec::new());
        for (_, id, claim) in later {
            if kept.allows(&claim) {
                kept.insert(&claim);
            } else {
                gone.push(id);
            }
        }
        gone.extend(earlier.into_iter().filter(|(_, claim)| !kept.allows(claim)).map(|(id, _)| id));
        gone
    }
}

/// Claimed units.
#[derive(Default)]
struct Claimed {
    /// Ends and layouts of extents and slabs, by device and first unit. They are disjoint.
    runs: BTreeMap<(u8, u64), (u64, Option<LayoutId>)>,
    /// First units of objects in slabs.
    slots: BTreeSet<(u8, u64)>,
}

impl Claimed {
    fn allows(&self, claim: &UnitsNeeded) -> bool {
        let UnitsNeeded { device, unit, units, slab } = claim;
        let Some(((of, start), (end, layout))) =
            self.runs.range(..(*device, units.end)).next_back()
        else {
            return true;
        };
        if of != device || *end <= units.start {
            return true;
        }
        let is_same_slab = slab.is_some() && slab == layout && (*start..*end) == *units;
        is_same_slab && !self.slots.contains(&(*device, *unit))
    }

    fn insert(&mut self, claim: &UnitsNeeded) {
        let UnitsNeeded { device, unit, units, slab } = claim;
        assert!(self.allows(claim), "what is taken is disjoint");
        self.runs.insert((*device, units.start), (units.end, *slab));
        if slab.is_some() {
            self.slots.insert((*device, *unit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(units: Range<u64>) -> UnitsNeeded {
        UnitsNeeded { device: 0, unit: units.start, units, slab: None }
    }

    fn slotted(unit: u64, units: Range<u64>) -> UnitsNeeded {
        UnitsNeeded { device: 0, unit, units, slab: Some(LayoutId(1)) }
    }

    /// Returns which of these objects are overwritten; each has the number of blocks lost before it was put.
    fn overwritten(objects: &[(u32, UnitsNeeded)]) -> Vec<u32> {
        let mut renewed = Renewed::default();
        for losses in 0..=objects.iter().map(|(losses, _)| *losses).max().unwrap_or(0) {
            for (id, _) in (0..).zip(objects).filter(|(_, (before, _))| *before == losses) {
                renewed.put(ObjectId(id));
            }
            renewed.lose_block();
        }
        let claims = (0..).zip(objects).map(|(id, (_, claim))| (ObjectId(id), claim.clone()));
        renewed.overwritten(claims).into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn of_two_objects_on_the_same_units_the_one_put_behind_a_lost_block_stays() {
        let [low, high] = [plain(10..20), plain(19..30)];
        assert_eq!(overwritten(&[(0, low.clone()), (1, high.clone())]), [0]);
        assert_eq!(overwritten(&[(2, low.clone()), (1, high.clone())]), [1]);
        assert_eq!(overwritten(&[(0, low.clone()), (1, plain(20..21))]), [0u32; 0]);
        assert_eq!(
            overwritten(&[(0, UnitsNeeded { device: 1, ..low.clone() }), (1, high)]),
            [0u32; 0]
        );
        assert_eq!(overwritten(&[(0, plain(12..13)), (1, low.clone())]), [0], "inside");
        assert_eq!(overwritten(&[(0, plain(5..50)), (1, low.clone())]), [0], "around");
        let unknown = [(0, plain(12..13)), (0, low), (1, plain(40..50))];
        assert_eq!(overwritten(&unknown), [0u32; 0], "both were put before");
    }

    #[test]
    fn objects_of_one_slab_share_it_and_no_slot() {
        let slab = || 100..200;
        assert_eq!(overwritten(&[(0, slotted(100, slab())), (1, slotted(101, slab()))]), [0u32; 0]);
        assert_eq!(overwritten(&[(0, slotted(100, slab())), (1, slotted(100, slab()))]), [0]);
        assert_eq!(overwritten(&[(0, slotted(100, slab())), (1, plain(150..151))]), [0]);
        assert_eq!(overwritten(&[(0, plain(150..151)), (1, slotted(100, slab()))]), [0]);
        assert_eq!(overwritten(&[(0, slotted(120, 120..220)), (1, slotted(100, slab()))]), [0]);
    }

    #[test]
    fn an_object_is_outdated_if_a_block_was_lost_since_it_was_put() {
        let mut renewed = Renewed::default();
        renewed.put(ObjectId(1));
        assert!(!renewed.is_outdated(ObjectId(1)), "nothing was lost");
        renewed.lose_block();
        renewed.put(ObjectId(2));
        assert!(renewed.is_outdated(ObjectId(1)) && !renewed.is_outdated(ObjectId(2)));
        renewed.lose_block();
        renewed.put(ObjectId(3));
        renewed.forget(ObjectId(3));
        assert_eq!([1, 2, 3].map(|id| renewed.is_outdated(ObjectId(id))), [true; 3]);
    }
}
