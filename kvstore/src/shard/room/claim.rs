//! Claims: the space that an object of a waiting change will get, once the objects there are removed ([`super::find`]).

use std::ops::Range;

use crate::model::layout::SlabShape;
use crate::model::object::ObjectId;
use crate::model::place::Place;
use crate::space::window::Window;

/// The space that an object will get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
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
    pub(super) kind: ClaimKind,
    /// The object that lies there, if it is known to be the only one.
    pub(super) only: Option<ObjectId>,
    /// Whether nothing in it is left to be evicted.
    pub(super) is_empty: bool,
}

impl Claim {
    pub(super) fn run(device: u8, units: Range<u64>) -> Claim {
        Claim { device, units, kind: ClaimKind::Run, only: None, is_empty: true }
    }

    pub(super) fn slot(place: Place, only: ObjectId) -> Claim {
        let (device, units) = (place.device, place.unit..place.unit + 1);
        Claim { device, units, kind: ClaimKind::Slot, only: Some(only), is_empty: false }
    }

    pub(super) fn window(window: Window, kind: ClaimKind, only: Option<ObjectId>) -> Claim {
        Claim { device: window.device, units: window.units, kind, only, is_empty: false }
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.device == place.device && self.units.contains(&place.unit)
    }

    /// Returns whether it is a claim for an object of `units`, in a slab of this shape if its layout has slabs.
    pub(super) fn fits(&self, units: u64, slab: Option<SlabShape>) -> bool {
        let has = self.units.end - self.units.start;
        match (self.kind, slab) {
            (ClaimKind::Run, None) => has == units,
            (ClaimKind::Slab, Some(slab)) => has == slab.units(),
            (ClaimKind::Slot, Some(_)) => true,
            _ => false,
        }
    }
}

/// Returns how many slots more than those that are free or sink a claim leaves for other objects, where a slab has
/// `slab` slots: all of a new slab but its own, and a slot that it emptied is not free for them.
pub(super) fn spare_of(claim: &Claim, slab: i64) -> i64 {
    match claim.kind {
        ClaimKind::Run => 0,
        ClaimKind::Slab => slab - 1,
        ClaimKind::Slot => -i64::from(claim.is_empty),
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
    fn a_claim_has_the_places_in_its_units_of_its_device() {
        let claim = Claim::run(1, 8..12);
        let has = |device, unit| claim.has(Place { device, unit });
        assert!(has(1, 8) && has(1, 11) && !has(1, 7) && !has(1, 12));
        assert!(!has(0, 8) && !has(0, 12));
    }

    #[test]
    fn a_claim_fits_what_needs_all_of_its_units_and_lies_alike() {
        let slab = |slots| Some(SlabShape { runs: 2, run_units: 1, slots });
        let run = Claim::run(0, 24..32);
        let of_slab = Claim { kind: ClaimKind::Slab, ..run.clone() };
        let slot = Claim::slot(Place { device: 0, unit: 24 }, ObjectId(7));
        for (units, shape, fits) in [
            (8, None, [true, false, false]),
            (7, None, [false, false, false]),
            (1, None, [false, false, false]),
            (2, slab(4), [false, true, true]),
            (8, slab(3), [false, false, true]),
        ] {
            let found = [&run, &of_slab, &slot].map(|claim| claim.fits(units, shape));
            assert_eq!(found, fits, "{units} units, {shape:?}");
        }
    }

    #[test]
    fn no_object_takes_the_slot_that_another_has_claimed() {
        let slab = Claim { kind: ClaimKind::Slab, ..Claim::run(0, 8..16) };
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
