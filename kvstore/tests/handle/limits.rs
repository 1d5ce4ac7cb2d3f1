//! Custom policies, and budgets from the drive's log.

use std::time::Duration;

use adit_kvstore::evict::{Policy, PolicyMaker};
use adit_kvstore::shard::{Decline, Failure, Outcome};
use adit_kvstore::store::{OpenOptions, PutWith};
use adit_kvstore::{Error, ObjectId, Store};

use crate::rig::{Rig, data, key};

/// Evicts the newest first.
struct Newest(Vec<ObjectId>);

impl Policy for Newest {
    fn inserted(&mut self, id: ObjectId, _key_hash: u64) {
        self.0.push(id);
    }

    fn touched(&mut self, _id: ObjectId) {}

    fn removed(&mut self, id: ObjectId) {
        self.0.retain(|known| *known != id);
    }

    fn evicted(&mut self, id: ObjectId, _key_hash: u64) {
        self.removed(id);
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        self.0.iter().rev().copied().find(|id| !is_leased(*id))
    }

    fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<ObjectId>()
    }
}

#[test]
fn a_policy_of_the_users_own_says_what_goes() {
    let survivors = |custom_policy: Option<PolicyMaker>| {
        let rig = Rig::soft();
        rig.format(1);
        let capacity_bytes = Some(64 << 14);
        let options = OpenOptions { custom_policy, capacity_bytes, ..rig.options() };
        let store = Store::open(&options).expect("a store");
        for number in 0..200 {
            let put = store.put(key(number), data(number, 16_000)).wait().expect("put");
            assert!(put.is_stored());
        }
        assert!(store.stats().wait().expect("counted").evictions.objects() > 100);
        (0..200)
            .filter(|number| store.exists(key(*number)).wait().expect("known"))
            .collect::<Vec<_>>()
    };
    let newest = PolicyMaker::new(|objects_max| {
        assert!(objects_max >= 200);
        Box::new(Newest(Vec::new()))
    });
    assert_eq!(format!("{newest:?}"), "PolicyMaker(..)");
    let (first, last) = (survivors(Some(newest)), survivors(None));
    assert!((0..50).all(|number| first.contains(&number)), "the oldest stay: {first:?}");
    assert!((150..200).all(|number| last.contains(&number)), "the newest stay: {last:?}");
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns how many of five puts the budget declines.
fn declined(rig: &Rig, lifetime: Option<Duration>, write_bytes_per_day: Option<u64>) -> usize {
    let options = OpenOptions { lifetime, write_bytes_per_day, ..rig.options() };
    let store = Store::open(&options).expect("a store");
    let put = |number| store.put(key(number), data(number, 9000)).wait().expect("put").outcome;
    (0..5).map(put).filter(|put| *put == Outcome::Declined(Decline::Budget)).count()
}

#[test]
fn a_lifetime_limits_what_is_written_by_what_the_drive_endures() {
    let rig = Rig::soft();
    rig.format(1);
    // A new drive of 2^28 bytes is assumed to endure 547 times its size: over this many days that is one object per
    // hour.
    let long = Some(DAY * 547_000);
    assert_eq!(declined(&rig, None, None), 0);
    assert_eq!(declined(&rig, Some(DAY * 365), None), 0);
    assert_eq!(declined(&rig, long, None), 4);
    assert_eq!(declined(&rig, long, Some(1 << 40)), 4, "the smaller counts");
    assert_eq!(declined(&rig, Some(DAY), Some(200_000)), 4, "the smaller counts");
    let options = OpenOptions { lifetime: long, ..rig.options() };
    let store = Store::open(&options).expect("a store");
    store.put(key(1), data(1, 9000)).wait().expect("put");
    let refused = store.reserve(key(2), 9000, &PutWith::default()).wait().expect_err("no budget");
    assert_eq!(refused.failure(), Some(&Failure::Declined(Decline::Budget)));
    assert!(store.exists(key(1)).wait().expect("the store goes on"));
}

#[test]
fn a_lifetime_is_refused_where_no_log_can_be_read() {
    let rig = Rig::file();
    rig.format(1);
    let open = |lifetime| Store::open(&OpenOptions { lifetime, ..rig.options() });
    let refused = open(Some(DAY * 365)).expect_err("a file has no log");
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    assert!(refused.to_string().contains("give write_bytes_per_day"), "{refused}");
    let refused = open(Some(Duration::ZERO)).expect_err("no time at all").to_string();
    assert!(refused.contains("give the drives some time"), "{refused}");
    drop(open(None).expect("it was not kept open"));
}
