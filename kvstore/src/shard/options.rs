//! Options of a shard.

use std::time::Duration;

use crate::catalog::removals::Removals;
use crate::catalog::tenant::Ledger;
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::policy::evict::{Policy, PolicyMaker};

/// Options of a shard. The defaults are those of a store.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// The eviction policy.
    pub policy: PolicyKind,
    /// A custom eviction policy, used instead of `policy`.
    pub custom_policy: Option<PolicyMaker>,
    /// Maximum bytes of all objects, padding included; by default the shard's share of the devices.
    pub capacity_bytes: Option<u64>,
    /// Maximum number of objects; by default what the store was formatted for.
    pub capacity_objects: Option<u32>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Bytes per day that objects may write.
    pub write_bytes_per_day: Option<u64>,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// The longest that `restart` leaves written data unflushed. Default 1 s.
    pub flush_interval: Duration,
    /// How long space stays free before it is deallocated on its device. Default 10 s.
    pub discard_after: Duration,
    /// Unix time at the origin of the clock that `now` uses.
    pub wall_at_zero: Duration,
    /// Whether to keep objects that damage to the journal may have made outdated: blocks that cannot be read may have
    /// replaced or deleted them. By default they are dropped, forever.
    pub keep_outdated: bool,
    /// The tenants' use of their quotas; shards of one store have clones of one ledger.
    pub ledger: Ledger,
    /// Keys that are removed; shards of one store have clones of one log.
    pub removals: Removals,
    /// Whether reads end unverified, for their callers to verify ([`Unverified`](super::Unverified)). By default the shard verifies them.
    pub callers_verify: bool,
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions {
            durability: Durability::default(),
            policy: PolicyKind::default(),
            custom_policy: None,
            capacity_bytes: None,
            capacity_objects: None,
            watermarks: Watermarks::default(),
            write_bytes_per_day: None,
            seal_interval: Duration::from_millis(10),
            flush_interval: Duration::from_secs(1),
            discard_after: Duration::from_secs(10),
            wall_at_zero: Duration::ZERO,
            keep_outdated: false,
            ledger: Ledger::default(),
            removals: Removals::default(),
            callers_verify: false,
        }
    }
}

impl ShardOptions {
    /// Builds an empty policy for objects with ids below `entries`.
    pub(super) fn build_policy(&self, entries: u32) -> Box<dyn Policy> {
        match &self.custom_policy {
            Some(custom) => custom.build(entries),
            None => self.policy.build(entries),
        }
    }
}
