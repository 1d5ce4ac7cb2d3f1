//! Layouts: the contents of a model's KV block, and where its tensors lie.
//!
//! A KV block is a fixed run of tokens. It has one tensor per layer and half (key and value; one latent in MLA), each
//! padded to whole units. The tensors of a layer lie side by side: the layer's *run*.
//!
//! - Block-major: the runs follow each other; a block is one extent.
//! - Layer-major: blocks share a slab (see `slab`), where the same run of neighbouring blocks is contiguous.
//!
//! Invariants, asserted whenever a layout is made: tensors start and end at whole units (alignment); no two tensors
//! of a block or of two blocks share a unit (disjointness); each tensor of a run begins where the previous one ends,
//! and so does each run (block-major: of the block; layer-major: of the next slot).
//!
//! Commands for 64 neighbouring blocks with 64 layers and tensors of 80 KiB, at 1 MiB per command. The bytes alone
//! need 10 per layer. "Worst" is a sequence that starts at any slot of a slab:
//!
//! | order | a layer of 64 blocks | worst | all of 1 block, get or put | all of 64 blocks |
//! |---|---|---|---|---|
//! | block-major | 64 | 64 | 10 | 640 |
//! | layer-major, 8 slots | 16 | 17 | 64 | 640 |
//! | layer-major, 16 slots | 12 | 13 | 64 | 640 |
//! | layer-major, 32 slots | 10 | 11 | 64 | 640 |
//! | layer-major, 64 slots | 10 | 11 | 64 | 640 |
//!
//! Store blocks that are read layer by layer in layer-major order, in slabs whose runs are at least five of the
//! longest commands ([`BlockShape::slots`]): that takes at most 1.2 times the commands that the bytes need. Store
//! blocks that are only moved whole and one by one in block-major order.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::model::object::{CHECKSUMS_MAX, Object, piece_bytes};
use crate::model::place::{Place, UNIT_BYTES, units};

mod encoding;
mod models;

pub use encoding::ENCODED_BYTES;
pub use models::MODELS;

/// Maximum slots of a slab.
pub const SLOTS_MAX: u32 = 4096;
/// A layer of a slab spans at least this many of the longest commands.
const COMMANDS_PER_RUN: u64 = 5;

/// The type of a number in a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE 754.
    F16,
    /// 16 bits, with the exponent range of 32.
    Bf16,
    /// 8-bit floating point.
    Fp8,
    /// 8-bit integer.
    Int8,
}

impl Dtype {
    /// Returns the bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Fp8 | Dtype::Int8 => 1,
        }
    }
}

/// Selects a tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Keys; the latent of MLA.
    Key,
    /// Values.
    Value,
}

/// The order of KV blocks' tensors on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All of a block, then the next block.
    BlockMajor,
    /// A layer of all blocks of a slab, then the next layer.
    LayerMajor {
        /// Blocks per slab, 1 to [`SLOTS_MAX`].
        slots: u32,
    },
}

/// The contents of a KV block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Layers of the model.
    pub layers: u32,
    /// Tensors per layer: 2, or 1 in MLA.
    pub tensors_per_layer: u8,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Numbers per head.
    pub head_dim: u32,
    /// The type of a number.
    pub dtype: Dtype,
    /// Tokens per block.
    pub tokens: u32,
}

impl BlockShape {
    /// Returns the bytes of a tensor without padding, or `None` if they exceed 64 bits.
    fn tensor_bytes(&self) -> Option<u64> {
        let numbers = u64::from(self.kv_heads).checked_mul(u64::from(self.head_dim))?;
        numbers.checked_mul(u64::from(self.tokens))?.checked_mul(self.dtype.bytes())
    }

    /// Returns the slots per slab with which reading a layer of neighbours takes at most 1.2 times the commands that
    /// its bytes need: a power of two, at most [`SLOTS_MAX`]. `command_bytes_max` is the most that one command can
    /// move (MDTS).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a shape that no layout can have.
    pub fn slots(&self, command_bytes_max: u64) -> Result<u32> {
        let block = Layout::new(*self, Order::BlockMajor)?;
        let run_bytes = block.run_units() * crate::UNIT_BYTES;
        let slots = command_bytes_max.saturating_mul(COMMANDS_PER_RUN).div_ceil(run_bytes);
        Ok(slots.clamp(1, u64::from(SLOTS_MAX)).next_power_of_two() as u32)
    }
}

/// A checked layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    block: BlockShape,
    order: Order,
    tensor_bytes: u64,
}

/// A piece of an object, which has a checksum of its own: its offset from the object's place in units, and its length in
/// bytes.
pub(crate) type Piece = (u64, u64);

/// Returns the pieces of an object in the order of their checksums; `layout` is that of a KV block.
pub(crate) fn pieces(object: &Object, layout: Option<&Layout>) -> Vec<Piece> {
    let Some(layout) = layout else {
        let piece = piece_bytes(object.bytes);
        // An empty object has one piece without bytes.
        let starts = (0..object.bytes.max(1)).step_by(piece as usize);
        return starts.map(|at| (at / UNIT_BYTES, piece.min(object.bytes - at))).collect();
    };
    let tensors = 0..layout.tensors();
    tensors.map(|tensor| (layout.offset_units(tensor), layout.tensor_bytes())).collect()
}

impl Layout {
    /// Creates the layout of such blocks in this order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is 0, a layer has more than two tensors, a block has more than 512 or is longer
    /// than any object may be, or a slab has too many slots or units.
    pub fn new(block: BlockShape, order: Order) -> Result<Layout> {
        let invalid = |what: &str, fix: &str| Error::invalid("layout", what, fix);
        let tensors = u64::from(block.layers) * u64::from(block.tensors_per_layer);
        if !(1..=2).contains(&block.tensors_per_layer) {
            return Err(invalid(
                &format!("{} tensors per layer", block.tensors_per_layer),
                "use 2, or 1 for a latent",
            ));
        }
        if !(1..=CHECKSUMS_MAX as u64).contains(&tensors) {
            let what = format!("{tensors} tensors per block");
            return Err(invalid(&what, "a block has 1 to 512: store long models in two parts"));
        }
        let tensor_bytes = block.tensor_bytes().filter(|bytes| *bytes > 0);
        let fits = |bytes: &u64| units(*bytes).saturating_mul(tensors) < units(Object::BYTES_END);
        let Some(tensor_bytes) = tensor_bytes.filter(fits) else {
            return Err(invalid("a block of no bytes or too many", "a block has 1 to 2^40 - 1"));
        };
        let layout = Layout { block, order, tensor_bytes };
        if !layout.slab_fits() {
            return Err(invalid("slabs without slots or too large", "use 1 to 4096 slots"));
        }
        layout.assert_bound();
        Ok(layout)
    }

    /// Limits the slabs to `slab_units_max` units: they get fewer slots, a power of two, if needed. A slab has at
    /// least one slot, even if that is larger.
    ///
    /// A small device has room for few large slabs, and each layout keeps at least one that is not full.
    #[must_use]
    pub fn with_slabs_up_to(self, slab_units_max: u64) -> Layout {
        let Order::LayerMajor { slots } = self.order else { return self };
        let most = (slab_units_max / self.block_units()).max(1);
        if most >= u64::from(slots) {
            return self;
        }
        Layout { order: Order::LayerMajor { slots: 1 << most.ilog2() }, ..self }
    }

    /// Returns the shape of a block.
    pub fn block(&self) -> &BlockShape {
        &self.block
    }

    /// Returns the order of blocks.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the bytes of a tensor without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensor_bytes
    }

    /// Returns the units of a tensor with padding.
    pub fn tensor_units(&self) -> u64 {
        units(self.tensor_bytes)
    }

    /// Returns the tensors of a block, at most 512.
    pub fn tensors(&self) -> u32 {
        self.block.layers * u32::from(self.block.tensors_per_layer)
    }

    /// Returns the bytes of a block without padding.
    pub fn block_bytes(&self) -> u64 {
        self.tensor_bytes * u64::from(self.tensors())
    }

    /// Returns the units of a block with padding.
    pub fn block_units(&self) -> u64 {
        self.tensor_units() * u64::from(self.tensors())
    }

    /// Returns the units of a layer's run: its tensors, each padded.
    pub fn run_units(&self) -> u64 {
        self.tensor_units() * u64::from(self.block.tensors_per_layer)
    }

    /// Returns a tensor's number: by layer, keys before values. Returns `None` if there is no such layer or half.
    pub fn tensor(&self, layer: u32, half: Half) -> Option<u32> {
        let half = half as u32;
        let there = layer < self.block.layers && half < u32::from(self.block.tensors_per_layer);
        there.then_some(layer * u32::from(self.block.tensors_per_layer) + half)
    }

    /// Returns the units from a block's place to a tensor's first unit.
    ///
    /// # Panics
    /// If the block has no such tensor.
    pub fn offset_units(&self, tensor: u32) -> u64 {
        assert!(tensor < self.tensors(), "a block has {} tensors", self.tensors());
        let per_layer = u32::from(self.block.tensors_per_layer);
        let run = u64::from(tensor / per_layer) * self.stride_units();
        run + u64::from(tensor % per_layer) * self.tensor_units()
    }

    /// Returns the units of a layer's run, relative to a block's place.
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn run(&self, layer: u32) -> Range<u64> {
        assert!(layer < self.block.layers, "the model has {} layers", self.block.layers);
        let start = u64::from(layer) * self.stride_units();
        start..start + self.run_units()
    }

    /// Returns the shape of its slabs, if it is layer-major.
    pub fn slab(&self) -> Option<SlabShape> {
        let Order::LayerMajor { slots } = self.order else { return None };
        let run_units = u32::try_from(self.run_units()).expect("a run was checked to be short");
        Some(SlabShape { runs: self.block.layers, run_units, slots })
    }

    /// Returns the units from one run of a block to the next.
    fn stride_units(&self) -> u64 {
        match self.order {
            Order::BlockMajor => self.run_units(),
            Order::LayerMajor { slots } => self.run_units() * u64::from(slots),
        }
    }

    /// Returns whether a slab of it can be addressed, and its run fits in 32 bits.
    fn slab_fits(&self) -> bool {
        let Order::LayerMajor { slots } = self.order else { return true };
        let units = self.block_units() * u64::from(slots);
        (1..=SLOTS_MAX).contains(&slots)
            && units < Place::UNITS_MAX
            && u32::try_from(self.run_units()).is_ok()
    }

    /// Asserts alignment, disjointness and contiguity for every tensor of a block and its neighbours in a slab.
    fn assert_bound(&self) {
        let end = |tensor: u32| self.offset_units(tensor) + self.tensor_units();
        assert!(self.tensor_units() * crate::UNIT_BYTES >= self.tensor_bytes, "whole units");
        for tensor in 1..self.tensors() {
            let gap = self.offset_units(tensor).checked_sub(end(tensor - 1));
            let new_run = tensor.is_multiple_of(u32::from(self.block.tensors_per_layer));
            let others = if new_run { self.stride_units() - self.run_units() } else { 0 };
            assert_eq!(gap, Some(others), "tensor {tensor} begins where those before it end");
        }
    }
}

/// The shape of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabShape {
    /// Runs of a slot: its layers.
    pub runs: u32,
    /// Units of a run: a layer's tensors, each padded.
    pub run_units: u32,
    /// Slots of a slab: KV blocks.
    pub slots: u32,
}

impl SlabShape {
    /// Returns the units of a slab.
    pub fn units(self) -> u64 {
        u64::from(self.runs) * u64::from(self.run_units) * u64::from(self.slots)
    }

    /// Returns the slot whose first run begins `offset_units` into a slab, if one does.
    pub fn slot_at(self, offset_units: u64) -> Option<u32> {
        let run_units = u64::from(self.run_units);
        let slot = u32::try_from(offset_units.checked_div(run_units)?).ok()?;
        (offset_units.is_multiple_of(run_units) && slot < self.slots).then_some(slot)
    }

    /// Returns the units from one run of a slot to the next.
    pub fn stride_units(self) -> u64 {
        u64::from(self.run_units) * u64::from(self.slots)
    }

    /// Returns the first unit of a slot in the slab at `base`.
    pub fn slot_unit(self, base: u64, slot: u32) -> u64 {
        base + u64::from(slot) * u64::from(self.run_units)
    }
}

#[cfg(test)]
mod tests;
