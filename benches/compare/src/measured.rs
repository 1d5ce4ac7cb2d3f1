//! The results of a phase.

use std::time::Duration;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::options::Phase;

/// Longest latency that is resolved: 100 s.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// The result of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The requested object.
    Right,
    /// Other bytes.
    Wrong,
    /// No object.
    Miss,
}

/// The counters of workers while a phase runs.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    pub(crate) misses: u64,
    pub(crate) wrong: u64,
    /// In nanoseconds, of gets; in a fill, of puts.
    latency: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        // A fixed range, because a saturating histogram does not grow.
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        let latency = latency.expect("a range and three digits that are allowed");
        Tally { gets: 0, puts: 0, misses: 0, wrong: 0, latency }
    }

    pub(crate) fn got(&mut self, found: Found, took: Duration) {
        self.gets += 1;
        self.misses += u64::from(found == Found::Miss);
        self.wrong += u64::from(found == Found::Wrong);
        self.latency.saturating_record(took.as_nanos() as u64);
    }

    /// Counts a put; `took` is given in phases that measure puts.
    pub(crate) fn put(&mut self, took: Option<Duration>) {
        self.puts += 1;
        if let Some(took) = took {
            self.latency.saturating_record(took.as_nanos() as u64);
        }
    }

    /// # Errors
    /// Never for tallies of this program, which all have the same digits.
    pub(crate) fn add(&mut self, other: &Tally) -> Result<()> {
        self.gets += other.gets;
        self.puts += other.puts;
        self.misses += other.misses;
        self.wrong += other.wrong;
        Ok(self.latency.add(&other.latency)?)
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// The time a phase took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Wall-clock seconds.
    pub(crate) seconds: f64,
    /// CPU seconds, user and system.
    pub(crate) processor: (f64, f64),
}

/// One phase of one engine in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) phase: Phase,
    pub(crate) seconds: f64,
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    pub(crate) misses: u64,
    pub(crate) wrong: u64,
    /// Gets that the engine's own memory answered, if it counts them.
    pub(crate) memory_hits: Option<u64>,
    /// Bytes found or put, in millions per second.
    pub(crate) mb_per_second: f64,
    pub(crate) processor_user_seconds: f64,
    pub(crate) processor_system_seconds: f64,
    /// CPU seconds per 10^9 of these bytes.
    pub(crate) processor_seconds_per_gb: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
}

impl Measured {
    /// # Errors
    /// If nothing was found and nothing put, which gives no figure.
    pub(crate) fn new(
        phase: Phase,
        tally: &Tally,
        memory_hits: Option<u64>,
        cost: Cost,
        object_bytes: u64,
    ) -> Result<Measured> {
        let moved = tally.gets - tally.misses + tally.puts;
        if moved == 0 {
            bail!(
                "{}: not one object was found or put, so that there is nothing to compare",
                phase.title()
            );
        }
        let gb = (moved * object_bytes) as f64 / 1e9;
        let (user, system) = cost.processor;
        Ok(Measured {
            phase,
            seconds: cost.seconds,
            gets: tally.gets,
            puts: tally.puts,
            misses: tally.misses,
            wrong: tally.wrong,
            memory_hits,
            mb_per_second: gb * 1e3 / cost.seconds,
            processor_user_seconds: user,
            processor_system_seconds: system,
            processor_seconds_per_gb: (user + system) / gb,
            p50_us: tally.quantile_us(0.5),
            p99_us: tally.quantile_us(0.99),
            p99_9_us: tally.quantile_us(0.999),
        })
    }

    /// Returns the share of gets that the engine's own memory answered, if it counts them and there were gets.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        self.memory_hits.filter(|_| self.gets > 0).map(|hits| hits as f64 / self.gets as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost { seconds: 2.0, processor: (0.25, 0.75) };

    #[test]
    fn rates_count_what_was_found_and_put_but_no_misses() {
        let mut tally = Tally::new();
        for found in [Found::Right, Found::Miss, Found::Right] {
            tally.got(found, Duration::from_micros(100));
        }
        tally.put(None);
        tally.put(None);
        let measured =
            Measured::new(Phase::Mixed, &tally, Some(1), COST, 500_000_000).expect("moved");
        assert_eq!((measured.gets, measured.puts, measured.misses), (3, 2, 1));
        assert!((measured.hit_ratio().expect("counted") - 1.0 / 3.0).abs() < 1e-9);
        assert!((measured.mb_per_second - 1000.0).abs() < 1e-9, "{measured:?}");
        assert!((measured.processor_seconds_per_gb - 0.5).abs() < 1e-9, "{measured:?}");
    }

    #[test]
    fn latencies_of_all_workers_are_one_distribution() {
        let (mut all, mut other) = (Tally::new(), Tally::new());
        (0..99).for_each(|_| all.got(Found::Right, Duration::from_micros(100)));
        other.got(Found::Right, Duration::from_millis(9));
        all.add(&other).expect("the same digits");
        let measured =
            Measured::new(Phase::Uniform, &all, None, COST, 4096).expect("something moved");
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.002;
        assert!(near(measured.p50_us, 100.0) && near(measured.p99_us, 100.0), "{measured:?}");
        assert!(near(measured.p99_9_us, 9000.0), "{measured:?}");
    }

    #[test]
    fn a_phase_that_found_nothing_is_no_measurement() {
        let mut tally = Tally::new();
        tally.got(Found::Miss, Duration::from_micros(1));
        let why = Measured::new(Phase::Uniform, &tally, None, COST, 4096).expect_err("nothing");
        assert!(why.to_string().contains("not one object"), "{why}");
    }
}
