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
    assert_eq!(found.void_slots, [false; 2]);
    let body = areas().slots[newest.slot].start + 1;
    shard.device.units.get_mut(&body).expect("a unit")[100] ^= 1;
    let (state, found) = open(&mut shard.device);
    assert_eq!(state, whole);
    assert_eq!(found.passed_over, [(newest.number, Void::Damaged)]);
    assert_eq!(found.void_slots, [0, 1].map(|slot| slot == newest.slot));
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
        assert_eq!(found.blocks_behind, 2 - misdirected, "the cut is not behind itself");
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

#[test]
fn chunks_come_in_order_until_one_is_the_last_wanted() {
    let mut device = Device::default();
    (7..12).for_each(|unit| device.write(unit, &[unit as u8; UNIT_BYTES as usize]));
    let mut read = |wanted: usize| {
        let mut chunks = Vec::new();
        let mut each = |chunk: &[u8]| {
            let units = chunk.chunks(UNIT_BYTES as usize);
            chunks.push(units.map(|unit| unit[4095]).collect::<Vec<u8>>());
            Ok(chunks.len() < wanted)
        };
        device.read_stream(0, 7..12, 2 * UNIT_BYTES as usize, &mut each).expect("answers");
        chunks
    };
    let all = [vec![7, 8], vec![9, 10], vec![11]];
    for wanted in 1..=4 {
        assert_eq!(read(wanted), all[..wanted.min(3)]);
    }
}

/// A device that counts the bytes read.
struct Counting<'a>(&'a mut Device, u64);

impl Media for Counting<'_> {
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> Result<()> {
        self.1 += into.len() as u64;
        self.0.read(device, unit, into)
    }
}

#[test]
fn all_bytes_read_are_counted() {
    let mut shard = checkpointed_under_load();
    let mut media = Counting(&mut shard.device, 0);
    let found = recover(&mut media, &mut State::default(), &LINEAGE, &areas()).expect("answers");
    assert!(found.checkpoint_records > 0 && found.journal_blocks > 0);
    assert_eq!(found.bytes_read, media.1);
}

#[test]
fn a_checkpoint_that_its_slot_does_not_hold_is_damaged() {
    let mut shard = busy();
    let newest = open(&mut shard.device).1.checkpoint.expect("a checkpoint");
    let mut short = areas();
    short.slots[newest.slot].end = short.slots[newest.slot].start + BODY_BLOCK_UNITS;
    let found =
        recover(&mut shard.device, &mut State::default(), &LINEAGE, &short).expect("answers");
    assert_eq!(found.checkpoint.map(|older| older.slot), Some(1 - newest.slot));
    assert_eq!(found.damaged_headers, [0, 1].map(|slot| slot == newest.slot));
}

#[test]
fn a_journal_that_still_has_its_start_is_better_than_an_inconsistent_checkpoint() {
    let mut shard = Shard::new();
    for key in 0..6 {
        shard.step(&Step::Put(key, 0));
        shard.step(&Step::Commit);
    }
    while !shard.checkpoint(2) {
        shard.step(&Step::Put(7, 0));
    }
    let begin = shard.newest_begin;
    assert!(begin > FIRST_SEQUENCE);
    shard.device.units.remove(&(areas().journal.start + begin)).expect("a block");
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.checkpoint, found.is_inconsistent), (None, false));
    assert_eq!((found.next.sequence, state), (begin, shard.model(begin)));
}

#[test]
fn the_journal_is_kept_from_where_the_loaded_checkpoint_begins_whatever_the_other_says() {
    // Slot 0 has checkpoint 2 and is loaded: with equal numbers the first slot counts, and a lower number in the other
    // is older, although its checkpoint begins later.
    for other in [2, 1] {
        let mut shard = Shard::new();
        for (number, slot) in [(2, 0), (other, 1)] {
            shard.step(&Step::Put(1, slot as u64));
            shard.step(&Step::Commit);
            shard.next_checkpoint = (number, slot);
            while !shard.checkpoint(10) {}
        }
        let (_, found) = open(&mut shard.device);
        let chosen = found.checkpoint.expect("a checkpoint");
        assert_eq!((chosen.slot, found.tail), (0, chosen.begin.sequence), "other is {other}");
        assert!(chosen.begin.sequence < shard.newest_begin);
    }
    // A header so old that the ring has wrapped since.
    let mut shard = Shard::new();
    for key in 0..4 {
        shard.step(&Step::Put(key, 0));
        shard.step(&Step::Commit);
    }
    while !shard.checkpoint(10) {}
    let old = shard.device.units[&areas().slots[0].start].clone();
    while shard.journal.tail() <= 2 * BLOCKS || shard.next_checkpoint.1 != 0 {
        (0..9).for_each(|key| shard.step(&Step::Put(key, 1)));
        while !shard.checkpoint(10) {}
    }
    shard.device.units.insert(areas().slots[0].start, old);
    let (_, found) = open(&mut shard.device);
    let chosen = found.checkpoint.expect("a checkpoint");
    assert_eq!((chosen.slot, found.tail), (1, chosen.begin.sequence));
}

#[test]
fn a_cut_is_looked_behind_for_so_many_blocks_and_then_no_more_is_read() {
    let areas = Areas { journal: 300..600, ..areas() };
    let (mut device, start) = (Device::default(), Mark::start(&LINEAGE));
    let mut journal = Journal::new(areas.journal.clone(), 1, 1, start, FIRST_SEQUENCE);
    let mut memory = vec![0; JOURNAL_BLOCK_BYTES];
    for _ in 0..290 {
        let said = Said::Delete(b"key".to_vec(), 1);
        said.with(|record| journal.append(record)).expect("room");
        journal.seal();
        device.write(journal.take(&mut memory).expect("a block").unit, &memory);
    }
    device.flush();
    for cut in 1..40 {
        let block = device.units.remove(&(areas.journal.start + cut)).expect("a block");
        let mut state = State::default();
        let found = recover(&mut device, &mut state, &LINEAGE, &areas).expect("answers");
        device.units.insert(areas.journal.start + cut, block);
        assert_eq!(found.journal_blocks, cut - 1);
        // Blocks read along with the last of them are inspected, too.
        let chunk_blocks = (CHUNK_BYTES / JOURNAL_BLOCK_BYTES) as u64;
        let behind = BEHIND_BLOCKS..BEHIND_BLOCKS + chunk_blocks;
        assert!(behind.contains(&found.blocks_behind), "{found:?}");
        let journal_bytes = found.bytes_read - 2 * CHECKPOINT_HEADER_BYTES as u64;
        assert_eq!(journal_bytes / JOURNAL_BLOCK_BYTES as u64, cut + found.blocks_behind);
    }
}
