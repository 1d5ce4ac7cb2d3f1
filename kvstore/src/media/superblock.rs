//! The superblock states a device's role in a store. Its two copies are the first and the last unit of the device.
//!
//! The newer whole copy counts. Copy B is written and flushed, then copy A ([`crate::media::format`]), by the format,
//! by each opening, which raises the sequence, and by a change of the store's devices. The sequence is the number of
//! the session, which distinguishes its journal blocks from those of earlier openings, so it is on all devices before
//! the first block is written.
//!
//! The chart lists the store's devices and areas. A [`Revision`] numbers it and names its predecessor, so that the
//! newest of several devices' charts counts only if the others have the same or the previous revision
//! ([`crate::media::device_set`]).
//!
//! A clean stop records the end of each shard's journal ([`Stop`]), which later sessions keep: the journal never ends
//! earlier again, unless by damage.
//!
//! The checksum and the version stay in their places in all future versions, so that another version is not mistaken
//! for damage. This module does no I/O.

use std::fmt;

use crate::error::{Error, Result};
use crate::media::bytes::{Reader, Writer};
use crate::media::chart::{CHART_BYTES_MAX, Chart};
use crate::media::checksum;
use crate::media::geometry::Geometry;
use crate::media::recovery::Witness;
use crate::model::options::Durability;
use crate::model::place::UNIT_BYTES;

/// Bytes of a superblock: one unit.
pub const SUPERBLOCK_BYTES: usize = UNIT_BYTES as usize;
/// The version of the whole format.
pub const FORMAT_VERSION: u32 = 3;
/// The oldest version that this one opens. The next superblock written makes it a store of [`FORMAT_VERSION`].
pub const FORMAT_VERSION_MIN: u32 = 2;
/// Maximum length of a label, in bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 32;

pub(super) const MAGIC: [u8; 8] = *b"ADITKV\0\x01";
const CRC_AT: usize = SUPERBLOCK_BYTES - 4;
/// Offset of the revision, which the chart follows.
const REVISION_AT: usize = 248;
const REVISION_BYTES: usize = 24;
/// Offset of the session of the last clean stop. The ends of its journals lie before the checksum.
const STOP_AT: usize = 240;
const END_BYTES: usize = 8;

const _: () = assert!(REVISION_AT + REVISION_BYTES + CHART_BYTES_MAX <= CRC_AT);

/// The change of the devices that made a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The number of the change; 1 is the format.
    pub number: u64,
    /// A random number of the change.
    pub id: u64,
    /// The random number of the change before it.
    pub before: u64,
}

impl Revision {
    /// Returns the revision of a new store.
    pub fn first(id: u64) -> Revision {
        Revision { number: 1, id, before: id }
    }

    /// Returns the next revision.
    #[must_use]
    pub fn next(self, id: u64) -> Revision {
        Revision { number: self.number + 1, id, before: self.id }
    }

    /// Returns whether `other` is the same or the previous revision, as after an interrupted change.
    pub fn follows(&self, other: &Revision) -> bool {
        *self == *other || (self.number == other.number + 1 && self.before == other.id)
    }
}

/// The record of a clean stop of the store: how much of each shard's journal was flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The session that stopped.
    pub session: u64,
    /// For each shard, the sequence below which its blocks were flushed.
    pub ends: Vec<u64>,
}

impl Stop {
    /// Returns the record of a shard.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn witness(&self, shard: u16) -> Witness {
        Witness { session: self.session, end: self.ends[usize::from(shard)] }
    }
}

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The store's random id, equal on all its devices and on no others.
    pub store: [u8; 16],
    /// Counts writes, so the higher one is the newer copy. It is also the number of the session that wrote it.
    pub sequence: u64,
    /// The epoch: journals and checkpoints of other epochs are void. A volatile opening raises it.
    pub epoch: u64,
    /// The number of this device in the chart.
    pub device_id: u64,
    /// Length of each shard's journal in units.
    pub journal_units: u64,
    /// Length of each checkpoint slot in units.
    pub checkpoint_units: u64,
    /// Maximum objects per shard.
    pub objects_max: u32,
    /// LBA size of this device in bytes.
    pub lba_bytes: u32,
    /// Number of shards.
    pub shards: u16,
    /// The durability of the last opening; informative only.
    pub durability: Durability,
    /// The label: up to 32 bytes.
    pub label: String,
    /// The record of the last clean stop; `None` without one in this epoch, or if the chart leaves no room for it.
    pub stop: Option<Stop>,
    /// The change of the devices that made the chart.
    pub revision: Revision,
    /// The store's devices and their areas.
    pub chart: Chart,
}

/// The reason why a device has no usable superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Both copies are all zeroes.
    Blank,
    /// Other data, with its name if it is well-known.
    Foreign(Option<&'static str>),
    /// A store in another version of the format.
    Version(u32),
    /// A store without a whole copy.
    Damaged,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Blank => f.write_str("nothing was ever written here"),
            Absent::Foreign(Some(name)) => write!(f, "there is {name} here, and no store"),
            Absent::Foreign(None) => f.write_str("there is other data here, and no store"),
            Absent::Version(version) => {
                write!(
                    f,
                    "the store has version {version} of the format, not {FORMAT_VERSION_MIN} to \
                     {FORMAT_VERSION}"
                )
            }
            Absent::Damaged => f.write_str("both copies of the superblock are damaged"),
        }
    }
}

impl Absent {
    /// Converts the reason to an error with a remedy.
    pub fn into_error(self, device: &str) -> Error {
        let fix = match self {
            Absent::Blank => "format it with 'adit kv format', or look at the target's name",
            Absent::Foreign(_) => {
                "look at the target's name; formatting it would destroy what is there"
            }
            Absent::Version(_) => {
                "open it with the version of adit that made it, or format it again"
            }
            Absent::Damaged => "its contents are lost: check the drive, then format it again",
        };
        Error::media(device, self, fix)
    }
}

impl Superblock {
    /// Encodes the superblock. Omits a clean stop if the chart leaves no room for it.
    ///
    /// # Panics
    /// If the label or the chart is too long, or if a stop lacks an end for some shard.
    pub fn encode(&self, into: &mut [u8; SUPERBLOCK_BYTES]) {
        assert!(self.label.len() <= LABEL_BYTES_MAX, "label '{}'", self.label);
        into.fill(0);
        let mut writer = Writer::new(into);
        writer.put(&MAGIC).put(&FORMAT_VERSION.to_le_bytes()).put(&[0; 4]).put(&self.store);
        let Superblock { sequence, epoch, device_id, .. } = *self;
        for number in [sequence, epoch, device_id, self.journal_units, self.checkpoint_units] {
            writer.put(&number.to_le_bytes());
        }
        writer.put(&self.objects_max.to_le_bytes()).put(&self.lba_bytes.to_le_bytes());
        writer.put(&self.shards.to_le_bytes());
        writer.put(&[durability_number(self.durability), self.label.len() as u8]);
        writer.put(self.label.as_bytes());
        assert!(writer.len() <= STOP_AT, "the fields end before the stop");
        assert!(self.chart.encoded_bytes() <= CHART_BYTES_MAX, "the chart fits");
        let mut writer = Writer::new(&mut into[REVISION_AT..CRC_AT]);
        let Revision { number, id, before } = self.revision;
        for number in [number, id, before] {
            writer.put(&number.to_le_bytes());
        }
        self.chart.encode(&mut writer);
        if let Some(stop) = self.stop.as_ref().filter(|_| self.has_room_for_stop()) {
            assert_eq!(stop.ends.len(), usize::from(self.shards), "each journal has an end");
            into[STOP_AT..REVISION_AT].copy_from_slice(&stop.session.to_le_bytes());
            let mut writer = Writer::new(&mut into[ends_at(self.shards)..CRC_AT]);
            for end in &stop.ends {
                writer.put(&end.to_le_bytes());
            }
        }
        let crc = checksum::of(&into[..CRC_AT]);
        into[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the superblock in the bytes of one copy.
    ///
    /// # Errors
    /// The reason if there is none.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Absent> {
        if bytes.len() != SUPERBLOCK_BYTES {
            return Err(Absent::Damaged);
        }
        if bytes[..MAGIC.len()] != MAGIC {
            let is_blank = bytes.iter().all(|byte| *byte == 0);
            return Err(if is_blank { Absent::Blank } else { Absent::Foreign(foreign(bytes)) });
        }
        if bytes[CRC_AT..] != checksum::of(&bytes[..CRC_AT]).to_le_bytes() {
            return Err(Absent::Damaged);
        }
        let mut reader = Reader(&bytes[MAGIC.len()..CRC_AT]);
        match reader.u32() {
            Some(FORMAT_VERSION_MIN..=FORMAT_VERSION) => {
                let mut behind = Reader(&bytes[REVISION_AT..CRC_AT]);
                let found = parse(&mut reader, &mut behind).ok_or(Absent::Damaged)?.check()?;
                let stop = parse_stop(bytes, &found);
                Ok(Superblock { stop, ..found })
            }
            Some(other) => Err(Absent::Version(other)),
            None => Err(Absent::Damaged),
        }
    }

    fn check(self) -> Result<Superblock, Absent> {
        let is_device = self.device_index().is_some();
        let is_lba = self.lba_bytes >= 512 && UNIT_BYTES.is_multiple_of(u64::from(self.lba_bytes));
        let numbers = [self.sequence, self.epoch, self.revision.number];
        let has_room =
            numbers.iter().all(|number| *number < u64::MAX / 2) && self.revision.number > 0;
        let is_possible = is_device && is_lba && has_room && self.geometry().is_ok();
        if is_possible { Ok(self) } else { Err(Absent::Damaged) }
    }

    /// Returns whether the chart leaves room for the record of a clean stop.
    fn has_room_for_stop(&self) -> bool {
        let end = REVISION_AT + REVISION_BYTES + self.chart.encoded_bytes();
        end + END_BYTES * usize::from(self.shards) <= CRC_AT
    }

    /// Returns the index of the device with this number, if it is in the chart.
    pub fn index_of(&self, device_id: u64) -> Option<u8> {
        let at = self.chart.members.iter().position(|member| member.id == device_id);
        at.map(|at| at as u8)
    }

    /// Returns the index of this device; `None` if it is not in the chart.
    pub fn device_index(&self) -> Option<u8> {
        self.index_of(self.device_id)
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> u8 {
        self.chart.members.len() as u8
    }

    /// Returns the geometry.
    ///
    /// # Errors
    /// As [`Geometry::of`].
    pub fn geometry(&self) -> Result<Geometry> {
        let Superblock { shards, journal_units, checkpoint_units, .. } = *self;
        Geometry::of(self.chart.clone(), shards, journal_units, checkpoint_units)
    }
}

fn durability_number(durability: Durability) -> u8 {
    match durability {
        Durability::Volatile => 0,
        Durability::Restart => 1,
        Durability::Durable => 2,
    }
}

/// Returns the offset of the ends of `shards` journals, which must fit.
fn ends_at(shards: u16) -> usize {
    CRC_AT - END_BYTES * usize::from(shards)
}

/// Parses the record of a clean stop in the bytes of this superblock.
fn parse_stop(bytes: &[u8], found: &Superblock) -> Option<Stop> {
    let session = Reader(&bytes[STOP_AT..REVISION_AT]).u64()?;
    if session == 0 || !found.has_room_for_stop() {
        return None;
    }
    let mut reader = Reader(&bytes[ends_at(found.shards)..CRC_AT]);
    let ends = (0..found.shards).map(|_| reader.u64()).collect::<Option<Vec<u64>>>()?;
    Some(Stop { session, ends })
}

/// Parses the fields in `reader`, and the revision and the chart in `behind`.
fn parse(reader: &mut Reader<'_>, behind: &mut Reader<'_>) -> Option<Superblock> {
    reader.take(4)?;
    let store = reader.array()?;
    let (sequence, epoch) = (reader.u64()?, reader.u64()?);
    let (device_id, journal_units) = (reader.u64()?, reader.u64()?);
    let checkpoint_units = reader.u64()?;
    let (objects_max, lba_bytes) = (reader.u32()?, reader.u32()?);
    let shards = reader.u16()?;
    let durability = match reader.u8()? {
        0 => Durability::Volatile,
        1 => Durability::Restart,
        2 => Durability::Durable,
        _ => return None,
    };
    let label_bytes = usize::from(reader.u8()?);
    let label = reader.take(label_bytes).filter(|_| label_bytes <= LABEL_BYTES_MAX)?;
    let label = str::from_utf8(label).ok()?.to_owned();
    let revision = Revision { number: behind.u64()?, id: behind.u64()?, before: behind.u64()? };
    Some(Superblock {
        store,
        sequence,
        epoch,
        device_id,
        journal_units,
        checkpoint_units,
        objects_max,
        lba_bytes,
        shards,
        durability,
        label,
        stop: None,
        revision,
        chart: Chart::parse(behind)?,
    })
}

/// Well-known magic numbers in the first unit of a device: offset, bytes and name.
const FOREIGN: [(usize, &[u8], &str); 12] = [
    (0, b"XFSB", "an XFS file system"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "an LVM volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (0, b"EFI PART", "a GPT partition table"),
    (510, &[0x55, 0xaa], "a partition table"),
];

fn foreign(bytes: &[u8]) -> Option<&'static str> {
    let is_there = |(at, magic, _): &&(usize, &[u8], &str)| bytes[*at..].starts_with(magic);
    FOREIGN.iter().find(is_there).map(|(_, _, name)| *name)
}

/// The superblock of a device, and the copies that need to be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The newer whole copy.
    pub superblock: Superblock,
    /// For copies A and B, the reason if the copy is unusable.
    pub bad: [Option<Absent>; 2],
}

/// Chooses the newer of both copies. If they belong to two stores, chooses copy A: a format writes it last, and a grown
/// device may have the copy B of a longer, former store.
///
/// # Errors
/// The reason if there is none; another version takes precedence over damage, and damage over foreign data.
pub fn choose(copy_a: &[u8], copy_b: &[u8]) -> Result<Copies, Absent> {
    let (a, b) = (Superblock::decode(copy_a), Superblock::decode(copy_b));
    let bad = [a.as_ref().err().copied(), b.as_ref().err().copied()];
    match (a, b) {
        (Ok(a), Ok(b)) if a.store == b.store && b.sequence > a.sequence => {
            Ok(Copies { superblock: b, bad })
        }
        (Ok(superblock), _) | (_, Ok(superblock)) => Ok(Copies { superblock, bad }),
        (Err(a), Err(b)) => Err(graver(a, b)),
    }
}

/// Returns the more important reason if neither copy is usable.
fn graver(a: Absent, b: Absent) -> Absent {
    let rank = |absent: &Absent| match absent {
        Absent::Version(_) => 4,
        Absent::Damaged => 3,
        Absent::Foreign(Some(_)) => 2,
        Absent::Foreign(None) => 1,
        Absent::Blank => 0,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

#[cfg(test)]
mod tests;
