//! A ring in shared memory, and the position in it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::Atomics;

/// A ring of `N`-word entries with a position in it, which is always an entry: looking there needs no check.
#[derive(Clone, Debug)]
pub struct Ring<const N: usize> {
    /// The entry at the position.
    current: NonNull<[AtomicU64; N]>,
    /// The last entry.
    last: NonNull<[AtomicU64; N]>,
    count: u32,
    memory: Atomics,
}

// SAFETY: the pointers are into `memory`, which is only accessed as atomics and may go anywhere.
unsafe impl<const N: usize> Send for Ring<N> {}
// SAFETY: as above; what moves the position borrows the ring mutably.
unsafe impl<const N: usize> Sync for Ring<N> {}

impl<const N: usize> Ring<N> {
    /// `count` entries at the start of `memory`, at the first.
    ///
    /// # Panics
    /// If there are none, or the memory does not hold them: our own bug.
    pub fn new(memory: Atomics, count: u32) -> Ring<N> {
        assert!(count > 0, "a ring has an entry");
        assert!(memory.len() / (N * 8) >= count as usize, "the ring's memory holds its entries");
        let first = Self::first_of(&memory);
        // SAFETY: entry `count - 1` is inside the memory, checked above.
        let last = unsafe { first.add(count as usize - 1) };
        Ring { current: first, last, count, memory }
    }

    fn first_of(memory: &Atomics) -> NonNull<[AtomicU64; N]> {
        NonNull::new(memory.as_ptr().cast()).expect("memory is never at address zero")
    }

    /// Returns how many entries there are.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the index of the entry at the position.
    #[inline(always)]
    pub fn at(&self) -> u32 {
        let bytes = self.current.addr().get() - self.memory.as_ptr().addr();
        debug_assert!(bytes / (N * 8) < self.count as usize, "the position is an entry");
        (bytes / (N * 8)) as u32
    }

    /// Returns the entry at the position.
    #[inline(always)]
    pub fn current(&self) -> &[AtomicU64; N] {
        debug_assert!(self.current <= self.last, "the position is an entry");
        // SAFETY: `current` is an entry (`new`, `visit` and `move_to` see to it) of the memory, which is aligned to
        // 8, kept alive by `memory` and only accessed as atomics.
        unsafe { self.current.as_ref() }
    }

    /// Shows the entry at the position to `visit` and moves on by one if that returns something. Returns that, and
    /// whether it led back to the first entry.
    #[inline(always)]
    pub fn visit<T>(
        &mut self,
        visit: impl FnOnce(&[AtomicU64; N]) -> Option<T>,
    ) -> Option<(T, bool)> {
        // Read once: to the compiler, the entry's stores might change it.
        let at = self.current;
        // SAFETY: as in `current`.
        let seen = visit(unsafe { at.as_ref() })?;
        let wraps = at == self.last;
        self.current = if wraps {
            std::hint::cold_path();
            Self::first_of(&self.memory)
        } else {
            // SAFETY: it is not the last entry, so there is another behind it.
            unsafe { at.add(1) }
        };
        Some((seen, wraps))
    }

    /// Asks for the cache lines of `count` entries from the position on, to write to them: they come from the device's core
    /// while this one does something else.
    #[inline(always)]
    pub fn prefetch(&self, count: u32) {
        let mut at = self.current;
        for _ in 0..count {
            prefetch_to_write(at);
            // SAFETY: as in `visit`.
            at = if at == self.last { Self::first_of(&self.memory) } else { unsafe { at.add(1) } };
        }
    }

    /// Moves to entry `index`.
    ///
    /// # Panics
    /// If there is no such entry: our own bug.
    pub fn move_to(&mut self, index: u32) {
        assert!(index < self.count, "entry outside its ring");
        // SAFETY: it is an entry of the memory, checked above.
        self.current = unsafe { Self::first_of(&self.memory).add(index as usize) };
    }
}

/// Asks for the cache line at `at`, to write to it.
#[inline(always)]
fn prefetch_to_write<T>(at: NonNull<T>) {
    // SAFETY: a prefetch only hints; it accesses nothing and cannot fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags, readonly));
    }
}
