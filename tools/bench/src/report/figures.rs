//! Figures that reports compute from the counts.

use std::borrow::Cow;
use std::time::Duration;

use crate::measure::percent;
use crate::options::JobOptions;
use crate::outcome::{JobOutcome, RunOutcome, WayOutcome};
use crate::way::Way;
use adit_load::Latency;

/// The version, printed where fio prints its own.
pub(super) const VERSION: &str = concat!("adit-", env!("CARGO_PKG_VERSION"));

/// Upper bounds of fio's latency classes in nanoseconds and microseconds.
pub(super) const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
/// Upper bounds in milliseconds; longer latencies form a class of their own.
pub(super) const CLASSES_MS: [u64; 11] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000];

/// Names of fio's depth classes.
pub(super) const DEPTHS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// Names of fio's batch classes.
pub(super) const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

/// Percentages of latencies by class, 100 in total unless there are none.
#[derive(Debug, Default)]
pub(super) struct Classes {
    /// Up to each of [`CLASSES`] nanoseconds.
    pub(super) ns: Vec<f64>,
    /// Above a microsecond, up to each of [`CLASSES`] microseconds.
    pub(super) us: Vec<f64>,
    /// Above a millisecond, up to each of [`CLASSES_MS`] milliseconds.
    pub(super) ms: Vec<f64>,
    /// Two seconds and longer.
    pub(super) slow: f64,
}

impl Classes {
    /// Classifies latencies.
    pub(super) fn of(latency: &Latency) -> Classes {
        let mut below = 0;
        let mut shares = |unit_ns: u64, ends: &[u64]| {
            let share = |end: &u64| {
                let upto = latency.count_below(end * unit_ns);
                let inside = upto.saturating_sub(below);
                below = below.max(upto);
                percent(inside, latency.count())
            };
            ends.iter().map(share).collect()
        };
        let (ns, us) = (shares(1, &CLASSES), shares(1_000, &CLASSES));
        let ms = shares(1_000_000, &CLASSES_MS);
        Classes { ns, us, ms, slow: percent(latency.count() - below, latency.count()) }
    }
}

/// Returns the truncated mean; 0 for no numbers.
pub(super) fn mean(numbers: &[u64]) -> u64 {
    let sum: u128 = numbers.iter().map(|number| u128::from(*number)).sum();
    sum.checked_div(numbers.len() as u128).unwrap_or(0) as u64
}

/// Rounds a nonzero share up to `least`, so that it does not show as 0.
pub(super) fn at_least(percent: f64, least: f64) -> f64 {
    if percent > 0.0 { percent.max(least) } else { 0.0 }
}

/// A way of a job as reported, or all ways merged.
#[derive(Debug)]
pub(super) struct ToldWay<'a> {
    /// `read`, `write`, `trim` or `mixed`.
    pub(super) name: &'static str,
    /// The way; `None` for `mixed`.
    pub(super) way: Option<Way>,
    pub(super) counted: Cow<'a, WayOutcome>,
    /// The sampled mean as a percentage of the group's rate; 0 without samples.
    pub(super) sampled_share: f64,
}

/// Returns the job's three ways, or one merged way with `unified_rw_reporting`.
pub(super) fn told<'a>(outcome: &RunOutcome, job: &'a JobOutcome) -> Vec<ToldWay<'a>> {
    let one = |name, way, counted: Cow<'a, WayOutcome>| {
        let sampled_share = sampled_share(&counted, group_rate(outcome, job.group, way));
        ToldWay { name, way, counted, sampled_share }
    };
    if job.section.job.reports.unified_rw_reporting {
        return vec![one("mixed", None, Cow::Owned(mixed(job)))];
    }
    job.ways.iter().map(|(way, it)| one(way.name(), Some(way), Cow::Borrowed(it))).collect()
}

/// Merges all ways of a job.
pub(super) fn mixed(job: &JobOutcome) -> WayOutcome {
    let mut all = WayOutcome::default();
    Way::ALL.iter().for_each(|way| all.merge(&job.ways[*way]));
    all
}

/// Returns a group's bytes per second in one way or all.
fn group_rate(outcome: &RunOutcome, group: u32, way: Option<Way>) -> f64 {
    let groups = outcome.groups.iter().filter(|of| of.group == group);
    let ways = groups.flat_map(|of| &of.ways).filter(|(of, _)| way.is_none_or(|way| way == **of));
    ways.map(|(_, of)| of.rate).sum()
}

/// Returns the sampled mean as a percentage of a rate in bytes per second.
fn sampled_share(way: &WayOutcome, whole: f64) -> f64 {
    let samples = &way.samples.kib_per_second;
    if whole == 0.0 || samples.count == 0 {
        return 0.0;
    }
    (samples.mean() * 1024.0 * 100.0 / whole).min(100.0)
}

/// Returns the latencies fio's classes count: total latencies of all ways, or completion latencies if totals
/// are not measured.
pub(super) fn all_latencies(job: &JobOutcome) -> Latency {
    let all = mixed(job);
    if all.lat.count() > 0 { all.lat } else { all.clat }
}

/// Returns the I/Os of all ways.
pub(super) fn total_ios(job: &JobOutcome) -> u64 {
    job.ways.iter().map(|(_, way)| way.ios).sum()
}

/// Returns the summed run time of the job's threads.
pub(super) fn threads_time(job: &JobOutcome) -> Duration {
    job.elapsed * job.threads.max(1)
}

/// Returns user and system time in percent of the threads' run time.
pub(super) fn cpu_percents(job: &JobOutcome) -> (f64, f64) {
    let ran_us = threads_time(job).as_micros().max(1) as f64;
    let share = |us: i64| us as f64 * 100.0 / ran_us;
    (share(job.cpu.user_us), share(job.cpu.system_us))
}

/// Returns CPU time per I/O in nanoseconds; 0 without I/Os.
pub(super) fn cpu_ns_per_io(job: &JobOutcome) -> f64 {
    match total_ios(job) {
        0 => 0.0,
        ios => (job.cpu.user_us + job.cpu.system_us) as f64 * 1000.0 / ios as f64,
    }
}

/// Returns the percentage of sampled reads that returned only zeroes; `None` without samples.
pub(super) fn zero_reads_percent(job: &JobOutcome) -> Option<f64> {
    let (sampled, zeroes) = job.sampled_reads;
    (sampled > 0).then(|| percent(zeroes, sampled))
}

/// Returns `latency_target` in nanoseconds, `latency_window` in microseconds, `latency_percentile`, and the
/// depth.
pub(super) fn latency_target(job: &JobOutcome) -> (u64, u64, f64, u32) {
    let depth = job.latency_depth.unwrap_or(job.section.job.iodepth);
    match job.section.job.time.latency_target {
        None => (0, 0, 100.0, depth),
        Some(target) => {
            let (ns, us) = (target.target.as_nanos() as u64, target.window.as_micros() as u64);
            (ns, us, target.percentile, depth)
        }
    }
}

/// fio's latency measures, named as in its JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Submission.
    Slat,
    /// Completion.
    Clat,
    /// Submission and completion together.
    Lat,
}

impl Measure {
    /// All measures, in fio's order.
    pub(super) const ALL: [Measure; 3] = [Measure::Slat, Measure::Clat, Measure::Lat];

    /// Returns its name in reports.
    pub(super) fn name(self) -> &'static str {
        ["slat", "clat", "lat"][self as usize]
    }

    /// Returns the way's latencies of this measure.
    pub(super) fn of(self, way: &WayOutcome) -> &Latency {
        match self {
            Measure::Slat => &way.slat,
            Measure::Clat => &way.clat,
            Measure::Lat => &way.lat,
        }
    }

    /// Returns whether the job requests its percentiles.
    pub(super) fn has_percentiles(self, job: &JobOptions) -> bool {
        match self {
            Measure::Slat => job.reports.slat_percentiles,
            Measure::Clat => job.reports.clat_percentiles,
            Measure::Lat => job.reports.lat_percentiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_add_up() {
        let mut latency = Latency::new();
        for ns in [1, 900, 1500, 70_000, 3_000_000, 5_000_000_000] {
            latency.record(ns);
        }
        let classes = Classes::of(&latency);
        let all = [&classes.ns, &classes.us, &classes.ms].into_iter().flatten();
        let total = all.sum::<f64>() + classes.slow;
        assert!((total - 100.0).abs() < 1e-6, "{total}");
        assert!(classes.us[5] > 16.0, "70 us is in the class up to 100");
        assert!(classes.slow > 16.0, "5 s is beyond the last");
    }

    #[test]
    fn no_latency_is_in_no_class() {
        let classes = Classes::of(&Latency::new());
        assert!(classes.ns.iter().chain(&classes.ms).all(|share| *share == 0.0));
        assert_eq!((classes.ns.len(), classes.us.len(), classes.ms.len()), (10, 10, 11));
    }
}
