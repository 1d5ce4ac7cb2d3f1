//! A ring in shared memory, and the position in it.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

use super::Atomics;

/// A ring of `N`-word entries with a position in it, which is always an entry: looking there needs no check.
#[derive(Clone, Debug)]
pub struct Ring<const N: usize> {
    count: u32,
    at: u32,
    memory: Atomics,
}

impl<const N: usize> Ring<N> {
    /// `count` entries at the start of `memory`, at the first.
    ///
    /// # Panics
    /// If there are none, or the memory does not hold them: our own bug.
    pub fn new(memory: Atomics, count: u32) -> Ring<N> {
        assert!(count > 0, "a ring has an entry");
        assert!(memory.len() / (N * 8) >= count as usize, "the ring's memory holds its entries");
        Ring { count, at: 0, memory }
    }

    /// How many entries there are.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Index of the entry at the position.
    #[inline(always)]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// The entry at the position.
    #[inline(always)]
    pub fn current(&self) -> &[AtomicU64; N] {
        debug_assert!(self.at < self.count, "the position is an entry");
        // SAFETY: `at` is below `count` (`new`, `advance` and `move_to` see to it), and `new` checked that so many
        // entries are inside the memory, which is aligned to 8, kept alive by `memory` and only accessed as atomics.
        unsafe { &*self.memory.as_ptr().cast::<[AtomicU64; N]>().add(self.at as usize) }
    }

    /// Moves on by one entry. Returns whether that led back to the first.
    #[inline(always)]
    pub fn advance(&mut self) -> bool {
        self.at += 1;
        let wraps = self.at == self.count;
        if wraps {
            std::hint::cold_path();
            self.at = 0;
        }
        wraps
    }

    /// Moves to entry `index`.
    ///
    /// # Panics
    /// If there is no such entry: our own bug.
    pub fn move_to(&mut self, index: u32) {
        assert!(index < self.count, "entry outside its ring");
        self.at = index;
    }
}
