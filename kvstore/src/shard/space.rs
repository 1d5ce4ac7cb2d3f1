//! The shard's share of every device: what is free, who may not be overwritten yet, and what is full.
//!
//! An extent whose object is gone is *buried* until two things hold: the record that says so is durable, so that no
//! crash brings an object back whose space has another's data; and nobody reads it any more. Only then is it free.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;

use crate::catalog::hash::NumberMap;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, Object, piece_bytes};
use crate::model::place::{Place, units};
use crate::space::discard::Discards;
use crate::space::extent::Extents;
use crate::space::slab::Slabs;

/// Runs that wait for the device to be told of them, at most: more would be short ones.
const DISCARD_RUNS_MAX: usize = 4096;

/// One device's share.
#[derive(Debug)]
struct Space {
    extents: Extents,
    slabs: Slabs,
}

/// Room for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) place: Place,
    /// Of its slab, if its layout has slabs.
    pub(super) slab_base: Option<u64>,
}

/// An object that is gone.
#[derive(Clone, Copy, Debug)]
struct Grave {
    /// The journal's block that says so.
    sequence: u64,
    object: Object,
}

/// Who reads at a place.
#[derive(Debug, Default)]
struct Pin {
    count: u32,
    /// The object, once it is gone and only kept for its readers.
    gone: Option<Object>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Spaces {
    devices: Vec<Space>,
    layouts: Vec<Layout>,
    discards: Discards,
    graves: VecDeque<Grave>,
    pins: NumberMap<u64, Pin>,
    /// Units of objects, of those being written and of those that are buried.
    used_units: u64,
    /// Units of those that are buried.
    buried_units: u64,
    /// Of these, units that only wait for who reads or leases them.
    held_units: u64,
    capacity_units: u64,
    next_device: usize,
}

impl Spaces {
    /// Nothing but free units; at most `capacity_units` of them will be used.
    pub(super) fn new(
        ranges: Vec<Range<u64>>,
        capacity_units: u64,
        discard_after: Duration,
    ) -> Spaces {
        let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let space = |range| Space { extents: Extents::new(range), slabs: Slabs::new() };
        Spaces {
            devices: ranges.into_iter().map(space).collect(),
            layouts: Vec::new(),
            discards: Discards::new(DISCARD_RUNS_MAX, discard_after),
            graves: VecDeque::new(),
            pins: NumberMap::default(),
            used_units: 0,
            buried_units: 0,
            held_units: 0,
            capacity_units: capacity_units.min(all),
            next_device: 0,
        }
    }

    /// Defines the next layout.
    pub(super) fn define(&mut self, layout: Layout) -> LayoutId {
        assert!(self.layouts.len() < usize::from(u8::MAX), "a layout's number has eight bits");
        self.layouts.push(layout);
        LayoutId(self.layouts.len() as u8)
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// The layout of this number, if it is one with tensors.
    pub(super) fn layout(&self, id: LayoutId) -> Option<&Layout> {
        self.layouts.get(usize::from(id.0).checked_sub(1)?)
    }

    /// Units that an object takes.
    pub(super) fn units_of(&self, object: &Object) -> u64 {
        self.layout(object.layout).map_or_else(|| units(object.bytes), Layout::block_units)
    }

    /// The most units that one extent can have.
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

    /// Free runs, and the longest.
    pub(super) fn runs(&self) -> (u64, u64) {
        let extents = || self.devices.iter().map(|space| &space.extents);
        let count = extents().map(|extents| extents.run_count() as u64).sum();
        (count, extents().map(Extents::largest).max().unwrap_or(0))
    }

    /// Room for an object of this shape on one of the devices that are `usable`, behind what is `near` on that device.
    /// `ahead` is how many objects of its sequence are to come, this one included.
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
                self.used_units += needs;
                return Some(room);
            }
        }
        None
    }

    /// Lets the next object go to the device behind that of `object`, so that a sequence goes round all of them.
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

    /// Of an object that lies in a slab, where that starts.
    pub(super) fn slab_base(&self, object: &Object) -> Option<u64> {
        self.layout(object.layout)?.slab()?;
        Some(self.devices[usize::from(object.place.device)].slabs.base_of(object.place.unit))
    }

    /// How many checksums an object has.
    pub(super) fn checksums_of(&self, object: &Object) -> usize {
        match self.layout(object.layout) {
            Some(layout) => layout.tensors() as usize,
            None => object.bytes.div_ceil(piece_bytes(object.bytes)) as usize,
        }
    }

    /// Takes the slot of an object that was found on the media; false if it cannot be there.
    pub(super) fn restore(&self, slabs: &mut Slabs, object: &Object, base: u64) -> bool {
        let Some(shape) = self.layout(object.layout).and_then(Layout::slab) else { return false };
        let Some(offset) = object.place.unit.checked_sub(base) else { return false };
        let run_units = u64::from(shape.run_units);
        let slot = u32::try_from(offset / run_units).ok();
        let slot = slot.filter(|_| offset.is_multiple_of(run_units));
        slot.is_some_and(|slot| slabs.restore(base, object.layout, shape, slot))
    }

    /// What is free and what is not on a device, as it was found on the media.
    pub(super) fn install(&mut self, device: u8, extents: Extents, slabs: Slabs) {
        self.devices[usize::from(device)] = Space { extents, slabs };
    }

    /// Counts an object that was found on the media.
    pub(super) fn count(&mut self, units: u64) {
        self.used_units += units;
    }

    /// Forgets all layouts: where they came from was damaged.
    pub(super) fn forget_layouts(&mut self) {
        self.layouts.clear();
    }

    /// Frees what was never an object: nothing on the media speaks of it.
    pub(super) fn give_back(&mut self, object: &Object) {
        let freed = self.units_of(object);
        self.used_units -= freed;
        let Place { device, unit } = object.place;
        let is_in_slab = self.layout(object.layout).and_then(Layout::slab).is_some();
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

    /// Buries an object: block `sequence` of the journal says that it is gone.
    pub(super) fn bury(&mut self, sequence: u64, object: Object) {
        self.buried_units += self.units_of(&object);
        self.graves.push_back(Grave { sequence, object });
    }

    /// Whether somebody waits for the journal.
    pub(super) fn has_graves(&self) -> bool {
        !self.graves.is_empty()
    }

    /// Frees what blocks before `durable_end` say is gone and nobody reads; says whether there was any.
    pub(super) fn settle(&mut self, durable_end: u64) -> bool {
        let mut moved = false;
        while let Some(grave) = self.graves.front().copied()
            && grave.sequence < durable_end
        {
            self.graves.pop_front();
            moved = true;
            match self.pins.get_mut(&grave.object.place.pack()) {
                Some(pin) => {
                    pin.gone = Some(grave.object);
                    self.held_units += self.units_of(&grave.object);
                }
                None => self.unearth(&grave.object),
            }
        }
        moved
    }

    fn unearth(&mut self, object: &Object) {
        self.buried_units -= self.units_of(object);
        self.give_back(object);
    }

    /// Keeps what is at a place from being overwritten.
    pub(super) fn pin(&mut self, place: Place) {
        self.pins.entry(place.pack()).or_default().count += 1;
    }

    /// Undoes [`Spaces::pin`]; says whether units became free.
    pub(super) fn unpin(&mut self, place: Place) -> bool {
        let bits = place.pack();
        let pin = self.pins.get_mut(&bits).expect("what is unpinned was pinned");
        pin.count -= 1;
        if pin.count > 0 {
            return false;
        }
        let gone = self.pins.remove(&bits).and_then(|pin| pin.gone);
        if let Some(object) = &gone {
            self.held_units -= self.units_of(object);
            self.unearth(object);
        }
        gone.is_some()
    }

    /// Units that are free once the journal says so, whatever is leased.
    pub(super) fn sinking_units(&self) -> u64 {
        self.buried_units - self.held_units
    }

    /// Whether something is gone and kept for reads under way alone.
    pub(super) fn is_held_by_reads(&self, is_leased: impl Fn(Place) -> bool) -> bool {
        self.held_units > 0
            && self
                .pins
                .iter()
                .any(|(bits, pin)| pin.gone.is_some() && !is_leased(Place::unpack(*bits)))
    }

    /// Whether so many units more are within the capacity.
    pub(super) fn has_capacity(&self, units: u64) -> bool {
        self.used_units + units <= self.capacity_units
    }

    /// The most units that one extent can have on a device.
    pub(super) fn extent_units_on(&self, device: usize) -> u64 {
        let range = self.devices[device].extents.range();
        (range.end - range.start).min(self.capacity_units)
    }

    /// Lets space that has been free for long enough be discarded.
    pub(super) fn age_discards(&mut self, now: Time) {
        self.discards.pass(now);
    }

    /// When [`Spaces::age_discards`] has something to do.
    pub(super) fn discards_age_at(&self) -> Time {
        self.discards.next_change().unwrap_or(Time::NEVER)
    }

    /// Takes the longest run of units that a device was not told of, if it has at least so many: it is not free until
    /// [`Spaces::discarded`], so that nothing is written there meanwhile.
    pub(super) fn next_discard(&mut self, at_least: u64, at_most: u64) -> Option<(u8, Range<u64>)> {
        let (device, mut units) = self.discards.next(at_least)?;
        if units.end - units.start > at_most {
            self.discards.put_back(device, units.start + at_most..units.end);
            units.end = units.start + at_most;
        }
        let is_free = self.devices[usize::from(device)].extents.take(units.clone());
        assert!(is_free, "what is to be discarded is free");
        Some((device, units))
    }

    /// The device was told, or would not hear.
    pub(super) fn discarded(&mut self, device: u8, units: Range<u64>) {
        self.devices[usize::from(device)].extents.free(units);
    }
}
