//! What a restart keeps: the order in which objects were used.

use adit_kvstore::store::{OpenOptions, PutWith, Tenant};
use adit_kvstore::{PolicyKind, Quota, Store, WhenReached};

use crate::on_each_path;
use crate::rig::{Rig, key};

on_each_path!(
    hot_objects_outlive_cold_ones,
    the_newest_objects_outlive_older_ones,
    a_tenants_own_objects_go_in_their_order_of_use,
);

const OBJECT_BYTES: usize = 256 << 10;
/// Every object of this many is hot.
const HOT_STEP: usize = 8;

fn open(rig: &Rig, policy: PolicyKind) -> Store {
    Store::open(&OpenOptions { policy, ..rig.options() }).expect("a store")
}

fn put(store: &Store, number: u64, with: &PutWith) {
    let put =
        store.put_with(key(number), vec![number as u8; OBJECT_BYTES], with).wait().expect("put");
    assert!(put.is_stored(), "{number}");
}

fn is_there(store: &Store, number: u64) -> bool {
    store.exists(key(number)).wait().expect("known")
}

fn evictions(store: &Store) -> u64 {
    store.stats().wait().expect("counted").evictions.objects()
}

/// Puts objects from `first` on until some are evicted. Returns the number behind the last.
fn put_until_evictions(store: &Store, first: u64, wanted: u64) -> u64 {
    let before = evictions(store);
    let mut number = first;
    while evictions(store) - before < wanted {
        put(store, number, &PutWith::default());
        number += 1;
        assert!(number - first < 10_000, "nothing is evicted");
    }
    number
}

fn use_all(store: &Store, numbers: &[u64]) {
    for number in numbers {
        let found = store.get(key(*number)).wait().expect("read");
        assert!(found.is_some(), "{number}");
    }
}

fn hot_objects_outlive_cold_ones(rig: &Rig) {
    for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::S3Fifo] {
        rig.format(2);
        let store = open(rig, policy);
        let end = put_until_evictions(&store, 0, 1);
        let there: Vec<u64> = (0..end).filter(|number| is_there(&store, *number)).collect();
        let hot: Vec<u64> = there.iter().copied().step_by(HOT_STEP).collect();
        use_all(&store, &hot);
        store.close().wait().expect("closed");
        let store = open(rig, policy);
        put_until_evictions(&store, end, there.len() as u64 / 2);
        let lost = hot.iter().filter(|number| !is_there(&store, **number)).count();
        assert_eq!(lost, 0, "of {} hot objects by {policy}", hot.len());
    }
}

fn the_newest_objects_outlive_older_ones(rig: &Rig) {
    let store = rig.format(1).open();
    let end = put_until_evictions(&store, 0, 1);
    // Each is replaced, in the opposite order.
    let there: Vec<u64> = (0..end).filter(|number| is_there(&store, *number)).collect();
    there.iter().rev().for_each(|number| put(&store, *number, &PutWith::default()));
    let there: Vec<u64> = (0..end).filter(|number| is_there(&store, *number)).collect();
    store.close().wait().expect("closed");
    let store = rig.open();
    put_until_evictions(&store, end, there.len() as u64 / 2);
    let (newer, _) = there.split_at(there.len() / 3);
    let lost = newer.iter().filter(|number| !is_there(&store, **number)).count();
    assert_eq!(lost, 0, "of {} new objects", newer.len());
}

fn of(tenant: Tenant) -> PutWith {
    PutWith { tenant: Some(tenant), ..PutWith::default() }
}

fn a_tenants_own_objects_go_in_their_order_of_use(rig: &Rig) {
    let store = rig.format(1).open();
    let tenant = store.tenant("a").wait().expect("a tenant");
    let bytes = 40 * OBJECT_BYTES as u64;
    let quota = Some(Quota { bytes, when_reached: WhenReached::EvictOwn });
    store.set_quota(&tenant, quota).wait().expect("a quota");
    let with = of(tenant);
    (0..40).for_each(|number| put(&store, number, &with));
    let used: Vec<u64> = (0..20).rev().map(|number| 2 * number).collect();
    use_all(&store, &used);
    store.close().wait().expect("closed");

    let store = rig.open();
    let with = of(store.tenant("a").wait().expect("it is there"));
    let unused = (1..40).step_by(2);
    for (at, oldest) in unused.chain(used).enumerate() {
        assert!(is_there(&store, oldest), "{oldest} goes in its turn, after {at}");
        put(&store, 100 + at as u64, &with);
        while store.tenants().wait().expect("counted").iter().any(|one| one.used_bytes > bytes) {
            std::thread::yield_now();
        }
        assert!(!is_there(&store, oldest), "{oldest} goes first");
    }
}
