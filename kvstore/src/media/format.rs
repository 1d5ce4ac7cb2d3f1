//! Formats a store and reads its superblocks. These calls wait for the devices.

use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) use self::session::begin_session;
pub use self::session::end_session;

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, Operation};

use crate::error::{Error, Result};
use crate::io::lane::{Command, Fault, Finished, LANE_BUFFER_BYTES, Lane, Load, Purpose};
use crate::io::schedule::Class;
use crate::media::device_set::{Agreed, Lengths};
use crate::media::geometry::{self, Geometry, superblock_units};
use crate::media::heads::{DeviceFacts, Heads, head, heads_of};
use crate::media::recovery::{Areas, Media, Recovered, Witness};
use crate::media::superblock::{Absent, Copies, Revision, SUPERBLOCK_BYTES, Stop, Superblock};
use crate::model::key::{Key, KeyHasher};
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES, units};

/// Limit of reads in flight per stream.
const AHEAD: usize = 8;

/// Options of a format.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Number of shards.
    pub shards: u16,
    /// Maximum objects per shard.
    pub objects_max: u32,
    /// Length in bytes, 1 to 512, of the longest keys with which a shard holds `objects_max` objects.
    pub key_bytes: u16,
    /// Bytes of each journal; derived from the number of objects if `None`.
    pub journal_bytes: Option<u64>,
    /// A human-readable name of at most 32 bytes.
    pub label: String,
    /// A random number, unique to the store.
    pub store_id: [u8; 16],
    /// Whether to overwrite existing data.
    pub overwrite: bool,
}

/// The superblocks of a store's devices.
#[derive(Clone, Debug)]
pub struct Set {
    superblocks: Vec<Superblock>,
    agreed: Agreed,
    /// The record of the last clean stop.
    stop: Option<Stop>,
    geometry: Geometry,
    /// Damaged superblock copies: the device, copy A or B, and the reason.
    bad: Vec<(u8, char, Absent)>,
}

impl Set {
    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        self.geometry.shards()
    }

    /// Returns the store's unique random number.
    pub fn store_id(&self) -> [u8; 16] {
        self.superblocks[0].store
    }

    /// Returns the store's label.
    pub fn label(&self) -> &str {
        &self.superblocks[0].label
    }

    /// Returns the maximum objects per shard.
    pub fn objects_max(&self) -> u32 {
        self.superblocks[0].objects_max
    }

    /// Returns the superblock of each device, in order.
    pub fn superblocks(&self) -> &[Superblock] {
        &self.superblocks
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the devices' common state.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Returns the record of the last clean stop.
    pub(crate) fn last_stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    /// Returns the record of the last clean stop about a shard.
    pub fn witness(&self, shard: u16) -> Option<Witness> {
        self.stop.as_ref().map(|stop| stop.witness(shard))
    }

    /// Returns the damaged superblock copies, which the next opening repairs: the device, copy A or B, and the
    /// reason.
    pub fn bad(&self) -> &[(u8, char, Absent)] {
        &self.bad
    }

    /// Returns the hasher of the store's keys.
    pub(crate) fn hasher(&self) -> KeyHasher {
        KeyHasher::new(self.store_id())
    }

    /// Returns the shard that owns a key, which never changes during the store's life.
    pub fn route(&self, key: &Key) -> u16 {
        KeyHasher::shard(self.hasher().hash(key.as_bytes()), self.shards())
    }
}

/// Writes superblocks to all devices: copy B of each, then copy A. Existing journals and checkpoints belong to other
/// stores and are void. Returns the geometry.
///
/// # Errors
/// As [`Geometry::new`]; [`Error::Media`] if a device holds data that may not be overwritten; [`Error::Driver`] if a
/// device does not answer.
pub fn format<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    options: &FormatOptions,
    clock: &mut dyn FnMut() -> Time,
) -> Result<Geometry> {
    let geometry = Geometry::new(&geometry::FormatOptions {
        shards: options.shards,
        objects_max: options.objects_max,
        key_bytes: options.key_bytes,
        journal_bytes: options.journal_bytes,
        checkpoint_bytes: None,
        device_units: lanes.iter().map(Lane::units).collect(),
    })?;
    if !options.overwrite {
        check_blank(lanes, clock)?;
    }
    let mut waiting = Waiting { lanes, clock };
    let epoch = first_epoch(&options.store_id);
    let superblock = |index: usize, lane: &Lane<Q>| Superblock {
        store: options.store_id,
        sequence: 1,
        epoch,
        device_id: geometry.chart().members[index].id,
        journal_units: geometry.journal_units(),
        checkpoint_units: geometry.checkpoint_units(),
        objects_max: options.objects_max,
        lba_bytes: lane.info.lba_bytes,
        shards: options.shards,
        durability: Durability::default(),
        label: options.label.clone(),
        stop: None,
        revision: Revision::first(epoch),
        chart: geometry.chart().clone(),
    };
    let superblocks: Vec<Superblock> =
        waiting.lanes.iter().enumerate().map(|(index, lane)| superblock(index, lane)).collect();
    waiting.write_superblocks(&superblocks, 0..superblocks.len(), |_| false)?;
    Ok(geometry)
}

/// Checks that no device holds data.
///
/// # Errors
/// [`Error::Media`] if one does, or does not answer.
pub fn check_blank<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    let mut waiting = Waiting { lanes, clock };
    (0..waiting.lanes.len()).try_for_each(|index| waiting.check_blank(index))
}

/// Returns the epoch of a new store, different from that of any older store on the same devices. Whole journal blocks
/// of an older store may lie behind the new store's newest block; the epoch distinguishes them from blocks cut off by
/// damage. It has 62 bits, so that volatile openings never exhaust it.
fn first_epoch(store_id: &[u8; 16]) -> u64 {
    let [_, _, _, _, _, _, _, _, number @ ..] = *store_id;
    (u64::from_le_bytes(number) >> 2).max(1)
}

/// Reads and checks the superblocks of all devices; writes nothing.
///
/// # Errors
/// [`Error::Media`] if the devices are not those of one store, in order and unchanged; [`Error::Driver`] if a device
/// does not answer.
pub fn read_set<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    clock: &mut dyn FnMut() -> Time,
) -> Result<Set> {
    read_set_of(lanes, Lengths::Same, clock)
}

/// Reads and checks the superblocks of all devices, which may be longer than before.
///
/// # Errors
/// As [`read_set`].
pub(crate) fn read_set_of<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    lengths: Lengths,
    clock: &mut dyn FnMut() -> Time,
) -> Result<Set> {
    let devices: Vec<DeviceFacts> = lanes.iter().map(DeviceFacts::of).collect();
    let heads = heads_of(&mut Waiting { lanes, clock }, &devices, lengths)?;
    let (revision, stop) = (heads.revision(), heads.last_stop().cloned());
    let Heads { copies, agreed, geometry } = heads;
    let bad = (0..).zip(&copies).flat_map(|(index, copies)| {
        let each = ['A', 'B'].into_iter().zip(copies.bad);
        each.filter_map(move |(copy, why)| Some((index, copy, why?)))
    });
    let bad = bad.collect();
    // An interrupted change has not reached all devices.
    let newest = |copies: Copies| {
        let chart = geometry.chart().clone();
        Superblock { revision, chart, ..copies.superblock }
    };
    let superblocks = copies.into_iter().map(newest).collect();
    Ok(Set { superblocks, agreed, stop, geometry, bad })
}

/// Reads the superblock of one device, and checks that it is device `index` of the store found earlier, in the same or
/// a later session.
///
/// # Errors
/// [`Error::Media`] if it is another device, or an older copy; [`Error::Driver`] if it does not answer.
pub(crate) fn check_same<Q: CommandQueue<Load>>(
    lane: Lane<Q>,
    set: &Set,
    index: u8,
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    let mut lanes = [lane];
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    let DeviceFacts { device, lba_bytes, .. } = DeviceFacts::of(&waiting.lanes[0]);
    let found = waiting.superblock(0)?.map_err(|absent| absent.into_error(&device))?.superblock;
    let units = lanes[0].units();
    let earlier = &set.superblocks[usize::from(index)];
    let is = |found: &Superblock| Superblock {
        sequence: 0,
        epoch: 0,
        stop: None,
        durability: Durability::default(),
        ..found.clone()
    };
    let why = if found.store != earlier.store {
        format!("it has another store on it ('{}')", found.label)
    } else if is(&found) != is(earlier)
        || (units, lba_bytes) != (found.chart.members[usize::from(index)].units, found.lba_bytes)
    {
        format!("it is not device {index} of the store as it was")
    } else if found.sequence < earlier.sequence || found.epoch < earlier.epoch {
        "it is an older copy of the device that failed".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::media(&device, why, "attach the one that failed"))
}

/// Limit of attempts to write a superblock until it reads back as written.
const SUPERBLOCK_WRITES: u32 = 4;

/// Devices, and the clock while waiting for them.
pub(crate) struct Waiting<'a, Q> {
    pub(crate) lanes: &'a mut [Lane<Q>],
    pub(crate) clock: &'a mut dyn FnMut() -> Time,
}

impl<Q: CommandQueue<Load>> Waiting<'_, Q> {
    /// Flushes every device.
    ///
    /// # Errors
    /// [`Error::Driver`] if a device does not answer.
    pub(crate) fn flush(&mut self) -> Result<()> {
        for device in 0..self.lanes.len() {
            self.run(device, Operation::Flush, AnyBuffer::None, 0)?;
        }
        Ok(())
    }

    pub(crate) fn check_blank(&mut self, index: usize) -> Result<()> {
        let why = match self.superblock(index)? {
            Err(Absent::Blank) => return Ok(()),
            Err(absent) => absent.to_string(),
            Ok(found) => {
                let (found, label) = (&found.superblock, &found.superblock.label);
                let (index, count) = (found.device_index().unwrap_or(0), found.device_count());
                format!("it is device {index} of {count} of a store ('{label}')")
            }
        };
        let fix = "name another target, or allow it to be overwritten (--force, or FormatStore::overwrite)";
        Err(self.refused(index, why, fix))
    }

    pub(crate) fn superblock(&mut self, index: usize) -> Result<Result<Copies, Absent>> {
        let facts = DeviceFacts::of(&self.lanes[index]);
        head(self, index as u8, &facts)
    }

    /// Returns the error of a device.
    pub(crate) fn refused(&self, index: usize, why: impl ToString, fix: impl ToString) -> Error {
        Error::media(&self.lanes[index].info.device, why, fix)
    }

    /// Writes and flushes copy B of each of `devices`, then copy A, so that one copy is whole at any time and the old
    /// contents count until copy A is overwritten. Where `lacks_copy_a` (after an interrupted call), copy A comes
    /// first, because copy B is the only one. Reads each copy back, so that a bad write is detected before the other
    /// copy is overwritten.
    pub(crate) fn write_superblocks(
        &mut self,
        superblocks: &[Superblock],
        devices: Range<usize>,
        lacks_copy_a: impl Fn(usize) -> bool,
    ) -> Result<()> {
        for is_second in [false, true] {
            for index in devices.clone() {
                let superblock = &superblocks[index];
                let copy = usize::from(lacks_copy_a(index) == is_second);
                let mut bytes = [0; SUPERBLOCK_BYTES];
                superblock.encode(&mut bytes);
                let unit = superblock_units(superblock.chart.members[index].units)[copy];
                self.write_superblock(index, unit, &bytes)?;
            }
            self.flush()?;
        }
        Ok(())
    }

    fn write_superblock(
        &mut self,
        index: usize,
        unit: u64,
        bytes: &[u8; SUPERBLOCK_BYTES],
    ) -> Result<()> {
        for _ in 0..SUPERBLOCK_WRITES {
            self.write(index, unit, bytes)?;
            let mut found = [0; SUPERBLOCK_BYTES];
            self.read(index as u8, unit, &mut found)?;
            if found == *bytes {
                return Ok(());
            }
        }
        let why = "its superblock reads back otherwise than it was written";
        Err(self.refused(index, why, "check the drive and its cables, then open the store again"))
    }

    /// Zeroes void checkpoint slots and journals, so that they stay void even if they were only unreadable today.
    ///
    /// # Errors
    /// [`Error::Media`] if the device does not answer.
    pub(crate) fn void(&mut self, areas: &Areas, recovered: &Recovered) -> Result<()> {
        let slots = areas.slots.iter().zip(recovered.void_slots);
        for (slot, _) in slots.filter(|(_, is_void)| *is_void) {
            self.zero(areas.device, slot.start..slot.start + 1)?;
        }
        if recovered.is_journal_void {
            self.zero(areas.device, areas.journal.clone())?;
        }
        self.flush()
    }

    /// Overwrites units with zeroes. A flush must follow.
    ///
    /// # Errors
    /// [`Error::Media`] if the device does not answer.
    pub(crate) fn zero(&mut self, device: u8, units: Range<u64>) -> Result<()> {
        let zeroes = vec![0; LANE_BUFFER_BYTES];
        let mut unit = units.start;
        while unit < units.end {
            let count = (units.end - unit).min(LANE_BUFFER_BYTES as u64 / UNIT_BYTES);
            self.write_run(device, unit, &zeroes[..(count * UNIT_BYTES) as usize])?;
            unit += count;
        }
        Ok(())
    }

    /// Writes whole units, with several commands in turn if necessary.
    ///
    /// # Errors
    /// [`Error::Media`] if the device does not answer.
    pub(crate) fn write_run(&mut self, device: u8, unit: u64, bytes: &[u8]) -> Result<()> {
        let (mut unit, mut bytes) = (unit, bytes);
        while !bytes.is_empty() {
            let count = self.step_units(device, unit, units(bytes.len() as u64));
            let (part, rest) = bytes.split_at((count * UNIT_BYTES) as usize);
            self.write(usize::from(device), unit, part)?;
            (unit, bytes) = (unit + count, rest);
        }
        Ok(())
    }

    /// Returns the units of one command from `unit`, at most `count` and at most a buffer's.
    fn step_units(&self, device: u8, unit: u64, count: u64) -> u64 {
        let bytes = (count * UNIT_BYTES).min(LANE_BUFFER_BYTES as u64);
        self.lanes[usize::from(device)].info.split().first(unit * UNIT_BYTES, bytes) / UNIT_BYTES
    }

    fn write(&mut self, device: usize, unit: u64, bytes: &[u8]) -> Result<()> {
        let lane = &mut self.lanes[device];
        let operation =
            Operation::Write(Place { device: device as u8, unit }.lba(lane.info.lba_bytes));
        let mut memory = lane.memory.pop().expect("memory of a lane is idle while it is opened");
        let rest = memory.split_off(bytes.len());
        memory.copy_from_slice(bytes);
        lane.keep(rest);
        let memory = self.run(device, operation, AnyBuffer::One(memory), bytes.len() as u64)?;
        self.take_back(device, memory);
        Ok(())
    }

    fn take_back(&mut self, device: usize, memory: AnyBuffer) {
        if let AnyBuffer::One(memory) = memory {
            self.lanes[device].keep(memory);
        }
    }

    /// Sends one command and waits for it.
    fn run(
        &mut self,
        device: usize,
        operation: Operation,
        memory: AnyBuffer,
        bytes: u64,
    ) -> Result<AnyBuffer> {
        self.push(device, 0, operation, memory, bytes);
        let mut finished = Vec::new();
        while finished.is_empty() {
            self.turn(device, &mut finished);
        }
        let Finished { memory, result, .. } = finished.pop().expect("it has finished");
        match result {
            Ok(()) => Ok(memory),
            Err(fault) => {
                self.take_back(device, memory);
                Err(self.error(device, fault))
            }
        }
    }

    fn push(
        &mut self,
        device: usize,
        index: u32,
        operation: Operation,
        memory: AnyBuffer,
        bytes: u64,
    ) {
        let (purpose, class, deadline) = (Purpose::Opening { index }, Class::Read, Time::NEVER);
        let now = (self.clock)();
        let command = Command { purpose, operation, class, memory, bytes, deadline };
        self.lanes[device].push(now, command);
    }

    fn turn(&mut self, device: usize, finished: &mut Vec<Finished>) {
        let now = (self.clock)();
        let lane = &mut self.lanes[device];
        lane.send(now);
        lane.poll(now);
        finished.extend(std::iter::from_fn(|| lane.take_finished()));
    }

    fn error(&self, device: usize, fault: Fault) -> Error {
        let why = self.lanes[device].failure().map_or_else(|| fault.to_string(), str::to_owned);
        self.refused(device, why, "look at the drive's health and try again")
    }

    /// Returns the bytes read by a command, or zeroes if the medium has lost them.
    fn bytes_of(&self, device: usize, finished: Finished) -> Result<Buffer> {
        let AnyBuffer::One(mut memory) = finished.memory else { unreachable!("reads have memory") };
        match finished.result {
            Ok(()) => {}
            Err(fault @ Fault::Command(_)) if self.lanes[device].failure().is_none() => {
                tracing::warn!("{}: {fault}; taken for zeroes", self.lanes[device].info.device);
                memory.fill(0);
            }
            Err(fault) => return Err(self.error(device, fault)),
        }
        Ok(memory)
    }
}

/// A stream of reads. Completions arrive in any order; bytes are delivered in device order.
struct Stream {
    device: usize,
    next: u64,
    end: u64,
    issued: u32,
    taken: u32,
    back: BTreeMap<u32, Finished>,
}

impl<Q: CommandQueue<Load>> Waiting<'_, Q> {
    fn read_ahead(&mut self, stream: &mut Stream) {
        while stream.next < stream.end && ((stream.issued - stream.taken) as usize) < AHEAD {
            let Some(mut memory) = self.lanes[stream.device].memory.pop() else { break };
            let left = stream.end - stream.next;
            let count = self.step_units(stream.device as u8, stream.next, left);
            let rest = memory.split_off((count * UNIT_BYTES) as usize);
            self.lanes[stream.device].keep(rest);
            let place = Place { device: stream.device as u8, unit: stream.next };
            let operation = Operation::Read(place.lba(self.lanes[stream.device].info.lba_bytes));
            let bytes = memory.len() as u64;
            self.push(stream.device, stream.issued, operation, AnyBuffer::One(memory), bytes);
            stream.issued += 1;
            stream.next += count;
        }
    }

    /// Waits for the next read and passes its bytes to `each`.
    fn next_read(
        &mut self,
        stream: &mut Stream,
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let mut finished = Vec::new();
        while !stream.back.contains_key(&stream.taken) {
            self.turn(stream.device, &mut finished);
            for one in finished.drain(..) {
                let Purpose::Opening { index } = one.purpose else { unreachable!("only reads") };
                stream.back.insert(index, one);
            }
        }
        let one = stream.back.remove(&stream.taken).expect("it is there");
        stream.taken += 1;
        let memory = self.bytes_of(stream.device, one)?;
        let goes_on = each(&memory);
        self.lanes[stream.device].keep(memory);
        goes_on
    }

    /// Waits for the reads in flight and discards them.
    fn drain(&mut self, stream: &mut Stream) {
        let device = stream.device;
        let mut finished: Vec<Finished> = std::mem::take(&mut stream.back).into_values().collect();
        while !self.lanes[device].is_idle() {
            self.turn(device, &mut finished);
        }
        for one in finished {
            self.take_back(device, one.memory);
        }
    }
}

impl<Q: CommandQueue<Load>> Media for Waiting<'_, Q> {
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> Result<()> {
        let range = unit..unit + units(into.len() as u64);
        let mut at = 0;
        self.read_stream(device, range, into.len(), &mut |bytes| {
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            Ok(true)
        })
    }

    fn read_stream(
        &mut self,
        device: u8,
        range: Range<u64>,
        chunk_bytes: usize,
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut stream = Stream {
            device: usize::from(device),
            next: range.start,
            end: range.end,
            issued: 0,
            taken: 0,
            back: BTreeMap::new(),
        };
        let result = self.run_stream(&mut stream, chunk_bytes, each);
        self.drain(&mut stream);
        result
    }
}

impl<Q: CommandQueue<Load>> Waiting<'_, Q> {
    fn run_stream(
        &mut self,
        stream: &mut Stream,
        chunk_bytes: usize,
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut chunks = Chunks { chunk_bytes, rest: Vec::new() };
        loop {
            self.read_ahead(stream);
            if stream.issued == stream.taken {
                break;
            }
            if !self.next_read(stream, &mut |read| chunks.add(read, each))? {
                return Ok(());
            }
        }
        if !chunks.rest.is_empty() {
            each(&chunks.rest)?;
        }
        Ok(())
    }
}

/// Regroups reads into chunks of one length.
struct Chunks {
    chunk_bytes: usize,
    rest: Vec<u8>,
}

impl Chunks {
    /// Delivers each whole chunk, usually without a copy. Returns false once `each` does.
    fn add(
        &mut self,
        mut read: &[u8],
        each: &mut dyn FnMut(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        if !self.rest.is_empty() {
            let fits = (self.chunk_bytes - self.rest.len()).min(read.len());
            self.rest.extend_from_slice(&read[..fits]);
            read = &read[fits..];
            if self.rest.len() < self.chunk_bytes {
                return Ok(true);
            }
            let goes_on = each(&self.rest)?;
            self.rest.clear();
            if !goes_on {
                return Ok(false);
            }
        }
        let mut chunks = read.chunks_exact(self.chunk_bytes);
        for chunk in &mut chunks {
            if !each(chunk)? {
                return Ok(false);
            }
        }
        self.rest.extend_from_slice(chunks.remainder());
        Ok(true)
    }
}

mod session;
#[cfg(test)]
mod tests;
