//! The shard's share of every device: free space, space that may not be overwritten yet, and capacity.
//!
//! The extent of a removed object is *buried* until two things hold: the record of the removal is durable, so that no
//! crash brings back an object whose space holds other data; and no reader is left. Only then is it free.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;

use crate::catalog::hash::NumberMap;
use crate::model::layout::Layout;
use crate::model::object::{Hold, LayoutId, Object, piece_count, plain_units};
use crate::model::place::Place;
use crate::space::discard::Discards;
use crate::space::extent::Extents;
use crate::space::runs::Runs;
use crate::space::slab::{SlabView, Slabs, Slots};
use crate::space::window::Piece;

/// Limit of runs that wait to be deallocated; beyond it they would be short.
const DISCARD_RUNS_MAX: usize = 4096;

/// One device's share.
#[derive(Debug)]
struct Space {
    extents: Extents,
    slabs: Slabs,
    /// Runs outside slabs that soon will be free by themselves.
    sinking: Runs,
}

impl Space {
    fn new(extents: Extents, slabs: Slabs) -> Space {
        Space { extents, slabs, sinking: Runs::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) place: Place,
    /// The start of its slab, if its layout has slabs.
    pub(super) slab_base: Option<u64>,
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
pub(super) struct Spaces {
    devices: Vec<Space>,
    layouts: Vec<Layout>,
    /// Who uses them beside objects.
    holds: Vec<Hold>,
    /// The objects of each, in the order of their numbers: those that wait for room, are being written, are there, or
    /// are buried.
    objects: Box<[u32; 1 << u8::BITS]>,
    discards: Discards,
    graves: VecDeque<Grave>,
    pins: NumberMap<u64, Pin>,
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
    /// Creates spaces with all units of each device's ranges free, of which at most `capacity_units` will be used.
    pub(super) fn new(
        ranges: &[Vec<Range<u64>>],
        capacity_units: u64,
        discard_after: Duration,
    ) -> Spaces {
        let all: u64 = ranges.iter().flatten().map(|range| range.end - range.start).sum();
        let space = |ranges: &Vec<_>| Space::new(Extents::over(ranges), Slabs::new());
        Spaces {
            devices: ranges.iter().map(space).collect(),
            layouts: Vec::new(),
            holds: Vec::new(),
            objects: Box::new([0; 1 << u8::BITS]),
            discards: Discards::new(DISCARD_RUNS_MAX, discard_after),
            graves: VecDeque::new(),
            pins: NumberMap::default(),
            used_units: 0,
            buried_units: 0,
            discarding_units: 0,
            held_units: 0,
            capacity_units: capacity_units.min(all),
            longest_units: 0,
            next_device: 0,
        }
    }

    pub(super) fn define(&mut self, layout: Layout) -> LayoutId {
        assert!(self.layouts.len() < usize::from(u8::MAX), "a layout's number has eight bits");
        self.layouts.push(layout);
        self.holds.push(Hold::default());
        LayoutId(self.layouts.len() as u8)
    }

    /// Returns a layout that has neither objects nor a holder.
    pub(super) fn free_layout(&self) -> Option<LayoutId> {
        let free = (0..self.layouts.len()).find(|at| !self.is_used(*at));
        free.map(|at| LayoutId((at + 1) as u8))
    }

    /// Returns the layouts that have objects or a holder.
    pub(super) fn used_layouts(&self) -> impl Iterator<Item = &Layout> {
        let all = self.layouts.iter().enumerate();
        all.filter(|(at, _)| self.is_used(*at)).map(|(_, layout)| layout)
    }

    fn is_used(&self, at: usize) -> bool {
        self.objects[at + 1] > 0 || !self.holds[at].is_alone()
    }

    /// Gives the number of a layout to another one.
    pub(super) fn redefine(&mut self, id: LayoutId, layout: Layout) {
        self.layouts[usize::from(id.0) - 1] = layout;
    }

    /// Keeps a layout's number from being given to another.
    ///
    /// # Panics
    /// If there is no such layout.
    pub(super) fn hold(&self, id: LayoutId) -> Hold {
        self.holds[usize::from(id.0) - 1].clone()
    }

    /// Counts an object of a layout, which may be none.
    pub(super) fn enter(&mut self, layout: LayoutId) {
        self.objects[usize::from(layout.0)] += 1;
    }

    /// Undoes [`Spaces::enter`].
    pub(super) fn leave(&mut self, layout: LayoutId) {
        let objects = &mut self.objects[usize::from(layout.0)];
        *objects = objects.checked_sub(1).expect("only what was counted goes");
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Returns the layout with this id, if it has tensors.
    pub(super) fn layout(&self, id: LayoutId) -> Option<&Layout> {
        self.layouts.get(usize::from(id.0).checked_sub(1)?)
    }

    pub(super) fn units_of(&self, object: &Object) -> u64 {
        let plain = || plain_units(object.bytes);
        self.layout(object.layout).map_or_else(plain, Layout::block_units)
    }

    /// Returns the most units of one extent on any device.
    pub(super) fn extent_units_max(&self) -> u64 {
        (0..self.devices.len()).map(|device| self.extent_units_on(device)).max().unwrap_or(0)
    }

    pub(super) fn used_units(&self) -> u64 {
        self.used_units
    }

    pub(super) fn buried_units(&self) -> u64 {
        self.buried_units
    }

    pub(super) fn capacity_units(&self) -> u64 {
        self.capacity_units
    }

    /// Returns the number of free runs and the length of the longest.
    pub(super) fn runs(&self) -> (u64, u64) {
        let extents = || self.devices.iter().map(|space| &space.extents);
        let count = extents().map(|extents| extents.run_count() as u64).sum();
        (count, extents().map(Extents::largest).max().unwrap_or(0))
    }

    /// Allocates room for an object of this shape on a `usable` device, behind the object in `near` for that device.
    /// `ahead` counts the objects left in its sequence, this one included.
    pub(super) fn allocate(
        &mut self,
        shape: &Object,
        near: &[Option<Object>],
        ahead: u32,
        usable: impl Fn(u8) -> bool,
    ) -> Option<Room> {
        let needs = self.units_of(shape);
        if !self.has_capacity(needs) {
            return None;
        }
        let count = self.devices.len();
        let order = (0..count).map(|turn| (self.next_device + turn) % count);
        for device in order.collect::<smallvec::SmallVec<[usize; 8]>>() {
            if !usable(device as u8) {
                continue;
            }
            let after = near.get(device).copied().flatten().filter(|o| o.layout == shape.layout);
            if let Some(room) = self.allocate_on(device as u8, shape, after, ahead) {
                self.next_device = (device + 1) % count;
                self.count(needs);
                return Some(room);
            }
        }
        None
    }

    /// Allocates room for an object of this shape at `unit`, in a new slab if its layout has slabs.
    pub(super) fn allocate_at(&mut self, shape: &Object, device: u8, unit: u64) -> Option<Room> {
        let needs = self.units_of(shape);
        if !self.has_capacity(needs) {
            return None;
        }
        let slab = self.layout(shape.layout).and_then(Layout::slab);
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
        Some(Room { place: Place { device, unit }, slab_base: slab.map(|_| unit) })
    }

    /// Directs the next object to the device after that of `object`, so that a sequence is spread over all devices.
    pub(super) fn follow(&mut self, object: &Object) {
        self.next_device = (usize::from(object.place.device) + 1) % self.devices.len();
    }

    fn allocate_on(
        &mut self,
        device: u8,
        shape: &Object,
        after: Option<Object>,
        ahead: u32,
    ) -> Option<Room> {
        let needs = self.units_of(shape);
        let behind = after.map(|object| object.place.unit + self.units_of(&object));
        let slab = self.layout(shape.layout).and_then(Layout::slab);
        let space = &mut self.devices[usize::from(device)];
        let Some(slab) = slab else {
            let unit = space.extents.allocate(needs, behind, ahead)?;
            self.discards.taken(device, unit..unit + needs);
            return Some(Room { place: Place { device, unit }, slab_base: None });
        };
        let near = after.map(|object| object.place.unit);
        let unit = space.slabs.allocate(&mut space.extents, shape.layout, slab, near, ahead)?;
        let base = space.slabs.base_of(unit);
        self.discards.taken(device, base..base + slab.units());
        Some(Room { place: Place { device, unit }, slab_base: Some(base) })
    }

    /// Returns the start of an object's slab, if it lies in one.
    pub(super) fn slab_base(&self, object: &Object) -> Option<u64> {
        self.layout(object.layout)?.slab()?;
        Some(self.devices[usize::from(object.place.device)].slabs.base_of(object.place.unit))
    }

    /// Returns the units that an object takes, or those of the slab that it lies in.
    pub(super) fn extent_of(&self, object: &Object) -> Range<u64> {
        let slab = self.layout(object.layout).and_then(Layout::slab);
        match self.slab_base(object).zip(slab) {
            Some((base, slab)) => base..base + slab.units(),
            None => object.place.unit..object.place.unit + self.units_of(object),
        }
    }

    pub(super) fn checksums_of(&self, object: &Object) -> usize {
        match self.layout(object.layout) {
            Some(layout) => layout.tensors() as usize,
            None => piece_count(object.bytes) as usize,
        }
    }

    /// Takes the slot of an object found on the media. Returns false if it cannot be there.
    pub(super) fn restore(&self, slabs: &mut Slabs, object: &Object, base: u64) -> bool {
        let Some(shape) = self.layout(object.layout).and_then(Layout::slab) else { return false };
        let Some(offset) = object.place.unit.checked_sub(base) else { return false };
        let slot = shape.slot_at(offset);
        slot.is_some_and(|slot| slabs.restore(base, object.layout, shape, slot))
    }

    /// Installs a device's free space as found on the media.
    pub(super) fn install(&mut self, device: u8, extents: Extents, slabs: Slabs) {
        self.devices[usize::from(device)] = Space::new(extents, slabs);
    }

    /// Counts an object that takes `units`.
    pub(super) fn count(&mut self, units: u64) {
        self.used_units += units;
        self.longest_units = self.longest_units.max(units);
    }

    /// Forgets all layouts, because their source was damaged.
    pub(super) fn forget_layouts(&mut self) {
        self.layouts.clear();
        self.holds.clear();
    }

    /// Frees the space of an object that was never recorded on the media.
    pub(super) fn give_back(&mut self, object: &Object) {
        let freed = self.units_of(object);
        self.used_units -= freed;
        let Place { device, unit } = object.place;
        let is_in_slab = self.is_in_slab(object);
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
    pub(super) fn bury(&mut self, sequence: u64, object: Object, is_leased: bool) {
        let units = self.units_of(&object);
        self.enter(object.layout);
        self.buried_units += units;
        let is_in_slab = self.is_in_slab(&object);
        let (Place { device, unit }, sinks) = (object.place, !is_leased);
        let space = &mut self.devices[usize::from(device)];
        if sinks && is_in_slab {
            space.slabs.sink(unit);
        } else if sinks {
            assert!(space.sinking.insert(unit..unit + units), "an object is buried once");
        }
        self.graves.push_back(Grave { sequence, object, sinks });
    }

    /// Returns whether any buried object waits for the journal.
    pub(super) fn has_graves(&self) -> bool {
        !self.graves.is_empty()
    }

    /// Frees buried objects recorded before `durable_end` that have no readers. Returns whether there were any.
    pub(super) fn settle(&mut self, durable_end: u64) -> bool {
        let mut moved = false;
        while let Some(grave) = self.graves.front().copied()
            && grave.sequence < durable_end
        {
            self.graves.pop_front();
            moved = true;
            match self.pins.get_mut(&grave.object.place.pack()) {
                Some(pin) => {
                    pin.gone = Some(grave);
                    self.held_units += self.units_of(&grave.object);
                }
                None => self.unearth(&grave),
            }
        }
        moved
    }

    fn unearth(&mut self, Grave { object, sinks, .. }: &Grave) {
        let units = self.units_of(object);
        self.buried_units -= units;
        let is_in_slab = self.is_in_slab(object);
        let Place { device, unit } = object.place;
        let space = &mut self.devices[usize::from(device)];
        if *sinks && is_in_slab {
            space.slabs.unsink(unit);
        } else if *sinks {
            assert!(space.sinking.remove(unit..unit + units), "what sinks was buried");
        }
        self.give_back(object);
        self.leave(object.layout);
    }

    /// Returns whether an object lies in a slab.
    pub(super) fn is_in_slab(&self, object: &Object) -> bool {
        self.layout(object.layout).and_then(Layout::slab).is_some()
    }

    /// Protects the data at a place from being overwritten.
    pub(super) fn pin(&mut self, place: Place) {
        self.pins.entry(place.pack()).or_default().count += 1;
    }

    /// Undoes [`Spaces::pin`]. Returns whether units became free.
    pub(super) fn unpin(&mut self, place: Place) -> bool {
        let bits = place.pack();
        let pin = self.pins.get_mut(&bits).expect("what is unpinned was pinned");
        pin.count -= 1;
        if pin.count > 0 {
            return false;
        }
        let gone = self.pins.remove(&bits).and_then(|pin| pin.gone);
        if let Some(grave) = &gone {
            self.held_units -= self.units_of(&grave.object);
            self.unearth(grave);
        }
        gone.is_some()
    }

    /// Returns the buried units without readers or leases, which only wait for the journal.
    pub(super) fn sinking_units(&self) -> u64 {
        self.buried_units - self.held_units
    }

    /// Returns whether a removed object is kept only for reads in progress.
    pub(super) fn is_held_by_reads(&self, is_leased: impl Fn(Place) -> bool) -> bool {
        self.held_units > 0
            && self
                .pins
                .iter()
                .any(|(bits, pin)| pin.gone.is_some() && !is_leased(Place::unpack(*bits)))
    }

    /// Returns whether `units` more fit within the capacity.
    pub(super) fn has_capacity(&self, units: u64) -> bool {
        self.used_units + units <= self.capacity_units
    }

    /// Returns the most units of one extent on a device.
    pub(super) fn extent_units_on(&self, device: usize) -> u64 {
        self.devices[device].extents.longest_range().min(self.capacity_units)
    }

    /// Releases space for deallocation that has been free for long enough.
    pub(super) fn age_discards(&mut self, now: Time) {
        self.discards.pass(now);
    }

    /// Returns when [`Spaces::age_discards`] is next needed.
    pub(super) fn discards_age_at(&self) -> Time {
        self.discards.next_change().unwrap_or(Time::NEVER)
    }

    /// Takes the longest run of free units not yet deallocated, if it has at least `at_least`. It is not free until
    /// [`Spaces::discarded`], so that nothing is written there meanwhile.
    pub(super) fn next_discard(&mut self, at_least: u64, at_most: u64) -> Option<(u8, Range<u64>)> {
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
    pub(super) fn discarded(&mut self, device: u8, units: Range<u64>) {
        let space = &mut self.devices[usize::from(device)];
        assert!(space.sinking.remove(units.clone()), "a run is discarded once");
        space.extents.free(units);
        self.discarding_units = 0;
    }

    /// Adds the space that is free or soon will be to `pieces`, as far as it shares a unit with `units`.
    pub(super) fn free_pieces(&self, device: u8, units: &Range<u64>, pieces: &mut Vec<Piece>) {
        let space = &self.devices[usize::from(device)];
        let free = space.extents.free_runs().all_overlapping(units.clone());
        pieces.extend(free.chain(space.sinking.all_overlapping(units.clone())).map(Piece::free));
    }

    /// Returns where to look for a run of `needs` units that is free or soon will be.
    pub(super) fn promising_runs(
        &self,
        device: u8,
        needs: u64,
    ) -> impl Iterator<Item = Range<u64>> + use<> {
        let space = &self.devices[usize::from(device)];
        let best = |runs: &Runs| [runs.best_fit(needs), runs.longest()];
        let runs = [best(space.extents.free_runs()), best(&space.sinking)];
        runs.into_iter().flatten().flatten()
    }

    /// Iterates over the slabs of a device that share a unit with `units`.
    pub(super) fn slabs_in(
        &self,
        device: u8,
        units: &Range<u64>,
    ) -> impl Iterator<Item = SlabView> {
        self.devices[usize::from(device)].slabs.all_overlapping(units.clone())
    }

    /// Iterates over the slabs of a layout on a device, fullest first.
    pub(super) fn slabs_of(&self, device: u8, layout: LayoutId) -> impl Iterator<Item = SlabView> {
        self.devices[usize::from(device)].slabs.all_of(layout)
    }

    /// Returns the slots of a layout's slabs on a device.
    pub(super) fn slots(&self, device: u8, layout: LayoutId) -> Slots {
        self.devices[usize::from(device)].slabs.slots(layout)
    }

    /// Returns whether a run is free.
    pub(super) fn is_free(&self, device: u8, units: &Range<u64>) -> bool {
        self.devices[usize::from(device)].extents.free_runs().contains(units)
    }

    /// Returns whether no block is in the slot that started at `unit`.
    pub(super) fn is_slot_free(&self, device: u8, unit: u64) -> bool {
        self.devices[usize::from(device)].slabs.is_slot_free(unit)
    }

    /// Returns the first range of a device's share that ends behind `unit`.
    pub(super) fn range_from(&self, device: u8, unit: u64) -> Option<Range<u64>> {
        let ranges = self.devices[usize::from(device)].extents.ranges();
        ranges.iter().find(|range| range.end > unit).cloned()
    }

    /// Returns how many units more than were asked for may go at most: a slab of each layout, and the longest object.
    pub(super) fn slack_units(&self) -> u64 {
        let slabs = self.layouts.iter().filter_map(|layout| layout.slab());
        self.longest_units + slabs.map(|slab| slab.units()).sum::<u64>()
    }

    /// Returns the units that will be in use when everything that sinks is free.
    pub(super) fn staying_units(&self) -> u64 {
        self.used_units - self.sinking_units()
    }

    /// Returns the units being deallocated, of which there is one run at a time.
    pub(super) fn discarding_units(&self) -> u64 {
        self.discarding_units
    }
}
