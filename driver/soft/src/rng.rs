//! The controller's only source of randomness, derived from a seed.
//!
//! splitmix64 (Steele, Lea and Flood, 2014): one word of state, every seed is good, same numbers on every machine.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// Creates a stream of `seed`, independent of its other `stream`s.
    pub(super) fn stream(seed: u64, stream: u64) -> Rng {
        Rng(mix(seed ^ mix(stream.wrapping_add(GAMMA))))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number below `limit`; zero if `limit` is zero.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns true `count` times out of `of`.
    pub(super) fn chance(&mut self, count: u64, of: u64) -> bool {
        self.below(of) < count
    }
}

/// Mixes all bits of `word`.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_makes_the_published_numbers() {
        let mut rng = Rng(1_234_567);
        let made = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            made,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn streams_of_one_seed_differ_and_numbers_stay_below_their_limit() {
        let (mut one, mut two) = (Rng::stream(7, 1), Rng::stream(7, 2));
        assert_ne!(one.next(), two.next());
        assert_eq!(one.below(0), 0);
        let hits = (0..10_000).filter(|_| one.chance(1, 10)).count();
        assert!((800..1200).contains(&hits), "{hits} of 10000 at one in ten");
        assert!((0..1000).all(|_| two.below(3) < 3));
    }
}
