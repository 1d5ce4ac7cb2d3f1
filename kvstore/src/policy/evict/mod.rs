//! Eviction policies choose the object to evict next when room is needed.
//!
//! The shard reports insertions, uses and removals to a policy, which names victims; a policy removes nothing itself.
//! It knows no sizes: the shard asks for victims until there is enough room. A policy never names a leased object;
//! meanwhile the object keeps its rank under LRU, and counts as in use under S3-FIFO.
//!
//! Memory is 8 bytes per object, touched as ids are used; S3-FIFO has 6.4 bytes more per object of the maximum, for its
//! ghosts.
//!
//! A program can supply its own policy: a [`PolicyMaker`] in [`crate::OpenOptions::custom_policy`] makes one for each
//! shard. This example evicts the newest first, which suits repeated scans:
//!
//! ```
//! use adit_kvstore::evict::{Policy, PolicyMaker};
//! use adit_kvstore::{ObjectId, OpenOptions};
//!
//! /// Evicts the newest first.
//! struct Newest(Vec<ObjectId>);
//!
//! impl Policy for Newest {
//!     fn inserted(&mut self, id: ObjectId, _key_hash: u64) {
//!         self.0.push(id);
//!     }
//!     fn touched(&mut self, _id: ObjectId) {}
//!     fn removed(&mut self, id: ObjectId) {
//!         self.0.retain(|known| *known != id);
//!     }
//!     fn evicted(&mut self, id: ObjectId, _key_hash: u64) {
//!         self.removed(id);
//!     }
//!     fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
//!         self.0.iter().rev().copied().find(|id| !is_leased(*id))
//!     }
//!     fn memory_bytes(&self) -> usize {
//!         self.0.capacity() * size_of::<ObjectId>()
//!     }
//! }
//!
//! let target = "soft:mem=64M".parse()?;
//! let custom_policy = Some(PolicyMaker::new(|_objects_max| Box::new(Newest(Vec::new()))));
//! let options = OpenOptions { custom_policy, ..OpenOptions::new([target]) };
//! # let format = adit_kvstore::FormatStore { targets: options.targets.clone(), ..Default::default() };
//! # adit_kvstore::Store::format(&format)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod auto;
mod links;
mod lru;
mod own;
mod policy;
mod s3fifo;

pub use auto::Auto;
pub use lru::Lru;
pub(crate) use own::OwnOrder;
pub use policy::{Newcomer, Policy};
pub use s3fifo::S3Fifo;

use std::fmt;
use std::sync::Arc;

use crate::model::options::PolicyKind;

impl PolicyKind {
    /// Builds an empty policy of this kind for `objects_max` objects, at most 2^26 - 1.
    pub fn build(self, objects_max: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Auto => Box::new(Auto::new(objects_max)),
            PolicyKind::Lru => Box::new(Lru::new(objects_max)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(objects_max)),
        }
    }
}

/// Makes a custom policy for each shard of a store. Clones make the same policy.
///
/// A shard calls its policy on its own thread for every object that is read or written, so the policy must be fast
/// and must not block. A policy that panics, or names a victim that is leased or was removed, panics its shard's
/// thread, which closes the store.
#[derive(Clone)]
pub struct PolicyMaker(Arc<dyn Fn(u32) -> Box<dyn Policy> + Send + Sync>);

impl PolicyMaker {
    /// Creates a maker that calls `make` with the shard's maximum number of objects; ids are below it.
    pub fn new(make: impl Fn(u32) -> Box<dyn Policy> + Send + Sync + 'static) -> PolicyMaker {
        PolicyMaker(Arc::new(make))
    }

    /// Builds an empty policy for `objects_max` objects.
    pub fn build(&self, objects_max: u32) -> Box<dyn Policy> {
        (self.0)(objects_max)
    }
}

impl fmt::Debug for PolicyMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PolicyMaker(..)")
    }
}

#[cfg(test)]
mod tests;
