//! Test bodies for every path.

use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_kvstore::internals::format;
use adit_kvstore::shard::{
    Action, Failure, FillItem, Outcome, Part, PutOptions, ReserveItem, ShardOptions, WriterId,
};
use adit_kvstore::{Durability, Error, Key};

use crate::rig::{Opened, Rig, check, fill, overwrite, overwrite_at};

/// Bytes of a piece of an object.
const PIECE: u64 = 128 << 10;

pub(crate) fn what_is_put_is_read_until_it_is_deleted(rig: &Rig) {
    let mut store = rig.open(Durability::Restart);
    for bytes in [1, 4095, 4096, 4097, 100_000, PIECE, 1_000_000] {
        let key = format!("object of {bytes}");
        assert!(!store.has(&key, bytes));
        assert_eq!(store.put(&key, bytes), Ok(Outcome::Stored));
        assert!(store.has(&key, bytes));
        let info = store.shard.info(store.now(), &Key::try_from(&*key).expect("a key"));
        assert_eq!(info.map(|info| info.bytes), Some(bytes));
        let delete = || Action::Delete(Key::try_from(&*key).expect("a key"));
        assert_eq!(store.one(delete()).0, Ok(Outcome::Deleted));
        assert_eq!(store.one(delete()).0, Ok(Outcome::Miss));
        assert!(!store.has(&key, bytes));
    }
}

pub(crate) fn parts_and_batches_are_answered_item_by_item(rig: &Rig) {
    let mut store = rig.open(Durability::Durable);
    let bytes = 3 * PIECE + 77;
    let put = |index: u32| Action::Put(store.put_item(&format!("{index}"), bytes));
    let puts: Vec<Action> = (0..5).map(put).collect();
    store.submit(puts);
    let mut items: Vec<u64> = store.answers(5).into_iter().map(|done| done.reply).collect();
    items.sort_unstable();
    assert_eq!(items, [0, 1, 2, 3, 4]);
    let ranges = [0..PIECE, PIECE..3 * PIECE, 2 * PIECE..bytes, 3 * PIECE..u64::MAX];
    let get = |(index, range): (usize, &std::ops::Range<u64>)| {
        let len = range.end.min(bytes) - range.start;
        Action::Get(store.get_item(&format!("{index}"), len, Part::Bytes(range.clone())))
    };
    let gets: Vec<Action> = ranges.iter().enumerate().map(get).collect();
    store.submit(gets);
    for done in store.answers(4) {
        let range = &ranges[done.reply as usize];
        let len = range.end.min(bytes) - range.start;
        assert_eq!(done.result, Ok(Outcome::Hit { bytes: len }));
        check(&done.memory, &format!("{}", done.reply), range.start + len, range.start as usize);
    }
    let askew = store.get_item("1", PIECE, Part::Bytes(5..PIECE));
    assert!(matches!(store.one(Action::Get(askew)).0, Err(Failure::Part(_))));
    let short = store.get_item("1", 4096, Part::All);
    assert!(matches!(store.one(Action::Get(short)).0, Err(Failure::Memory { .. })));
}

fn reserve(store: &mut Opened<'_>, key: &str, bytes: u64) -> WriterId {
    let key = Key::try_from(key).expect("a key");
    let item = ReserveItem { key, bytes, options: PutOptions::default() };
    match store.one(Action::Reserve(item)).0 {
        Ok(Outcome::Reserved { writer, .. }) => writer,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn what_is_written_in_parts_is_an_object_once_it_is_sealed(rig: &Rig) {
    let mut store = rig.open(Durability::Restart);
    let bytes = 2 * PIECE + 5000;
    let writer = reserve(&mut store, "parts", bytes);
    let mut whole = vec![0; bytes as usize];
    fill(&mut whole, "parts");
    for start in [2 * PIECE, 0, PIECE] {
        let early = store.one(Action::Seal(writer)).0;
        assert!(matches!(early, Err(Failure::Unfilled { .. })), "{early:?}");
        assert!(!store.has("parts", bytes), "it is not visible");
        let end = bytes.min(start + PIECE);
        let mut data = rig.memory((end - start) as usize);
        data[..(end - start) as usize].copy_from_slice(&whole[start as usize..end as usize]);
        let fill = FillItem { writer, part: Part::Bytes(start..end), data: AnyBuffer::One(data) };
        assert_eq!(store.one(Action::Fill(fill)).0, Ok(Outcome::Filled));
    }
    assert_eq!(store.one(Action::Seal(writer)).0, Ok(Outcome::Stored));
    assert!(store.has("parts", bytes));
    assert_eq!(store.one(Action::Seal(writer)).0, Err(Failure::Writer));
    let given_up = reserve(&mut store, "nothing", bytes);
    store.shard.abandon(given_up);
    assert!(!store.has("nothing", bytes));
}

pub(crate) fn a_full_store_evicts_and_leased_objects_stay(rig: &Rig) {
    let capacity_bytes = Some(4 << 20);
    let options = ShardOptions { capacity_bytes, ..ShardOptions::default() };
    let mut store = rig.try_open(options).expect("a store");
    assert_eq!(store.put("leased", 100_000), Ok(Outcome::Stored));
    let key = Key::try_from("leased").expect("a key");
    let (now, until) = (store.now(), store.now() + Duration::from_secs(600));
    let (lease, count) =
        store.shard.lease(now, std::slice::from_ref(&key), until).expect("a lease");
    assert_eq!(count, 1);
    for index in 0..100 {
        assert_eq!(store.put(&format!("{index}"), 200_000), Ok(Outcome::Stored));
    }
    assert!(store.shard.stats().evictions.objects() > 70);
    assert!(store.has("leased", 100_000) && store.has("99", 200_000) && !store.has("0", 200_000));
    store.shard.release(lease);
    for index in 100..200 {
        assert_eq!(store.put(&format!("{index}"), 200_000), Ok(Outcome::Stored));
    }
    assert!(!store.has("leased", 100_000));
}

pub(crate) fn what_was_committed_is_there_after_the_store_is_opened_again(rig: &Rig) {
    let mut store = rig.open(Durability::Restart);
    for index in 0..50 {
        assert_eq!(store.put(&format!("{index}"), 1000 * (index + 1)), Ok(Outcome::Stored));
    }
    store.commit();
    drop(store);
    let mut store = rig.open(Durability::Restart);
    for index in 0..50 {
        assert!(store.has(&format!("{index}"), 1000 * (index + 1)), "{index}");
    }
}

pub(crate) fn what_is_durable_is_there_without_a_commit(rig: &Rig) {
    for round in 0..3 {
        let mut store = rig.open(Durability::Durable);
        for index in 0..20 {
            let key = format!("{}", index + round * 10);
            assert_eq!(store.put(&key, 5000), Ok(Outcome::Stored));
        }
        drop(store);
    }
    let mut store = rig.open(Durability::Durable);
    for index in 0..40 {
        assert!(store.has(&format!("{index}"), 5000), "{index}");
    }
}

pub(crate) fn a_volatile_store_is_empty_when_it_is_opened_again(rig: &Rig) {
    for durability in [Durability::Restart, Durability::Volatile, Durability::Restart] {
        let mut store = rig.open(durability);
        assert!(!store.has("object", 5000));
        assert_eq!(store.put("object", 5000), Ok(Outcome::Stored));
        assert!(store.has("object", 5000));
        if durability == Durability::Restart {
            store.commit();
        }
    }
    assert!(rig.open(Durability::Restart).has("object", 5000));
}

pub(crate) fn garbage_over_an_object_is_a_miss_that_is_counted(rig: &Rig) {
    let mut store = rig.open(Durability::Durable);
    assert_eq!(store.put("victim", 9000), Ok(Outcome::Stored));
    assert_eq!(store.put("other", 9000), Ok(Outcome::Stored));
    let mut pattern = vec![0; 4096];
    fill(&mut pattern, "victim");
    let found = rig.devices.iter().any(|device| overwrite(device, &pattern, &[0x5a; 4096]));
    assert!(found, "its bytes lie somewhere");
    assert!(!store.has("victim", 9000) && store.has("other", 9000));
    let stats = store.shard.stats();
    assert_eq!((stats.misses_corrupt, stats.hits), (1, 1));
    assert_eq!(store.put("victim", 9000), Ok(Outcome::Stored));
    assert!(store.has("victim", 9000));
}

pub(crate) fn an_object_comes_back_if_a_cut_took_the_data_of_what_replaced_it(rig: &Rig) {
    let mut store = rig.open(Durability::Restart);
    assert_eq!(store.put("object", 5000), Ok(Outcome::Stored));
    store.commit();
    let before = store.shard.stats().journal_bytes;
    let mut newer = store.put_item("newer", 9000);
    newer.key = Key::try_from("object").expect("a key");
    assert_eq!(store.one(Action::Put(newer)).0, Ok(Outcome::Stored));
    let mut in_flight = 1;
    while store.shard.stats().journal_bytes == before || in_flight > 0 {
        in_flight = store.shard.poll(store.now(), &mut |_| ()).in_flight;
    }
    drop(store);
    let mut pattern = vec![0; 4096];
    fill(&mut pattern, "newer");
    let found = rig.devices.iter().any(|device| overwrite(device, &pattern, &[0x5a; 4096]));
    assert!(found, "its bytes lie somewhere");
    for _ in 0..2 {
        assert!(rig.open(Durability::Restart).has("object", 5000), "in its older version");
    }
}

pub(crate) fn checkpoints_are_taken_while_objects_are_put(rig: &Rig) {
    let mut store = rig.open(Durability::Durable);
    let mut last = [0; 40];
    for round in 0..60u64 {
        for index in 0..40 {
            last[index as usize] = 1000 + round * 40 + index;
            let put = store.put_item(&format!("{index}"), 1000 + round * 40 + index);
            store.submit([Action::Put(put)]);
        }
        let answers = store.answers(40);
        assert!(answers.iter().all(|done| done.result == Ok(Outcome::Stored)));
    }
    let taken = store.shard.stats().checkpoints;
    assert!(taken > 1, "{taken} checkpoints");
    drop(store);
    let mut store = rig.open(Durability::Durable);
    for (index, bytes) in last.into_iter().enumerate() {
        assert!(store.has(&format!("{index}"), bytes), "{index}");
    }
}

pub(crate) fn a_store_that_is_none_is_not_opened(rig: &Rig) {
    let mut lanes = rig.lanes();
    let device = &rig.devices[0];
    for at in [0, device.info().bytes - 4096] {
        format::read_set(&mut lanes, &mut rig.clock()).expect("one copy is enough");
        overwrite_at(device, at, &[0x11; 4096]);
    }
    let refused = format::read_set(&mut lanes, &mut rig.clock()).map(|_| ()).expect_err("no store");
    assert!(matches!(refused, Error::Media { .. }), "{refused}");
}
