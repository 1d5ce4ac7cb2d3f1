//! Reads a store's devices without opening the store, for commands that only read.
//!
//! If another process has the store open, its devices are still read if the path allows it. Readings are
//! repeated until they are consistent or certainly damaged: [`Reader::picture`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request, Split};
use adit_driver::spec::Lba;
use adit_driver::{Buffer, Completion, Device, DeviceOptions, Target};
use adit_kvstore::survey::{self, DeviceFacts, Fault, Heads, Looks, Media, Moment, ShardSurvey};
use adit_kvstore::{Error, UNIT_BYTES};

use super::store;
use crate::failure::{Failure, Result};
use crate::human::plural;

/// Bytes per read, held in memory for each device.
const CHUNK_BYTES: u64 = 1 << 20;
/// Reads in flight.
const DEPTH: u32 = 8;
/// Time until a read is aborted, and then until the abort is given up.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Polling interval for reads.
const LOOK: Duration = Duration::from_micros(50);
/// The first pause before an inconsistent reading is repeated; each further pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Maximum pauses: 2.5 s in total for the superblocks, and again for all shards together. Only damage persists
/// that long.
const PAUSES: u32 = 8;
/// The most readings that begin again because the store was formatted or emptied meanwhile.
const ANEW: u32 = 8;

/// Note about a store that another process has open.
pub(crate) const IN_USE: &str = "The store is open elsewhere: this report shows it at one moment.";

/// A store's devices, opened for reading.
pub(crate) struct Reader {
    devices: Vec<Opened>,
    /// Whether another process may be writing to them.
    may_move: bool,
    /// Whether another process has the store open.
    pub(crate) is_in_use: bool,
}

/// A store's state at one moment.
pub(crate) struct Picture<T> {
    /// Its superblocks.
    pub(crate) heads: Heads,
    /// The damage.
    pub(crate) faults: Vec<Fault>,
    /// Inconsistent shards in the last reading.
    pub(crate) moving: usize,
    /// The result of each shard.
    pub(crate) shards: Vec<T>,
}

impl<T> Picture<T> {
    /// Warns about damage, which may hide objects, for commands that list contents.
    pub(crate) fn warn_of_faults(&self) {
        let count = self.faults.len();
        if count > 0 {
            let plural = plural(count as u64);
            tracing::warn!("{count} fault{plural}: objects may be missing; run 'adit kv check'");
        }
    }
}

/// A device with its own queue.
struct Opened {
    device: Device,
    queue: DeviceQueue<Buffer>,
    /// What one read may cover.
    split: Split,
    memory: Option<Buffer>,
}

impl Reader {
    /// Opens the devices; with `exclusive`, only if no other process has them open.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub(crate) fn open(targets: &[Target], exclusive: bool) -> Result<Reader> {
        store::check_there(targets, store::NO_STORE)?;
        let open = |exclusive: bool| {
            let options = DeviceOptions { writes: false, exclusive, ..DeviceOptions::default() };
            let each = targets.iter().map(|target| Device::open(target, &options));
            each.collect::<std::result::Result<Vec<_>, _>>()
        };
        let (devices, is_in_use) = match open(true) {
            Ok(devices) if exclusive => (devices, false),
            // A reader must not block other processes, except during this check.
            Ok(devices) => {
                drop(devices);
                (open(false)?, false)
            }
            Err(error) if exclusive || !is_taken(&error) => return Err(error.into()),
            Err(_) => (open(false)?, true),
        };
        Ok(Reader { is_in_use, may_move: !exclusive, ..Reader::of(devices)? })
    }

    /// Reads devices that this process has open, with a new queue on each.
    ///
    /// # Errors
    /// As [`Device::create_queue`].
    pub(crate) fn of(devices: impl IntoIterator<Item = Device>) -> Result<Reader> {
        let devices = devices.into_iter().map(Opened::new).collect::<Result<_>>()?;
        Ok(Reader { devices, is_in_use: false, may_move: false })
    }

    /// Returns the superblocks and their faults.
    ///
    /// # Errors
    /// As [`survey::heads`].
    pub(crate) fn heads(&mut self) -> Result<(Heads, Vec<Fault>)> {
        let (facts, mut pauses) = (self.facts(), self.pauses());
        Ok(survey::heads_in_use(self, &facts, &mut pauses)?)
    }

    /// Surveys all shards and keeps the results of `of`, which is called for each reading.
    ///
    /// # Errors
    /// As [`survey::heads`] and `of`; when the store is formatted or emptied repeatedly.
    pub(crate) fn picture<T>(
        &mut self,
        mut of: impl FnMut(&Heads, u16, ShardSurvey) -> Result<T>,
    ) -> Result<Picture<T>> {
        for _ in 0..ANEW {
            if let Some(picture) = self.look(&mut of, &mut self.pauses())? {
                return Ok(picture);
            }
        }
        Err(Failure::failed("the store is being formatted or emptied; run the command again"))
    }

    /// Reads the shards until none has faults or `pause` returns false; `None` if the store was replaced
    /// meanwhile.
    fn look<T>(
        &mut self,
        of: &mut impl FnMut(&Heads, u16, ShardSurvey) -> Result<T>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Picture<T>>> {
        let facts = self.facts();
        let (heads, faults) = self.heads()?;
        let mut left: Vec<u16> = (0..heads.geometry.shards()).collect();
        let (mut looks, mut seen) = (vec![Looks::default(); left.len()], BTreeMap::new());
        loop {
            let mut again = Vec::new();
            for shard in left {
                let found = looks[usize::from(shard)].look(self, (&heads, &facts), shard)?;
                let Some(moment) = found else { return Ok(None) };
                if !moment.is_whole() {
                    again.push(shard);
                }
                let Moment { mut survey, moving } = moment;
                let faults = std::mem::take(&mut survey.faults);
                seen.insert(shard, (faults, moving.len(), of(&heads, shard, survey)?));
            }
            // One pause for all: separate pauses would take too long for many damaged shards.
            if again.is_empty() || !pause() {
                break;
            }
            left = again;
        }
        let mut picture = Picture { heads, faults, moving: 0, shards: Vec::new() };
        for (mut faults, moving, kept) in seen.into_values() {
            picture.faults.append(&mut faults);
            picture.moving += moving;
            picture.shards.push(kept);
        }
        Ok(Some(picture))
    }

    /// Returns a function that sleeps a little longer on each call and returns whether to read again.
    fn pauses(&self) -> impl FnMut() -> bool + use<> {
        let pauses = if self.may_move { PAUSES } else { 0 };
        let mut number = 0;
        move || {
            let goes_on = number < pauses;
            if goes_on {
                thread::sleep(PAUSE_FIRST * (1 << number));
                number += 1;
            }
            goes_on
        }
    }

    /// Returns the devices' current facts.
    pub(crate) fn facts(&self) -> Vec<DeviceFacts> {
        let of = |opened: &Opened| {
            let info = opened.device.info();
            DeviceFacts {
                device: info.device.clone(),
                bytes: info.bytes,
                lba_bytes: info.lba_bytes,
            }
        };
        self.devices.iter().map(of).collect()
    }

    /// Warns if another process has the store open.
    pub(crate) fn warn_of_use(&self) {
        if self.is_in_use {
            tracing::warn!("{IN_USE}");
        }
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().map(|opened| &opened.device)
    }
}

/// Returns whether a device was refused because another process has it open.
fn is_taken(error: &impl std::fmt::Display) -> bool {
    error.to_string().contains("another process or handle has it open")
}

/// Adds to such a refusal the option that reads the store nevertheless.
pub(crate) fn naming_read_only(failure: Failure) -> Failure {
    match is_taken(&failure) {
        true => failure.and("or use --read-only"),
        false => failure,
    }
}

impl Opened {
    fn new(device: Device) -> Result<Opened> {
        let memory = device.allocate(CHUNK_BYTES as usize)?;
        let depth = DEPTH.min(device.info().queue_depth_max);
        let options = QueueOptions { depth, timeout: READ_LIMIT, abort_timeout: READ_LIMIT };
        let queue = device.create_queue(&options, &[&memory])?;
        let split = device.info().split(depth);
        Ok(Opened { device, queue, split, memory: Some(memory) })
    }

    /// Reads one range, in as many requests as it takes; unreadable ones are returned as zeroes.
    fn read(&mut self, unit: u64, mut into: &mut [u8]) -> adit_kvstore::Result<()> {
        let mut offset = unit * UNIT_BYTES;
        while !into.is_empty() {
            let bytes = self.split.first(offset, CHUNK_BYTES.min(into.len() as u64));
            let (part, rest) = into.split_at_mut(bytes as usize);
            self.read_once(offset, part)?;
            (offset, into) = (offset + bytes, rest);
        }
        Ok(())
    }

    fn read_once(&mut self, offset: u64, into: &mut [u8]) -> adit_kvstore::Result<()> {
        let lba = Lba(offset / u64::from(self.device.info().lba_bytes));
        let mut whole = self.memory.take().expect("one read at a time");
        let rest = whole.split_off(into.len());
        let request = Request { operation: Operation::Read(lba), buffer: whole };
        let posted = self.queue.post(self.device.now(), request);
        posted.map_err(|rejected| self.failed(&rejected.reason))?;
        self.queue.ring();
        let Completion { mut buffer, result } = self.completion()?;
        match result {
            Ok(_) => into.copy_from_slice(&buffer),
            Err(error) => {
                let (device, unit) = (&self.device.info().device, offset / UNIT_BYTES);
                tracing::warn!("{device}: reading unit {unit} failed: {error}");
                into.fill(0);
            }
        }
        buffer.join(rest).expect("they were one");
        self.memory = Some(buffer);
        Ok(())
    }

    fn completion(&mut self) -> adit_kvstore::Result<Completion<Buffer>> {
        loop {
            let mut done = None;
            self.queue.poll(self.device.now(), |completion| done = Some(completion));
            if let Some(done) = done {
                return Ok(done);
            }
            self.queue.check()?;
            if !self.queue.wait(LOOK) {
                thread::sleep(LOOK);
            }
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Error {
        Error::Media {
            device: self.device.info().device.clone(),
            why: format!("a read was rejected: {why}"),
            fix: "check the target's name".to_owned(),
        }
    }
}

impl Media for Reader {
    fn read(&mut self, device: u8, unit: u64, into: &mut [u8]) -> adit_kvstore::Result<()> {
        self.devices[usize::from(device)].read(unit, into)
    }

    fn read_stream(
        &mut self,
        device: u8,
        units: Range<u64>,
        chunk_bytes: usize,
        each: &mut dyn FnMut(&[u8]) -> adit_kvstore::Result<bool>,
    ) -> adit_kvstore::Result<()> {
        // Several chunks at once, to need fewer commands.
        let mut room = vec![0; (CHUNK_BYTES as usize / chunk_bytes).max(1) * chunk_bytes];
        let mut unit = units.start;
        while unit < units.end {
            let bytes = ((units.end - unit) * UNIT_BYTES).min(room.len() as u64);
            let room = &mut room[..bytes as usize];
            self.read(device, unit, room)?;
            for chunk in room.chunks(chunk_bytes) {
                if !each(chunk)? {
                    return Ok(());
                }
            }
            unit += bytes / UNIT_BYTES;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use adit_kvstore::{FormatStore, Key, OpenOptions, Store};

    use super::*;

    /// A store of three shards in a file, each with objects and damage.
    fn damaged(path: &Path) -> Vec<Target> {
        let file_bytes = Some(64 << 20);
        let target: Target = format!("uring:{}", path.display()).parse().expect("a target");
        let targets = vec![target];
        let format = FormatStore::new(targets.clone());
        Store::format(&FormatStore { file_bytes, shards: 3, ..format }).expect("formats");
        let store = Store::open(&OpenOptions::new(targets.clone())).expect("opens");
        for key in 0..30u8 {
            let buffer = store.buffer(4096).wait().expect("memory");
            store.put(Key::new(&[key]).expect("a key"), buffer).wait().expect("there is room");
        }
        store.close().wait().expect("closes");
        let mut image = fs::read(path).expect("there");
        let is_block = |unit: &&mut [u8]| unit[..64].windows(3).any(|part| part == b"AKV");
        let last = image.len() - UNIT_BYTES as usize;
        let inner = image[UNIT_BYTES as usize..last].chunks_mut(UNIT_BYTES as usize);
        inner.filter(is_block).for_each(|unit| unit[100] ^= 0xff);
        fs::write(path, &image).expect("there is room");
        targets
    }

    #[test]
    fn all_damaged_shards_share_their_pauses() {
        let path = std::env::temp_dir().join(format!("adit-pauses-{}.img", std::process::id()));
        let mut reader = Reader::open(&damaged(&path), false).expect("opens");
        let (mut looked, mut pauses) = (Vec::new(), 0);
        let mut of = |_: &Heads, shard, _| {
            looked.push(shard);
            Ok(shard)
        };
        let mut pause = || {
            pauses += 1;
            pauses < 3
        };
        let picture = reader.look(&mut of, &mut pause).expect("reads").expect("it is still");
        fs::remove_file(&path).expect("there");
        assert!(picture.faults.len() >= 3, "{:?}", picture.faults);
        assert_eq!((picture.shards, looked, pauses), (vec![0, 1, 2], [0, 1, 2].repeat(3), 3));
    }

    #[test]
    fn a_stream_comes_in_chunks_until_it_is_enough() {
        let target: Target = "soft:mem=8M".parse().expect("a target");
        let mut reader = Reader::open(&[target], true).expect("opens");
        let mut seen = Vec::new();
        let read = reader.read_stream(0, 3..1003, 65536, &mut |chunk| {
            assert!(chunk.iter().all(|byte| *byte == 0));
            seen.push(chunk.len());
            Ok(seen.len() < 60)
        });
        read.expect("reads");
        assert_eq!((seen.len(), seen[0]), (60, 65536));
        seen.clear();
        let read = reader.read_stream(0, 3..40, 65536, &mut |chunk| {
            seen.push(chunk.len());
            Ok(true)
        });
        read.expect("reads");
        assert_eq!(seen, [65536, 65536, 5 * 4096], "the last is shorter");
    }
}
