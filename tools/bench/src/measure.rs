//! A job's counts while it runs: transfers, rates over time, depths.

use std::collections::BTreeMap;
use std::time::Duration;

/// Returns a count per second; 0 in no time.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Rates over the run, sampled by interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) kib_per_second: Series,
    pub(crate) iops: Series,
    /// All samples in order.
    pub(crate) points: Vec<RatePoint>,
}

/// The rates of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RatePoint {
    /// The interval's end, in milliseconds from the start of the run. Jobs that are merged are sampled at the
    /// same times; intervals with different ends stay apart.
    pub(crate) at_ms: u64,
    pub(crate) bytes_per_second: f64,
    pub(crate) iops: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, at_ms: u64, bytes: u64, ios: u64, interval: Duration) {
        let (bytes_per_second, iops) = (per_second(bytes, interval), per_second(ios, interval));
        self.add(RatePoint { at_ms, bytes_per_second, iops });
    }

    /// Returns the samples of a job that has ended: none if it did no such I/O at all; without those before its first I/O
    /// and after its last if it `has_phases`, of which the others do no such I/O.
    pub(crate) fn settled(self, has_phases: bool) -> Samples {
        let moved = |point: &RatePoint| point.iops > 0.0;
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
    pub(crate) fn merge(&mut self, other: &Samples) {
        let mut sums: BTreeMap<u64, RatePoint> = BTreeMap::new();
        for point in self.points.iter().chain(&other.points) {
            let none = RatePoint { at_ms: point.at_ms, bytes_per_second: 0.0, iops: 0.0 };
            let sum = sums.entry(point.at_ms).or_insert(none);
            sum.bytes_per_second += point.bytes_per_second;
            sum.iops += point.iops;
        }
        *self = Samples::default();
        sums.into_values().for_each(|point| self.add(point));
    }

    fn add(&mut self, point: RatePoint) {
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

/// Returns a part of a whole in percent; 0 if the whole is 0.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
