//! `latency_target`: searches the greatest depth at which enough I/Os are fast enough.
//!
//! Tries each depth for a window. Doubles the depth while the target holds, then halves the range between the
//! greatest good and the smallest bad depth.

use adit_driver::Time;

use crate::options::LatencyTarget;

/// The search of one job.
#[derive(Clone, Debug)]
pub(crate) struct DepthSearch {
    options: LatencyTarget,
    depth: u32,
    /// The greatest good depth, 0 before the first.
    good: u32,
    /// The smallest depth known or assumed to be bad.
    bad: u32,
    window_start: Time,
    ios: u64,
    slow: u64,
    is_over: bool,
}

impl DepthSearch {
    /// Starts a search up to `depth_max`.
    pub(crate) fn new(options: LatencyTarget, depth_max: u32, now: Time) -> DepthSearch {
        DepthSearch {
            options,
            depth: 1,
            good: 0,
            bad: depth_max + 1,
            window_start: now,
            ios: 0,
            slow: 0,
            is_over: false,
        }
    }

    /// Returns how many I/Os may be in flight now.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Counts an I/O.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.ios += 1;
        self.slow += u64::from(u128::from(latency_ns) > self.options.target.as_nanos());
    }

    /// Evaluates the window if it is over; returns true when the search ends, which also ends the job.
    pub(crate) fn look(&mut self, now: Time) -> bool {
        if self.is_over || now.since(self.window_start) < self.options.window || self.ios == 0 {
            return false;
        }
        let fast_percent = (self.ios - self.slow) as f64 * 100.0 / self.ios as f64;
        if fast_percent >= self.options.percentile {
            self.good = self.depth;
        } else {
            self.bad = self.depth;
        }
        (self.window_start, self.ios, self.slow) = (now, 0, 0);
        self.is_over = self.bad - self.good <= 1;
        self.depth = if self.is_over { self.good.max(1) } else { self.next() };
        self.is_over && !self.options.run
    }

    fn next(&self) -> u32 {
        let doubled = self.depth.saturating_mul(2);
        if self.good == self.depth && doubled < self.bad {
            doubled
        } else {
            (self.good + self.bad) / 2
        }
    }

    /// Returns the greatest good depth; `None` if even 1 was bad.
    pub(crate) fn found(&self) -> Option<u32> {
        (self.good > 0).then_some(self.good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const OPTIONS: LatencyTarget = LatencyTarget {
        target: Duration::from_micros(100),
        window: Duration::from_millis(10),
        percentile: 99.0,
        run: false,
    };

    /// Searches on a device that is fast enough up to depth `limit`; returns the depth found and the number of
    /// windows.
    fn search(limit: u32, depth_max: u32) -> (Option<u32>, u32) {
        let mut search = DepthSearch::new(OPTIONS, depth_max, Time::ZERO);
        for window in 1.. {
            for io in 0..1000 {
                let is_slow = search.depth() > limit && io % 50 == 0;
                search.record(if is_slow { 100_001 } else { 100_000 });
            }
            if search.look(Time::from_ns(window * 10_000_000)) {
                return (search.found(), window as u32);
            }
        }
        unreachable!("the range shrinks with each window")
    }

    proptest! {
        #[test]
        fn the_greatest_good_depth_is_found(limit in 0u32..300, depth_max in 1u32..300) {
            let (found, windows) = search(limit, depth_max);
            prop_assert_eq!(found, Some(limit.min(depth_max)).filter(|depth| *depth > 0));
            prop_assert!(windows <= 20, "{} windows", windows);
        }
    }

    #[test]
    fn a_window_that_is_not_over_decides_nothing() {
        let mut search = DepthSearch::new(OPTIONS, 8, Time::ZERO);
        search.record(1);
        assert!(!search.look(Time::from_ns(9_999_999)));
        assert_eq!((search.depth(), search.found()), (1, None));
    }
}
