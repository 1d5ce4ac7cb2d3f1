//! The calls of a policy: what a shard reports to it, and what it answers.

use std::cmp::Reverse;

use crate::model::object::ObjectId;

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

    /// A lookup found these objects: the beginning of a sequence, in its order. Those that are read next are reported
    /// by [`Policy::touched`], too.
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
