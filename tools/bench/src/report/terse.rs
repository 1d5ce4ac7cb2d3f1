//! The terse format, version 3: semicolons, one line for each job.

use std::fmt::Write;

use super::figures::{self, Classes, Measure, ToldWay, VERSION};
use crate::errors::Tolerance;
use crate::options::JobOptions;
use crate::outcome::{JobOutcome, RunOutcome};
use crate::way::Way;
use adit_load::Latency;

/// Number of percentile fields.
const PERCENTILES: usize = 20;

/// One line for each job.
pub(super) fn report(outcome: &RunOutcome) -> String {
    outcome.jobs.iter().map(|job| line(outcome, job) + "\n").collect()
}

fn line(outcome: &RunOutcome, job: &JobOutcome) -> String {
    let options = &job.section.job;
    let error = job.failure.as_ref().map_or(0, |failure| failure.errno);
    let mut out = format!("3;{VERSION};{};{};{error}", options.name, job.group);
    // Version 3 has no fields for trims.
    for told in figures::told(outcome, job).iter().filter(|told| told.way != Some(Way::Trim)) {
        way(&mut out, options, told);
    }
    system(&mut out, job);
    for disk in &outcome.disks {
        let ([reads, writes], [read_merges, write_merges]) = (disk.ios, disk.merges);
        let ([read_ms, write_ms], queue_ms) = (disk.ms, disk.queue_ms);
        let counted = format_args!(
            "{reads};{writes};{read_merges};{write_merges};{read_ms};{write_ms};{queue_ms}"
        );
        add(&mut out, format_args!("{};{counted};{:.2}%", disk.name, disk.busy_percent));
    }
    if options.failures.continue_on_error != Tolerance::None {
        add(&mut out, format_args!("{};{}", job.errors.total(), job.errors.first_errno()));
    }
    if let Some(description) = &options.description {
        add(&mut out, format_args!("{description}"));
    }
    out
}

/// Appends fields after a semicolon.
fn add(out: &mut String, fields: std::fmt::Arguments<'_>) {
    write!(out, ";{fields}").expect("a string takes everything");
}

fn way(out: &mut String, job: &JobOptions, told: &ToldWay<'_>) {
    let (way, samples) = (&told.counted, &told.counted.samples.kib_per_second);
    let (kib, runtime) = (way.bytes >> 10, way.runtime.as_millis());
    let kib_per_second = (way.bytes_per_second() / 1024.0) as u64;
    add(out, format_args!("{kib};{kib_per_second};{};{runtime}", way.iops() as u64));
    moments(out, &way.slat);
    moments(out, &way.clat);
    percentiles(out, job, told);
    moments(out, &way.lat);
    let (min, max) = (samples.min as u64, samples.max as u64);
    let (mean, deviation) = (samples.mean(), samples.deviation());
    add(out, format_args!("{min};{max};{:.6}%;{mean:.6};{deviation:.6}", told.sampled_share));
}

/// Appends minimum, maximum, mean and deviation in microseconds.
fn moments(out: &mut String, latency: &Latency) {
    let (min, max) = (latency.min_ns() / 1000, latency.max_ns() / 1000);
    let (mean, deviation) = (latency.mean_ns() / 1000.0, latency.deviation_ns() / 1000.0);
    add(out, format_args!("{min};{max};{mean:.6};{deviation:.6}"));
}

/// Appends percentiles of total latency if requested, else of completion latency; the number of fields is
/// fixed.
fn percentiles(out: &mut String, job: &JobOptions, told: &ToldWay<'_>) {
    let of = [Measure::Lat, Measure::Clat].into_iter().find(|of| of.has_percentiles(job));
    let list = if of.is_some() { job.reports.percentile_list.as_slice() } else { &[] };
    let latency = of.unwrap_or(Measure::Clat).of(&told.counted);
    for percent in list.iter().take(PERCENTILES) {
        add(out, format_args!("{percent:.6}%={}", latency.percentile_ns(*percent) / 1000));
    }
    for _ in list.len()..PERCENTILES {
        add(out, format_args!("0%=0"));
    }
}

/// Appends CPU times, depths and latency classes.
fn system(out: &mut String, job: &JobOutcome) {
    let (user, system) = figures::cpu_percents(job);
    let cpu = &job.cpu;
    let (ctx, majf, minf) = (cpu.context_switches, cpu.major_faults, cpu.minor_faults);
    add(out, format_args!("{user:.6}%;{system:.6}%;{ctx};{majf};{minf}"));
    for percent in job.depths.depth_percent() {
        add(out, format_args!("{:.1}%", figures::at_least(percent, 0.1)));
    }
    let mut classes = Classes::of(&figures::all_latencies(job));
    // There are no fields for nanoseconds, so they count as below two microseconds.
    classes.us[0] += classes.ns.iter().sum::<f64>();
    for percent in classes.us.iter().chain(&classes.ms).chain([&classes.slow]) {
        add(out, format_args!("{:.2}%", figures::at_least(*percent, 0.01)));
    }
}
