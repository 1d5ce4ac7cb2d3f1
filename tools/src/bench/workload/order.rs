//! In which order all the blocks of a region come, each once.

use super::lfsr::Lfsr;
use super::permutation::Permutation;
use super::random::mix;
use crate::bench::options::RandomGenerator;

/// An order of `0..count` that follows from seed and pass.
#[derive(Clone, Debug)]
pub(super) struct Order {
    count: u64,
    next: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Permuted(Permutation),
    Shifted(Lfsr),
}

impl Order {
    /// The order of `count` numbers, which are not none; none where a register is not made for so many.
    pub(super) fn new(generator: RandomGenerator, count: u64, seed: u64) -> Option<Order> {
        let kind = match generator {
            RandomGenerator::Permutation => Kind::Permuted(Permutation::new(count, seed)),
            RandomGenerator::Lfsr => Kind::Shifted(Lfsr::new(count, seed)?),
        };
        Some(Order { count, next: 0, kind })
    }

    /// Goes to the start of the order of a pass.
    pub(super) fn restart(&mut self, seed: u64, pass: u64) {
        self.next = 0;
        let seed = seed.wrapping_add(mix(pass));
        match &mut self.kind {
            Kind::Permuted(permutation) => *permutation = Permutation::new(self.count, seed),
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
            Kind::Permuted(permutation) => permutation.apply(self.next),
            Kind::Shifted(lfsr) => lfsr.next(),
        };
        self.next += 1;
        Some(number)
    }
}
