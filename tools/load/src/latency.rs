//! Counts latencies: a histogram with three significant digits, and exact minimum, maximum, mean and deviation.
//!
//! Nothing allocates after construction.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// The histogram's upper bound; percentiles count longer latencies as this long.
const LATENCY_NS_MAX: u64 = 1 << 40;

/// The percentiles that reports give unless others are requested: those of fio.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: f64,
    sum_squares: f64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    /// Creates it without a latency.
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("the bounds are valid");
        Latency { histogram, min_ns: u64::MAX, max_ns: 0, sum_ns: 0.0, sum_squares: 0.0 }
    }

    /// Records a latency.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.record_many(latency_ns, 1);
    }

    /// Records `count` equal latencies.
    #[inline]
    pub fn record_many(&mut self, latency_ns: u64, count: u64) {
        self.histogram.saturating_record_n(latency_ns, count);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        let (ns, times) = (latency_ns as f64, count as f64);
        self.sum_ns += ns * times;
        self.sum_squares += ns * ns * times;
    }

    /// Returns each latency that occurred, to the histogram's resolution, with its count; ascending.
    pub fn bins(&self) -> impl Iterator<Item = (u64, u64)> {
        let bins = self.histogram.iter_recorded();
        bins.map(|bin| (bin.value_iterated_to().min(self.max_ns), bin.count_at_value()))
    }

    /// Adds the latencies of `other`.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.sum_squares += other.sum_squares;
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the minimum; 0 without latencies.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// Returns the maximum; 0 without latencies.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the mean; 0 without latencies.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns / self.count() as f64 }
    }

    /// Returns the sample standard deviation.
    pub fn deviation_ns(&self) -> f64 {
        let count = self.count() as f64;
        if count < 2.0 {
            return 0.0;
        }
        ((self.sum_squares - self.sum_ns * self.sum_ns / count) / (count - 1.0)).max(0.0).sqrt()
    }

    /// Returns the latency that `percent` of all do not exceed.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent).min(self.max_ns)
    }

    /// Counts latencies below `ns`, to the histogram's resolution.
    pub fn count_below(&self, ns: u64) -> u64 {
        if self.count() == 0 || ns == 0 { 0 } else { self.histogram.count_between(0, ns - 1) }
    }

    /// Formats them as fio does: moments, and the percentiles of `list` if there are any latencies.
    pub fn moments(&self, list: &[f64]) -> Value {
        let mut value = json!({
            "min": self.min_ns(),
            "max": self.max_ns(),
            "mean": self.mean_ns(),
            "stddev": self.deviation_ns(),
            "N": self.count(),
        });
        if !list.is_empty() && self.count() > 0 {
            let named = list.iter().map(|p| (format!("{p:.6}"), self.percentile_ns(*p).into()));
            value["percentile"] = named.collect::<Map<_, _>>().into();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_knows_its_moments() {
        let mut latency = Latency::new();
        for ns in [100, 200, 300] {
            latency.record(ns);
        }
        assert_eq!((latency.min_ns(), latency.max_ns(), latency.count()), (100, 300, 3));
        assert!((latency.mean_ns() - 200.0).abs() < 1e-9);
        assert!((latency.deviation_ns() - 100.0).abs() < 1e-9);
        assert_eq!(latency.percentile_ns(50.0), 200);
        assert_eq!(latency.percentile_ns(99.99), 300);
    }

    #[test]
    fn no_latency_is_all_zero() {
        let latency = Latency::new();
        assert_eq!((latency.min_ns(), latency.max_ns(), latency.percentile_ns(99.0)), (0, 0, 0));
        assert_eq!((latency.mean_ns(), latency.deviation_ns()), (0.0, 0.0));
        assert_eq!(latency.count_below(1000), 0);
    }

    #[test]
    fn merging_is_recording_all() {
        let (mut a, mut b) = (Latency::new(), Latency::new());
        a.record(5);
        b.record(5_000_000_000_000);
        a.merge(&b);
        assert_eq!((a.count(), a.min_ns(), a.max_ns()), (2, 5, 5_000_000_000_000));
        assert_eq!(a.count_below(100), 1);
    }
}
