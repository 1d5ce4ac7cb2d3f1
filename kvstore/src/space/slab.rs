//! Slabs: space for KV blocks interleaved layer by layer.
//!
//! A slab is one extent with a slot for each of a number of KV blocks. A slot has a run for each layer; run `r` of
//! slot `s` starts at `base + r * slots * run_units + s * run_units`, so the same layer of neighbouring blocks is
//! contiguous on the device. A slot is named by the unit of its first run.
//!
//! Invariants: slabs are disjoint; a slab has at least one used slot (an empty one goes back to the extents); the
//! slots of a slab have one layout and shape. Every operation is O(log n).
//!
//! A block goes behind its predecessor in the sequence if that slot is free. Otherwise it goes into the shortest row
//! of free slots with room for all that is known to follow, into a new slab if there is no such row, or into the
//! longest row. A new slab is made only while at most a quarter of the layout's slots are free. With slots kept 97 %
//! full by sequences that grow and go (see `churn`), a layer of a whole sequence takes 1.5 times the commands that
//! its bytes need; 2.8 times if what follows is unknown, and 6.4 times block by block.
//!
//! Other layouts cannot use the free slots of a slab until the whole slab is free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::model::layout::SlabShape;
use crate::model::object::LayoutId;
use crate::space::extent::Extents;

/// No slab is made while more than one `FREE_PARTS`th of the layout's slots are free.
const FREE_PARTS: u64 = 4;

#[derive(Clone, Debug)]
struct Slab {
    layout: LayoutId,
    shape: SlabShape,
    free: Extents,
    /// Used slots that soon will be free.
    sinking: u32,
}

impl Slab {
    fn new(layout: LayoutId, shape: SlabShape) -> Slab {
        Slab { layout, shape, free: Extents::new(0..u64::from(shape.slots)), sinking: 0 }
    }

    /// Returns its entry for finding room for a new sequence.
    fn room(&self, base: u64) -> Room {
        Room { layout: self.layout, longest: self.free.largest(), base }
    }

    fn is_empty(&self) -> bool {
        self.used() == 0
    }

    fn used(&self) -> u64 {
        u64::from(self.shape.slots) - self.free.free_units()
    }

    fn view(&self, base: u64) -> SlabView {
        SlabView {
            layout: self.layout,
            units: base..base + self.shape.units(),
            heads: base..base + self.shape.stride_units(),
            staying: self.used() - u64::from(self.sinking),
        }
    }
}

/// The longest row of free slots of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    layout: LayoutId,
    longest: u64,
    base: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Slots that hold a KV block.
    pub used: u64,
    /// Free slots.
    pub free: u64,
    /// Used slots that soon will be free.
    pub sinking: u64,
}

/// A slab as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlabView {
    pub(crate) layout: LayoutId,
    pub(crate) units: Range<u64>,
    /// Where its slots begin: their first runs.
    pub(crate) heads: Range<u64>,
    /// Used slots, those that soon will be free left out.
    pub(crate) staying: u64,
}

/// The slabs of one device's range for one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slabs {
    /// Slabs by their first unit.
    slabs: BTreeMap<u64, Slab>,
    /// One entry per slab.
    rooms: BTreeSet<Room>,
    slots: BTreeMap<LayoutId, Slots>,
}

impl Slabs {
    pub(crate) fn new() -> Slabs {
        Slabs::default()
    }

    /// Returns the unit of a new slot's first run, or `None` if there is no free slot and no room for a slab.
    ///
    /// `near` is the slot of the previous block in the sequence, if it still exists. `ahead` is how many blocks the
    /// sequence will get, this one included: 4 if unknown.
    ///
    /// # Panics
    /// If a part of the shape is 0, or the layout's slabs have another shape.
    pub(crate) fn allocate(
        &mut self,
        extents: &mut Extents,
        layout: LayoutId,
        shape: SlabShape,
        near: Option<u64>,
        ahead: u32,
    ) -> Option<u64> {
        let behind = near.and_then(|unit| self.behind(unit, layout));
        let (base, slot) = match behind {
            Some(found) => found,
            None => self.start(extents, layout, shape, ahead)?,
        };
        assert!(self.take(base, shape, slot), "the slot is free");
        Some(shape.slot_unit(base, slot))
    }

    /// Makes a slab at `base`, if that run is free, and takes its first slot. Returns the unit of its first run.
    pub(crate) fn allocate_at(
        &mut self,
        extents: &mut Extents,
        layout: LayoutId,
        shape: SlabShape,
        base: u64,
    ) -> Option<u64> {
        if !extents.take(base..base + shape.units()) {
            return None;
        }
        self.add(base, layout, shape);
        assert!(self.take(base, shape, 0), "a new slab is empty");
        Some(base)
    }

    /// Records that a used slot soon will be free.
    ///
    /// # Panics
    /// If no slot starts there.
    pub(crate) fn sink(&mut self, unit: u64) {
        let slab = self.at_slot(unit);
        slab.sinking += 1;
        assert!(u64::from(slab.sinking) <= slab.used(), "a slot sinks once");
        let layout = slab.layout;
        self.slots.entry(layout).or_default().sinking += 1;
    }

    /// Undoes [`Slabs::sink`].
    pub(crate) fn unsink(&mut self, unit: u64) {
        let slab = self.at_slot(unit);
        slab.sinking = slab.sinking.checked_sub(1).expect("the slot was sinking");
        let layout = slab.layout;
        self.slots.entry(layout).or_default().sinking -= 1;
    }

    fn at_slot(&mut self, unit: u64) -> &mut Slab {
        let (base, _) = self.find(unit).expect("a slot starts at the unit");
        self.slabs.get_mut(&base).expect("the slab was just found")
    }

    /// Returns whether no block is in the slot that started at `unit`. Its slab may be gone.
    pub(crate) fn is_slot_free(&self, unit: u64) -> bool {
        self.find(unit).is_none_or(|(base, slot)| self.slabs[&base].free.is_free(slot.into()))
    }

    /// Iterates over the slabs that share a unit with `range`, last first.
    pub(crate) fn all_overlapping(&self, range: Range<u64>) -> impl Iterator<Item = SlabView> {
        let before = self.slabs.range(..range.end).rev().map(|(&base, slab)| slab.view(base));
        before.take_while(move |slab| slab.units.end > range.start)
    }

    /// Iterates over the slabs of a layout, fullest first.
    pub(crate) fn all_of(&self, layout: LayoutId) -> impl Iterator<Item = SlabView> {
        self.with_row(layout, 0).map(|base| self.slabs[&base].view(base))
    }

    /// Frees a slot. If its slab is then empty, returns the slab to the extents, and as the result.
    ///
    /// # Panics
    /// If no slot starts there or it is free already: bugs of the store.
    pub(crate) fn free(&mut self, extents: &mut Extents, unit: u64) -> Option<Range<u64>> {
        let (base, slot) = self.find(unit).expect("a slot starts at the unit");
        let slab = self.slabs.get_mut(&base).expect("the slab was just found");
        self.rooms.remove(&slab.room(base));
        slab.free.free(u64::from(slot)..u64::from(slot) + 1);
        let slots = self.slots.entry(slab.layout).or_default();
        slots.used -= 1;
        slots.free += 1;
        if !slab.is_empty() {
            self.rooms.insert(slab.room(base));
            return None;
        }
        slots.free -= u64::from(slab.shape.slots);
        let units = base..base + slab.shape.units();
        extents.free(units.clone());
        self.slabs.remove(&base);
        Some(units)
    }

    /// Takes a slot of the slab at `base` after a restart, before the extents are rebuilt around [`Slabs::ranges`].
    /// Returns false and changes nothing if the slot is taken or impossible: it is not in the shape, the shape is not
    /// that of the slab, or the slab would overlap another or end past 2^64.
    pub(crate) fn restore(
        &mut self,
        base: u64,
        layout: LayoutId,
        shape: SlabShape,
        slot: u32,
    ) -> bool {
        let known = self.slabs.get(&base);
        let fits = match known {
            Some(slab) => slab.layout == layout && slab.shape == shape,
            None => shape.units() > 0 && self.is_apart(base, shape.units()),
        };
        if slot >= shape.slots || !fits {
            return false;
        }
        if known.is_none() {
            self.add(base, layout, shape);
        }
        self.take(base, shape, slot)
    }

    /// Returns the first unit of the slab whose slot starts at `unit`.
    ///
    /// # Panics
    /// If no slot starts there.
    pub(crate) fn base_of(&self, unit: u64) -> u64 {
        self.find(unit).expect("a slot starts at the unit").0
    }

    /// Iterates over the slabs in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.slabs.iter().map(|(&base, slab)| base..base + slab.shape.units())
    }

    pub(crate) fn slots(&self, layout: LayoutId) -> Slots {
        self.slots.get(&layout).copied().unwrap_or_default()
    }

    /// Returns the slab and slot that start at `unit`.
    fn find(&self, unit: u64) -> Option<(u64, u32)> {
        let (&base, slab) = self.slabs.range(..=unit).next_back()?;
        Some((base, slab.shape.slot_at(unit - base)?))
    }

    /// Returns the slot behind the one at `unit`, if it is free and of the layout.
    fn behind(&self, unit: u64, layout: LayoutId) -> Option<(u64, u32)> {
        let (base, slot) = self.find(unit)?;
        let slab = &self.slabs[&base];
        let free = slab.free.is_free(u64::from(slot) + 1);
        (slab.layout == layout && free).then_some((base, slot + 1))
    }

    /// Returns the slab and slot for a block without a neighbour.
    fn start(
        &mut self,
        extents: &mut Extents,
        layout: LayoutId,
        shape: SlabShape,
        ahead: u32,
    ) -> Option<(u64, u32)> {
        let row = ahead.clamp(1, shape.slots).into();
        let fitting = self.with_row(layout, row).next();
        let base = fitting
            .or_else(|| self.grow(extents, layout, shape))
            .or_else(|| self.with_row(layout, 1).next_back())?;
        let slot = self.slabs[&base].free.fit(row).expect("the slab has a row");
        Some((base, u32::try_from(slot).expect("a slot is below 2^32")))
    }

    /// Iterates over the layout's slabs with a row of at least `row` free slots, shortest such row first.
    fn with_row(&self, layout: LayoutId, row: u64) -> impl DoubleEndedIterator<Item = u64> {
        let from = Room { layout, longest: row, base: 0 };
        let to = Room { layout, longest: u64::MAX, base: u64::MAX };
        self.rooms.range(from..=to).map(|room| room.base)
    }

    /// Makes a slab, unless too many slots are free already.
    fn grow(&mut self, extents: &mut Extents, layout: LayoutId, shape: SlabShape) -> Option<u64> {
        let slots = self.slots(layout);
        if slots.free * FREE_PARTS > slots.used + slots.free {
            return None;
        }
        let base = extents.allocate(shape.units(), None, 1)?;
        self.add(base, layout, shape);
        Some(base)
    }

    /// Returns whether a slab there would overlap no other.
    fn is_apart(&self, base: u64, units: u64) -> bool {
        let Some(end) = base.checked_add(units) else { return false };
        let before = self.slabs.range(..end).next_back();
        before.is_none_or(|(&start, slab)| start + slab.shape.units() <= base)
    }

    fn add(&mut self, base: u64, layout: LayoutId, shape: SlabShape) {
        let slab = Slab::new(layout, shape);
        self.rooms.insert(slab.room(base));
        self.slabs.insert(base, slab);
        self.slots.entry(layout).or_default().free += u64::from(shape.slots);
    }

    /// Takes a slot. Returns false and changes nothing if it is taken.
    fn take(&mut self, base: u64, shape: SlabShape, slot: u32) -> bool {
        let slab = self.slabs.get_mut(&base).expect("a slab starts at the base");
        assert_eq!(slab.shape, shape, "a layout has one shape");
        let before = slab.room(base);
        if !slab.free.take(u64::from(slot)..u64::from(slot) + 1) {
            return false;
        }
        self.rooms.remove(&before);
        self.rooms.insert(slab.room(base));
        let slots = self.slots.entry(slab.layout).or_default();
        slots.used += 1;
        slots.free -= 1;
        true
    }
}

#[cfg(test)]
mod churn;
#[cfg(test)]
mod tests;
