//! The arguments of store calls: data, as bytes to copy or memory that the devices read directly, and options.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::{AnyBuffer, IoBuffer};

use super::pool::PoolBuffer;
use crate::error::Error;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, TenantId};

/// The data of an object.
#[derive(Debug)]
pub struct Payload<'a>(pub(super) Form<'a>);

#[derive(Debug)]
pub(super) enum Form<'a> {
    /// Copied to registered memory, and counted as copied.
    Bytes(Cow<'a, [u8]>),
    /// The store's own memory, which returns to its pool.
    Pooled(PoolBuffer),
    /// The caller's registered memory, which comes back with the answer.
    Lent { memory: AnyBuffer, bytes: u64 },
}

impl Payload<'static> {
    /// Lends the first `bytes` bytes of `memory`. The memory must be whole units: an object of 5000 bytes takes 8192.
    pub fn lent(memory: AnyBuffer, bytes: u64) -> Payload<'static> {
        Payload(Form::Lent { memory, bytes })
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
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Payload<'a> {
        Payload(Form::Bytes(bytes.into()))
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Payload<'a> {
        Payload(Form::Bytes(bytes.as_slice().into()))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Payload<'a> {
        Payload(Form::Bytes(bytes.as_slice().into()))
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Payload(Form::Bytes(bytes.into()))
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

impl From<Vec<Buffer>> for Payload<'_> {
    fn from(buffers: Vec<Buffer>) -> Self {
        AnyBuffer::Many(buffers).into()
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
}

/// The owner of objects, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(Arc<[TenantId]>);

impl Tenant {
    /// Creates a tenant with id `ids[n]` in shard n.
    pub(super) fn new(ids: Vec<TenantId>) -> Tenant {
        Tenant(ids.into())
    }

    pub(super) fn in_shard(&self, shard: u16) -> TenantId {
        self.0[usize::from(shard)]
    }
}

/// A layout of KV blocks defined in a store, for [`super::PutWith`]. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct DefinedLayout {
    ids: Arc<[LayoutId]>,
    layout: Arc<Layout>,
}

impl DefinedLayout {
    /// Creates a layout with id `ids[n]` in shard n.
    pub(super) fn new(ids: Vec<LayoutId>, layout: Layout) -> DefinedLayout {
        DefinedLayout { ids: ids.into(), layout: Arc::new(layout) }
    }

    /// Returns the layout itself.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn in_shard(&self, shard: u16) -> LayoutId {
        self.ids[usize::from(shard)]
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
