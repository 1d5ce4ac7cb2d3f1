//! A client's own memory: the files that it shares, its rings, and spans of what the server has registered.
//!
//! A client owns its memory by [`Span`]s as the store owns buffers: a request takes its span, its answer gives it back.
//! If the server is lost in between, a device may still write the span, and it is not given back. A server that breaks
//! the protocol may write a span at any time, so a span lends no slice of its bytes: they are copied in and out
//! ([`SharedBytes`]), and a client bases decisions only on a copy.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use adit_kvstore::Divide;
use adit_shared::{Atomics, SharedBytes, SharedBytesMut};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::mapping::Mapping;

/// Makes a memory file of fixed length. Map it before sharing it, because a server seals it against new mappings.
///
/// # Errors
/// The system's error.
pub(crate) fn make(name: &std::ffi::CStr, bytes: u64) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// Maps a client's own rings, with all of their pages.
///
/// # Errors
/// The system's error.
pub(crate) fn own_rings(file: &File, bytes: usize) -> io::Result<Atomics> {
    let map = Mapping::new(file, bytes)?;
    map.populate()?;
    // SAFETY: the owner keeps the mapping of `bytes` bytes, and this is the only view of it here.
    Ok(unsafe { Atomics::new(map.start(), bytes, Arc::new(map)) })
}

/// A region of a client's memory that the server has registered, until all its spans are dropped.
pub(crate) struct SharedRegion {
    map: Mapping,
    /// The connection that shares it, and its number there.
    place: (u64, u32),
    /// Takes the region back from the server.
    _registration: Box<dyn std::any::Any + Send + Sync>,
}

impl SharedRegion {
    /// Returns all of a mapping, which the server of a connection knows by a number, as one span. `registration` ends
    /// with it.
    pub(crate) fn span(
        map: Mapping,
        place: (u64, u32),
        registration: Box<dyn std::any::Any + Send + Sync>,
    ) -> Span {
        let len = map.len();
        Span {
            region: Arc::new(SharedRegion { map, place, _registration: registration }),
            at: 0,
            len,
        }
    }
}

/// An exclusive run of memory that a client shares with the server. Requests of whole units of 4 KiB at a multiple of 4
/// KiB go to the drive without a copy.
///
/// Nothing but the protocol keeps the server from writing the bytes while no request has them. So they are copied in
/// and out, and a slice of them ([`SharedBytes::as_slice`]) is unsafe:
///
/// ```compile_fail,E0308
/// fn slice(span: &adit_kvshare::Span) -> &[u8] {
///     span
/// }
/// ```
///
/// ```compile_fail,E0133
/// #![forbid(unsafe_code)]
/// fn slice(span: &adit_kvshare::Span) -> &[u8] {
///     span.bytes().as_slice()
/// }
/// ```
///
/// ```
/// fn slice(span: &adit_kvshare::Span) -> &[u8] {
///     // SAFETY: this server is known to write the memory only for requests that have it.
///     unsafe { span.bytes().as_slice() }
/// }
/// ```
pub struct Span {
    region: Arc<SharedRegion>,
    at: usize,
    len: usize,
}

impl Span {
    /// Splits off the bytes from `at` on and keeps those before.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Span {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        let tail = Span { region: Arc::clone(&self.region), at: self.at + at, len: self.len - at };
        self.len = at;
        tail
    }

    /// Undoes [`Span::split_off`]: appends the run directly behind this one.
    ///
    /// # Errors
    /// Returns `tail` if it does not follow directly in the same region.
    pub fn join(&mut self, tail: Span) -> Result<(), Span> {
        if self.at + self.len != tail.at || !Arc::ptr_eq(&self.region, &tail.region) {
            return Err(tail);
        }
        self.len += tail.len;
        Ok(())
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, which stays mapped until all spans of the region are dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start().as_ptr()
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the run lies in the mapping.
        unsafe { self.region.map.start().add(self.at) }
    }

    /// Copies the bytes from `at` on to all of `into`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.bytes().read(at, into);
    }

    /// Copies all of `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        self.bytes_mut().write(at, from);
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// Returns its bytes, to be copied to any memory.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the region keeps the run mapped. Spans of a region never overlap, and only `bytes_mut` of this one,
        // which borrows it, can be made a mutable reference.
        unsafe { SharedBytes::new(self.start(), self.len) }
    }

    /// Returns its bytes, to be copied from any memory.
    pub fn bytes_mut(&mut self) -> SharedBytesMut<'_> {
        // SAFETY: as in `bytes`, and we are borrowed mutably.
        unsafe { SharedBytesMut::new(self.start(), self.len) }
    }

    /// Returns its offset in its region.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Returns the region's number, which the server knows.
    pub(crate) fn number(&self) -> u32 {
        self.region.place.1
    }

    /// Returns the connection that shares it.
    pub(crate) fn connection(&self) -> u64 {
        self.region.place.0
    }
}

impl Divide for Span {
    fn bytes(&self) -> usize {
        self.len
    }

    fn split_off(&mut self, at: usize) -> Span {
        Span::split_off(self, at)
    }

    fn join(&mut self, tail: Span) -> Result<(), Span> {
        Span::join(self, tail)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}: {}+{})", self.number(), self.at, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::PAGE;

    #[test]
    fn spans_share_their_region_and_join_only_behind_each_other() {
        let file = make(c"test", 4 * PAGE).expect("a file");
        let mapping = Mapping::new(&file, 4 * PAGE as usize).expect("mapped");
        let mut span = SharedRegion::span(mapping, (1, 7), Box::new(()));
        let mut tail = span.split_off(PAGE as usize);
        let end = tail.split_off(PAGE as usize);
        assert_eq!((end.offset(), end.len(), end.number()), (8192, 8192, 7));
        let end = span.join(end).expect_err("not directly behind");
        tail.write(0, &[9]);
        tail.join(end).expect("behind it");
        span.join(tail).expect("behind it");
        assert_eq!((span.len(), span.to_vec()[4096]), (4 * 4096, 9));
    }
}
