//! Stateless random numbers: each follows from its purpose and index, so it can be recomputed.

/// 2^64 divided by the golden ratio: SplitMix64's step.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over the result (SplitMix64's finisher).
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence of 64-bit numbers accessed by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// Creates the sequence of `seed` for `purpose` in `pass`.
    pub fn new(seed: u64, pass: u64, purpose: u64) -> Stream {
        Stream { key: mix(seed ^ mix(pass ^ mix(purpose))) }
    }

    /// Returns the number at `index`.
    #[inline]
    pub fn at(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN)))
    }
}

/// Maps a random number to one below `count`, without a division.
#[inline]
pub fn below(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

/// Maps a random number to a fraction in [0, 1).
#[inline]
pub fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns true with a probability of `percent`.
#[inline]
pub fn happens(random: u64, percent: u8) -> bool {
    below(random, 100) < u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_spread_evenly_from_zero_to_one() {
        let stream = Stream::new(1, 0, 0);
        let fractions: Vec<f64> = (0..100_000).map(|index| fraction(stream.at(index))).collect();
        assert!(fractions.iter().all(|x| (0.0..1.0).contains(x)));
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let count = fractions.iter().filter(|x| (from..to).contains(*x)).count();
            assert!((9_700..10_300).contains(&count), "{count} from {from} to {to}");
        }
    }

    #[test]
    fn numbers_stay_below_their_count() {
        assert_eq!((below(0, 10), below(u64::MAX, 10), below(u64::MAX, 1)), (0, 9, 0));
        assert!(!happens(0, 0) && happens(u64::MAX, 100));
    }

    #[test]
    fn seed_pass_and_purpose_each_give_another_sequence() {
        let streams = [
            Stream::new(1, 0, 0),
            Stream::new(2, 0, 0),
            Stream::new(1, 1, 0),
            Stream::new(1, 0, 1),
        ];
        let mut firsts = streams.map(|stream| stream.at(0)).to_vec();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 4);
    }
}
