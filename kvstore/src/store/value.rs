//! The results of store calls.

use std::fmt;
use std::ops::{Deref, Range};

use adit_driver::memory::AnyBuffer;

use super::pool::PoolBuffer;
use crate::shard::Outcome;

/// An object's bytes, or a range of them, verified against their checksums. The memory is the store's and returns to
/// it when this is dropped: holding many values makes other readers wait.
pub struct Value {
    buffer: PoolBuffer,
    range: Range<usize>,
    object_bytes: u64,
}

impl Value {
    pub(super) fn new(buffer: PoolBuffer, range: Range<usize>, object_bytes: u64) -> Value {
        assert!(range.end <= buffer.len() && range.start <= range.end, "a value was read");
        Value { buffer, range, object_bytes }
    }

    /// Returns the length of the whole object in bytes.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes of {})", self.len(), self.object_bytes)
    }
}

/// The result of a put.
#[derive(Debug)]
pub struct Put {
    /// [`Outcome::Stored`] or [`Outcome::Declined`].
    pub outcome: Outcome,
    /// The memory that the caller lent; none if the data was copied.
    pub memory: AnyBuffer,
}

impl Put {
    /// Returns whether the object was stored.
    pub fn is_stored(&self) -> bool {
        self.outcome == Outcome::Stored
    }
}

/// The result of a read into the caller's memory.
#[derive(Debug)]
pub struct Read {
    /// Bytes of the part; `None` if there is no such object.
    pub bytes: Option<u64>,
    /// The caller's memory.
    pub memory: AnyBuffer,
}
