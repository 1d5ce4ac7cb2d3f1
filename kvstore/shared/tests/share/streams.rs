//! Objects longer than a client's pool, read and put in pieces.

use std::io::{Cursor, Read, Seek, SeekFrom};

use adit_kvshare::client::PutWith;
use adit_kvshare::{Client, Error, KvStore, PendingAnswer};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Condition, Failure, Outcome};

use crate::rig::{Rig, data, key};

/// Longer than the pool of 8 MiB, and no multiple of anything.
const LONG: usize = (20 << 20) + 12_345;

fn whole(client: &Client, number: u64) -> Vec<u8> {
    let mut reader = client.reader(key(number)).expect("asked").expect("there");
    let mut read = Vec::new();
    reader.read_to_end(&mut read).expect("read");
    read
}

#[test]
fn an_object_longer_than_the_pool_is_read_and_put() {
    for rig in [Rig::soft(), Rig::file()] {
        let (client, all) = (rig.client(), data(1, 1, LONG));
        let with = PutWith::default();
        for (number, bytes) in [(1, Some(LONG as u64)), (2, None), (3, Some(5000)), (4, Some(0))] {
            let put = client.put_from(key(number), bytes, Cursor::new(&all), &with);
            assert_eq!(put.expect("stored"), Outcome::Stored);
            assert!(whole(&client, number) == all[..bytes.map_or(LONG, |bytes| bytes as usize)]);
        }
        assert!(client.reader(key(5)).expect("asked").is_none());
        let mut reader = client.reader(key(1)).expect("asked").expect("there");
        assert_eq!(reader.object_bytes(), LONG as u64);
        reader.set_range(777..(10 << 20) + 5);
        reader.seek(SeekFrom::Start((9 << 20) + 1)).expect("within");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("read");
        assert!(rest == all[(9 << 20) + 1..(10 << 20) + 5], "the bytes of the range");
        // A short get after long ones takes no more of the pool than before.
        client.put(key(6), b"short").wait().expect("put");
        assert_eq!(client.get(key(6)).wait().expect("got").expect("there").to_vec(), b"short");
        drop((reader, client));
        rig.until_nothing_is_left();
    }
}

#[test]
fn a_replaced_object_ends_its_readers() {
    let rig = Rig::soft();
    let (client, other, all) = (rig.client(), rig.client(), data(1, 1, LONG));
    let with = PutWith::default();
    client.put_from(key(1), None, Cursor::new(&all), &with).expect("put");
    let mut reader = client.reader(key(1)).expect("asked").expect("there");
    let begun = reader.next().expect("read").expect("some").to_vec();
    assert!(other.put(key(1), &data(1, 2, 4000)).wait().expect("put").is_stored());
    let mut read = begun;
    let why = loop {
        match reader.next() {
            Ok(piece) => read.extend(piece.expect("it does not end early").to_vec()),
            Err(why) => break why,
        }
    };
    assert!(read == all[..read.len()], "of one version");
    assert!(matches!(why, Error::Gone { .. }), "{why}");
}

#[test]
fn what_is_not_put_to_its_end_leaves_nothing() {
    let rig = Rig::soft();
    let (client, all) = (rig.client(), data(1, 1, LONG));
    let with = PutWith::default();
    // More in all than the store has: the room of each is given back.
    for _ in 0..20 {
        let short = client.put_from(key(1), Some(LONG as u64 + 1), Cursor::new(&all), &with);
        let why = short.expect_err("it ends too soon");
        assert!(matches!(why, Error::Source { .. }), "{why}");
    }
    assert!(client.reader(key(1)).expect("asked").is_none());
    let huge = client.put_from(key(1), Some(1 << 38), Cursor::new(&all), &with);
    let why = huge.expect_err("it never fits");
    assert!(matches!(why, Error::Failed(Failure::TooLarge { .. })), "{why}");
    client.put_from(key(2), None, Cursor::new(&all), &with).expect("put");
    let absent = PutWith { condition: Condition::Absent, ..PutWith::default() };
    let taken = client.put_from(key(2), None, Cursor::new(&all), &absent);
    let why = taken.expect_err("it is there");
    assert!(matches!(why, Error::Failed(Failure::Conflict { found: Some(_) })), "{why}");
    let put = client.put(key(3), &all).wait().expect_err("beyond the pool").to_string();
    assert!(put.contains("Client::put_from"), "{put}");
    let got = client.get(key(2)).wait().expect_err("beyond the pool").to_string();
    assert!(got.contains("Client::reader") && got.contains("20987904 bytes"), "{got}");
    assert!(got.contains("8388608"), "the pool's size: {got}");
    drop(client);
    rig.until_nothing_is_left();
}

#[test]
fn a_kv_block_is_put_and_read_by_layers() {
    let rig = Rig::soft();
    let client = rig.client();
    let (dtype, tensors_per_layer) = (Dtype::Bf16, 2);
    let shape =
        BlockShape { layers: 6, tensors_per_layer, kv_heads: 8, head_dim: 128, dtype, tokens: 64 };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 4 }).expect("a layout");
    let bytes = layout.block_units() * 4096;
    assert_eq!(layout.tensor_bytes() % 4096, 0, "it has no padding");
    let all = data(1, 1, bytes as usize);
    let layout = Some(client.define_layout(layout).expect("defined"));
    let with = PutWith { layout, ..PutWith::default() };
    client.put_from(key(1), Some(bytes), Cursor::new(&all), &with).expect("put");
    assert!(whole(&client, 1) == all, "the same bytes");
}
