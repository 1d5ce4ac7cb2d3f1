//! A shard on devices under a test's control: what waits, what fails, and with what result.

mod attaching;
mod checkpointing;
mod conditions;
mod damage;
pub(crate) mod device;
mod durable;
mod evicting;
mod journal_room;
mod journaling;
mod layers;
mod log;
mod opening;
mod order;
mod overwriting;
mod planning;
mod reading;
mod recency;
mod refusals;
mod removals;
mod replacing;
mod reporting;
mod room;
mod sealing;
mod shares;
mod slabs;
mod space;
mod steady;
mod tenants;
mod tier;
mod turn;
mod windows;
mod writers;

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::spec::Status;

use self::device::{Kind, TestDevice, TestQueue, memory};
use super::{
    Action, Done, Failure, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, Recovery,
    Request, ReserveItem, Shard, ShardOptions,
};
use crate::media::format::{self, FormatOptions, Waiting};
use crate::media::survey::{self, DeviceFacts, Fault};
use crate::model::key::Key;
use crate::model::layout::{BlockShape, Dtype, Layout, Order};
use crate::model::object::LayoutId;
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::model::place::UNIT_BYTES;

/// Units of each device: the metadata of a small shard, and some more.
const UNITS: u64 = 256;
/// Turns after which an answer is overdue for good.
const TURNS_MAX: u32 = 3000;

/// Returns the units in use, with buried ones.
fn used_units(shard: &Shard<TestQueue>) -> u64 {
    let spaces = shard.parts.objects.spaces();
    spaces.live_units() + spaces.buried_units()
}

/// Returns when the clock requires a checkpoint.
fn next_checkpoint_at(shard: &Shard<TestQueue>) -> Time {
    let checkpoints = shard.checkpoints.as_ref();
    checkpoints.map_or(Time::NEVER, |checkpoints| checkpoints.ages_due_at(&shard.parts.objects))
}

fn is_checkpointing(shard: &Shard<TestQueue>) -> bool {
    shard.checkpoints.as_ref().is_some_and(|checkpoints| !checkpoints.is_idle())
}

/// A shard and its clock.
struct Rig {
    devices: Vec<TestDevice>,
    shard: Shard<TestQueue>,
    now: Time,
    answers: Vec<Done>,
    next_tag: u64,
    recovery: Recovery,
}

fn options(durability: Durability) -> ShardOptions {
    let watermarks = Watermarks { high: 1000, low: 1000 };
    // Most tests say which object goes next.
    ShardOptions { durability, watermarks, policy: PolicyKind::Lru, ..ShardOptions::default() }
}

/// Returns a format for 300 objects.
fn form(journal_units: u64) -> FormatOptions {
    FormatOptions {
        shards: 1,
        objects_max: 300,
        key_bytes: 32,
        journal_bytes: Some(journal_units * UNIT_BYTES),
        label: String::new(),
        store_id: [3; 16],
        overwrite: false,
    }
}

fn format(devices: &[TestDevice], form: &FormatOptions) {
    let mut lanes: Vec<_> = devices.iter().map(TestDevice::lane).collect();
    format::format(&mut lanes, form, &mut || Time::ZERO).expect("blank devices");
}

/// The shape of a KV block of two tensors, a unit each.
const SHAPE: BlockShape = BlockShape {
    layers: 2,
    tensors_per_layer: 1,
    kv_heads: 1,
    head_dim: 64,
    dtype: Dtype::F16,
    tokens: 20,
};

/// Defines a layout with blocks of this shape, and this many in a slab.
fn layout(rig: &mut Rig, shape: BlockShape, slots: u32) -> LayoutId {
    let layout = Layout::new(shape, Order::LayerMajor { slots }).expect("a layout");
    rig.shard.layout(rig.now, layout).expect("room")
}

/// Returns the answer to a get of an object of so many units.
fn hit(units: u64) -> Result<Outcome, Failure> {
    Ok(Outcome::Hit { bytes: units * UNIT_BYTES })
}

impl Rig {
    fn new(count: usize, journal_units: u64, options: ShardOptions) -> Rig {
        let name = |index| format!("memory:{index}");
        let devices: Vec<_> =
            (0..count).map(|index| TestDevice::new(&name(index), UNITS)).collect();
        format(&devices, &form(journal_units));
        Rig::open(devices, options)
    }

    fn open(devices: Vec<TestDevice>, options: ShardOptions) -> Rig {
        let mut lanes: Vec<_> = devices.iter().map(TestDevice::lane).collect();
        let clock = &mut || Time::ZERO;
        let set = format::read_set(&mut lanes, clock).expect("a store");
        let (shard, recovery) = Shard::open(0, lanes, &set, options, clock).expect("opens");
        Rig { devices, shard, now: Time::ZERO, answers: Vec::new(), next_tag: 0, recovery }
    }

    /// Reopens the devices after a power cut that keeps only what was flushed.
    fn reopened(self, options: ShardOptions) -> Rig {
        let devices = self.devices.iter().map(|device| device.after_power_cut(false)).collect();
        Rig::open(devices, options)
    }

    fn submit(&mut self, deadline: Time, action: Action) -> u64 {
        self.next_tag += 1;
        let tag = self.next_tag;
        self.shard.submit(self.now, Request { reply: tag, deadline, action });
        tag
    }

    /// Submits puts together, with one tag for all.
    fn submit_puts(&mut self, puts: impl IntoIterator<Item = PutItem>) -> u64 {
        self.next_tag += 1;
        let (reply, deadline) = (self.next_tag, Time::NEVER);
        let request = |put| Request { reply, deadline, action: Action::Put(put) };
        self.shard.submit_many(self.now, puts.into_iter().map(request));
        reply
    }

    /// Takes some turns, a millisecond each.
    fn turn(&mut self, turns: u32) {
        for _ in 0..turns {
            self.now = self.now + Duration::from_millis(1);
            let answers = &mut self.answers;
            self.shard.poll(self.now, &mut |done| answers.push(done));
        }
    }

    /// Takes the answers to a request so far, in order.
    fn taken(&mut self, tag: u64) -> Vec<Result<Outcome, Failure>> {
        let (its, rest): (Vec<Done>, _) =
            std::mem::take(&mut self.answers).into_iter().partition(|done| done.reply == tag);
        self.answers = rest;
        its.into_iter().map(|done| done.result).collect()
    }

    fn wait(&mut self, action: Action) -> Result<Outcome, Failure> {
        let tag = self.submit(Time::NEVER, action);
        for _ in 0..TURNS_MAX {
            self.turn(1);
            if let Some(answer) = self.taken(tag).pop() {
                return answer;
            }
        }
        panic!("request {tag} is never answered: {} wait", self.shard.waiting());
    }

    fn put(&mut self, key: u64, units: u64) -> Result<Outcome, Failure> {
        self.wait(Action::Put(item(key, units)))
    }

    fn get(&mut self, key: u64, units: u64) -> Result<Outcome, Failure> {
        self.wait(get(key, units))
    }

    /// Returns the first unit of data on the first device.
    fn data_start(&self) -> u64 {
        let mut lanes: Vec<_> = self.devices.iter().map(TestDevice::lane).collect();
        let set = format::read_set(&mut lanes, &mut || Time::ZERO).expect("a store");
        set.geometry().areas(0).slots[1].end
    }

    /// Makes the next write of data on the first device fail.
    fn fail_next_data(&self) {
        let start = self.data_start();
        let mut medium = self.devices[0].medium();
        (medium.failing, medium.failing_at) = (vec![(Kind::Write, 1)], Some(start..u64::MAX));
    }

    /// Returns the units that objects may take.
    fn capacity(&self) -> u64 {
        self.shard.stats().capacity_units
    }
}

fn item(key: u64, units: u64) -> PutItem {
    let mut data = memory((units * UNIT_BYTES) as usize);
    data.fill(key as u8);
    let (key, data) = (Key::from(key), AnyBuffer::One(data));
    PutItem { key, bytes: units * UNIT_BYTES, data, options: PutOptions::default() }
}

fn get(key: u64, units: u64) -> Action {
    let into = AnyBuffer::One(memory((units * UNIT_BYTES) as usize));
    Action::Get(GetItem { key: key.into(), part: Part::All, into, version: None })
}

fn surveyed(device: &TestDevice) -> (usize, Vec<Fault>) {
    let (mut lanes, clock) = ([device.lane()], &mut || Time::ZERO);
    let (bytes, name) = (device.medium().bytes.len() as u64, "memory:0".to_owned());
    let facts = [DeviceFacts { device: name, bytes, lba_bytes: 4096 }];
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    let heads = survey::heads(&mut waiting, &facts).expect("a store");
    let found = survey::shard(&mut waiting, &heads, 0).expect("it answers");
    (found.objects.len(), found.faults)
}

fn device_failed(device: u8, answer: &Result<Outcome, Failure>) -> bool {
    matches!(answer, Err(Failure::Device { device: which, .. }) if *which == device)
}

const STORED: Result<Outcome, Failure> = Ok(Outcome::Stored);

#[test]
fn with_everything_leased_a_put_is_refused_at_once_and_beside_another_after_that() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let half = rig.capacity() / 2;
    assert_eq!(rig.put(1, half), STORED);
    let (lease, leased) = rig.shard.lease(rig.now, &[1u64.into()], Time::NEVER).expect("a lease");
    assert_eq!(leased, 1);
    // While one object is being written, the other needs its room: nothing may be evicted until the first is stored.
    rig.devices[0].medium().held = vec![Kind::Write];
    let first = rig.submit(Time::NEVER, Action::Put(item(2, half)));
    let second = rig.submit(Time::NEVER, Action::Put(item(3, half)));
    rig.turn(10);
    assert_eq!((rig.taken(first), rig.taken(second)), (vec![], vec![]));
    rig.devices[0].medium().held.clear();
    rig.turn(100);
    assert_eq!((rig.taken(first), rig.taken(second)), (vec![STORED], vec![STORED]));
    assert_eq!(rig.put(4, rig.capacity()), Err(Failure::Full));
    rig.shard.release(lease);
    assert_eq!(rig.put(4, rig.capacity()), STORED);
}

#[test]
fn what_a_lease_keeps_of_a_deleted_object_is_not_waited_for() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let third = rig.capacity() / 3;
    for key in 1..4 {
        assert_eq!(rig.put(key, third), STORED);
    }
    let (_lease, _) = rig.shard.lease(rig.now, &[1u64.into()], Time::NEVER).expect("a lease");
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.put(4, third), STORED, "another object goes");
    assert_eq!(rig.shard.stats().objects, 2);
}

#[test]
fn a_durable_put_waits_for_puts_that_are_not_durable_yet_to_be_evicted() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    let all = rig.capacity();
    rig.devices[0].medium().held = vec![Kind::Flush];
    let first = rig.submit(Time::NEVER, Action::Put(item(1, all)));
    let second = rig.submit(Time::NEVER, Action::Put(item(2, all)));
    rig.turn(20);
    assert_eq!((rig.taken(first), rig.taken(second)), (vec![], vec![]));
    rig.devices[0].medium().held.clear();
    rig.turn(100);
    assert_eq!((rig.taken(first), rig.taken(second)), (vec![STORED], vec![STORED]));
}

#[test]
fn no_more_objects_are_coming_than_there_are_entries() {
    let few = ShardOptions { capacity_objects: Some(1), ..options(Durability::Durable) };
    let mut rig = Rig::new(1, 64, few);
    let tag = rig.submit_puts((0..8).map(|key| item(key, 1)));
    for _ in 0..500 {
        rig.turn(1);
        assert!(rig.shard.stats().objects <= 1);
    }
    assert_eq!(rig.taken(tag), vec![STORED; 8]);
}

#[test]
fn a_batch_has_entries_also_for_keys_of_its_own_that_went_for_it() {
    let devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    format(&devices, &form(64));
    let mut rig = Rig::open(devices, options(Durability::Restart));
    let most = u64::from(rig.shard.parts.room.objects_max());
    for key in 0..most {
        assert_eq!(rig.put(key, 1), STORED);
    }
    // Key 0 is evicted first for the new key, and then needs an entry itself.
    let tag = rig.submit_puts([item(0, 1), item(most, 1)]);
    rig.turn(100);
    assert_eq!(rig.taken(tag), [STORED, STORED]);
    let stats = rig.shard.stats();
    assert_eq!((stats.objects, stats.evictions.objects()), (most, 2));
}

#[test]
fn a_batch_that_is_larger_than_the_journal_and_the_store_is_stored_bit_by_bit() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let tag = rig.submit_puts((0..400).map(|key| item(key, 1)));
    rig.turn(3000);
    assert_eq!(rig.taken(tag), vec![STORED; 400]);
}

#[test]
fn evictions_leave_room_for_the_records_of_what_they_are_for() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let all = rig.capacity();
    for round in 0..40 {
        for key in 0..all {
            let mut small = item(key, 1);
            small.key = Key::new(&[&[7; 500][..], &(round * all + key).to_le_bytes()].concat())
                .expect("a key");
            assert_eq!(rig.wait(Action::Put(small)), STORED);
        }
        assert_eq!(rig.put(round, all), STORED);
    }
    assert!(rig.shard.stats().checkpoints > 2);
}

#[test]
fn a_full_journal_is_checkpointed_until_there_is_room_also_after_a_crash() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    // Checkpoints stall, because their bodies stay in flight with all other writes once the journal is full.
    let mut puts = Vec::new();
    for key in 0..200u64 {
        puts.push(rig.submit(rig.now + Duration::from_millis(5), Action::Put(item(key % 8, 1))));
        rig.turn(1);
        puts.push(rig.submit(Time::NEVER, Action::Commit));
        rig.turn(3);
    }
    for _ in 0..3 {
        rig = rig.reopened(options(Durability::Restart));
        for key in 0..60 {
            assert_eq!(rig.put(key % 8, 1), STORED);
            assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
        }
    }
    assert!(rig.shard.stats().checkpoints > 1);
}

#[test]
fn deadlines_hold_for_what_waits_behind_others() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let all = rig.capacity();
    assert_eq!(rig.put(1, all), STORED);
    rig.devices[0].medium().held = vec![Kind::Write, Kind::Flush];
    let first = rig.submit(Time::NEVER, Action::Put(item(2, all)));
    let second = rig.submit(rig.now + Duration::from_millis(5), Action::Put(item(3, 1)));
    let due = rig.now + Duration::from_millis(5);
    let mut next = Time::NEVER;
    rig.shard.poll(rig.now, &mut |_| ()).next.min(due).clone_into(&mut next);
    assert!(next <= due);
    rig.turn(10);
    assert_eq!(rig.taken(second), vec![Err(Failure::Deadline)]);
    assert_eq!(rig.taken(first), vec![]);
}

#[test]
fn who_waits_for_a_lease_to_end_is_woken_by_the_clock() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    assert_eq!(rig.put(1, 1), STORED);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    let until = rig.now + Duration::from_millis(70);
    let _lease = rig.shard.lease(rig.now, &[1u64.into()], until).expect("a lease");
    let turn = rig.shard.poll(rig.now, &mut |_| ());
    assert_eq!((turn.in_flight, turn.next), (0, until));
}

#[test]
fn a_flush_that_was_given_up_is_not_taken_for_another() {
    let mut rig = Rig::new(2, 64, options(Durability::Durable));
    rig.devices.iter().for_each(|device| device.medium().held = vec![Kind::Flush]);
    let tags = [0u64, 1].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(10);
    rig.devices[0].medium().is_dead = true;
    rig.turn(3);
    rig.devices[1].medium().held.clear();
    rig.turn(3);
    for tag in tags {
        let answers = rig.taken(tag);
        assert!(answers.len() == 1 && device_failed(0, &answers[0]), "{answers:?}");
    }
    assert!(rig.shard.is_idle(), "nothing is going to be written");
    rig.devices[0].medium().is_dead = false;
    rig.devices[0].medium().held.clear();
    rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
    assert_eq!(rig.put(2, 1), STORED);
}

#[test]
fn what_a_device_did_not_flush_is_not_said_to_be_durable() {
    let mut rig = Rig::new(2, 64, options(Durability::Durable));
    // One object goes to each device.
    rig.devices[1].medium().failing = vec![(Kind::Flush, 1)];
    let tags = [0u64, 1].map(|key| rig.submit(Time::NEVER, Action::Put(item(key, 1))));
    rig.turn(50);
    let answers: Vec<_> = tags.into_iter().flat_map(|tag| rig.taken(tag)).collect();
    assert_eq!(answers.iter().filter(|answer| **answer == STORED).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| device_failed(1, answer)).count(), 1, "{answers:?}");
    assert!(device_failed(1, &rig.wait(Action::Commit)));
    rig.shard.attach(1, rig.devices[1].lane()).expect("it failed and is idle");
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
}

/// A write in flight when its device can no longer flush still ends well, and would be answered with the next flush of
/// the journal's device.
#[test]
fn what_ends_after_its_device_failed_is_not_said_to_be_durable() {
    for replaces in [false, true] {
        let mut rig = Rig::new(2, 64, options(Durability::Durable));
        // The first object goes to device 0, the next to device 1.
        assert_eq!(rig.put(1, 1), STORED);
        rig.devices[1].medium().held = vec![Kind::Write];
        let tag = rig.submit(Time::NEVER, Action::Put(item(if replaces { 1 } else { 2 }, 2)));
        rig.turn(5);
        rig.shard.parts.lanes[1].fail("it cannot flush");
        rig.turn(2);
        rig.devices[1].medium().held.clear();
        rig.turn(50);
        let answers = rig.taken(tag);
        assert!(answers.len() == 1 && device_failed(1, &answers[0]), "{answers:?}");
        assert_eq!(rig.get(1, 1), hit(1), "what was acknowledged stays");
    }
}

#[test]
fn a_journal_that_cannot_be_written_is_told_with_what_the_device_said() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    assert_eq!(rig.put(1, 4), STORED);
    // A delete writes only its record.
    rig.devices[0].medium().failing = vec![(Kind::Write, 1)];
    let tag = rig.submit(Time::NEVER, Action::Delete(1u64.into()));
    rig.turn(50);
    assert!(device_failed(0, &rig.taken(tag)[0]));
    let said = Status::WRITE_FAULT.with_dnr(true).to_string();
    let why = rig.shard.parts.lanes[0].failure().expect("it is out of service");
    assert!(why.starts_with("its journal cannot be written: ") && why.contains(&said), "{why}");
}

#[test]
fn a_command_that_may_pass_does_not_cost_an_object() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert_eq!(rig.put(1, 4), STORED);
    rig.devices[0].medium().is_dead = true;
    assert_eq!(rig.get(1, 4), Ok(Outcome::Miss));
    assert!(device_failed(0, &rig.put(2, 4)), "nothing is evicted for a device that is gone");
    rig.turn(5);
    rig.devices[0].medium().is_dead = false;
    rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
    assert_eq!(rig.get(1, 4), Ok(Outcome::Hit { bytes: 4 * UNIT_BYTES }));
    assert_eq!(rig.shard.stats().device_failures, 1);
}

#[test]
fn a_command_is_sent_again_by_a_shard_that_has_nothing_else_to_do() {
    let mut rig = Rig::new(1, 64, options(Durability::Volatile));
    assert_eq!(rig.put(1, 4), STORED);
    rig.devices[0].medium().held = vec![Kind::Read];
    let read = rig.submit(Time::NEVER, get(1, 4));
    rig.turn(5);
    {
        let mut medium = rig.devices[0].medium();
        (medium.held, medium.failing, medium.failures_pass) = (vec![], vec![(Kind::Read, 1)], true);
    }
    rig.turn(3);
    assert_eq!(rig.taken(read), [Ok(Outcome::Hit { bytes: 4 * UNIT_BYTES })]);
}

#[test]
fn a_checkpoint_whose_flush_was_lost_with_its_device_goes_on() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    for round in 0..6 {
        rig.devices[0].medium().held =
            if round % 2 == 0 { vec![Kind::Flush] } else { vec![Kind::Write] };
        for key in 0..30 {
            rig.submit(rig.now + Duration::from_millis(20), Action::Put(item(key, 1)));
            rig.turn(11);
        }
        rig.devices[0].medium().is_dead = true;
        rig.turn(40);
        rig.devices[0].medium().is_dead = false;
        rig.devices[0].medium().held.clear();
        rig.shard.attach(0, rig.devices[0].lane()).expect("it failed and is idle");
        for key in 0..60 {
            assert_eq!(rig.put(key, 1), STORED, "round {round}");
            rig.turn(11);
        }
    }
    assert!(rig.shard.stats().checkpoints > 6);
}

#[test]
fn a_checkpoint_is_begun_anew_and_a_device_that_never_takes_one_is_out_of_service() {
    let mut rig = Rig::new(1, 16, options(Durability::Restart));
    let mut lanes = [rig.devices[0].lane()];
    let set = format::read_set(&mut lanes, &mut || Time::ZERO).expect("a store");
    let slots = set.geometry().areas(0).slots;
    let fill = |rig: &mut Rig| {
        for _ in 0..60 {
            rig.submit(rig.now + Duration::from_millis(30), Action::Put(item(1, 1)));
            rig.turn(15);
        }
    };
    rig.devices[0].medium().failing_at = Some(slots[0].start..slots[1].end);
    rig.devices[0].medium().failing = vec![(Kind::Write, 2)];
    fill(&mut rig);
    assert!(rig.shard.stats().checkpoints > 1 && rig.shard.parts.lanes[0].failure().is_none());
    rig.devices[0].medium().failing = vec![(Kind::Write, 99)];
    fill(&mut rig);
    assert_eq!(rig.shard.parts.lanes[0].failure(), Some("its checkpoints cannot be written"));
    assert!(device_failed(0, &rig.put(1, 1)));
}

#[test]
fn kv_blocks_of_a_checkpoint_and_of_the_journal_behind_it_are_not_in_each_others_way() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    let id = layout(&mut rig, BlockShape { tensors_per_layer: 2, ..SHAPE }, 4);
    let blocks = |keys: std::ops::Range<u64>| -> Vec<PutItem> {
        let each = |key| PutItem {
            options: PutOptions { layout: id, ..PutOptions::default() },
            ..item(key, 4)
        };
        keys.map(each).collect()
    };
    for _ in 0..3 {
        for key in 0..6 {
            let block = blocks(key..key + 1).pop().expect("one");
            assert_eq!(rig.wait(Action::Put(block)), STORED);
        }
    }
    // Both in the journal behind the checkpoint's begin, and in its body.
    rig.shard.parts.log.request_checkpoint();
    rig.turn(1);
    for key in 0..6 {
        let block = blocks(key..key + 1).pop().expect("one");
        assert_eq!(rig.wait(Action::Put(block)), STORED);
    }
    rig.turn(200);
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    let before = rig.shard.stats();
    let mut rig = rig.reopened(options(Durability::Restart));
    assert_eq!((rig.recovery.objects, rig.recovery.dropped), (6, 0));
    assert_eq!(rig.shard.stats().used_units, before.used_units);
    for key in 0..6u64 {
        assert_eq!(rig.get(key, 4), Ok(Outcome::Hit { bytes: 4 * UNIT_BYTES }));
    }
    assert_eq!(surveyed(&rig.devices[0]), (6, vec![]));
    for key in 0..6u64 {
        assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
    }
    let all = rig.capacity();
    assert_eq!(rig.put(9, all), STORED, "all space came back");
}

#[test]
fn a_miss_of_a_delete_is_as_durable_as_the_delete_before_it() {
    let mut rig = Rig::new(1, 64, options(Durability::Durable));
    assert_eq!(rig.put(1, 1), STORED);
    rig.devices[0].medium().held = vec![Kind::Flush];
    let tags = [1u64, 1].map(|key| rig.submit(Time::NEVER, Action::Delete(key.into())));
    rig.turn(20);
    assert_eq!(tags.map(|tag| rig.taken(tag)), [vec![], vec![]]);
    rig.devices[0].medium().held.clear();
    rig.turn(20);
    assert_eq!(
        tags.map(|tag| rig.taken(tag)),
        [vec![Ok(Outcome::Deleted)], vec![Ok(Outcome::Miss)]]
    );
}

#[test]
fn room_that_a_device_is_told_to_forget_is_waited_for_and_nothing_goes_for_it() {
    let mut devices = vec![TestDevice::new("memory:0", 4 * UNITS)];
    devices[0].deallocates = true;
    format(&devices, &form(64));
    let at_once = Duration::ZERO;
    let options = ShardOptions { discard_after: at_once, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    let all = rig.capacity();
    assert_eq!((rig.put(1, all - 1), rig.put(2, 1)), (STORED, STORED));
    rig.devices[0].medium().held = vec![Kind::Deallocate];
    assert_eq!(rig.wait(Action::Delete(1u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(300);
    assert!(rig.shard.parts.objects.spaces().discarding_units() > 0);
    let put = rig.submit(Time::NEVER, Action::Put(item(3, all - 1)));
    rig.turn(20);
    assert_eq!(rig.taken(put), vec![]);
    rig.devices[0].medium().held.clear();
    rig.turn(20);
    assert_eq!((rig.taken(put), rig.shard.stats().evictions.objects()), (vec![STORED], 0));
}

#[test]
fn a_device_that_keeps_its_blocks_does_not_stop_the_discards_of_another() {
    let name = |index| format!("memory:{index}");
    let mut devices: Vec<_> = (0..2).map(|at| TestDevice::new(&name(at), 4 * UNITS)).collect();
    devices[1].deallocates = true;
    format(&devices, &form(64));
    let at_once = Duration::ZERO;
    let options = ShardOptions { discard_after: at_once, ..options(Durability::Restart) };
    let mut rig = Rig::open(devices, options);
    assert!((0..4).all(|key| rig.put(key, 300) == STORED));
    for key in 0..4u64 {
        assert_eq!(rig.wait(Action::Delete(key.into())), Ok(Outcome::Deleted));
    }
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(300);
    let discarded = rig.shard.stats().discards_bytes / UNIT_BYTES;
    assert!((600..1000).contains(&discarded), "{discarded} units, of one device's objects");
    assert_eq!((rig.put(9, 300), rig.put(10, 300)), (STORED, STORED), "all of it is free");
}

#[test]
fn writers_and_small_queues_do_not_stop_a_shard() {
    let mut device = TestDevice::new("memory:0", UNITS);
    (device.depth, device.command_bytes_max) = (1, 4096);
    let devices = vec![device];
    format(&devices, &form(16));
    let few = ShardOptions { capacity_objects: Some(1), ..options(Durability::Durable) };
    let mut rig = Rig::open(devices, few);
    for key in 0..60u64 {
        let options = PutOptions::default();
        let reserve = ReserveItem { key: key.into(), bytes: 8192, options };
        let Ok(Outcome::Reserved { writer, .. }) = rig.wait(Action::Reserve(reserve)) else {
            panic!("there is room")
        };
        let data = AnyBuffer::One(memory(8192));
        let fill = FillItem { writer, part: Part::All, data };
        assert_eq!(rig.wait(Action::Fill(fill)), Ok(Outcome::Filled));
        assert_eq!(rig.wait(Action::Seal(writer)), STORED);
        assert_eq!(rig.put(1000 + key, 20), STORED);
    }
    assert!(rig.shard.stats().checkpoints > 0);
    assert_eq!((rig.shard.stats().objects, rig.shard.stats().used_units), (1, 20));
}

#[test]
fn neighbours_of_different_lengths_lie_beside_each_other() {
    let mut rig = Rig::new(1, 64, options(Durability::Restart));
    assert_eq!(rig.put(1, 3), STORED);
    assert_eq!(rig.put(2, 9), STORED);
    assert_eq!(rig.wait(Action::Delete(2u64.into())), Ok(Outcome::Deleted));
    assert_eq!(rig.wait(Action::Commit), Ok(Outcome::Committed));
    rig.turn(50);
    let mut follows = item(3, 5);
    follows.options.after = Some(1u64.into());
    assert_eq!(rig.wait(Action::Put(follows)), STORED);
    let place = |rig: &Rig, key: u64| {
        let id =
            rig.shard.parts.objects.index().find(Key::from(key).as_bytes()).expect("it is there");
        rig.shard.parts.objects.index().object(id).place.unit
    };
    assert_eq!(place(&rig, 3), place(&rig, 1) + 3);
    assert_eq!(rig.shard.layouts().get(LayoutId::PLAIN), None);
}
