//! Data on its way into the store: bytes that are copied, or memory that the devices read themselves.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::{AnyBuffer, IoBuffer};

use super::names::{DefinedLayout, Tenant};
use super::pool::PoolBuffer;
use crate::error::Error;
use crate::model::key::Key;

/// The data of an object.
#[derive(Debug)]
pub struct Payload<'a>(pub(super) Form<'a>);

#[derive(Debug)]
pub(super) enum Form<'a> {
    /// Copied to registered memory, and counted as copied.
    Bytes(Cow<'a, [u8]>),
    /// A store's own memory: it goes back to the pool.
    Pooled(PoolBuffer),
    /// The caller's registered memory: it comes back with the answer.
    Lent { memory: AnyBuffer, bytes: u64 },
}

impl Payload<'static> {
    /// The first `bytes` bytes of `memory`, which is whole units: an object of 5000 bytes takes 8192.
    pub fn lent(memory: AnyBuffer, bytes: u64) -> Payload<'static> {
        Payload(Form::Lent { memory, bytes })
    }
}

impl Payload<'_> {
    /// Its length in bytes.
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
    /// All of it.
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

/// How an object is stored.
#[derive(Clone, Debug, Default)]
pub struct PutWith {
    /// Whose it is; nobody's in particular where not given.
    pub tenant: Option<Tenant>,
    /// How long it is kept at most, in whole seconds, rounded up.
    pub ttl: Option<Duration>,
    /// The object it follows in its sequence, next to which it is placed where one shard has both.
    pub after: Option<Key>,
    /// How it lies; in one contiguous extent, cut into pieces by length, where not given.
    pub layout: Option<DefinedLayout>,
}

/// A request that was not taken, with its data.
#[derive(Debug)]
pub struct Refused<'a> {
    /// The key.
    pub key: Key,
    /// The data.
    pub data: Payload<'a>,
    /// Why.
    pub why: RefuseReason,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum RefuseReason {
    /// All memory for copies is in use, or as many requests wait as may.
    #[error("the store is busy: wait for requests to end, or drop what they gave")]
    Busy,
    /// It could never be carried out, or the store is closed.
    #[error(transparent)]
    Never(Error),
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl std::error::Error for Refused<'_> {}
