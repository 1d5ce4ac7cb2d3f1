//! The shard's share of every device: free space, space that may not be overwritten yet, and capacity.
//!
//! The extent of a removed object is *buried* until two things hold: the record of the removal is durable, so that no
//! crash brings back an object whose space holds other data; and no reader is left. Only then is it free.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;

use super::layouts::Layouts;
use crate::catalog::hash::NumberMap;
use crate::catalog::lease::{LeaseId, Leases};
use crate::error::Failure;
use crate::model::object::{LayoutId, Object};
use crate::model::place::{Place, UNIT_BYTES};
use crate::space::discard::Discards;
use crate::space::extent::Extents;
use crate::space::runs::Runs;
use crate::space::slab::{SlabView, Slabs, Slots};
use crate::space::window::Piece;

/// At most one `LEASED_PARTS`th of the objects may be leased at a time.
const LEASED_PARTS: u32 = 2;
/// Limit of runs that wait to be deallocated; beyond it they would be short.
const DISCARD_RUNS_MAX: usize = 4096;

/// One device's share.
#[derive(Debug)]
pub(crate) struct DeviceSpace {
    extents: Extents,
    slabs: Slabs,
    /// Runs outside slabs that soon will be free by themselves.
    sinking: Runs,
}

impl DeviceSpace {
    fn new(extents: Extents, slabs: Slabs) -> DeviceSpace {
        DeviceSpace { extents, slabs, sinking: Runs::default() }
    }

    /// Adds the space that is free or soon will be to `pieces`, as far as it shares a unit with `units`.
    pub(crate) fn free_pieces(&self, units: &Range<u64>, pieces: &mut Vec<Piece>) {
        let free = self.extents.free_runs().all_overlapping(units.clone());
        pieces.extend(free.chain(self.sinking.all_overlapping(units.clone())).map(Piece::free));
    }

    /// Returns where to look for a run of `needs` units that is free or soon will be.
    pub(crate) fn promising_runs(&self, needs: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let best = |runs: &Runs| [runs.best_fit(needs), runs.longest()];
        let runs = [best(self.extents.free_runs()), best(&self.sinking)];
        runs.into_iter().flatten().flatten()
    }

    /// Iterates over the slabs that share a unit with `units`.
    pub(crate) fn slabs_in(&self, units: &Range<u64>) -> impl Iterator<Item = SlabView> {
        self.slabs.all_overlapping(units.clone())
    }

    /// Iterates over the slabs of a layout, fullest first.
    pub(crate) fn slabs_of(&self, layout: LayoutId) -> impl Iterator<Item = SlabView> {
        self.slabs.all_of(layout)
    }

    /// Returns the slots of a layout's slabs.
    pub(crate) fn slots(&self, layout: LayoutId) -> Slots {
        self.slabs.slots(layout)
    }

    /// Returns whether a run is free.
    pub(crate) fn is_free(&self, units: &Range<u64>) -> bool {
        self.extents.free_runs().contains(units)
    }

    /// Returns whether no block is in the slot that started at `unit`.
    pub(crate) fn is_slot_free(&self, unit: u64) -> bool {
        self.slabs.is_slot_free(unit)
    }

    /// Returns the first range that ends behind `unit`.
    pub(crate) fn range_from(&self, unit: u64) -> Option<Range<u64>> {
        self.extents.ranges().iter().find(|range| range.end > unit).cloned()
    }
}

/// Where a new object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) place: Place,
    /// The start of its slab, if its layout has slabs.
    pub(crate) slab_base: Option<u64>,
}

/// A removed object.
#[derive(Clone, Copy, Debug)]
struct Grave {
    /// The journal block that records the removal.
    sequence: u64,
    object: Object,
    /// Whether its space soon will be free. No lease holds it, which may last.
    sinks: bool,
}

/// The readers of a place.
#[derive(Debug, Default)]
struct Pin {
    count: u32,
    /// The object, if it was removed and is kept only for its readers.
    gone: Option<Grave>,
}

/// The shard's shares of all devices.
#[derive(Debug)]
pub(crate) struct Spaces {
    devices: Vec<DeviceSpace>,
    layouts: Layouts,
    discards: Discards,
    graves: VecDeque<Grave>,
    pins: NumberMap<u64, Pin>,
    leases: Leases,
    /// Units of objects, including those being written and buried ones.
    used_units: u64,
    buried_units: u64,
    /// Units of the run being deallocated on its device.
    discarding_units: u64,
    /// Buried units that wait only for readers or leases.
    held_units: u64,
    capacity_units: u64,
    /// Units of the longest object there was.
    longest_units: u64,
    next_device: usize,
}

impl Spaces {
    /// Creates spaces with all units of each device's ranges free, of which at most `capacity_units` will be used, by
    /// at most `objects_max` objects.
    pub(crate) fn new(
        ranges: &[Vec<Range<u64>>],
        (capacity_units, objects_max): (u64, u32),
        discard_after: Duration,
    ) -> Spaces {
        let all: u64 = ranges.iter().flatten().map(|range| range.end - range.start).sum();
        let space = |ranges: &Vec<_>| DeviceSpace::new(Extents::over(ranges), Slabs::new());
        let devices: Vec<DeviceSpace> = ranges.iter().map(space).collect();
        let capacity_units = capacity_units.min(all);
        let longest = devices.iter().map(|space| space.extents.longest_range()).max();
        Spaces {
            devices,
            layouts: Layouts::new(longest.unwrap_or(0).min(capacity_units)),
            discards: Discards::new(DISCARD_RUNS_MAX, discard_after),
            graves: VecDeque::new(),
            pins: NumberMap::default(),
            leases: Leases::new((objects_max / LEASED_PARTS).max(1) as usize),
            used_units: 0,
            buried_units: 0,
            discarding_units: 0,
            held_units: 0,
            capacity_units,
            longest_units: 0,
            next_device: 0,
        }
    }

    pub(crate) fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    pub(crate) fn layouts_mut(&mut self) -> &mut Layouts {
        &mut self.layouts
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> u8 {
        self.devices.len() as u8
    }

    /// Returns a device's share.
    pub(crate) fn on(&self, device: u8) -> &DeviceSpace {
        &self.devices[usize::from(device)]
    }

    /// Returns the most units of one extent on any device.
    pub(crate) fn extent_units_max(&self) -> u64 {
        (0..self.devices.len()).map(|device| self.extent_units_on(device)).max().unwrap_or(0)
    }

    /// Returns the units of objects that are there, or being written.
    pub(crate) fn live_units(&self) -> u64 {
        self.used_units - self.buried_units
    }

    pub(crate) fn buried_units(&self) -> u64 {
        self.buried_units
    }

    pub(crate) fn capacity_units(&self) -> u64 {
        self.capacity_units
    }

    /// Returns the number of free runs and the length of the longest.
    pub(crate) fn runs(&self) -> (u64, u64) {
        let extents = || self.devices.iter().map(|space| &space.extents);
        let count = extents().map(|extents| extents.run_count() as u64).sum();
        (count, extents().map(Extents::largest).max().unwrap_or(0))
    }

    /// Allocates room for an object of this shape on a `usable` device, behind the object in `near` for that device.
    /// `ahead` counts the objects left in its sequence, this one included.
    pub(crate) fn allocate(
        &mut self,
        shape: &Object,
        near: &[Option<Object>],
        ahead: u32,
        usable: impl Fn(u8) -> bool,
    ) -> Option<Allocated> {
        let needs = self.layouts.units_of(shape);
        if !self.has_capacity(needs) {
            return None;
        }
        let (first, count) = (self.next_device, self.devices.len());
        for device in (first..count).chain(0..first) {
            if !usable(device as u8) {
                continue;
            }
            let after = near.get(device).copied().flatten().filter(|o| o.layout == shape.layout);
            if let Some(allocated) = self.allocate_on(device as u8, shape, after, ahead) {
                self.next_device = (device + 1) % count;
                self.count(needs);
                return Some(allocated);
            }
        }
        None
    }

    /// Allocates room for an object of this shape at `unit`, in a new slab if its layout has slabs.
    pub(crate) fn allocate_at(
        &mut self,
        shape: &Object,
        device: u8,
        unit: u64,
    ) -> Option<Allocated> {
        let needs = self.layouts.units_of(shape);
        if !self.has_capacity(needs) {
            return None;
        }
        let slab = self.layouts.slab_of(shape);
        let space = &mut self.devices[usize::from(device)];
        let taken = match slab {
            None => space.extents.take(unit..unit + needs).then_some(needs),
            Some(slab) => {
                let slot = space.slabs.allocate_at(&mut space.extents, shape.layout, slab, unit);
                slot.map(|_| slab.units())
            }
        };
        self.discards.taken(device, unit..unit + taken?);
        self.count(needs);
        Some(Allocated { place: Place { device, unit }, slab_base: slab.map(|_| unit) })
    }

    /// Directs the next object to the device after that of `object`, so that a sequence is spread over all devices.
    pub(crate) fn follow(&mut self, object: &Object) {
        self.next_device = (usize::from(object.place.device) + 1) % self.devices.len();
    }

    fn allocate_on(
        &mut self,
        device: u8,
        shape: &Object,
        after: Option<Object>,
        ahead: u32,
    ) -> Option<Allocated> {
        let needs = self.layouts.units_of(shape);
        let behind = after.map(|object| object.place.unit + self.layouts.units_of(&object));
        let slab = self.layouts.slab_of(shape);
        let space = &mut self.devices[usize::from(device)];
        let Some(slab) = slab else {
            let unit = space.extents.allocate(needs, behind, ahead)?;
            self.discards.taken(device, unit..unit + needs);
            return Some(Allocated { place: Place { device, unit }, slab_base: None });
        };
        let near = after.map(|object| object.place.unit);
        let unit = space.slabs.allocate(&mut space.extents, shape.layout, slab, near, ahead)?;
        let base = space.slabs.base_of(unit);
        self.discards.taken(device, base..base + slab.units());
        Some(Allocated { place: Place { device, unit }, slab_base: Some(base) })
    }

    /// Returns the start of an object's slab, if it lies in one.
    pub(crate) fn slab_base(&self, object: &Object) -> Option<u64> {
        self.layouts.slab_of(object)?;
        Some(self.devices[usize::from(object.place.device)].slabs.base_of(object.place.unit))
    }

    /// Returns the units that an object takes, or those of the slab that it lies in.
    pub(crate) fn extent_of(&self, object: &Object) -> Range<u64> {
        let slab = self.layouts.slab_of(object);
        match self.slab_base(object).zip(slab) {
            Some((base, slab)) => base..base + slab.units(),
            None => object.place.unit..object.place.unit + self.layouts.units_of(object),
        }
    }

    /// Installs a device's free space as found on the media.
    pub(crate) fn install(&mut self, device: u8, extents: Extents, slabs: Slabs) {
        self.devices[usize::from(device)] = DeviceSpace::new(extents, slabs);
    }

    /// Counts an object that takes `units`.
    pub(crate) fn count(&mut self, units: u64) {
        self.used_units += units;
        self.longest_units = self.longest_units.max(units);
    }

    /// Frees the space of an object that was never recorded on the media.
    pub(crate) fn give_back(&mut self, object: &Object) {
        let freed = self.layouts.units_of(object);
        self.used_units -= freed;
        let Place { device, unit } = object.place;
        let is_in_slab = self.layouts.slab_of(object).is_some();
        let space = &mut self.devices[usize::from(device)];
        if is_in_slab {
            if let Some(slab) = space.slabs.free(&mut space.extents, unit) {
                self.discards.freed(device, slab);
            }
        } else {
            space.extents.free(unit..unit + freed);
            self.discards.freed(device, unit..unit + freed);
        }
    }

    /// Buries an object whose removal is recorded in block `sequence` of the journal.
    pub(crate) fn bury(&mut self, sequence: u64, object: Object) {
        let units = self.layouts.units_of(&object);
        self.layouts.enter(object.layout);
        self.buried_units += units;
        let is_in_slab = self.layouts.slab_of(&object).is_some();
        let (Place { device, unit }, sinks) = (object.place, !self.is_leased(object.place));
        let space = &mut self.devices[usize::from(device)];
        if sinks && is_in_slab {
            space.slabs.sink(unit);
        } else if sinks {
            assert!(space.sinking.insert(unit..unit + units), "an object is buried once");
        }
        self.graves.push_back(Grave { sequence, object, sinks });
    }

    /// Returns whether any buried object waits for the journal.
    pub(crate) fn has_graves(&self) -> bool {
        !self.graves.is_empty()
    }

    /// Frees buried objects recorded before `durable_end` that have no readers.
    pub(crate) fn settle(&mut self, durable_end: u64) {
        while let Some(grave) = self.graves.pop_front_if(|grave| grave.sequence < durable_end) {
            match self.pins.get_mut(&grave.object.place.pack()) {
                Some(pin) => {
                    pin.gone = Some(grave);
                    self.held_units += self.layouts.units_of(&grave.object);
                }
                None => self.unearth(&grave),
            }
        }
    }

    fn unearth(&mut self, Grave { object, sinks, .. }: &Grave) {
        let units = self.layouts.units_of(object);
        self.buried_units -= units;
        let is_in_slab = self.layouts.slab_of(object).is_some();
        let Place { device, unit } = object.place;
        let space = &mut self.devices[usize::from(device)];
        if *sinks && is_in_slab {
            space.slabs.unsink(unit);
        } else if *sinks {
            assert!(space.sinking.remove(unit..unit + units), "what sinks was buried");
        }
        self.give_back(object);
        self.layouts.leave(object.layout);
    }

    /// Protects the data at a place from being overwritten.
    pub(crate) fn pin(&mut self, place: Place) {
        self.pins.entry(place.pack()).or_default().count += 1;
    }

    /// Undoes [`Spaces::pin`].
    pub(crate) fn unpin(&mut self, place: Place) {
        let bits = place.pack();
        let pin = self.pins.get_mut(&bits).expect("what is unpinned was pinned");
        pin.count -= 1;
        if pin.count > 0 {
            return;
        }
        if let Some(grave) = self.pins.remove(&bits).and_then(|pin| pin.gone) {
            self.held_units -= self.layouts.units_of(&grave.object);
            self.unearth(&grave);
        }
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Protects the data of these objects from being overwritten.
    ///
    /// # Errors
    /// [`Failure::Full`] if too many objects are leased.
    pub(crate) fn lease(&mut self, objects: &[Object], until: Time) -> Result<LeaseId, Failure> {
        let places: Vec<Place> = objects.iter().map(|object| object.place).collect();
        let units: u64 = objects.iter().map(|object| self.layouts.units_of(object)).sum();
        let lease = self.leases.lease(&places, units * UNIT_BYTES, until)?;
        places.into_iter().for_each(|place| self.pin(place));
        Ok(lease)
    }

    /// Ends a lease; ignores one that has already ended.
    pub(crate) fn release(&mut self, lease: LeaseId) {
        let places = self.leases.release(lease);
        places.into_iter().flatten().for_each(|place| self.unpin(place));
    }

    /// Ends a lease whose time is over; returns false if there is none.
    pub(crate) fn expire_lease(&mut self, now: Time) -> bool {
        let Some(places) = self.leases.expire(now) else { return false };
        places.into_iter().for_each(|place| self.unpin(place));
        true
    }

    /// Returns whether a lease holds the object at a place.
    #[inline]
    pub(crate) fn is_leased(&self, place: Place) -> bool {
        self.leases.is_leased(place)
    }

    /// Returns the buried units without readers or leases, which only wait for the journal.
    pub(crate) fn sinking_units(&self) -> u64 {
        self.buried_units - self.held_units
    }

    /// Returns whether a removed object is kept only for reads in progress.
    pub(crate) fn is_held_by_reads(&self) -> bool {
        let is_read =
            |(bits, pin): (&u64, &Pin)| pin.gone.is_some() && !self.is_leased(Place::unpack(*bits));
        self.held_units > 0 && self.pins.iter().any(is_read)
    }

    /// Returns whether `units` more fit within the capacity.
    pub(crate) fn has_capacity(&self, units: u64) -> bool {
        self.used_units + units <= self.capacity_units
    }

    /// Returns the most units of one extent on a device.
    pub(crate) fn extent_units_on(&self, device: usize) -> u64 {
        self.devices[device].extents.longest_range().min(self.capacity_units)
    }

    /// Releases space for deallocation that has been free for long enough.
    pub(crate) fn age_discards(&mut self, now: Time) {
        self.discards.pass(now);
    }

    /// Returns when [`Spaces::age_discards`] is next needed.
    pub(crate) fn discards_age_at(&self) -> Time {
        self.discards.next_change().unwrap_or(Time::NEVER)
    }

    /// Takes the longest run of free units not yet deallocated, if it has at least `at_least`. It is not free until
    /// [`Spaces::discarded`], so that nothing is written there meanwhile.
    pub(crate) fn next_discard(&mut self, at_least: u64, at_most: u64) -> Option<(u8, Range<u64>)> {
        let (device, mut units) = self.discards.next(at_least)?;
        if units.end - units.start > at_most {
            self.discards.put_back(device, units.start + at_most..units.end);
            units.end = units.start + at_most;
        }
        let space = &mut self.devices[usize::from(device)];
        let is_free = space.extents.take(units.clone()) && space.sinking.insert(units.clone());
        assert!(is_free, "what is to be discarded is free");
        self.discarding_units = units.end - units.start;
        Some((device, units))
    }

    /// Frees a run after its deallocation succeeded or failed.
    pub(crate) fn discarded(&mut self, device: u8, units: Range<u64>) {
        let space = &mut self.devices[usize::from(device)];
        assert!(space.sinking.remove(units.clone()), "a run is discarded once");
        space.extents.free(units);
        self.discarding_units = 0;
    }

    /// Returns how many units more than were asked for may go at most: a slab of each layout, and the longest object.
    pub(crate) fn slack_units(&self) -> u64 {
        self.longest_units + self.layouts.slab_units()
    }

    /// Returns the units that will be in use when everything that sinks is free.
    pub(crate) fn staying_units(&self) -> u64 {
        self.used_units - self.sinking_units()
    }

    /// Returns the units being deallocated, of which there is one run at a time.
    pub(crate) fn discarding_units(&self) -> u64 {
        self.discarding_units
    }
}
