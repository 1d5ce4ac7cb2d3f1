//! Layers of KV blocks: which bytes a layer has, and that each tensor is verified.

use std::borrow::Cow;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{TestDevice, memory};
use super::{Rig, SHAPE, STORED, UNITS, form, format, layout, options};
use crate::model::key::Key;
use crate::model::layout::{BlockShape, Order};
use crate::model::object::LayoutId;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Done, Failure, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, ReserveItem,
};

const LAYERS: u32 = 3;
/// Three layers of two tensors, each 5120 bytes in two units.
const DEEP: BlockShape = BlockShape { layers: LAYERS, tensors_per_layer: 2, tokens: 40, ..SHAPE };
const TENSOR_BYTES: usize = 5120;
/// Units of a tensor, of a layer and of a block.
const TENSOR_UNITS: u64 = 2;
const LAYER_UNITS: u64 = 2 * TENSOR_UNITS;
const BLOCK_UNITS: u64 = LAYERS as u64 * LAYER_UNITS;
const NO_LAYER: Result<Outcome, Failure> =
    Err(Failure::Part(Cow::Borrowed("the layout has no such layer")));

/// Returns memory of these tensors of block `key`; each is filled with a byte of its own, its padding with zeroes.
fn tensors(key: u8, numbers: std::ops::Range<u8>) -> AnyBuffer {
    let tensor_bytes = (TENSOR_UNITS * UNIT_BYTES) as usize;
    let mut data = memory(numbers.len() * tensor_bytes);
    for (tensor, number) in data.chunks_mut(tensor_bytes).zip(numbers) {
        tensor.fill(0);
        tensor[..TENSOR_BYTES].fill(16 * key + number);
    }
    AnyBuffer::One(data)
}

/// Returns a store that is large enough for slabs of two blocks.
fn large() -> Rig {
    let devices = vec![TestDevice::new("memory:0", 3 * UNITS)];
    format(&devices, &form(64));
    Rig::open(devices, options(Durability::Restart))
}

fn of_layout(layout: LayoutId) -> PutOptions {
    PutOptions { layout, ..PutOptions::default() }
}

impl Rig {
    fn part(&mut self, key: u64, part: Part, units: u64) -> Done {
        let into = AnyBuffer::One(memory((units * UNIT_BYTES) as usize));
        self.submit(
            Time::NEVER,
            Action::Get(GetItem { key: key.into(), part, into, version: None }),
        );
        self.turn(5);
        self.answers.pop().expect("an answer")
    }

    /// Asserts that each layer of block `key`, and all of it, has the bytes that were put.
    fn assert_block(&mut self, key: u8) {
        let layers = (0..LAYERS as u8).map(|layer| (Part::Layer(layer.into()), 2 * layer, 2));
        for (part, first, count) in layers.chain([(Part::All, 0, 2 * LAYERS as u8)]) {
            let units = u64::from(count) * TENSOR_UNITS;
            let done = self.part(key.into(), part, units);
            assert_eq!(done.result, Ok(Outcome::Hit { bytes: units * UNIT_BYTES }));
            let (AnyBuffer::One(read), AnyBuffer::One(put)) =
                (done.memory, tensors(key, first..first + count))
            else {
                panic!("one buffer")
            };
            assert!(read[..] == put[..], "{count} tensors from {first} on");
        }
    }
}

#[test]
fn a_layer_has_its_tensors_and_a_block_no_more_layers_than_its_layout() {
    for slots in [1, 2] {
        let mut rig = large();
        let id = layout(&mut rig, DEEP, slots);
        assert_eq!(rig.shard.layouts().get(id).expect("it").order(), Order::LayerMajor { slots });
        for key in 1..4u8 {
            let (data, options) = (tensors(key, 0..2 * LAYERS as u8), of_layout(id));
            let bytes = BLOCK_UNITS * UNIT_BYTES;
            let put = PutItem { key: u64::from(key).into(), bytes, data, options };
            assert_eq!(rig.wait(Action::Put(put)), STORED);
        }
        (1..4).for_each(|key| rig.assert_block(key));
        for layer in [LAYERS, LAYERS + 1, u32::MAX] {
            assert_eq!(rig.part(1, Part::Layer(layer), BLOCK_UNITS).result, NO_LAYER);
        }
    }
}

#[test]
fn a_block_is_written_layer_by_layer_in_any_order() {
    let mut rig = large();
    let id = layout(&mut rig, DEEP, 2);
    let (key, bytes) = (1, BLOCK_UNITS * UNIT_BYTES);
    let reserve = ReserveItem { key: Key::from(1u64), bytes, options: of_layout(id) };
    let Ok(Outcome::Reserved { writer, .. }) = rig.wait(Action::Reserve(reserve)) else {
        panic!("there is room")
    };
    let fill = |layer: u32| {
        let tensor = 2 * layer as u8;
        let (part, data) = (Part::Layer(layer), tensors(key, tensor..tensor + 2));
        Action::Fill(FillItem { writer, part, data })
    };
    for layer in [2, 0] {
        assert_eq!(rig.wait(fill(layer)), Ok(Outcome::Filled));
    }
    assert_eq!(rig.wait(fill(LAYERS)), NO_LAYER);
    let unfilled = rig.wait(Action::Seal(writer));
    assert!(matches!(unfilled, Err(Failure::Unfilled { .. })), "{unfilled:?}");
    assert_eq!(rig.wait(fill(1)), Ok(Outcome::Filled));
    assert_eq!(rig.wait(Action::Seal(writer)), STORED);
    rig.assert_block(key);
}

#[test]
fn each_tensor_of_a_block_is_verified() {
    for tensor in 0..2 * LAYERS as u8 {
        let mut rig = large();
        let id = layout(&mut rig, DEEP, 1);
        let (data, bytes) = (tensors(1, 0..2 * LAYERS as u8), BLOCK_UNITS * UNIT_BYTES);
        let put = PutItem { key: 1u64.into(), bytes, data, options: of_layout(id) };
        assert_eq!(rig.wait(Action::Put(put)), STORED);
        let at = (rig.place_of(1) + u64::from(tensor) * TENSOR_UNITS) * UNIT_BYTES;
        let last = at as usize + TENSOR_BYTES - 1;
        rig.devices[0].medium().bytes[last] ^= 1;
        for layer in 0..LAYERS {
            let done = rig.part(1, Part::Layer(layer), LAYER_UNITS);
            let is_damaged = layer == u32::from(tensor) / 2;
            let hit = Outcome::Hit { bytes: LAYER_UNITS * UNIT_BYTES };
            assert_eq!(done.result, Ok(if is_damaged { Outcome::Miss } else { hit }));
            if is_damaged {
                break;
            }
        }
        assert_eq!(rig.shard.stats().misses_corrupt, 1, "tensor {tensor}");
    }
}
