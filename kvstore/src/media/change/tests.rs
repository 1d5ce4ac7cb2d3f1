//! Tests changes of the devices, cut at every write and flush, with unflushed data both kept and lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_driver::memory::AnyBuffer;

use super::*;
use crate::media::format::{FormatOptions, format};
use crate::media::survey;
use crate::model::key::Key;
use crate::model::layout::{BlockShape, Dtype, Layout, Order};
use crate::model::object::LayoutId;
use crate::shard::tests::device::{TestDevice, TestQueue, memory};
use crate::shard::{Action, Outcome, PutItem, PutOptions, Request, Shard, ShardOptions};

const UNITS: u64 = 400;
const STORE: [u8; 16] = [9; 16];

/// A store's contents: the units of each object by key.
type Contents = BTreeMap<u64, u64>;

fn devices(count: usize) -> Vec<TestDevice> {
    (0..count).map(|index| TestDevice::new(&format!("memory:{index}"), UNITS)).collect()
}

fn lanes(devices: &[TestDevice]) -> Vec<Lane<TestQueue>> {
    devices.iter().map(TestDevice::lane).collect()
}

fn clock() -> impl FnMut() -> Time {
    || Time::ZERO
}

fn formatted(count: usize, shards: u16) -> Vec<TestDevice> {
    formatted_as(STORE, count, shards)
}

fn formatted_as(store_id: [u8; 16], count: usize, shards: u16) -> Vec<TestDevice> {
    let devices = devices(count);
    let options = FormatOptions {
        shards,
        objects_max: 100,
        key_bytes: 32,
        journal_bytes: Some(64 << 10),
        label: "changing".to_owned(),
        store_id,
        overwrite: false,
    };
    format(&mut lanes(&devices), &options, &mut clock()).expect("blank devices");
    devices
}

/// Returns another device of `units`, with the units of this one at its beginning.
fn extended(device: &TestDevice, units: u64) -> TestDevice {
    let other = device.after_power_cut(true);
    other.medium().bytes.resize((units * UNIT_BYTES) as usize, 0);
    other
}

fn added(devices: &[TestDevice], new: &TestDevice, id: u64) -> Result<Vec<TestDevice>> {
    let all = [devices, std::slice::from_ref(new)].concat();
    add(&mut lanes(&all), devices.len(), (id, false), &mut clock(), &mut false).map(|_| all)
}

fn removed(devices: &[TestDevice], index: u8, leaving: Leaving) -> Result<Changed> {
    remove(lanes(devices), index, (7 << 40 | 5, leaving), &mut clock())
}

fn without(devices: &[TestDevice], index: usize) -> Vec<TestDevice> {
    let mut rest = devices.to_vec();
    rest.remove(index);
    rest
}

/// Opens each shard, passes it to `each` and closes it.
fn with_shards(devices: &[TestDevice], mut each: impl FnMut(&Set, u16, &mut Shard<TestQueue>)) {
    let set = read_set(&mut lanes(devices), &mut clock()).expect("a store");
    for number in 0..set.shards() {
        let options = ShardOptions::default();
        let opened = Shard::open(number, lanes(devices), &set, options, &mut clock());
        let (mut shard, recovery) = opened.expect("it opens");
        assert_eq!(recovery.dropped, 0, "shard {number}");
        each(&set, number, &mut shard);
    }
}

fn wait(shard: &mut Shard<TestQueue>, action: Action) -> Outcome {
    shard.submit(Time::ZERO, Request { reply: 0, deadline: Time::NEVER, action });
    let (mut answer, mut now) = (None, Time::ZERO);
    for _ in 0..5000 {
        now = now + std::time::Duration::from_millis(1);
        shard.poll(now, &mut |done| answer = Some(done.result.expect("there is room")));
        if let Some(answer) = answer {
            return answer;
        }
    }
    panic!("it is never answered");
}

/// Returns the bytes of an object, unlike those of any other.
fn filled(key: u64, units: u64) -> adit_driver::Buffer {
    let mut data = memory((units * UNIT_BYTES) as usize);
    let word = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    data.iter_mut().zip(word.iter().cycle()).for_each(|(byte, fill)| *byte = *fill);
    data
}

fn put_as(key: u64, units: u64, options: PutOptions) -> Action {
    let data = AnyBuffer::One(filled(key, units));
    Action::Put(PutItem { key: Key::from(key), bytes: units * UNIT_BYTES, data, options })
}

/// Puts objects into the shards that own them, and commits.
fn put_all(devices: &[TestDevice], objects: &Contents) {
    with_shards(devices, |set, number, shard| {
        for (key, units) in objects {
            if set.route(&Key::from(*key)) == number {
                let outcome = wait(shard, put_as(*key, *units, PutOptions::default()));
                assert_eq!(outcome, Outcome::Stored);
            }
        }
        wait(shard, Action::Commit);
    });
}

/// Returns the contents of the store on these devices, after verifying each object and its place.
fn contents(devices: &[TestDevice]) -> Result<Contents> {
    let mut lanes = lanes(devices);
    let set = read_set(&mut lanes, &mut clock())?;
    let clock = &mut clock();
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    let mut all = Contents::new();
    for shard in 0..set.shards() {
        let survey = carry::survey_of(&mut waiting, &set, shard)?;
        for found in &survey.objects {
            assert!(survey.verify(&mut waiting, found)?, "object {} is wrong", found.key);
            let key = u64::from_be_bytes(found.key.as_bytes().try_into().expect("a number"));
            let runs = survey.runs_of(found);
            let units: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let mut first = vec![0; UNIT_BYTES as usize];
            survey::Media::read(
                &mut waiting,
                found.object.place.device,
                runs[0].start,
                &mut first,
            )?;
            assert!(first[..] == filled(key, 1)[..], "it is the object of its key");
            all.insert(key, units);
        }
    }
    Ok(all)
}

/// Makes a change with the power cut behind each of its writes and flushes, and passes the remaining devices to `each`.
fn cuts(
    before: &[TestDevice],
    change: impl Fn(&[TestDevice]),
    mut each: impl FnMut(u64, &[TestDevice]),
) {
    const MANY: u64 = 1 << 40;
    let run = |changes: u64| {
        let cut: Vec<_> = before.iter().map(|device| device.after_power_cut(true)).collect();
        let left = Arc::new(AtomicU64::new(changes));
        cut.iter().for_each(|device| device.medium().changes_left = Some(left.clone()));
        change(&cut);
        (cut, changes - left.load(Ordering::Relaxed))
    };
    let (_, all) = run(MANY);
    assert!(all > 3, "{all} changes");
    for changes in 0..=all {
        let (cut, _) = run(changes);
        for keeps in [false, true] {
            let left: Vec<_> = cut.iter().map(|device| device.after_power_cut(keeps)).collect();
            each(changes, &left);
        }
    }
}

fn objects(keys: impl IntoIterator<Item = u64>) -> Contents {
    keys.into_iter().map(|key| (key, 1 + key % 5)).collect()
}

#[test]
fn an_addition_that_is_cut_leaves_the_old_store_or_the_new_one_and_can_be_repeated() {
    let (old, held) = (formatted(2, 3), objects(0..30));
    put_all(&old, &held);
    let all = [old, vec![TestDevice::new("memory:new", 300)]].concat();
    let (mut olds, mut news) = (0, 0);
    let change = |devices: &[TestDevice]| drop(added(&devices[..2], &devices[2], 70));
    cuts(&all, change, |changes, left| {
        let is_old = contents(&left[..2]);
        match contents(left) {
            Ok(found) => {
                assert_eq!(found, held, "after {changes} changes");
                news += 1;
                with_shards(left, |_, _, _| ());
                let refused = contents(&left[..2]).expect_err("it is finished").to_string();
                assert!(refused.contains("device 2 of the 3") && refused.contains("is missing"));
            }
            Err(_) => {
                assert_eq!(is_old.expect("the old store"), held, "after {changes} changes");
                olds += 1;
                added(&left[..2], &left[2], 71).expect("it can be repeated");
                assert_eq!(contents(left).expect("the new store"), held);
            }
        }
    });
    assert!(olds > 2 && news > 2, "{olds} old, {news} new");
}

#[test]
fn an_added_device_takes_new_objects() {
    let (old, new) = (formatted(1, 2), TestDevice::new("memory:new", 1000));
    put_all(&old, &objects(0..10));
    let all = added(&old, &new, 70).expect("it is blank");
    let more = objects(10..90);
    put_all(&all, &more);
    let found = contents(&all).expect("a store");
    assert!(more.keys().all(|key| found.contains_key(key)), "{found:?}");
    let set = read_set(&mut lanes(&all), &mut clock()).expect("a store");
    let clock = &mut clock();
    let mut lanes = lanes(&all);
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    let survey = carry::survey_of(&mut waiting, &set, 0).expect("whole");
    assert!(survey.objects.iter().any(|found| found.object.place.device == 1));
}

#[test]
fn a_device_with_contents_is_not_added_and_neither_is_one_of_the_store() {
    let old = formatted(2, 1);
    let foreign = formatted_as([1; 16], 1, 1);
    let text = added(&old, &foreign[0], 70).expect_err("a store is there").to_string();
    assert!(text.contains("--force"), "{text}");
    let text = added(&old, &old[1], 70).expect_err("it is given twice").to_string();
    assert!(text.contains("device 1 of the store already"), "{text}");
    let text = added(&old, &TestDevice::new("memory:small", 2), 70).expect_err("small").to_string();
    assert!(text.contains("take a device of 12288 bytes or more"), "{text}");
    let all = [&old[..], &foreign].concat();
    add(&mut lanes(&all), 2, (70, true), &mut clock(), &mut false).expect("it may be overwritten");
    assert_eq!(contents(&all).expect("a store"), Contents::new());
}

#[test]
fn a_device_of_a_change_that_never_took_place_is_not_taken_for_one_of_the_store() {
    let (old, held) = (formatted(1, 1), objects(0..9));
    put_all(&old, &held);
    let stale = TestDevice::new("memory:stale", 300);
    let cut = old[0].after_power_cut(true);
    // Only the new device gets its superblocks.
    cut.medium().failing = vec![(crate::shard::tests::device::Kind::Write, 9)];
    added(&[cut], &stale, 70).expect_err("the power is cut");
    let new = TestDevice::new("memory:new", 300);
    let all = added(&old, &new, 71).expect("another device");
    assert_eq!(contents(&all).expect("a store"), held);
    let text = contents(&[all[0].clone(), stale]).expect_err("the wrong one").to_string();
    assert!(text.contains("memory:stale: it was removed") || text.contains("left out"), "{text}");
}

#[test]
fn a_growth_that_is_cut_leaves_the_old_store_or_the_new_one() {
    let (old, held) = (formatted(2, 2), objects(0..30));
    put_all(&old, &held);
    let larger = [old[0].clone(), extended(&old[1], 700)];
    let text = contents(&larger).expect_err("larger").to_string();
    assert!(text.contains("memory:1: it is larger") && text.contains("adit kv grow"), "{text}");
    let grown = |devices: &[TestDevice]| grow(&mut lanes(devices), 80, &mut clock());
    let (mut olds, mut news) = (0, 0);
    cuts(
        &larger,
        |devices| drop(grown(devices)),
        |changes, left| {
            match contents(left) {
                Ok(_) => news += 1,
                Err(_) => {
                    let shrunk = left[1].after_power_cut(true);
                    shrunk.medium().bytes.truncate((UNITS * UNIT_BYTES) as usize);
                    let old = [left[0].clone(), shrunk];
                    assert_eq!(
                        contents(&old).expect("the old store"),
                        held,
                        "after {changes} changes"
                    );
                    olds += 1;
                    grown(left).expect("it can be repeated");
                }
            }
            assert_eq!(contents(left).expect("the new store"), held, "after {changes} changes");
            assert!(grown(left).is_err(), "nothing is left to take in");
        },
    );
    assert!(olds >= 2 && news > 2, "{olds} old, {news} new");
    let before = read_set(&mut lanes(&old), &mut clock()).expect("a store").geometry().data_units();
    let done = grown(&larger).expect("it has grown");
    assert_eq!(done.data_bytes, (before + 300) * UNIT_BYTES, "the old last unit became data");
    put_all(&larger, &objects(30..90));
    assert!(contents(&larger).expect("a store").len() > held.len());
}

#[test]
fn a_removal_that_is_cut_leaves_the_old_store_or_the_new_one_with_all_objects() {
    // The first device has a shard's home, the last has none.
    for index in [0, 2] {
        let (old, held) = (formatted(3, 2), objects(0..14));
        put_all(&old, &held);
        let rest = |devices: &[TestDevice]| without(devices, index);
        let (mut olds, mut news) = (0, 0);
        let change = |devices: &[TestDevice]| drop(removed(devices, index as u8, Leaving::Move));
        cuts(&old, change, |changes, left| match contents(&rest(left)) {
            Ok(found) => {
                assert_eq!(found, held, "after {changes} changes");
                news += 1;
                let refused = contents(left).expect_err("it was removed").to_string();
                let name = format!("memory:{index}: ");
                assert!(refused.contains(&name) && !refused.contains("order"), "{refused}");
                with_shards(&rest(left), |_, _, _| ());
            }
            Err(refused) => {
                let refused = refused.to_string();
                assert!(refused.contains("is missing"), "after {changes} changes: {refused}");
                assert_eq!(contents(left).expect("the old store"), held, "after {changes} changes");
                olds += 1;
                if changes % 5 == 0 {
                    removed(left, index as u8, Leaving::Move).expect("it can be repeated");
                    assert_eq!(contents(&rest(left)).expect("the new store"), held);
                }
            }
        });
        assert!(olds > 10 && news > 2, "{olds} old, {news} new");
    }
}

#[test]
fn a_store_of_one_shard_loses_its_first_device_and_goes_on() {
    let (old, held) = (formatted(2, 1), objects(0..40));
    put_all(&old, &held);
    let done = removed(&old, 0, Leaving::Move).expect("there is room");
    assert_eq!((done.lost_objects, done.damaged_objects), (0, 0));
    assert!(done.moved_objects > 5 && done.moved_bytes > 5 * UNIT_BYTES, "{done:?}");
    let rest = without(&old, 0);
    assert_eq!(contents(&rest).expect("a store"), held);
    put_all(&rest, &objects(40..60));
    let found = contents(&rest).expect("a store");
    assert_eq!(found.len(), 60);
    let text = removed(&rest, 0, Leaving::Drop).expect_err("the last one").to_string();
    assert!(text.contains("has 1 devices"), "{text}");
    // The removed device is blank, and can be added again.
    let again = added(&rest, &old[0], 90).expect("it is blank");
    assert_eq!(contents(&again).expect("a store"), found);
    removed(&again, 0, Leaving::Move).expect("there is room");
    assert_eq!(contents(&without(&again, 0)).expect("a store"), found);
}

#[test]
fn a_removal_keeps_the_ages_of_objects() {
    let old = formatted(2, 1);
    put_all(&old, &objects(0..40));
    with_shards(&old, |_, _, shard| {
        wait(shard, put_as(40, 1, PutOptions::default()));
        let mut now = Time::ZERO;
        shard.keep_ages(now, std::time::Duration::from_secs(5));
        while !shard.is_idle() {
            now = now + std::time::Duration::from_millis(1);
            shard.poll(now, &mut |_| ());
        }
        assert_eq!(shard.stats().checkpoints, 1);
    });
    let ages = |devices: &[TestDevice]| {
        let mut lanes = lanes(devices);
        let set = read_set(&mut lanes, &mut clock()).expect("a store");
        let mut waiting = Waiting { lanes: &mut lanes, clock: &mut clock() };
        let survey = carry::survey_of(&mut waiting, &set, 0).expect("whole");
        survey.objects.into_iter().map(|found| (found.key, found.age)).collect::<BTreeMap<_, _>>()
    };
    let before = ages(&old);
    assert!(before.values().flatten().max() > Some(&1), "{before:?}");
    removed(&old, 0, Leaving::Move).expect("there is room");
    assert_eq!(ages(&without(&old, 0)), before);
}

#[test]
fn what_does_not_fit_is_refused_unless_the_oldest_or_those_of_the_device_may_go() {
    let held: Contents = (0..44).map(|key| (key, 14)).collect();
    let fresh = || {
        let old = formatted(2, 1);
        put_all(&old, &held);
        old
    };
    let old = fresh();
    let before: Vec<Vec<u8>> = old.iter().map(|device| device.medium().bytes.clone()).collect();
    let full = contents(&old).expect("a store");
    let refused = removed(&old, 0, Leaving::Move).expect_err("no room").to_string();
    assert!(refused.contains("no room for") && refused.contains("--evict"), "{refused}");
    let after: Vec<Vec<u8>> = old.iter().map(|device| device.medium().bytes.clone()).collect();
    assert!(before == after, "nothing was written");

    let done = removed(&old, 0, Leaving::Evict).expect("the oldest go");
    let left = contents(&without(&old, 0)).expect("a store");
    assert_eq!(done.lost_objects as usize, full.len() - left.len());
    assert!(done.moved_objects > 0 && done.lost_bytes == done.lost_objects * 14 * UNIT_BYTES);
    let youngest = full.keys().rev().take(left.len());
    assert!(youngest.eq(left.keys().rev()), "the oldest went: {left:?}");

    let old = fresh();
    let done = removed(&old, 1, Leaving::Drop).expect("they go");
    let left = contents(&without(&old, 1)).expect("a store");
    assert_eq!((done.moved_objects, done.lost_objects as usize), (0, full.len() - left.len()));
    assert!(left.len() * 3 > full.len() && left.len() < full.len());
}

#[test]
fn a_removal_that_evicts_leaves_the_old_store_or_the_new_one() {
    let held: Contents = (0..44).map(|key| (key, 14)).collect();
    let old = formatted(2, 1);
    put_all(&old, &held);
    let full = contents(&old).expect("a store");
    let kept = {
        let copy: Vec<_> = old.iter().map(|device| device.after_power_cut(true)).collect();
        removed(&copy, 0, Leaving::Evict).expect("the oldest go");
        contents(&without(&copy, 0)).expect("a store")
    };
    cuts(
        &old,
        |devices| drop(removed(devices, 0, Leaving::Evict)),
        |changes, left| {
            let found = contents(&without(left, 0)).or_else(|_| contents(left));
            let found = found.unwrap_or_else(|error| panic!("after {changes} changes: {error}"));
            assert!(
                found == full || found == kept,
                "after {changes} changes: {} objects",
                found.len()
            );
        },
    );
}

#[test]
fn a_damaged_object_is_left_out_and_counted() {
    let (old, held) = (formatted(2, 1), objects(0..20));
    put_all(&old, &held);
    let place = {
        let set = read_set(&mut lanes(&old), &mut clock()).expect("a store");
        let (clock, mut lanes) = (&mut clock(), lanes(&old));
        let survey = carry::survey_of(&mut Waiting { lanes: &mut lanes, clock }, &set, 0);
        let objects = survey.expect("whole").objects;
        objects.iter().find(|found| found.object.place.device == 0).expect("one").object.place
    };
    old[0].medium().bytes[(place.unit * UNIT_BYTES) as usize] ^= 1;
    let done = removed(&old, 0, Leaving::Move).expect("there is room");
    assert_eq!((done.damaged_objects, done.lost_objects), (1, 1));
    assert_eq!(contents(&without(&old, 0)).expect("a store").len(), held.len() - 1);
}

#[test]
fn a_write_that_goes_wrong_ends_a_removal_and_leaves_the_store() {
    let (old, held) = (formatted(2, 1), objects(0..20));
    put_all(&old, &held);
    with_shards(&old, |_, _, _| ());
    old[1].medium().flips_left = u32::MAX;
    let text = removed(&old, 0, Leaving::Move).expect_err("no write is right").to_string();
    assert!(text.contains("reads back otherwise"), "{text}");
    old[1].medium().flips_left = 0;
    assert_eq!(contents(&old).expect("a store"), held);
}

#[test]
fn kv_blocks_move_with_their_layers_and_layouts() {
    let block = BlockShape {
        layers: 3,
        tensors_per_layer: 2,
        kv_heads: 1,
        head_dim: 64,
        dtype: Dtype::F16,
        tokens: 32,
    };
    let layout = Layout::new(block, Order::LayerMajor { slots: 4 }).expect("a layout");
    let old = formatted(2, 1);
    let bytes = layout.block_bytes();
    let mut on_first = 0;
    with_shards(&old, |_, _, shard| {
        let layout = shard.layout(Time::ZERO, layout).expect("defined");
        assert_ne!(layout, LayoutId::PLAIN);
        for key in 0..20 {
            let data = AnyBuffer::One(filled(key, bytes / UNIT_BYTES));
            let options = PutOptions { layout, ..PutOptions::default() };
            let action = Action::Put(PutItem { key: Key::from(key), bytes, data, options });
            assert_eq!(wait(shard, action), Outcome::Stored);
            wait(shard, put_as(100 + key, 2, PutOptions::default()));
        }
        wait(shard, Action::Commit);
    });
    let held = contents(&old).expect("a store");
    assert_eq!(held.len(), 40);
    for index in [0, 1] {
        let copy: Vec<_> = old.iter().map(|device| device.after_power_cut(true)).collect();
        let done = removed(&copy, index, Leaving::Move).expect("there is room");
        on_first += done.moved_objects;
        let rest = without(&copy, usize::from(index));
        assert_eq!(contents(&rest).expect("a store"), held);
        with_shards(&rest, |_, _, shard| assert_eq!(shard.stats().objects, 40));
    }
    assert!(on_first >= 40, "each is on one of the devices");
}

#[test]
fn a_store_survives_many_changes_one_after_another() {
    let mut devices = formatted(1, 3);
    let mut held = objects(0..12);
    put_all(&devices, &held);
    let mut number = 12;
    for round in 0..12u64 {
        match round % 4 {
            0 | 1 => {
                let new = TestDevice::new(&format!("memory:{}", 10 + round), 450 + round);
                devices = added(&devices, &new, 1000 * (round + 1)).expect("it is blank");
            }
            2 => {
                let at = (round as usize / 4) % devices.len();
                let units = devices[at].medium().bytes.len() as u64 / UNIT_BYTES;
                devices[at] = extended(&devices[at], units + 50);
                grow(&mut lanes(&devices), round, &mut clock()).expect("it has grown");
            }
            _ => {
                let index = (round as usize / 4) % devices.len();
                removed(&devices, index as u8, Leaving::Move).expect("there is room");
                devices = without(&devices, index);
            }
        }
        let more = objects(number..number + 4);
        put_all(&devices, &more);
        held.extend(more);
        number += 4;
        assert_eq!(contents(&devices).expect("a store"), held, "round {round}");
    }
}

#[test]
fn a_volatile_opening_after_a_removal_was_cut_brings_nothing_of_it_back() {
    let (old, held) = (formatted(2, 1), objects(0..10));
    put_all(&old, &held);
    let volatile = ShardOptions { durability: Durability::Volatile, ..ShardOptions::default() };
    cuts(
        &old,
        |devices| drop(removed(devices, 1, Leaving::Move)),
        |_, left| {
            let Ok(set) = read_set(&mut lanes(left), &mut clock()) else { return };
            let opened: Result<(Shard<TestQueue>, _)> =
                Shard::open(0, lanes(left), &set, volatile.clone(), &mut clock());
            drop(opened.expect("it opens"));
            assert_eq!(contents(left).expect("a store"), Contents::new());
        },
    );
}
