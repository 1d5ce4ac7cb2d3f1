//! Eviction policies: which object goes next when room is needed.
//!
//! The shard reports insertions, uses and removals to a policy, which names victims; a policy removes nothing itself.
//! It knows no sizes: the shard asks for victims until there is enough room. A policy never names a leased object;
//! meanwhile the object keeps its rank under LRU, and counts as in use under S3-FIFO.
//!
//! Memory is 8 bytes per object, used as ids are; S3-FIFO has 6.4 bytes more per object that
//! there may be, of its ghosts.
//!
//! A program can supply a policy of its own: a [`PolicyMaker`] in [`crate::OpenOptions::custom_policy`] makes one for
//! each shard. This example evicts the newest first, which suits repeated scans:
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
mod s3fifo;

pub use auto::Auto;
pub use lru::Lru;
pub(crate) use own::OwnOrder;
pub use s3fifo::S3Fifo;

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use crate::model::object::ObjectId;
use crate::model::options::PolicyKind;

/// An eviction order over the objects of a shard.
///
/// Inserting an id twice, or touching or removing an absent one, is a bug of the store, and panics. Ids are small
/// numbers that are reused after a removal.
pub trait Policy: Send {
    /// An object was inserted; `key_hash` is a hash of its key under the store's id.
    fn inserted(&mut self, id: ObjectId, key_hash: u64);

    /// Takes over the objects that an opening found, all of them, before any other call. They come in no order of use;
    /// beside each is its age at the last checkpoint, or later: 0 if it was used since the latest of 128 parts of a
    /// turnover, up to 191, one and a half turnovers ago or before.
    ///
    /// By default they are inserted by age, the least recently used first, with a hash of 0.
    fn restore(&mut self, objects: &mut dyn Iterator<Item = (ObjectId, u8)>) {
        let mut objects: Vec<(ObjectId, u8)> = objects.collect();
        objects.sort_by_key(|(_, age)| Reverse(*age));
        objects.into_iter().for_each(|(id, _)| self.inserted(id, 0));
    }

    /// An object was read or replaced, or a caller counts it as used.
    fn touched(&mut self, id: ObjectId);

    /// A lookup found these objects: the beginning of a sequence, in its order. Those that are read next are reported by
    /// [`Policy::touched`], too.
    fn found(&mut self, _ids: &[ObjectId]) {}

    /// Returns whether to store a new object. One that is declined is not written, and its put fails with
    /// [`crate::shard::Decline::Admission`]. If it is stored, [`Policy::inserted`] reports it, perhaps after others.
    fn admits(&mut self, _new: &Newcomer) -> bool {
        true
    }

    /// An object was deleted, expired or lost.
    fn removed(&mut self, id: ObjectId);

    /// An object was removed for room: the victim, or one that lay beside it. The policy may remember its hash.
    fn evicted(&mut self, id: ObjectId, key_hash: u64);

    /// Returns the object to evict next among those that are not leased; `None` if all are. It stays until
    /// [`Policy::evicted`] reports its removal.
    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId>;

    /// Returns an object that may go soon after `id`, which is an object of the policy's. Room for a large object is
    /// looked for around the victim and those that follow it; without this call, around the victim alone.
    fn follower(&self, _id: ObjectId) -> Option<ObjectId> {
        None
    }

    /// Returns the bytes of memory reserved.
    fn memory_bytes(&self) -> usize;
}

/// A new object whose put begins.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// The hash of its key, as in [`Policy::inserted`].
    pub key_hash: u64,
    /// Its predecessor in a sequence, if it has one: the hash of its key, and its object if there was one before.
    pub after: Option<(u64, Option<ObjectId>)>,
    /// Whether it came with others, or has a predecessor: it may be declined.
    pub is_in_sequence: bool,
    /// Whether it is the last of several that came together.
    pub is_last: bool,
    /// Whether something has to go for it.
    pub is_short: bool,
}

impl Newcomer {
    /// Returns an object without a sequence.
    pub(crate) fn alone(key_hash: u64) -> Newcomer {
        Newcomer { key_hash, after: None, is_in_sequence: false, is_last: false, is_short: false }
    }
}

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
