//! What a turn reports, and what becomes of commands that fail.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::spec::Status;

use super::device::{Kind, TestDevice};
use super::{Rig, STORED, UNITS, device_failed, form, format, get, hit, item, options};
use crate::media::format::FormatOptions;
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Failure, Outcome, ShardOptions, Turn};

impl Rig {
    /// Takes a turn at the same time as the last.
    fn once(&mut self) -> Turn {
        let answers = &mut self.answers;
        self.shard.poll(self.now, &mut |done| answers.push(done))
    }

    pub(super) fn place_of(&self, key: u64) -> u64 {
        let id =
            self.shard.parts.objects.index().find(Key::from(key).as_bytes()).expect("it is there");
        self.shard.parts.objects.index().object(id).place.unit
    }
}

#[test]
fn a_turn_counts_what_it_sent_finished_and_answered() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert!((1..3).all(|key| rig.put(key, 1) == STORED));
    rig.turn(3);
    let next = Time::NEVER;
    assert_eq!(rig.once(), Turn { moved: 0, in_flight: 0, next });
    rig.devices[0].medium().held = vec![Kind::Read];
    let reads = [1, 2].map(|key| rig.submit(Time::NEVER, get(key, 1)));
    assert_eq!(rig.once(), Turn { moved: 2, in_flight: 2, next }, "both are sent");
    (0..3).for_each(|_| assert_eq!(rig.once(), Turn { moved: 0, in_flight: 2, next }));
    rig.devices[0].medium().held.clear();
    assert_eq!(rig.once(), Turn { moved: 4, in_flight: 0, next }, "both end and are answered");
    assert_eq!(reads.map(|tag| rig.taken(tag)), [[hit(1)], [hit(1)]]);
    rig.submit(Time::NEVER, get(9, 1));
    assert_eq!(rig.once(), Turn { moved: 1, in_flight: 0, next }, "a miss is answered at once");
}

#[test]
fn a_turn_of_a_shard_that_rests_does_no_work() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert_eq!(rig.put(1, 1), STORED);
    rig.turn(3);
    rig.devices[0].medium().held = vec![Kind::Read];
    let read = rig.submit(Time::NEVER, get(1, 1));
    assert_eq!(rig.once().moved, 1, "the read is sent");
    // Each turn that does its work begins with all of its evictions.
    let works = |rig: &mut Rig| {
        rig.shard.parts.room.set_evictions_left(1);
        rig.once();
        rig.shard.parts.room.evictions_left() != 1
    };
    assert!(works(&mut rig), "a turn that moved something is followed by another");
    assert!((0..3).all(|_| !works(&mut rig)), "the read is in flight");
    rig.devices[0].medium().held.clear();
    assert!(works(&mut rig));
    assert_eq!(rig.taken(read), [hit(1)]);
    assert!(works(&mut rig));
    assert!(!works(&mut rig));
    rig.submit(Time::NEVER, get(9, 1));
    assert!(works(&mut rig), "a request came");
}

/// Returns a shard with an object in each unit and no place for one of `units`: among so many, one is leased.
fn crowded(units: u64) -> Rig {
    let sizes = [4200, 400, 280];
    let name = |index| format!("memory:{index}");
    let devices: Vec<_> =
        (0..).zip(sizes).map(|(at, size)| TestDevice::new(&name(at), size)).collect();
    format(&devices, &FormatOptions { objects_max: 5000, ..form(64) });
    let mut rig = Rig::open(devices, options(Durability::Volatile));
    let count = rig.capacity();
    let tag = rig.submit_puts((0..count).map(|key| item(key, 1)));
    rig.turn(100);
    assert_eq!(rig.taken(tag), vec![STORED; count as usize]);
    let leased: Vec<Key> =
        (0..count).filter(|key| rig.place_of(*key).is_multiple_of(units)).map(Key::from).collect();
    let lease = rig.shard.lease(rig.now, &leased, Time::NEVER).expect("a lease");
    assert_eq!(lease.1, leased.len());
    rig
}

#[test]
fn a_search_for_room_goes_on_at_once_while_its_change_waits() {
    let mut rig = crowded(32);
    let put = |key| Action::Put(item(key, 32));
    let tags = [9000, 9001].map(|key| rig.submit(Time::NEVER, put(key)));
    // The first search begins with the request, and the second once the first is over.
    assert_eq!(rig.once().next, rig.now, "there is more to search than in a turn");
    assert_eq!(tags.map(|tag| rig.taken(tag)), [vec![Err(Failure::Full)], vec![]]);
    assert!(rig.once().next > rig.now);
    assert_eq!(rig.taken(tags[1]), [Err(Failure::Full)]);
    let late = rig.submit(rig.now + Duration::from_millis(1), put(9002));
    rig.now = rig.now + Duration::from_millis(1);
    assert!(rig.once().next > rig.now, "no change waits for the rest of its search");
    assert_eq!(rig.taken(late), [Err(Failure::Deadline)]);
}

#[test]
fn commands_and_their_bytes_are_counted() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let before = rig.shard.stats();
    assert_eq!((rig.put(1, 3), rig.put(2, 2)), (STORED, STORED));
    assert_eq!((rig.get(1, 3), rig.get(2, 2)), (hit(3), hit(2)));
    let stats = rig.shard.stats();
    assert_eq!((stats.puts, stats.gets, stats.hits, stats.misses), (2, 2, 2, 0));
    assert_eq!(stats.commands_write - before.commands_write, 2);
    assert_eq!(stats.commands_read - before.commands_read, 2);
    let bytes = 5 * UNIT_BYTES;
    assert_eq!(stats.bytes_to_device - before.bytes_to_device, bytes);
    assert_eq!((stats.bytes_written, stats.bytes_read), (bytes, bytes));
}

#[test]
fn what_a_device_cannot_read_for_good_is_dropped_and_what_may_pass_is_not() {
    for (status, is_dropped) in [
        (Status::WRITE_FAULT.with_dnr(true), true),
        (Status::WRITE_FAULT, true),
        (Status::INVALID_FIELD_IN_COMMAND, true),
        (Status::INTERNAL_ERROR, false),
    ] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        assert_eq!(rig.put(1, 1), STORED);
        // More often than a command is tried.
        rig.devices[0].medium().failing = vec![(Kind::Read, 9)];
        rig.devices[0].medium().failing_with = Some(status);
        assert_eq!(rig.get(1, 1), Ok(Outcome::Miss), "{status}");
        rig.devices[0].medium().failing.clear();
        let stats = rig.shard.stats();
        assert_eq!((stats.misses, stats.misses_corrupt), (1, u64::from(is_dropped)), "{status}");
        assert_eq!(stats.objects, u64::from(!is_dropped), "{status}");
        let again = if is_dropped { Ok(Outcome::Miss) } else { hit(1) };
        assert_eq!(rig.get(1, 1), again, "{status}");
    }
}

#[test]
fn a_full_device_refuses_a_put_and_goes_on() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    rig.devices[0].medium().failing = vec![(Kind::Write, 1)];
    rig.devices[0].medium().failing_with = Some(Status::CAPACITY_EXCEEDED);
    let device = "memory:0".to_owned();
    assert_eq!(rig.put(1, 1), Err(Failure::NoSpace { device }));
    assert_eq!(rig.put(1, 1), STORED);
    rig.devices[0].medium().failing = vec![(Kind::Write, 1)];
    rig.devices[0].medium().failing_with = None;
    assert!(device_failed(0, &rig.put(1, 1)), "another failure keeps its reason");
}

#[test]
fn a_journal_without_space_is_told_with_what_to_do() {
    for (status, is_full) in [(Status::CAPACITY_EXCEEDED, true), (Status::WRITE_FAULT, false)] {
        let mut rig = Rig::new(1, 64, options(Durability::Durable));
        assert_eq!(rig.put(1, 1), STORED);
        rig.devices[0].medium().failing = vec![(Kind::Write, 9)];
        rig.devices[0].medium().failing_with = Some(status);
        assert!(device_failed(0, &rig.wait(Action::Delete(1u64.into()))));
        let why = rig.shard.parts.lanes[0].failure().expect("it is out of service");
        assert_eq!(why.ends_with("; free space on its file system first"), is_full, "{why}");
    }
}

#[test]
fn runs_are_deallocated_one_at_a_time_and_no_longer_than_the_device_takes() {
    let mut devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    (devices[0].deallocates, devices[0].deallocate_lbas_max) = (true, 300);
    format(&devices, &form(64));
    let at_once = Duration::ZERO;
    let options = ShardOptions { discard_after: at_once, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    // A run of 256 units or more is worth a command.
    assert_eq!((rig.put(1, 556), rig.put(2, 40)), (STORED, STORED));
    let start = rig.place_of(1);
    rig.devices[0].medium().held = vec![Kind::Deallocate];
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    assert_eq!(rig.shard.parts.lanes[0].in_flight(), 1);
    assert_eq!(rig.shard.parts.objects.spaces().discarding_units(), 300);
    assert_eq!(rig.shard.stats().discards_bytes, 300 * UNIT_BYTES);
    rig.devices[0].medium().held.clear();
    rig.turn(50);
    let runs = [start..start + 300, start + 300..start + 556];
    assert_eq!(rig.devices[0].medium().deallocated, runs);
    assert_eq!(rig.shard.stats().discards_bytes, 556 * UNIT_BYTES);
    assert_eq!(rig.shard.parts.objects.spaces().discarding_units(), 0);
    assert_eq!(rig.wait(Action::Delete(2u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    assert_eq!(rig.devices[0].medium().deallocated.len(), 2, "40 units are not worth one");
}

#[test]
fn a_deallocation_is_in_the_lbas_of_its_device() {
    let mut devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    devices[0].deallocates = true;
    format(&devices, &form(64));
    let late = Duration::from_millis(500);
    let options = ShardOptions { discard_after: late, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    assert_eq!(rig.put(1, 600), STORED);
    let start = rig.place_of(1);
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(20);
    assert_eq!(rig.devices[0].medium().deallocated, []);
    // Nothing else is sent from here on.
    let info = &mut rig.shard.parts.lanes[0].info;
    (info.lba_bytes, info.deallocate_lbas_max) = (512, 8 * 400);
    rig.turn(1500);
    let run = 8 * start..8 * (start + 400);
    assert_eq!(rig.devices[0].medium().deallocated, [run], "the rest is too short");
    assert_eq!(rig.shard.stats().discards_bytes, 400 * UNIT_BYTES);
}

#[test]
fn a_shard_whose_changes_wait_for_its_device_rests_until_their_deadline() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    let all = rig.capacity();
    rig.devices[0].medium().held = vec![Kind::Write];
    rig.submit(Time::NEVER, Action::Put(item(1, all)));
    let until = rig.now + Duration::from_secs(3);
    rig.submit(until, Action::Put(item(2, all)));
    rig.once();
    assert_eq!(rig.once(), Turn { moved: 0, in_flight: 1, next: until });
    assert_eq!(rig.shard.waiting(), 1);
}
