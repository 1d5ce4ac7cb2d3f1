//! The order in which the blocks of a region come, each once.

use super::permutation::{Cell, Permutation};
use super::random::mix;

/// An order of `0..count` determined by seed and pass.
#[derive(Clone, Debug)]
pub(super) struct Order {
    count: u64,
    next: u64,
    /// The cell of `next`.
    cell: Cell,
    permutation: Permutation,
}

impl Order {
    /// Creates an order of `count` numbers, not zero.
    pub(super) fn new(count: u64, seed: u64) -> Order {
        Order { count, next: 0, cell: Cell::default(), permutation: Permutation::new(count, seed) }
    }

    pub(super) fn restart(&mut self, seed: u64, pass: u64) {
        *self = Order::new(self.count, seed.wrapping_add(mix(pass)));
    }

    /// Returns the next number; `None` after the last.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.next == self.count {
            return None;
        }
        let here = self.cell;
        self.cell = self.permutation.following(here);
        self.next += 1;
        Some(self.permutation.apply_to(here))
    }
}
