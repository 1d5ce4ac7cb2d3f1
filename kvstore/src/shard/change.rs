//! Changes of objects on their way, and the state that each carries until it takes effect.

use adit_driver::Time;
use smallvec::SmallVec;

use super::memory::{Memory, Sums};
use super::request::{Condition, WriterId};
use crate::media::record::record_bytes;
use crate::model::key::Key;
use crate::model::object::Object;

/// An object whose data is being written, or has been.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) key: Key,
    /// The index's hash of the key.
    pub(super) hash: u64,
    /// Its turn among the changes of its key, once it has begun.
    pub(super) turn: u32,
    pub(super) object: Object,
    pub(super) slab_base: Option<u64>,
    /// The attachment of its device to which its data go.
    pub(super) attachment: u32,
    /// Unix time in seconds.
    pub(super) expires_s: Option<u64>,
    /// What must hold of its key when it is recorded.
    pub(super) condition: Condition,
    /// The block of its record, if that was appended before the data are written.
    pub(super) recorded: Option<u64>,
    pub(super) checksums: Sums,
}

impl NewObject {
    /// Returns the bytes of its record in a checkpoint.
    pub(super) fn record_bytes(&self) -> u64 {
        record_bytes(self.key.as_bytes().len(), self.checksums.len()) as u64
    }
}

/// A put that passed its checks.
#[derive(Debug)]
pub(super) struct Putting<R> {
    pub(super) reply: R,
    pub(super) new: Box<NewObject>,
    pub(super) memory: Memory,
    pub(super) after: Option<Key>,
    /// Devices whose queues can use the memory, one bit each.
    pub(super) devices: u64,
}

/// A reservation that passed its checks.
#[derive(Debug)]
pub(super) struct Reserving<R> {
    pub(super) reply: R,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) object: Object,
    pub(super) expires_s: Option<u64>,
    pub(super) condition: Condition,
    pub(super) after: Option<Key>,
}

/// A writer whose object is to become visible.
#[derive(Debug)]
pub(super) struct Sealing<R> {
    pub(super) reply: R,
    pub(super) writer: WriterId,
}

/// An object to be removed.
#[derive(Debug)]
pub(super) struct Deleting<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
    pub(super) condition: Condition,
}

/// An object that is to expire at another time.
#[derive(Debug)]
pub(super) struct Touching<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
    /// From its turn on; `None` for never.
    pub(super) ttl_s: Option<u64>,
}

/// A change to the shard's objects. It needs room in the journal, and most need more.
#[derive(Debug)]
pub(super) enum Change<R> {
    Put(SmallVec<[Putting<R>; 1]>),
    Reserve(SmallVec<[Reserving<R>; 1]>),
    Seal(Sealing<R>),
    Delete(Deleting<R>),
    Touch(Touching<R>),
}

/// A change that may have to wait for room.
#[derive(Debug)]
pub(super) struct Waiting<R> {
    pub(super) deadline: Time,
    pub(super) change: Change<R>,
}

/// The result of an attempt to begin a change.
pub(super) enum Begun<R> {
    /// It is in progress, or was answered.
    Yes,
    /// It has to wait.
    Later(Change<R>),
}
