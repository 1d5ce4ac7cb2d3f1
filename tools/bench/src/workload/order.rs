//! Orders in which the blocks of a region come, each once.

use super::lfsr::Lfsr;
use super::permutation::{Cell, Permutation};
use super::random::mix;
use crate::options::RandomGenerator;

/// An order of `0..count` determined by seed and pass.
#[derive(Clone, Debug)]
pub(super) struct Order {
    count: u64,
    next: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The cell is that of the next index.
    Permuted(Permutation, Cell),
    Shifted(Lfsr),
}

impl Order {
    /// Creates an order of `count` numbers, not zero; `None` if the register does not support so many.
    pub(super) fn new(generator: RandomGenerator, count: u64, seed: u64) -> Option<Order> {
        let kind = match generator {
            RandomGenerator::Permutation => {
                Kind::Permuted(Permutation::new(count, seed), Cell::default())
            }
            RandomGenerator::Lfsr => Kind::Shifted(Lfsr::new(count, seed)?),
        };
        Some(Order { count, next: 0, kind })
    }

    pub(super) fn restart(&mut self, seed: u64, pass: u64) {
        self.next = 0;
        let seed = seed.wrapping_add(mix(pass));
        match &mut self.kind {
            Kind::Permuted(permutation, cell) => {
                (*permutation, *cell) = (Permutation::new(self.count, seed), Cell::default());
            }
            Kind::Shifted(lfsr) => lfsr.restart(seed),
        }
    }

    /// Returns the next number; `None` after the last.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        if self.next == self.count {
            return None;
        }
        let number = match &mut self.kind {
            Kind::Permuted(permutation, cell) => {
                let here = std::mem::replace(cell, permutation.following(*cell));
                permutation.apply_to(here)
            }
            Kind::Shifted(lfsr) => lfsr.next(),
        };
        self.next += 1;
        Some(number)
    }
}
