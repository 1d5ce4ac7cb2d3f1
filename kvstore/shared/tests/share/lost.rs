//! Clients whose server is lost: how they learn it, and what of theirs another connection refuses.

use std::sync::{Arc, Mutex};

use adit_kvshare::client::PutWith;
use adit_kvshare::{Client, KvStore, PendingAnswer};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::Part;

use crate::rig::{PATIENCE, Rig, data, key};

const UNIT: usize = 4096;

type Notice = (&'static str, fn(&Client));

#[test]
fn the_loss_of_the_server_is_told_once_whichever_call_notices() {
    let notices: [Notice; 4] = [
        ("a wait", |client| drop(client.exists(key(1)).wait().expect_err("lost"))),
        ("a message", |client| drop(client.stats().expect_err("lost"))),
        ("a thread that takes answers", |client| client.watch(PATIENCE)),
        ("an event loop", Client::reap),
    ];
    for (name, notice) in notices {
        let mut rig = Rig::soft();
        let (client, told) = (rig.client(), Arc::new(Mutex::new(Vec::new())));
        let tell = || {
            let told = Arc::clone(&told);
            move |why: &str| told.lock().expect("no panic").push(why.to_owned())
        };
        let count = || told.lock().expect("no panic").len();
        client.put(key(1), b"x").wait().expect("put");
        client.when_lost(tell());
        assert!(client.get(key(1)).wait().expect("got").is_some() && count() == 0, "{name}");
        rig.end();
        notice(&client);
        assert_eq!(count(), 1, "{name}");
        drop(client.exists(key(1)).wait().expect_err("it stays lost"));
        assert_eq!(count(), 1, "{name}: once");
        client.when_lost(tell());
        assert_eq!(count(), 2, "{name}: at once if it is lost already");
        assert!(told.lock().expect("no panic").iter().all(|why| !why.is_empty()));
    }
}

#[test]
fn a_layout_of_another_connection_is_refused() {
    let (first, second) = (Rig::soft(), Rig::soft());
    let (old, new) = (first.client(), second.client());
    let (layers, tensors_per_layer, dtype) = (2, 2, Dtype::F16);
    let shape =
        BlockShape { layers, tensors_per_layer, kv_heads: 8, head_dim: 128, dtype, tokens: 64 };
    let shape = Layout::new(shape, Order::LayerMajor { slots: 4 }).expect("a layout");
    let layout = Some(old.define_layout(shape).expect("defined"));
    let (with, bytes) = (PutWith { layout, ..PutWith::default() }, shape.block_units() * 4096);
    let block = data(1, 0, bytes as usize);
    let put = new.put_with(key(1), &block, &with).wait().expect_err("another's");
    let streamed = new.put_from(key(1), Some(bytes), &block[..], &with).expect_err("another's");
    for why in [put.to_string(), streamed.to_string()] {
        assert!(why.contains("no such layout in this store"), "{why}");
    }
    let layout = Some(new.define_layout(shape).expect("defined anew"));
    let with = PutWith { layout, ..PutWith::default() };
    assert!(new.put_with(key(1), &block, &with).wait().expect("put").is_stored());
}

#[test]
fn memory_of_another_connection_is_refused() {
    let (mut first, mut second) = (Rig::soft(), Rig::soft());
    let (old, new) = (first.client(), second.client());
    // Both servers know them by the same number.
    let mut memory = old.allocate(8 * UNIT).expect("memory");
    let mut anew = new.allocate(8 * UNIT).expect("memory");
    let there = data(1, 0, 8 * UNIT);
    memory.write(0, &there);
    first.end();
    let refused = new.put(key(1), memory).wait().expect_err("another's");
    assert!(refused.to_string().contains("Client::allocate of this one"), "{refused}");
    let memory = refused.memory.expect("it comes back");
    let refused = new.get_into(key(1), Part::All, memory).wait().expect_err("another's");
    let memory = refused.memory.expect("it comes back");
    assert_eq!(memory.to_vec(), there, "its bytes stay");
    assert_eq!(anew.to_vec(), [0; 8 * UNIT], "and those of the number are not touched");
    anew.write(0, &memory.to_vec());
    let put = new.put(key(1), anew).wait().expect("put");
    let value = new.get(key(1)).wait().expect("got").expect("a hit");
    assert_eq!(value.to_vec(), there);
    drop((value, put, memory, new, old));
    second.until_nothing_is_left();
    second.end();
}
