//! What goes for an object that finds no run of free space: about as many bytes as were asked for.

use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::Stats;
use adit_kvstore::store::{DefinedLayout, OpenOptions, PutWith};
use adit_kvstore::{PolicyKind, Store, Watermarks};

use crate::rig::{Rig, data, key};

const UNIT: u64 = 4096;
/// Bytes of a KV block with 16 tokens: 4 layers of two tensors of 16 KiB.
const BLOCK: u64 = 128 << 10;
const SLOTS: u32 = 16;

/// Opens a store of 64 MiB that evicts only what it has to.
fn open() -> (Rig, Store) {
    let rig = Rig::soft_of(64);
    rig.format(1);
    let watermarks = Watermarks { high: 1000, low: 1000 };
    // The object that was just put goes last.
    let policy = PolicyKind::Lru;
    let store = Store::open(&OpenOptions { watermarks, policy, ..rig.options() }).expect("a store");
    (rig, store)
}

fn stats(store: &Store) -> Stats {
    store.stats().wait().expect("counted")
}

/// Defines the layout of a model whose KV blocks have `tokens` times 8 KiB.
fn model(store: &Store, tokens: u32) -> DefinedLayout {
    let (dtype, tensors_per_layer, layers) = (Dtype::F16, 2, 4);
    let block = BlockShape { layers, tensors_per_layer, kv_heads: 8, head_dim: 64, dtype, tokens };
    let layout = Layout::new(block, Order::LayerMajor { slots: SLOTS }).expect("a layout");
    store.layout(layout).wait().expect("defined")
}

fn put(store: &Store, number: u64, bytes: u64) {
    let put = store.put(key(number), data(number, bytes as usize)).wait().expect("put");
    assert!(put.is_stored());
}

fn put_block(store: &Store, layout: &DefinedLayout, number: u64, bytes: u64) {
    let with = PutWith { layout: Some(layout.clone()), ..PutWith::default() };
    let put = store.put_with(key(number), data(number, bytes as usize), &with).wait();
    assert!(put.expect("put").is_stored());
}

/// Fills the store with objects of `bytes`, and then reads all of them in no order of their places.
fn fill(store: &Store, bytes: u64, put: impl Fn(u64)) {
    let count = stats(store).capacity_units * UNIT / bytes;
    (0..count).for_each(put);
    // Odd, so that it visits every number below a power of two.
    let numbers = (0..count.next_power_of_two())
        .map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count.next_power_of_two());
    for number in numbers.filter(|number| *number < count) {
        drop(store.get(key(number)).wait().expect("got"));
    }
}

/// Returns the bytes that went while `puts` put `asked` bytes.
fn evicted(store: &Store, asked: u64, puts: impl FnOnce()) -> u64 {
    let before = stats(store);
    puts();
    let after = stats(store);
    before.used_units * UNIT + asked - after.used_units * UNIT
}

#[test]
fn eight_large_objects_take_the_place_of_as_many_bytes_of_small_ones() {
    let (_rig, store) = open();
    fill(&store, 32 << 10, |number| put(&store, number, 32 << 10));
    let large = 2 << 20;
    let gone = evicted(&store, 8 * large, || {
        (0..8).for_each(|number| put(&store, 1 << 40 | number, large));
    });
    assert!(gone <= 2 * 8 * large, "{} MiB went", gone >> 20);
}

#[test]
fn the_first_block_of_a_second_model_costs_the_first_one_slab_at_most() {
    // What goes are whole slabs of the first model, as many as the new slab needs.
    for tokens in [8, 24] {
        let (_rig, store) = open();
        let first = model(&store, 16);
        fill(&store, BLOCK, |number| put_block(&store, &first, number, BLOCK));
        let second = model(&store, tokens);
        let bytes = u64::from(tokens) * 8192;
        let gone = evicted(&store, bytes, || put_block(&store, &second, 1 << 40, bytes));
        let slabs = u64::from(SLOTS) * bytes.next_multiple_of(BLOCK);
        assert!(gone <= slabs, "{} MiB went for a block of {tokens} tokens", gone >> 20);
    }
}

#[test]
fn blocks_after_plain_objects_take_the_place_of_as_many_bytes_and_a_slab() {
    let (_rig, store) = open();
    fill(&store, 32 << 10, |number| put(&store, number, 32 << 10));
    let layout = model(&store, 16);
    let gone = evicted(&store, 128 * BLOCK, || {
        (0..128).for_each(|number| put_block(&store, &layout, 1 << 40 | number, BLOCK));
    });
    assert!(gone <= (2 * 128 + u64::from(SLOTS)) * BLOCK, "{} MiB went", gone >> 20);
    let evictions = stats(&store).evictions;
    assert_eq!((evictions.objects(), evictions.records.objects), (gone >> 15, 0));
}
