//! KV blocks: as sequences, and layer by layer.

use adit_driver::memory::AnyBuffer;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Outcome};
use adit_kvstore::store::{DefinedLayout, Payload, PutWith};
use adit_kvstore::{Error, Key, Quota, Store, WhenReached};

use crate::basics::block_on;
use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    blocks_of_a_sequence_are_neighbours_whose_layers_share_commands,
    more_blocks_than_there_is_memory_for_are_stored,
    blocks_that_are_written_layer_by_layer_appear_when_they_are_committed,
    a_blocks_writer_that_does_not_end_well_gives_its_room_back,
    data_of_layers_that_do_not_add_up_are_refused_with_their_memory,
);

const LAYERS: u64 = 4;
/// Two tensors of 3072 bytes, each padded to a unit.
const LAYER_BYTES: usize = 8192;

fn define(store: &Store) -> DefinedLayout {
    let (dtype, tensors_per_layer, layers) = (Dtype::F16, 2, LAYERS as u32);
    let block =
        BlockShape { layers, tensors_per_layer, kv_heads: 2, head_dim: 48, dtype, tokens: 16 };
    let layout = Layout::new(block, Order::LayerMajor { slots: 64 }).expect("a layout");
    store.layout(layout).wait().expect("defined")
}

fn layer(number: u64, layer: u64) -> Vec<u8> {
    let tensor = |t: u64| [data(number << 8 | t, 3072), vec![0; 1024]].concat();
    [tensor(2 * layer), tensor(2 * layer + 1)].concat()
}

fn block(number: u64) -> Vec<u8> {
    (0..LAYERS).flat_map(|index| layer(number, index)).collect()
}

fn keys(numbers: std::ops::Range<u64>) -> Vec<Key> {
    numbers.map(key).collect()
}

fn is_there(store: &Store, number: u64) -> bool {
    let value = store.get(key(number)).wait().expect("got");
    value.is_some_and(|value| value[..] == block(number))
}

fn lent(store: &Store, filled: &[u8]) -> AnyBuffer {
    let mut buffer = store.allocate(filled.len()).expect("memory");
    buffer[..filled.len()].copy_from_slice(filled);
    AnyBuffer::One(buffer)
}

/// Reads and checks a layer of blocks.
fn check_layer(store: &Store, index: u64, numbers: std::ops::Range<u64>) {
    let blocks = numbers.clone().map(|number| (key(number), lent(store, &[0; LAYER_BYTES])));
    for (number, read) in numbers.clone().zip(store.get_layer(index as u32, blocks).wait()) {
        let read = read.expect("read");
        let AnyBuffer::One(buffer) = read.memory else { panic!("it was lent") };
        assert_eq!(read.bytes, Some(LAYER_BYTES as u64));
        assert!(buffer[..LAYER_BYTES] == layer(number, index), "layer {index} of {number}");
    }
}

fn blocks_of_a_sequence_are_neighbours_whose_layers_share_commands(rig: &Rig) {
    let store = rig.format(1).open();
    let layout = define(&store);
    let blocks = |numbers: std::ops::Range<u64>| numbers.map(|number| (key(number), block(number)));
    let put = |numbers, after| {
        let with = PutWith { after, ..PutWith::default() };
        let puts = store.put_blocks(&layout, blocks(numbers), &with).wait();
        assert!(puts.into_iter().all(|put| put.expect("put").is_stored()));
    };
    put(0..20, None);
    // Another sequence in between.
    put(100..110, None);
    put(20..40, Some(key(19)));
    let commands = || store.stats().wait().expect("counted").commands_read;
    let before = commands();
    check_layer(&store, 2, 0..40);
    let command_bytes = store.devices()[0].info().command_bytes_max;
    let least = (40 * LAYER_BYTES as u64).div_ceil(command_bytes);
    let sent = commands() - before;
    assert!(sent <= least + 8, "{sent} commands, of which the bytes need {least}");
    assert!((0..40).all(|number| is_there(&store, number)));
    let missing = store.get_layer(1, [(key(99), lent(&store, &[0; LAYER_BYTES]))]).wait();
    assert!(missing.into_iter().all(|read| read.expect("a miss").bytes.is_none()));
}

fn more_blocks_than_there_is_memory_for_are_stored(rig: &Rig) {
    let store = rig.format(2).open();
    let layout = define(&store);
    let blocks = (0..300).map(|number| (key(number), block(number)));
    let puts = store.put_blocks(&layout, blocks, &PutWith::default()).wait();
    assert!(puts.into_iter().all(|put| put.expect("put").is_stored()));
    check_layer(&store, 3, 0..300);
}

fn blocks_that_are_written_layer_by_layer_appear_when_they_are_committed(rig: &Rig) {
    let store = rig.format(2).open();
    let layout = define(&store);
    let writer =
        store.reserve_blocks(&layout, keys(0..12), &PutWith::default()).wait().expect("room");
    assert_eq!((writer.count(), writer.layer_bytes()), (12, LAYER_BYTES as u64));
    let writes = || store.stats().wait().expect("counted").commands_write;
    let before = writes();
    for index in [3, 1] {
        let filled = writer.put_layer(index as u32, (0..12).map(|number| layer(number, index)));
        assert!(filled.wait().into_iter().all(|memory| memory.is_ok()));
    }
    assert!(writes() - before < 24, "neighbours share commands");
    // Without a copy: the store's memory, and the caller's, which comes back.
    let pooled = (0..12usize).map(|number| {
        let mut buffer = writer.buffer(number).wait().expect("memory");
        buffer.copy_from_slice(&layer(number as u64, 0));
        buffer
    });
    assert!(writer.put_layer(0, pooled).wait().into_iter().all(|memory| memory.is_ok()));
    assert!(writer.buffer(12).wait().is_err(), "there are twelve");
    let own = (0..12).map(|number| lent(&store, &layer(number, 2)));
    let filled = writer.put_layer(2, own).wait();
    assert!(filled.into_iter().all(|memory| matches!(memory, Ok(AnyBuffer::One(_)))));
    assert!((0..12).all(|number| !store.exists(key(number)).wait().expect("known")), "not yet");
    for outcome in writer.commit().wait() {
        assert_eq!(outcome.expect("sealed"), Outcome::Stored);
    }
    assert!((0..12).all(|number| is_there(&store, number)));
    check_layer(&store, 1, 0..12);
}

fn a_blocks_writer_that_does_not_end_well_gives_its_room_back(rig: &Rig) {
    let store = rig.format(1).open();
    let layout = define(&store);
    let reserve =
        || store.reserve_blocks(&layout, keys(0..100), &PutWith::default()).wait().expect("room");
    let used = || store.stats().wait().expect("counted").used_units;
    let before = used();
    let writer = reserve();
    assert_eq!(used(), before + 100 * LAYERS * 2);
    let filled = writer.put_layer(1, (0..100).map(|number| layer(number, 1))).wait();
    assert!(filled.into_iter().all(|memory| memory.is_ok()));
    drop(writer);
    assert_eq!(used(), before, "dropped");
    for outcome in reserve().commit().wait() {
        let missing = outcome.expect_err("nothing was filled");
        assert!(matches!(missing.failure(), Some(Failure::Unfilled { .. })), "{missing}");
    }
    assert_eq!(used(), before, "not committed");
    // A refused block refuses all.
    let tenant = store.tenant("small").wait().expect("a tenant");
    let quota = Quota { bytes: 40 << 12, when_reached: WhenReached::Refuse };
    store.set_quota(&tenant, Some(quota)).wait().expect("a quota");
    let with = PutWith { tenant: Some(tenant), ..PutWith::default() };
    let over = store.reserve_blocks(&layout, keys(0..9), &with).wait().expect_err("over its quota");
    assert!(matches!(over, Error::Failed(Failure::Quota { .. })), "{over}");
    assert_eq!(used(), before, "refused");
    let reserved = store.reserve_blocks(&layout, keys(0..5), &with);
    assert_eq!(block_on(reserved).expect("all of its quota").count(), 5);
}

fn data_of_layers_that_do_not_add_up_are_refused_with_their_memory(rig: &Rig) {
    let store = rig.format(2).open();
    let layout = define(&store);
    let writer =
        store.reserve_blocks(&layout, keys(0..2), &PutWith::default()).wait().expect("room");
    let own = |count: usize, len: usize| -> Vec<Payload<'_>> {
        let memory = |_| Payload::lent(lent(&store, &vec![7; len]), len as u64);
        (0..count).map(memory).collect()
    };
    let refused = |index, data: Vec<Payload<'_>>, count, why: &str| {
        let answers = writer.put_layer(index, data).wait();
        assert_eq!(answers.len(), count);
        for answer in answers {
            let unfinished = answer.expect_err("refused");
            assert!(unfinished.to_string().contains(why), "{unfinished}");
        }
    };
    refused(0, own(1, LAYER_BYTES), 2, "give data of each of the 2 blocks");
    refused(0, own(3, LAYER_BYTES), 3, "give data of each of the 2 blocks");
    refused(0, own(2, 4096), 2, "a layer has 8192");
    refused(0, vec![vec![1; 8191].into(), vec![1; 8193].into()], 2, "a layer has 8192");
    refused(LAYERS as u32, own(2, LAYER_BYTES), 2, "no such layer");
    for answer in writer.put_layer(0, own(3, LAYER_BYTES)).wait() {
        let memory = answer.expect_err("one too many").memory;
        assert!(matches!(memory, AnyBuffer::One(_)), "it comes back");
    }
    let filled = writer.put_layer(0, own(2, LAYER_BYTES)).wait();
    assert!(filled.into_iter().all(|memory| memory.is_ok()));
    refused(0, own(2, LAYER_BYTES), 2, "filled before");
}
