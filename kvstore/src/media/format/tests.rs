//! Tests formats and openings interrupted at every write, and devices that have changed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::shard::tests::device::{TestDevice, TestQueue};
use crate::shard::{Shard, ShardOptions};

const UNITS: u64 = 256;
const DEVICES: usize = 3;
/// Changes made by a format or an opening: two copies on each device, each followed by a flush.
const CHANGES: u64 = 4 * DEVICES as u64;

fn blank_devices() -> Vec<TestDevice> {
    (0..DEVICES).map(|index| TestDevice::new(&format!("memory:{index}"), UNITS)).collect()
}

fn lanes(devices: &[TestDevice]) -> Vec<Lane<TestQueue>> {
    devices.iter().map(TestDevice::lane).collect()
}

fn format_as(devices: &[TestDevice], number: u8, overwrite: bool) -> Result<()> {
    let options = FormatOptions {
        shards: 2,
        objects_max: 10,
        key_bytes: 32,
        journal_bytes: Some(64 << 10),
        label: format!("store {number}"),
        store_id: [number; 16],
        overwrite,
    };
    format(&mut lanes(devices), &options, &mut || Time::ZERO).map(drop)
}

fn set_of(devices: &[TestDevice]) -> Result<Set> {
    read_set(&mut lanes(devices), &mut || Time::ZERO)
}

fn open(devices: &[TestDevice], durability: Durability) -> Result<()> {
    let set = set_of(devices)?;
    let options = ShardOptions { durability, ..ShardOptions::default() };
    Shard::<_>::open(0, lanes(devices), &set, options, &mut || Time::ZERO).map(drop)
}

/// Returns the devices after `change` was interrupted behind each of its writes and flushes, with unflushed data both
/// kept and lost.
fn cuts(before: &[TestDevice], change: impl Fn(&[TestDevice])) -> Vec<(u64, Vec<TestDevice>)> {
    let mut all = Vec::new();
    for changes in 0..=CHANGES {
        let cut: Vec<_> = before.iter().map(|device| device.after_power_cut(true)).collect();
        let left = Arc::new(AtomicU64::new(changes));
        cut.iter().for_each(|device| device.medium().changes_left = Some(left.clone()));
        change(&cut);
        for keeps in [false, true] {
            let left = cut.iter().map(|device| device.after_power_cut(keeps)).collect();
            all.push((changes, left));
        }
    }
    all
}

fn refusal(devices: &[TestDevice]) -> String {
    set_of(devices).expect_err("refused").to_string()
}

fn damage(device: &TestDevice, unit: u64) {
    device.medium().bytes[(unit * UNIT_BYTES) as usize + 100] ^= 0x10;
}

#[test]
fn a_first_format_that_is_cut_short_leaves_the_store_or_none() {
    for (changes, left) in cuts(&blank_devices(), |devices| drop(format_as(devices, 1, false))) {
        match set_of(&left) {
            Ok(set) => {
                assert_eq!((set.store_id(), set.objects_max()), ([1; 16], 10));
                assert!(changes >= DEVICES as u64, "after {changes} changes");
                open(&left, Durability::Restart).expect("it opens");
            }
            Err(refused) => {
                assert!(changes < CHANGES / 2, "after {changes} changes: {refused}");
                assert!(refused.to_string().contains("nothing was ever written here"), "{refused}");
            }
        }
        format_as(&left, 2, true).expect("it can be formatted again");
        assert_eq!(set_of(&left).expect("a store").store_id(), [2; 16]);
    }
}

#[test]
fn a_format_over_a_store_leaves_the_old_the_new_or_a_refusal_but_never_a_mixture() {
    let before = blank_devices();
    format_as(&before, 1, false).expect("blank devices");
    let (mut old, mut new) = (0, 0);
    for (changes, left) in cuts(&before, |devices| drop(format_as(devices, 2, true))) {
        match set_of(&left).map(|set| set.store_id()) {
            Ok([1, ..]) => old += 1,
            Ok(_) => new += 1,
            Err(refused) => {
                let text = refused.to_string();
                assert!(text.contains("it belongs to store"), "after {changes} changes: {text}");
            }
        }
        if changes == CHANGES {
            assert_eq!(set_of(&left).expect("a store").store_id(), [2; 16]);
        }
    }
    assert!(old > 8 && new >= 2, "{old} old and {new} new");
}

#[test]
fn an_opening_that_is_cut_short_raises_the_session_or_not_and_the_next_is_above_it() {
    let before = blank_devices();
    format_as(&before, 1, false).expect("blank devices");
    let first = set_of(&before).expect("a store").agreed().epoch;
    for durability in [Durability::Restart, Durability::Volatile] {
        let raised = first + u64::from(durability == Durability::Volatile);
        for (changes, left) in cuts(&before, |devices| drop(open(devices, durability))) {
            let agreed = set_of(&left).expect("it is still a store").agreed();
            assert!((1..=2).contains(&agreed.sequence) && agreed.epoch <= raised);
            if changes == CHANGES {
                assert_eq!((agreed.sequence, agreed.epoch), (2, raised));
            }
            open(&left, Durability::Restart).expect("it opens");
            let next = set_of(&left).expect("a store");
            assert_eq!(next.agreed().sequence, agreed.sequence + 1, "after {changes} changes");
            assert_eq!((next.agreed().epoch, next.bad()), (agreed.epoch, &[][..]));
        }
    }
}

#[test]
fn an_opening_that_is_cut_amid_a_write_never_tears_the_only_whole_copy() {
    for unit in [0, UNITS - 1] {
        let before = blank_devices();
        format_as(&before, 1, false).expect("blank devices");
        damage(&before[1], unit);
        let all = cuts(&before, |devices| drop(open(devices, Durability::Restart)));
        let kept: Vec<_> = all.into_iter().skip(1).step_by(2).map(|(_, left)| left).collect();
        let mut torn = 0;
        for two in kept.windows(2) {
            for (device, next) in two[0].iter().zip(&two[1]) {
                let at = |device: &TestDevice, unit: u64| {
                    device.medium().bytes[(unit * UNIT_BYTES) as usize..][..4096].to_vec()
                };
                let written = |unit: &u64| at(device, *unit) != at(next, *unit);
                for copy in [0, UNITS - 1].into_iter().filter(written) {
                    damage(device, copy);
                    torn += 1;
                }
            }
            assert!(set_of(&two[0]).is_ok(), "with unit {unit} damaged before");
        }
        assert_eq!(torn, 2 * before.len(), "each copy was on its way once");
    }
}

#[test]
fn one_damaged_copy_is_named_and_repaired_and_two_are_the_end() {
    let devices = blank_devices();
    format_as(&devices, 1, false).expect("blank devices");
    for (copy, unit) in [('A', 0), ('B', UNITS - 1)] {
        damage(&devices[1], unit);
        let set = set_of(&devices).expect("the other copy");
        assert_eq!(set.bad(), [(1, copy, Absent::Damaged)]);
        open(&devices, Durability::Restart).expect("it opens");
        assert_eq!(set_of(&devices).expect("a store").bad(), []);
    }
    damage(&devices[1], 0);
    damage(&devices[1], UNITS - 1);
    let text = refusal(&devices);
    assert!(text.contains("memory:1: both copies of the superblock are damaged"), "{text}");
    let refused = format_as(&devices, 2, false).expect_err("something is there").to_string();
    assert!(refused.contains("--force"), "{refused}");
}

#[test]
fn devices_that_are_not_what_they_were_are_refused_with_what_to_do() {
    let all = blank_devices();
    format_as(&all, 1, false).expect("blank devices");
    let swapped = [all[0].clone(), all[2].clone(), all[1].clone()];
    let text = refusal(&swapped);
    assert!(text.contains("in this order: memory:0 memory:1 memory:2"), "{text}");
    let text = refusal(&all[..2]);
    assert!(text.contains("device 2 of the 3") && text.contains("is missing"), "{text}");
    let text = refusal(&[all[0].clone(), all[0].clone(), all[2].clone()]);
    assert!(text.contains("is missing") || text.contains("each target once"), "{text}");
    for (units, word) in [(UNITS - 1, "smaller"), (UNITS + 7, "larger")] {
        let resized = [all[0].clone(), all[1].resized(units), all[2].clone()];
        let text = refusal(&resized);
        assert!(text.contains("memory:1: it is ") && text.contains(word), "{text}");
        assert!(text.contains(&format!("{units} units, not {UNITS}")), "{text}");
    }
    let blank = [all[0].clone(), TestDevice::new("memory:new", UNITS), all[2].clone()];
    let text = refusal(&blank);
    assert!(text.contains("memory:new: nothing was ever written here"), "{text}");
}

#[test]
fn a_store_or_anything_else_is_not_formatted_over_without_being_told_to() {
    let devices = blank_devices();
    format_as(&devices, 1, false).expect("blank devices");
    let text = format_as(&devices, 2, false).expect_err("a store is there").to_string();
    assert!(text.contains("device 0 of 3 of a store ('store 1')"), "{text}");
    assert_eq!(set_of(&devices).expect("untouched").store_id(), [1; 16]);
    let foreign = blank_devices();
    foreign[2].medium().bytes[..4096].fill(0x5a);
    let text = format_as(&foreign, 2, false).expect_err("something is there").to_string();
    assert!(text.starts_with("memory:2: there is other data here"), "{text}");
    assert!(foreign[0].medium().bytes.iter().all(|byte| *byte == 0), "nothing was written");
}

#[test]
fn a_device_that_does_not_answer_ends_each_call_with_its_name() {
    let devices = blank_devices();
    format_as(&devices, 1, false).expect("blank devices");
    devices[1].medium().is_dead = true;
    for text in [refusal(&devices), format_as(&devices, 2, true).expect_err("dead").to_string()] {
        assert!(text.contains("memory:1"), "{text}");
    }
}

#[test]
fn a_superblock_that_goes_wrong_on_its_way_is_written_again_before_the_other_copy_is() {
    let devices = blank_devices();
    format_as(&devices, 1, false).expect("formatted");
    devices[1].medium().flips_left = 1;
    open(&devices, Durability::Restart).expect("the next write is right");
    assert!(set_of(&devices).expect("a store").bad().is_empty(), "both copies are whole");
    devices[1].medium().flips_left = u32::MAX;
    let refused = open(&devices, Durability::Restart).expect_err("no write is right");
    assert!(refused.to_string().contains("reads back otherwise"), "{refused}");
    devices[1].medium().flips_left = 0;
    assert_eq!(set_of(&devices).expect("copy A is as it was").store_id(), [1; 16]);
    open(&devices, Durability::Restart).expect("it opens");
}

#[test]
fn a_stop_that_is_cut_short_is_told_or_not_and_later_sessions_keep_it_until_a_new_epoch() {
    let before = blank_devices();
    format_as(&before, 1, false).expect("formatted");
    let set = set_of(&before).expect("a store");
    assert_eq!(set.witness(0), None);
    open(&before, Durability::Restart).expect("opened");
    let stop = |devices: &[TestDevice]| {
        let mut lanes = lanes(devices);
        _ = end_session(&mut lanes, &set, Durability::Restart, &[5, 9], &mut || Time::ZERO);
    };
    let mut told = [0; 2];
    for (changes, left) in cuts(&before, stop) {
        let found = set_of(&left).expect("the store").witness(1);
        assert!(found.is_none_or(|found| found == Witness { session: 2, end: 9 }));
        assert!(found.is_some() || changes < CHANGES, "all of it is written");
        told[usize::from(found.is_some())] += 1;
        open(&left, Durability::Restart).expect("opened");
        let again = set_of(&left).expect("the store");
        assert!(again.witness(1) == found && again.agreed().sequence > 2, "cut behind {changes}");
        open(&left, Durability::Volatile).expect("opened");
        assert_eq!(set_of(&left).expect("the store").witness(1), None, "its journal is void");
    }
    assert!(told.iter().all(|count| *count > 2), "{told:?}");
}
