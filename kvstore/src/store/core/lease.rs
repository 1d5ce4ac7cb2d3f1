//! A promise that objects stay readable until it is dropped or expires.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Core;
use crate::shard::LeaseId;

/// Keeps objects readable until it is dropped or expires.
#[must_use = "dropping it ends the lease"]
pub struct Lease {
    /// End it when they are dropped.
    _parts: Parts,
    count: usize,
    bytes: u64,
}

/// The parts whose drop ends a lease.
enum Parts {
    Shards(#[allow(dead_code, reason = "it is kept")] Vec<ShardLease>),
    Served(#[allow(dead_code, reason = "it is kept")] Box<dyn Any + Send + Sync>),
}

/// One shard's part of a lease.
pub(crate) struct ShardLease {
    core: Arc<Core>,
    shard: u16,
    id: LeaseId,
    bytes: u64,
}

impl ShardLease {
    pub(crate) fn new(core: Arc<Core>, shard: u16, id: LeaseId, bytes: u64) -> ShardLease {
        ShardLease { core, shard, id, bytes }
    }
}

impl Drop for ShardLease {
    fn drop(&mut self) {
        // A lease ends with its shard.
        let id = self.id;
        self.core.end(self.shard, move |shard| shard.release(id));
    }
}

impl Lease {
    /// Creates a lease of `count` objects, made of each shard's part.
    pub(crate) fn new(parts: Vec<ShardLease>, count: usize) -> Lease {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        Lease { _parts: Parts::Shards(parts), count, bytes }
    }

    /// Creates a lease of `count` objects in a store that another process serves, which ends when `part` is dropped.
    pub fn served(part: impl Any + Send + Sync, count: usize, bytes: u64) -> Lease {
        Lease { _parts: Parts::Served(Box::new(part)), count, bytes }
    }

    /// Returns how many objects are leased: the keys before the first miss.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes that its objects take, with their padding.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} objects)", self.count)
    }
}
