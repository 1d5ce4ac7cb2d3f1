//! A promise that objects stay readable until it is dropped or expires.

use std::fmt;
use std::sync::Arc;

use super::Core;
use crate::shard::LeaseId;

/// Keeps objects readable until it is dropped or expires.
#[must_use = "dropping it ends the lease"]
pub struct Lease {
    parts: Vec<ShardLease>,
    count: usize,
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
        Lease { parts, count }
    }

    /// Returns how many objects are leased: the keys before the first miss.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes that its objects take, with their padding.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} objects of {} shards)", self.count, self.parts.len())
    }
}
