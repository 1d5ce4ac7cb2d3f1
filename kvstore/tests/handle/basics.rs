//! Each call of the handle, with the data read back.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Failure, Outcome, Part};
use adit_kvstore::store::{ObjectInfo, Payload, PutWith};
use adit_kvstore::{Durability, Key, OpenOptions, Store};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    what_is_put_comes_back_whole_and_in_ranges,
    lent_memory_comes_back_with_each_answer,
    batches_answer_each_key_and_miss_what_is_not_there,
    an_object_that_is_filled_in_pieces_appears_when_it_is_committed,
    a_prefix_ends_at_the_first_miss_whatever_shard_has_it,
    a_lease_counts_the_prefix_and_ends_when_it_is_dropped,
    a_scan_sees_every_object_once,
    what_was_committed_is_there_after_a_close_and_an_open,
    a_put_that_was_dropped_never_overtakes_a_later_one,
    the_put_that_each_thread_made_last_wins,
    futures_of_any_runtime_are_woken,
    objects_expire,
    a_volatile_store_is_empty_when_it_is_opened,
    tenants_and_blocks_are_told_alike_by_all_shards,
    what_is_put_after_a_format_stays_whatever_store_was_there_before,
    the_store_counts_what_it_does,
    a_local_store_does_the_same_on_this_thread,
);

fn put(store: &Store, number: u64, len: usize) {
    let put = store.put(key(number), data(number, len)).wait().expect("put");
    assert!(put.is_stored() && matches!(put.memory, AnyBuffer::None));
}

fn is_there(store: &Store, number: u64, len: usize) -> bool {
    let value = store.get(key(number)).wait().expect("get");
    value.is_some_and(|value| value[..] == data(number, len))
}

fn what_is_put_comes_back_whole_and_in_ranges(rig: &Rig) {
    let store = rig.format(2).open();
    for (number, len) in [(1, 1), (2, 4096), (3, 5000), (4, 300_000), (5, 3 << 20)] {
        put(&store, number, len);
        assert!(is_there(&store, number, len), "{len} bytes");
        let (object, len64) = (data(number, len), len as u64);
        for range in [0..1, len64 / 2..len64, len64 - 1..len64 + 9, 130_000..140_000] {
            let got = store.get_range(key(number), range.clone()).wait();
            let (start, end) = (range.start as usize, range.end.min(len64) as usize);
            match got {
                Ok(value) => {
                    let value = value.expect("it is there");
                    assert_eq!(value[..], object[start..end], "{range:?} of {len}");
                    assert_eq!(value.object_bytes(), len64);
                }
                Err(unfinished) => {
                    let is_part = matches!(unfinished.failure(), Some(Failure::Part(_)));
                    assert!(is_part && start >= len, "{range:?} of {len}: {unfinished}");
                }
            }
        }
    }
    assert!(store.get(key(99)).wait().expect("a miss").is_none());
    put(&store, 1, 7777);
    assert!(is_there(&store, 1, 7777), "replaced");
    assert!(store.delete(key(1)).wait().expect("deleted"));
    assert!(!store.delete(key(1)).wait().expect("gone already"));
    assert!(!store.exists(key(1)).wait().expect("known"));
    let info = store.info(key(3)).wait().expect("known").expect("there");
    assert_eq!((info.bytes, info.key), (5000, key(3)));
    put(&store, 1, 0);
    assert!(is_there(&store, 1, 0));
}

fn a_put_that_was_dropped_never_overtakes_a_later_one(rig: &Rig) {
    let store = rig.format(1).open();
    let long = data(1, 3 << 20);
    for round in 0..20 {
        // Long enough to be written after the second.
        drop(store.put(key(1), &long));
        put(&store, 1, 4096 + round);
        // Later puts are written behind them.
        store.put(key(2), &long).wait().expect("put");
        assert!(is_there(&store, 1, 4096 + round), "round {round}");
        drop(store.put(key(1), &long));
        store.delete(key(1)).wait().expect("deleted");
        store.put(key(2), &long).wait().expect("put");
        assert!(!store.exists(key(1)).wait().expect("known"), "round {round}");
    }
}

fn the_put_that_each_thread_made_last_wins(rig: &Rig) {
    let store = rig.format(2).open();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..30 {
                    // A long one first, so that the last is written before it.
                    let puts: Vec<_> = [1 << 20, 200_000, 5000 + round]
                        .map(|len| store.put(key(thread), data(thread, len)))
                        .into();
                    let answers = puts.into_iter().map(|put| put.wait().expect("put").is_stored());
                    assert_eq!(answers.collect::<Vec<_>>(), [true; 3]);
                    assert!(is_there(store, thread, 5000 + round), "round {round} of {thread}");
                }
            });
        }
    });
}

fn lent_memory_comes_back_with_each_answer(rig: &Rig) {
    let store = rig.format(1).open();
    let mut buffer = store.allocate(8192).expect("memory");
    let address = buffer.iova();
    buffer[..5000].copy_from_slice(&data(1, 5000));
    let lent = Payload::lent(AnyBuffer::One(buffer), 5000);
    let put = store.put(key(1), lent).wait().expect("put");
    let AnyBuffer::One(mut buffer) = put.memory else { panic!("it was lent") };
    assert_eq!(buffer.iova(), address);
    buffer.fill(0);
    let into = AnyBuffer::One(buffer);
    let read = store.get_into(key(1), Part::All, into).wait().expect("got");
    let AnyBuffer::One(buffer) = read.memory else { panic!("it was lent") };
    assert_eq!((read.bytes, &buffer[..5000]), (Some(5000), &data(1, 5000)[..]));
    let miss = store.get_into(key(2), Part::All, AnyBuffer::One(buffer)).wait().expect("a miss");
    assert!(miss.bytes.is_none() && matches!(miss.memory, AnyBuffer::One(_)));
    // Too short: the failure returns the memory.
    let mut short = store.allocate(4096).expect("memory");
    drop(short.split_off(4096));
    let into = AnyBuffer::One(short);
    let refused = store.get_into(key(1), Part::All, into).wait().expect_err("too short");
    assert!(matches!(refused.failure(), Some(Failure::Memory { needs: 8192, has: 4096 })));
    assert!(matches!(refused.memory, AnyBuffer::One(_)));
    assert_eq!(store.stats().wait().expect("counted").copied_bytes, 0);
}

fn batches_answer_each_key_and_miss_what_is_not_there(rig: &Rig) {
    let store = rig.format(3).open();
    let items = (0..64).map(|number| (key(number), data(number, 20_000)));
    let puts = store.put_many(items, &PutWith::default()).wait();
    assert!(puts.into_iter().all(|put| put.expect("put").is_stored()));
    let values = store.get_many((0..80).map(key)).wait();
    for (number, value) in (0..80).zip(values) {
        match value.expect("answered") {
            Some(value) => assert_eq!(value[..], data(number, 20_000)),
            None => assert!(number >= 64, "object {number} is missing"),
        }
    }
    // One by one, more than the pool holds at a time.
    let items = (100..200).map(|number| (key(number), data(number, 200_000)));
    for put in store.put_many(items, &PutWith::default()) {
        assert!(put.wait().expect("put").is_stored());
    }
    let mut batch = store.get_many((100..200).map(key));
    let mut seen = 0;
    while let Some((index, value)) = batch.next() {
        let value = value.expect("got").expect("there");
        assert_eq!(value[..], data(100 + index as u64, 200_000));
        seen += 1;
    }
    assert_eq!(seen, 100);
}

fn an_object_that_is_filled_in_pieces_appears_when_it_is_committed(rig: &Rig) {
    let store = rig.format(2).open();
    let object = data(7, 500_000);
    let with = PutWith::default();
    let writer = store.reserve(key(7), object.len() as u64, &with).wait().expect("room");
    let piece = writer.piece_bytes() as usize;
    let pieces: Vec<&[u8]> = object.chunks(piece).collect();
    for (index, part) in pieces.iter().enumerate().rev() {
        let filled = writer.fill((index * piece) as u64, *part).wait();
        assert!(matches!(filled.expect("filled"), AnyBuffer::None));
    }
    assert!(!store.exists(key(7)).wait().expect("known"), "not yet");
    assert_eq!(writer.commit().wait().expect("sealed"), Outcome::Stored);
    assert!(is_there(&store, 7, object.len()));
    let unfilled = store.reserve(key(8), 300_000, &with).wait().expect("room");
    let missing = unfilled.commit().wait().expect_err("nothing was filled");
    assert!(matches!(missing.failure(), Some(Failure::Unfilled { missing_bytes: 300_000 })));
    // Dropping a writer frees its room.
    let used = || store.stats().wait().expect("counted").used_units;
    let before = used();
    drop(store.reserve(key(9), 1 << 20, &with).wait().expect("room"));
    assert_eq!(used(), before);
}

fn a_prefix_ends_at_the_first_miss_whatever_shard_has_it(rig: &Rig) {
    let store = rig.format(4).open();
    (0..20).filter(|number| *number != 13).for_each(|number| put(&store, number, 100));
    let keys: Vec<Key> = (0..20).map(key).collect();
    assert_eq!(store.lookup_prefix(&keys).wait().expect("known"), 13);
    assert_eq!(store.lookup_prefix(&keys[..5]).wait().expect("known"), 5);
    assert_eq!(store.lookup_prefix(&keys[13..]).wait().expect("known"), 0);
    assert_eq!(store.lookup_prefix(&[]).wait().expect("known"), 0);
}

fn a_lease_counts_the_prefix_and_ends_when_it_is_dropped(rig: &Rig) {
    let store = rig.format(2).open();
    (0..6).for_each(|number| put(&store, number, 100));
    let keys: Vec<Key> = (0..9).map(key).collect();
    let leased = || store.stats().wait().expect("counted").leased;
    let lease = store.lease(&keys, Duration::from_secs(60)).wait().expect("leased");
    assert_eq!((lease.count(), leased()), (6, 6));
    drop(lease);
    assert_eq!(leased(), 0);
}

fn a_scan_sees_every_object_once(rig: &Rig) {
    let store = rig.format(3).open();
    (0..50).for_each(|number| put(&store, number, 100));
    let (mut seen, mut from) = (Vec::new(), Some(0));
    while let Some(cursor) = from {
        let (found, next) = store.scan(cursor, 7).wait().expect("scanned");
        assert!(found.len() <= 7);
        seen.extend(found.into_iter().map(|info| info.key));
        from = next;
    }
    seen.sort();
    assert_eq!(seen, (0..50).map(key).collect::<Vec<_>>());
    assert!(store.scan(9 << 32, 7).wait().expect("behind the end").0.is_empty());
}

fn what_was_committed_is_there_after_a_close_and_an_open(rig: &Rig) {
    let store = rig.format(2).open();
    (0..40).for_each(|number| put(&store, number, 10_000));
    store.commit().wait().expect("committed");
    (40..50).for_each(|number| put(&store, number, 10_000));
    let stats = store.close().wait().expect("closed");
    assert_eq!((stats.puts, stats.objects), (50, 50));
    let store = rig.open();
    assert!((0..50).all(|number| is_there(&store, number, 10_000)));
    let found: u64 = store.recoveries().iter().map(|recovery| recovery.objects).sum();
    assert_eq!(found, 50);
}

/// A runtime for one task, which polls when woken.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn futures_of_any_runtime_are_woken(rig: &Rig) {
    let store = rig.format(1).open();
    block_on(async {
        for number in 0..20 {
            let mut buffer = store.buffer(9000).await.expect("memory");
            buffer.copy_from_slice(&data(number, 9000));
            let put = store.put(key(number), buffer).await.expect("put");
            assert!(put.is_stored());
        }
        for (number, value) in (0..).zip(store.get_many((0..20).map(key)).await) {
            assert_eq!(value.expect("got").expect("there")[..], data(number, 9000));
        }
        store.commit().await.expect("committed");
        let stats = store.stats().await.expect("counted");
        assert_eq!((stats.hits, stats.copied_bytes), (20, 0));
    });
}

fn objects_expire(rig: &Rig) {
    let store = rig.format(1).open();
    let ttl = Some(Duration::from_millis(1));
    let with = PutWith { ttl, ..PutWith::default() };
    store.put_with(key(50), data(50, 100), &with).wait().expect("put");
    let info = store.info(key(50)).wait().expect("known");
    assert!(info.is_none_or(|info| info.ttl_s.is_some_and(|left| left <= 1)));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while store.exists(key(50)).wait().expect("known") {
        assert!(std::time::Instant::now() < deadline, "it never expires");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tenants_and_blocks_are_told_alike_by_all_shards(rig: &Rig) {
    let (dtype, tensors_per_layer) = (Dtype::Bf16, 2);
    let shape =
        BlockShape { layers: 2, tensors_per_layer, kv_heads: 2, head_dim: 64, dtype, tokens: 16 };
    let layout = Layout::new(shape, Order::BlockMajor).expect("a layout");
    let told = |infos: &[ObjectInfo]| {
        let one = |info: &ObjectInfo| (info.key.clone(), info.tenant.clone(), info.layout);
        let mut told: Vec<_> = infos.iter().map(one).collect();
        told.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        told
    };
    let store = rig.format(4).open();
    let names = ["red", "green", "blue"];
    let mut expected = Vec::new();
    for number in 0..40u64 {
        let tenant = names[number as usize % 3];
        let is_block = number.is_multiple_of(2);
        let defined = is_block.then(|| store.layout(layout).wait().expect("defined"));
        let whose = store.tenant(tenant).wait().expect("a tenant");
        let bytes = if is_block { 4 * 4096 } else { 5000 };
        let with = PutWith { tenant: Some(whose), layout: defined, ..PutWith::default() };
        let put = store.put_with(key(number), data(number, bytes), &with).wait().expect("put");
        assert!(put.is_stored());
        expected.push((key(number), Box::from(tenant), is_block.then_some(layout)));
    }
    put(&store, 40, 100);
    expected.push((key(40), Box::from(""), None));
    expected.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let scan = |store: &Store| {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(cursor) = from {
            let (page, next) = store.scan(cursor, 7).wait().expect("scanned");
            all.extend(page);
            from = next;
        }
        all
    };
    assert!(told(&scan(&store)) == expected, "while it is open");
    let info = store.info(key(3)).wait().expect("known").expect("there");
    assert_eq!((&*info.tenant, info.layout), ("red", None));
    store.close().wait().expect("closed");
    // No tenant or layout has been named since the store was opened.
    let local = Store::open_local(&rig.options()).expect("a store");
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(cursor) = from {
        let (page, next) = local.scan(local.now(), &[], cursor, 1000);
        all.extend(page);
        from = next;
    }
    assert!(told(&all) == expected, "after it was opened again");
}

/// Blocks of the older store's journal lie behind those of the newer one. Recovery must not take them for blocks lost
/// from the newer store.
fn what_is_put_after_a_format_stays_whatever_store_was_there_before(rig: &Rig) {
    let session = |first: u64| {
        let options = OpenOptions { durability: Durability::Durable, ..rig.options() };
        let store = Store::open(&options).expect("a store");
        for number in first..first + 5 {
            put(&store, number, 5000);
        }
        store.close().wait().expect("closed");
    };
    rig.format(1);
    (0..3).for_each(|number| session(number * 5));
    rig.format(1);
    session(100);
    let store = rig.open();
    assert!((100..105).all(|number| is_there(&store, number, 5000)), "all that was put");
    assert!(store.recoveries().iter().all(|found| found.objects == 5), "and nothing else");
}

fn a_volatile_store_is_empty_when_it_is_opened(rig: &Rig) {
    rig.format(1);
    let open = || {
        let options =
            adit_kvstore::OpenOptions { durability: Durability::Volatile, ..rig.options() };
        Store::open(&options).expect("a store")
    };
    let store = open();
    put(&store, 1, 5000);
    assert!(is_there(&store, 1, 5000));
    store.commit().wait().expect("nothing to commit");
    store.close().wait().expect("closed");
    assert!(!is_there(&open(), 1, 5000));
}

fn the_store_counts_what_it_does(rig: &Rig) {
    let store = rig.format(2).open();
    (0..10).for_each(|number| put(&store, number, 6000));
    assert!((0..10).all(|number| is_there(&store, number, 6000)));
    assert!(store.get(key(77)).wait().expect("a miss").is_none());
    let stats = store.stats().wait().expect("counted");
    let counted = (stats.gets, stats.hits, stats.misses, stats.puts, stats.objects);
    assert_eq!(counted, (11, 10, 1, 10, 10));
    assert_eq!((stats.bytes_written, stats.bytes_read), (60_000, 60_000));
    assert_eq!(stats.copied_bytes, 60_000);
    let text = store.prometheus().wait().expect("text");
    assert!(text.contains("\nadit_kv_get_hits_total 10\n"), "{text}");
}

fn a_local_store_does_the_same_on_this_thread(rig: &Rig) {
    use adit_driver::Time;
    use adit_kvstore::shard::{Action, GetItem, PutItem, PutOptions, Request};
    let mut local = Store::open_local(&rig.format(3).options()).expect("a store");
    let mut answers = std::collections::HashMap::new();
    let puts: Vec<Action> = (0..30u64)
        .map(|number| {
            let mut buffer = local.allocate(8192).expect("memory");
            buffer[..5000].copy_from_slice(&data(number, 5000));
            let (data, options) = (AnyBuffer::One(buffer), PutOptions::default());
            Action::Put(PutItem { key: key(number), bytes: 5000, data, options })
        })
        .collect();
    let request = |(reply, action)| Request { reply, deadline: Time::NEVER, action };
    local.submit_many(local.now(), (0..).zip(puts).map(request));
    while answers.len() < 30 {
        let now = local.now();
        local.poll(now, &mut |done| {
            assert_eq!(done.result, Ok(Outcome::Stored));
            assert!(answers.insert(done.reply, done.memory).is_none(), "answered once");
        });
    }
    let gets: Vec<Action> = (0..30u64)
        .map(|number| {
            let into = answers.remove(&(29 - number)).expect("its memory");
            Action::Get(GetItem { key: key(number), part: Part::All, into, version: None })
        })
        .collect();
    local.submit_many(local.now(), (0..).zip(gets).map(request));
    local.submit(local.now(), request((99, Action::Commit)));
    let (mut got, mut commits) = (0, 0);
    while got < 30 || commits == 0 {
        let now = local.now();
        local.poll(now, &mut |done| match done.reply {
            99 => commits += 1,
            _ => {
                let AnyBuffer::One(buffer) = done.memory else { panic!("it was lent") };
                assert_eq!(buffer[..5000], data(done.reply, 5000));
                got += 1;
            }
        });
    }
    let keys: Vec<Key> = (0..40).map(key).collect();
    let long = Duration::from_secs(600);
    assert!(!local.wait(long), "nothing is in flight");
    let get = GetItem {
        key: key(7),
        part: Part::All,
        into: local.allocate(8192).expect("memory").into(),
        version: None,
    };
    local.submit(local.now(), request((7, Action::Get(get))));
    let (mut got, mut waited) = (false, false);
    while !got {
        let turn = local.poll(local.now(), &mut |done| got = done.result.is_ok());
        // Its end wakes this thread, or it has to be polled for.
        waited |= turn.moved == 0 && local.wait(long);
    }
    assert!(!waited || matches!(rig, Rig::File(_)), "only the kernel's paths wait");
    let now = local.now();
    assert_eq!(local.lookup_prefix(now, &keys), 30);
    let (lease, count) = local.lease(now, &keys, Time::NEVER).expect("leased");
    assert_eq!((count, local.stats().leased), (30, 30));
    local.release(lease).expect("this store's");
    assert_eq!((local.stats().leased, commits), (0, 1));
    local.close(&mut |_| {}).expect("closed");
    let store = rig.open();
    assert!((0..30).all(|number| is_there(&store, number, 5000)));
}
