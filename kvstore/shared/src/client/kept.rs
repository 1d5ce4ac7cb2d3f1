//! Handles that give back a value's memory, a lease or the room of an object when they are dropped.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use adit_kvstore::{StoredBytes, Version};
use adit_shared::SharedBytes;

use super::shared::Shared;
use crate::memory::Span;
use crate::wire::Ask;

/// An object's bytes, or a range of them, which were verified against their checksums. The memory is the pool's and
/// returns to it when this is dropped. As that of a [`Span`], it is read by copies.
pub struct Value {
    shared: Arc<Shared>,
    /// Present until the drop.
    span: Option<Span>,
    range: Range<usize>,
    version: Version,
}

impl Value {
    /// Wraps memory of the pool, of which `range` is the value.
    pub(super) fn new(
        shared: &Arc<Shared>,
        span: Span,
        range: Range<usize>,
        version: Version,
    ) -> Value {
        assert!(range.start <= range.end && range.end <= span.len(), "a value was read");
        Value { shared: Arc::clone(shared), span: Some(span), range, version }
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }
}

impl StoredBytes for Value {
    fn bytes(&self) -> SharedBytes<'_> {
        let span = self.span.as_ref().expect("there until the drop");
        span.bytes().slice(self.range.clone())
    }

    fn version(&self) -> Version {
        self.version
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let span = self.span.take().expect("there until the drop");
        self.shared.give_pooled(span);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes)", self.len())
    }
}

/// A lease or an object's room at the server. The drop gives it up.
pub(super) struct KeptThere {
    shared: Arc<Shared>,
    number: u64,
    /// Gives it up.
    end: fn(u64) -> Ask,
    is_over: bool,
}

impl KeptThere {
    /// Wraps a thing's number at the server, and the request that gives it up.
    pub(super) fn new(shared: &Arc<Shared>, number: u64, end: fn(u64) -> Ask) -> KeptThere {
        KeptThere { shared: Arc::clone(shared), number, end, is_over: false }
    }

    /// Returns its number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns its number, and leaves it to a request that ends it.
    pub(super) fn finish(mut self) -> u64 {
        self.is_over = true;
        self.number
    }
}

impl Drop for KeptThere {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.with(|requests| {
                requests.give_up((self.end)(self.number));
                requests.turn();
            });
        }
    }
}
