//! Options for opening a store.

use std::time::Duration;

use adit_driver::runtime::{Cores, Idle};
use adit_driver::{Device, Target};

use crate::error::{Error, Result};
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::policy::evict::PolicyMaker;
use crate::shard::ShardOptions;

/// Minimum bytes of data memory, so that a 1 MiB object fits.
pub(crate) const MEMORY_BYTES_MIN: usize = 1 << 20;
/// The longest allowed timeout: a year.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest time for the last checkpoints, which keep the order of eviction.
const KEEP_AGES_MAX: Duration = Duration::from_secs(5);

/// Returns how long the last checkpoints of a store with this timeout may take: closing has more time than that.
pub(crate) fn keep_ages_within(timeout: Duration) -> Duration {
    KEEP_AGES_MAX.min(timeout / 2)
}

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The store's devices, in the order in which they were formatted.
    pub targets: Vec<Target>,
    /// Devices that are already open; if given, `targets` is ignored.
    pub devices: Vec<Device>,
    /// The promise of an acknowledgement. Default `restart`.
    pub durability: Durability,
    /// The eviction policy. Default `auto`, which also declines new objects of a sequence that are unlikely to be
    /// used again.
    pub policy: PolicyKind,
    /// A custom eviction policy, used instead of `policy`. Default none.
    pub custom_policy: Option<PolicyMaker>,
    /// Maximum bytes of all objects, padding included. Default all there is.
    pub capacity_bytes: Option<u64>,
    /// Maximum number of objects. Default the number that the store was formatted for.
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
    /// The threads of a [`Store`](crate::store::Store) and their cores, never more threads than there are shards.
    /// Default one thread: pinned to a core if it polls a drive or another process ([`Device::wants_core`]),
    /// otherwise [`Cores::Unpinned`].
    pub cores: Option<Cores>,
    /// When an idle thread pauses and sleeps. Default at once if all devices are reached through the kernel, which
    /// wakes it for each completion: a thread that spins would take turns from its neighbours and then miss its own.
    /// Otherwise
    /// [`Idle::default`].
    pub idle: Option<Idle>,
    /// Requests on their way to each thread, 1 to 65536, before calls with `try_` are refused and others take a slower
    /// way. Default 1024.
    pub mailbox_depth: usize,
    /// Bytes of registered memory per device (kernel paths share one region), for copied data and for reads by
    /// [`Store`](crate::store::Store). Also limits the size of an object that passes through it. While callers hold
    /// all of it, requests get memory beyond it ([`Stats::spills`](crate::shard::Stats::spills)). Default 64 MiB.
    pub pool_bytes: usize,
    /// The most bytes of registered memory for the memory tier, which keeps hot objects so that gets of them need no
    /// device, in equal shares for the shards; [`Store::set_tier`](crate::store::Store::set_tier) changes it. The
    /// tier has fewer while the machine or a control group has no room for as many; a [`Local`](crate::store::Local)
    /// looks only when it is opened. Default 0, which is none.
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

    /// Checks each option by itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid option.
    pub(super) fn check(&self) -> Result<()> {
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
}
