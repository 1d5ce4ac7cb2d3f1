//! Compares a small shard with its model after cuts at any moment and damage anywhere.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::*;
use super::*;
use crate::media::block::{BlockKind, BlockWriter, Stamp};
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
    fn damage_costs_what_the_damaged_blocks_name_and_never_more(
        steps in steps(300),
        hits in vec((0u64..220, 0usize..4096), 1..4),
        has_witness: bool,
    ) {
        let mut shard = Shard::new();
        for step in &steps {
            shard.step(step);
        }
        shard.journal.seal();
        shard.write_all_and_flush();
        let stopped = Witness { session: shard.session, end: shard.journal.mark().sequence };
        let lost: Vec<u64> =
            hits.iter().filter_map(|(unit, _)| sequence_at(&shard.device, *unit)).collect();
        for (unit, at) in hits {
            shard.device.units.entry(unit).or_insert_with(|| vec![0; 4096])[at] ^= 0x10;
        }
        shard.stopped = has_witness.then_some(stopped);
        let opened = open_after(&mut shard.device, shard.stopped);
        let is_whole = opened.1.checkpoint.is_some() || !opened.1.damaged_headers.contains(&true);
        if is_whole && opened.1.passed_over.is_empty() {
            assert_costs_only(&lost, &shard, &opened);
            prop_assert!(!has_witness || opened.1.next.sequence == stopped.end);
        }
        let (state, found) = opened;
        prop_assert!(found.lost_blocks > 0 || !found.is_inconsistent, "{:?}", found);
        // The store continues from the recovered state, and recovers it again.
        shard.is_damaged = true;
        shard.base = state.clone();
        shard.resume(state, &found);
        shard.told.clear();
        steps.iter().for_each(|step| shard.step(step));
    }
}

#[test]
fn every_unit_lost_or_flipped_costs_only_what_its_block_names() {
    let mut shard = busy();
    let end = shard.journal.mark().sequence;
    let begin = open(&mut shard.device).1.checkpoint.expect("a checkpoint").begin.sequence;
    for unit in shard.device.units.keys() {
        let sequence = sequence_at(&shard.device, *unit);
        for damage in 0..3 {
            let mut device = shard.device.clone();
            let bytes = device.units.get_mut(unit).expect("a unit");
            match damage {
                0 => bytes.fill(0),
                1 => bytes[4095] ^= 1,
                _ => bytes[20] ^= 0x80,
            }
            for witness in [None, Some(Witness { session: 1, end })] {
                let opened = open_after(&mut device, witness);
                assert!(!opened.1.is_inconsistent, "unit {unit}: {opened:?}");
                assert_costs_only(sequence.as_slice(), &shard, &opened);
                let needs = sequence.is_some_and(|sequence| sequence >= begin);
                if witness.is_some() {
                    assert_eq!(opened.1.next.sequence, end, "unit {unit}");
                    assert_eq!(opened.1.lost_blocks, u64::from(needs), "unit {unit}");
                }
            }
        }
    }
}

#[test]
fn blocks_exchanged_or_repeated_cost_only_what_they_name() {
    let shard = busy();
    for from in areas().journal {
        for to in areas().journal.filter(|to| *to != from) {
            for is_exchange in [false, true] {
                let mut device = shard.device.clone();
                let lost = [from, to].map(|unit| sequence_at(&device, unit).expect("a block"));
                let old = device.units.insert(to, shard.device.units[&from].clone());
                if is_exchange {
                    device.units.insert(from, old.expect("a block"));
                }
                let opened = open(&mut device);
                assert!(!opened.1.is_inconsistent, "{from} to {to}: {opened:?}");
                assert_costs_only(&lost, &shard, &opened);
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
    assert_eq!(found.lost_blocks, 0, "all of it is in the journal");
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
    assert_eq!((found.cut, found.lost_blocks), (Some(Void::Sequence(33)), 17), "1 to 17 at least");
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
            if key != 1 {
                shard.write_all_and_flush();
            }
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
    let found = recover(&mut shard.device, &mut state, &later, &areas(), None).expect("answers");
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
fn a_checkpoint_whose_journal_is_damaged_is_kept_and_told() {
    let mut shard = checkpointed_under_load();
    let (_, found) = open(&mut shard.device);
    let newest = found.checkpoint.expect("a checkpoint");
    let at = areas().journal.start + newest.begin.sequence % BLOCKS;
    shard.device.units.get_mut(&at).expect("a block").fill(0);
    let opened = open(&mut shard.device);
    assert_eq!(opened.1.checkpoint, Some(newest));
    assert_eq!((opened.1.lost_blocks, opened.1.is_inconsistent), (1, false));
    assert_costs_only(&[newest.begin.sequence], &shard, &opened);
    // The journal continues; the next recovery finds the same state and the additions.
    let (state, found) = opened;
    shard.base = state.clone();
    shard.resume(state, &found);
    shard.told.clear();
    (0..3).for_each(|key| shard.step(&Step::Put(key, 3)));
    shard.journal.seal();
    shard.write_all_and_flush();
    let (state, found) = open(&mut shard.device);
    assert_eq!(state, shard.model(u64::MAX), "{found:?}");
}

#[test]
fn without_its_journal_a_checkpoint_is_all_there_is() {
    let mut shard = checkpointed_under_load();
    let kept: BTreeSet<u64> = areas().slots.into_iter().flatten().collect();
    shard.device.units.retain(|unit, _| kept.contains(unit));
    let (state, found) = open(&mut shard.device);
    assert!(!state.objects.is_empty(), "{found:?}");
    let newest = found.checkpoint.expect("the newest");
    assert_eq!(found.next.sequence, newest.begin.sequence + found.lost_blocks);
    assert!(found.lost_blocks > 0 && found.next_slot == 1 - newest.slot, "{found:?}");
}

#[test]
fn a_checkpoint_of_another_history_is_passed_over() {
    let mut shard = checkpointed_under_load();
    let (whole, found) = open(&mut shard.device);
    let newest = found.checkpoint.expect("a checkpoint");
    let header = areas().slots[newest.slot].start;
    let bytes = shard.device.units.get_mut(&header).expect("a header");
    let mut other = CheckpointHeader::decode(bytes, &LINEAGE, 100).expect("a header");
    other.end.chain ^= 1;
    other.encode(bytes.as_mut_slice().try_into().expect("a unit"));
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.passed_over, found.lost_blocks), (vec![(newest.number, Void::Chain)], 0));
    assert_eq!(state, whole, "the older one and its journal have it all");
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

/// Returns a device with the journal of a fresh shard: one delete per block, written by these sessions and never flushed.
fn journal_of_sessions(sessions: &[u64]) -> Device {
    let (mut device, mut chain) = (Device::default(), Mark::start(&LINEAGE).chain);
    for (session, sequence) in sessions.iter().zip(FIRST_SEQUENCE..) {
        let mut block = BlockWriter::new(BlockKind::Journal);
        Said::Delete(b"key".to_vec(), 1).with(|record| assert!(block.push(record)));
        let stamp = Stamp { epoch: 1, session: *session, sequence, chain, durable_end: 1 };
        chain = block.seal(&stamp);
        device.write(areas().journal.start + sequence, block.bytes());
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
    let seal = crate::media::checksum::crc64(&second[8..]);
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
    // Each block states that those below it were flushed; no block vouches for the fourth.
    let lost = |block: u64| {
        let mut device = shard.device.clone();
        device.units.remove(&(areas().journal.start + block));
        let found = open(&mut device).1;
        (found.lost_blocks, found.next.sequence)
    };
    assert_eq!([1, 2, 3, 4].map(lost), [(1, 5), (1, 5), (1, 5), (0, 4)]);
}

#[test]
fn a_clean_stop_tells_damage_to_the_last_blocks_from_a_cut() {
    let mut shard = Shard::new();
    for key in 0..4 {
        shard.step(&Step::Put(key, 0));
        shard.step(&Step::Commit);
    }
    shard.write_all_and_flush();
    let stopped = Witness { session: 1, end: 5 };
    for first in 1..=5 {
        let mut device = shard.device.clone();
        let lost: Vec<u64> = (first..=4).collect();
        lost.iter().for_each(|block| drop(device.units.remove(&(areas().journal.start + block))));
        let (state, found) = open(&mut device);
        assert_eq!((found.next.sequence, found.lost_blocks), (first, 0), "it looks like a cut");
        assert_eq!(state, shard.model(first));
        let (state, found) = open_after(&mut device, Some(stopped));
        assert_eq!((found.next.sequence, found.lost_blocks), (5, lost.len() as u64));
        assert_eq!(state, shard.model(first));
        // The next session continues behind them, and a cut takes none of its records.
        let mut next = Shard { device, base: state.clone(), is_damaged: true, ..Shard::new() };
        next.resume(state, &found);
        // A block without records reveals lost blocks, even without the witness.
        let end = 5 + u64::from(!lost.is_empty());
        let (state, found) = open(&mut next.device);
        assert_eq!((found.next.sequence, found.lost_blocks), (end, lost.len() as u64));
        assert_eq!(state, next.base);
        next.step(&Step::Put(9, 0));
        next.journal.seal();
        next.take_writes();
        next.write(0);
        next.device.flush();
        let (state, found) = open_after(&mut next.device, Some(stopped));
        assert_eq!((found.next.sequence, found.lost_blocks), (end + 1, lost.len() as u64));
        assert_eq!(state, next.model(end + 1));
    }
}

#[test]
fn a_clean_stop_before_the_checkpoint_tells_nothing() {
    let mut shard = busy();
    let (whole, found) = open(&mut shard.device);
    let beyond = Witness { session: 0, end: found.next.sequence + 3 };
    let (state, found) = open_after(&mut shard.device, Some(beyond));
    assert_eq!((state, found.lost_blocks), (whole, 0));
}

#[test]
fn a_delete_behind_a_lost_block_removes_what_was_put_before() {
    let mut shard = Shard::new();
    for (at, said) in [
        Said::Put(vec![1; 8], 1),
        Said::Put(vec![1; 8], 2),
        Said::Delete(vec![1; 8], 2),
        Said::Put(vec![2; 8], 3),
    ]
    .into_iter()
    .enumerate()
    {
        shard.tell(said);
        shard.step(&Step::Commit);
        shard.write_all_and_flush();
        assert_eq!(shard.journal.mark().sequence, at as u64 + 2);
    }
    shard.device.units.remove(&(areas().journal.start + 2));
    let (state, found) = open(&mut shard.device);
    assert_eq!((state, found.lost_blocks), (shard.model(u64::MAX), 1));
}

#[test]
fn a_checkpoint_that_could_not_be_read_once_stays_void() {
    let mut shard = busy();
    let headers = areas().slots.map(|slot| slot.start);
    let hidden = headers.map(|unit| shard.device.units.remove(&unit).expect("a header"));
    let (state, found) = open(&mut shard.device);
    assert_eq!((found.checkpoint, found.void_slots), (None, [true; 2]));
    // They become readable again, but the opening has overwritten them.
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
fn all_bytes_read_are_counted_and_a_checkpoints_records_announced() {
    let mut shard = checkpointed_under_load();
    let (mut media, mut state) = (Counting(&mut shard.device, 0), State::default());
    let found = recover(&mut media, &mut state, &LINEAGE, &areas(), None).expect("answers");
    assert!(found.checkpoint_records > 0 && found.journal_blocks > 0);
    assert_eq!((found.bytes_read, found.checkpoint_records), (media.1, state.expected));
}

#[test]
fn a_checkpoint_that_its_slot_does_not_hold_is_damaged() {
    let mut shard = busy();
    let newest = open(&mut shard.device).1.checkpoint.expect("a checkpoint");
    let mut short = areas();
    short.slots[newest.slot].end = short.slots[newest.slot].start + BODY_BLOCK_UNITS;
    let found =
        recover(&mut shard.device, &mut State::default(), &LINEAGE, &short, None).expect("answers");
    assert_eq!(found.checkpoint.map(|older| older.slot), Some(1 - newest.slot));
    assert_eq!(found.damaged_headers, [0, 1].map(|slot| slot == newest.slot));
}

#[test]
fn a_lost_block_under_a_checkpoint_in_progress_leaves_the_rest() {
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
    let opened = open(&mut shard.device);
    assert_eq!((opened.1.lost_blocks, opened.1.is_inconsistent), (1, false));
    assert!((0..6).all(|key| opened.0.objects.contains_key(&vec![key; 300])));
    assert_costs_only(&[begin], &shard, &opened);
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
    // Use a header so old that the ring has wrapped since.
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

/// Returns a device with a ring of 300 blocks, of which 290 are written in one session without a flush, and its areas.
fn long_journal() -> (Device, Areas) {
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
    (device, areas)
}

#[test]
fn a_cut_is_looked_behind_for_while_blocks_come_and_then_no_more_is_read() {
    let (mut device, areas) = long_journal();
    let chunk_blocks = (CHUNK_BYTES / JOURNAL_BLOCK_BYTES) as u64;
    for cut in 1..40 {
        // Whole blocks up to this one lie behind the cut.
        let last = cut + 2 * cut;
        let mut short = device.clone();
        short.units.retain(|unit, _| *unit <= areas.journal.start + last);
        short.units.remove(&(areas.journal.start + cut)).expect("a block");
        let mut state = State::default();
        let found = recover(&mut short, &mut state, &LINEAGE, &areas, None).expect("answers");
        assert_eq!((found.journal_blocks, found.blocks_behind), (cut - 1, 2 * cut));
        let read =
            (found.bytes_read - 2 * CHECKPOINT_HEADER_BYTES as u64) / JOURNAL_BLOCK_BYTES as u64;
        assert!((last + 64..=last + 64 + chunk_blocks).contains(&read), "{read}: {found:?}");
    }
    device.units.remove(&(areas.journal.start + 1));
    let found = recover(&mut device, &mut State::default(), &LINEAGE, &areas, None);
    assert_eq!(found.expect("answers").blocks_behind, 289, "none of them was flushed");
}

#[test]
fn a_witness_far_behind_a_cut_is_found() {
    let (mut device, areas) = long_journal();
    let last = device.units.get_mut(&(areas.journal.start + 290)).expect("a block");
    last[48..56].copy_from_slice(&250u64.to_le_bytes());
    let seal = crate::media::checksum::crc64(&last[8..]);
    last[..8].copy_from_slice(&seal.to_le_bytes());
    device.units.remove(&(areas.journal.start + 2));
    let found = recover(&mut device, &mut State::default(), &LINEAGE, &areas, None);
    let found = found.expect("answers");
    assert_eq!((found.lost_blocks, found.journal_blocks, found.next.sequence), (1, 289, 291));
}
