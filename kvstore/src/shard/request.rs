//! What a shard is asked to do, and what it answers.
//!
//! A request owns its memory until it is done; each item of it is answered once by a [`Done`], which gives the memory
//! back. Memory is whole units: an object of 5000 bytes takes a buffer of 8192. Bytes behind an object's end are
//! zeroed before they are written.

use std::fmt;
use std::ops::Range;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use crate::error::{Decline, Failure};
use crate::model::key::Key;
use crate::model::object::{LayoutId, TenantId};

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The caller's; comes back with each answer.
    pub tag: u64,
    /// What was not begun by then fails with [`Failure::Deadline`]. [`Time::NEVER`] for none.
    pub deadline: Time,
    /// What to do.
    pub action: Action,
}

/// What a request does. The lists are answered item by item; their commands are planned together, so that
/// neighbours on a device share one.
#[derive(Debug)]
pub enum Action {
    /// Stores an object.
    Put(PutItem),
    /// Stores several, one after another on the device where there is room.
    PutMany(Vec<PutItem>),
    /// Reads an object or a part of it.
    Get(GetItem),
    /// Reads several.
    GetMany(Vec<GetItem>),
    /// Makes room for objects that are written in parts.
    Reserve(Vec<ReserveItem>),
    /// Writes parts of objects that room was made for.
    Fill(Vec<FillItem>),
    /// Makes what a writer wrote an object. Everything must have been filled.
    Seal(WriterId),
    /// Removes an object.
    Delete(Key),
    /// Done when everything acknowledged before survives a power cut.
    Commit,
}

/// An object to be stored.
#[derive(Debug)]
pub struct PutItem {
    /// Its key. An object of that key is replaced.
    pub key: Key,
    /// Its length, at least 1.
    pub bytes: u64,
    /// Its data: at least as many whole units as it takes. A KV block of a layout has its tensors one after another,
    /// each padded to units.
    pub data: AnyBuffer,
    /// The rest.
    pub options: PutOptions,
}

/// How an object is stored.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Whose it is.
    pub tenant: TenantId,
    /// Seconds that it is kept at most.
    pub ttl_s: Option<u64>,
    /// The object it follows in its sequence, next to which it is placed.
    pub after: Option<Key>,
    /// How it lies; [`LayoutId::PLAIN`] for one contiguous extent.
    pub layout: LayoutId,
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    All,
    /// These bytes, as many of them as there are. Must begin and end where pieces do ([`crate::piece_bytes`]), or at
    /// the object's end.
    Bytes(Range<u64>),
    /// The tensors of one layer of a KV block.
    Layer(u32),
}

/// An object to be read.
#[derive(Debug)]
pub struct GetItem {
    /// Its key.
    pub key: Key,
    /// Which part.
    pub part: Part,
    /// Where to: at least as many whole units as the part takes.
    pub into: AnyBuffer,
}

/// An object to be written in parts. Nobody sees it until it is sealed.
#[derive(Debug)]
pub struct ReserveItem {
    /// Its key. An object of that key is replaced when this one is sealed.
    pub key: Key,
    /// Its length, at least 1.
    pub bytes: u64,
    /// The rest.
    pub options: PutOptions,
}

/// A part to be written of an object that is not there yet.
#[derive(Debug)]
pub struct FillItem {
    /// Whose.
    pub writer: WriterId,
    /// Which part; each is written once.
    pub part: Part,
    /// Its data.
    pub data: AnyBuffer,
}

/// An object being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

/// The answer to an item of a request.
#[derive(Debug)]
pub struct Done {
    /// The request's.
    pub tag: u64,
    /// Which item of its list; 0 where there is none.
    pub item: u32,
    /// What came of it.
    pub result: Result<Outcome, Failure>,
    /// Its memory.
    pub memory: AnyBuffer,
}

/// What came of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored, as durable as the store is.
    Stored,
    /// It was not taken, which is no failure: the policy or the write budget was against it.
    Declined(Decline),
    /// It was read: so many bytes, all checked against their checksums.
    Hit {
        /// Bytes of the part.
        bytes: u64,
    },
    /// There is no such object, or not any more.
    Miss,
    /// There is room for it.
    Reserved(WriterId),
    /// The part is written.
    Filled,
    /// It is removed.
    Deleted,
    /// All before it is durable.
    Committed,
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
