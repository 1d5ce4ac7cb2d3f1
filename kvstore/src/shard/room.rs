//! Making room: what goes so that a change finds space.
//!
//! A change that finds no room *claims* some for each of its objects, evicts what lies there, and waits until the
//! claims are free. Only the first change in line allocates, so nothing else takes what it claimed. A claim is:
//!
//! - the extent of the policy's next victim, if that holds the object together with free space beside it;
//! - otherwise the window that costs least (see `window`) around the objects that would go next, and beside the
//!   longest free runs; if none of these will do, any in the shard's share, looked for over several turns;
//! - for a block in slabs, the slot of a block of its layout, or a window for a whole slab, whichever is worth less.
//!
//! What goes is bounded: at most twice the units asked for, and once a slab of each layout and the longest object.
//! This holds over any span of time. Where leases leave nothing else, more may go.

use std::ops::Range;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use smallvec::SmallVec;

use super::Shard;
use super::claim::{Claim, Kind, spare_of, takes_slot};
use super::evicting::{EvictReason, Evicted};
use super::making::{Search, is_covered, join_free};
use super::put::Wanted;
use super::space::Room;
use crate::io::lane::Load;
use crate::model::layout::{Layout, SlabShape};
use crate::model::object::{LayoutId, Object, ObjectId};
use crate::model::place::Place;
use crate::policy::age::Ages;
use crate::space::slab::SlabView;
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

/// The room for each object of a change, as far as there is any.
pub(super) type SomeRooms = SmallVec<[Option<Room>; 1]>;
/// Objects that would go next, in order.
type Seeds = SmallVec<[ObjectId; SEEDS]>;
/// For each layout of a change, the slots that are left for its objects.
type SpareSlots = SmallVec<[(LayoutId, i64); 2]>;

/// A bit for each device.
fn has_device(devices: u64, device: u8) -> bool {
    devices & 1 << device != 0
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns the devices among `devices` that are in service.
    fn in_service(&self, devices: u64) -> u64 {
        let works = |device: &usize| self.lanes[*device].failure().is_none();
        let working: u64 = (0..self.lanes.len()).filter(works).map(|device| 1 << device).sum();
        devices & working
    }

    fn slab_of(&self, shape: &Object) -> Option<SlabShape> {
        self.spaces.layout(shape.layout).and_then(Layout::slab)
    }

    /// Takes the rooms that were claimed, if all claims are free. Returns `None` while some are not.
    pub(super) fn take_claimed(&mut self, wanted: &[Wanted<'_>]) -> Option<SomeRooms> {
        if self.making.claims.len() != wanted.len() {
            self.making.end();
            self.making.claims.resize(wanted.len(), None);
        }
        self.drop_broken(wanted);
        let is_free = |claim: &Claim| match claim.kind {
            Kind::Slot => self.spaces.is_slot_free(claim.device, claim.units.start),
            Kind::Run | Kind::Slab => self.spaces.is_free(claim.device, &claim.units),
        };
        if !self.making.claims.iter().flatten().all(is_free) {
            return None;
        }
        let (claims, spaces) = (&mut self.making.claims, &mut self.spaces);
        let take = |(claim, (shape, ..)): (&mut Option<Claim>, &Wanted<'_>)| match claim {
            Some(Claim { kind: Kind::Slot, .. }) => {
                // Now there is a slot, which it need not be.
                *claim = None;
                None
            }
            Some(claim) => spaces.allocate_at(shape, claim.device, claim.units.start),
            None => None,
        };
        Some(claims.iter_mut().zip(wanted).map(take).collect())
    }

    /// Gives back rooms that do not suffice, and claims them where that is needed to get them again.
    pub(super) fn claim_again(&mut self, wanted: &[Wanted<'_>], rooms: &SomeRooms) {
        for (at, (room, (shape, ..))) in rooms.iter().zip(wanted).enumerate() {
            let Some(Room { place, slab_base }) = *room else { continue };
            self.spaces.give_back(&Object { place, ..*shape });
            if slab_base.is_none() {
                let units = place.unit..place.unit + self.spaces.units_of(shape);
                self.making.claims[at] = Some(Claim::run(place.device, units));
            }
        }
    }

    /// Claims room for what has none, and evicts what lies there, as far as this turn goes. The error says why it does
    /// not go on.
    pub(super) fn make_rooms(&mut self, now: Time, wanted: &[Wanted<'_>]) -> Evicted {
        self.making.needs = wanted.iter().map(|(shape, ..)| self.spaces.units_of(shape)).sum();
        let mut slots = SmallVec::new();
        for (at, (shape, devices, _)) in wanted.iter().enumerate() {
            let devices = self.in_service(*devices);
            let has_room = match self.slab_of(shape) {
                Some(_) => self.has_slot(at, wanted, devices, &mut slots),
                None => self.making.claims[at].is_some(),
            };
            if !has_room {
                match self.choose_room(shape, devices) {
                    Ok(claim) => self.claim_room(at, shape, claim, &mut slots),
                    Err(why) => return why,
                }
            }
            if let Err(why) = self.empty(now, at) {
                return why;
            }
        }
        let before = self.spaces.staying_units();
        let evicted = self.evict_towards(now, self.making.needs);
        self.making.spend(before - self.spaces.staying_units());
        evicted
    }

    fn claim_room(&mut self, at: usize, shape: &Object, claim: Claim, slots: &mut SpareSlots) {
        self.making.search = None;
        if let Some((_, spare)) = slots.iter_mut().find(|(layout, _)| *layout == shape.layout)
            && let Some(slab) = self.slab_of(shape)
        {
            *spare += spare_of(&claim, slab.slots.into());
        }
        self.making.claims[at] = Some(claim);
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
        takes_slot(self.making.claims[at].as_ref(), &mut slots[known].1)
    }

    /// Returns the slots of the layout of `shape` that are free or soon will be, and that no object of `wanted` has
    /// claimed for itself.
    fn spare_slots(&self, shape: &Object, wanted: &[Wanted<'_>], devices: u64) -> i64 {
        assert_eq!(self.making.claims.len(), wanted.len(), "each object may have a claim");
        let slab = self.slab_of(shape).map_or(0, |slab| i64::from(slab.slots));
        let there = (0..self.lanes.len() as u8).filter(|device| has_device(devices, *device));
        let there: u64 = there
            .map(|device| self.spaces.slots(device, shape.layout))
            .map(|slots| slots.free + slots.sinking)
            .sum();
        let alike = self.making.claims.iter().zip(wanted);
        let alike = alike.filter(|(_, (other, ..))| other.layout == shape.layout);
        let claims = alike.filter_map(|(claim, _)| claim.as_ref());
        there as i64 + claims.map(|claim| spare_of(claim, slab)).sum::<i64>()
    }

    /// Evicts what lies in a claim, as far as this turn goes.
    fn empty(&mut self, now: Time, at: usize) -> Result<(), Evicted> {
        let Some(claim) = self.making.claims[at].clone().filter(|claim| !claim.is_empty) else {
            return Ok(());
        };
        let mut victims = std::mem::take(&mut self.making.victims);
        victims.clear();
        let is_there =
            |id: &ObjectId| self.index.contains(*id) && claim.has(self.index.object(*id).place);
        match claim.only {
            Some(id) => victims.extend(Some(id).filter(is_there)),
            None => self.each_inside(claim.device, &claim.units, |id, _| victims.push(id)),
        }
        let mut done = Ok(());
        for id in victims.drain(..) {
            let units = self.spaces.units_of(&self.index.object(id));
            let has = self.spaces.capacity_units() - self.spaces.staying_units();
            let why = if has < self.making.needs {
                EvictReason::Space
            } else {
                EvictReason::Fragmentation
            };
            if self.evict_object(now, id, why) != Evicted::One {
                done = Err(Evicted::NotYet);
                break;
            }
            self.making.spend(units);
        }
        self.making.victims = victims;
        if done.is_ok()
            && let Some(claim) = &mut self.making.claims[at]
        {
            claim.is_empty = true;
        }
        done
    }

    /// Passes on the objects outside slabs that begin in these units, and all objects of the slabs there.
    fn each_inside(&self, device: u8, units: &Range<u64>, mut each: impl FnMut(ObjectId, &Object)) {
        self.regions.visit(device, units, |id| {
            let object = self.index.object(id);
            if units.contains(&object.place.unit) && !self.spaces.is_in_slab(&object) {
                each(id, &object);
            }
        });
        for slab in self.spaces.slabs_in(device, units) {
            self.each_in_slab(device, &slab, &mut each);
        }
    }

    fn each_in_slab(&self, device: u8, slab: &SlabView, mut each: impl FnMut(ObjectId, &Object)) {
        self.regions.visit(device, &slab.heads, |id| {
            let object = self.index.object(id);
            let is_inside = slab.heads.contains(&object.place.unit);
            if is_inside && object.layout == slab.layout {
                each(id, &object);
            }
        });
    }

    /// Drops claims that will not become free: something in them was leased, or their device is out of service.
    fn drop_broken(&mut self, wanted: &[Wanted<'_>]) {
        for (at, (shape, devices, _)) in wanted.iter().enumerate() {
            let is_broken = |claim: &Claim| {
                let is_usable = has_device(self.in_service(*devices), claim.device);
                let fits = claim.fits(self.spaces.units_of(shape), self.slab_of(shape));
                !is_usable || !fits || !self.is_going(claim)
            };
            if self.making.claims[at].as_ref().is_some_and(is_broken) {
                self.making.claims[at] = None;
            }
        }
    }

    /// Returns whether what lies in a claim is free, soon will be, or may be evicted.
    fn is_going(&self, claim: &Claim) -> bool {
        let Claim { device, units, kind, is_empty, .. } = claim;
        if *kind == Kind::Slot {
            return !self.leases.is_leased(Place { device: *device, unit: units.start });
        }
        if self.spaces.is_free(*device, units) {
            return true;
        }
        let mut pieces = Vec::new();
        if *is_empty {
            self.spaces.free_pieces(*device, units, &mut pieces);
            pieces.sort_unstable_by_key(|piece| piece.units.start);
        } else {
            self.pieces(*device, units, &mut pieces);
        }
        is_covered(&pieces, units)
    }

    /// Lists what a window may pass over in these units of a device, in order.
    fn pieces(&self, device: u8, units: &Range<u64>, pieces: &mut Vec<Piece>) {
        pieces.clear();
        self.spaces.free_pieces(device, units, pieces);
        self.regions.visit(device, units, |id| {
            let object = self.index.object(id);
            let is_here = units.contains(&object.place.unit) && !self.spaces.is_in_slab(&object);
            if is_here && !self.leases.is_leased(object.place) {
                let goes_units = self.spaces.units_of(&object);
                let units = object.place.unit..object.place.unit + goes_units;
                pieces.push(Piece { units, goes_units, worth: goes_units * self.worth(id) });
            }
        });
        pieces.extend(
            self.spaces.slabs_in(device, units).filter_map(|slab| self.slab_piece(device, slab)),
        );
        pieces.sort_unstable_by_key(|piece| piece.units.start);
        join_free(pieces);
    }

    /// Returns a slab as a piece, if all of its blocks may go: none is leased or still being written.
    fn slab_piece(&self, device: u8, slab: SlabView) -> Option<Piece> {
        let (mut blocks, mut is_leased) = (0, false);
        let (mut goes_units, mut worth) = (0, 0);
        self.each_in_slab(device, &slab, |id, object| {
            let units = self.spaces.units_of(object);
            blocks += 1;
            goes_units += units;
            worth += units * self.worth(id);
            is_leased |= self.leases.is_leased(object.place);
        });
        let units = slab.units;
        (!is_leased && blocks == slab.staying).then_some(Piece { units, goes_units, worth })
    }

    /// Returns what a unit of an object is worth: the more, the younger it is.
    fn worth(&self, id: ObjectId) -> u64 {
        u64::from(Ages::MAX - self.policy.age(id)) + 1
    }

    /// Offers the windows in these units of a device. Returns how many pieces it looked at.
    fn offer(&mut self, choice: &mut Choice, device: u8, units: &Range<u64>) -> usize {
        let mut pieces = std::mem::take(&mut self.making.pieces);
        self.pieces(device, units, &mut pieces);
        self.making.leave_claimed(device, &mut pieces);
        choice.offer(device, &pieces);
        let count = pieces.len();
        self.making.pieces = pieces;
        count
    }

    /// Chooses what to claim for an object of this shape on one of `devices`. The error says that nothing may go, or
    /// that the search goes on in the next turn.
    fn choose_room(&mut self, shape: &Object, devices: u64) -> Result<Claim, Evicted> {
        let (slab, asked) = (self.slab_of(shape), self.spaces.units_of(shape));
        let needs = slab.map_or(asked, SlabShape::units);
        let kind = if slab.is_some() { Kind::Slab } else { Kind::Run };
        let limit = self.making.limit(asked, self.spaces.slack_units());
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
        window.map(|window| Claim::window(window, kind, None)).ok_or_else(|| self.what_else())
    }

    /// Offers windows beside free runs that are worth a look.
    fn offer_runs(
        &mut self,
        choice: &mut Choice,
        devices: u64,
        needs: u64,
        is_worth_it: impl Fn(&Range<u64>) -> bool,
    ) {
        for device in (0..self.lanes.len() as u8).filter(|device| has_device(devices, *device)) {
            for run in self.spaces.promising_runs(device, needs).filter(&is_worth_it) {
                self.offer(choice, device, &around(&run, needs));
                if choice.is_free() {
                    return;
                }
            }
        }
    }

    /// Returns at most `most` objects that would go next and lie on one of `devices`, without those in claims.
    fn seeds(&mut self, devices: u64, most: usize) -> Seeds {
        let (index, leases) = (&self.index, &self.leases);
        let first = self.policy.victim(&mut |id| leases.is_leased(index.object(id).place));
        let there = |id: ObjectId| {
            // The policy may be a custom one.
            assert!(index.contains(id), "a policy names an object that is there");
            id
        };
        let follower = |id: &ObjectId| self.policy.follower(*id).map(there);
        let is_seed = |id: &ObjectId| {
            let Object { place, .. } = index.object(*id);
            let mut claims = self.making.claims.iter().flatten();
            let is_claimed = claims.any(|claim| claim.has(place));
            has_device(devices, place.device) && !leases.is_leased(place) && !is_claimed
        };
        let steps = SEED_STEPS + self.making.claims.len();
        std::iter::successors(first.map(there), follower)
            .take(steps)
            .filter(is_seed)
            .take(most)
            .collect()
    }

    /// Claims the place of the first victim, if that is enough together with free space beside it.
    fn first_alone(
        &mut self,
        shape: &Object,
        kind: Kind,
        id: ObjectId,
        mut choice: Choice,
    ) -> Option<Claim> {
        let object = self.index.object(id);
        if self.spaces.is_in_slab(&object) {
            let is_alike = object.layout == shape.layout;
            return is_alike.then(|| Claim::slot(object.place, id));
        }
        let Place { device, unit } = object.place;
        let goes_units = self.spaces.units_of(&object);
        let units = unit..unit + goes_units;
        let mut pieces = std::mem::take(&mut self.making.pieces);
        pieces.clear();
        self.spaces.free_pieces(device, &(unit.saturating_sub(1)..units.end + 1), &mut pieces);
        pieces.push(Piece { units, goes_units, worth: 0 });
        pieces.sort_unstable_by_key(|piece| piece.units.start);
        join_free(&mut pieces);
        self.making.leave_claimed(device, &mut pieces);
        choice.offer(device, &pieces);
        self.making.pieces = pieces;
        choice.best.map(|window| Claim::window(window, kind, Some(id)))
    }

    /// Offers windows around the objects that would go next.
    fn offer_seeds(&mut self, choice: &mut Choice, seeds: &Seeds, needs: u64) {
        let (mut seen, mut left) = (SmallVec::<[(u8, Range<u64>); SEEDS]>::new(), PIECES_PER_TURN);
        for id in seeds {
            let object = self.index.object(*id);
            let Place { device, unit } = object.place;
            let is_seen = |(on, units): &(u8, Range<u64>)| *on == device && units.contains(&unit);
            if seen.iter().any(is_seen) {
                continue;
            }
            if left == 0 {
                break;
            }
            let units = self.spaces.extent_of(&object);
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
        let is_alike = |id: &&ObjectId| self.index.object(**id).layout == shape.layout;
        let found = match (seeds.iter().find(is_alike), &choice.best) {
            (Some(id), Some(window)) => {
                let (worth, units) = window.worth_per_unit();
                Some(*id).filter(|id| self.worth(*id) * units <= worth)
            }
            (Some(id), None) => Some(*id),
            (None, Some(_)) => None,
            (None, None) => self.oldest_block(shape.layout, devices),
        };
        found.map(|id| Claim::slot(self.index.object(id).place, id))
    }

    /// Returns the oldest block of a layout in some of its slabs.
    fn oldest_block(&self, layout: LayoutId, devices: u64) -> Option<ObjectId> {
        let mut oldest: Option<(u64, ObjectId)> = None;
        for device in (0..self.lanes.len() as u8).filter(|device| has_device(devices, *device)) {
            for slab in self.spaces.slabs_of(device, layout).take(SLABS_COMPARED) {
                self.each_in_slab(device, &slab, |id, object| {
                    let mut claims = self.making.claims.iter().flatten();
                    let is_claimed = claims.any(|claim| claim.has(object.place));
                    let worth = self.worth(id);
                    let is_older = oldest.is_none_or(|(least, _)| worth < least);
                    if is_older && !is_claimed && !self.leases.is_leased(object.place) {
                        oldest = Some((worth, id));
                    }
                });
            }
        }
        oldest.map(|(_, id)| id)
    }

    /// Looks for a window through the whole share. The error says that it goes on in the next turn.
    fn search(&mut self, choice: &mut Choice, devices: u64) -> Result<(), Evicted> {
        let needs = choice.needs();
        let begun = self.making.search.take().filter(|search| search.needs == needs);
        let mut search = begun.unwrap_or(Search { needs, device: 0, unit: 0, least: None });
        let mut left = PIECES_PER_TURN;
        while choice.best.is_none() && usize::from(search.device) < self.lanes.len() {
            let range = self.spaces.range_from(search.device, search.unit);
            let Some(range) = range.filter(|_| has_device(devices, search.device)) else {
                (search.device, search.unit) = (search.device + 1, 0);
                continue;
            };
            let from = search.unit.max(range.start);
            if left == 0 {
                choice.keep_least(&mut search.least);
                self.making.search = Some(search);
                return Err(Evicted::NotYet);
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
