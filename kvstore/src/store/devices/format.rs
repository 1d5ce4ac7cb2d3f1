//! Formatting devices as a store.

use adit_driver::{Device, Target};

use super::Devices;
use super::options::OpenOptions;
use crate::error::{Error, Result};
use crate::media::format::{self, FormatOptions};
use crate::media::superblock::LABEL_BYTES_MAX;

/// Options for formatting a store.
#[derive(Clone, Debug)]
pub struct FormatStore {
    /// The store's devices, in the order in which they will be opened.
    pub targets: Vec<Target>,
    /// Devices that are already open; if given, `targets` is ignored.
    pub devices: Vec<Device>,
    /// Number of shards, each driven by one thread: the most cores the store can use. Default 1.
    pub shards: u16,
    /// Number of objects that the store holds, if their keys are no longer than `key_bytes` and they have one checksum
    /// each (128 KiB). Several shards hold a little more, because keys are not spread quite evenly. Default one per 64
    /// KiB of the devices, within 4096 to 2^26 - 1 per shard.
    pub objects_max: Option<u64>,
    /// Length in bytes, 1 to 512, of the longest keys with which the store holds `objects_max` objects. A longer key
    /// takes more of the room for metadata. Default 64, a SHA-256 in hexadecimal. Costs 2.5 bytes on the media for each
    /// byte and object.
    pub key_bytes: u16,
    /// Bytes of each shard's journal. Default by the number of objects.
    pub journal_bytes: Option<u64>,
    /// A human-readable name of at most 32 bytes. Default none.
    pub label: String,
    /// Whether to overwrite existing data, including a store. Default false.
    pub overwrite: bool,
    /// Creates a missing regular file, and extends a shorter one to this many bytes. All of a file's blocks are
    /// allocated then, so that a full disk shows now; the store never gives them back. A format that fails does: it
    /// removes a file that it created, and gives one that it extended its length back.
    pub file_bytes: Option<u64>,
}

impl Default for FormatStore {
    fn default() -> FormatStore {
        FormatStore {
            targets: Vec::new(),
            devices: Vec::new(),
            shards: 1,
            objects_max: None,
            key_bytes: 64,
            journal_bytes: None,
            label: String::new(),
            overwrite: false,
            file_bytes: None,
        }
    }
}

/// Device bytes per object by default.
const BYTES_PER_OBJECT: u64 = 64 << 10;
/// Bounds of a shard's default number of objects.
const OBJECTS_MIN: u64 = 4096;
const OBJECTS_MAX: u64 = (1 << 26) - 1;

/// The capacity of a formatted store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// Number of objects, over all shards.
    pub objects_max: u64,
    /// Length in bytes of the longest keys with which it holds `objects_max` objects: [`FormatStore::key_bytes`], or
    /// a little more.
    pub key_bytes: u16,
}

impl FormatStore {
    /// Returns the defaults for a store on these targets.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> FormatStore {
        FormatStore { targets: targets.into_iter().collect(), ..FormatStore::default() }
    }

    /// Returns the maximum objects per shard, for devices of `bytes` in total.
    fn objects(&self, bytes: u64) -> Result<u32> {
        let shards = u64::from(self.shards);
        let share = match self.objects_max {
            Some(all) => all.div_ceil(shards),
            None => (bytes / BYTES_PER_OBJECT / shards).clamp(OBJECTS_MIN, OBJECTS_MAX),
        };
        if !(1..=OBJECTS_MAX).contains(&share) {
            let fix = format!("use 1 to {OBJECTS_MAX} for each shard, or more shards");
            return Err(Error::invalid("objects_max", share, fix));
        }
        let is_spread = self.objects_max.is_some() && shards > 1;
        let objects = if is_spread { (share + spread(share)).min(OBJECTS_MAX) } else { share };
        Ok(u32::try_from(objects).expect("2^26 - 1 at most"))
    }

    /// Checks that files which exist may be overwritten, before they are made longer: a file that is refused keeps its
    /// length. [`Store::format`](crate::store::Store::format) does so itself, unless it is given open devices.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Media`] if one holds data that may not be overwritten.
    pub fn check_files(&self) -> Result<()> {
        if self.overwrite { Ok(()) } else { Devices::check_files(&self.targets) }
    }

    pub(crate) fn run(&self) -> Result<Formatted> {
        if self.shards == 0 {
            return Err(Error::invalid("shards", 0, "use at least 1"));
        }
        if self.label.len() > LABEL_BYTES_MAX {
            let fix = format!("use at most {LABEL_BYTES_MAX} bytes");
            return Err(Error::invalid("label", &self.label, fix));
        }
        if self.file_bytes.is_some() && self.devices.is_empty() {
            self.check_files()?;
        }
        let devices = Devices::open(&self.targets, &self.devices, self.file_bytes)?;
        self.format(&devices).inspect_err(|_| devices.take_back_files())
    }

    fn format(&self, devices: &Devices) -> Result<Formatted> {
        let options = FormatOptions {
            shards: self.shards,
            objects_max: self.objects(devices.bytes())?,
            key_bytes: self.key_bytes,
            journal_bytes: self.journal_bytes,
            label: self.label.clone(),
            store_id: super::random()?,
            overwrite: self.overwrite,
        };
        let mut lanes = devices.lanes(&OpenOptions::default(), &[])?;
        let geometry = format::format(&mut lanes, &options, &mut devices.clock())?;
        devices.close_to_others();
        Ok(Formatted {
            objects_max: u64::from(options.objects_max) * u64::from(options.shards),
            key_bytes: geometry.key_bytes(options.objects_max),
        })
    }
}

/// Returns how many objects more than its share, `share` on average, a shard may get: six standard deviations, because
/// hashes spread the keys.
fn spread(share: u64) -> u64 {
    6 * (share.isqrt() + 1)
}
