//! Claims: the space that an object of a waiting change will get, once what lies there is gone (see `room`).

use std::ops::Range;

use crate::model::object::ObjectId;
use crate::model::place::Place;
use crate::space::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An extent.
    Run,
    /// A slab, of which the object gets the first slot.
    Slab,
    /// A slot of a slab; the object gets any.
    Slot,
}

/// Space that an object will get.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) device: u8,
    pub(super) units: Range<u64>,
    pub(super) kind: Kind,
    /// The object that lies there, if it is known to be the only one.
    pub(super) only: Option<ObjectId>,
    /// Whether nothing in it is left to be evicted.
    pub(super) is_empty: bool,
}

impl Claim {
    pub(super) fn run(device: u8, units: Range<u64>) -> Claim {
        Claim { device, units, kind: Kind::Run, only: None, is_empty: true }
    }

    pub(super) fn slot(place: Place, only: ObjectId) -> Claim {
        let (device, units) = (place.device, place.unit..place.unit + 1);
        Claim { device, units, kind: Kind::Slot, only: Some(only), is_empty: false }
    }

    pub(super) fn window(window: Window, kind: Kind, only: Option<ObjectId>) -> Claim {
        Claim { device: window.device, units: window.units, kind, only, is_empty: false }
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.device == place.device && self.units.contains(&place.unit)
    }
}

/// Returns how many slots more than those that are free or sink a claim leaves for other objects, where a slab has
/// `slab` slots: all of a new slab but its own, and a slot that it emptied is not free for them.
pub(super) fn spare_of(claim: &Claim, slab: i64) -> i64 {
    match claim.kind {
        Kind::Run => 0,
        Kind::Slab => slab - 1,
        Kind::Slot => -i64::from(claim.is_empty),
    }
}

/// Returns whether there will be a slot for an object: by its own claim, or one of the `spare` ones, which it takes.
pub(super) fn takes_slot(claim: Option<&Claim>, spare: &mut i64) -> bool {
    let takes_spare = claim.is_none() && *spare > 0;
    *spare -= i64::from(takes_spare);
    claim.is_some() || takes_spare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_takes_the_slot_that_another_has_claimed() {
        let slab = Claim { kind: Kind::Slab, ..Claim::run(0, 8..16) };
        let place = Place { device: 0, unit: 4 };
        let slot = |is_empty| Claim { is_empty, ..Claim::slot(place, ObjectId(7)) };
        // In any order, one object has the claim and others have none.
        for (claim, free, slots, left) in [
            (slab.clone(), 0, 1, 0),
            (slab, 0, 4, 3),
            (slot(true), 1, 4, 0),
            (slot(false), 1, 4, 1),
        ] {
            for own in 0..3 {
                let mut spare = free + spare_of(&claim, slots);
                let has_slot = |at| takes_slot((at == own).then_some(&claim), &mut spare);
                let there = (0..5).map(has_slot).filter(|has_slot| *has_slot).count();
                assert_eq!(there as i64, 1 + left, "{claim:?} of object {own}");
            }
        }
    }
}
