//! What an answer has the client or the server keep until it is dropped: a value in the pool, a lease.

use std::fmt;
use std::sync::Arc;

use adit_kvstore::Version;
use adit_shared::SharedBytes;

use super::shared::Shared;
use crate::memory::Span;
use crate::wire::Ask;

/// An object's bytes, which were verified against their checksums. The memory is the pool's and returns to it when
/// this is dropped. As that of a [`Span`], it is read by copies.
pub struct Value {
    pub(super) shared: Arc<Shared>,
    /// Present until the drop.
    pub(super) span: Option<Span>,
    pub(super) bytes: usize,
    pub(super) version: Version,
}

impl Value {
    /// Returns the object's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the object's length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether the object has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies the bytes from `at` on to all of `into`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.bytes().read(at, into);
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// Returns the bytes, to be copied to any memory.
    pub fn bytes(&self) -> SharedBytes<'_> {
        self.span().bytes().slice(0..self.bytes)
    }

    fn span(&self) -> &Span {
        self.span.as_ref().expect("there until the drop")
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let span = self.span.take().expect("there until the drop");
        self.shared.with(|state| {
            state.give_pooled(span);
            state.turn();
        });
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes)", self.bytes)
    }
}

/// Keeps objects readable until it is dropped or expires, or the client's process ends.
#[must_use = "dropping it ends the lease"]
pub struct Lease {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    pub(super) count: usize,
}

impl Lease {
    /// Returns how many objects are leased: the keys before the first miss.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.give_up(Ask::Release(self.number));
            state.turn();
        });
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} objects)", self.count)
    }
}
