//! `steadystate`: detects when the last seconds were alike.

use std::collections::VecDeque;
use std::time::Duration;

use crate::options::{SteadyOf, SteadyState};
use crate::outcome::SteadyOutcome;

/// A sliding window over one job's seconds.
#[derive(Clone, Debug)]
pub(crate) struct Steady {
    options: SteadyState,
    /// I/Os and bytes of each second, the latest last.
    seconds: VecDeque<(u64, u64)>,
    attained: bool,
}

impl Steady {
    /// Creates an empty window.
    pub(crate) fn new(options: SteadyState) -> Steady {
        Steady { options, seconds: VecDeque::new(), attained: false }
    }

    /// Adds the second that ended when the job had run for `at`; returns true once it is steady.
    pub(crate) fn push(&mut self, at: Duration, ios: u64, bytes: u64) -> bool {
        if at <= self.options.ramp {
            return false;
        }
        let window = self.options.duration.as_secs().max(1) as usize;
        if self.seconds.len() == window {
            self.seconds.pop_front();
        }
        self.seconds.push_back((ios, bytes));
        self.attained |= self.seconds.len() == window && self.criterion() <= self.options.limit;
        self.attained
    }

    /// Returns the reported figures.
    pub(crate) fn outcome(&self) -> SteadyOutcome {
        SteadyOutcome {
            attained: self.attained,
            slope: self.slope(),
            deviation: self.deviation(),
            criterion: self.criterion(),
            iops: self.seconds.iter().map(|second| second.0).collect(),
            bytes: self.seconds.iter().map(|second| second.1).collect(),
        }
    }

    /// Returns the value to compare with the limit.
    fn criterion(&self) -> f64 {
        let value = match self.options.of {
            SteadyOf::IopsSlope | SteadyOf::BandwidthSlope => self.slope().abs(),
            SteadyOf::Iops | SteadyOf::Bandwidth => self.deviation(),
        };
        let mean = self.mean();
        match self.options.in_percent {
            true if mean > 0.0 => value * 100.0 / mean,
            _ => value,
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let of_ios = matches!(self.options.of, SteadyOf::Iops | SteadyOf::IopsSlope);
        self.seconds.iter().map(move |(ios, bytes)| if of_ios { *ios } else { *bytes } as f64)
    }

    fn mean(&self) -> f64 {
        self.values().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Returns the greatest deviation of a second from the mean.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        self.values().map(|value| (value - mean).abs()).fold(0.0, f64::max)
    }

    /// Returns the slope of the least-squares line, per second.
    fn slope(&self) -> f64 {
        let count = self.seconds.len() as f64;
        let (middle, mean) = ((count - 1.0) / 2.0, self.mean());
        let (mut above, mut below) = (0.0, 0.0);
        for (second, value) in self.values().enumerate() {
            above += (second as f64 - middle) * (value - mean);
            below += (second as f64 - middle) * (second as f64 - middle);
        }
        if below == 0.0 { 0.0 } else { above / below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(of: SteadyOf, limit: f64, in_percent: bool) -> Steady {
        let (duration, ramp) = (Duration::from_secs(4), Duration::from_secs(1));
        Steady::new(SteadyState { of, limit, in_percent, duration, ramp })
    }

    /// Returns after how many seconds these IOPS are steady.
    fn after(mut steady: Steady, iops: &[u64]) -> Option<usize> {
        let at = |second: usize| Duration::from_secs(second as u64 + 1);
        iops.iter().enumerate().position(|(second, ios)| steady.push(at(second), *ios, ios * 4096))
    }

    #[test]
    fn even_seconds_are_steady_once_the_window_is_full() {
        assert_eq!(
            after(steady(SteadyOf::Iops, 1.0, true), &[9, 100, 100, 100, 100, 100]),
            Some(4)
        );
        assert_eq!(
            after(steady(SteadyOf::Bandwidth, 1.0, true), &[9, 50, 100, 100, 100, 100]),
            Some(5)
        );
    }

    #[test]
    fn a_trend_is_not_steady_though_it_is_slow() {
        let rising: Vec<u64> = (0..20).map(|second| 1000 + second * 10).collect();
        assert_eq!(after(steady(SteadyOf::IopsSlope, 0.5, true), &rising), None);
        assert_eq!(after(steady(SteadyOf::IopsSlope, 10.0, false), &rising), Some(4));
    }

    #[test]
    fn the_slope_is_that_of_the_least_squares_line() {
        let mut steady = steady(SteadyOf::IopsSlope, 0.0, false);
        for (second, ios) in [1, 3, 2, 4].into_iter().enumerate() {
            steady.push(Duration::from_secs(second as u64 + 2), ios, 0);
        }
        assert!((steady.outcome().slope - 0.8).abs() < 1e-9, "{}", steady.outcome().slope);
        assert_eq!(steady.outcome().iops, [1, 3, 2, 4]);
    }
}
