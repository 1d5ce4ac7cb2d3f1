//! The objects of a shard: every table that has something for each of them.
//!
//! The tables change together: an object is added and removed in one step ([`Objects::insert`], [`Objects::remove`]),
//! with its record in the journal. A reader that looks in between two calls finds all of them alike.
//!
//! | file | holds |
//! |---|---|
//! | `changing` | the steps that insert, remove and change objects |
//! | `accounts` | what tenants have, and whether one of them has too much |
//! | `layouts` | layouts of KV blocks and their numbers |
//! | `spaces` | the space of every device: free units, and units that may not be overwritten yet |

pub(super) mod accounts;
mod changing;
pub(crate) mod layouts;
pub(crate) mod spaces;

use std::time::Duration;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use self::accounts::{Accounts, Shrinking};
use self::layouts::Layouts;
use self::spaces::Spaces;
use super::lanes::Lanes;
use super::request::PutOptions;
use super::stats::Stats;
use super::tier::Tier;
use crate::catalog::expiry::Expiry;
use crate::catalog::index::Index;
use crate::catalog::lease::LeaseId;
use crate::catalog::regions::Regions;
use crate::catalog::removals::Removals;
use crate::catalog::tenant::Tenants;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::{Object, ObjectId, TenantId, Version};
use crate::policy::order::EvictionOrder;

/// The tables that an opening makes.
pub(super) struct FoundTables {
    pub(super) index: Index,
    pub(super) regions: Regions,
    pub(super) order: EvictionOrder,
    pub(super) expiry: Expiry,
    pub(super) newest: Version,
    pub(super) tenants: Tenants,
    pub(super) spaces: Spaces,
    /// Bytes of the records of all objects.
    pub(super) record_bytes: u64,
}

/// The objects of a shard.
pub(crate) struct Objects {
    index: Index,
    /// Objects by the place where they begin.
    regions: Regions,
    /// The order of eviction.
    order: EvictionOrder,
    expiry: Expiry,
    accounts: Accounts,
    spaces: Spaces,
    /// Hot objects in memory.
    tier: Tier,
    removals: Removals,
    /// Unix time at the origin of the clock that `now` uses.
    wall_at_zero: Duration,
    /// The highest version so far.
    newest: Version,
    /// Bytes of the records of all objects.
    record_bytes: u64,
    stats: Stats,
}

impl Objects {
    /// Begins with the tables of an opening.
    pub(super) fn new(tables: FoundTables, removals: Removals, wall_at_zero: Duration) -> Objects {
        let FoundTables { index, regions, order, expiry, newest, tenants, .. } = tables;
        let FoundTables { spaces, record_bytes, .. } = tables;
        Objects {
            accounts: Accounts::new(tenants, index.capacity()),
            index,
            regions,
            order,
            expiry,
            spaces,
            tier: Tier::default(),
            removals,
            wall_at_zero,
            newest,
            record_bytes,
            stats: Stats::default(),
        }
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(super) fn order(&self) -> &EvictionOrder {
        &self.order
    }

    pub(super) fn order_mut(&mut self) -> &mut EvictionOrder {
        &mut self.order
    }

    pub(super) fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    pub(super) fn spaces_mut(&mut self) -> &mut Spaces {
        &mut self.spaces
    }

    pub(super) fn layouts(&self) -> &Layouts {
        self.spaces.layouts()
    }

    pub(super) fn tier(&self) -> &Tier {
        &self.tier
    }

    pub(super) fn tier_mut(&mut self) -> &mut Tier {
        &mut self.tier
    }

    pub(super) fn tenants(&self) -> &Tenants {
        self.accounts.tenants()
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub(super) fn accounts_mut(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    /// Returns bytes of the records of all objects.
    pub(super) fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Returns when an object expires, in seconds of Unix time.
    pub(super) fn expiry_of(&self, id: ObjectId) -> Option<u64> {
        self.expiry.get(id)
    }

    pub(super) fn units_of(&self, object: &Object) -> u64 {
        self.spaces.layouts().units_of(object)
    }

    /// Returns the Unix time in seconds.
    pub(super) fn wall_s(&self, now: Time) -> u64 {
        self.wall(now).as_secs()
    }

    fn wall(&self, now: Time) -> Duration {
        self.wall_at_zero + now.since(Time::ZERO)
    }

    /// Returns when an object with these options expires, in seconds of Unix time.
    pub(super) fn expires_s(&self, now: Time, options: &PutOptions) -> Option<u64> {
        options.ttl_s.map(|ttl_s| self.wall_s(now).saturating_add(ttl_s))
    }

    /// Returns when the next object expires; `now` if it has.
    pub(super) fn next_expiry(&self, now: Time) -> Time {
        match self.expiry.next_s() {
            None => Time::NEVER,
            Some(at_s) if at_s <= self.wall_s(now) => now,
            Some(at_s) => Time::ZERO + (Duration::from_secs(at_s) - self.wall_at_zero),
        }
    }

    /// Returns the version of the next object, above all before it.
    pub(super) fn next_version(&mut self, now: Time) -> Version {
        self.newest = Version::after(self.newest, self.wall(now));
        self.newest
    }

    /// Returns the object of a key, also if it has expired or its device has failed.
    pub(super) fn find(&self, hash: u64, key: &Key) -> Option<ObjectId> {
        self.index.find_hashed(hash, key.as_bytes())
    }

    /// Returns whether an object has not expired and its device works.
    pub(super) fn is_live<Q: CommandQueue<Load>>(
        &self,
        lanes: &Lanes<Q>,
        now: Time,
        id: ObjectId,
    ) -> bool {
        let has_time = self.expiry.get(id).is_none_or(|at_s| at_s > self.wall_s(now));
        has_time && lanes.works(self.index.object(id).place.device)
    }

    /// Notes that an object is in use.
    #[inline(always)]
    pub(super) fn note_used(&mut self, id: ObjectId, tenant: TenantId) {
        self.order.touched(id);
        self.accounts.used(id, tenant);
    }

    /// Ends a lease. Ignores one that has already ended.
    pub(super) fn release(&mut self, lease: LeaseId) {
        self.spaces.release(lease);
        self.accounts.note_unleased();
    }

    /// Follows changed quotas. Returns the evictions to make if tenants may have too much.
    pub(super) fn follow_quotas(&mut self) -> Option<Shrinking> {
        let order = &self.order;
        self.accounts.follow_quotas(&self.index, |id| order.age(id))
    }

    /// Returns whether an object may not be evicted, because of a lease.
    pub(super) fn is_leased(&self, id: ObjectId) -> bool {
        self.spaces.is_leased(self.index.object(id).place)
    }

    /// Returns the object to evict next.
    pub(super) fn victim(&mut self) -> Option<ObjectId> {
        let (index, spaces) = (&self.index, &self.spaces);
        let victim = self.order.victim(&mut |id| spaces.is_leased(index.object(id).place))?;
        // The policy may be a custom one.
        assert!(index.contains(victim), "a policy names an object that is there");
        assert!(!self.is_leased(victim), "a policy names none that is leased");
        Some(victim)
    }

    /// Returns the counters, and the sizes of the tables.
    pub(super) fn stats(&self) -> Stats {
        let (free_runs, largest_free_units) = self.spaces.runs();
        let order = self.order.memory_bytes() + self.accounts.own().memory_bytes();
        let memory = self.index.memory_bytes()
            + order
            + self.regions.memory_bytes()
            + self.tier.memory_bytes();
        Stats {
            objects: u64::from(self.index.len()),
            used_units: self.spaces.live_units(),
            capacity_units: self.spaces.capacity_units(),
            free_runs,
            largest_free_units,
            leased: self.spaces.leases().leased() as u64,
            memory_bytes: memory as u64,
            ..self.stats
        }
    }
}

#[cfg(test)]
impl Objects {
    pub(super) fn removals(&self) -> &Removals {
        &self.removals
    }

    pub(super) fn own_memory_bytes(&self) -> usize {
        self.accounts.own().memory_bytes()
    }

    pub(super) fn set_record_bytes(&mut self, bytes: u64) {
        self.record_bytes = bytes;
    }
}
