//! A random order of `0..count` without a table.
//!
//! An alternating Feistel network on just enough bits is a bijection whatever its round function does;
//! results outside the range are walked on until one falls inside ("cycle walking"), at most twice on
//! average. So each number comes exactly once, from constant memory.

use super::random::mix;

const ROUND_COUNT: usize = 4;

/// A bijection of `0..count` chosen by a seed.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    count: u64,
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUND_COUNT],
}

impl Permutation {
    /// The permutation of `0..count` that belongs to `seed`; `count` is not zero.
    pub(crate) fn new(count: u64, seed: u64) -> Permutation {
        assert!(count > 0, "there is something to permute");
        let bits = u64::BITS - (count - 1).leading_zeros();
        let keys = std::array::from_fn(|round| mix(seed ^ mix(round as u64 + 1)));
        Permutation { count, low_bits: bits - bits / 2, high_bits: bits / 2, keys }
    }

    /// Where `index`, which is below the count, goes.
    #[inline]
    pub(crate) fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        let mut at = self.network(index);
        while at >= self.count {
            at = self.network(at);
        }
        at
    }

    fn network(&self, at: u64) -> u64 {
        let (mut low_bits, mut high_bits) = (self.low_bits, self.high_bits);
        let (mut low, mut high) = (at & ones(low_bits), at >> low_bits);
        // The halves change places, and widths, in each round; their number is even.
        for key in self.keys {
            let next = high ^ (mix(low ^ key) & ones(high_bits));
            (high, low) = (low, next);
            (high_bits, low_bits) = (low_bits, high_bits);
        }
        high << low_bits | low
    }
}

fn ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_number_comes_exactly_once(count in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(count, seed);
            let mut seen = vec![false; count as usize];
            for index in 0..count {
                let at = permutation.apply(index) as usize;
                prop_assert!(!std::mem::replace(&mut seen[at], true), "{at} came twice");
            }
        }

        #[test]
        fn large_ranges_stay_in_range(count in 1u64..u64::MAX >> 1, seed: u64, index: u64) {
            prop_assert!(Permutation::new(count, seed).apply(index % count) < count);
        }
    }

    #[test]
    fn seeds_give_different_orders() {
        let order =
            |seed| (0..100).map(|i| Permutation::new(100, seed).apply(i)).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..100).collect::<Vec<_>>());
        assert_eq!(order(1), order(1));
    }
}
