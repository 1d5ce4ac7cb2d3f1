//! Plans where the objects and metadata of a shard move when a device is removed.
//!
//! Objects leave the device and the units of a new home. They are copied only to units that are free in the old store,
//! so that a cut at any time leaves that store intact. If they do not fit, the shard's oldest objects are lost; binary
//! search finds how few suffice. This module does no I/O.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Leaving;
use crate::media::geometry::{Geometry, without};
use crate::media::survey::{ShardSurvey, SurveyedObject};
use crate::model::layout::Layout;
use crate::model::options::Watermarks;
use crate::model::place::{Place, UNIT_BYTES};
use crate::space::extent::Extents;
use crate::space::slab::Slabs;

/// Number of objects of unknown sequence for which space is reserved at a time.
const AHEAD: u32 = 4;

/// The objects that a plan loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) objects: u64,
    pub(super) units: u64,
}

impl Losses {
    pub(super) fn add(&mut self, other: &Losses) {
        self.objects += other.objects;
        self.units += other.units;
    }
}

/// The move of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// The object's position among the shard's objects.
    pub(super) object: usize,
    pub(super) place: Place,
    pub(super) slab_base: Option<u64>,
}

/// The plan for the objects of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) moves: Vec<Move>,
    /// Positions of lost objects.
    pub(super) lost: Vec<usize>,
    pub(super) losses: Losses,
}

/// Returns the new home of a shard's metadata: none if the home is on another device, otherwise the units of the
/// shard's data on another device that its objects use least.
///
/// # Errors
/// The reason if no range is long enough.
pub(super) fn home(
    survey: &ShardSurvey,
    geometry: &Geometry,
    shard: u16,
    removed: u8,
) -> Result<Option<Place>, String> {
    if geometry.home(shard) != removed {
        return Ok(None);
    }
    let units = geometry.metadata_units();
    let mut best: Option<(u64, Place)> = None;
    for (device, ranges) in (0..).zip(&survey.data).filter(|(device, _)| *device != removed) {
        let used = Used::new(occupied(survey, device));
        for range in ranges.iter().filter(|range| range.end - range.start >= units) {
            for unit in used.candidates(range, units) {
                let cost = used.units_in(unit..unit + units);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, Place { device, unit }));
                }
            }
        }
    }
    best.map(|(_, place)| Some(place)).ok_or_else(|| {
        let bytes = units * UNIT_BYTES;
        format!(
            "shard {shard} has its journal there, and {bytes} bytes in a row on no other device"
        )
    })
}

/// Extents in order, with cumulative units.
struct Used {
    extents: Vec<Range<u64>>,
    before: Vec<u64>,
}

impl Used {
    fn new(mut extents: Vec<Range<u64>>) -> Used {
        extents.sort_unstable_by_key(|extent| extent.start);
        let mut sum = 0;
        let before = extents.iter().map(|extent| {
            sum += extent.end - extent.start;
            sum - (extent.end - extent.start)
        });
        Used { before: before.collect(), extents }
    }

    /// Returns the starts in a range at which a run of `units` may overlap extents least: the range's ends, and next to
    /// each extent.
    fn candidates(&self, range: &Range<u64>, units: u64) -> Vec<u64> {
        let last = range.end - units;
        let inside = self.extents.iter().filter(|e| range.start <= e.start && e.end <= range.end);
        let beside = inside.flat_map(|e| [Some(e.end), e.start.checked_sub(units)]).flatten();
        let all = beside.chain([range.start, last]);
        all.filter(|unit| (range.start..=last).contains(unit)).collect()
    }

    /// Returns the units of extents below `unit`.
    fn units_below(&self, unit: u64) -> u64 {
        let Some(at) = self.extents.partition_point(|e| e.start < unit).checked_sub(1) else {
            return 0;
        };
        self.before[at] + unit.min(self.extents[at].end) - self.extents[at].start
    }

    fn units_in(&self, units: Range<u64>) -> u64 {
        self.units_below(units.end) - self.units_below(units.start)
    }
}

/// Returns the units that an object occupies: its own, or those of its slab.
fn extent_of(survey: &ShardSurvey, found: &SurveyedObject) -> Range<u64> {
    match (found.slab_base, survey.layout_of(found).and_then(Layout::slab)) {
        (Some(base), Some(slab)) => base..base + slab.units(),
        _ => {
            let runs = survey.runs_of(found);
            runs[0].start..runs[runs.len() - 1].end
        }
    }
}

/// Returns the extents on a device, each slab once.
fn occupied(survey: &ShardSurvey, device: u8) -> Vec<Range<u64>> {
    let here = survey.objects.iter().filter(|found| found.object.place.device == device);
    let mut extents: Vec<_> = here.map(|found| extent_of(survey, found)).collect();
    extents.sort_unstable_by_key(|extent| (extent.start, extent.end));
    extents.dedup();
    extents
}

/// Returns the first object whose place is impossible, by the rules of an opening.
pub(super) fn misplaced(survey: &ShardSurvey) -> Option<&SurveyedObject> {
    for (device, ranges) in (0..).zip(&survey.data) {
        let (mut slabs, mut plain) = (Slabs::new(), Vec::new());
        let here = survey.objects.iter().filter(|found| found.object.place.device == device);
        for found in here {
            match (survey.layout_of(found).and_then(Layout::slab), found.slab_base) {
                (None, None) => plain.push(found),
                (Some(slab), Some(base)) => {
                    let offset = found.object.place.unit.checked_sub(base);
                    let slot = offset.and_then(|offset| slab.slot_at(offset));
                    let layout = found.object.layout;
                    if !slot.is_some_and(|slot| slabs.restore(base, layout, slab, slot)) {
                        return Some(found);
                    }
                }
                _ => return Some(found),
            }
        }
        let extents = plain.iter().map(|found| extent_of(survey, found));
        let (_, refused) = Extents::from_used(ranges, extents.chain(slabs.ranges()));
        if let Some(at) = refused.first() {
            return plain.get(*at).copied().or(survey.objects.first());
        }
    }
    None
}

/// Returns whether an object lies on a device, or overlaps these units of another.
pub(super) fn is_in_the_way(
    survey: &ShardSurvey,
    found: &SurveyedObject,
    removed: u8,
    home: Option<&(u8, Range<u64>)>,
) -> bool {
    let Place { device, .. } = found.object.place;
    let extent = extent_of(survey, found);
    let is_met = |(home, units): &(u8, Range<u64>)| {
        *home == device && units.start < extent.end && extent.start < units.end
    };
    device == removed || home.is_some_and(is_met)
}

/// Facts common to all attempts at a plan.
struct Task<'a> {
    survey: &'a ShardSurvey,
    removed: u8,
    home: Option<(u8, Range<u64>)>,
    /// The ranges of each device that may hold objects afterwards.
    ranges: Vec<Vec<Range<u64>>>,
    /// Each object's extent, or that of its slab.
    extents: Vec<Range<u64>>,
    /// The units of each object itself.
    units: Vec<u64>,
    /// Maximum units that objects may take.
    units_max: u64,
}

impl Plan {
    /// Plans the removal of a device for one shard, whose metadata move to `home` if they must.
    pub(super) fn new(
        survey: &ShardSurvey,
        removed: u8,
        home: Option<Place>,
        leaving: Leaving,
        metadata_units: u64,
    ) -> Plan {
        let home = home.map(|place| (place.device, place.unit..place.unit + metadata_units));
        let mut ranges = survey.data.clone();
        ranges[usize::from(removed)].clear();
        if let Some((device, units)) = &home {
            let ranges = &mut ranges[usize::from(*device)];
            *ranges = ranges.drain(..).flat_map(|range| without(range, Some(units))).collect();
        }
        let all = ranges.iter().flatten().map(|range| range.end - range.start).sum();
        let extents = survey.objects.iter().map(|found| extent_of(survey, found)).collect();
        let of = |found| survey.runs_of(found).iter().map(|run| run.end - run.start).sum();
        let units = survey.objects.iter().map(of).collect();
        let units_max = Watermarks::default().high_units(all);
        Task { survey, removed, home, ranges, extents, units, units_max }.plan(leaving)
    }
}

impl Task<'_> {
    fn plan(&self, leaving: Leaving) -> Plan {
        let objects = &self.survey.objects;
        let goes = |at: &usize| {
            let is_there = objects[*at].object.place.device == self.removed;
            (leaving == Leaving::Drop && is_there) || (self.is_mover(*at) && !self.could_fit(*at))
        };
        let (certain, mut rest): (Vec<_>, Vec<_>) = (0..objects.len()).partition(goes);
        rest.sort_unstable_by_key(|at| objects[*at].order);
        let (count, moves) = self.fewest_lost(&rest);
        let lost: Vec<usize> = certain.into_iter().chain(rest.drain(..count)).collect();
        let units = lost.iter().map(|at| self.units[*at]).sum();
        let losses = Losses { objects: lost.len() as u64, units };
        Plan { moves, lost, losses }
    }

    /// Returns how many of these objects, oldest first, must be lost so that the rest fit, and the moves of the rest.
    fn fewest_lost(&self, rest: &[usize]) -> (usize, Vec<Move>) {
        if let Some(moves) = self.attempt(rest) {
            return (0, moves);
        }
        let (mut too_few, mut enough, mut found) = (0, rest.len(), Vec::new());
        while too_few + 1 < enough {
            let count = too_few.midpoint(enough);
            match self.attempt(&rest[count..]) {
                Some(moves) => (enough, found) = (count, moves),
                None => too_few = count,
            }
        }
        (enough, found)
    }

    /// Returns whether an object cannot stay where it is.
    fn is_mover(&self, at: usize) -> bool {
        is_in_the_way(self.survey, &self.survey.objects[at], self.removed, self.home.as_ref())
    }

    /// Returns whether an object would fit in one of the ranges if they were empty.
    fn could_fit(&self, at: usize) -> bool {
        let units = self.extents[at].end - self.extents[at].start;
        self.ranges.iter().flatten().any(|range| range.end - range.start >= units)
    }

    /// Finds places for the `kept` objects that must move; `None` if they do not all fit.
    fn attempt(&self, kept: &[usize]) -> Option<Vec<Move>> {
        let used: u64 = kept.iter().map(|at| self.units[*at]).sum();
        if used > self.units_max {
            return None;
        }
        let mut movers: Vec<usize> = kept.iter().copied().filter(|at| self.is_mover(*at)).collect();
        movers.sort_unstable_by_key(|at| self.survey.objects[*at].object.place);
        let mut rooms: Vec<Room> =
            (0..self.ranges.len()).map(|device| self.room(device as u8, kept)).collect();
        movers.into_iter().map(|at| self.place(at, &mut rooms)).collect()
    }

    /// Returns the free space of a device: units without `kept` objects, and without the former units of moved ones.
    fn room(&self, device: u8, kept: &[usize]) -> Room {
        let ranges = &self.ranges[usize::from(device)];
        let is_here = |at: &&usize| self.survey.objects[**at].object.place.device == device;
        let (mut slabs, mut used) = (Slabs::new(), BTreeMap::new());
        for at in kept.iter().filter(is_here) {
            let found = &self.survey.objects[*at];
            let slab = self.survey.layout_of(found).and_then(Layout::slab);
            match (slab, found.slab_base) {
                (Some(slab), Some(base)) if !self.is_mover(*at) => {
                    let slot = slab.slot_at(found.object.place.unit - base);
                    let slot = slot.expect("the survey found no fault");
                    let is_free = slabs.restore(base, found.object.layout, slab, slot);
                    assert!(is_free, "the survey found no two objects in one place");
                }
                _ => drop(used.insert(self.extents[*at].start, self.extents[*at].end)),
            }
        }
        used.extend(slabs.ranges().map(|slab| (slab.start, slab.end)));
        // An object that makes way for a home may lie partly in a range.
        let clipped = used.iter().flat_map(|(start, end)| {
            let clip = |range: &Range<u64>| range.start.max(*start)..range.end.min(*end);
            ranges.iter().map(clip).filter(|clipped| clipped.start < clipped.end)
        });
        let (extents, refused) = Extents::from_used(ranges, clipped);
        assert!(refused.is_empty(), "the survey found no overlap");
        Room { extents, slabs, last: BTreeMap::new() }
    }

    /// Takes a place for an object, on the device with the most free space among those that have one.
    fn place(&self, at: usize, rooms: &mut [Room]) -> Option<Move> {
        let mut order: Vec<usize> = (0..rooms.len()).collect();
        order.sort_by_key(|device| std::cmp::Reverse(rooms[*device].extents.free_units()));
        order.into_iter().find_map(|device| {
            let (unit, slab_base) = self.place_on(at, &mut rooms[device])?;
            let place = Place { device: device as u8, unit };
            Some(Move { object: at, place, slab_base })
        })
    }

    fn place_on(&self, at: usize, room: &mut Room) -> Option<(u64, Option<u64>)> {
        let found = &self.survey.objects[at];
        let layout = found.object.layout;
        let near = room.last.get(&layout.0).copied();
        let Room { extents, slabs, last } = room;
        let Some(slab) = self.survey.layout_of(found).and_then(Layout::slab) else {
            let units = self.extents[at].end - self.extents[at].start;
            let unit = extents.allocate(units, near, AHEAD)?;
            last.insert(layout.0, unit + units);
            return Some((unit, None));
        };
        let unit = slabs.allocate(extents, layout, slab, near, AHEAD)?;
        last.insert(layout.0, unit);
        Some((unit, Some(slabs.base_of(unit))))
    }
}

/// The free space of a device while objects are placed.
struct Room {
    extents: Extents,
    slabs: Slabs,
    /// For each layout, the unit behind which its next object would follow: the last object's end, or its slot.
    last: BTreeMap<u8, u64>,
}
