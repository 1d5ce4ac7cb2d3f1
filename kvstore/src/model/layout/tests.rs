//! Layouts: the invariants, the encoding, and the commands that an order takes.

use super::*;
use crate::UNIT_BYTES;
use crate::model::object::LayoutId;
use crate::model::plan::{Limits, Part, Plan};
use crate::space::extent::Extents;
use crate::space::slab::Slabs;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const LAYOUT: LayoutId = LayoutId(1);

/// 64 layers, tensors of 80 KiB.
const BLOCK: BlockShape = BlockShape {
    layers: 64,
    tensors_per_layer: 2,
    kv_heads: 5,
    head_dim: 128,
    dtype: Dtype::Bf16,
    tokens: 64,
};

/// Returns the units of 64 neighbouring blocks behind `before` others on an empty device.
fn neighbours(layout: &Layout, before: usize) -> Vec<u64> {
    let mut extents = Extents::new(0..1 << 24);
    let mut slabs = Slabs::new();
    let mut near = None;
    let mut put = || {
        let units = layout.block_units();
        let unit = match layout.slab() {
            Some(shape) => slabs.allocate(&mut extents, LAYOUT, shape, near, 64),
            None => extents.allocate(units, near.map(|unit| unit + units), 1),
        };
        near = unit;
        unit.expect("there is room")
    };
    (0..before + 64).map(|_| put()).skip(before).collect()
}

/// Returns the commands of 1 MiB that move these layers of these blocks.
fn commands(layout: &Layout, blocks: &[u64], layers: Range<u32>) -> usize {
    let part = |item: usize, unit: u64, layer: u32| {
        let run = layout.run(layer);
        let bytes = (run.end - run.start) * UNIT_BYTES;
        let place = Place { device: 0, unit: unit + run.start };
        Part { place, item: item as u32, offset: u64::from(layer) * bytes, bytes }
    };
    let of_block = |(item, unit): (usize, &u64)| {
        let unit = *unit;
        layers.clone().map(move |layer| part(item, unit, layer))
    };
    let mut parts: Vec<Part> = blocks.iter().enumerate().flat_map(of_block).collect();
    let limits = Limits { command_bytes_max: MIB, boundary_bytes: 0, slices_max: 256 };
    Plan::of(&mut parts, &limits).runs().len()
}

/// Returns a row of the table in the module's documentation.
fn row(order: Order) -> [usize; 4] {
    let layout = Layout::new(BLOCK, order).expect("a layout");
    let aligned = neighbours(&layout, 0);
    let layer = |blocks: &[u64]| commands(&layout, blocks, 17..18);
    let worst = (0..64).map(|before| layer(&neighbours(&layout, before))).max();
    let all = |blocks: &[u64]| commands(&layout, blocks, 0..64);
    [layer(&aligned), worst.expect("a start"), all(&aligned[..1]), all(&aligned)]
}

#[test]
fn a_layer_of_neighbours_takes_the_commands_that_the_text_says() {
    let layer_major = |slots| row(Order::LayerMajor { slots });
    assert_eq!(row(Order::BlockMajor), [64, 64, 10, 640]);
    assert_eq!(layer_major(8), [16, 17, 64, 640]);
    assert_eq!(layer_major(16), [12, 13, 64, 640]);
    assert_eq!(layer_major(32), [10, 11, 64, 640]);
    assert_eq!(layer_major(64), [10, 11, 64, 640]);
}

#[test]
fn slabs_have_the_slots_that_keep_a_layer_hit_within_its_goal() {
    assert_eq!(BLOCK.slots(MIB).expect("a shape"), 32);
    for tokens in [16, 24, 32, 40, 64, 100, 128, 256] {
        let block = BlockShape { tokens, ..BLOCK };
        let slots = block.slots(MIB).expect("a shape");
        let layout = Layout::new(block, Order::LayerMajor { slots }).expect("a layout");
        let least = (64 * layout.run_units() * UNIT_BYTES).div_ceil(MIB) as f64;
        for before in 0..slots as usize {
            let found = commands(&layout, &neighbours(&layout, before), 3..4) as f64;
            assert!(found <= (least * 1.2).ceil(), "{tokens} tokens: {found} for {least}");
        }
    }
}

#[test]
fn slabs_can_be_kept_small() {
    let layout = Layout::new(BLOCK, Order::LayerMajor { slots: 20 }).expect("a layout");
    let slots = |blocks: u64| {
        let units = blocks * layout.block_units();
        layout.with_slabs_up_to(units).slab().expect("slabs").slots
    };
    assert_eq!([0, 1, 7, 19, 20, 99].map(slots), [1, 1, 4, 16, 20, 20]);
    let block_major = Layout::new(BLOCK, Order::BlockMajor).expect("a layout");
    assert_eq!(block_major.with_slabs_up_to(1), block_major);
}

#[test]
fn named_models_have_their_published_sizes() {
    let kib = |model: &str, tokens| {
        let layout = Layout::named(model, tokens).expect("a model");
        (layout.tensor_bytes() / 1024, layout.block_bytes() / 1024, layout.tensors())
    };
    assert_eq!(kib("Llama-3-8B", 16), (32, 2048, 64));
    assert_eq!(kib("Llama-3-70B", 16), (32, 5120, 160));
    assert_eq!(kib("Qwen3-8B", 16), (32, 2304, 72));
    assert_eq!(kib("Qwen3-32B", 64), (128, 16384, 128));
    assert_eq!(kib("OPT-6.7B", 1), (8, 512, 64));
    assert_eq!(kib("Mistral-7B", 16), (32, 2048, 64));
    assert_eq!(kib("DeepSeek-V3", 64), (72, 4392, 61));
    assert!(MODELS.iter().all(|model| Layout::named(model, 16).is_ok()));
    let refused = Layout::named("llama-9", 16).expect_err("no such model").to_string();
    assert!(refused.contains("llama-3-8b"), "{refused}");
}

#[test]
fn what_is_no_layout_is_refused() {
    let refused = |block: BlockShape| Layout::new(block, Order::BlockMajor).is_err();
    assert!(refused(BlockShape { layers: 0, ..BLOCK }));
    assert!(refused(BlockShape { layers: 257, ..BLOCK }));
    assert!(!refused(BlockShape { layers: 256, ..BLOCK }));
    assert!(refused(BlockShape { tensors_per_layer: 3, ..BLOCK }));
    assert!(refused(BlockShape { tokens: 0, ..BLOCK }));
    assert!(refused(BlockShape { kv_heads: u32::MAX, head_dim: u32::MAX, ..BLOCK }));
    assert!(refused(BlockShape { tokens: u32::MAX, ..BLOCK }));
    for slots in [0, SLOTS_MAX + 1] {
        assert!(Layout::new(BLOCK, Order::LayerMajor { slots }).is_err());
    }
}

#[test]
fn tensors_are_numbered_by_layer() {
    let layout = Layout::named("qwen3-32b", 64).expect("a model");
    assert_eq!(layout.tensor(0, Half::Value), Some(1));
    assert_eq!(layout.tensor(63, Half::Key), Some(126));
    assert_eq!(layout.tensor(64, Half::Key), None);
    let latent = Layout::named("deepseek-v3", 64).expect("a model");
    assert_eq!((latent.tensor(9, Half::Key), latent.tensor(9, Half::Value)), (Some(9), None));
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let dtype = prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::Int8)];
    let order = prop_oneof![
        Just(Order::BlockMajor),
        (1..20u32).prop_map(|slots| Order::LayerMajor { slots })
    ];
    (1..40u32, 1..3u8, 1..9u32, 1..200u32, 1..70u32, dtype, order).prop_map(
        |(layers, tensors_per_layer, kv_heads, head_dim, tokens, dtype, order)| {
            let block = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
            Layout::new(block, order).expect("a layout")
        },
    )
}

fn tensors(layout: &Layout, unit: u64) -> Vec<Range<u64>> {
    let range = |tensor| {
        let start = unit + layout.offset_units(tensor);
        start..start + layout.tensor_units()
    };
    (0..layout.tensors()).map(range).collect()
}

proptest! {
    #[test]
    fn tensors_are_aligned_disjoint_and_contiguous(layout in any_layout()) {
        let slots = layout.slab().map_or(3, |shape| shape.slots);
        let slot_unit = |slot: u32| match layout.slab() {
            Some(shape) => shape.slot_unit(1000, slot),
            None => 1000 + u64::from(slot) * layout.block_units(),
        };
        let all: Vec<_> = (0..slots).flat_map(|slot| tensors(&layout, slot_unit(slot))).collect();
        let units: BTreeSet<u64> = all.iter().cloned().flatten().collect();
        let count = all.len() as u64 * layout.tensor_units();
        prop_assert_eq!(units.len() as u64, count, "no unit is in two tensors");
        prop_assert_eq!(units.first().copied(), Some(1000));
        prop_assert_eq!(units.last().copied(), Some(1000 + count - 1), "and none is lost");
        for slot in 0..slots {
            for layer in 0..layout.block().layers {
                let run = layout.run(layer);
                let key = layout.tensor(layer, Half::Key).expect("a key");
                prop_assert_eq!(run.start, layout.offset_units(key));
                if let Some(value) = layout.tensor(layer, Half::Value) {
                    let end = run.start + layout.tensor_units();
                    prop_assert_eq!(layout.offset_units(value), end);
                }
                if layout.slab().is_some() && slot + 1 < slots {
                    prop_assert_eq!(slot_unit(slot) + run.end, slot_unit(slot + 1) + run.start);
                }
            }
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same(layout in any_layout()) {
        prop_assert_eq!(Layout::decode(&layout.encode()).expect("its own bytes"), layout);
    }

    #[test]
    fn any_bytes_are_a_layout_or_an_error(
        mut bytes in any::<[u8; ENCODED_BYTES]>(), small in any::<bool>()
    ) {
        if small {
            bytes[0] = 1;
            bytes[1..4].iter_mut().for_each(|byte| *byte &= 3);
            bytes[4..].chunks_mut(4).for_each(|field| field[1..].fill(0));
        }
        if let Ok(layout) = Layout::decode(&bytes) {
            prop_assert_eq!(layout.encode(), bytes, "one encoding for each");
        }
    }
}
