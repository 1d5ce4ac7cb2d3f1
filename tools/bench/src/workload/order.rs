//! In which order all the blocks of a region come, each once.

use super::lfsr::Lfsr;
use super::permutation::{Cell, Permutation};
use super::random::mix;
use crate::options::RandomGenerator;

/// An order of `0..count` that follows from seed and pass.
#[derive(Clone, Debug)]
pub(super) struct Order {
    count: u64,
    next: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With the cell of the next index.
    Permuted(Permutation, Cell),
    Shifted(Lfsr),
}

impl Order {
    /// The order of `count` numbers, which are not none; none where a register is not made for so many.
    pub(super) fn new(generator: RandomGenerator, count: u64, seed: u64) -> Option<Order> {
        let kind = match generator {
            RandomGenerator::Permutation => {
                Kind::Permuted(Permutation::new(count, seed), Cell::default())
            }
            RandomGenerator::Lfsr => Kind::Shifted(Lfsr::new(count, seed)?),
        };
        Some(Order { count, next: 0, kind })
    }

    /// Goes to the start of the order of a pass.
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

    /// The next number; none when all have come.
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
