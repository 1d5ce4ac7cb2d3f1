//! Chooses the next object: in order, at random, or by Zipf. The same seed chooses the same objects.

use std::sync::Arc;

/// Random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from 0 to less than 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How objects are chosen.
#[derive(Clone, Debug)]
pub(crate) enum Chooser {
    /// Uniformly among this many.
    Uniform(u64),
    /// By rank with theta 0.99: the cumulative share of each rank. Ranks are spread over the objects.
    Zipf(Arc<[f64]>),
}

const THETA: f64 = 0.99;
/// Coprime with every number of objects that is not a multiple of it.
const SPREAD: u64 = 2_654_435_761;

impl Chooser {
    /// Chooses by Zipf over `count` objects.
    pub(crate) fn zipf(count: u64) -> Chooser {
        let mut sum = 0.0;
        let add = |rank: u64| {
            sum += 1.0 / (rank as f64).powf(THETA);
            sum
        };
        let mut shares: Vec<f64> = (1..=count).map(add).collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Chooser::Zipf(shares.into())
    }

    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        match self {
            Chooser::Uniform(count) => random.below(*count),
            Chooser::Zipf(shares) => {
                let wanted = random.fraction();
                let rank = shares.partition_point(|share| *share <= wanted).min(shares.len() - 1);
                (u128::from(rank as u64) * u128::from(SPREAD) % shares.len() as u128) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(chooser: &Chooser, of: usize, draws: usize) -> Vec<usize> {
        let (mut counts, mut random) = (vec![0; of], Random::new(1));
        (0..draws).for_each(|_| counts[chooser.next(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn uniform_draws_reach_all_objects_about_as_often() {
        let counts = counts(&Chooser::Uniform(16), 16, 16_000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_draws_the_first_rank_twice_as_often_as_the_second() {
        let mut counts = counts(&Chooser::zipf(1000), 1000, 100_000);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let ratio = counts[0] as f64 / counts[1] as f64;
        assert!((1.85..2.15).contains(&ratio), "{ratio}");
        // The first rank's share is 1 / sum of n^-0.99, which is 7.73 for 1000.
        assert!((12_400..13_500).contains(&counts[0]), "{}", counts[0]);
    }

    #[test]
    fn the_ranks_are_other_objects_each() {
        let Chooser::Zipf(shares) = Chooser::zipf(500) else { panic!("by Zipf") };
        let mut objects: Vec<u64> = (0..500_u64).map(|rank| rank * SPREAD % 500).collect();
        objects.sort_unstable();
        objects.dedup();
        assert_eq!((objects.len(), shares.len()), (500, 500));
    }
}
