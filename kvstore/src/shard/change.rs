//! Changes of objects on their way, and the state that each carries until it takes effect.

use adit_driver::Time;
use smallvec::SmallVec;

use super::log::SMALL_RECORD_BYTES;
use super::memory::{Memory, Sums};
use super::request::{Condition, WriterId};
use crate::media::record::{RECORD_BYTES_MAX, record_bytes};
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
    /// The condition on its key when it is recorded.
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

/// A change of an object that is there.
#[derive(Debug)]
pub(super) struct Altering<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
    pub(super) how: Alteration,
}

/// How an object changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alteration {
    /// It is removed, if this holds.
    Remove(Condition),
    /// It expires so many seconds after its turn; `None` for never.
    Expire(Option<u64>),
}

impl Alteration {
    /// Returns the room for its record. Which object gets another expiry is known in the turn only.
    pub(super) fn record_bytes(self) -> u64 {
        match self {
            Alteration::Remove(_) => SMALL_RECORD_BYTES,
            Alteration::Expire(_) => RECORD_BYTES_MAX as u64,
        }
    }
}

/// A change to the shard's objects. It needs room in the journal, and most need more.
#[derive(Debug)]
pub(super) enum Change<R> {
    Put(SmallVec<[Putting<R>; 1]>),
    Reserve(SmallVec<[Reserving<R>; 1]>),
    Seal(Sealing<R>),
    Alter(Altering<R>),
}

/// A change that may have to wait for room.
#[derive(Debug)]
pub(super) struct Waiting<R> {
    pub(super) deadline: Time,
    pub(super) change: Change<R>,
}
