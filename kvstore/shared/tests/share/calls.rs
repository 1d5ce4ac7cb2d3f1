//! Every call of a client, on a store in memory and one in a file.

use std::time::Duration;

use adit_kvshare::client::{Data, PutWith};
use adit_kvshare::{
    ClientOptions, Error, KvStore, Options, PendingAnswer, RefusalKind, SharedBytes, Span,
};
use adit_kvstore::Key;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Part};

use crate::rig::{Rig, data, is_refused, key};

/// Runs each test on a store in memory and on one in a file.
macro_rules! on_each_path {
    ($($name:ident),* $(,)?) => {
        mod soft {
            $(#[test] fn $name() { super::$name(&crate::rig::Rig::soft()); })*
        }
        mod file {
            $(#[test] fn $name() { super::$name(&crate::rig::Rig::file()); })*
        }
    };
}

on_each_path!(
    plain_bytes_of_any_length_come_back,
    shared_memory_goes_to_the_drive_and_back_without_a_copy,
    batches_of_more_than_the_ring_and_the_pool_hold_all_end,
    clients_see_each_others_objects_and_the_stores,
    lists_of_more_keys_than_the_ring_holds_are_looked_up,
    leases_keep_objects_until_they_are_dropped,
    objects_are_removed_by_their_prefix,
    layers_of_kv_blocks_are_read,
    parts_that_cannot_be_are_refused_with_the_memory,
    spans_that_begin_anywhere_are_written_and_read,
);

/// Cuts shared memory into slots.
fn slots(mut all: Span, bytes: usize) -> Vec<Span> {
    let mut slots: Vec<Span> =
        (0..all.len() / bytes).rev().map(|at| all.split_off(at * bytes)).collect();
    slots.reverse();
    slots
}

fn objects_are_removed_by_their_prefix(rig: &Rig) {
    let client = rig.client();
    let named = |name: &str| Key::new(name.as_bytes()).expect("a key");
    for name in ["a", "a/1", "a/2", "ab", "b"] {
        client.put(named(name), b"x").wait().expect("put");
    }
    assert_eq!(client.delete_prefix(named("a/")).wait().expect("removed"), 2);
    assert_eq!(client.delete_prefix(named("a/")).wait().expect("removed"), 0);
    for (name, is_there) in [("a", true), ("a/1", false), ("a/2", false), ("ab", true)] {
        assert_eq!(client.exists(named(name)).wait().expect("asked"), is_there, "{name}");
    }
    assert_eq!(client.delete_prefix(named("a")).wait().expect("removed"), 2);
    assert!(client.exists(named("b")).wait().expect("asked"));
}

fn plain_bytes_of_any_length_come_back(rig: &Rig) {
    let client = rig.client();
    for (number, bytes) in (0..).zip([1, 100, 4095, 4096, 4097, 131_072, 131_073, 3_000_000]) {
        let object = data(number, 0, bytes);
        let put = client.put(key(number), &object).wait().expect("put");
        assert!(put.is_stored() && put.memory.is_none());
        assert_eq!(
            client.info(key(number)).wait().expect("asked").map(|info| info.bytes),
            Some(bytes as u64)
        );
        // The first get of a longer object than the last has too little memory at first.
        let value = client.get(key(number)).wait().expect("got").expect("a hit");
        assert!(value.to_vec() == object, "{bytes} bytes");
        let changing = SharedBytes::from(&object[..]);
        let copied = client.put(key(number + 100), changing).wait();
        assert!(copied.expect("put").is_stored());
        let value = client.get(key(number + 100)).wait().expect("got").expect("a hit");
        assert!(value.to_vec() == object, "{bytes} bytes that others may write");
    }
    assert!(client.get(key(99)).wait().expect("got").is_none());
    assert_eq!(client.info(key(99)).wait().expect("asked"), None);
    assert!(client.delete(key(0)).wait().expect("deleted"));
    assert!(!client.delete(key(0)).wait().expect("nothing to delete"));
    assert!(!client.exists(key(0)).wait().expect("asked"));
    let put = PutWith { ttl: Some(Duration::from_millis(1)), ..PutWith::default() };
    client.put_with(key(0), b"soon gone", &put).wait().expect("put");
    let info = rig.store.info(key(0)).wait().expect("asked").expect("there");
    assert_eq!(info.ttl_s, Some(1), "rounded up to a second");
    client.commit().wait().expect("durable");
    assert!(client.put(key(1), b"").wait().expect("put").is_stored());
    assert!(client.get(key(1)).wait().expect("got").expect("a hit").is_empty());
}

fn shared_memory_goes_to_the_drive_and_back_without_a_copy(rig: &Rig) {
    let client = rig.client();
    let slots = slots(client.allocate(1 << 20).expect("memory"), 128 << 10);
    for (number, mut slot) in (0..).zip(slots) {
        slot.write(0, &data(number, 0, 128 << 10));
        let put = client.put(key(number), slot).wait().expect("put");
        let mut slot = put.memory.expect("what was lent");
        slot.bytes_mut().zero();
        let read = client.get_into(key(number), Part::All, slot).wait().expect("got");
        assert_eq!(read.bytes, Some(128 << 10));
        assert!(
            read.memory.as_ref().expect("it comes back").to_vec() == data(number, 0, 128 << 10)
        );
    }
    let (stats, serving) = client.stats().expect("counted");
    assert_eq!((stats.copied_bytes, stats.puts, stats.hits), (0, 8, 8));
    assert_eq!((serving.clients_now, serving.requests, serving.requests_now), (1, 16, 0));
}

fn batches_of_more_than_the_ring_and_the_pool_hold_all_end(rig: &Rig) {
    let options = ClientOptions { depth: 8, pool_bytes: 1 << 20, ..ClientOptions::default() };
    let client = rig.client_with(&options);
    let objects: Vec<Vec<u8>> = (0..100).map(|number| data(number, 0, 50_000)).collect();
    let items = (0..).zip(&objects).map(|(number, object)| (key(number), object));
    for put in client.put_many(items, &PutWith::default()) {
        assert!(put.wait().expect("put").is_stored());
    }
    let there = client.exists_many((0..110).map(key));
    let there = there.into_iter().map(|it| it.wait().expect("asked"));
    assert_eq!(there.filter(|there| *there).count(), 100);
    for (value, object) in client.get_many((0..100).map(key)).into_iter().zip(&objects) {
        assert!(value.wait().expect("got").expect("a hit").to_vec() == object[..]);
    }
    drop(client);
    rig.until_nothing_is_left();
}

fn clients_see_each_others_objects_and_the_stores(rig: &Rig) {
    let clients = [rig.client(), rig.client()];
    for number in 0..40 {
        let (one, other) = (&clients[number as usize % 2], &clients[(number as usize + 1) % 2]);
        one.put(key(number), &data(number, 1, 9000)).wait().expect("put");
        let value = other.get(key(number)).wait().expect("got").expect("a hit");
        assert!(value.to_vec() == data(number, 1, 9000));
        other.put(key(number), &data(number, 2, 7000)).wait().expect("replaced");
        let value = one.get(key(number)).wait().expect("got").expect("a hit");
        assert!(value.to_vec() == data(number, 2, 7000));
    }
    let value = rig.store.get(key(7)).wait().expect("got").expect("a hit");
    assert!(value[..] == data(7, 2, 7000));
    let tenant = Some("rank-0".to_owned());
    let named = rig.client_with(&ClientOptions { tenant, ..ClientOptions::default() });
    named.put(key(50), b"of a tenant").wait().expect("put");
    let info = rig.store.info(key(50)).wait().expect("asked").expect("there");
    assert_eq!(&*info.tenant, "rank-0");
}

fn lists_of_more_keys_than_the_ring_holds_are_looked_up(rig: &Rig) {
    let client = rig.client_with(&ClientOptions { depth: 4, ..ClientOptions::default() });
    for number in 0..300 {
        client.put(key(number), b"x").wait().expect("put");
    }
    let keys: Vec<_> = (0..400).map(key).collect();
    let lookups: Vec<_> = (0..8).map(|at| client.lookup_prefix(&keys[at * 10..])).collect();
    for (at, lookup) in lookups.into_iter().enumerate() {
        assert_eq!(lookup.wait().expect("looked up"), 300 - at * 10);
    }
    assert_eq!(client.lookup_prefix(&keys[..1]).wait().expect("looked up"), 1);
    assert_eq!(client.lookup_prefix(&[]).wait().expect("nothing to look up"), 0);
    let many = vec![key(1); 16_385];
    let refused = client.lookup_prefix(&many).wait().expect_err("too many");
    assert!(matches!(*refused.error, Error::Invalid { .. }), "{refused}");
}

fn leases_keep_objects_until_they_are_dropped(rig: &Rig) {
    let client = rig.client();
    for number in 0..10 {
        client.put(key(number), b"leased").wait().expect("put");
    }
    let keys: Vec<_> = (0..20).map(key).collect();
    let lease = client.lease(&keys, Duration::from_secs(600)).wait().expect("leased");
    assert_eq!(lease.count(), 10);
    let (stats, serving) = client.stats().expect("counted");
    assert_eq!((stats.leased, serving.leases_now), (10, 1));
    drop(lease);
    rig.until("the lease has ended", |counts| counts.leases_now == 0);
    // A lease that no caller took ends, too, when its answer comes.
    drop(client.lease(&keys, Duration::from_secs(600)));
    client.commit().wait().expect("later than the lease");
    rig.until("the lease has ended", |counts| counts.leases_now == 0);
    let _held = client.lease(&keys, Duration::from_secs(600)).wait().expect("leased");
    let _also = client.lease(&[], Duration::from_secs(600)).wait().expect("of nothing");
}

fn layers_of_kv_blocks_are_read(rig: &Rig) {
    let client = rig.client();
    let shape = BlockShape {
        layers: 4,
        tensors_per_layer: 2,
        kv_heads: 1,
        head_dim: 64,
        dtype: Dtype::Bf16,
        tokens: 16,
    };
    let layout = Layout::new(shape, Order::LayerMajor { slots: 8 }).expect("a layout");
    let shared = client.define_layout(layout).expect("defined");
    assert_eq!(client.define_layout(layout).expect("known"), shared);
    let bytes = (layout.block_units() * 4096) as usize;
    let blocks: Vec<Vec<u8>> = (0..6).map(|number| block(number, bytes)).collect();
    let with = PutWith { layout: Some(shared), ..PutWith::default() };
    let items = (0..).zip(&blocks).map(|(number, block)| (key(number), block));
    for put in client.put_many(items, &with) {
        assert!(put.wait().expect("put").is_stored());
    }
    let run = (layout.run_units() * 4096) as usize;
    let pages = slots(client.allocate(6 * run).expect("memory"), run);
    let gets = (0..).zip(pages).map(|(number, page)| (key(number), Part::Layer(2), page));
    for (number, read) in client.get_many_into(gets).into_iter().enumerate() {
        let read = read.wait().expect("got");
        assert_eq!(read.bytes, Some(run as u64));
        assert!(
            read.memory.as_ref().expect("it comes back").to_vec()
                == blocks[number][2 * run..3 * run],
            "block {number}"
        );
    }
}

/// Returns a block whose padding is zero, as the store leaves it.
fn block(number: u64, bytes: usize) -> Vec<u8> {
    let mut block = data(number, 0, bytes);
    block.chunks_mut(4096).for_each(|unit| unit[2048..].fill(0));
    block
}

fn parts_that_cannot_be_are_refused_with_the_memory(rig: &Rig) {
    let client = rig.client();
    client.put(key(1), &data(1, 0, 10_000)).wait().expect("put");
    let mut memory = client.allocate(16 << 10).expect("memory");
    let rest = memory.split_off(8192);
    let refused = client.get_into(key(1), Part::All, memory).wait().expect_err("too short");
    assert_eq!(refused.failure(), Some(&Failure::Memory { needs: 12_288, has: 8192 }));
    let mut memory = refused.memory.expect("what was lent");
    assert_eq!(memory.len(), 8192);
    memory.join(rest).expect("behind it");
    let refused = client.get_into(key(1), Part::Layer(0), memory).wait().expect_err("no block");
    let no_layers = "a plain object has no layers: ask for bytes of it";
    assert_eq!(refused.failure(), Some(&Failure::Part(no_layers.into())));
    let memory = refused.memory.expect("what was lent");
    let read = client.get_into(key(1), Part::All, memory).wait().expect("got");
    assert_eq!(read.bytes, Some(10_000));
    assert!(read.memory.as_ref().expect("it comes back").to_vec()[..10_000] == data(1, 0, 10_000));
    let refused = client.put(key(2), Data::Span(read.memory.expect("it comes back"), 1 << 20));
    let refused = refused.wait().expect_err("more bytes than memory");
    assert!(is_refused(&refused.error, RefusalKind::Malformed), "{refused}");
}

/// What the store copies of them it reads as the client writes it, at any time.
fn spans_that_begin_anywhere_are_written_and_read(rig: &Rig) {
    let client = rig.client();
    let mut pool = client.allocate(1 << 20).expect("memory");
    let mut odd = pool.split_off(100);
    let rest = odd.split_off(300_000);
    odd.write(0, &data(1, 0, 300_000));
    let put = client.put(key(1), odd).wait().expect("put");
    let mut odd = put.memory.expect("what was lent");
    odd.bytes_mut().zero();
    let read = client.get_into(key(1), Part::All, odd).wait().expect("got");
    assert!(read.memory.as_ref().expect("it comes back").to_vec() == data(1, 0, 300_000));
    let beside = [pool.to_vec(), rest.to_vec()].concat();
    assert!(beside.iter().all(|byte| *byte == 0), "its neighbours stay");
    assert!(rig.store.get(key(1)).wait().expect("got").expect("a hit")[..] == data(1, 0, 300_000));
    assert_eq!(rig.store.stats().wait().expect("counted").misses_corrupt, 0);
}

/// The tier's copy is of whole units, and the span is not.
#[test]
fn spans_of_any_length_are_read_into_while_the_tier_takes_a_copy() {
    let rig = Rig::tiered();
    let client = rig.client();
    client.put(key(1), &data(1, 0, 5000)).wait().expect("put");
    let mut span = client.allocate(8192).expect("memory");
    drop(span.split_off(5000));
    for _ in 0..20 {
        let read = client.get_into(key(1), Part::All, span).wait().expect("got");
        assert!(read.memory.as_ref().expect("it comes back").to_vec() == data(1, 0, 5000));
        span = read.memory.expect("it comes back");
        span.bytes_mut().zero();
    }
    assert!(rig.store.stats().wait().expect("counted").tier_hits > 0, "the tier has it");
}

#[test]
fn objects_of_the_tier_are_read_into_spans() {
    let rig = Rig::tiered();
    let client = rig.client();
    client.put(key(1), &data(1, 0, 70_000)).wait().expect("put");
    let mut span = client.allocate(128 << 10).expect("memory");
    for _ in 0..20 {
        span.bytes_mut().zero();
        let read = client.get_into(key(1), Part::All, span).wait().expect("got");
        assert!(
            read.memory.as_ref().expect("it comes back").to_vec()[..70_000] == data(1, 0, 70_000)
        );
        span = read.memory.expect("it comes back");
    }
    assert!(rig.store.stats().wait().expect("counted").tier_hits > 0, "the tier has it");
}

#[test]
fn a_client_shares_as_much_as_the_server_lets_it_and_may_take_it_back() {
    let rig = Rig::soft_with(Options { client_bytes_max: 1 << 20, ..Options::default() });
    let client = rig.client();
    let kept = client.allocate(512 << 10).expect("memory");
    let refused = client.allocate(513 << 10).expect_err("too much");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("--memory"), "{refused}");
    let refused = client.allocate(1 << 50).expect_err("more than there are addresses for");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    let again = client.allocate(512 << 10).expect("memory");
    drop(kept);
    let kept = client.allocate(512 << 10).expect("the room of what was dropped");
    drop((again, kept));
    client.stats().expect("the server goes on");
}

#[test]
fn clients_beyond_the_limit_are_turned_away_and_a_path_without_a_server_is_named() {
    let mut rig = Rig::soft_with(Options { clients_max: 1, ..Options::default() });
    let client = rig.client();
    let other = adit_kvshare::Client::connect(&rig.socket(), &ClientOptions::default());
    let refused = other.expect_err("there is one");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("too many clients: the server takes 1"), "{refused}");
    rig.until("it was counted", |counts| counts.clients_turned_away == 1);
    assert_eq!((rig.counts().clients, rig.counts().clients_expelled), (1, 0));
    drop(client);
    rig.until("it is gone", |counts| counts.clients_now == 0);
    drop(rig.client());
    rig.end();
    let socket = rig.socket();
    let none = adit_kvshare::Client::connect(&socket, &ClientOptions::default());
    let none = none.expect_err("no server").to_string();
    assert!(none.contains("kv.sock"), "{none}");
    let odd = ClientOptions { depth: 3, ..ClientOptions::default() };
    let odd = adit_kvshare::Client::connect(&socket, &odd).expect_err("no power of two");
    assert!(odd.to_string().contains("power of two"), "{odd}");
}
