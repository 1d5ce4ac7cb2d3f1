//! How a store is formatted and opened.

use std::time::Duration;

use adit_driver::reactor::{Cores, Idle};
use adit_driver::{Buffer, Device, Target};

use super::devices::{self, DeviceShard, Devices, MEMORY_BYTES_MIN};
use super::endurance;
use crate::error::{Error, Result};
use crate::media::format::{self, FormatOptions, Set};
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::policy::evict::PolicyMaker;
use crate::shard::{Recovery, Shard, ShardOptions};

/// The longest that a call may wait: a year.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Its devices, in the order in which they were formatted.
    pub targets: Vec<Target>,
    /// The devices where they are open already; `targets` is not looked at then.
    pub devices: Vec<Device>,
    /// What an acknowledgement promises. Default `restart`.
    pub durability: Durability,
    /// What goes first when room is needed. Default LRU.
    pub policy: PolicyKind,
    /// A policy of the user's own, in place of `policy`. Default none.
    pub custom_policy: Option<PolicyMaker>,
    /// Most bytes that objects take, padding included. Default all there are.
    pub capacity_bytes: Option<u64>,
    /// Most objects. Default what the store was formatted for.
    pub capacity_objects: Option<u64>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Whether objects are only taken that are asked for again, where measurement says that this helps. Default
    /// false.
    pub adaptive_admission: bool,
    /// Bytes a day that objects may write. Default no limit.
    pub write_bytes_per_day: Option<u64>,
    /// How long from now on the drives are to endure what objects write: their logs are read when the store is opened,
    /// and say how many bytes a day that leaves. Where `write_bytes_per_day` is given too, the smaller counts. For
    /// devices that are reached through a controller of the driver's. Default no limit.
    pub lifetime: Option<Duration>,
    /// Commands in flight on each queue; a device that has fewer has fewer. Default 128.
    pub queue_depth: u32,
    /// Where the threads of a [`super::Store`] run, one each. Never more than shards. Default one, of the store's choice.
    pub cores: Cores,
    /// When an idle thread pauses and sleeps.
    pub idle: Idle,
    /// Requests that may wait for each thread, 1 to 65536. Default 1024.
    pub mailbox_depth: usize,
    /// Bytes of registered memory for each device (kernel paths share one), for data that is copied and for what
    /// [`super::Store`] reads into. The largest object that fits through it is as large. Default 64 MiB.
    pub pool_bytes: usize,
    /// How long a call may wait to be begun, at most a year. Default 30 s.
    pub timeout: Duration,
    /// How long a command may take on a device before it is aborted, where the path can; at most a year. Default 10 s.
    pub command_timeout: Duration,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// How long `restart` leaves what was written unflushed at most. Default 1 s.
    pub flush_interval: Duration,
    /// How long space must have been free before its device is told that it holds nothing of value. Default 10 s.
    pub discard_after: Duration,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let shard = ShardOptions::default();
        OpenOptions {
            targets: Vec::new(),
            devices: Vec::new(),
            durability: shard.durability,
            policy: shard.policy,
            custom_policy: None,
            capacity_bytes: None,
            capacity_objects: None,
            watermarks: shard.watermarks,
            adaptive_admission: shard.adaptive_admission,
            write_bytes_per_day: None,
            lifetime: None,
            queue_depth: 128,
            cores: Cores::Count(1),
            idle: Idle::default(),
            mailbox_depth: 1024,
            pool_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            command_timeout: Duration::from_secs(10),
            seal_interval: shard.seal_interval,
            flush_interval: shard.flush_interval,
            discard_after: shard.discard_after,
        }
    }
}

impl OpenOptions {
    /// The defaults, for a store on these targets.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> OpenOptions {
        OpenOptions { targets: targets.into_iter().collect(), ..OpenOptions::default() }
    }

    /// # Errors
    /// [`Error::Invalid`] for what cannot be.
    fn check(&self) -> Result<()> {
        self.watermarks.check()?;
        if self.pool_bytes < MEMORY_BYTES_MIN {
            let fix = format!("give at least {MEMORY_BYTES_MIN} bytes");
            return Err(Error::invalid("pool_bytes", self.pool_bytes, fix));
        }
        if !(1..=1 << 16).contains(&self.mailbox_depth) {
            return Err(Error::invalid("mailbox_depth", self.mailbox_depth, "use 1 to 65536"));
        }
        if self.queue_depth == 0 {
            return Err(Error::invalid("queue_depth", 0, "use at least 1"));
        }
        if self.timeout.is_zero() || self.command_timeout.is_zero() {
            return Err(Error::invalid("timeout", "0", "give it some time: 30 s is the default"));
        }
        if self.lifetime.is_some_and(|lifetime| lifetime.is_zero()) {
            return Err(Error::invalid("lifetime", 0, "give the drives some time: years, or days"));
        }
        let longest = self.timeout.max(self.command_timeout);
        if longest > TIMEOUT_MAX {
            let fix = format!("use at most {TIMEOUT_MAX:?}: requests have to end");
            return Err(Error::invalid("timeout", format!("{longest:?}"), fix));
        }
        Ok(())
    }

    /// Bytes a day that objects may write: the smaller of what was asked for and what the drives endure.
    ///
    /// # Errors
    /// As [`endurance::bytes_per_day`].
    fn budget(&self, devices: &Devices) -> Result<Option<u64>> {
        let endured = self.lifetime.map(|lifetime| endurance::bytes_per_day(devices, lifetime));
        Ok([self.write_bytes_per_day, endured.transpose()?].into_iter().flatten().min())
    }

    /// What each of `shards` shards is told, with so much of the write budget.
    fn shard(
        &self,
        shards: u16,
        hash_key: [u64; 2],
        wall_s_at_zero: u64,
        write_bytes_per_day: Option<u64>,
    ) -> Result<ShardOptions> {
        let of = |total: u64| total / u64::from(shards);
        let objects = self.capacity_objects.map(|all| all.div_ceil(u64::from(shards)));
        let objects = objects.map(|objects| {
            u32::try_from(objects).map_err(|_| {
                Error::invalid("capacity_objects", objects, "format the store with more shards")
            })
        });
        Ok(ShardOptions {
            durability: self.durability,
            policy: self.policy,
            custom_policy: self.custom_policy.clone(),
            adaptive_admission: self.adaptive_admission,
            capacity_bytes: self.capacity_bytes.map(of),
            capacity_objects: objects.transpose()?,
            watermarks: self.watermarks,
            write_bytes_per_day: write_bytes_per_day.map(of),
            seal_interval: self.seal_interval,
            flush_interval: self.flush_interval,
            discard_after: self.discard_after,
            wall_s_at_zero,
            hash_key,
        })
    }
}

/// What a store is formatted as.
#[derive(Clone, Debug)]
pub struct FormatStore {
    /// Its devices, in the order in which they will be opened.
    pub targets: Vec<Target>,
    /// The devices where they are open already; `targets` is not looked at then.
    pub devices: Vec<Device>,
    /// Parts that a thread of its own can drive: the most cores that the store can use. Default 1.
    pub shards: u16,
    /// Most objects. Default one for each 64 KiB of the devices, 4096 to 2^26 - 1 for each shard.
    pub objects_max: Option<u64>,
    /// Bytes of each shard's journal. Default by the number of objects.
    pub journal_bytes: Option<u64>,
    /// A name for people, at most 32 bytes. Default none.
    pub label: String,
    /// Whether what is there may go, be it a store or not. Default false.
    pub overwrite: bool,
    /// A regular file is created where there is none, and extended to so many bytes where it is shorter.
    pub file_bytes: Option<u64>,
}

impl Default for FormatStore {
    fn default() -> FormatStore {
        FormatStore {
            targets: Vec::new(),
            devices: Vec::new(),
            shards: 1,
            objects_max: None,
            journal_bytes: None,
            label: String::new(),
            overwrite: false,
            file_bytes: None,
        }
    }
}

/// Bytes of the devices for which there is an object by default.
const BYTES_PER_OBJECT: u64 = 64 << 10;
/// Fewest and most objects of a shard by default.
const OBJECTS_MIN: u64 = 4096;
const OBJECTS_MAX: u64 = (1 << 26) - 1;

impl FormatStore {
    /// The defaults, for a store on these targets.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> FormatStore {
        FormatStore { targets: targets.into_iter().collect(), ..FormatStore::default() }
    }

    /// Most objects of each shard on devices of `bytes` in all.
    fn objects(&self, bytes: u64) -> Result<u32> {
        let shards = u64::from(self.shards);
        let all = match self.objects_max {
            Some(all) => all.div_ceil(shards),
            None => (bytes / BYTES_PER_OBJECT / shards).clamp(OBJECTS_MIN, OBJECTS_MAX),
        };
        let objects = u32::try_from(all).ok().filter(|_| (1..=OBJECTS_MAX).contains(&all));
        objects.ok_or_else(|| {
            let fix = format!("use 1 to {OBJECTS_MAX} for each shard, or more shards");
            Error::invalid("objects_max", all, fix)
        })
    }

    /// Formats.
    pub(super) fn run(&self) -> Result<()> {
        if self.shards == 0 {
            return Err(Error::invalid("shards", 0, "use at least 1"));
        }
        let devices = Devices::open(&self.targets, &self.devices, self.file_bytes)?;
        let options = FormatOptions {
            shards: self.shards,
            objects_max: self.objects(devices.bytes())?,
            journal_bytes: self.journal_bytes,
            label: self.label.clone(),
            store_id: devices::random()?,
            overwrite: self.overwrite,
        };
        let mut lanes = devices.lanes(&OpenOptions::default(), &[])?;
        format::format(&mut lanes, &options, &mut devices.clock())
    }
}

/// A store that was found on its devices. Its shards are opened by the threads that will drive them: a queue may belong
/// to the first thread that uses it.
pub(super) struct Found {
    pub(super) devices: Devices,
    pub(super) set: Set,
    options: OpenOptions,
    shard_options: ShardOptions,
}

impl Found {
    /// Looks what there is.
    pub(super) fn look(options: &OpenOptions) -> Result<Found> {
        options.check()?;
        let devices = Devices::open(&options.targets, &options.devices, None)?;
        let mut lanes = devices.lanes(options, &[])?;
        let set = format::read_set(&mut lanes, &mut devices.clock())?;
        drop(lanes);
        devices.check_shards(set.shards())?;
        let wall_s = devices::wall_s_at_zero(devices.now());
        let budget = options.budget(&devices)?;
        let hash_key = devices::hash_key()?;
        let shard_options = options.shard(set.shards(), hash_key, wall_s, budget)?;
        Ok(Found { devices, set, options: options.clone(), shard_options })
    }

    /// Opens a shard, of which number 0 comes first. `memory` is what its requests will use.
    pub(super) fn open(&self, shard: u16, memory: &[Buffer]) -> Result<(DeviceShard, Recovery)> {
        let lanes = self.devices.lanes(&self.options, memory)?;
        let clock = &mut self.devices.clock();
        Shard::open(shard, lanes, &self.set, self.shard_options.clone(), clock)
    }
}
