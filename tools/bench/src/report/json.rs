//! fio 3.33's JSON schema: its keys with its types, and `job_start` of fio's newer releases.
//!
//! Unmeasured values are present as zero, so that readers of fio's files find every key. One key, `adit`, is
//! added to each job and to the whole, for what fio does not report.

use serde_json::{Map, Value, json};

use super::figures::{
    self, BATCHES, CLASSES, CLASSES_MS, Classes, DEPTHS, Measure, ToldWay, VERSION,
};
use super::{date, layout, ours};
use crate::errors::Tolerance;
use crate::options::{JobOptions, SteadyState, name_of};
use crate::outcome::{DiskOutcome, JobOutcome, RunOutcome, SteadyOutcome, WayOutcome};
use adit_load::Latency;

/// Returns the whole report; with `bins`, percentiles come with all latency bins.
pub(super) fn report(outcome: &RunOutcome, bins: bool) -> String {
    let seconds = outcome.unix_ms / 1000;
    let mut report = json!({
        "fio version": VERSION,
        "timestamp": seconds,
        "timestamp_ms": outcome.unix_ms,
        "time": date::utc(seconds),
    });
    if !outcome.global.is_empty() {
        report["global options"] = object(&outcome.global);
    }
    let jobs = outcome.jobs.iter().map(|one| job(outcome, one, bins));
    report["jobs"] = jobs.collect();
    report["disk_util"] = outcome.disks.iter().map(disk).collect();
    report["adit"] = ours::run(outcome);
    layout::text(&report) + "\n"
}

/// Formats the kernel's counts of a disk.
fn disk(disk: &DiskOutcome) -> Value {
    json!({
        "name": disk.name,
        "read_ios": disk.ios[0],
        "write_ios": disk.ios[1],
        "read_merges": disk.merges[0],
        "write_merges": disk.merges[1],
        "read_ticks": disk.ms[0],
        "write_ticks": disk.ms[1],
        "in_queue": disk.queue_ms,
        "util": disk.busy_percent,
    })
}

/// Formats names and values; the last of a repeated name counts.
pub(crate) fn object(pairs: &[(String, String)]) -> Value {
    let pairs = pairs.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
    pairs.collect::<Map<_, _>>().into()
}

pub(super) fn job(outcome: &RunOutcome, job: &JobOutcome, bins: bool) -> Value {
    let asked = &job.section.job;
    let mut value = json!({
        "jobname": asked.name,
        "groupid": job.group,
        "job_start": job.start_unix_ms,
        "error": job.failure.as_ref().map_or(0, |failure| failure.errno),
        "eta": 0,
        "elapsed": job.elapsed.as_secs() + 1,
        "job options": object(&job.section.given),
    });
    for told in figures::told(outcome, job) {
        value[told.name] = way(asked, &told, bins);
    }
    if !asked.reports.unified_rw_reporting {
        let latency = latency(asked, &job.sync, asked.reports.clat_percentiles, bins);
        value["sync"] = json!({ "total_ios": job.sync.count(), "lat_ns": latency });
    }
    extend(&mut value, system(job));
    extend(&mut value, classes(job));
    // Present only where fio has it.
    if asked.failures.continue_on_error != Tolerance::None {
        value["total_err"] = job.errors.total().into();
        value["first_error"] = job.errors.first_errno().into();
    }
    extend(&mut value, targets(job));
    if let (Some(asked), Some(steady)) = (&asked.time.steadystate, &job.steady) {
        value["steadystate"] = steadystate(asked, steady);
    }
    if let Some(description) = &asked.description {
        value["desc"] = description.as_str().into();
    }
    value["adit"] = ours::job(job);
    value
}

/// Adds the members of `more`.
pub(super) fn extend(value: &mut Value, more: Value) {
    if let (Value::Object(value), Value::Object(more)) = (value, more) {
        value.extend(more);
    }
}

fn way(asked: &JobOptions, told: &ToldWay<'_>, bins: bool) -> Value {
    let way = &told.counted;
    let mut value = json!({
        "io_bytes": way.bytes,
        "io_kbytes": way.bytes >> 10,
        "bw_bytes": way.bytes_per_second() as u64,
        "bw": (way.bytes_per_second() / 1024.0) as u64,
        "iops": way.iops(),
        "runtime": way.runtime.as_millis() as u64,
        "total_ios": way.ios,
        "short_ios": 0,
        "drop_ios": 0,
    });
    for measure in Measure::ALL {
        let told = latency(asked, measure.of(way), measure.has_percentiles(asked), bins);
        value[format!("{}_ns", measure.name())] = told;
    }
    if asked.unheeded.iter().any(|(name, _)| name.starts_with("cmdprio")) && way.ios > 0 {
        value["prios"] = priorities(asked, way, bins);
    }
    let (bandwidth, iops) = (&way.samples.kib_per_second, &way.samples.iops);
    let rates = json!({
        "bw_min": bandwidth.min as u64,
        "bw_max": bandwidth.max as u64,
        "bw_agg": told.sampled_share,
        "bw_mean": bandwidth.mean(),
        "bw_dev": bandwidth.deviation(),
        "bw_samples": bandwidth.count,
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": iops.mean(),
        "iops_stddev": iops.deviation(),
        "iops_samples": iops.count,
    });
    extend(&mut value, rates);
    value
}

/// Formats latencies by priority; all I/Os have the same priority.
fn priorities(asked: &JobOptions, way: &WayOutcome, bins: bool) -> Value {
    let of = if asked.reports.lat_percentiles { Measure::Lat } else { Measure::Clat };
    let percentiles = asked.reports.lat_percentiles || asked.reports.clat_percentiles;
    let mut one = json!({ "prioclass": 0, "prio": 0, "priohint": 0 });
    one[format!("{}_ns", of.name())] = latency(asked, of.of(way), percentiles, bins);
    json!([one])
}

/// Formats moments, with percentiles if requested and with bins beside them if there are any latencies.
fn latency(asked: &JobOptions, of: &Latency, percentiles: bool, bins: bool) -> Value {
    let list = if percentiles { &*asked.reports.percentile_list } else { &[] };
    let mut value = of.moments(list);
    if percentiles && bins && of.count() > 0 {
        let bins = of.bins().map(|(ns, count)| (ns.to_string(), Value::from(count)));
        value["bins"] = bins.collect::<Map<_, _>>().into();
    }
    value
}

/// Formats system counts, depths and batches.
fn system(job: &JobOutcome) -> Value {
    let (user, system) = figures::cpu_percents(job);
    json!({
        "job_runtime": figures::threads_time(job).as_millis() as u64,
        "usr_cpu": user,
        "sys_cpu": system,
        "ctx": job.cpu.context_switches,
        "majf": job.cpu.major_faults,
        "minf": job.cpu.minor_faults,
        "iodepth_level": named(&DEPTHS, &job.depths.depth_percent()),
        "iodepth_submit": named(&BATCHES, &job.submits.batch_percent()),
        "iodepth_complete": named(&BATCHES, &job.completes.batch_percent()),
    })
}

fn classes(job: &JobOutcome) -> Value {
    let classes = Classes::of(&figures::all_latencies(job));
    let mut milliseconds = named(&CLASSES_MS, &classes.ms);
    milliseconds[">=2000"] = classes.slow.into();
    json!({
        "latency_ns": named(&CLASSES, &classes.ns),
        "latency_us": named(&CLASSES, &classes.us),
        "latency_ms": milliseconds,
    })
}

fn named(names: &[impl ToString], percents: &[f64]) -> Value {
    let pairs = names.iter().zip(percents);
    pairs.map(|(name, share)| (name.to_string(), (*share).into())).collect::<Map<_, _>>().into()
}

fn targets(job: &JobOutcome) -> Value {
    let (target_ns, window_us, percentile, depth) = figures::latency_target(job);
    json!({
        "latency_depth": depth,
        "latency_target": target_ns,
        "latency_percentile": percentile,
        "latency_window": window_us,
    })
}

fn steadystate(asked: &SteadyState, steady: &SteadyOutcome) -> Value {
    let of = name_of(asked.of);
    let unit = if asked.in_percent { "%" } else { "" };
    json!({
        "ss": format!("{of}:{:.6}{unit}", asked.limit),
        "duration": asked.duration.as_secs(),
        "attained": u8::from(steady.attained),
        "criterion": format!("{:.6}{unit}", steady.criterion),
        "max_deviation": steady.deviation,
        "slope": steady.slope,
        "data": {
            "bw_mean": figures::mean(&steady.bytes),
            "iops_mean": figures::mean(&steady.iops),
            "iops": steady.iops,
            "bw": steady.bytes,
        },
    })
}
