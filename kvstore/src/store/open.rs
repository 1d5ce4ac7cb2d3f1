//! Options for formatting and opening a store, and the first steps of both.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use adit_driver::runtime::{Cores, Idle};
use adit_driver::spec::log::SmartHealth;
use adit_driver::spec::{Lid, Nsid, View};
use adit_driver::{Buffer, Controller, Device, Target};

use super::devices::{self, DeviceShard, Devices, MEMORY_BYTES_MIN};
use super::tier;
use crate::error::{Error, Result};
use crate::media::format::{self, FormatOptions, Set};
use crate::media::superblock::LABEL_BYTES_MAX;
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::policy::budget::Budget;
use crate::policy::evict::PolicyMaker;
use crate::shard::{Ledger, Recovery, Removals, Shard, ShardOptions};

/// The longest allowed timeout: a year.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The store's devices, in the order in which they were formatted.
    pub targets: Vec<Target>,
    /// Devices that are already open; if given, `targets` is ignored.
    pub devices: Vec<Device>,
    /// What an acknowledgement promises. Default `restart`.
    pub durability: Durability,
    /// The eviction policy. Default `auto`, which also declines new objects of a sequence that are unlikely to be used again.
    pub policy: PolicyKind,
    /// A custom eviction policy, used instead of `policy`. Default none.
    pub custom_policy: Option<PolicyMaker>,
    /// Maximum bytes of all objects, padding included. Default all there is.
    pub capacity_bytes: Option<u64>,
    /// Maximum number of objects. Default what the store was formatted for.
    pub capacity_objects: Option<u64>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Bytes per day that objects may write. Default no limit.
    pub write_bytes_per_day: Option<u64>,
    /// How long from now the drives must endure the objects' writes. Opening the store reads the drives' logs and
    /// derives a limit in bytes per day; if `write_bytes_per_day` is given too, the smaller limit applies. Requires
    /// devices with a controller of the driver's. Default no limit.
    pub lifetime: Option<Duration>,
    /// Commands in flight per queue, fewer if the device supports fewer. Default 128.
    pub queue_depth: u32,
    /// The threads of a [`super::Store`] and their cores, never more threads than there are shards. Default one thread:
    /// pinned to a core if it polls a drive or another process ([`Device::wants_core`]), otherwise [`Cores::Unpinned`].
    pub cores: Option<Cores>,
    /// When an idle thread pauses and sleeps. Default at once if all devices are reached through the kernel, which wakes
    /// it for each completion: a thread that spins would take turns from its neighbours and then miss its own. Otherwise
    /// [`Idle::default`].
    pub idle: Option<Idle>,
    /// Requests on their way to each thread, 1 to 65536, before calls with `try_` are refused and others take a slower
    /// way. Default 1024.
    pub mailbox_depth: usize,
    /// Bytes of registered memory per device (kernel paths share one region), for copied data and for reads by
    /// [`super::Store`]. Also limits the size of an object that passes through it. While callers hold all of it, requests
    /// get memory beyond it ([`Stats::spills`](crate::shard::Stats::spills)). Default 64 MiB.
    pub pool_bytes: usize,
    /// The most bytes of registered memory for the memory tier, which keeps hot objects so that gets of them need no
    /// device, in equal shares for the shards; [`super::Store::set_tier`] changes it. The tier has fewer while the machine
    /// or a control group has no room for as many; a [`super::Local`] looks only when it is opened. Default 0, which is
    /// none.
    pub tier_bytes: u64,
    /// How long a request may wait to begin, counted from the call; at most a year. Default 30 s.
    pub timeout: Duration,
    /// How long a command may take on a device before it is aborted, where the path can abort; at most a year.
    /// Default 10 s.
    pub command_timeout: Duration,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// The longest that `restart` leaves written data unflushed. Default 1 s.
    pub flush_interval: Duration,
    /// How long space stays free before it is deallocated on its device. Default 10 s. A file with all blocks
    /// allocated when the store is opened keeps them: nothing of it is deallocated.
    pub discard_after: Duration,
    /// Whether objects stay that damage to a shard's journal may have made outdated: flushed blocks that cannot be read
    /// may have replaced or deleted them, and a get may then return an older version. Only the first opening after the
    /// damage can keep them. Default false: they are misses, which are counted
    /// ([`Stats::journal_outdated_objects`](crate::shard::Stats::journal_outdated_objects)).
    pub keep_outdated: bool,
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
            write_bytes_per_day: None,
            lifetime: None,
            queue_depth: 128,
            cores: None,
            idle: None,
            mailbox_depth: 1024,
            pool_bytes: 64 << 20,
            tier_bytes: 0,
            timeout: Duration::from_secs(30),
            command_timeout: Duration::from_secs(10),
            seal_interval: shard.seal_interval,
            flush_interval: shard.flush_interval,
            discard_after: shard.discard_after,
            keep_outdated: shard.keep_outdated,
        }
    }
}

impl OpenOptions {
    /// Returns the defaults for a store on these targets.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> OpenOptions {
        OpenOptions { targets: targets.into_iter().collect(), ..OpenOptions::default() }
    }

    /// # Errors
    /// [`Error::Invalid`] for an invalid option.
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

    /// Returns the bytes per day that objects may write: the smaller of the configured limit and what the drives
    /// endure.
    ///
    /// # Errors
    /// As [`bytes_per_day`].
    fn budget(&self, devices: &Devices) -> Result<Option<u64>> {
        let endured = self.lifetime.map(|lifetime| bytes_per_day(devices, lifetime));
        Ok([self.write_bytes_per_day, endured.transpose()?].into_iter().flatten().min())
    }

    /// Returns the options of each of `shards` shards, which share the write budget equally.
    fn shard(
        &self,
        shards: u16,
        wall_at_zero: Duration,
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
            capacity_bytes: self.capacity_bytes.map(of),
            capacity_objects: objects.transpose()?,
            watermarks: self.watermarks,
            write_bytes_per_day: write_bytes_per_day.map(of),
            seal_interval: self.seal_interval,
            flush_interval: self.flush_interval,
            discard_after: self.discard_after,
            wall_at_zero,
            keep_outdated: self.keep_outdated,
            ledger: Ledger::default(),
            removals: Removals::new(any_number()),
            callers_verify: false,
        })
    }
}

/// Returns a number that is another at each call and in each process, which need not be a secret.
fn any_number() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

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

/// What a formatted store has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// Number of objects, over all shards.
    pub objects_max: u64,
    /// Length in bytes of the longest keys with which it holds so many: [`FormatStore::key_bytes`], or a little more.
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
    /// length. [`super::Store::format`] does so itself, unless it is given open devices.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Media`] if one holds data that may not be overwritten.
    pub fn check_files(&self) -> Result<()> {
        if self.overwrite { Ok(()) } else { Devices::check_files(&self.targets) }
    }

    pub(super) fn run(&self) -> Result<Formatted> {
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
            store_id: devices::random()?,
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

/// A store found on its devices. Each thread opens the shards that it will drive, because a queue may belong to the
/// first thread that uses it.
pub(super) struct Found {
    pub(super) devices: Devices,
    pub(super) set: Set,
    options: OpenOptions,
    shard_options: ShardOptions,
}

impl Found {
    /// Reads the devices' superblocks.
    pub(super) fn look(options: &OpenOptions) -> Result<Found> {
        options.check()?;
        let devices = Devices::open(&options.targets, &options.devices, None)?;
        let mut lanes = devices.lanes(options, &[])?;
        let set = format::read_set(&mut lanes, &mut devices.clock())?;
        drop(lanes);
        devices.close_to_others();
        devices.check_shards(set.shards())?;
        tier::check(options.tier_bytes, set.shards())?;
        let wall = devices::wall_at_zero(devices.now());
        let budget = options.budget(&devices)?;
        let shard_options = options.shard(set.shards(), wall, budget)?;
        Ok(Found { devices, set, options: options.clone(), shard_options })
    }

    /// Returns what tenants use of their quotas in all shards.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.shard_options.ledger
    }

    /// Returns the Unix time at the origin of the store's clock.
    pub(super) fn wall_at_zero(&self) -> Duration {
        self.shard_options.wall_at_zero
    }

    /// Returns what goes from all shards.
    pub(super) fn removals(&self) -> &Removals {
        &self.shard_options.removals
    }

    /// Opens a shard, whose requests will use `memory`. Open shard 0 first.
    pub(super) fn open<R>(
        &self,
        shard: u16,
        memory: &[Buffer],
        callers_verify: bool,
    ) -> Result<(DeviceShard<R>, Recovery)> {
        let lanes = self.devices.lanes(&self.options, memory)?;
        let clock = &mut self.devices.clock();
        let options = ShardOptions { callers_verify, ..self.shard_options.clone() };
        Shard::open(shard, lanes, &self.set, options, clock)
    }
}

/// Returns the bytes per day, over all devices, with which their remaining endurance lasts for `lifetime` from now.
///
/// Objects are spread evenly, so the drive with the least endurance limits all of them. The endurance log belongs to a
/// controller: devices that are namespaces of one controller share its endurance.
///
/// # Errors
/// [`Error::Invalid`] if a device has no controller of the driver's to read the log from; otherwise as
/// [`Controller::log_page`].
fn bytes_per_day(devices: &Devices, lifetime: Duration) -> Result<u64> {
    let devices = devices.as_slice();
    let of = |device| device_bytes_per_day(device, devices, lifetime);
    let each = devices.iter().map(of).collect::<Result<Vec<u64>>>()?;
    Ok(of_all(&each))
}

/// Returns the total daily limit when writes are spread evenly over devices with these limits.
fn of_all(each: &[u64]) -> u64 {
    each.iter().min().map_or(0, |least| least.saturating_mul(each.len() as u64))
}

/// Returns a device's share of its drive's remaining endurance per day.
fn device_bytes_per_day(device: &Device, all: &[Device], lifetime: Duration) -> Result<u64> {
    let controller = controller_of(device)?;
    let name = &controller.info().device;
    let is_same = |other: &&Device| other.controller().is_some_and(|c| c.info().device == *name);
    let sharing: Vec<&Device> = all.iter().filter(is_same).collect();
    let capacity_bytes = sharing.iter().map(|device| device.info().bytes).sum();
    let log = smart_log(controller)?;
    let budget = Budget::from_endurance(device.now(), &log, capacity_bytes, lifetime);
    Ok(budget.bytes_per_day() / sharing.len() as u64)
}

fn controller_of(device: &Device) -> Result<&Controller> {
    device.controller().ok_or_else(|| {
        let name = &device.info().device;
        let fix =
            "its log cannot be read there: give write_bytes_per_day, or open the drive as vfio:";
        Error::invalid("the device of a store with a lifetime", name, fix)
    })
}

fn smart_log(controller: &Controller) -> Result<SmartHealth> {
    let bytes = size_of::<SmartHealth>() as u32;
    let page = controller.log_page(Lid::SMART_HEALTH, Nsid::ALL, bytes)?;
    Ok(SmartHealth::view(&page).expect("the log is as long as the structure").clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drive_that_endures_least_counts_for_all() {
        assert_eq!(of_all(&[7, 5, 9]), 15);
        assert_eq!(of_all(&[u64::MAX, u64::MAX]), u64::MAX);
        assert_eq!(of_all(&[3, 0]), 0, "one is worn out");
    }
}
