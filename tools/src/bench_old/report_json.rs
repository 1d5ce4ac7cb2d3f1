//! The report in fio's JSON schema (`--output-format=json`, as fio 3.33 writes it).
//!
//! What this program does not measure is there and zero, so that readers of fio's files find
//! every key. One key is added: `adit`, with what the driver counted.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::errors::Tolerance;
use super::job::Outcome;
use super::measure::{Direction, Latency, Levels, Series};
use super::options::BenchArgs;

/// Percentiles that fio lists.
pub(crate) const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// fio's latency classes: upper ends in the unit.
pub(crate) const LATENCY_CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// The whole report.
pub(crate) fn report(args: &BenchArgs, outcomes: &[Outcome]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let report = json!({
        "fio version": concat!("adit-", env!("CARGO_PKG_VERSION")),
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "time": utc(now.as_secs()),
        "jobs": outcomes.iter().map(|outcome| job(args, outcome)).collect::<Vec<_>>(),
        "disk_util": [],
    });
    format!("{report:#}\n")
}

fn job(args: &BenchArgs, outcome: &Outcome) -> Value {
    let options: Map<String, Value> =
        args.listed().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let elapsed_us = outcome.elapsed.as_micros().max(1) as f64;
    let all = both(outcome);
    let mut value = json!({
        "jobname": args.name,
        "groupid": 0,
        "error": outcome.failure.as_ref().map_or(0, |failure| failure.errno),
        "eta": 0,
        "elapsed": outcome.elapsed.as_secs() + 1,
        "job options": options,
        "read": direction(&outcome.read),
        "write": direction(&outcome.write),
        "trim": direction(&Direction::new()),
        "sync": { "total_ios": 0, "lat_ns": latency(&Latency::new()) },
        "job_runtime": outcome.elapsed.as_millis() as u64,
        "usr_cpu": outcome.cpu.user_us as f64 * 100.0 / elapsed_us,
        "sys_cpu": outcome.cpu.system_us as f64 * 100.0 / elapsed_us,
        "ctx": outcome.cpu.context_switches,
        "majf": outcome.cpu.major_faults,
        "minf": outcome.cpu.minor_faults,
        "iodepth_level": levels(["1", "2", "4", "8", "16", "32", ">=64"], outcome.depths.depth_percent()),
        "iodepth_submit": batches(&outcome.submits),
        "iodepth_complete": batches(&outcome.completes),
        "latency_ns": classes(&all, 1, &LATENCY_CLASSES),
        "latency_us": classes(&all, 1_000, &LATENCY_CLASSES),
        "latency_ms": milliseconds(&all),
        "latency_depth": args.iodepth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
        "adit": driver(outcome),
    });
    // Only there where fio has it.
    if args.continue_on_error != Tolerance::None {
        value["total_err"] = outcome.errors.total().into();
        value["first_error"] = outcome.errors.first_errno().into();
    }
    value
}

/// Latencies of reads and writes together.
pub(crate) fn both(outcome: &Outcome) -> Latency {
    let mut all = outcome.read.latency.clone();
    all.merge(&outcome.write.latency);
    all
}

fn direction(direction: &Direction) -> Value {
    let (bandwidth, iops) = (&direction.samples.kib_per_second, &direction.samples.iops);
    let mut value = json!({
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes >> 10,
        "bw_bytes": direction.bytes_per_second() as u64,
        "bw": (direction.bytes_per_second() / 1024.0) as u64,
        "iops": direction.iops(),
        "runtime": direction.runtime.as_millis() as u64,
        "total_ios": direction.ios(),
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latency(&Latency::new()),
        "clat_ns": latency_with_percentiles(&direction.latency),
        "lat_ns": latency(&direction.latency),
    });
    let rates = json!({
        "bw_min": bandwidth.min as u64,
        "bw_max": bandwidth.max as u64,
        "bw_agg": share(bandwidth, direction),
        "bw_mean": bandwidth.mean(),
        "bw_dev": bandwidth.deviation(),
        "bw_samples": bandwidth.count,
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": iops.mean(),
        "iops_stddev": iops.deviation(),
        "iops_samples": iops.count,
    });
    if let (Value::Object(value), Value::Object(rates)) = (&mut value, rates) {
        value.extend(rates);
    }
    value
}

/// The sampled mean as a share of the overall rate, in percent.
pub(crate) fn share(kib_per_second: &Series, direction: &Direction) -> f64 {
    let whole = direction.bytes_per_second() / 1024.0;
    if whole == 0.0 || kib_per_second.count == 0 {
        0.0
    } else {
        (kib_per_second.mean() * 100.0 / whole).min(100.0)
    }
}

fn latency(latency: &Latency) -> Value {
    json!({
        "min": latency.min_ns(),
        "max": latency.max_ns(),
        "mean": latency.mean_ns(),
        "stddev": latency.deviation_ns(),
        "N": latency.count(),
    })
}

fn latency_with_percentiles(of: &Latency) -> Value {
    let mut value = latency(of);
    if of.count() > 0 {
        let percentiles: Map<String, Value> =
            PERCENTILES.iter().map(|p| (format!("{p:.6}"), of.percentile_ns(*p).into())).collect();
        value["percentile"] = percentiles.into();
    }
    value
}

fn levels<const N: usize>(names: [&str; N], percents: [f64; N]) -> Value {
    names
        .iter()
        .zip(percents)
        .map(|(name, percent)| ((*name).to_owned(), percent.into()))
        .collect::<Map<_, _>>()
        .into()
}

fn batches(batches: &Levels) -> Value {
    levels(["0", "4", "8", "16", "32", "64", ">=64"], batches.batch_percent())
}

/// Shares in percent of latencies up to each of `ends` units; the class before begins where it ends.
fn classes(latency: &Latency, unit_ns: u64, ends: &[u64]) -> Value {
    let shares = class_percents(latency, unit_ns, ends);
    ends.iter()
        .zip(shares)
        .map(|(end, percent)| (end.to_string(), percent.into()))
        .collect::<Map<_, _>>()
        .into()
}

fn milliseconds(latency: &Latency) -> Value {
    let ends: Vec<u64> = LATENCY_CLASSES.iter().copied().chain([2000]).collect();
    let mut value = classes(latency, 1_000_000, &ends);
    value[">=2000"] = slow_percent(latency).into();
    value
}

/// Share in percent of latencies of two seconds and more.
pub(crate) fn slow_percent(latency: &Latency) -> f64 {
    percent(latency.count() - latency.count_below(2_000_000_000), latency.count())
}

/// Shares in percent of latencies in each class of a unit; the first class begins at
/// the end of the unit below.
pub(crate) fn class_percents(latency: &Latency, unit_ns: u64, ends: &[u64]) -> Vec<f64> {
    let mut below = if unit_ns == 1 { 0 } else { latency.count_below(unit_ns) };
    let mut share = |end: &u64| {
        let upto = latency.count_below(end * unit_ns);
        let inside = upto.saturating_sub(below);
        below = upto;
        percent(inside, latency.count())
    };
    ends.iter().map(&mut share).collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn driver(outcome: &Outcome) -> Value {
    let (stats, errors, failure) = (&outcome.stats, &outcome.errors, outcome.failure.as_ref());
    let by_name: Map<String, Value> =
        errors.by_name().map(|(name, count)| (name.to_owned(), count.into())).collect();
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
        "recoveries": outcome.recoveries,
        "failed_ios": errors.total(),
        "errors": by_name,
        "first_failure": failure.map(|failure| failure.first.clone()),
    })
}

/// A time as `asctime` writes it, in UTC.
pub(crate) fn utc(unix_seconds: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Days since 1 March of the year 0, in which leap days come last.
    let days_since_0000_03_01 = days + 719_468;
    let (era, day_of_era) = (days_since_0000_03_01 / 146_097, days_since_0000_03_01 % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_by_asctime() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_827_696), "Tue Feb 29 12:34:56 2000");
        assert_eq!(utc(1_795_203_892), "Fri Nov 20 19:44:52 2026");
    }

    #[test]
    fn classes_add_up() {
        let mut latency = Latency::new();
        for ns in [1, 900, 1500, 70_000, 3_000_000, 5_000_000_000] {
            latency.record(ns);
        }
        let ends = [LATENCY_CLASSES.as_slice(), &[2000]].concat();
        let total: f64 = class_percents(&latency, 1, &LATENCY_CLASSES).iter().sum::<f64>()
            + class_percents(&latency, 1_000, &LATENCY_CLASSES).iter().sum::<f64>()
            + class_percents(&latency, 1_000_000, &ends).iter().sum::<f64>()
            + slow_percent(&latency);
        assert!((total - 100.0).abs() < 1e-6, "{total}");
        assert!(
            class_percents(&latency, 1_000, &LATENCY_CLASSES)[5] > 16.0,
            "70 us is in the class up to 100"
        );
    }
}
