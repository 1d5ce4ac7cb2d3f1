//! Latencies counted in a few fixed buckets, which sum up over owners and need no conversion for Prometheus.
//!
//! The driver's histogram of a queue pair is exact to two digits and takes tens of kilobytes. This one takes 200 bytes
//! and a dozen instructions per record, so that every device and every kind of request has one.

use std::ops::AddAssign;
use std::time::Duration;

use adit_driver::Time;

/// The upper bound of the first bucket is 2^`FIRST` microseconds; each next one is twice as large.
const FIRST: usize = 2;
/// Buckets with an upper bound: 4 us to 8.4 s.
const BOUNDED: usize = 22;
/// All buckets; the last one has no upper bound.
pub(crate) const BUCKETS: usize = BOUNDED + 1;

/// A histogram of latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latencies {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Latencies {
    /// Creates a histogram of counts by [`bucket`].
    pub(crate) fn of(counts: [u64; BUCKETS], sum_ns: u64) -> Latencies {
        Latencies { counts, sum_ns }
    }

    /// Counts the time from `since` to `now`.
    #[inline]
    pub(crate) fn record(&mut self, since: Time, now: Time) {
        let ns = now.as_ns().saturating_sub(since.as_ns());
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Returns the number of latencies.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns their sum.
    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns each upper bound, with the number of latencies that do not exceed it.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut below = 0;
        self.counts[..BOUNDED].iter().enumerate().map(move |(index, count)| {
            below += count;
            (Duration::from_micros(1 << (FIRST + index)), below)
        })
    }
}

impl AddAssign for Latencies {
    fn add_assign(&mut self, other: Latencies) {
        self.counts.iter_mut().zip(other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// Returns the bucket of a latency: the first whose upper bound it does not exceed.
#[inline]
pub(crate) fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - (ns.saturating_sub(1) / 1000).leading_zeros();
    (bits as usize).saturating_sub(FIRST).min(BOUNDED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_counts_from_the_first_bound_that_it_does_not_exceed(ns in any::<u64>(), bits in 0u32..64) {
            let ns = ns >> bits;
            let mut latencies = Latencies::default();
            latencies.record(Time::ZERO, Time::from_ns(ns));
            for (bound, below) in latencies.cumulative() {
                prop_assert_eq!(below == 1, u128::from(ns) <= bound.as_nanos(), "{} ns, {:?}", ns, bound);
            }
            prop_assert_eq!((latencies.count(), latencies.sum()), (1, Duration::from_nanos(ns)));
        }
    }

    #[test]
    fn bounds_double_and_belong_to_their_own_bucket() {
        let bounds: Vec<Duration> =
            Latencies::default().cumulative().map(|(bound, _)| bound).collect();
        assert_eq!((bounds[0], bounds.len()), (Duration::from_micros(4), BOUNDED));
        assert!(bounds.windows(2).all(|two| two[1] == two[0] * 2));
        for (index, bound) in bounds.into_iter().enumerate() {
            let ns = bound.as_nanos() as u64;
            assert_eq!((bucket(ns), bucket(ns + 1)), (index, index + 1));
        }
    }

    #[test]
    fn sums_take_every_bucket() {
        let mut sum = Latencies::default();
        for exponent in 0..40 {
            let mut one = Latencies::default();
            one.record(Time::from_ns(7), Time::from_ns(7 + (1 << exponent)));
            sum += one;
        }
        assert_eq!(sum.count(), 40);
        assert_eq!(sum.sum(), Duration::from_nanos((1 << 40) - 1));
    }
}
