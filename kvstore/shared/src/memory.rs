//! Memory that client and server both map: memory files, as rings, as the store's DMA memory, as a client's spans.
//!
//! **The server** maps only memory files of ordinary pages that are sealed against shortening, so that no access of its
//! own faults. The client may write the bytes at any time, also while a device or the store reads them: then a put has
//! other bytes than its checksum says and is a miss later, or a read is taken for damaged. Nothing else follows from
//! these bytes; no length, offset or decision is read from them, and the store has no reference to them: it copies, and
//! sums what it copied ([`HostMemory::adopt_shared`]).
//!
//! **A client** owns its memory by [`Span`]s as the store owns buffers: a request takes its span, its answer gives it
//! back. If the server is lost in between, a device may still write the span, and it is not given back. A server that
//! keeps no rule may write a span at any time, so a span lends no slice of its bytes: they are copied in and out
//! ([`SharedBytes`]), and what a client decides on is a copy.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_driver::serve::parts::{page_bytes, seal_length};
use adit_driver::sys::HostMemory;
use adit_shared::{Atomics, SharedBytes, SharedBytesMut};
use memmap2::MmapOptions;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::mapping::{Mapping, PAGE};
use crate::pieces::Divide;

/// A mapping of the server's, counted while it lasts.
struct Counted {
    map: Mapping,
    mapped_bytes: Arc<AtomicU64>,
}

impl Counted {
    fn new(map: Mapping, mapped_bytes: &Arc<AtomicU64>) -> Counted {
        mapped_bytes.fetch_add(map.len() as u64, Ordering::Relaxed);
        Counted { map, mapped_bytes: Arc::clone(mapped_bytes) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.mapped_bytes.fetch_sub(self.map.len() as u64, Ordering::Relaxed);
    }
}

/// Maps `bytes` of a client's file as rings.
///
/// # Errors
/// Why the server does not map it.
pub(crate) fn rings(
    file: &File,
    bytes: usize,
    counter: &Arc<AtomicU64>,
) -> Result<Atomics, String> {
    let counted = Counted::new(map_checked(file, bytes as u64)?, counter);
    let (at, len) = (counted.map.start(), counted.map.len());
    // SAFETY: `counted` keeps the mapping of `len` bytes; this is the only view of it here, and the file behind it
    // cannot become shorter.
    Ok(unsafe { Atomics::new(at, len, Arc::new(counted)) })
}

/// Maps `bytes` of a client's file as memory for a store to register.
///
/// # Errors
/// Why the server does not map it.
pub(crate) fn dma(file: File, bytes: u64, counter: &Arc<AtomicU64>) -> Result<HostMemory, String> {
    let map = map_checked(&file, bytes)?;
    // Pages that the client has not touched are made now, and not under a request.
    map.populate().map_err(|why| format!("there is no memory for it: {why}"))?;
    let counted = Counted::new(map, counter);
    let (at, len) = (counted.map.start(), counted.map.len());
    // SAFETY: the owner keeps the mapping, and this is the only one of it here: buffers of it lend no references.
    let memory = unsafe { HostMemory::adopt_shared(at, len, Some((file, 0)), Box::new(counted)) };
    memory.map_err(|why| why.to_string())
}

fn map_checked(file: &File, bytes: u64) -> Result<Mapping, String> {
    match page_bytes(file) {
        Some(PAGE) => {}
        Some(other) => return Err(format!("its pages have {other} bytes; share memory of {PAGE}")),
        None => return Err("it is not a memory file; share one of memfd_create".to_owned()),
    }
    if bytes == 0 || !bytes.is_multiple_of(PAGE) {
        return Err(format!("it has {bytes} bytes; share whole pages of {PAGE}"));
    }
    if !seal_length(file) {
        return Err("it can be shortened; make it with MFD_ALLOW_SEALING".to_owned());
    }
    // After it was sealed: before, the length could change.
    let has = file.metadata().map_err(|why| why.to_string())?.len();
    if has < bytes {
        return Err(format!("the file has {has} bytes, {bytes} are to be shared"));
    }
    let len = usize::try_from(bytes).map_err(|why| why.to_string())?;
    Mapping::new(file, len).map_err(|why| format!("cannot map it for writing: {why}"))
}

/// Makes a memory file that cannot become shorter or longer.
///
/// # Errors
/// The system's error.
pub(crate) fn make(name: &std::ffi::CStr, bytes: u64) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// Maps a client's own rings.
///
/// # Errors
/// The system's error.
pub(crate) fn own_rings(file: &File, bytes: usize) -> io::Result<Atomics> {
    let map = MmapOptions::new().len(bytes).map_raw(file)?;
    let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
    // SAFETY: the owner keeps the mapping of `bytes` bytes, and this is the only view of it here.
    Ok(unsafe { Atomics::new(at, bytes, Arc::new(map)) })
}

/// A region of a client's memory that the server has registered, until all its spans are dropped.
pub(crate) struct Region {
    map: Mapping,
    number: u32,
    /// Takes the region back from the server.
    _registration: Box<dyn std::any::Any + Send + Sync>,
}

impl Region {
    /// Returns all of a mapping, which the server knows as region `number`, as one span. `registration` ends with it.
    pub(crate) fn span(
        map: Mapping,
        number: u32,
        registration: Box<dyn std::any::Any + Send + Sync>,
    ) -> Span {
        let len = map.len();
        Span { region: Arc::new(Region { map, number, _registration: registration }), at: 0, len }
    }
}

/// An exclusive run of memory that a client shares with the server. Requests of whole units of 4 KiB at a multiple of 4
/// KiB go to the drive without a copy.
///
/// Only the server's good conduct keeps it from writing the bytes while no request has them. So they are copied in and
/// out, and a slice of them ([`SharedBytes::as_slice`]) is unsafe:
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
    region: Arc<Region>,
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

    /// Returns the address of the first byte, which stays mapped as long as a span of the region is there.
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
    pub(crate) fn region(&self) -> u32 {
        self.region.number
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
        write!(f, "Span({}: {}+{})", self.region.number, self.at, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: File, bytes: u64) -> String {
        let counter = Arc::default();
        let why = dma(file, bytes, &counter).expect_err("not taken");
        assert_eq!(counter.load(Ordering::Relaxed), 0, "nothing stays mapped");
        why
    }

    #[test]
    fn only_sealed_memory_files_of_the_right_length_are_mapped() {
        let null = File::open("/dev/null").expect("a file");
        assert!(refusal(null, PAGE).contains("not a memory file"));
        let unsealable = File::from(memfd_create(c"test", MFdFlags::empty()).expect("memfd"));
        unsealable.set_len(2 * PAGE).expect("room");
        assert!(refusal(unsealable, PAGE).contains("MFD_ALLOW_SEALING"));
        let short = || make(c"test", 2 * PAGE).expect("a file");
        assert!(refusal(short(), 3 * PAGE).contains("the file has 8192 bytes, 12288"));
        for ragged in [0, 1, PAGE + 1, u64::MAX] {
            assert!(refusal(short(), ragged).contains("whole pages"), "{ragged}");
        }
        let counter = Arc::default();
        let memory = dma(short(), 2 * PAGE, &counter).expect("mapped");
        assert_eq!((memory.len(), counter.load(Ordering::Relaxed)), (8192, 8192));
        drop(memory);
        assert_eq!(counter.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_that_its_maker_left_open_is_sealed_by_the_server() {
        let file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).expect("memfd"));
        file.set_len(PAGE).expect("room");
        let again = file.try_clone().expect("a descriptor");
        let _memory = dma(file, PAGE, &Arc::default()).expect("mapped");
        assert!(again.set_len(0).is_err(), "a client cannot make the server fault");
    }

    #[test]
    fn spans_share_their_region_and_join_only_behind_each_other() {
        let file = make(c"test", 4 * PAGE).expect("a file");
        let mapping = Mapping::new(&file, 4 * PAGE as usize).expect("mapped");
        let mut span = Region::span(mapping, 7, Box::new(()));
        let mut tail = span.split_off(PAGE as usize);
        let end = tail.split_off(PAGE as usize);
        assert_eq!((end.offset(), end.len(), end.region()), (8192, 8192, 7));
        let end = span.join(end).expect_err("not directly behind");
        tail.write(0, &[9]);
        tail.join(end).expect("behind it");
        span.join(tail).expect("behind it");
        assert_eq!((span.len(), span.to_vec()[4096]), (4 * 4096, 9));
    }
}
