//! A linear feedback shift register in Galois form: yields each number below a count once, at the cost of a
//! shift and a mask.
//!
//! A register of n bits with the right taps runs through all numbers from 1 to 2^n - 1 before it repeats.
//! Numbers that are too large are skipped; since n is minimal, fewer than half are.

use super::random::{below, mix};

/// The widest register supported; no device has more blocks.
const BITS_MAX: u32 = 48;

/// Taps of maximal-length registers from 2 to [`BITS_MAX`] bits, counted from 1.
const TAPS: [&[u32]; BITS_MAX as usize - 1] = [
    &[2, 1],
    &[3, 2],
    &[4, 3],
    &[5, 3],
    &[6, 5],
    &[7, 6],
    &[8, 6, 5, 4],
    &[9, 5],
    &[10, 7],
    &[11, 9],
    &[12, 6, 4, 1],
    &[13, 4, 3, 1],
    &[14, 5, 3, 1],
    &[15, 14],
    &[16, 15, 13, 4],
    &[17, 14],
    &[18, 11],
    &[19, 6, 2, 1],
    &[20, 17],
    &[21, 19],
    &[22, 21],
    &[23, 18],
    &[24, 23, 22, 17],
    &[25, 22],
    &[26, 6, 2, 1],
    &[27, 5, 2, 1],
    &[28, 25],
    &[29, 27],
    &[30, 6, 4, 1],
    &[31, 28],
    &[32, 22, 2, 1],
    &[33, 20],
    &[34, 27, 2, 1],
    &[35, 33],
    &[36, 25],
    &[37, 5, 4, 3, 2, 1],
    &[38, 6, 5, 1],
    &[39, 35],
    &[40, 38, 21, 19],
    &[41, 38],
    &[42, 41, 20, 19],
    &[43, 42, 38, 37],
    &[44, 43, 18, 17],
    &[45, 44, 42, 41],
    &[46, 45, 26, 25],
    &[47, 42],
    &[48, 47, 21, 20],
];

/// Yields the numbers of `0..count`, each once.
#[derive(Clone, Debug)]
pub(super) struct Lfsr {
    count: u64,
    taps: u64,
    bits: u32,
    state: u64,
    /// Added to each number, so that passes differ in more than their start.
    shift: u64,
}

impl Lfsr {
    /// Creates the order of the numbers below a nonzero `count` that `seed` determines; `None` above 48 bits.
    pub(super) fn new(count: u64, seed: u64) -> Option<Lfsr> {
        let bits = (u64::BITS - count.leading_zeros()).max(2);
        let taps = *TAPS.get(bits.checked_sub(2)? as usize)?;
        let mut lfsr = Lfsr { count, taps: mask(taps), bits, state: 0, shift: 0 };
        lfsr.restart(seed);
        Some(lfsr)
    }

    /// Restarts in the order that `seed` determines.
    pub(super) fn restart(&mut self, seed: u64) {
        self.state = 1 + below(mix(seed), (1 << self.bits) - 1);
        self.shift = below(mix(!seed), self.count);
    }

    /// Returns the next number; repeats after all have come.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        loop {
            let number = self.state - 1;
            self.state = advanced(self.state, self.taps);
            if number < self.count {
                let shifted = number + self.shift;
                return if shifted < self.count { shifted } else { shifted - self.count };
            }
        }
    }
}

fn mask(taps: &[u32]) -> u64 {
    taps.iter().fold(0, |mask, tap| mask | 1 << (tap - 1))
}

#[inline]
fn advanced(state: u64, taps: u64) -> u64 {
    (state >> 1) ^ (taps & (state & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_number_comes_exactly_once(count in 1u64..5000, seed: u64) {
            let mut lfsr = Lfsr::new(count, seed).expect("few");
            let mut numbers: Vec<u64> = (0..count).map(|_| lfsr.next()).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        }
    }

    /// Composes two linear maps over GF(2), such as a register step; column n is the image of bit n.
    fn composed(outer: &[u64], inner: &[u64]) -> Vec<u64> {
        let applied = |x: u64| {
            (0..64).filter(|bit| x >> bit & 1 == 1).fold(0, |sum, bit| sum ^ outer[bit as usize])
        };
        inner.iter().map(|column| applied(*column)).collect()
    }

    fn power(map: &[u64], mut exponent: u64) -> Vec<u64> {
        let mut square = map.to_vec();
        let mut result: Vec<u64> = (0..map.len()).map(|bit| 1 << bit).collect();
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = composed(&square, &result);
            }
            square = composed(&square, &square);
            exponent >>= 1;
        }
        result
    }

    fn prime_factors(mut number: u64) -> Vec<u64> {
        let mut factors = Vec::new();
        let mut candidate = 2;
        while candidate * candidate <= number {
            if number.is_multiple_of(candidate) {
                factors.push(candidate);
                while number.is_multiple_of(candidate) {
                    number /= candidate;
                }
            }
            candidate += 1;
        }
        factors.extend((number > 1).then_some(number));
        factors
    }

    #[test]
    fn every_register_has_its_maximal_length() {
        for (bits, taps) in (2u32..).zip(TAPS) {
            let map: Vec<u64> = (0..bits).map(|bit| advanced(1 << bit, mask(taps))).collect();
            let identity = power(&map, 0);
            let length = (1 << bits) - 1;
            assert_eq!(power(&map, length), identity, "{bits} bits return");
            for prime in prime_factors(length) {
                assert_ne!(power(&map, length / prime), identity, "{bits} bits return too early");
            }
        }
    }

    #[test]
    fn too_many_numbers_are_refused() {
        assert!(Lfsr::new((1 << BITS_MAX) - 1, 1).is_some());
        assert!(Lfsr::new(1 << BITS_MAX, 1).is_none());
    }

    #[test]
    fn seeds_give_different_orders() {
        let order = |seed| {
            let mut lfsr = Lfsr::new(1000, seed).expect("few");
            (0..1000).map(|_| lfsr.next()).collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
        assert_eq!(order(1), order(1));
    }
}
