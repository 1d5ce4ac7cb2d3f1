//! A small shard on in-memory media, for tests of recovery: its records and the contents of its device.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::media::block::{BlockKind, BlockReader};
use crate::media::checkpoint::{CheckpointWriter, Pushed};
use crate::media::journal::{Full, Journal, JournalWrite};
use crate::model::object::{Object, Version};
use crate::model::options::Quota;

pub(super) const LINEAGE: Lineage = Lineage { store: [3; 16], epoch: 1, shard: 0 };
pub(super) const BLOCKS: u64 = 16;

pub(super) fn areas() -> Areas {
    Areas { device: 0, journal: 1..1 + BLOCKS, slots: [20..120, 120..220] }
}

/// A device's units, initially zero, with a cache that a power cut empties at random.
#[derive(Clone, Default)]
pub(super) struct Device {
    pub(super) units: BTreeMap<u64, Vec<u8>>,
    pub(super) unflushed: Vec<(u64, Vec<u8>)>,
}

impl Device {
    pub(super) fn write(&mut self, unit: u64, bytes: &[u8]) {
        for (unit, bytes) in (unit..).zip(bytes.chunks(UNIT_BYTES as usize)) {
            self.unflushed.push((unit, bytes.to_vec()));
        }
    }

    pub(super) fn flush(&mut self) {
        self.units.extend(self.unflushed.drain(..));
    }

    /// Keeps, loses or tears each unflushed unit, as `dice` decides.
    pub(super) fn cut(&mut self, mut dice: impl FnMut() -> u8) {
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

/// The tables of a shard.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<Vec<u8>, u64>,
    pub(super) tenants: BTreeMap<u8, String>,
    pub(super) layouts: BTreeMap<u8, Vec<u8>>,
    /// The keys put since the last lost block; `None` if no block was lost.
    pub(super) put_since: Option<BTreeSet<Vec<u8>>>,
    /// The announced number of objects.
    pub(super) expected: u64,
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        (&self.objects, &self.tenants, &self.layouts)
            == (&other.objects, &other.tenants, &other.layouts)
    }
}

impl Rebuild for State {
    fn clear(&mut self) {
        *self = State::default();
    }

    fn expect(&mut self, objects: u64) {
        assert!(self.objects.is_empty(), "objects are announced before the first comes");
        self.expected = objects;
    }

    fn put(&mut self, put: &Put<'_>) -> Result<()> {
        self.objects.insert(put.key.to_vec(), put.object.place.unit);
        self.put_since.iter_mut().for_each(|since| _ = since.insert(put.key.to_vec()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8], place: Place) -> Result<()> {
        let is_old = self.put_since.as_ref().is_some_and(|since| !since.contains(key));
        if is_old || self.objects.get(key) == Some(&place.unit) {
            self.objects.remove(key);
        }
        Ok(())
    }

    fn lose_block(&mut self) {
        self.put_since = Some(BTreeSet::new());
    }

    fn drop_superseded(&mut self, key: &[u8]) {
        self.objects.remove(key);
    }

    fn pieces(&self, put: &Put<'_>) -> Option<Vec<Piece>> {
        Some(crate::model::layout::pieces(&put.object, None))
    }

    fn tenant(&mut self, id: TenantId, name: &str, _: Option<Quota>) -> Result<()> {
        self.tenants.insert(id.0, name.to_owned());
        Ok(())
    }

    fn layout(&mut self, id: LayoutId, bytes: &[u8]) -> Result<()> {
        self.layouts.insert(id.0, bytes.to_vec());
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Put(u8, u64),
    Delete(u8),
    Tenant(u8),
    Layout(u8),
    Commit,
    Write(usize),
    Flush,
    /// Advances the checkpoint by this many records, or begins one.
    Checkpoint(usize),
    Cut(u64),
}

pub(super) fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
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

/// A record in the model's form: equal for records with equal meaning.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Put(Vec<u8>, u64),
    Delete(Vec<u8>, u64),
    Tenant(u8, String),
    Layout(u8, Vec<u8>),
}

impl Said {
    pub(super) fn with<T>(&self, use_it: impl FnOnce(&Record<'_>) -> T) -> T {
        let at = |unit: &u64| Place { device: 0, unit: *unit };
        match self {
            Said::Put(key, unit) => {
                let (layout, tenant) = (LayoutId(0), TenantId(0));
                let version = Version::NONE;
                let object = Object { place: at(unit), bytes: 1, layout, tenant, version };
                let checksums = [1u32; 60].as_slice().into();
                use_it(&Record::Put(Put {
                    key,
                    object,
                    slab_base: None,
                    expires_s: None,
                    age: None,
                    is_provisional: false,
                    checksums,
                }))
            }
            Said::Delete(key, unit) => use_it(&Record::Delete { key, place: at(unit) }),
            Said::Tenant(id, name) => {
                use_it(&Record::Tenant { id: TenantId(*id), name, quota: None })
            }
            Said::Layout(id, bytes) => use_it(&Record::Layout { id: LayoutId(*id), bytes }),
        }
    }
}

/// A checkpoint in progress: its remaining keys, until its header is written.
pub(super) struct Taking {
    pub(super) writer: Option<CheckpointWriter>,
    pub(super) begin: u64,
    pub(super) slot: usize,
    pub(super) left: Vec<Vec<u8>>,
}

fn open_writer(taking: &mut Taking) -> &mut CheckpointWriter {
    taking.writer.as_mut().expect("its header is not written")
}

/// The shard, its device, and the block of each record.
pub(super) struct Shard {
    pub(super) device: Device,
    pub(super) journal: Journal,
    pub(super) session: u64,
    pub(super) state: State,
    /// The state before the first record.
    pub(super) base: State,
    pub(super) told: Vec<(u64, Said)>,
    pub(super) in_flight: Vec<(JournalWrite, Vec<u8>)>,
    pub(super) taking: Option<Taking>,
    pub(super) next_checkpoint: (u64, usize),
    pub(super) newest_begin: u64,
    pub(super) completed: usize,
    pub(super) is_damaged: bool,
    /// The witness of the last clean stop.
    pub(super) stopped: Option<Witness>,
}

impl Shard {
    pub(super) fn new() -> Shard {
        Shard {
            device: Device::default(),
            journal: Journal::new(areas().journal, 1, 1, Mark::start(&LINEAGE), FIRST_SEQUENCE),
            session: 1,
            state: State::default(),
            base: State::default(),
            told: Vec::new(),
            in_flight: Vec::new(),
            taking: None,
            next_checkpoint: (1, 0),
            newest_begin: FIRST_SEQUENCE,
            completed: 0,
            is_damaged: false,
            stopped: None,
        }
    }

    pub(super) fn tell(&mut self, said: Said) {
        match said.with(|record| self.journal.append(record)) {
            Ok(block) => {
                said.with(|record| hand_over(record, &mut self.state)).expect("no error");
                self.told.push((block, said));
            }
            Err(Full) => self.relieve(),
        }
    }

    /// Frees the ring by two new checkpoints. One in progress may have begun a whole ring ago, so it does not count.
    pub(super) fn relieve(&mut self) {
        let begun_before = usize::from(self.taking.is_some());
        for _ in 0..2 + begun_before {
            while !self.checkpoint(1000) {}
        }
        assert!(self.journal.free_blocks() > 1, "two checkpoints free the ring");
    }

    pub(super) fn take_writes(&mut self) {
        let mut memory = vec![0; 3 * JOURNAL_BLOCK_BYTES];
        while let Some(write) = self.journal.take(&mut memory) {
            self.in_flight.push((write.clone(), memory[..write.bytes()].to_vec()));
        }
    }

    pub(super) fn write(&mut self, which: usize) {
        self.take_writes();
        if !self.in_flight.is_empty() {
            let (write, bytes) = self.in_flight.remove(which % self.in_flight.len());
            self.device.write(write.unit, &bytes);
            self.journal.written(&write);
        }
    }

    pub(super) fn flush(&mut self) {
        self.device.flush();
        self.journal.durable(self.journal.written_end());
    }

    pub(super) fn write_all_and_flush(&mut self) {
        self.take_writes();
        while !self.in_flight.is_empty() {
            self.write(0);
        }
        self.flush();
    }

    /// Takes `records` records; or writes the header once all are taken; or, once that is written, completes the
    /// checkpoint and returns true.
    pub(super) fn checkpoint(&mut self, records: usize) -> bool {
        let mut taking = self.taking.take().unwrap_or_else(|| self.begin_checkpoint());
        if taking.writer.is_none() {
            self.complete_checkpoint(&taking);
            return true;
        }
        if taking.left.is_empty() {
            self.write_header(&mut taking);
        }
        for _ in 0..records {
            let Some(key) = taking.left.pop() else { break };
            let Some(unit) = self.state.objects.get(&key) else { continue };
            self.push(&mut taking, &Said::Put(key, *unit));
        }
        self.taking = Some(taking);
        false
    }

    pub(super) fn begin_checkpoint(&mut self) -> Taking {
        let (number, slot) = self.next_checkpoint;
        let area = areas().slots[slot].clone();
        let begin = self.journal.mark();
        let writer = CheckpointWriter::begin(area, LINEAGE, self.session, number, begin);
        let left = self.state.objects.keys().cloned().collect();
        let mut taking = Taking { writer: Some(writer), begin: begin.sequence, slot, left };
        let tenants = self.state.tenants.iter().map(|(id, name)| Said::Tenant(*id, name.clone()));
        let layouts = self.state.layouts.iter().map(|(id, bytes)| Said::Layout(*id, bytes.clone()));
        for said in tenants.chain(layouts).collect::<Vec<_>>() {
            self.push(&mut taking, &said);
        }
        taking
    }

    pub(super) fn push(&mut self, taking: &mut Taking, said: &Said) {
        let push = |taking: &mut Taking| said.with(|record| open_writer(taking).push(record));
        if push(taking) == Pushed::BlockFull {
            self.write_body(taking);
            assert_eq!(push(taking), Pushed::Taken);
        }
    }

    pub(super) fn write_body(&mut self, taking: &mut Taking) {
        let mut block = Box::new([0; BODY_BLOCK_BYTES]);
        if let Some(unit) = open_writer(taking).block(&mut block) {
            self.device.write(unit, &*block);
        }
    }

    pub(super) fn write_header(&mut self, taking: &mut Taking) {
        self.write_body(taking);
        let end = self.journal.seal();
        self.write_all_and_flush();
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        let writer = taking.writer.take().expect("its header is not written");
        let unit = writer.finish(end, &mut header);
        self.device.write(unit, &header);
    }

    pub(super) fn complete_checkpoint(&mut self, taking: &Taking) {
        self.flush();
        self.journal.release(self.newest_begin);
        self.newest_begin = taking.begin;
        self.next_checkpoint = (self.next_checkpoint.0 + 1, 1 - taking.slot);
        self.completed += 1;
    }

    /// Returns the state after the records in blocks below `end`.
    pub(super) fn model(&self, end: u64) -> State {
        let mut state = self.base.clone();
        for (_, said) in self.told.iter().filter(|(block, _)| *block < end) {
            said.with(|record| hand_over(record, &mut state)).expect("no error");
        }
        state
    }

    /// Cuts the power, then opens the store again.
    pub(super) fn cut(&mut self, seed: u64) {
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
        let (state, found) = open_after(&mut self.device, self.stopped);
        assert!(found.next.sequence >= durable_end, "nothing durable is lost: {found:?}");
        assert!(!found.is_inconsistent, "{found:?}");
        let is_lost = !found.passed_over.is_empty() || found.lost_blocks > 0;
        assert!(self.is_damaged || !is_lost, "{found:?}");
        assert_eq!(state, self.model(found.next.sequence), "{found:?}");
        self.resume(state, &found);
    }

    pub(super) fn resume(&mut self, state: State, found: &Recovered) {
        self.session += 1;
        self.journal = Journal::new(areas().journal, 1, self.session, found.next, found.tail);
        self.in_flight.clear();
        if found.needs_voucher() {
            self.journal.vouch();
            self.write_all_and_flush();
        }
        for (slot, _) in areas().slots.iter().zip(found.void_slots).filter(|(_, void)| *void) {
            self.device.write(slot.start, &[0; CHECKPOINT_HEADER_BYTES]);
        }
        if found.is_journal_void {
            areas().journal.for_each(|unit| self.device.write(unit, &[0; JOURNAL_BLOCK_BYTES]));
            self.stopped = None;
        }
        self.device.flush();
        self.told.retain(|(block, _)| *block < found.next.sequence);
        self.state = state;
        self.taking = None;
        self.next_checkpoint = (found.next_number, found.next_slot);
        self.newest_begin = found.checkpoint.map_or(FIRST_SEQUENCE, |one| one.begin.sequence);
    }

    pub(super) fn step(&mut self, step: &Step) {
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

pub(super) fn open(device: &mut Device) -> (State, Recovered) {
    open_after(device, None)
}

/// Opens the shard after a clean stop that left this witness.
pub(super) fn open_after(device: &mut Device, witness: Option<Witness>) -> (State, Recovered) {
    let mut state = State::default();
    let found = recover(device, &mut state, &LINEAGE, &areas(), witness);
    (state, found.expect("the device answers"))
}

/// Returns a shard after fixed steps, entirely on the media.
pub(super) fn busy() -> Shard {
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

/// Returns the sequence of the journal's block in this unit of a device.
pub(super) fn sequence_at(device: &Device, unit: u64) -> Option<u64> {
    let bytes = device.units.get(&unit).filter(|_| areas().journal.contains(&unit))?;
    BlockReader::open(BlockKind::Journal, bytes).ok().map(|block| block.stamp.sequence)
}

/// Asserts that the state is that before the cut, except for records that only the `lost` blocks had.
pub(super) fn assert_costs_only(lost: &[u64], shard: &Shard, (state, found): &(State, Recovered)) {
    let (end, mut expected, mut rest) = (found.next.sequence, State::default(), state.clone());
    shard.model(end).clone_into(&mut expected);
    for (_, said) in shard.told.iter().filter(|(block, _)| *block < end && lost.contains(block)) {
        for state in [&mut expected, &mut rest] {
            match said {
                Said::Put(key, _) | Said::Delete(key, _) => _ = state.objects.remove(key),
                Said::Tenant(id, _) => _ = state.tenants.remove(id),
                Said::Layout(id, _) => _ = state.layouts.remove(id),
            }
        }
    }
    assert_eq!(rest, expected, "{lost:?} were lost: {found:?}");
    for (key, unit) in &state.objects {
        let mut ever = shard.told.iter().map(|(_, said)| said);
        let is_it = |said: &Said| matches!(said, Said::Put(one, at) if one == key && at == unit);
        assert!(ever.any(is_it), "what is there was put there once");
    }
}
