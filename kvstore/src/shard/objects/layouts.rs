//! The layouts of KV blocks that a shard knows, and who uses each of them.

use crate::model::layout::{Layout, SlabShape};
use crate::model::object::{Hold, LayoutId, Object, piece_bytes, piece_count, plain_units};
use crate::model::place::UNIT_BYTES;
use crate::shard::request::Found;
use crate::space::slab::Slabs;

/// A slab of a layout takes at most one `SLAB_PARTS`th of the shard's share of a device.
const SLAB_PARTS: u64 = 16;
/// Why another layout has no number.
const LAYOUTS_IN_USE: &str = "a store has at most 255 layouts with objects or a user: remove the objects \
     of one, or try again once a checkpoint has ended";

/// The layouts of a shard, by number from 1.
#[derive(Debug)]
pub struct Layouts {
    all: Vec<Layout>,
    /// Uses of each layout in addition to objects.
    holds: Vec<Hold>,
    /// The objects of each number, 0 for objects without a layout: those that wait for room, are being written, are
    /// there, or are buried.
    objects: Box<[u32; 1 << u8::BITS]>,
    /// The most units of a slab.
    slab_units_max: u64,
}

impl Layouts {
    /// Begins without layouts, in a space whose longest extent has so many units.
    pub(crate) fn new(extent_units_max: u64) -> Layouts {
        Layouts {
            all: Vec::new(),
            holds: Vec::new(),
            objects: Box::new([0; 1 << u8::BITS]),
            slab_units_max: extent_units_max / SLAB_PARTS,
        }
    }

    /// Returns the layout with this id, if it has tensors.
    pub fn get(&self, id: LayoutId) -> Option<&Layout> {
        self.all.get(usize::from(id.0).checked_sub(1)?)
    }

    /// Returns the id of a layout, as [`Layouts::fitted`] returns it.
    pub(crate) fn find(&self, layout: &Layout) -> Option<LayoutId> {
        let at = self.all.iter().position(|known| known == layout)?;
        Some(LayoutId((at + 1) as u8))
    }

    /// Keeps a layout's id from being given to another.
    ///
    /// # Panics
    /// If there is no such layout.
    pub fn hold(&self, id: LayoutId) -> Hold {
        self.holds[usize::from(id.0) - 1].clone()
    }

    /// Returns how many layouts have objects or a holder; none if this is one of them.
    pub fn used_beside(&self, layout: Layout) -> usize {
        let layout = self.fitted(layout);
        let used = self.all.iter().enumerate().filter(|(at, _)| self.is_used(*at));
        if used.clone().any(|(_, used)| *used == layout) { 0 } else { used.count() }
    }

    /// Returns a layout as this shard keeps it: with slabs that its space has room for.
    pub(crate) fn fitted(&self, layout: Layout) -> Layout {
        layout.with_slabs_up_to(self.slab_units_max)
    }

    /// Gives a layout a number: a new one or, if it may replace another, that of one without objects and holders.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn add(
        &mut self,
        layout: Layout,
        may_replace: bool,
    ) -> Result<LayoutId, &'static str> {
        if self.all.len() < usize::from(u8::MAX) {
            return Ok(self.define(layout));
        }
        let unused = (0..self.all.len()).find(|at| !self.is_used(*at)).filter(|_| may_replace);
        let id = LayoutId((unused.ok_or(LAYOUTS_IN_USE)? + 1) as u8);
        self.all[usize::from(id.0) - 1] = layout;
        Ok(id)
    }

    fn define(&mut self, layout: Layout) -> LayoutId {
        assert!(self.all.len() < usize::from(u8::MAX), "a layout's number has eight bits");
        self.all.push(layout);
        self.holds.push(Hold::default());
        LayoutId(self.all.len() as u8)
    }

    /// Enters a layout as found on the media. Returns whether its number was another's before.
    pub(crate) fn restore(&mut self, id: LayoutId, layout: Layout) -> bool {
        match self.get(id) {
            Some(known) if *known == layout => false,
            Some(_) => {
                self.all[usize::from(id.0) - 1] = layout;
                true
            }
            None => {
                if usize::from(id.0) == self.all.len() + 1 {
                    self.define(layout);
                }
                false
            }
        }
    }

    /// Forgets all layouts, because their source was damaged.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.holds.clear();
    }

    fn is_used(&self, at: usize) -> bool {
        self.objects[at + 1] > 0 || !self.holds[at].is_alone()
    }

    /// Counts an object of a layout, which may be none.
    pub(crate) fn enter(&mut self, layout: LayoutId) {
        self.objects[usize::from(layout.0)] += 1;
    }

    /// Undoes [`Layouts::enter`].
    pub(crate) fn leave(&mut self, layout: LayoutId) {
        let objects = &mut self.objects[usize::from(layout.0)];
        *objects = objects.checked_sub(1).expect("only what was counted goes");
    }

    /// Returns the units of an object.
    pub(crate) fn units_of(&self, object: &Object) -> u64 {
        let plain = || plain_units(object.bytes);
        self.get(object.layout).map_or_else(plain, Layout::block_units)
    }

    /// Returns what a caller has to know of an object to read it.
    pub(crate) fn found(&self, &Object { place, bytes, layout, .. }: &Object) -> Found {
        let layout = self.get(layout);
        let (bytes, piece_bytes) = match layout {
            None => (bytes, piece_bytes(bytes)),
            Some(layout) => (layout.block_units() * UNIT_BYTES, layout.run_units() * UNIT_BYTES),
        };
        Found { device: place.device, bytes, piece_bytes }
    }

    /// Returns the number of checksums of an object.
    pub(crate) fn checksums_of(&self, object: &Object) -> usize {
        match self.get(object.layout) {
            Some(layout) => layout.tensors() as usize,
            None => piece_count(object.bytes) as usize,
        }
    }

    /// Returns the slab that an object of this shape lies in, if its layout has slabs.
    pub(crate) fn slab_of(&self, shape: &Object) -> Option<SlabShape> {
        self.get(shape.layout).and_then(Layout::slab)
    }

    /// Returns the units of one slab of each layout.
    pub(crate) fn slab_units(&self) -> u64 {
        self.all.iter().filter_map(Layout::slab).map(SlabShape::units).sum()
    }

    /// Takes the slot of an object found on the media. Returns false if it cannot be there.
    pub(crate) fn restore_slot(&self, slabs: &mut Slabs, object: &Object, base: u64) -> bool {
        let Some(shape) = self.slab_of(object) else { return false };
        let Some(offset) = object.place.unit.checked_sub(base) else { return false };
        let slot = shape.slot_at(offset);
        slot.is_some_and(|slot| slabs.restore(base, object.layout, shape, slot))
    }
}
