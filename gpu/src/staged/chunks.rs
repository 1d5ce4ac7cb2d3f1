//! The pinned chunks of a lane: memory that its controller and the GPU both access, one chunk per command.
//!
//! Their number is fixed at creation. A chunk is in one place: here, in the queue pair with a command, or in a job with
//! a copy. The registration owns the last reference to the memory, so the GPU unregisters it before it is unmapped.

use adit_driver::{Buffer, Controller};

use super::copies::Copies;
use crate::error::Result;

/// The granularity of chunks: host pages, the unit of registration.
const PAGE_BYTES: usize = 4096;

/// The free chunks and the registration of their memory.
pub(super) struct Chunks<R> {
    free: Vec<Buffer>,
    count: usize,
    registration: Option<R>,
}

impl<R> Chunks<R> {
    /// Allocates `count` chunks of `bytes` each, rounded up to pages.
    ///
    /// # Errors
    /// The driver's if there is no such memory, and the GPU's if it cannot be registered.
    pub(super) fn new<C: Copies<Registration = R>>(
        copies: &mut C,
        controller: &Controller,
        bytes: usize,
        count: usize,
    ) -> Result<Chunks<R>> {
        assert!(bytes > 0 && count > 0, "a lane has chunks");
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let mut owner = controller.allocate(bytes * count)?;
        // The empty rest of the first buffer keeps the memory mapped.
        let mut rest = owner.split_off(0);
        let registration = copies.register(&mut rest, owner)?;
        let mut free = Vec::with_capacity(count);
        for _ in 1..count {
            let tail = rest.split_off(bytes);
            free.push(std::mem::replace(&mut rest, tail));
        }
        free.push(rest);
        Ok(Chunks { free, count, registration: Some(registration) })
    }

    /// Takes a chunk for a job. A job that `waits` for something leaves half of them to others, which may be what it
    /// waits for.
    pub(super) fn take(&mut self, waits: bool) -> Option<Buffer> {
        let reserved = if waits { self.count / 2 } else { 0 };
        if self.free.len() > reserved { self.free.pop() } else { None }
    }

    pub(super) fn put(&mut self, chunk: Buffer) {
        assert!(self.free.len() < self.count, "a chunk comes back once");
        self.free.push(chunk);
    }

    /// Loses a chunk that a copy may still use: it is never reused, and the memory stays registered for good.
    pub(super) fn lose(&mut self, chunk: Buffer) {
        drop(chunk);
        self.count -= 1;
        std::mem::forget(self.registration.take());
    }

    /// Returns whether all chunks are lost.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}
