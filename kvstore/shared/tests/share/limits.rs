//! What one client may use up: its share, and nothing that others need.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use adit_kvshare::client::PutWith;
use adit_kvshare::wire::{Ask, Code};
use adit_kvshare::{
    Client, ClientOptions, Error, Event, KvStore, Options, PendingAnswer, RefusalKind,
};
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::Condition;
use adit_kvstore::{Key, Quota, Version, WhenReached};

use crate::raw::Raw;
use crate::rig::{PATIENCE, Rig, data, is_refused, key};

fn tenant(rig: &Rig, name: &str) -> Result<Client, Error> {
    let tenant = Some(name.to_owned());
    let options = ClientOptions { tenant, pool_bytes: 1 << 20, ..ClientOptions::default() };
    Client::connect(&rig.socket(), &options)
}

#[test]
fn connections_that_say_nothing_take_no_place_of_a_client() {
    let rig = Rig::soft_with(Options { clients_max: 2, ..Options::default() });
    let silent: Vec<UnixStream> = (0..80)
        .map(|_| {
            let stream = UnixStream::connect(rig.socket()).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream
        })
        .collect();
    let clients = [rig.client(), rig.client()];
    clients[0].put(key(1), &data(1, 0, 9000)).wait().expect("put");
    let value = clients[1].get(key(1)).wait().expect("got").expect("a hit");
    assert!(value.to_vec() == data(1, 0, 9000));
    drop(value);
    // The oldest made room, without a word for each.
    assert_eq!((&silent[0]).read(&mut [0]).expect("the end"), 0);
    rig.until("they were counted", |counts| counts.clients_turned_away >= 64);
    let counts = rig.counts();
    assert_eq!((counts.clients_now, counts.clients, counts.clients_expelled), (2, 2, 0));
    assert_eq!(rig.reasons().len(), 0);
    drop((silent, clients));
    rig.until_nothing_is_left();
}

#[test]
fn a_client_leases_its_share_and_no_more() {
    let rig = Rig::soft_with(Options { client_hold_percent: 1, ..Options::default() });
    let clients = [(); 3].map(|()| rig.client());
    let stats = rig.store.stats().wait().expect("counted");
    let share = stats.capacity_units * 4096 / 100;
    // Three of these are more than a share.
    let bytes = (share / 5 * 2) as usize;
    let keys: Vec<Key> = (0..3).map(key).collect();
    for number in 0..3 {
        clients[0].put(key(number), &data(number, 0, bytes)).wait().expect("put");
    }
    let lease = |client: &Client, keys: &[Key]| client.lease(keys, PATIENCE).wait();
    let refused = lease(&clients[0], &keys).expect_err("more than its share");
    assert!(is_refused(&refused.error, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("--hold-share"), "{refused}");
    let two = lease(&clients[0], &keys[..2]).expect("its share");
    lease(&clients[0], &keys[2..]).expect_err("it has its share");
    let other = lease(&clients[1], &keys[..2]).expect("another's share");
    let refused = lease(&clients[2], &keys[..2]).expect_err("two shares are taken");
    assert!(refused.to_string().contains("all clients together"), "{refused}");
    drop(two);
    // It ends with a request of its own.
    clients[0].commit().wait().expect("later than the end");
    let _third = lease(&clients[2], &keys[..2]).expect("free again");
    drop(other);
    // What ended by itself is no longer counted, though the client still names it.
    let brief: Vec<_> = (0..2).map(|_| lease_briefly(&clients[1], &keys[..2])).collect();
    assert_eq!(brief.len(), 2);
    drop((clients, brief, _third));
    rig.until_nothing_is_left();
}

#[test]
fn a_client_writes_its_share_in_parts_and_no_more() {
    let rig = Rig::soft_with(Options { client_hold_percent: 1, ..Options::default() });
    let share = rig.store.stats().wait().expect("counted").capacity_units * 4096 / 100;
    let [mut one, mut other, mut third] = [(); 3].map(|()| Raw::greeted(&rig.socket()));
    let reserve = |client: &mut Raw, number: u64, bytes: u64| {
        let (key, condition) = (key(number), Condition::Always);
        client.ask(&Ask::Reserve { key, bytes, layout: 0, ttl_s: 0, condition }, number);
        let done = client.take();
        (Code::of(done.code), done.value, done.text())
    };
    let bytes = share / 5 * 2;
    let writers = [1, 2].map(|number| reserve(&mut one, number, bytes));
    assert!(writers.iter().all(|(code, ..)| *code == Code::Done), "{writers:?}");
    let (code, _, why) = reserve(&mut one, 3, bytes);
    assert!(code == Code::Limit && why.contains("this client"), "{why}");
    for number in [4, 5] {
        assert_eq!(reserve(&mut other, number, bytes).0, Code::Done, "another's share");
    }
    let (code, _, why) = reserve(&mut third, 6, share / 2);
    assert!(code == Code::Limit && why.contains("all clients together"), "{why}");
    // What is given up, or fails, or goes with its client, is free again.
    one.ask(&Ask::Abandon(writers[0].1), 7);
    assert_eq!(one.take().value, 1);
    assert_eq!(reserve(&mut third, 8, share / 2).0, Code::Done);
    assert_eq!(reserve(&mut third, 9, 1 << 39).0, Code::TooLarge);
    drop(other);
    rig.until("it is gone", |counts| counts.clients_now == 2);
    for number in 0..4 {
        let (key, condition) = (key(number), Condition::Version(Version(77)));
        one.ask(&Ask::Reserve { key, bytes, layout: 0, ttl_s: 0, condition }, number);
        assert_eq!(Code::of(one.take().code), Code::Conflict);
    }
    assert_eq!(reserve(&mut one, 10, bytes).0, Code::Done);
    drop((one, third));
    rig.until_nothing_is_left();
}

/// Leases for a millisecond, as soon as there is room, and waits until that is over.
fn lease_briefly(client: &Client, keys: &[Key]) -> adit_kvshare::client::Lease {
    let begin = std::time::Instant::now();
    loop {
        let leased = client.lease(keys, Duration::from_millis(1)).wait();
        std::thread::sleep(Duration::from_millis(2));
        match leased {
            Ok(lease) => return lease,
            Err(why) => assert!(begin.elapsed() < PATIENCE, "{why}"),
        }
    }
}

#[test]
fn a_client_that_is_dropped_as_it_connects_is_told_to_try_again() {
    let path = std::env::temp_dir().join(format!("adit-dropped-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("bound");
    let dropped = std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept().expect("a client")));
        Client::connect(&path, &ClientOptions::default())
    });
    std::fs::remove_file(&path).expect("it was there");
    let why = dropped.expect_err("no server answers").to_string();
    assert!(why.contains("too many connections") && why.contains("try again"), "{why}");
}

#[test]
fn a_lease_lasts_as_long_as_the_server_lets_it() {
    let lease_max = Duration::from_millis(1);
    let rig = Rig::soft_with(Options { lease_max, ..Options::default() });
    let client = rig.client();
    client.put(key(1), b"x").wait().expect("put");
    let _lease = client.lease(&[key(1)], Duration::from_secs(24 * 3600)).wait().expect("leased");
    let begin = std::time::Instant::now();
    while rig.store.stats().wait().expect("counted").leased > 0 {
        assert!(begin.elapsed() < PATIENCE, "it ends by itself");
    }
}

#[test]
fn clients_bring_in_so_many_tenants_and_the_operator_the_others() {
    let rig = Rig::soft_with(Options { tenants_max: 2, ..Options::default() });
    // Those without an object make no difference.
    for number in 0..4 {
        tenant(&rig, &format!("empty-{number}")).expect("it takes no place");
    }
    for name in ["a", "b"] {
        tenant(&rig, name).expect("room").put(Key::from(1u64), b"x").wait().expect("put");
        tenant(&rig, name).expect("room").put(key(name.len() as u64), b"x").wait().expect("put");
    }
    for (number, name) in (10..).zip(["a", "b"]) {
        tenant(&rig, name).expect("it is there").put(key(number), b"x").wait().expect("put");
    }
    let refused = tenant(&rig, "c").expect_err("there are two");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    for part in ["--tenants", "adit kv tenant TARGET c --quota SIZE"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let tells =
        |event: &Event| matches!(event, Event::ClientGone { why, .. } if why.contains("--tenants"));
    rig.until("the event says why", |_| rig.events.lock().expect("events").iter().any(tells));
    assert_eq!(rig.counts().clients_turned_away, 0, "there was a place for it");
    rig.client().put(key(12), b"x").wait().expect("the default tenant is always there");
    tenant(&rig, "empty-0").expect_err("it was named before, and has nothing");
    let operators = rig.store.tenant("c").wait().expect("made");
    let quota = Quota { bytes: 1 << 20, when_reached: WhenReached::Refuse };
    rig.store.set_quota(&operators, Some(quota)).wait().expect("the operator's");
    let client = tenant(&rig, "c").expect("it is there");
    // Objects that go make room.
    for number in [1, 10, 11] {
        assert!(client.delete(key(number)).wait().expect("deleted"));
    }
    tenant(&rig, "d").expect("'a' and 'b' have nothing any more");
}

/// Returns a layout of blocks without padding, of 16 tokens or a multiple.
fn layout(tokens: u32) -> Layout {
    let (layers, tensors_per_layer, kv_heads, head_dim) = (2, 2, 1, 128);
    let dtype = Dtype::Bf16;
    let shape = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
    Layout::new(shape, Order::BlockMajor).expect("a layout")
}

#[test]
fn a_client_uses_so_many_layouts() {
    let rig = Rig::soft_with(Options { client_layouts_max: 2, ..Options::default() });
    let client = rig.client();
    for tokens in [16, 32, 16] {
        client.define_layout(layout(tokens)).expect("room");
    }
    let refused = client.define_layout(layout(64)).expect_err("two are enough");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("--layouts"), "{refused}");
    rig.client().define_layout(layout(64)).expect("another client's");
}

#[test]
fn clients_that_come_in_turn_use_so_many_layouts_of_the_store() {
    let rig = Rig::soft_with(Options { all_layouts_max: 2, ..Options::default() });
    for tokens in [16, 32] {
        let client = rig.client();
        let defined = client.define_layout(layout(tokens)).expect("room");
        let with = PutWith { layout: Some(defined), ..PutWith::default() };
        let bytes = data(tokens.into(), 0, layout(tokens).block_bytes() as usize);
        client.put_with(key(tokens.into()), &bytes, &with).wait().expect("put");
    }
    let client = rig.client();
    client.define_layout(layout(32)).expect("it is in use");
    let refused = client.define_layout(layout(64)).expect_err("two have objects");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("--layouts-all"), "{refused}");
    assert!(client.delete(key(16)).wait().expect("deleted"));
    client.commit().wait().expect("durable");
    client.define_layout(layout(64)).expect("that made room");
}

#[test]
fn all_clients_together_share_so_much_memory() {
    let rig = Rig::soft_with(Options { all_bytes_max: 8 << 20, ..Options::default() });
    let [one, other] = [(); 2].map(|()| rig.client());
    let kept = one.allocate(4 << 20).expect("room");
    let refused = other.allocate(4 << 20).expect_err("with the rings it is more");
    assert!(is_refused(&refused, RefusalKind::Limit), "{refused}");
    assert!(refused.to_string().contains("--memory-all"), "{refused}");
    drop(kept);
    let begin = std::time::Instant::now();
    while let Err(why) = other.allocate(4 << 20) {
        assert!(begin.elapsed() < PATIENCE, "{why}");
    }
}
