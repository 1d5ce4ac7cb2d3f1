//! Medians of few samples and their confidence intervals.
//!
//! Assumes no distribution, since rounds are few and their errors skewed. The interval of a median uses order
//! statistics (the number of samples below the true median is binomial). The interval of a ratio of two
//! independent samples uses the ratios of all pairs (the number of pairs above the true ratio is Mann and
//! Whitney's U).

use serde::Serialize;

/// The confidence of intervals.
pub const CONFIDENCE: f64 = 0.95;
/// The fewest samples for which a median's interval can have that confidence.
pub const ROUNDS_MIN: usize = 6;
/// Up to this many pairs, U's distribution is computed exactly; above, it is approximated as normal.
const PAIRS_COUNTED: usize = 400;

/// A median with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// How many samples it is of.
    pub samples: usize,
    /// Whether the interval contains the true median with 95 % confidence; if not, it spans all samples.
    pub confident: bool,
}

impl Estimate {
    /// Estimates the median of `samples`; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Estimate> {
        let sorted = ascending(samples);
        let trimmed = trimmed_for_median(sorted.len());
        Estimate::within(&sorted, samples.len(), trimmed)
    }

    /// Estimates the ratio of `new` to `old`, measured independently: the median ratio of all pairs (Hodges and
    /// Lehmann's estimate on a logarithmic scale). `None` if either has no samples, or `old` none above zero.
    pub fn of_ratio(old: &[f64], new: &[f64]) -> Option<Estimate> {
        let above_zero = old.iter().filter(|old| **old > 0.0);
        let ratios: Vec<f64> =
            above_zero.flat_map(|old| new.iter().map(move |new| new / old)).collect();
        let sorted = ascending(&ratios);
        let trimmed = trimmed_for_ratio(old.len(), new.len());
        Estimate::within(&sorted, old.len().min(new.len()), trimmed)
    }

    /// Returns the median of `sorted` and the interval after removing `trimmed` at each end.
    fn within(sorted: &[f64], samples: usize, trimmed: Option<usize>) -> Option<Estimate> {
        let cut = trimmed.unwrap_or(0);
        Some(Estimate {
            median: median_of_sorted(sorted)?,
            low: *sorted.get(cut)?,
            high: *sorted.get(sorted.len().checked_sub(cut + 1)?)?,
            samples,
            confident: trimmed.is_some(),
        })
    }

    /// Returns whether the interval excludes 1.
    pub fn differs(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Returns the middle sample, or the mean of the middle two; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    median_of_sorted(&ascending(samples))
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[sorted.len() / 2 - 1] + upper) / 2.0 })
}

fn ascending(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns how many of `count` sorted samples can be removed at each end while the rest contains the median
/// with 95 % confidence; `None` if even all of them do not.
fn trimmed_for_median(count: usize) -> Option<usize> {
    if count < ROUNDS_MIN {
        return None;
    }
    // The probability that at most `cut` samples are below the median.
    let (mut chance, mut at_most) = (0.5f64.powi(count as i32), 0.0);
    let mut cuts = None;
    for cut in 0..count / 2 {
        at_most += chance;
        if 2.0 * at_most > 1.0 - CONFIDENCE {
            break;
        }
        cuts = Some(cut);
        chance *= (count - cut) as f64 / (cut + 1) as f64;
    }
    // Beyond a thousand samples the first probability underflows; then all samples are kept.
    cuts
}

/// Returns how many sorted ratios of all pairs can be removed at each end.
fn trimmed_for_ratio(old: usize, new: usize) -> Option<usize> {
    let pairs = old * new;
    if pairs > PAIRS_COUNTED {
        let deviation = (pairs as f64 * (old + new + 1) as f64 / 12.0).sqrt();
        return Some((pairs as f64 / 2.0 - 1.96 * deviation).max(0.0) as usize);
    }
    let ways = ways_of_u(old, new);
    let all: f64 = ways.iter().sum();
    let mut at_most = 0.0;
    let mut cuts = None;
    for (cut, ways) in ways.iter().enumerate() {
        at_most += ways / all;
        if 2.0 * at_most > 1.0 - CONFIDENCE {
            break;
        }
        cuts = Some(cut);
    }
    cuts
}

/// Counts the orders of two samples for which U is 0, 1, 2, ...
fn ways_of_u(old: usize, new: usize) -> Vec<f64> {
    // Coefficients of the Gaussian binomial: the product of (1 - q^(new + i)) / (1 - q^i) for i up to `old`.
    let mut ways = vec![0.0; old * new + 1];
    ways[0] = 1.0;
    for i in 1..=old {
        for u in ((new + i)..ways.len()).rev() {
            ways[u] -= ways[u - new - i];
        }
        for u in i..ways.len() {
            ways[u] += ways[u - i];
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(count: usize) -> Vec<f64> {
        (1..=count).map(|n| n as f64).collect()
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn intervals_of_medians_are_those_of_the_tables() {
        // Published tables of the sign test's interval: 6 and 8 samples keep all, 9 drop one, 20 drop five.
        for (count, cut) in [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (20, Some(5))] {
            assert_eq!(trimmed_for_median(count), cut, "{count}");
        }
        let estimate = Estimate::of(&up_to(20)).expect("samples");
        assert_eq!((estimate.low, estimate.high, estimate.median), (6.0, 15.0, 10.5));
    }

    #[test]
    fn few_samples_make_no_promise() {
        let estimate = Estimate::of(&up_to(3)).expect("samples");
        assert_eq!((estimate.low, estimate.high, estimate.confident), (1.0, 3.0, false));
    }

    #[test]
    fn intervals_of_ratios_are_those_of_the_tables() {
        // The critical value of U at 5 %, two-sided, plus one gives the first pair that stays, and the last by
        // symmetry.
        for (old, new, critical) in
            [(4, 4, Some(0)), (5, 5, Some(2)), (8, 8, Some(13)), (3, 3, None)]
        {
            assert_eq!(trimmed_for_ratio(old, new), critical, "{old} and {new}");
        }
        assert_eq!(ways_of_u(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
    }

    #[test]
    fn the_normal_distribution_goes_on_where_counting_ends() {
        assert_eq!(trimmed_for_ratio(20, 20), Some(127));
        let beyond = trimmed_for_ratio(20, 21).expect("a cut");
        assert!((127..147).contains(&beyond), "{beyond}");
    }

    #[test]
    fn a_ratio_that_is_the_same_in_all_pairs_is_certain() {
        let old = up_to(6);
        let new: Vec<f64> = old.iter().map(|old| old * 100.0).collect();
        let estimate = Estimate::of_ratio(&old, &new).expect("samples");
        assert!(estimate.low > 1.0 && estimate.differs() && estimate.confident);
        let same = Estimate::of_ratio(&old, &old).expect("samples");
        assert!(!same.differs() && (same.median - 1.0).abs() < 1e-9);
        assert_eq!(Estimate::of_ratio(&[0.0], &[1.0]), None);
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        // A multiplicative generator with a fixed seed; the samples' true median is 0.5.
        let mut state = 42u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let holds = (0..2000).filter(|_| {
            let samples: Vec<f64> = (0..9).map(|_| next()).collect();
            let estimate = Estimate::of(&samples).expect("samples");
            estimate.low <= 0.5 && 0.5 <= estimate.high
        });
        // 96.1 % by the formula.
        assert!((1890..1955).contains(&holds.count()));
    }
}
