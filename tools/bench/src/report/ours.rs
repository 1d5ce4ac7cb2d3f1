//! Additions to fio's JSON: the path, the driver's counts, rates over time, latency distributions, and warnings
//! about the figures.

use serde_json::{Map, Value, json};

use super::figures;
use super::json::extend;
use crate::outcome::{JobOutcome, RunOutcome, WayOutcome};
use adit_load::Latency;

/// Maximum number of points of a distribution.
const CDF_POINTS: usize = 400;

/// Returns the additions for the whole run.
pub(super) fn run(outcome: &RunOutcome) -> Value {
    let warnings = outcome.warnings.iter();
    let warnings = warnings.map(|warning| json!({ "code": warning.code, "text": warning.text }));
    json!({
        "warnings": warnings.collect::<Vec<_>>(),
        "clock": {
            "source": if outcome.clock.is_tsc { "tsc" } else { "system" },
            "drift_ppm": outcome.clock.drift_ppm,
        },
        "interrupted": outcome.interrupted,
    })
}

/// Returns the additions for one job.
pub(super) fn job(job: &JobOutcome) -> Value {
    let mut value = json!({
        "target": job.target,
        "lba_bytes": job.lba_bytes,
        "cpu_ns_per_io": figures::cpu_ns_per_io(job),
        "busy_percent": job.busy_percent,
        "zero_reads_percent": figures::zero_reads_percent(job),
    });
    extend(&mut value, driver(job));
    extend(&mut value, failures(job));
    value["series"] = by_way(job, series);
    value["latency"] = by_way(job, latency);
    value["cdf"] = by_way(job, |way| cdf(if way.lat.count() > 0 { &way.lat } else { &way.clat }));
    value
}

/// Formats the counts of the driver's queue.
fn driver(job: &JobOutcome) -> Value {
    let stats = &job.stats;
    json!({
        "commands": stats.submitted,
        "sgl_commands": stats.sgl_commands,
        "prebuilt_lists": stats.prebuilt_lists,
        "built_lists": stats.built_lists,
        "bounced_commands": stats.bounced_commands,
        "bounced_bytes": stats.bounced_bytes,
        "submission_rings": stats.submission_rings,
        "completion_rings": stats.completion_rings,
        "violations": stats.violations(),
        "aborts": stats.aborts,
        "recreations": stats.recreations,
        "resets": stats.resets,
        "retries": stats.retries,
    })
}

fn failures(job: &JobOutcome) -> Value {
    let by_name = job.errors.by_name().map(|(name, count)| (name.to_owned(), count.into()));
    json!({
        "recoveries": job.recoveries,
        "failed_ios": job.errors.total(),
        "errors": by_name.collect::<Map<String, Value>>(),
        "first_failure": job.failure.as_ref().map(|failure| failure.first.as_str()),
    })
}

fn by_way(job: &JobOutcome, tell: impl Fn(&WayOutcome) -> Value) -> Value {
    let ways = job.ways.iter().map(|(way, counted)| (way.name().to_owned(), tell(counted)));
    ways.collect::<Map<_, _>>().into()
}

/// Formats rates over time: milliseconds since the start, bytes per second, IOPS.
fn series(way: &WayOutcome) -> Value {
    let points = way.samples.points.iter();
    points.map(|point| json!([point.at_ms, point.bytes_per_second, point.iops])).collect()
}

/// Formats the latencies users see, regardless of the percentiles in fio's keys: total latencies from when an
/// I/O was due, or completion latencies if only those were measured.
fn latency(way: &WayOutcome) -> Value {
    const TOLD: [f64; 8] = [1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    let (kind, latency) = if way.lat.count() > 0 { ("lat", &way.lat) } else { ("clat", &way.clat) };
    if latency.count() == 0 {
        return Value::Null;
    }
    let percentiles =
        TOLD.map(|percent| (format!("{percent:.6}"), latency.percentile_ns(percent).into()));
    json!({
        "kind": kind,
        "mean": latency.mean_ns(),
        "percentile": Map::from_iter(percentiles),
    })
}

/// Formats latencies in nanoseconds, each with the number of I/Os that took at most as long.
fn cdf(latency: &Latency) -> Value {
    thinned(&cumulative(latency)).iter().map(|(ns, count)| json!([ns, count])).collect()
}

fn cumulative(latency: &Latency) -> Vec<(u64, u64)> {
    let mut sum = 0;
    let bins = latency.bins().map(|(ns, count)| {
        sum += count;
        (ns, sum)
    });
    bins.collect()
}

/// Reduces the points to at most [`CDF_POINTS`], keeping the first and the last. Takes the next point once the
/// count has grown by a share of the whole or many bins have passed, which preserves both the bulk and the
/// tail.
fn thinned(points: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let Some((_, total)) = points.last() else { return Vec::new() };
    if points.len() <= CDF_POINTS {
        return points.to_vec();
    }
    let count_step = total.div_ceil(CDF_POINTS as u64 / 2 - 1);
    let bins_step = points.len().div_ceil(CDF_POINTS / 2 - 1);
    let (mut kept, mut last_index) = (vec![points[0]], 0);
    for (index, point) in points.iter().enumerate().skip(1) {
        let grown = point.1 - kept[kept.len() - 1].1;
        if grown >= count_step || index - last_index >= bins_step || index + 1 == points.len() {
            kept.push(*point);
            last_index = index;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_distribution_keeps_its_ends_and_its_length() {
        for skew in [0, 1, 1000] {
            let mut sum = 0;
            let points: Vec<(u64, u64)> = (0..5000)
                .map(|ns| {
                    sum += if ns % 100 == 7 { 1 + skew } else { 1 };
                    (ns, sum)
                })
                .collect();
            let kept = thinned(&points);
            assert!(kept.len() <= CDF_POINTS && kept.len() > 100, "{}", kept.len());
            assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
        }
        assert_eq!(thinned(&[]), []);
        assert_eq!(thinned(&[(5, 1), (9, 2)]), [(5, 1), (9, 2)]);
    }

    #[test]
    fn a_distribution_ends_with_all() {
        let mut latency = Latency::new();
        for ns in [100, 200, 200, 5000] {
            latency.record(ns);
        }
        assert_eq!(cumulative(&latency)[..2], [(100, 1), (200, 3)]);
        assert_eq!(cumulative(&latency)[2].1, 4);
    }
}
