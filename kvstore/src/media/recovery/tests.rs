//! A small shard, cut at any moment, damaged anywhere, and compared with its model.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::*;
use super::*;
use crate::media::journal::Journal;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn what_is_found_after_any_cut_is_what_was_told_up_to_there(steps in steps(400), seed: u64) {
        let mut shard = Shard::new();
        for step in &steps {
            shard.step(step);
        }
        shard.cut(seed);
        shard.cut(!seed);
    }

    #[test]
    fn damage_costs_the_end_and_never_more(steps in steps(300), hits in vec((0u64..220, 0usize..4096), 1..4)) {
        let mut shard = Shard::new();
        for step in &steps {
            shard.step(step);
        }
        shard.write_all_and_flush();
        for (unit, at) in hits {
            shard.device.units.entry(unit).or_insert_with(|| vec![0; 4096])[at] ^= 0x10;
        }
        let (state, found) = open(&mut shard.device);
        prop_assert!(found.is_inconsistent || is_a_prefix(&shard, &state), "{:?}", found);
        // The store continues from what was found.
        if !found.is_inconsistent {
            shard.is_damaged = true;
            shard.resume(state, &found);
            steps.iter().for_each(|step| shard.step(step));
        }
    }
}

#[test]
fn every_unit_lost_or_flipped_leaves_a_prefix() {
    let shard = busy();
    for unit in shard.device.units.keys() {
        for damage in 0..3 {
            let mut device = shard.device.clone();
            let bytes = device.units.get_mut(unit).expect("a unit");
            match damage {
                0 => bytes.fill(0),
                1 => bytes[4095] ^= 1,
                _ => bytes[20] ^= 0x80,
            }
            let (state, found) = open(&mut device);
            assert!(!found.is_inconsistent, "unit {unit}: {found:?}");
            assert!(is_a_prefix(&shard, &state), "unit {unit}: {found:?}");
        }
    }
}

#[test]
fn blocks_exchanged_or_repeated_leave_a_prefix() {
    let shard = busy();
    for from in areas().journal {
        for to in areas().journal.filter(|to| *to != from) {
            for is_exchange in [false, true] {
                let mut device = shard.device.clone();
                let old = device.units.insert(to, shard.device.units[&from].clone());
                if is_exchange {
                    device.units.insert(from, old.expect("a block"));
                }
                let (state, found) = open(&mut device);
                assert!(!found.is_inconsistent, "{from} to {to}: {found:?}");
                assert!(is_a_prefix(&shard, &state), "{from} to {to}: {found:?}");
            }
        }
    }
}

#[test]
fn a_damaged_newest_checkpoint_is_replaced_by_the_older_and_costs_nothing() {
    let mut shard = busy();
    let (whole, found) = open(&mut shard.device);
    let newest = found.checkpoint.expect("a checkpoint");
    let body = areas().slots[newest.slot].start + 1;
    shard.device.units.get_mut(&body).expect("a unit")[100] ^= 1;
    let (state, found) = open(&mut shard.device);
    assert_eq!(state, whole);
    assert_eq!(found.passed_over, [(newest.number, Void::Damaged)]);
    assert!(!found.is_flushed_lost, "all of it is in the journal");
    let older = found.checkpoint.expect("the older");
    assert_eq!((older.number, older.slot), (newest.number - 1, 1 - newest.slot));
    assert_eq!((found.next_slot, found.next_number), (newest.slot, newest.number + 1));
    assert_eq!(found.tail, older.begin.sequence);
}

#[test]
fn without_any_checkpoint_the_store_is_empty_and_goes_on() {
    let mut shard = busy();
    for slot in areas().slots {
        shard.device.units.get_mut(&slot.start).expect("a header")[50] ^= 1;
    }
    let (state, found) = open(&mut shard.device);
    assert_eq!(
        (state, found.next, found.damaged_headers),
        (State::default(), Mark::start(&LINEAGE), [true; 2])
    );
    shard.told.clear();
    assert_eq!((found.cut, found.is_flushed_lost), (Some(Void::Sequence(33)), true));
    shard.resume(State::default(), &found);
    (0..60).for_each(|key| shard.step(&Step::Put(key % 24, 1)));
    shard.write_all_and_flush();
    shard.cut(5);
}

#[test]
fn a_block_written_again_with_the_same_records_revives_nothing_behind_it() {
    let lost = |session: u64| {
        let mut shard = Shard::new();
        for key in 0..3 {
            shard.step(&Step::Put(key, 0));
            shard.step(&Step::Commit);
            shard.write_all_and_flush();
        }
        shard.device.units.remove(&(areas().journal.start + 2));
        let (state, found) = open(&mut shard.device);
        assert_eq!((found.next.sequence, found.blocks_behind), (2, 1));
        shard.session = session - 1;
        shard.resume(state, &found);
        shard.step(&Step::Put(1, 0));
        shard.step(&Step::Commit);
        shard.write_all_and_flush();
        open(&mut shard.device).1.next.sequence
    };
    assert_eq!(lost(2), 3, "the third block stays void");
    assert_eq!(lost(1), 4, "and would not, if both openings had one number");
}

#[test]
fn another_epoch_finds_nothing() {
    let mut shard = busy();
    let mut state = State::default();
    let later = Lineage { epoch: 2, ..LINEAGE };
    let found = recover(&mut shard.device, &mut state, &later, &areas()).expect("answers");
    assert_eq!((state, found.next, found.tail), (State::default(), Mark::start(&later), 1));
    assert_eq!((found.checkpoint, found.next_number), (None, 1));
}

/// Returns a shard whose checkpoints were all taken under load.
fn checkpointed_under_load() -> Shard {
    let mut shard = Shard::new();
    for round in 0..3u64 {
        (0..6).for_each(|key| shard.step(&Step::Put(key, round)));
        while !shard.checkpoint(2) {
            shard.step(&Step::Put(7, round));
        }
    }
    shard
}

#[test]
fn a_journal_cut_before_a_checkpoints_end_rules_the_checkpoint_out() {
    let mut shard = checkpointed_under_load();
    let (_, found) = open(&mut shard.device);
    let newest = found.checkpoint.expect("a checkpoint");
    let at = areas().journal.start + newest.begin.sequence % BLOCKS;
    shard.device.units.get_mut(&at).expect("a block").fill(0);
    let (state, found) = open(&mut shard.device);
    assert_eq!(found.passed_over, [(newest.number, Void::Chain)]);
    assert!(!found.is_inconsistent && is_a_prefix(&shard, &state), "{found:?}");
    assert_eq!((found.cut, found.is_flushed_lost), (Some(Void::Blank), true));
    // A new history begins there. The newest checkpoint belongs to the old one for ever, even if its header comes
    // back.
    let header = areas().slots[newest.slot].start;
    let hidden = shard.device.units[&header].clone();
    shard.resume(state, &found);
    shard.device.units.insert(header, hidden);
    for key in 0..20 {
        shard.step(&Step::Put(key, 3));
    }
    shard.journal.seal();
    shard.write_all_and_flush();
    let (state, found) = open(&mut shard.device);
    assert_eq!(found.passed_over, [(newest.number, Void::Chain)]);
    assert_eq!(state, shard.model(u64::MAX));
}

#[test]
fn what_contradicts_itself_is_said_to_be_inconsistent() {
    let mut shard = checkpointed_under_load();
    let kept: BTreeSet<u64> = areas().slots.into_iter().flatten().collect();
    shard.device.units.retain(|unit, _| kept.contains(unit));
    let (state, found) = open(&mut shard.device);
    assert!(found.is_inconsistent && !state.objects.is_empty(), "{found:?}");
    assert!(found.is_flushed_lost);
    let newest = found.checkpoint.expect("the newest");
    assert_eq!((found.next, found.next_slot), (newest.begin, 1 - newest.slot));
}

#[test]
fn an_opening_keeps_the_journal_that_the_older_checkpoint_needs() {
    let mut shard = busy();
    let (state, found) = open(&mut shard.device);
    shard.resume(state, &found);
    for key in 0.. {
        let key = vec![key; 300];
        let said = Said::Put(key, 1);
        let Ok(block) = said.with(|record| shard.journal.append(record)) else { break };
        shard.told.push((block, said));
    }
    shard.journal.seal();
    shard.write_all_and_flush();
    let body = areas().slots[found.checkpoint.expect("a checkpoint").slot].start + 1;
    shard.device.units.get_mut(&body).expect("a unit")[100] ^= 1;
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.passed_over.len(), found.journal_blocks), (1, BLOCKS));
    assert_eq!(found.cut, None, "the whole ring was replayed");
    assert_eq!(state, shard.model(u64::MAX));
}

#[test]
fn blocks_of_another_shard_never_follow() {
    let blocks = |shard: u16| {
        let start = Mark::start(&Lineage { shard, ..LINEAGE });
        let mut journal = Journal::new(areas().journal, 1, 1, start, FIRST_SEQUENCE);
        for key in 0..3 {
            let said = Said::Put(vec![key; 8], 1);
            said.with(|record| journal.append(record)).expect("room");
            journal.seal();
        }
        let mut memory = vec![0; 3 * JOURNAL_BLOCK_BYTES];
        (journal.take(&mut memory).expect("blocks").unit, memory)
    };
    let ((unit, ours), (_, theirs)) = (blocks(0), blocks(1));
    for misdirected in 0..3 {
        let mut device = Device::default();
        device.write(unit, &ours);
        let at = misdirected as usize * JOURNAL_BLOCK_BYTES;
        device.write(unit + misdirected, &theirs[at..at + JOURNAL_BLOCK_BYTES]);
        let (_, found) = open(&mut device);
        assert_eq!((found.journal_blocks, found.cut), (misdirected, Some(Void::Chain)));
    }
}

/// Returns a device with the journal of a fresh shard: one delete per block, written by these sessions.
fn journal_of_sessions(sessions: &[u64]) -> Device {
    let (mut device, mut next) = (Device::default(), Mark::start(&LINEAGE));
    for session in sessions {
        let mut journal = Journal::new(areas().journal, 1, *session, next, FIRST_SEQUENCE);
        let said = Said::Delete(b"key".to_vec(), 1);
        said.with(|record| journal.append(record)).expect("room");
        next = journal.seal();
        let mut memory = vec![0; JOURNAL_BLOCK_BYTES];
        device.write(journal.take(&mut memory).expect("a block").unit, &memory);
    }
    device.flush();
    device
}

#[test]
fn a_block_is_replayed_as_a_whole_or_not_at_all() {
    let mut device = journal_of_sessions(&[1, 1, 1]);
    let second = device.units.get_mut(&(areas().journal.start + 2)).expect("a block");
    // Add a record of unknown kind behind the existing one.
    second[12] += 1;
    second[56 + 13] = 0xff;
    let seal = crate::media::bytes::crc64(&second[8..]);
    second[..8].copy_from_slice(&seal.to_le_bytes());
    let (_, found) = open(&mut device);
    assert_eq!((found.journal_blocks, found.journal_records), (1, 1));
    assert!(matches!(found.cut, Some(Void::Records(_))), "{found:?}");
}

#[test]
fn what_lies_behind_a_cut_is_counted_unless_an_earlier_session_wrote_it() {
    let mut device = journal_of_sessions(&[2, 2, 2, 1, 3]);
    device.units.get_mut(&(areas().journal.start + 2)).expect("a block")[100] ^= 1;
    let (_, found) = open(&mut device);
    assert_eq!((found.cut, found.journal_blocks), (Some(Void::Damaged), 1));
    assert_eq!(found.blocks_behind, 2, "blocks 3 and 5");
}

#[test]
fn damage_before_what_was_flushed_is_told_from_a_cut() {
    let mut shard = Shard::new();
    for key in 0..4 {
        shard.step(&Step::Put(key, 0));
        shard.step(&Step::Commit);
        shard.write_all_and_flush();
    }
    // Each block states that those below it were flushed; no block does so for the fourth.
    let lost = |block: u64| {
        let mut device = shard.device.clone();
        device.units.remove(&(areas().journal.start + block));
        open(&mut device).1.is_flushed_lost
    };
    assert_eq!([1, 2, 3, 4].map(lost), [true, true, true, false]);
}

#[test]
fn a_checkpoint_that_could_not_be_read_once_stays_void() {
    let mut shard = busy();
    let headers = areas().slots.map(|slot| slot.start);
    let hidden = headers.map(|unit| shard.device.units.remove(&unit).expect("a header"));
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.checkpoint, found.void_slots), (None, [true; 2]));
    // They become readable again, but what the opening wrote lies over them.
    shard.device.units.extend(headers.into_iter().zip(hidden));
    shard.resume(state, &found);
    shard.step(&Step::Put(1, 2));
    shard.journal.seal();
    shard.write_all_and_flush();
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.next.sequence, found.checkpoint), (2, None));
    assert_eq!(state, shard.model(u64::MAX));
}
