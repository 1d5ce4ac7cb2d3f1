//! The requests to a shard.
//!
//! A request owns its memory until it is done. It is answered once by a [`Done`](super::Done), which returns the
//! memory. Memory is whole units: an object of 5000 bytes takes a buffer of 8192. Bytes behind an object's end are
//! zeroed before they are written.

use std::ops::Range;
use std::{fmt, iter};

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use crate::error::Failure;
use crate::model::key::{Key, KeyHasher};
use crate::model::object::{Hold, LayoutId, TenantId, Version};

/// A request about one object. Requests that are submitted together are planned together, so that neighbours on a
/// device share commands and objects put one after another are placed next to each other where there is room.
#[derive(Debug)]
pub struct Request<R = u64> {
    /// Comes back with the answer: a number, or the destination of the answer.
    pub reply: R,
    /// If it has not begun by then, it fails with [`Failure::Deadline`]. [`Time::NEVER`] for no deadline. Requests that
    /// are planned together begin together, by the deadline of the first.
    pub deadline: Time,
    /// The action.
    pub action: Action,
}

/// The action of a request.
#[derive(Debug)]
pub enum Action {
    /// Stores an object.
    Put(PutItem),
    /// Reads an object or a part of it.
    Get(GetItem),
    /// Makes room for an object that is written in parts.
    Reserve(ReserveItem),
    /// Writes a part of a reserved object.
    Fill(FillItem),
    /// Turns what a writer wrote into an object. Every part must have been filled.
    Seal(WriterId),
    /// Removes an object.
    Delete(Key),
    /// Removes an object if it has this version; else fails with [`Failure::Conflict`].
    DeleteIf(Key, Version),
    /// Sets when an object expires, and writes no data.
    Touch(TouchItem),
    /// Removes the selected objects that exist when it begins, some in each turn; also any that are stored meanwhile
    /// and met.
    DeleteWhere(Selection),
    /// Completes when everything acknowledged before survives a power cut.
    Commit,
}

impl Action {
    /// Returns the key of its object, unless it is that of a writer.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Action::Put(PutItem { key, .. })
            | Action::Get(GetItem { key, .. })
            | Action::Reserve(ReserveItem { key, .. })
            | Action::Delete(key)
            | Action::DeleteIf(key, _)
            | Action::Touch(TouchItem { key, .. }) => Some(key),
            Action::Fill(_) | Action::Seal(_) | Action::DeleteWhere(_) | Action::Commit => None,
        }
    }

    /// Returns whether it stores an object whose data it has.
    pub(super) fn is_put(&self) -> bool {
        matches!(self, Action::Put(_))
    }

    /// Takes out its memory.
    pub(crate) fn into_memory(self) -> AnyBuffer {
        match self {
            Action::Put(PutItem { data: memory, .. })
            | Action::Get(GetItem { into: memory, .. })
            | Action::Fill(FillItem { data: memory, .. }) => memory,
            _ => AnyBuffer::None,
        }
    }
}

/// A request with the hash of its key, which is computed once. The hash is 0 without a key.
#[derive(Debug)]
pub(crate) struct Hashed<R> {
    pub(crate) hash: u64,
    pub(crate) request: Request<R>,
}

impl<R> Hashed<R> {
    pub(crate) fn new(hasher: KeyHasher, request: Request<R>) -> Hashed<R> {
        let hash = request.action.key().map_or(0, |key| hasher.hash(key.as_bytes()));
        Hashed { hash, request }
    }
}

/// Requests on their way into a shard. The next one stays in its place until it is taken, because requests are large.
/// After a request was taken, call `advance` before the next.
pub(crate) struct Arriving<R, I> {
    pub(super) next: Option<Hashed<R>>,
    rest: I,
}

impl<R> Arriving<R, iter::Empty<Hashed<R>>> {
    #[inline]
    pub(crate) fn one(request: Hashed<R>) -> Self {
        Arriving { next: Some(request), rest: iter::empty() }
    }
}

impl<R, I: Iterator<Item = Hashed<R>>> Arriving<R, I> {
    pub(crate) fn all(mut requests: I) -> Self {
        Arriving { next: requests.next(), rest: requests }
    }

    /// Moves on to the request behind one that was taken.
    pub(super) fn advance(&mut self) {
        self.next = self.rest.next();
    }
}

/// The object of a get, once it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The index of its device among the targets.
    pub(crate) device: u8,
    /// Its length in bytes; with its padding if it is a KV block.
    pub(crate) bytes: u64,
    /// The bytes at whose multiples a range of it may begin and end.
    pub(crate) piece_bytes: u64,
}

/// An object to store.
#[derive(Debug)]
pub struct PutItem {
    /// Its key. An object with the same key is replaced.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// Its data: at least as many whole units as it takes, one for an empty object. A KV block of a layout has its
    /// tensors one after another, each padded to units.
    pub data: AnyBuffer,
    /// Further options.
    pub options: PutOptions,
}

/// Options for storing an object.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Its tenant.
    pub tenant: TenantId,
    /// Its maximum lifetime in seconds.
    pub ttl_s: Option<u64>,
    /// Its predecessor in a sequence, next to which it is placed.
    pub after: Option<Key>,
    /// Its layout; [`LayoutId::PLAIN`] for one contiguous extent.
    pub layout: LayoutId,
    /// The condition on the key when the object is stored; a writer's when it is sealed.
    pub condition: Condition,
    /// Keep the numbers of tenant and layout until the object is counted. Without them, see [`super::Shard::tenant`].
    pub holds: [Option<Hold>; 2],
    /// "tenant" or "layout" if that is another store's: the put fails with [`Failure::Undefined`].
    pub undefined: Option<&'static str>,
}

/// The condition on a key when a change of it takes effect, in its turn among all changes of the key. If it does not
/// hold, nothing changes, and the change fails with [`Failure::Conflict`], which names the version found. An object
/// that has expired, or whose device has failed, is absent here as it is to a get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Anything.
    #[default]
    Always,
    /// There is no object.
    Absent,
    /// There is an object of this version.
    Version(Version),
}

impl Condition {
    /// Checks it against the version of the object that is there.
    ///
    /// # Errors
    /// [`Failure::Conflict`].
    pub(super) fn check(self, found: Option<Version>) -> Result<(), Failure> {
        let holds = match self {
            Condition::Always => true,
            Condition::Absent => found.is_none(),
            Condition::Version(version) => found == Some(version),
        };
        if holds { Ok(()) } else { Err(Failure::Conflict { found }) }
    }
}

/// Objects that are removed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those of the tenant of this name; the empty name is the default tenant.
    Tenant(Box<str>),
    /// Those whose keys begin with these bytes; all of them if there are none.
    Prefix(Box<[u8]>),
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    All,
    /// A byte range, cut off at the object's end. Must begin and end at piece boundaries ([`crate::piece_bytes`]) or
    /// at the object's end. Of a KV block, with its padding, at those of layers.
    Bytes(Range<u64>),
    /// The tensors of one layer of a KV block.
    Layer(u32),
}

/// An object to read.
#[derive(Debug)]
pub struct GetItem {
    /// Its key.
    pub key: Key,
    /// The part to read.
    pub part: Part,
    /// The destination: at least as many whole units as the part takes.
    pub into: AnyBuffer,
    /// The version that the object must have. Another fails with [`Failure::Conflict`]; without an object it is a miss.
    pub version: Option<Version>,
}

/// An object that is to expire at another time, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TouchItem {
    /// Its key.
    pub key: Key,
    /// Its maximum lifetime from now in seconds; `None` if it never expires.
    pub ttl_s: Option<u64>,
}

/// An object to write in parts. It is invisible until it is sealed.
#[derive(Debug)]
pub struct ReserveItem {
    /// Its key. An object with the same key is replaced when this one is sealed.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// Further options.
    pub options: PutOptions,
}

/// A part to write of a reserved object.
#[derive(Debug)]
pub struct FillItem {
    /// The object's writer.
    pub writer: WriterId,
    /// The part, which is written once.
    pub part: Part,
    /// Its data.
    pub data: AnyBuffer,
}

/// Identifies an object being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::device::memory;
    use super::*;

    #[test]
    fn a_request_that_is_given_up_returns_its_memory() {
        let key = || Key::from(1u64);
        let buffer = || AnyBuffer::One(memory(4096));
        let (part, options) = (Part::All, PutOptions::default());
        let writer = WriterId(1);
        let put = PutItem { key: key(), bytes: 4096, data: buffer(), options: options.clone() };
        let get = GetItem { key: key(), part: part.clone(), into: buffer(), version: None };
        let fill = FillItem { writer, part, data: buffer() };
        for with in [Action::Put(put), Action::Get(get), Action::Fill(fill)] {
            assert!(matches!(with.into_memory(), AnyBuffer::One(back) if back.len() == 4096));
        }
        let reserve = ReserveItem { key: key(), bytes: 4096, options };
        for without in [Action::Reserve(reserve), Action::Delete(key()), Action::Commit] {
            assert!(matches!(without.into_memory(), AnyBuffer::None));
        }
    }

    #[test]
    fn a_tenant_is_written_as_its_number() {
        assert_eq!(TenantId(42).to_string(), "42");
    }
}
