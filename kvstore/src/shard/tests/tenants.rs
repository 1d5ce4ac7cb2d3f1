//! Quotas and sweeps where devices fail and the journal is full.

use std::time::Duration;

use adit_driver::Time;

use super::device::{Kind, TestDevice};
use super::room::large_rig;
use super::{Rig, STORED, UNITS, device_failed, form, format, item, options};
use crate::model::object::TenantId;
use crate::model::options::{Durability, Quota, WhenReached};
use crate::model::place::UNIT_BYTES;
use crate::shard::{
    Action, Failure, Ledger, Outcome, PutItem, PutOptions, Selection, ShardOptions,
};

fn tenant(rig: &mut Rig, units: u64, when_reached: WhenReached) -> TenantId {
    let id = rig.shard.tenant(rig.now, "a").expect("a tenant");
    let quota = Quota { bytes: units * UNIT_BYTES, when_reached };
    rig.shard.set_quota(rig.now, id, Some(quota)).expect("a quota");
    id
}

fn put(key: u64, units: u64, tenant: TenantId) -> Action {
    let options = PutOptions { tenant, ..PutOptions::default() };
    Action::Put(PutItem { options, ..item(key, units) })
}

fn used_units(rig: &Rig) -> u64 {
    rig.shard.tenants().stats()[1].used_bytes / UNIT_BYTES
}

fn everything() -> Action {
    Action::DeleteWhere(Selection::Prefix(Box::default()))
}

#[test]
fn a_replacement_that_fails_leaves_the_quota_as_it_was() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 64, options(durability));
        let id = tenant(&mut rig, 8, WhenReached::Refuse);
        assert_eq!(rig.wait(put(1, 8, id)), STORED);
        for _ in 0..3 {
            rig.fail_next_data();
            assert!(device_failed(0, &rig.wait(put(1, 8, id))));
            let refused = rig.wait(put(2, 1, id));
            assert!(matches!(refused, Err(Failure::Quota { .. })), "{refused:?}");
            assert_eq!((used_units(&rig), rig.wait(put(1, 8, id))), (8, STORED));
        }
        assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
        assert_eq!(rig.wait(put(2, 8, id)), STORED, "nothing is charged for what went");
    }
}

#[test]
fn an_object_that_goes_before_its_replacement_comes_is_charged_no_more() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = tenant(&mut rig, 8, WhenReached::Refuse);
    assert_eq!(rig.wait(put(1, 8, id)), STORED);
    rig.devices[0].medium().held = vec![Kind::Write];
    let new = rig.submit(Time::NEVER, put(1, 8, id));
    rig.turn(3);
    assert_eq!(rig.wait(everything()), Ok(Outcome::Swept { objects: 1 }));
    let refused = rig.wait(put(2, 1, id));
    assert!(matches!(refused, Err(Failure::Quota { .. })), "the new one has it all: {refused:?}");
    rig.devices[0].medium().held.clear();
    rig.turn(20);
    assert_eq!((rig.taken(new), used_units(&rig)), (vec![STORED], 8));
}

#[test]
fn evictions_for_a_quota_wait_for_room_in_the_journal() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 16, options(durability));
        let id = tenant(&mut rig, 8, WhenReached::EvictOwn);
        for key in 0..40 {
            rig.fill_journal();
            assert_eq!(rig.wait(put(key, 2, id)), STORED);
            rig.settle();
            assert!(used_units(&rig) <= 8, "{} after {key}", used_units(&rig));
        }
        assert_eq!(rig.shard.stats().evictions.quota.objects, 36);
    }
}

#[test]
fn a_sweep_waits_for_room_in_the_journal_and_fails_with_its_device() {
    for durability in [Durability::Restart, Durability::Durable] {
        let mut rig = Rig::new(1, 16, options(durability));
        assert!((0..60).all(|key| rig.put(key, 1) == STORED));
        rig.fill_journal();
        let tag = rig.submit(Time::NEVER, everything());
        rig.settle();
        assert_eq!(rig.taken(tag), [Ok(Outcome::Swept { objects: 60 })], "{durability:?}");
        let late = rig.submit(rig.now, everything());
        rig.settle();
        assert_eq!(rig.taken(late), [Err(Failure::Deadline)]);
        rig.devices[0].medium().is_dead = true;
        assert!(device_failed(0, &rig.wait(everything())));
    }
}

#[test]
fn what_a_sweep_removed_stays_away_after_a_power_cut() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    assert!((0..20).all(|key| rig.put(key, 1) == STORED));
    assert_eq!(rig.wait(everything()), Ok(Outcome::Swept { objects: 20 }));
    assert_eq!(rig.put(1, 1), STORED);
    let rig = rig.reopened(options(Durability::Durable));
    assert_eq!(rig.shard.stats().objects, 1);
}

#[test]
fn a_sweep_removes_what_is_selected_and_nothing_else() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = rig.shard.tenant(rig.now, "a").expect("a tenant");
    let default = TenantId::default();
    for key in 0..12 {
        let tenant = if key % 3 == 0 { id } else { default };
        assert_eq!(rig.wait(put(key, 1, tenant)), STORED);
    }
    let by_name = |name: &str| Action::DeleteWhere(Selection::Tenant(name.into()));
    assert_eq!(rig.wait(by_name("b")), Ok(Outcome::Swept { objects: 0 }));
    assert_eq!(rig.wait(by_name("a")), Ok(Outcome::Swept { objects: 4 }));
    assert_eq!((rig.shard.stats().objects, rig.shard.stats().deletes), (8, 4));
    let one = Selection::Prefix(crate::model::key::Key::from(5u64).as_bytes().into());
    assert_eq!(rig.wait(Action::DeleteWhere(one)), Ok(Outcome::Swept { objects: 1 }));
    assert_eq!((rig.shard.stats().objects, rig.shard.stats().deletes), (7, 5));
    assert!(!rig.shard.exists(rig.now, &5u64.into()) && rig.shard.exists(rig.now, &4u64.into()));
    assert_eq!(rig.wait(by_name("")), Ok(Outcome::Swept { objects: 7 }));
}

#[test]
fn tenants_have_names_and_the_default_one_has_no_quota() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = rig.shard.tenant(rig.now, "a").expect("a tenant");
    let default = TenantId::default();
    let names = [default, id, TenantId(2)].map(|id| rig.shard.tenants().name(id));
    assert_eq!(names, [Some(""), Some("a"), None]);
    let quota = Some(Quota { bytes: UNIT_BYTES, when_reached: WhenReached::Refuse });
    assert!(matches!(rig.shard.set_quota(rig.now, default, quota), Err(Failure::Tenant(_))));
    let undefined = Err(Failure::Undefined("tenant"));
    assert_eq!(rig.shard.set_quota(rig.now, TenantId(2), quota), undefined);
    assert_eq!(rig.shard.set_quota(rig.now, id, quota), Ok(()));
}

#[test]
fn a_lowered_quota_takes_a_bounded_part_of_a_tenants_objects_in_each_turn() {
    let devices = vec![TestDevice::new("memory:0", 2 * UNITS)];
    format(&devices, &form(64));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    let id = tenant(&mut rig, 1000, WhenReached::EvictOwn);
    let most = rig.capacity() / 2;
    assert!(most > 75);
    assert!((0..most).all(|key| rig.wait(put(key, 2, id)) == STORED));
    rig.turn(3);
    tenant(&mut rig, 10, WhenReached::EvictOwn);
    let gone = |rig: &Rig| rig.shard.stats().evictions.quota;
    let mut turns = 0;
    while used_units(&rig) > 10 {
        let before = gone(&rig).objects;
        rig.turn(1);
        assert!(gone(&rig).objects - before <= 65, "{} in a turn", gone(&rig).objects - before);
        turns += 1;
    }
    assert!(turns <= 5, "{turns} turns for {most} objects");
    let objects = most - 5;
    let bytes = objects * 2 * UNIT_BYTES;
    assert_eq!(gone(&rig), crate::shard::Evicted { objects, bytes });
    assert_eq!(rig.shard.tenants().stats()[1].evictions, objects);
    assert!((most - 5..most).all(|key| rig.shard.exists(rig.now, &key.into())), "the newest stay");
}

#[test]
fn a_tenant_and_its_quota_come_back_from_the_journal() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = tenant(&mut rig, 2, WhenReached::Refuse);
    assert_eq!(rig.wait(put(1, 2, id)), STORED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let mut rig = rig.reopened(options(Durability::Restart));
    assert_eq!(rig.shard.tenant(rig.now, "a"), Ok(id));
    assert_eq!(rig.shard.tenants().name(id), Some("a"));
    assert_eq!(used_units(&rig), 2);
    let refused = rig.wait(put(2, 1, id));
    assert!(matches!(refused, Err(Failure::Quota { .. })), "{refused:?}");
}

#[test]
fn a_tenant_has_objects_to_remove_while_it_has_more_than_its_quota() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let id = tenant(&mut rig, 4, WhenReached::EvictOwn);
    rig.turn(5);
    for key in 0..2 {
        rig.submit(Time::NEVER, put(key, 2, id));
        assert!(!rig.shard.has_objects_to_remove(), "all of its quota is not more");
        rig.turn(5);
    }
    rig.submit(Time::NEVER, put(2, 1, id));
    assert!(rig.shard.has_objects_to_remove());
    rig.turn(5);
    assert_eq!((rig.shard.has_objects_to_remove(), used_units(&rig)), (false, 3));
}

#[test]
fn other_shards_are_asked_when_the_object_just_stored_is_the_only_one() {
    let ledger = Ledger::default();
    let shared = || ShardOptions { ledger: ledger.clone(), ..options(Durability::Volatile) };
    let [mut first, mut second] = [shared(), shared()].map(|options| Rig::new(1, 64, options));
    let id = tenant(&mut first, 4, WhenReached::EvictOwn);
    assert!(second.shard.tenants().has_news(), "the quota");
    assert_eq!(second.shard.tenant(second.now, "a"), Ok(id));
    second.turn(2);
    for (key, units, used) in [(1, 2, 2), (2, 2, 4), (3, 1, 3)] {
        assert_eq!(first.wait(put(key, units, id)), STORED);
        first.turn(5);
        assert_eq!((used_units(&first), second.shard.tenants().has_news()), (used, false));
    }
    assert_eq!(first.wait(everything()), Ok(Outcome::Swept { objects: 2 }));
    assert_eq!((second.wait(put(4, 3, id)), first.wait(put(5, 2, id))), (STORED, STORED));
    first.turn(5);
    assert!(second.shard.tenants().has_news() && !first.shard.tenants().has_news());
    second.turn(5);
    assert_eq!((used_units(&first), used_units(&second)), (2, 0));
}

#[test]
fn nothing_goes_for_a_quota_while_the_journal_is_out_of_service() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = tenant(&mut rig, 100, WhenReached::EvictOwn);
    assert!((0..4).all(|key| rig.wait(put(key, 2, id)) == STORED));
    rig.turn(3);
    tenant(&mut rig, 2, WhenReached::EvictOwn);
    rig.shard.parts.lanes[0].fail("a test");
    rig.turn(3);
    assert_eq!(used_units(&rig), 8);
}

#[test]
fn a_tenants_oldest_objects_are_known_before_any_of_them_goes() {
    let mut rig = large_rig(8, Durability::Volatile);
    let id = tenant(&mut rig, 1 << 20, WhenReached::Refuse);
    let (count, used) = (rig.capacity(), 1200);
    assert!(count > used + 200);
    let owned = |key| PutItem {
        options: PutOptions { tenant: id, ..PutOptions::default() },
        ..item(key, 1)
    };
    let tag = rig.submit_puts((0..count).map(owned));
    rig.settle();
    assert_eq!(rig.taken(tag).len() as u64, count);
    // More than are put in order in a turn.
    (0..used).for_each(|key| assert!(matches!(rig.get(key, 1), Ok(Outcome::Hit { .. }))));
    tenant(&mut rig, count - 100, WhenReached::EvictOwn);
    rig.turn(10);
    assert_eq!(used_units(&rig), count - 100);
    assert!((0..used).all(|key| rig.shard.exists(rig.now, &key.into())), "they were used");
}

#[test]
fn a_lowered_quota_is_kept_as_soon_as_the_lease_in_its_way_ends() {
    for ends_by_itself in [false, true] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        let id = tenant(&mut rig, 100, WhenReached::EvictOwn);
        assert!((0..4).all(|key| rig.wait(put(key, 2, id)) == STORED));
        let keys: Vec<_> = (0u64..4).map(Into::into).collect();
        let until = rig.now + Duration::from_secs(1);
        let (lease, count) = rig.shard.lease(rig.now, &keys, until).expect("a lease");
        assert_eq!(count, 4);
        tenant(&mut rig, 4, WhenReached::EvictOwn);
        rig.turn(5);
        assert_eq!((used_units(&rig), rig.shard.has_objects_to_remove()), (8, false), "leased");
        if ends_by_itself {
            rig.now = until;
        } else {
            rig.shard.release(lease);
            assert!(rig.shard.has_objects_to_remove(), "the next turn does not wait");
        }
        rig.turn(2);
        assert_eq!(used_units(&rig), 4);
        assert!((2..4u64).all(|key| rig.shard.exists(rig.now, &key.into())), "the newest stay");
    }
}

#[test]
fn an_object_just_stored_goes_if_a_lowered_quota_has_no_room_for_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = tenant(&mut rig, 8, WhenReached::EvictOwn);
    assert_eq!(rig.wait(put(1, 1, id)), STORED);
    let tag = rig.submit(Time::NEVER, put(2, 8, id));
    tenant(&mut rig, 4, WhenReached::EvictOwn);
    rig.turn(20);
    assert_eq!((rig.taken(tag), used_units(&rig)), (vec![STORED], 0));
}

#[test]
fn an_object_whose_shorter_replacement_fails_counts_again_against_a_lowered_quota() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = tenant(&mut rig, 8, WhenReached::EvictOwn);
    assert_eq!(rig.wait(put(1, 8, id)), STORED);
    rig.settle();
    rig.devices[0].medium().failing = vec![(Kind::Write, 1)];
    let tag = rig.submit(Time::NEVER, put(1, 2, id));
    tenant(&mut rig, 4, WhenReached::EvictOwn);
    rig.turn(20);
    assert!(device_failed(0, &rig.taken(tag)[0]));
    assert!(used_units(&rig) <= 4, "{} units", used_units(&rig));
}
