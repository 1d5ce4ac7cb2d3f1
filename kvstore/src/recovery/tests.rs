//! A small shard on media in memory, cut at any moment, damaged anywhere, and compared with what it was told.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::{CheckpointWriter, Pushed};
use crate::journal::{Full, Journal, JournalWrite};
use crate::object::Object;

const LINEAGE: Lineage = Lineage { store: [3; 16], epoch: 1, shard: 0 };
const BLOCKS: u64 = 16;

fn areas() -> Areas {
    Areas { device: 0, journal: 1..1 + BLOCKS, slots: [20..120, 120..220] }
}

/// Units of a device, zero where nothing was written; with a cache that a power cut empties in any way.
#[derive(Clone, Default)]
struct Device {
    units: BTreeMap<u64, Vec<u8>>,
    unflushed: Vec<(u64, Vec<u8>)>,
}

impl Device {
    fn write(&mut self, unit: u64, bytes: &[u8]) {
        for (unit, bytes) in (unit..).zip(bytes.chunks(UNIT_BYTES as usize)) {
            self.unflushed.push((unit, bytes.to_vec()));
        }
    }

    fn flush(&mut self) {
        self.units.extend(self.unflushed.drain(..));
    }

    /// Each unflushed unit is kept, lost or torn, as `dice` say.
    fn cut(&mut self, mut dice: impl FnMut() -> u8) {
        for (unit, bytes) in std::mem::take(&mut self.unflushed) {
            let old = self.units.entry(unit).or_insert_with(|| vec![0; bytes.len()]);
            match dice() % 4 {
                0 => (),
                1 => old[..512].copy_from_slice(&bytes[..512]),
                _ => *old = bytes,
            }
        }
    }
}

impl Media for Device {
    fn read(&mut self, _: u8, unit: u64, into: &mut [u8]) -> Result<()> {
        for (unit, bytes) in (unit..).zip(into.chunks_mut(UNIT_BYTES as usize)) {
            let written = self.unflushed.iter().rev().find(|(at, _)| *at == unit);
            let written = written.map(|(_, bytes)| bytes).or(self.units.get(&unit));
            bytes.fill(0);
            written.inspect(|written| bytes.copy_from_slice(written));
        }
        Ok(())
    }
}

/// What a shard would have in its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    objects: BTreeMap<Vec<u8>, u64>,
    tenants: BTreeMap<u8, String>,
    layouts: BTreeMap<u8, Vec<u8>>,
}

impl Rebuild for State {
    fn clear(&mut self) {
        *self = State::default();
    }

    fn put(&mut self, put: &Put<'_>) -> Result<()> {
        self.objects.insert(put.key.to_vec(), put.object.place.unit);
        Ok(())
    }

    fn delete(&mut self, key: &[u8], place: Place) -> Result<()> {
        if self.objects.get(key) == Some(&place.unit) {
            self.objects.remove(key);
        }
        Ok(())
    }

    fn tenant(&mut self, id: TenantId, name: &str, _: Option<u64>) -> Result<()> {
        self.tenants.insert(id.0, name.to_owned());
        Ok(())
    }

    fn layout(&mut self, id: LayoutId, bytes: &[u8]) -> Result<()> {
        self.layouts.insert(id.0, bytes.to_vec());
        Ok(())
    }
}

/// One thing that happens to the shard.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, u64),
    Delete(u8),
    Tenant(u8),
    Layout(u8),
    Commit,
    Write(usize),
    Flush,
    /// Goes on with the checkpoint by so many records, or begins one.
    Checkpoint(usize),
    Cut(u64),
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        24 => (0u8..24, 0u64..4).prop_map(|(key, place)| Step::Put(key, place)),
        8 => (0u8..24).prop_map(Step::Delete),
        1 => (0u8..3).prop_map(Step::Tenant),
        1 => (0u8..3).prop_map(Step::Layout),
        4 => Just(Step::Commit),
        8 => any::<usize>().prop_map(Step::Write),
        3 => Just(Step::Flush),
        6 => (1usize..12).prop_map(Step::Checkpoint),
        1 => any::<u64>().prop_map(Step::Cut),
    ];
    vec(step, 0..count)
}

/// A record as the model keeps it: so much of it that two of the same say the same.
#[derive(Clone, Debug)]
enum Said {
    Put(Vec<u8>, u64),
    Delete(Vec<u8>, u64),
    Tenant(u8, String),
    Layout(u8, Vec<u8>),
}

impl Said {
    fn with<T>(&self, use_it: impl FnOnce(&Record<'_>) -> T) -> T {
        let at = |unit: &u64| Place { device: 0, unit: *unit };
        match self {
            Said::Put(key, unit) => {
                let (layout, tenant) = (LayoutId(0), TenantId(0));
                let object = Object { place: at(unit), bytes: 1, layout, tenant };
                let checksums = [1u32; 60].as_slice().into();
                use_it(&Record::Put(Put {
                    key,
                    object,
                    slab_base: None,
                    expires_s: None,
                    checksums,
                }))
            }
            Said::Delete(key, unit) => use_it(&Record::Delete { key, place: at(unit) }),
            Said::Tenant(id, name) => {
                use_it(&Record::Tenant { id: TenantId(*id), name, quota_units: None })
            }
            Said::Layout(id, bytes) => use_it(&Record::Layout { id: LayoutId(*id), bytes }),
        }
    }
}

/// A checkpoint that is being taken: its keys still to come.
struct Taking {
    writer: CheckpointWriter,
    slot: usize,
    left: Vec<Vec<u8>>,
}

/// The shard, its device, and what it was told: in which block each record went.
struct Shard {
    device: Device,
    journal: Journal,
    session: u64,
    state: State,
    told: Vec<(u64, Said)>,
    in_flight: Vec<(JournalWrite, Vec<u8>)>,
    taking: Option<Taking>,
    next_checkpoint: (u64, usize),
    newest_begin: u64,
    completed: usize,
    is_damaged: bool,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            device: Device::default(),
            journal: Journal::new(areas().journal, 1, 1, Mark::start(&LINEAGE), FIRST_SEQUENCE),
            session: 1,
            state: State::default(),
            told: Vec::new(),
            in_flight: Vec::new(),
            taking: None,
            next_checkpoint: (1, 0),
            newest_begin: FIRST_SEQUENCE,
            completed: 0,
            is_damaged: false,
        }
    }

    fn tell(&mut self, said: Said) {
        match said.with(|record| self.journal.append(record)) {
            Ok(block) => {
                said.with(|record| hand_over(record, &mut self.state)).expect("no error");
                self.told.push((block, said));
            }
            Err(Full) => self.relieve(),
        }
    }

    /// Two checkpoints in a row free the ring.
    fn relieve(&mut self) {
        for _ in 0..2 {
            while !self.checkpoint(1000) {}
        }
        assert!(self.journal.free_blocks() > 1, "two checkpoints free the ring");
    }

    fn take_writes(&mut self) {
        let mut memory = vec![0; 3 * JOURNAL_BLOCK_BYTES];
        while let Some(write) = self.journal.take(&mut memory) {
            self.in_flight.push((write.clone(), memory[..write.bytes()].to_vec()));
        }
    }

    fn write(&mut self, which: usize) {
        self.take_writes();
        if !self.in_flight.is_empty() {
            let (write, bytes) = self.in_flight.remove(which % self.in_flight.len());
            self.device.write(write.unit, &bytes);
            self.journal.written(&write);
        }
    }

    fn flush(&mut self) {
        self.device.flush();
        self.journal.durable(self.journal.written_end());
    }

    fn write_all_and_flush(&mut self) {
        self.take_writes();
        while !self.in_flight.is_empty() {
            self.write(0);
        }
        self.flush();
    }

    /// Takes so many records; true when the checkpoint is complete.
    fn checkpoint(&mut self, records: usize) -> bool {
        let mut taking = self.taking.take().unwrap_or_else(|| self.begin_checkpoint());
        for _ in 0..records {
            let Some(key) = taking.left.pop() else { break };
            let Some(unit) = self.state.objects.get(&key) else { continue };
            self.push(&mut taking, &Said::Put(key, *unit));
        }
        if !taking.left.is_empty() {
            self.taking = Some(taking);
            return false;
        }
        self.finish_checkpoint(taking);
        true
    }

    fn begin_checkpoint(&mut self) -> Taking {
        let (number, slot) = self.next_checkpoint;
        let area = areas().slots[slot].clone();
        let begin = self.journal.mark();
        let writer = CheckpointWriter::begin(area, LINEAGE, self.session, number, begin);
        let left = self.state.objects.keys().cloned().collect();
        let mut taking = Taking { writer, slot, left };
        let tenants = self.state.tenants.iter().map(|(id, name)| Said::Tenant(*id, name.clone()));
        let layouts = self.state.layouts.iter().map(|(id, bytes)| Said::Layout(*id, bytes.clone()));
        for said in tenants.chain(layouts).collect::<Vec<_>>() {
            self.push(&mut taking, &said);
        }
        taking
    }

    fn push(&mut self, taking: &mut Taking, said: &Said) {
        if said.with(|record| taking.writer.push(record)) == Pushed::BlockFull {
            self.write_body(taking);
            assert_eq!(said.with(|record| taking.writer.push(record)), Pushed::Taken);
        }
    }

    fn write_body(&mut self, taking: &mut Taking) {
        let mut block = Box::new([0; BODY_BLOCK_BYTES]);
        if let Some(unit) = taking.writer.block(&mut block) {
            self.device.write(unit, &*block);
        }
    }

    fn finish_checkpoint(&mut self, mut taking: Taking) {
        self.write_body(&mut taking);
        let end = self.journal.seal();
        self.write_all_and_flush();
        let begin = taking.writer.begin_mark().sequence;
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        let unit = taking.writer.finish(end, &mut header);
        self.device.write(unit, &header);
        self.flush();
        self.journal.release(self.newest_begin);
        self.newest_begin = begin;
        self.next_checkpoint = (self.next_checkpoint.0 + 1, 1 - taking.slot);
        self.completed += 1;
    }

    /// What the records in blocks below `end` come to.
    fn model(&self, end: u64) -> State {
        let mut state = State::default();
        for (_, said) in self.told.iter().filter(|(block, _)| *block < end) {
            said.with(|record| hand_over(record, &mut state)).expect("no error");
        }
        state
    }

    /// The power goes; then the store is opened again.
    fn cut(&mut self, seed: u64) {
        let mut dice = seed | 1;
        let mut dice = || {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 40) as u8
        };
        self.take_writes();
        for (write, bytes) in std::mem::take(&mut self.in_flight) {
            if dice() % 2 == 0 {
                self.device.write(write.unit, &bytes);
            }
        }
        self.device.cut(dice);
        let durable_end = self.journal.durable_end();
        let (state, found) = open(&mut self.device);
        assert!(found.next.sequence >= durable_end, "nothing durable is lost: {found:?}");
        assert!(!found.is_inconsistent, "{found:?}");
        assert!(self.is_damaged || found.passed_over.is_empty(), "{found:?}");
        assert_eq!(state, self.model(found.next.sequence), "{found:?}");
        self.resume(state, &found);
    }

    fn resume(&mut self, state: State, found: &Recovered) {
        self.device.flush();
        self.told.retain(|(block, _)| *block < found.next.sequence);
        self.session += 1;
        self.journal = Journal::new(areas().journal, 1, self.session, found.next, found.tail);
        self.state = state;
        self.in_flight.clear();
        self.taking = None;
        self.next_checkpoint = (found.next_number, found.next_slot);
        self.newest_begin = found.checkpoint.map_or(FIRST_SEQUENCE, |one| one.begin.sequence);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put(key, place) => {
                self.tell(Said::Put(vec![*key; 300], u64::from(*key) * 4 + place))
            }
            Step::Delete(key) => {
                let key = vec![*key; 300];
                if let Some(unit) = self.state.objects.get(&key) {
                    self.tell(Said::Delete(key, *unit));
                }
            }
            Step::Tenant(id) => self.tell(Said::Tenant(*id, format!("t{}", self.told.len()))),
            Step::Layout(id) => self.tell(Said::Layout(*id, vec![self.told.len() as u8; 20])),
            Step::Commit => _ = self.journal.seal(),
            Step::Write(which) => self.write(*which),
            Step::Flush => self.flush(),
            Step::Checkpoint(records) => _ = self.checkpoint(*records),
            Step::Cut(seed) => self.cut(*seed),
        }
    }
}

fn open(device: &mut Device) -> (State, Recovered) {
    let mut state = State::default();
    let found = recover(device, &mut state, &LINEAGE, &areas()).expect("the device answers");
    (state, found)
}

/// A shard after steps that are the same in each run, with all of it on the media.
fn busy() -> Shard {
    let mut shard = Shard::new();
    for at in 0..200u64 {
        shard.step(&Step::Put((at * 7 % 24) as u8, at % 4));
        if at % 3 == 0 {
            shard.step(&Step::Delete((at * 5 % 24) as u8));
        }
        if at % 4 == 0 {
            shard.step(&Step::Checkpoint(2));
        }
    }
    shard.journal.seal();
    shard.write_all_and_flush();
    assert!(shard.completed > 2, "{} checkpoints", shard.completed);
    shard
}

/// Whether the state is what the shard was told up to some block.
fn is_a_prefix(shard: &Shard, state: &State) -> bool {
    (0..=shard.journal.mark().sequence).any(|end| shard.model(end) == *state)
}

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
        // And the store goes on from what was found.
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
        (State::default(), Mark::start(&LINEAGE), 2)
    );
    let found_first = found.clone();
    shard.told.clear();
    shard.resume(State::default(), &found_first);
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
        }
        shard.write_all_and_flush();
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

/// A shard whose checkpoints were all taken while it went on.
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
    assert_eq!(found.cut, Some(Void::Blank));
    // A new history is told from there; the newest checkpoint belongs to the old one for ever.
    shard.resume(state, &found);
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

/// A device with the journal of a fresh shard: a delete in each block, written by these sessions.
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
    // A second record, of no known kind, behind the one that is there.
    second[12] += 1;
    second[48 + 13] = 0xff;
    let seal = crate::bytes::crc64(&second[8..]);
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
