//! The report for people: fio's lines, with our own after each job and at the end.

use std::fmt::Write;

use super::date;
use super::figures::{self, BATCHES, CLASSES, CLASSES_MS, Classes, DEPTHS, Measure, ToldWay};
use crate::errors::Tolerance;
use crate::human::{bytes, bytes_si, rate, si};
use crate::measure::{Levels, per_second};
use crate::options::{JobOptions, SteadyOf};
use crate::outcome::{DiskOutcome, GroupOutcome, GroupWay, JobOutcome, RunOutcome};
use crate::way::Way;
use adit_load::Latency;

/// Maximum width of percentile lines.
const LINE_WIDTH: usize = 73;

/// Rates above this many KiB per second are shown in MiB per second.
const MIB_ABOVE: f64 = 1_048_576.0;

type Written = std::fmt::Result;

/// Formats the jobs, each group, and warnings about the figures.
pub(super) fn report(outcome: &RunOutcome) -> String {
    let mut text = String::from("\n");
    write_report(&mut text, outcome).expect("a string takes everything");
    text
}

fn write_report(out: &mut String, outcome: &RunOutcome) -> Written {
    outcome.jobs.iter().try_for_each(|one| job(out, outcome, one))?;
    outcome.groups.iter().try_for_each(|one| group(out, outcome, one))?;
    disks(out, &outcome.disks)?;
    if !outcome.warnings.is_empty() {
        writeln!(out)?;
    }
    outcome.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {}", warning.text))
}

fn disks(out: &mut String, disks: &[DiskOutcome]) -> Written {
    if !disks.is_empty() {
        writeln!(out, "\nDisk stats (read/write):")?;
    }
    for disk in disks {
        let pair = |[reads, writes]: [u64; 2]| format!("{reads}/{writes}");
        let (ios, merges, ms) = (pair(disk.ios), pair(disk.merges), pair(disk.ms));
        let (name, queue_ms, busy) = (&disk.name, disk.queue_ms, disk.busy_percent);
        writeln!(
            out,
            "  {name}: ios={ios}, merge={merges}, ticks={ms}, in_queue={queue_ms}, util={busy:.2}%"
        )?;
    }
    Ok(())
}

fn job(out: &mut String, outcome: &RunOutcome, job: &JobOutcome) -> Written {
    title(out, outcome, job)?;
    let asked = &job.section.job;
    for told in figures::told(outcome, job).iter().filter(|told| told.counted.ios > 0) {
        way(out, asked, told)?;
    }
    distribution(out, &Classes::of(&figures::all_latencies(job)))?;
    sync(out, asked, &job.sync)?;
    cpu(out, job)?;
    depths(out, job)?;
    errors(out, job)?;
    latency_target(out, job)?;
    steadystate(out, job)?;
    path(out, job)?;
    driver(out, job)?;
    recovery(out, job)
}

fn title(out: &mut String, outcome: &RunOutcome, job: &JobOutcome) -> Written {
    let asked = &job.section.job;
    let error = match &job.failure {
        None => " 0".to_owned(),
        Some(failure) => format!("{:2} ({})", failure.errno, failure.first),
    };
    writeln!(
        out,
        "{}: (groupid={}, jobs={}): err={error}: pid={}: {}",
        asked.name,
        job.group,
        job.threads,
        std::process::id(),
        date::utc(outcome.unix_ms / 1000)
    )?;
    match &asked.description {
        Some(description) => writeln!(out, "  Description  : [{description}]"),
        None => Ok(()),
    }
}

fn way(out: &mut String, asked: &JobOptions, told: &ToldWay<'_>) -> Written {
    let way = &told.counted;
    let after = if told.way == Some(Way::Write) { "; 0 zone resets" } else { "" };
    writeln!(
        out,
        "  {}: IOPS={}, BW={}({}/{}msec){after}",
        told.name,
        si(way.iops(), 4),
        rate(way.bytes_per_second()),
        bytes(way.bytes as f64),
        way.runtime.as_millis()
    )?;
    for measure in Measure::ALL {
        moments(out, measure.name(), measure.of(way))?;
    }
    for measure in Measure::ALL.into_iter().filter(|of| of.has_percentiles(asked)) {
        percentiles(out, measure.name(), measure.of(way), &asked.reports.percentile_list)?;
    }
    samples(out, told)
}

/// Chooses the unit as fio does, to keep figures short without losing small ones.
fn unit(min_ns: u64, max_ns: u64) -> (&'static str, u64) {
    match (min_ns, max_ns) {
        (2_000_001.., 100_000_000..) => ("msec", 1_000_000),
        (2_001.., 100_000..) => ("usec", 1_000),
        _ => ("nsec", 1),
    }
}

fn moments(out: &mut String, name: &str, latency: &Latency) -> Written {
    if latency.count() == 0 {
        return Ok(());
    }
    let (unit, ns) = unit(latency.min_ns(), latency.max_ns());
    writeln!(
        out,
        "    {name:>4} ({unit}): min={}, max={}, avg={:5.2}, stdev={:5.2}",
        si((latency.min_ns() / ns) as f64, 6),
        si((latency.max_ns() / ns) as f64, 6),
        latency.mean_ns() / ns as f64,
        latency.deviation_ns() / ns as f64
    )
}

fn percentiles(out: &mut String, name: &str, latency: &Latency, list: &[f64]) -> Written {
    let values: Vec<u64> = list.iter().map(|percent| latency.percentile_ns(*percent)).collect();
    let (Some(min), Some(max)) = (values.iter().min(), values.iter().max()) else { return Ok(()) };
    if latency.count() == 0 {
        return Ok(());
    }
    let (unit, ns) = unit(*min, *max);
    let values = values.iter().map(|value| ((value + ns / 2) / ns).to_string());
    let values: Vec<String> = values.collect();
    let width = values.iter().map(String::len).max().unwrap_or(0).max(5);
    writeln!(out, "    {name} percentiles ({unit}):")?;
    let told = list.iter().zip(&values);
    let told = told.map(|(percent, value)| format!("{percent:5.2}th=[{value:>width$}]"));
    let lines: Vec<String> = told
        .collect::<Vec<_>>()
        .chunks(LINE_WIDTH / (width + 12))
        .map(|line| format!("     | {}", line.join(", ")))
        .collect();
    writeln!(out, "{}", lines.join(",\n"))
}

fn samples(out: &mut String, told: &ToldWay<'_>) -> Written {
    let (bandwidth, iops) = (&told.counted.samples.kib_per_second, &told.counted.samples.iops);
    if bandwidth.count == 0 {
        return Ok(());
    }
    let is_mib = bandwidth.mean() > MIB_ABOVE;
    let (unit, divisor) = if is_mib { ("MiB", 1024.0) } else { ("KiB", 1.0) };
    writeln!(
        out,
        "   bw ({unit:>5}/s): min={:5}, max={:5}, per={:.2}%, avg={:5.2}, stdev={:5.2}, samples={}",
        (bandwidth.min / divisor) as u64,
        (bandwidth.max / divisor) as u64,
        told.sampled_share,
        bandwidth.mean() / divisor,
        bandwidth.deviation() / divisor,
        bandwidth.count
    )?;
    writeln!(
        out,
        "   iops        : min={:5}, max={:5}, avg={:5.2}, stdev={:5.2}, samples={}",
        iops.min as u64,
        iops.max as u64,
        iops.mean(),
        iops.deviation(),
        iops.count
    )
}

fn distribution(out: &mut String, classes: &Classes) -> Written {
    let slow = (classes.slow > 0.0).then(|| class(">=2000", classes.slow));
    class_lines(out, "nsec", shown(&CLASSES, &classes.ns))?;
    class_lines(out, "usec", shown(&CLASSES, &classes.us))?;
    class_lines(out, "msec", shown(&CLASSES_MS, &classes.ms).into_iter().chain(slow).collect())
}

fn shown(ends: &[u64], shares: &[f64]) -> Vec<String> {
    let there = ends.iter().zip(shares).filter(|(_, percent)| **percent > 0.0);
    there.map(|(end, percent)| class(&end.to_string(), *percent)).collect()
}

fn class(name: &str, percent: f64) -> String {
    format!("{name}={:.2}%", figures::at_least(percent, 0.01))
}

fn class_lines(out: &mut String, unit: &str, shown: Vec<String>) -> Written {
    shown.chunks(5).try_for_each(|line| writeln!(out, "  lat ({unit})   : {}", line.join(", ")))
}

fn sync(out: &mut String, asked: &JobOptions, latency: &Latency) -> Written {
    if latency.count() == 0 {
        return Ok(());
    }
    writeln!(out, "  fsync/fdatasync/sync_file_range:")?;
    moments(out, "sync", latency)?;
    match asked.reports.clat_percentiles {
        true => percentiles(out, "sync", latency, &asked.reports.percentile_list),
        false => Ok(()),
    }
}

fn cpu(out: &mut String, job: &JobOutcome) -> Written {
    let (user, system) = figures::cpu_percents(job);
    let cpu = &job.cpu;
    writeln!(
        out,
        "  cpu          : usr={user:.2}%, sys={system:.2}%, ctx={}, majf={}, minf={}",
        cpu.context_switches, cpu.major_faults, cpu.minor_faults
    )
}

fn depths(out: &mut String, job: &JobOutcome) -> Written {
    writeln!(out, "  IO depths    : {}", levels(DEPTHS, job.depths.depth_percent()))?;
    writeln!(out, "     submit    : {}", batches(&job.submits))?;
    writeln!(out, "     complete  : {}", batches(&job.completes))?;
    let [reads, writes, trims] = match job.section.job.reports.unified_rw_reporting {
        true => [figures::total_ios(job), 0, 0],
        false => Way::ALL.map(|way| job.ways[way].ios),
    };
    let syncs = job.sync.count();
    writeln!(
        out,
        "     issued rwts: total={reads},{writes},{trims},{syncs} short=0,0,0,0 dropped=0,0,0,0"
    )
}

fn batches(batches: &Levels) -> String {
    levels(BATCHES, batches.batch_percent())
}

fn levels<const N: usize>(names: [&str; N], percents: [f64; N]) -> String {
    let shown = names.iter().zip(percents);
    let shown =
        shown.map(|(name, percent)| format!("{name}={:.1}%", figures::at_least(percent, 0.1)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Writes the tolerated errors: fio's line, and one with their names.
fn errors(out: &mut String, job: &JobOutcome) -> Written {
    let errors = &job.errors;
    if job.section.job.failures.continue_on_error != Tolerance::None {
        let errno = errors.first_errno();
        let meaning = std::io::Error::from_raw_os_error(errno).to_string();
        let meaning = meaning.split(" (os error").next().unwrap_or_default();
        let total = errors.total();
        writeln!(out, "     errors    : total={total}, first_error={errno}/<{meaning}>")?;
    }
    if errors.total() > 0 {
        let names = errors.by_name().map(|(name, count)| format!("{name}={count}"));
        writeln!(out, "     by name   : {}", names.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn latency_target(out: &mut String, job: &JobOutcome) -> Written {
    let (target_ns, window_us, percentile, depth) = figures::latency_target(job);
    writeln!(
        out,
        "     latency   : target={target_ns}, window={window_us}, percentile={percentile:.2}%, depth={depth}"
    )
}

fn steadystate(out: &mut String, job: &JobOutcome) -> Written {
    let (Some(asked), Some(steady)) = (&job.section.job.time.steadystate, &job.steady) else {
        return Ok(());
    };
    let criterion = match asked.of {
        SteadyOf::Iops => "iops mean dev",
        SteadyOf::IopsSlope => "iops slope",
        SteadyOf::Bandwidth => "bw mean dev",
        SteadyOf::BandwidthSlope => "bw slope",
    };
    writeln!(
        out,
        "  steadystate  : attained={}, bw={}, iops={}, {criterion}={:.3}{}",
        if steady.attained { "yes" } else { "no" },
        rate(figures::mean(&steady.bytes) as f64),
        si(figures::mean(&steady.iops) as f64, 4),
        steady.criterion,
        if asked.in_percent { "%" } else { "" }
    )
}

/// Writes the path, the CPU cost of an I/O, and how busy the thread was.
fn path(out: &mut String, job: &JobOutcome) -> Written {
    write!(
        out,
        "  path         : {}, lba={}, cpu per io={:.0}ns, busy={:.1}%",
        job.target,
        job.lba_bytes,
        figures::cpu_ns_per_io(job),
        job.busy_percent
    )?;
    if let Some(percent) = figures::zero_reads_percent(job) {
        write!(out, ", zero reads={percent:.1}%")?;
    }
    writeln!(out)
}

/// Writes the driver's counts, if there are any.
fn driver(out: &mut String, job: &JobOutcome) -> Written {
    let stats = &job.stats;
    if stats.submitted == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  driver       : commands={}, sgl={}, prp lists={} built+{} prebuilt, bounced={} ({}), \
         doorbells={}+{}, aborts={}, violations={}",
        stats.submitted,
        stats.sgl_commands,
        stats.built_lists,
        stats.prebuilt_lists,
        stats.bounced_commands,
        bytes(stats.bounced_bytes as f64),
        stats.submission_rings,
        stats.completion_rings,
        stats.aborts,
        stats.violations()
    )
}

/// Writes the recovery counts, if there are any.
fn recovery(out: &mut String, job: &JobOutcome) -> Written {
    let stats = &job.stats;
    if stats.aborts + stats.resets + stats.retries + job.recoveries == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  recovery     : aborts={}, queues recreated={}, I/Os caught in resets={}, retries={}, recoveries={}",
        stats.aborts, stats.recreations, stats.resets, stats.retries, job.recoveries
    )
}

fn group(out: &mut String, outcome: &RunOutcome, group: &GroupOutcome) -> Written {
    writeln!(out, "\nRun status group {} (all jobs):", group.group)?;
    let mut jobs = outcome.jobs.iter().filter(|job| job.group == group.group);
    if jobs.any(|job| job.section.job.reports.unified_rw_reporting) {
        return match mixed_group(outcome, group) {
            Some(way) => group_way(out, "MIXED", &way),
            None => Ok(()),
        };
    }
    group.ways.iter().try_for_each(|(way, it)| group_way(out, &way.name().to_uppercase(), it))
}

/// Merges all ways of a group; `None` without I/Os.
fn mixed_group(outcome: &RunOutcome, group: &GroupOutcome) -> Option<GroupWay> {
    let jobs = outcome.jobs.iter().filter(|job| job.group == group.group);
    let jobs = jobs.filter(|job| figures::total_ios(job) > 0);
    let rates: Vec<f64> = jobs.map(|job| figures::mixed(job).bytes_per_second()).collect();
    let ways = || group.ways.values();
    let longest = ways().map(|way| way.runtimes.1).max()?;
    let bytes = ways().map(|way| way.bytes).sum::<u64>();
    Some(GroupWay {
        bytes,
        rate: per_second(bytes, longest),
        rates: (
            rates.iter().copied().fold(f64::INFINITY, f64::min),
            rates.into_iter().fold(0.0, f64::max),
        ),
        runtimes: (ways().map(|way| way.runtimes.0).min()?, longest),
    })
}

fn group_way(out: &mut String, name: &str, way: &GroupWay) -> Written {
    if way.bytes == 0 {
        return Ok(());
    }
    let (slowest, fastest) = way.rates;
    writeln!(
        out,
        "{name:>7}: bw={}, {}/s-{}/s ({}/s-{}/s), io={} ({}), run={}-{}msec",
        rate(way.rate),
        bytes(slowest),
        bytes(fastest),
        bytes_si(slowest),
        bytes_si(fastest),
        bytes(way.bytes as f64),
        bytes_si(way.bytes as f64),
        way.runtimes.0.as_millis(),
        way.runtimes.1.as_millis()
    )
}
