//! A job's counts while it runs: latencies, transfers, depths.
//!
//! Nothing allocates after construction. Latencies go into a histogram with three significant digits up to
//! [`LATENCY_NS_MAX`]; minimum, maximum, mean and deviation are exact.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::outcome::WayOutcome;

/// The histogram's upper bound; percentiles count longer latencies as this long.
const LATENCY_NS_MAX: u64 = 1 << 40;

/// Latencies of one way.
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
    /// Without a value.
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("the bounds are valid");
        Latency { histogram, min_ns: u64::MAX, max_ns: 0, sum_ns: 0.0, sum_squares: 0.0 }
    }

    /// Counts one.
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
    pub(crate) fn bins(&self) -> impl Iterator<Item = (u64, u64)> {
        let bins = self.histogram.iter_recorded();
        bins.map(|bin| (bin.value_iterated_to().min(self.max_ns), bin.count_at_value()))
    }

    /// Adds those of `other`.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.sum_squares += other.sum_squares;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the minimum; 0 without latencies.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// The longest; 0 without any.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean; 0 without any.
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
    pub(crate) fn count_below(&self, ns: u64) -> u64 {
        if self.count() == 0 || ns == 0 { 0 } else { self.histogram.count_between(0, ns - 1) }
    }
}

impl WayOutcome {
    pub(crate) fn new() -> WayOutcome {
        WayOutcome {
            bytes: 0,
            ios: 0,
            runtime: Duration::ZERO,
            slat: Latency::new(),
            clat: Latency::new(),
            lat: Latency::new(),
            samples: Samples::default(),
        }
    }

    /// I/Os per second of its runtime.
    pub fn iops(&self) -> f64 {
        per_second(self.ios, self.runtime)
    }

    /// Bytes per second of its runtime.
    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.runtime)
    }

    /// Adds another job's counts; the jobs ran concurrently.
    pub(crate) fn merge(&mut self, other: &WayOutcome) {
        self.bytes += other.bytes;
        self.ios += other.ios;
        self.runtime = self.runtime.max(other.runtime);
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        self.samples.merge(&other.samples);
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Rates over the run, sampled by interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) kib_per_second: Series,
    pub(crate) iops: Series,
    /// All samples in order.
    pub(crate) points: Vec<Point>,
}

/// The rates of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// The interval's end, in milliseconds from the start of the run. Jobs that are merged are sampled at the
    /// same times; intervals with different ends stay apart.
    pub(crate) at_ms: u64,
    pub(crate) bytes_per_second: f64,
    pub(crate) iops: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, at_ms: u64, bytes: u64, ios: u64, interval: Duration) {
        let (bytes_per_second, iops) = (per_second(bytes, interval), per_second(ios, interval));
        self.add(Point { at_ms, bytes_per_second, iops });
    }

    /// Returns the samples of a job that has ended: none if it did no such I/O at all; without those before its first I/O
    /// and after its last if it `has_phases`, of which the others do no such I/O.
    pub(crate) fn settled(self, has_phases: bool) -> Samples {
        let moved = |point: &Point| point.iops > 0.0;
        let (first, last) =
            (self.points.iter().position(moved), self.points.iter().rposition(moved));
        let (Some(first), Some(last)) = (first, last) else { return Samples::default() };
        if !has_phases {
            return self;
        }
        let mut settled = Samples::default();
        self.points[first..=last].iter().for_each(|point| settled.add(*point));
        settled
    }

    /// Adds another job's or way's samples; rates of the same interval are summed.
    fn merge(&mut self, other: &Samples) {
        let mut sums: BTreeMap<u64, Point> = BTreeMap::new();
        for point in self.points.iter().chain(&other.points) {
            let none = Point { at_ms: point.at_ms, bytes_per_second: 0.0, iops: 0.0 };
            let sum = sums.entry(point.at_ms).or_insert(none);
            sum.bytes_per_second += point.bytes_per_second;
            sum.iops += point.iops;
        }
        *self = Samples::default();
        sums.into_values().for_each(|point| self.add(point));
    }

    fn add(&mut self, point: Point) {
        self.kib_per_second.push(point.bytes_per_second / 1024.0);
        self.iops.push(point.iops);
        self.points.push(point);
    }
}

/// Minimum, maximum, mean and deviation of some numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    sum: f64,
    sum_squares: f64,
}

impl Series {
    fn push(&mut self, value: f64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum += value;
        self.sum_squares += value * value;
    }

    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    pub(crate) fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = self.count as f64;
        ((self.sum_squares - self.sum * self.sum / count) / (count - 1.0)).max(0.0).sqrt()
    }
}

/// Counts of depths or batch sizes, by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// The count of 0; then for each power of two up to 64, its own count and that of the numbers up to the
    /// next. fio's depth classes begin with a power of two, its batch classes end with one.
    counts: [u64; 15],
}

impl Levels {
    #[inline]
    pub(crate) fn record(&mut self, level: usize) {
        self.record_many(level, 1);
    }

    #[inline]
    pub(crate) fn record_many(&mut self, level: usize, times: usize) {
        let bucket = match level.checked_ilog2() {
            None => 0,
            Some(log @ ..6) => 2 * log + 1 + u32::from(!level.is_power_of_two()),
            Some(_) => 13 + u32::from(level > 64),
        };
        self.counts[bucket as usize] += times as u64;
    }

    pub(crate) fn merge(&mut self, other: &Levels) {
        for (ours, theirs) in self.counts.iter_mut().zip(other.counts) {
            *ours += theirs;
        }
    }

    /// Returns the total count.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the percentages of depth 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 to 63, and 64 or more.
    pub(crate) fn depth_percent(&self) -> [f64; 7] {
        let total = self.counts[1..].iter().sum();
        let at = |i: usize| self.counts[2 * i + 1] + self.counts[2 * i + 2];
        std::array::from_fn(|i| percent(at(i), total))
    }

    /// Returns the percentages of batches of 0, up to 4, 8, 16, 32, 64, and more.
    pub(crate) fn batch_percent(&self) -> [f64; 7] {
        let total = self.counts.iter().sum();
        let upto_4 = self.counts[1..6].iter().sum();
        let upto = |power: usize| self.counts[2 * power] + self.counts[2 * power + 1];
        [self.counts[0], upto_4, upto(3), upto(4), upto(5), upto(6), self.counts[14]]
            .map(|count| percent(count, total))
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
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

    #[test]
    fn rates_of_jobs_side_by_side_are_summed() {
        let half = Duration::from_millis(500);
        let (mut a, mut b) = (Samples::default(), Samples::default());
        a.push(500, 1 << 20, 100, half);
        a.push(1000, 1 << 20, 100, half);
        b.push(1000, 1 << 20, 50, half);
        a.merge(&b);
        assert_eq!((a.points[0].at_ms, a.points[0].iops), (500, 200.0));
        assert_eq!((a.points[1].at_ms, a.points[1].iops), (1000, 300.0));
        assert_eq!((a.iops.count, a.iops.min, a.iops.max, a.iops.mean()), (2, 200.0, 300.0, 250.0));
        assert_eq!(a.kib_per_second.max, 4096.0);
    }

    #[test]
    fn levels_fall_into_powers_of_two() {
        let mut levels = Levels::default();
        for level in [1, 2, 3, 32, 63, 64, 1000] {
            levels.record(level);
        }
        let sevenths = [1.0, 2.0, 0.0, 0.0, 0.0, 2.0, 2.0].map(|n| n * 100.0 / 7.0);
        assert_eq!(levels.depth_percent(), sevenths);
    }

    #[test]
    fn batches_end_with_powers_of_two() {
        for (level, class) in [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (16, 3)]
            .into_iter()
            .chain([(17, 4), (32, 4), (33, 5), (63, 5), (64, 5), (65, 6), (1 << 40, 6)])
        {
            let mut levels = Levels::default();
            levels.record(level);
            let at = levels.batch_percent().iter().position(|share| *share == 100.0);
            assert_eq!(at, Some(class), "a batch of {level}");
        }
    }
}
