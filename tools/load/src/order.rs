//! A random order in which each number comes once.

use super::permutation::{Cell, Permutation};
use super::random::mix;

/// An order of `0..count` determined by seed and pass.
#[derive(Clone, Debug)]
pub struct RandomOrder {
    count: u64,
    next: u64,
    /// The cell of `next`.
    cell: Cell,
    permutation: Permutation,
}

impl RandomOrder {
    /// Creates an order of `count` numbers, not zero.
    pub fn new(count: u64, seed: u64) -> RandomOrder {
        RandomOrder {
            count,
            next: 0,
            cell: Cell::default(),
            permutation: Permutation::new(count, seed),
        }
    }

    /// Starts the order of another pass.
    pub fn restart(&mut self, seed: u64, pass: u64) {
        *self = RandomOrder::new(self.count, seed.wrapping_add(mix(pass)));
    }
}

impl Iterator for RandomOrder {
    type Item = u64;

    /// Returns the next number; `None` after the last.
    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.next == self.count {
            return None;
        }
        let here = self.cell;
        self.cell = self.permutation.following(here);
        self.next += 1;
        Some(self.permutation.apply_to(here))
    }
}
