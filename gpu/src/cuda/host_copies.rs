//! Copies between host memory, where it lies, and memory of the GPU: one after another, in a stream of their own.
//!
//! Host memory is registered with the GPU by its first copy and stays registered, so that the GPU's copy engine reaches
//! the bytes that a drive reads and writes, and nothing is copied in between. Registered are whole pages, and pages that
//! several copies share are registered together: CUDA registers no page twice.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::gpu::Gpu;
use super::memory::{DeviceMemory, inside};
use super::registration::Registration;
use super::stream::{Priority, Stream};
use crate::error::{Error, Result};

/// CUDA registers pages of this size.
const PAGE_BYTES: usize = 4096;
/// Registrations at most; one more replaces the oldest.
const REGISTERED_MAX: usize = 64;

/// Memory of a GPU, and copies between it and host memory that is registered by its first copy.
///
/// Each thread that copies has one of its own. Calls return when the copy is complete, or has failed: in either case the
/// GPU no longer touches the host memory. Memory that was copied once stays mapped until the last copy: if other memory
/// took its address, the GPU would still find the pages that were there before.
#[derive(Debug)]
pub struct HostCopies {
    stream: Stream,
    /// Disjoint runs of pages, the oldest first.
    registered: Vec<(Range<usize>, Registration)>,
    memory: DeviceMemory,
    timeout: Duration,
}

impl HostCopies {
    /// Allocates `bytes` of the GPU's memory, zeroed. A copy may take as long as `timeout`, much longer than any copy
    /// does (60 s): a copy that has not ended by then cannot be taken back from the GPU, and the process is aborted.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for zero bytes; [`Error::Cuda`], `CUDA_ERROR_OUT_OF_MEMORY` among them; [`Error::Refused`]
    /// while rings run a persistent kernel on this GPU.
    pub fn new(gpu: &Arc<Gpu>, bytes: u64, timeout: Duration) -> Result<HostCopies> {
        let _busy = gpu.may_make(format_args!("allocate {bytes} bytes of the GPU's memory"))?;
        let memory = DeviceMemory::zeroed(gpu, bytes)?;
        let stream = Stream::new(gpu, Priority::High)?;
        Ok(HostCopies { stream, registered: Vec::new(), memory, timeout })
    }

    /// Returns the address of its memory on the GPU, for kernels.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Returns the bytes of its memory on the GPU.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Copies `from` to byte `at` of its memory.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside its memory; [`Error::Cuda`] or [`Error::Unavailable`] if `from` cannot be registered
    /// or the copy fails; [`Error::Refused`] while rings run a persistent kernel on this GPU, unless it is registered.
    pub fn write(&mut self, at: u64, from: &[u8]) -> Result<()> {
        inside(at, from.len() as u64, self.memory.bytes())?;
        self.register(from)?;
        let (to, from_address) = (self.memory.address() + at, from.as_ptr().addr() as u64);
        // SAFETY: `from` is registered and borrowed until the copy has ended; the memory is inside, and ours.
        unsafe { self.copy(to, from_address, from.len()) }
    }

    /// Copies from byte `at` of its memory on into `to`.
    ///
    /// # Errors
    ///
    /// As [`HostCopies::write`].
    pub fn read(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        inside(at, to.len() as u64, self.memory.bytes())?;
        self.register(to)?;
        let (from, to_address) = (self.memory.address() + at, to.as_mut_ptr().addr() as u64);
        // SAFETY: as above, and `to` is borrowed for this alone.
        unsafe { self.copy(to_address, from, to.len()) }
    }

    /// Copies as [`HostCopies::write`], through memory of the crate's own: slower, for memory that is used once.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside its memory; [`Error::TimedOut`]; [`Error::Cuda`].
    pub fn write_once(&mut self, at: u64, from: &[u8]) -> Result<()> {
        self.memory.write(at, from)
    }

    /// Copies as [`HostCopies::read`], through memory of the crate's own: slower, for memory that is used once.
    ///
    /// # Errors
    ///
    /// As [`HostCopies::write_once`].
    pub fn read_once(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        self.memory.read(at, to)
    }

    /// Registers the pages of `host`, unless they are registered.
    fn register(&mut self, host: &[u8]) -> Result<()> {
        let mut pages = pages_of(host);
        if host.is_empty() || self.registered.iter().any(|(other, _)| contains(other, &pages)) {
            return Ok(());
        }
        let what = format_args!("register {} bytes with the GPU", pages.len());
        // Dropping registrations takes the same permission, which is therefore not kept.
        drop(self.stream.gpu().may_make(what)?);
        while let Some(index) = self.registered.iter().position(|(other, _)| meet(other, &pages)) {
            let (other, _) = self.registered.remove(index);
            pages = pages.start.min(other.start)..pages.end.max(other.end);
        }
        if self.registered.len() == REGISTERED_MAX {
            self.registered.remove(0);
        }
        assert!(contains(&pages, &pages_of(host)), "the copy's pages are among them");
        let at = host.as_ptr().cast_mut().with_addr(pages.start);
        let at = NonNull::new(at).expect("no memory lies at address 0");
        // SAFETY: the pages are mapped until the last copy, and each copy borrows its bytes until it has ended. Behind the
        // last copy nothing names the addresses, and CUDA keeps the pages pinned: they go to no other owner before they
        // are unregistered. Pages that went before, against the type's rule, are refused, or are the old ones, pinned.
        let registration =
            unsafe { Registration::memory(self.stream.gpu(), at, pages.len(), Box::new(())) }?;
        self.registered.push((pages, registration));
        Ok(())
    }

    /// Copies and waits for the end.
    ///
    /// # Safety
    ///
    /// Both are `bytes` of registered memory or the GPU's, which stay until this returns.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.stream.copy(to, from, bytes as u64) }?;
        match self.stream.synchronize(self.timeout) {
            // The caller takes its memory back, but the GPU may still write there.
            Err(error @ Error::TimedOut { .. }) => abort(&error),
            ended => ended,
        }
    }
}

/// Ends the process: neither waiting nor returning is right.
fn abort(error: &Error) -> ! {
    tracing::error!("a copy still uses memory of this process, which is aborted: {error}");
    std::process::abort()
}

/// Returns the addresses of all pages with a byte of `host`.
fn pages_of(host: &[u8]) -> Range<usize> {
    let (start, end) = (host.as_ptr().addr(), host.as_ptr().addr() + host.len());
    start / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES)
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests;
