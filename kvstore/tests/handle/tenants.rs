//! Tenants: quotas, their statistics, and removing all objects of one or with a prefix.

use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::runtime::Cores;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};
use adit_kvstore::shard::{Action, Failure, Outcome, Request};
use adit_kvstore::store::{OpenOptions, PutWith, Selection, Tenant, TenantStats};
use adit_kvstore::{Durability, Key, Quota, Store, WhenReached};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    an_own_object_is_replaced_at_the_quota,
    a_quota_is_lifted_and_what_holds_comes_back,
    a_quota_is_the_stores_and_not_a_shards,
    threads_together_never_have_more_than_the_quota,
    a_tenants_least_recently_used_objects_go_for_its_new_ones,
    a_shard_without_the_tenants_objects_makes_the_others_evict,
    a_quota_that_shrinks_evicts_what_was_there_before,
    what_a_tenant_does_is_counted,
    all_objects_of_a_tenant_or_with_a_prefix_are_removed,
    a_local_store_removes_and_counts_alike,
);

const KIB: u64 = 1 << 10;

fn refuse(bytes: u64) -> Option<Quota> {
    Some(Quota { bytes, when_reached: WhenReached::Refuse })
}

fn evict_own(bytes: u64) -> Option<Quota> {
    Some(Quota { bytes, when_reached: WhenReached::EvictOwn })
}

fn tenant(store: &Store, name: &str, quota: Option<Quota>) -> PutWith {
    let tenant = store.tenant(name).wait().expect("a tenant");
    store.set_quota(&tenant, quota).wait().expect("a quota");
    of(tenant)
}

fn of(tenant: Tenant) -> PutWith {
    PutWith { tenant: Some(tenant), ..PutWith::default() }
}

/// Opens a store with a thread for each of two shards, where there are cores for them.
fn open_on_two_cores(rig: &Rig) -> Store {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2));
    let options = OpenOptions { cores: Some(Cores::Count(cores)), ..rig.options() };
    Store::open(&options).expect("a store")
}

/// Puts an object; returns false if the quota refuses it.
fn put(store: &Store, number: u64, bytes: u64, with: &PutWith) -> bool {
    match store.put_with(key(number), data(number, bytes as usize), with).wait() {
        Ok(put) => put.is_stored(),
        Err(unfinished) => {
            let failure = unfinished.failure();
            assert!(matches!(failure, Some(Failure::Quota { .. })), "{unfinished}");
            false
        }
    }
}

fn is_there(store: &Store, number: u64) -> bool {
    store.exists(key(number)).wait().expect("known")
}

fn stats(store: &Store, name: &str) -> TenantStats {
    let all = store.tenants().wait().expect("counted");
    all.into_iter().find(|tenant| &*tenant.name == name).expect("it is there")
}

/// Waits until a tenant has no more than these bytes.
fn wait_until_within(store: &Store, name: &str, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while stats(store, name).used_bytes > bytes {
        assert!(Instant::now() < deadline, "{:?}", stats(store, name));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn an_own_object_is_replaced_at_the_quota(rig: &Rig) {
    for durability in [Durability::Restart, Durability::Durable] {
        rig.format(1);
        let store = Store::open(&OpenOptions { durability, ..rig.options() }).expect("a store");
        let with = tenant(&store, "a", refuse(128 * KIB));
        assert!((1..3).all(|number| put(&store, number, 64 * KIB, &with)));
        for number in [1, 2, 1, 2, 2] {
            assert!(put(&store, number, 64 * KIB, &with), "{number} is replaced");
        }
        let again = (1..3).map(|number| (key(number), data(number + 7, 64 << 10)));
        let puts = store.put_many(again, &with).wait();
        assert!(puts.iter().all(Result::is_ok), "both at the same time: {puts:?}");
        assert!(put(&store, 2, 60 * KIB, &with), "a smaller one");
        assert!(!put(&store, 1, 69 * KIB, &with), "it grows too much");
        assert!(!put(&store, 3, 8 * KIB, &with), "a new one does not fit");
        let writer = store.reserve(key(1), 64 * KIB, &with).wait().expect("reserved");
        drop(writer);
        let other = tenant(&store, "b", None);
        assert!(put(&store, 1, 64 * KIB, &other), "another tenant replaces it");
        assert!(put(&store, 3, 68 * KIB, &with), "which gives its room back");
        assert_eq!(stats(&store, "a").used_bytes, 128 * KIB);
    }
}

fn a_quota_is_lifted_and_what_holds_comes_back(rig: &Rig) {
    let store = rig.format(2).open();
    let lifted = tenant(&store, "lifted", refuse(64 * KIB));
    let kept = tenant(&store, "kept", evict_own(64 * KIB));
    assert!(!put(&store, 1, 100 * KIB, &lifted));
    store.set_quota(lifted.tenant.as_ref().expect("one"), None).wait().expect("lifted");
    assert!(put(&store, 1, 100 * KIB, &lifted));
    assert_eq!(store.tenant("lifted").wait().ok(), lifted.tenant, "the same tenant");
    assert_eq!(
        (stats(&store, "lifted").quota, stats(&store, "kept").quota),
        (None, evict_own(64 * KIB))
    );
    drop(kept);
    store.close().wait().expect("closed");
    let store = rig.open();
    assert_eq!(stats(&store, "lifted").quota, None);
    assert_eq!(stats(&store, "lifted").used_bytes, 100 * KIB);
    assert_eq!(stats(&store, "kept").quota, evict_own(64 * KIB));
    let kept = of(store.tenant("kept").wait().expect("a tenant"));
    assert!((0..40).all(|number| put(&store, 100 + number, 32 * KIB, &kept)));
    wait_until_within(&store, "kept", 64 * KIB);
    let nameless = store.tenant("").wait().expect("the default tenant");
    let refused = store.set_quota(&nameless, refuse(1)).wait().expect_err("no quota");
    assert!(refused.to_string().contains("the default tenant"), "{refused}");
    let refused = store.tenant(&"n".repeat(65)).wait().expect_err("a long name");
    assert!(refused.to_string().contains("1 to 64 bytes"), "{refused}");
}

fn a_quota_is_the_stores_and_not_a_shards(rig: &Rig) {
    let store = rig.format(4).open();
    let with = tenant(&store, "a", refuse(256 * KIB));
    assert!(put(&store, 1, 256 * KIB, &with), "one object may have all of it");
    assert!(!put(&store, 2, 1, &with));
    assert!(store.delete(key(1)).wait().expect("deleted"));
    let stored = (0..100).filter(|number| put(&store, *number, 4 * KIB, &with)).count();
    assert_eq!(stored, 64, "wherever they lie");
}

fn threads_together_never_have_more_than_the_quota(rig: &Rig) {
    let store = open_on_two_cores(rig.format(4));
    let with = tenant(&store, "a", refuse(200 * KIB));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, with) = (&store, &with);
            scope.spawn(move || {
                for number in 0..60 {
                    let number = thread * 1000 + number % 20;
                    put(store, number, 4 * KIB * (1 + number % 3), with);
                    if number.is_multiple_of(5) {
                        store.delete(key(number)).wait().expect("answered");
                    }
                }
            });
        }
    });
    let told = stats(&store, "a");
    assert!(told.used_bytes <= 200 * KIB && told.refusals > 0, "{told:?}");
    assert!((0..50).any(|number| !put(&store, 9000 + number, 4 * KIB, &with)), "it fills up");
    assert_eq!(stats(&store, "a").used_bytes, 200 * KIB, "to the last unit");
    store.delete_where(&Selection::Tenant("a".into())).wait().expect("removed");
    assert!(put(&store, 1, 200 * KIB, &with), "nothing is left charged");
}

fn a_tenants_least_recently_used_objects_go_for_its_new_ones(rig: &Rig) {
    let store = rig.format(1).open();
    let plain = PutWith::default();
    assert!((500..510).all(|number| put(&store, number, 16 * KIB, &plain)));
    let with = tenant(&store, "a", evict_own(160 * KIB));
    for number in 0..40 {
        assert!(put(&store, number, 16 * KIB, &with), "no refusal");
        let first = store.get(key(0)).wait().expect("read");
        assert!(first.is_some(), "what is read stays");
        drop(first);
        assert!(stats(&store, "a").used_bytes <= 160 * KIB);
    }
    let left: Vec<u64> = (0..40).filter(|number| is_there(&store, *number)).collect();
    assert_eq!(left, [0, 31, 32, 33, 34, 35, 36, 37, 38, 39]);
    assert!(put(&store, 35, 16 * KIB, &with));
    let same: Vec<u64> = (0..40).filter(|number| is_there(&store, *number)).collect();
    assert_eq!(same, left, "a replacement needs no more room");
    assert!((500..510).all(|number| is_there(&store, number)), "others keep theirs");
    assert!(!put(&store, 1000, 164 * KIB, &with), "it can never fit");
    let told = store.stats().wait().expect("counted");
    assert_eq!((told.evictions.quota.objects, told.evictions.objects()), (30, 30));
    assert_eq!(stats(&store, "a").evictions, 30);
}

fn a_shard_without_the_tenants_objects_makes_the_others_evict(rig: &Rig) {
    let store = open_on_two_cores(rig.format(4));
    let with = tenant(&store, "a", evict_own(64 * KIB));
    for number in 0..60 {
        assert!(put(&store, number, 32 * KIB, &with), "no refusal");
        // The other shards may be asleep.
        wait_until_within(&store, "a", 64 * KIB);
    }
    // Two shards that are asked at the same time may each evict one.
    let left = (0..60).filter(|number| is_there(&store, *number)).count();
    assert!((1..=2).contains(&left), "{left} are left");
    assert!(is_there(&store, 59), "the last is there");
}

fn a_quota_that_shrinks_evicts_what_was_there_before(rig: &Rig) {
    let store = rig.format(2).open();
    let with = tenant(&store, "a", None);
    assert!((0..64).all(|number| put(&store, number, 4 * KIB, &with)));
    store.set_quota(with.tenant.as_ref().expect("one"), evict_own(40 * KIB)).wait().expect("set");
    wait_until_within(&store, "a", 40 * KIB);
    assert_eq!(stats(&store, "a").objects, 10);
}

fn what_a_tenant_does_is_counted(rig: &Rig) {
    let store = rig.format(2).open();
    let with = tenant(&store, "a \"b\"", refuse(32 * KIB));
    assert!((0..8).all(|number| put(&store, number, 4 * KIB, &with)) && !put(&store, 9, 1, &with));
    for number in 0..10 {
        let found = store.get(key(number)).wait().expect("read").is_some();
        assert_eq!(found, number < 8);
    }
    let told = stats(&store, "a \"b\"");
    assert_eq!((told.objects, told.used_bytes, told.puts), (8, 32 * KIB, 8));
    assert_eq!((told.gets, told.hits, told.evictions, told.refusals), (8, 8, 0, 1));
    let nameless = stats(&store, "");
    assert_eq!((nameless.objects, nameless.gets, nameless.quota), (0, 0, None));
    let text = store.prometheus().wait().expect("metrics");
    for line in [
        "adit_kv_tenant_used_bytes{tenant=\"a \\\"b\\\"\"} 32768",
        "adit_kv_tenant_quota_bytes{tenant=\"a \\\"b\\\"\"} 32768",
        "adit_kv_tenant_refusals_total{tenant=\"a \\\"b\\\"\"} 1",
        "adit_kv_evictions_total{reason=\"quota\"} 0",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
}

fn name(text: String) -> Key {
    Key::try_from(text.as_str()).expect("a key")
}

fn all_objects_of_a_tenant_or_with_a_prefix_are_removed(rig: &Rig) {
    for durability in [Durability::Restart, Durability::Durable] {
        rig.format(3);
        let options = OpenOptions { durability, ..rig.options() };
        let store = Store::open(&options).expect("a store");
        let with = tenant(&store, "a", None);
        let put = |text: String, with: &PutWith| {
            let put = store.put_with(name(text), vec![7; 100], with).wait().expect("put");
            assert!(put.is_stored());
        };
        (0..300).for_each(|number| put(format!("mine/{number}"), &with));
        (0..300).for_each(|number| put(format!("all/{number}"), &PutWith::default()));
        let prefix = |text: &str| Selection::Prefix(text.as_bytes().into());
        let remove = |selection| store.delete_where(&selection).wait().expect("removed");
        assert_eq!(remove(prefix("all/1")), 111);
        assert_eq!(remove(prefix("mine/29")), 11);
        assert_eq!(remove(Selection::Tenant("absent".into())), 0);
        assert_eq!(remove(Selection::Tenant("a".into())), 289);
        assert_eq!(stats(&store, "a").objects, 0);
        let deleted = store.stats().wait().expect("counted").deletes;
        assert_eq!(deleted, 411);
        store.close().wait().expect("closed");
        let store = Store::open(&options).expect("a store");
        let found = |text: &str| store.exists(name(text.to_owned())).wait().expect("known");
        assert!(!found("mine/3") && !found("all/100") && found("all/200"));
        let rest = store.delete_where(&prefix("")).wait().expect("removed");
        assert_eq!(rest, 189, "all that is left");
    }
}

fn a_local_store_removes_and_counts_alike(rig: &Rig) {
    rig.format(2);
    let mut local = Store::open_local(&rig.options()).expect("a store");
    let now = local.now();
    let id = local.tenant(now, "a").expect("a tenant");
    local.set_quota(now, id, refuse(8192)).expect("a quota");
    let told = local.tenants();
    assert_eq!((&*told[1].name, told[1].quota), ("a", refuse(8192)));
    let mut call = |action| {
        let (mut answer, deadline) = (None, Time::NEVER);
        local.submit(local.now(), Request { reply: 5, deadline, action });
        while answer.is_none() {
            local.poll(local.now(), &mut |done| answer = Some(done));
        }
        let done = answer.expect("an answer");
        assert_eq!(done.reply, 5);
        done.result
    };
    let everything = Selection::Prefix(Box::default());
    let swept = Ok(Outcome::Swept { objects: 0 });
    assert_eq!(call(Action::DeleteWhere(everything.clone())), swept);
    assert_eq!(call(Action::Commit), Ok(Outcome::Committed));
    local.close(&mut drop).expect("closed");
    let store = rig.open();
    assert_eq!(stats(&store, "a").quota, refuse(8192));
}

#[test]
fn tenants_and_layouts_without_objects_or_users_make_room_for_others() {
    let rig = Rig::soft();
    let store = rig.format(2).open();
    let layout = |tokens| {
        let (layers, tensors_per_layer, kv_heads, head_dim) = (2, 2, 1, 64);
        let dtype = Dtype::Bf16;
        let shape = BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens };
        store.layout(Layout::new(shape, Order::BlockMajor).expect("a layout")).wait()
    };
    let named = |number: u32| store.tenant(&format!("tenant {number}")).wait();
    let held: Vec<_> = (1..256)
        .map(|number| (named(number).expect("room"), layout(number).expect("room")))
        .collect();
    let full = |why: String| assert!(why.contains("at most 255"), "{why}");
    full(named(256).expect_err("all are used").to_string());
    full(layout(256).expect_err("all are used").to_string());
    // A put keeps them until it is counted, and its object from then on.
    let (tenant, defined) = held[100].clone();
    let bytes = (defined.layout().block_units() * 4096) as usize;
    let with = PutWith { tenant: Some(tenant), layout: Some(defined), ..PutWith::default() };
    let put = store.put_with(Key::from(1u64), vec![7; bytes], &with);
    drop((held, with));
    let others: Vec<_> = (300..500)
        .map(|number| (named(number).expect("room"), layout(number).expect("room")))
        .collect();
    put.wait().expect("put");
    drop(others);
    for number in 500..900 {
        named(number).expect("room");
        layout(number).expect("room");
    }
    let info = store.info(Key::from(1u64)).wait().expect("asked").expect("there");
    assert_eq!(&*info.tenant, "tenant 101");
    let value = store.get(Key::from(1u64)).wait().expect("got").expect("a hit");
    assert_eq!(value.len(), bytes);
    store.close().wait().expect("closed");
}
