//! Shared memory as atomics.
//!
//! Two sides read and write rings, PRP lists and shadow doorbells at the same time. Rust can only express that as
//! atomics: no reference to plain bytes of such memory ever exists.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A run of shared memory, kept alive by its owner. Its address and length are multiples of 8 bytes.
#[derive(Clone)]
pub struct Atomics {
    at: NonNull<u8>,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all access is atomic, and `_owner` keeps the memory alive wherever it goes.
unsafe impl Send for Atomics {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Atomics {}

impl Atomics {
    /// Views `len` bytes at `at` as atomics.
    ///
    /// # Safety
    /// `owner` keeps `at..at+len` mapped, readable and writable for as long as it lives, and no plain reference to it
    /// exists meanwhile.
    ///
    /// # Panics
    /// If `at` or `len` is not a multiple of 8.
    pub unsafe fn new(at: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Atomics {
        assert!(
            at.addr().get().is_multiple_of(8) && len.is_multiple_of(8),
            "atomics are 8-byte aligned"
        );
        Atomics { at, len, _owner: owner }
    }

    /// Returns `len` bytes from `offset`.
    ///
    /// # Panics
    /// If the run leaves the memory or is not a multiple of 8: our own bug.
    pub fn slice(&self, offset: usize, len: usize) -> Atomics {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "slice outside its memory"
        );
        assert!(offset.is_multiple_of(8) && len.is_multiple_of(8), "atomics are 8-byte aligned");
        Atomics {
            // SAFETY: `offset` is inside the run, checked above.
            at: unsafe { self.at.add(offset) },
            len,
            _owner: Arc::clone(&self._owner),
        }
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first byte's address, for an agent that shares the memory.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns all 64-bit words.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: aligned to 8 and `len` long (checked in `new` and `slice`), alive by `_owner`,
        // and only ever accessed as atomics by this process.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len / 8) }
    }

    /// Returns all 32-bit words.
    #[inline(always)]
    pub fn dwords(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`; every 8-aligned address is 4-aligned.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len / 4) }
    }

    /// Zeroes every word.
    pub fn clear(&self) {
        for word in self.words() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Atomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Atomics({:p}+{:#x})", self.at, self.len)
    }
}
