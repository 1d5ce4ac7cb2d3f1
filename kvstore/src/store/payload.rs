//! The arguments of store calls: data, as bytes to copy or memory that the devices read directly, and options.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::{AnyBuffer, IoBuffer};
use bytes::Bytes;

use super::pending::Unfinished;
use super::pool::PoolBuffer;
use crate::error::Error;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{Hold, LayoutId, TenantId};
use crate::shard::Condition;

/// The data of an object: bytes to copy, or memory that devices read directly ([`PoolBuffer`], [`Payload::lent`]).
#[derive(Debug)]
pub struct Payload<'a>(pub(super) Form<'a>);

#[derive(Debug)]
pub(super) enum Form<'a> {
    /// Copied to registered memory, and counted as copied.
    Bytes(Plain<'a>),
    /// The store's own memory, which returns to its pool.
    Pooled(PoolBuffer),
    /// The caller's registered memory, which comes back with the answer.
    Lent { memory: AnyBuffer, bytes: u64 },
}

/// Bytes in ordinary memory.
#[derive(Debug)]
pub(super) enum Plain<'a> {
    Slice(&'a [u8]),
    Owned(Bytes),
    /// One after another.
    Slices(&'a [IoSlice<'a>]),
    /// One after another.
    Shared(&'a [Bytes]),
}

impl Plain<'_> {
    pub(super) fn len(&self) -> usize {
        let mut len = 0;
        self.each(|slice| len += slice.len());
        len
    }

    /// Copies all bytes to `into`, which has as many.
    pub(super) fn copy_to(&self, into: &mut [u8]) {
        let mut rest = into;
        self.each(|slice| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(slice.len());
            now.copy_from_slice(slice);
            rest = later;
        });
        assert!(rest.is_empty(), "there is room for the bytes and no more");
    }

    /// Returns the bytes for as long as they are needed, and how many were copied for that.
    pub(super) fn into_owned(self) -> (Bytes, usize) {
        let Plain::Owned(bytes) = self else {
            let mut bytes = vec![0; self.len()];
            self.copy_to(&mut bytes);
            let copied = bytes.len();
            return (bytes.into(), copied);
        };
        (bytes, 0)
    }

    fn each(&self, mut f: impl FnMut(&[u8])) {
        match self {
            Plain::Slice(slice) => f(slice),
            Plain::Owned(bytes) => f(bytes),
            Plain::Slices(slices) => slices.iter().for_each(|slice| f(slice)),
            Plain::Shared(all) => all.iter().for_each(|bytes| f(bytes)),
        }
    }
}

impl Payload<'static> {
    /// Lends the first `bytes` bytes of registered memory. A device reads them in place if the memory begins at a
    /// multiple of its LBA and is whole units of 4 KiB, up to 4095 bytes of which are zeroed behind the object's end.
    /// Otherwise what is not aligned is copied, and no byte of the memory changes.
    pub fn lent(memory: impl Into<AnyBuffer>, bytes: u64) -> Payload<'static> {
        Payload(Form::Lent { memory: memory.into(), bytes })
    }
}

impl Payload<'_> {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Form::Bytes(bytes) => bytes.len() as u64,
            Form::Pooled(buffer) => buffer.len() as u64,
            Form::Lent { bytes, .. } => *bytes,
        }
    }

    /// Refuses it, with the memory that the caller lent.
    pub(super) fn refused(self, why: Error) -> Unfinished {
        let memory = match self.0 {
            Form::Lent { memory, .. } => memory,
            Form::Bytes(_) | Form::Pooled(_) => AnyBuffer::None,
        };
        Unfinished { memory, ..Unfinished::new(why) }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Slice(bytes)))
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Payload<'a> {
        bytes.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Payload<'a> {
        bytes.as_slice().into()
    }
}

/// The only vector that is a payload, so that the type of an empty one is clear.
impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<Bytes> for Payload<'_> {
    fn from(bytes: Bytes) -> Self {
        Payload(Form::Bytes(Plain::Owned(bytes)))
    }
}

/// Slices that make up the object one after another.
impl<'a> From<&'a [IoSlice<'a>]> for Payload<'a> {
    fn from(slices: &'a [IoSlice<'a>]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Slices(slices)))
    }
}

/// Parts that make up the object one after another.
impl<'a> From<&'a [Bytes]> for Payload<'a> {
    fn from(parts: &'a [Bytes]) -> Payload<'a> {
        Payload(Form::Bytes(Plain::Shared(parts)))
    }
}

impl From<PoolBuffer> for Payload<'_> {
    fn from(buffer: PoolBuffer) -> Self {
        Payload(Form::Pooled(buffer))
    }
}

impl From<AnyBuffer> for Payload<'_> {
    fn from(memory: AnyBuffer) -> Self {
        let bytes = (0..memory.segment_count()).map(|index| memory.segment(index).len).sum();
        Payload(Form::Lent { memory, bytes })
    }
}

impl From<Buffer> for Payload<'_> {
    fn from(buffer: Buffer) -> Self {
        AnyBuffer::One(buffer).into()
    }
}

/// Options for storing an object.
#[derive(Clone, Debug, Default)]
pub struct PutWith {
    /// Its tenant; the default tenant if not given.
    pub tenant: Option<Tenant>,
    /// Its maximum lifetime, rounded up to whole seconds.
    pub ttl: Option<Duration>,
    /// Its predecessor in a sequence. The object is placed next to it if one shard owns both.
    pub after: Option<Key>,
    /// Its layout; if not given, one contiguous extent, cut into pieces by length.
    pub layout: Option<DefinedLayout>,
    /// What must hold of the key, or the put fails with [`Failure::Conflict`](crate::shard::Failure::Conflict): for each
    /// object of a batch by itself, for a writer's at its commit.
    pub condition: Condition,
}

/// Tells an open store from all others of the process: ids of one would mean something else in another.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity(Arc<()>);

impl Eq for Identity {}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The owner of objects in one open store, for [`super::PutWith`]. Cheap to clone. Another store, and this one when it is
/// opened again, has no such tenant ([`Failure::Undefined`](crate::shard::Failure::Undefined)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    ids: Arc<[(TenantId, Hold)]>,
    store: Identity,
}

impl Tenant {
    /// Creates a tenant with id `ids[n]` in shard n.
    pub(super) fn new(ids: Vec<(TenantId, Hold)>, store: Identity) -> Tenant {
        Tenant { ids: ids.into(), store }
    }

    /// Returns its id in a shard of the store `store`; `None` if it is another store's.
    pub(super) fn in_shard(&self, store: &Identity, shard: u16) -> Option<(TenantId, Hold)> {
        (self.store == *store).then(|| self.ids[usize::from(shard)].clone())
    }
}

/// A layout of KV blocks defined in one open store, for [`super::PutWith`]. Cheap to clone. Another store, and this one when
/// it is opened again, has no such layout ([`Failure::Undefined`](crate::shard::Failure::Undefined)).
#[derive(Clone, Debug, PartialEq)]
pub struct DefinedLayout {
    ids: Arc<[(LayoutId, Hold)]>,
    layout: Arc<Layout>,
    store: Identity,
}

impl DefinedLayout {
    /// Creates a layout with id `ids[n]` in shard n.
    pub(super) fn new(
        ids: Vec<(LayoutId, Hold)>,
        layout: Layout,
        store: Identity,
    ) -> DefinedLayout {
        DefinedLayout { ids: ids.into(), layout: Arc::new(layout), store }
    }

    /// Returns the layout itself.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns its id in a shard of the store `store`; `None` if it is another store's.
    pub(super) fn in_shard(&self, store: &Identity, shard: u16) -> Option<(LayoutId, Hold)> {
        (self.store == *store).then(|| self.ids[usize::from(shard)].clone())
    }
}

/// A refused request with its data.
#[derive(Debug)]
pub struct Refused<'a> {
    /// The key.
    pub key: Key,
    /// The data.
    pub data: Payload<'a>,
    /// The reason.
    pub why: RefuseReason,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum RefuseReason {
    /// All memory for copies is in use, or the mailbox is full.
    #[error("the store is busy: wait for requests to end, or drop what they gave")]
    Busy,
    /// The request can never succeed, or the store is closed.
    #[error(transparent)]
    Never(Error),
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl std::error::Error for Refused<'_> {}
