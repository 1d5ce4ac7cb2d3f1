//! Finding room: which objects are evicted so that a change finds space.
//!
//! A change that finds no room *claims* some for each of its objects, evicts what lies there, and waits until the
//! claims are free. Only the first change in line allocates, so nothing else takes what it claimed. A claim is:
//!
//! - the extent of the policy's next victim, if that holds the object together with free space beside it;
//! - otherwise the window that costs least ([`crate::space::window`]) around the objects that would go next, and beside
//!   the longest free runs; if none of these will do, any in the shard's share, looked for over several turns;
//! - for a block in slabs, the slot of a block of its layout, or a window for a whole slab, whichever is worth less.
//!
//! Evictions are bounded: at most twice the units requested, and once a slab of each layout and the longest object.
//! This holds over any span of time. Where leases leave nothing else, more may go.

use std::ops::Range;

use smallvec::SmallVec;

use super::claim::{Claim, ClaimKind, spare_of, takes_slot};
use super::claims::Search;
use super::pieces::{each_in_slab, each_inside, is_covered, join_free, list, worth_of};
use super::{EvictReason, Eviction, RoomMaker, SomeRooms, Wanted};
use crate::model::layout::SlabShape;
use crate::model::object::{LayoutId, Object, ObjectId};
use crate::model::place::Place;
use crate::shard::objects::Objects;
use crate::shard::objects::spaces::Allocated;
use crate::space::window::{Choice, Piece};

/// Victims around which a window is looked for.
const SEEDS: usize = 16;
/// Victims that are passed over at most to find them.
const SEED_STEPS: usize = 64;
/// No further place is looked at after this many pieces, which bounds a turn.
const PIECES_PER_TURN: usize = 4096;
/// Least units of a step of the search through the whole share.
const SEARCH_UNITS: u64 = 4096;
/// Slabs of a layout whose blocks are compared to find one that may go.
const SLABS_COMPARED: usize = 4;

/// Objects that would go next, in order.
type Seeds = SmallVec<[ObjectId; SEEDS]>;
/// For each layout of a change, the slots that are left for its objects.
type SpareSlots = SmallVec<[(LayoutId, i64); 2]>;

/// A bit for each device.
fn has_device(devices: u64, device: u8) -> bool {
    devices & 1 << device != 0
}

impl RoomMaker<'_> {
    /// Returns the devices of a mask.
    fn devices(&self, devices: u64) -> impl Iterator<Item = u8> + use<> {
        let all = 0..self.objects.spaces().devices();
        all.filter(move |device| has_device(devices, *device))
    }

    /// Takes the rooms that were claimed, if all claims are free. Returns `None` while some are not.
    pub(super) fn take_claimed(&mut self, wanted: &[Wanted<'_>]) -> Option<SomeRooms> {
        if self.room.claims.all.len() != wanted.len() {
            self.room.claims.end();
            self.room.claims.all.resize(wanted.len(), None);
        }
        self.drop_broken(wanted);
        let is_free = |claim: &Claim| match claim.kind {
            ClaimKind::Slot => {
                self.objects.spaces().on(claim.device).is_slot_free(claim.units.start)
            }
            ClaimKind::Run | ClaimKind::Slab => {
                self.objects.spaces().on(claim.device).is_free(&claim.units)
            }
        };
        if !self.room.claims.all.iter().flatten().all(is_free) {
            return None;
        }
        let (claims, spaces) = (&mut self.room.claims.all, self.objects.spaces_mut());
        let take = |(claim, (shape, ..)): (&mut Option<Claim>, &Wanted<'_>)| match claim {
            Some(Claim { kind: ClaimKind::Slot, .. }) => {
                // Now there is a slot, which it need not be.
                *claim = None;
                None
            }
            Some(claim) => spaces.allocate_at(shape, claim.device, claim.units.start),
            None => None,
        };
        Some(claims.iter_mut().zip(wanted).map(take).collect())
    }

    /// Gives back what was allocated and does not suffice, and claims it where that is needed to get it again.
    pub(super) fn claim_again(&mut self, wanted: &[Wanted<'_>], rooms: &SomeRooms) {
        for (at, (room, (shape, ..))) in rooms.iter().zip(wanted).enumerate() {
            let Some(Allocated { place, slab_base }) = *room else { continue };
            self.objects.spaces_mut().give_back(&Object { place, ..*shape });
            if slab_base.is_none() {
                let units = place.unit..place.unit + self.objects.units_of(shape);
                self.room.claims.all[at] = Some(Claim::run(place.device, units));
            }
        }
    }

    /// Claims room for each object that has none, and evicts the objects there until the turn's limit. The error says
    /// why it does not go on.
    pub(super) fn make_rooms(&mut self, wanted: &[Wanted<'_>]) -> Eviction {
        self.room.claims.needs =
            wanted.iter().map(|(shape, ..)| self.objects.units_of(shape)).sum();
        let mut slots = SmallVec::new();
        for (at, (shape, devices, _)) in wanted.iter().enumerate() {
            let has_room = match self.objects.layouts().slab_of(shape) {
                Some(_) => self.has_slot(at, wanted, *devices, &mut slots),
                None => self.room.claims.all[at].is_some(),
            };
            if !has_room {
                match self.choose_room(shape, *devices) {
                    Ok(claim) => self.claim_room(at, shape, claim, &mut slots),
                    Err(why) => return why,
                }
            }
            if let Err(why) = self.empty(at) {
                return why;
            }
        }
        let before = self.objects.spaces().staying_units();
        let evicted = self.evict_towards(self.room.claims.needs);
        self.room.claims.spend(before - self.objects.spaces().staying_units());
        evicted
    }

    fn claim_room(&mut self, at: usize, shape: &Object, claim: Claim, slots: &mut SpareSlots) {
        self.room.claims.search = None;
        if let Some((_, spare)) = slots.iter_mut().find(|(layout, _)| *layout == shape.layout)
            && let Some(slab) = self.objects.layouts().slab_of(shape)
        {
            *spare += spare_of(&claim, slab.slots.into());
        }
        self.room.claims.all[at] = Some(claim);
    }

    /// Returns whether there will be a slot for an object without a claim of its own, and counts it.
    fn has_slot(
        &self,
        at: usize,
        wanted: &[Wanted<'_>],
        devices: u64,
        slots: &mut SpareSlots,
    ) -> bool {
        let shape = &wanted[at].0;
        let known = slots.iter().position(|(layout, _)| *layout == shape.layout);
        let known = known.unwrap_or_else(|| {
            slots.push((shape.layout, self.spare_slots(shape, wanted, devices)));
            slots.len() - 1
        });
        takes_slot(self.room.claims.all[at].as_ref(), &mut slots[known].1)
    }

    /// Returns the slots of the layout of `shape` that are free or soon will be, and that no object of `wanted` has
    /// claimed for itself.
    fn spare_slots(&self, shape: &Object, wanted: &[Wanted<'_>], devices: u64) -> i64 {
        assert_eq!(self.room.claims.all.len(), wanted.len(), "each object may have a claim");
        let slab = self.objects.layouts().slab_of(shape).map_or(0, |slab| i64::from(slab.slots));
        let there: u64 = self
            .devices(devices)
            .map(|device| self.objects.spaces().on(device).slots(shape.layout))
            .map(|slots| slots.free + slots.sinking)
            .sum();
        let alike = self.room.claims.all.iter().zip(wanted);
        let alike = alike.filter(|(_, (other, ..))| other.layout == shape.layout);
        let claims = alike.filter_map(|(claim, _)| claim.as_ref());
        there as i64 + claims.map(|claim| spare_of(claim, slab)).sum::<i64>()
    }

    /// Evicts the objects in a claim, until the turn's limit.
    fn empty(&mut self, at: usize) -> Result<(), Eviction> {
        let Some(claim) = self.room.claims.all[at].clone().filter(|claim| !claim.is_empty) else {
            return Ok(());
        };
        let mut victims = std::mem::take(&mut self.room.claims.victims);
        victims.clear();
        let is_there = |id: &ObjectId| {
            self.objects.index().contains(*id) && claim.has(self.objects.index().object(*id).place)
        };
        match claim.only {
            Some(id) => victims.extend(Some(id).filter(is_there)),
            None => each_inside(self.objects, claim.device, &claim.units, |id, _| victims.push(id)),
        }
        let mut done = Ok(());
        for id in victims.drain(..) {
            let units = self.objects.units_of(&self.objects.index().object(id));
            let has =
                self.objects.spaces().capacity_units() - self.objects.spaces().staying_units();
            let why = if has < self.room.claims.needs {
                EvictReason::Space
            } else {
                EvictReason::Fragmentation
            };
            if self.evict_object(id, why) != Eviction::One {
                done = Err(Eviction::NotYet);
                break;
            }
            self.room.claims.spend(units);
        }
        self.room.claims.victims = victims;
        if done.is_ok()
            && let Some(claim) = &mut self.room.claims.all[at]
        {
            claim.is_empty = true;
        }
        done
    }

    /// Drops claims that will not become free: something in them was leased, or their device is out of service.
    fn drop_broken(&mut self, wanted: &[Wanted<'_>]) {
        for (at, (shape, devices, _)) in wanted.iter().enumerate() {
            let is_broken = |claim: &Claim| {
                let is_usable = has_device(*devices, claim.device);
                let fits =
                    claim.fits(self.objects.units_of(shape), self.objects.layouts().slab_of(shape));
                !is_usable || !fits || !is_going(self.objects, claim)
            };
            if self.room.claims.all[at].as_ref().is_some_and(is_broken) {
                self.room.claims.all[at] = None;
            }
        }
    }

    /// Offers the windows in these units of a device. Returns how many pieces it looked at.
    fn offer(&mut self, choice: &mut Choice, device: u8, units: &Range<u64>) -> usize {
        let mut pieces = std::mem::take(&mut self.room.claims.pieces);
        list(self.objects, device, units, &mut pieces);
        self.room.claims.leave_claimed(device, &mut pieces);
        choice.offer(device, &pieces);
        let count = pieces.len();
        self.room.claims.pieces = pieces;
        count
    }

    /// Chooses what to claim for an object of this shape on one of `devices`. The error says that nothing may go, or
    /// that the search continues in the next turn.
    fn choose_room(&mut self, shape: &Object, devices: u64) -> Result<Claim, Eviction> {
        let (slab, asked) = (self.objects.layouts().slab_of(shape), self.objects.units_of(shape));
        let needs = slab.map_or(asked, SlabShape::units);
        let kind = if slab.is_some() { ClaimKind::Slab } else { ClaimKind::Run };
        let limit = self.room.claims.limit(asked, self.objects.spaces().slack_units());
        let mut choice = Choice::new(needs, limit);
        self.offer_runs(&mut choice, devices, needs, |run| run.end - run.start >= needs);
        if let Some(window) = choice.best.take_if(|best| best.goes_units == 0) {
            return Ok(Claim::window(window, kind, None));
        }
        if let Some(first) = self.seeds(devices, 1).first()
            && let Some(claim) = self.first_alone(shape, kind, *first, Choice::new(needs, limit))
        {
            return Ok(claim);
        }
        let seeds = self.seeds(devices, SEEDS);
        self.offer_runs(&mut choice, devices, needs, |_| true);
        self.offer_seeds(&mut choice, &seeds, needs);
        if slab.is_some()
            && let Some(claim) = self.slot_instead(&choice, shape, devices, &seeds)
        {
            return Ok(claim);
        }
        if choice.best.is_none() {
            self.search(&mut choice, devices)?;
        }
        let window = choice.best.or(choice.least);
        window
            .map(|window| Claim::window(window, kind, None))
            .ok_or_else(|| self.room.what_else(self.objects))
    }

    /// Offers windows beside free runs that are worth a look.
    fn offer_runs(
        &mut self,
        choice: &mut Choice,
        devices: u64,
        needs: u64,
        is_worth_it: impl Fn(&Range<u64>) -> bool,
    ) {
        for device in self.devices(devices) {
            for run in self.objects.spaces().on(device).promising_runs(needs).filter(&is_worth_it) {
                self.offer(choice, device, &around(&run, needs));
                if choice.is_free() {
                    return;
                }
            }
        }
    }

    /// Returns at most `most` objects that would go next and lie on one of `devices`, without those in claims.
    fn seeds(&mut self, devices: u64, most: usize) -> Seeds {
        let first = self.objects.victim();
        let (index, spaces) = (self.objects.index(), self.objects.spaces());
        let there = |id: ObjectId| {
            // The policy may be a custom one.
            assert!(index.contains(id), "a policy names an object that is there");
            id
        };
        let follower = |id: &ObjectId| self.objects.order().follower(*id).map(there);
        let is_seed = |id: &ObjectId| {
            let Object { place, .. } = index.object(*id);
            let mut claims = self.room.claims.all.iter().flatten();
            let is_claimed = claims.any(|claim| claim.has(place));
            has_device(devices, place.device) && !spaces.is_leased(place) && !is_claimed
        };
        let steps = SEED_STEPS + self.room.claims.all.len();
        std::iter::successors(first, follower).take(steps).filter(is_seed).take(most).collect()
    }

    /// Claims the place of the first victim, if that is enough together with free space beside it.
    fn first_alone(
        &mut self,
        shape: &Object,
        kind: ClaimKind,
        id: ObjectId,
        mut choice: Choice,
    ) -> Option<Claim> {
        let object = self.objects.index().object(id);
        if self.objects.layouts().slab_of(&object).is_some() {
            let is_alike = object.layout == shape.layout;
            return is_alike.then(|| Claim::slot(object.place, id));
        }
        let Place { device, unit } = object.place;
        let goes_units = self.objects.units_of(&object);
        let units = unit..unit + goes_units;
        let mut pieces = std::mem::take(&mut self.room.claims.pieces);
        pieces.clear();
        self.objects
            .spaces()
            .on(device)
            .free_pieces(&(unit.saturating_sub(1)..units.end + 1), &mut pieces);
        pieces.push(Piece { units, goes_units, worth: 0 });
        pieces.sort_unstable_by_key(|piece| piece.units.start);
        join_free(&mut pieces);
        self.room.claims.leave_claimed(device, &mut pieces);
        choice.offer(device, &pieces);
        self.room.claims.pieces = pieces;
        choice.best.map(|window| Claim::window(window, kind, Some(id)))
    }

    /// Offers windows around the objects that would go next.
    fn offer_seeds(&mut self, choice: &mut Choice, seeds: &Seeds, needs: u64) {
        let (mut seen, mut left) = (SmallVec::<[(u8, Range<u64>); SEEDS]>::new(), PIECES_PER_TURN);
        for id in seeds {
            let object = self.objects.index().object(*id);
            let Place { device, unit } = object.place;
            let is_seen = |(on, units): &(u8, Range<u64>)| *on == device && units.contains(&unit);
            if seen.iter().any(is_seen) {
                continue;
            }
            if left == 0 {
                break;
            }
            let units = self.objects.spaces().extent_of(&object);
            left = left.saturating_sub(self.offer(choice, device, &around(&units, needs)));
            seen.push((device, around(&units, needs / 2)));
        }
    }

    /// Claims the slot of a block of the same layout, if that is worth less than the best window or there is none.
    fn slot_instead(
        &self,
        choice: &Choice,
        shape: &Object,
        devices: u64,
        seeds: &Seeds,
    ) -> Option<Claim> {
        let is_alike = |id: &&ObjectId| self.objects.index().object(**id).layout == shape.layout;
        let found = match (seeds.iter().find(is_alike), &choice.best) {
            (Some(id), Some(window)) => {
                let (worth, units) = window.worth_per_unit();
                Some(*id).filter(|id| worth_of(self.objects, *id) * units <= worth)
            }
            (Some(id), None) => Some(*id),
            (None, Some(_)) => None,
            (None, None) => self.oldest_block(shape.layout, devices),
        };
        found.map(|id| Claim::slot(self.objects.index().object(id).place, id))
    }

    /// Returns the oldest block of a layout in some of its slabs.
    fn oldest_block(&self, layout: LayoutId, devices: u64) -> Option<ObjectId> {
        let mut oldest: Option<(u64, ObjectId)> = None;
        for device in self.devices(devices) {
            for slab in self.objects.spaces().on(device).slabs_of(layout).take(SLABS_COMPARED) {
                each_in_slab(self.objects, device, &slab, |id, object| {
                    let mut claims = self.room.claims.all.iter().flatten();
                    let is_claimed = claims.any(|claim| claim.has(object.place));
                    let worth = worth_of(self.objects, id);
                    let is_older = oldest.is_none_or(|(least, _)| worth < least);
                    if is_older && !is_claimed && !self.objects.spaces().is_leased(object.place) {
                        oldest = Some((worth, id));
                    }
                });
            }
        }
        oldest.map(|(_, id)| id)
    }

    /// Searches the whole share for a window. The error says that the search continues in the next turn.
    fn search(&mut self, choice: &mut Choice, devices: u64) -> Result<(), Eviction> {
        let needs = choice.needs();
        let begun = self.room.claims.search.take().filter(|search| search.needs == needs);
        let mut search = begun.unwrap_or(Search { needs, device: 0, unit: 0, least: None });
        let mut left = PIECES_PER_TURN;
        while choice.best.is_none() && search.device < self.objects.spaces().devices() {
            let range = self.objects.spaces().on(search.device).range_from(search.unit);
            let Some(range) = range.filter(|_| has_device(devices, search.device)) else {
                (search.device, search.unit) = (search.device + 1, 0);
                continue;
            };
            let from = search.unit.max(range.start);
            if left == 0 {
                choice.keep_least(&mut search.least);
                self.room.claims.search = Some(search);
                return Err(Eviction::NotYet);
            }
            let until = from.saturating_add(SEARCH_UNITS.max(4 * needs)).min(range.end);
            left = left.saturating_sub(self.offer(choice, search.device, &(from..until)).max(1));
            // The last windows of this step begin with the next.
            search.unit = if until == range.end { until } else { until - needs };
        }
        choice.keep_least(&mut search.least);
        choice.least = search.least;
        Ok(())
    }
}

/// Returns whether what lies in a claim is free, soon will be, or may be evicted.
fn is_going(objects: &Objects, claim: &Claim) -> bool {
    let Claim { device, units, kind, is_empty, .. } = claim;
    if *kind == ClaimKind::Slot {
        return !objects.spaces().is_leased(Place { device: *device, unit: units.start });
    }
    if objects.spaces().on(*device).is_free(units) {
        return true;
    }
    let mut pieces = Vec::new();
    if *is_empty {
        objects.spaces().on(*device).free_pieces(units, &mut pieces);
        pieces.sort_unstable_by_key(|piece| piece.units.start);
    } else {
        list(objects, *device, units, &mut pieces);
    }
    is_covered(&pieces, units)
}

/// Returns the units that windows of `needs` units around `run` may lie in.
fn around(run: &Range<u64>, needs: u64) -> Range<u64> {
    run.start.saturating_sub(needs)..run.end.saturating_add(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_its_bit() {
        for device in 0..64 {
            let others = (0..64).filter(|other| *other != device);
            assert!(has_device(1 << device, device) && has_device(u64::MAX, device));
            assert!(others.clone().all(|other| !has_device(1 << device, other)));
        }
    }
}
