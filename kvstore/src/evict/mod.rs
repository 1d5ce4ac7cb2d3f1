//! Which object goes next when room is needed.
//!
//! A policy is told what is inserted, touched and removed, and names a victim; it removes nothing itself. It knows no
//! sizes: whoever needs room asks until there is enough. What is leased is never named; it keeps its rank meanwhile
//! under LRU, and counts as in use under S3-FIFO.
//!
//! Memory is 8 bytes an object, used as ids are; S3-FIFO has one byte more.

mod links;
mod lru;
mod s3fifo;

pub use lru::Lru;
pub use s3fifo::S3Fifo;

use crate::object::ObjectId;
use crate::options::PolicyKind;

/// An order of eviction over the objects of a shard.
///
/// An id that is inserted twice, or touched or removed without being there, is the store's own bug, and panics.
pub trait Policy: Send {
    /// An object was inserted; `key_hash` is [`crate::index::Index::hash`] of its key.
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
    /// An empty policy of this kind for `objects_max` objects, at most [`crate::index::Index::OBJECTS_MAX`].
    pub fn build(self, objects_max: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(objects_max)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(objects_max)),
        }
    }
}

#[cfg(test)]
mod tests;
