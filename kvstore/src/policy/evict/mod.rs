//! Which object goes next when room is needed.
//!
//! A policy is told what is inserted, touched and removed, and names a victim; it removes nothing itself. It knows no
//! sizes: whoever needs room asks until there is enough. What is leased is never named; it keeps its rank meanwhile
//! under LRU, and counts as in use under S3-FIFO.
//!
//! Memory is 8 bytes an object, used as ids are; S3-FIFO has one byte more.
//!
//! A store can have a policy of its user's: a [`PolicyMaker`] in [`crate::OpenOptions::custom_policy`] makes one for
//! each shard. This one has the newest go first, which suits scans that come round again:
//!
//! ```
//! use adit_kvstore::evict::{Policy, PolicyMaker};
//! use adit_kvstore::{ObjectId, OpenOptions};
//!
//! /// What came last goes first.
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

mod links;
mod lru;
mod s3fifo;

pub use lru::Lru;
pub use s3fifo::S3Fifo;

use std::fmt;
use std::sync::Arc;

use crate::model::object::ObjectId;
use crate::model::options::PolicyKind;

/// An order of eviction over the objects of a shard.
///
/// An id that is inserted twice, or touched or removed without being there, is the store's own bug, and panics. Ids are
/// small numbers that are used again after a removal. After a recovery the objects that were found are inserted, in no
/// order of use.
pub trait Policy: Send {
    /// An object was inserted; `key_hash` is [`crate::catalog::index::Index::hash`] of its key.
    fn inserted(&mut self, id: ObjectId, key_hash: u64);

    /// An object was read, looked up or replaced.
    fn touched(&mut self, id: ObjectId);

    /// An object was removed for a reason of its own: deleted, expired or lost.
    fn removed(&mut self, id: ObjectId);

    /// An object was removed because it was the victim. It may be remembered by its hash.
    fn evicted(&mut self, id: ObjectId, key_hash: u64);

    /// The object that should go next, of those that are not leased; `None` if all are. It stays until
    /// [`Policy::evicted`] says that it went.
    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId>;

    /// Bytes of memory reserved.
    fn memory_bytes(&self) -> usize;
}

impl PolicyKind {
    /// An empty policy of this kind for `objects_max` objects, at most [`crate::catalog::index::Index::OBJECTS_MAX`].
    pub fn build(self, objects_max: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(objects_max)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(objects_max)),
        }
    }
}

/// Makes a policy of the user's own for each shard of a store. Clones make the same.
///
/// A shard calls its policy on its own thread, for every object that is read or written: it is to be quick, and must
/// not block. A policy that names a victim which is leased or was removed stops its shard's thread by a panic, which
/// closes the store; so does a panic of its own.
#[derive(Clone)]
pub struct PolicyMaker(Arc<dyn Fn(u32) -> Box<dyn Policy> + Send + Sync>);

impl PolicyMaker {
    /// One that calls `make` with the most objects that the shard can have: ids are below that.
    pub fn new(make: impl Fn(u32) -> Box<dyn Policy> + Send + Sync + 'static) -> PolicyMaker {
        PolicyMaker(Arc::new(make))
    }

    /// An empty policy for `objects_max` objects.
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
