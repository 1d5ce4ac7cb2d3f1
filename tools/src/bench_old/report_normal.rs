//! The report for people, line for line as fio writes it, with one line more on what the driver did.

use std::fmt::Write;
use std::time::Duration;

use super::errors::Tolerance;
use super::job::Outcome;
use super::measure::{Direction, Latency, Levels};
use super::options::BenchArgs;
use super::report_json::{self, LATENCY_CLASSES, PERCENTILES, class_percents, share, slow_percent};
use crate::human::{self, bytes, bytes_si, rate, si};

/// Width that percentile lines keep within.
const LINE_WIDTH: usize = 73;

/// What is said before the jobs run.
pub(crate) fn head(args: &BenchArgs) -> String {
    let bs = format!("{0}-{0}", bytes(args.bs as f64));
    let mut text = format!(
        "{}: (g=0): rw={}, bs=(R) {bs}, (W) {bs}, (T) {bs}, ioengine=adit, iodepth={}\n",
        args.name, args.rw, args.iodepth
    );
    if args.numjobs > 1 {
        text.push_str("...\n");
    }
    let plural = if args.numjobs > 1 { "s" } else { "" };
    text + &format!(
        "adit-{}\nStarting {} thread{plural}\n",
        env!("CARGO_PKG_VERSION"),
        args.numjobs
    )
}

/// What is said of the jobs, and of all together.
pub(crate) fn report(args: &BenchArgs, outcomes: &[Outcome], finished_at: u64) -> String {
    let mut text = String::from("\n");
    let jobs = if args.group_reporting { args.numjobs } else { 1 };
    for outcome in outcomes {
        job(&mut text, args, outcome, jobs, finished_at).expect("a string takes everything");
    }
    group(&mut text, outcomes).expect("a string takes everything");
    text
}

type Written = std::fmt::Result;

fn job(
    out: &mut String,
    args: &BenchArgs,
    outcome: &Outcome,
    jobs: u32,
    finished_at: u64,
) -> Written {
    let error = match &outcome.failure {
        None => " 0".to_owned(),
        Some(failure) => format!("{} ({})", failure.errno, failure.first),
    };
    let at = report_json::utc(finished_at);
    writeln!(
        out,
        "{}: (groupid=0, jobs={jobs}): err={error}: pid={}: {at}",
        args.name,
        std::process::id()
    )?;
    direction(out, "read", &outcome.read, "")?;
    direction(out, "write", &outcome.write, "; 0 zone resets")?;
    distribution(out, &report_json::both(outcome))?;
    cpu(out, outcome)?;
    depths(out, args, outcome)?;
    errors(out, args, outcome)?;
    driver(out, outcome)?;
    recovery(out, outcome)
}

fn direction(out: &mut String, name: &str, direction: &Direction, after: &str) -> Written {
    if direction.ios() == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  {name}: IOPS={}, BW={}({}/{}msec){after}",
        si(direction.iops(), 4),
        rate(direction.bytes_per_second()),
        bytes(direction.bytes as f64),
        direction.runtime.as_millis()
    )?;
    moments(out, "clat", &direction.latency)?;
    moments(out, " lat", &direction.latency)?;
    percentiles(out, &direction.latency)?;
    samples(out, direction)
}

/// The unit that keeps figures short without losing the small ones, as fio chooses.
fn unit(min_ns: u64, max_ns: u64) -> (&'static str, u64) {
    match (min_ns, max_ns) {
        (2_000_001.., 100_000_000..) => ("msec", 1_000_000),
        (2_001.., 100_000..) => ("usec", 1_000),
        _ => ("nsec", 1),
    }
}

fn moments(out: &mut String, name: &str, latency: &Latency) -> Written {
    let (unit, ns) = unit(latency.min_ns(), latency.max_ns());
    writeln!(
        out,
        "    {name} ({unit}): min={}, max={}, avg={:5.2}, stdev={:5.2}",
        si((latency.min_ns() / ns) as f64, 6),
        si((latency.max_ns() / ns) as f64, 6),
        latency.mean_ns() / ns as f64,
        latency.deviation_ns() / ns as f64
    )
}

fn percentiles(out: &mut String, latency: &Latency) -> Written {
    let values = PERCENTILES.map(|percent| latency.percentile_ns(percent));
    // Whole microseconds tell too little of the shortest ones.
    let (unit, ns) = match unit(values[0], values[PERCENTILES.len() - 1]) {
        ("usec", _) if values[0] < 10_000 => ("nsec", 1),
        unit => unit,
    };
    let values = values.map(|value| (value / ns).to_string());
    let width = values.iter().map(String::len).max().unwrap_or(0).max(5);
    let per_line = LINE_WIDTH / (width + 12);
    writeln!(out, "    clat percentiles ({unit}):")?;
    for (index, (percent, value)) in PERCENTILES.iter().zip(&values).enumerate() {
        let start = if index.is_multiple_of(per_line) { "     | " } else { " " };
        let last = index + 1 == PERCENTILES.len();
        let end = match () {
            () if last => "\n",
            () if (index + 1).is_multiple_of(per_line) => ",\n",
            () => ",",
        };
        write!(out, "{start}{percent:5.2}th=[{value:>width$}]{end}")?;
    }
    Ok(())
}

fn samples(out: &mut String, direction: &Direction) -> Written {
    let (bandwidth, iops) = (&direction.samples.kib_per_second, &direction.samples.iops);
    if bandwidth.count == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "   bw (  KiB/s): min={:.0}, max={:.0}, per={:.2}%, avg={:.2}, stdev={:.2}, samples={}",
        bandwidth.min,
        bandwidth.max,
        share(bandwidth, direction),
        bandwidth.mean(),
        bandwidth.deviation(),
        bandwidth.count
    )?;
    writeln!(
        out,
        "   iops        : min={:.0}, max={:.0}, avg={:.2}, stdev={:.2}, samples={}",
        iops.min,
        iops.max,
        iops.mean(),
        iops.deviation(),
        iops.count
    )
}

fn distribution(out: &mut String, latency: &Latency) -> Written {
    let milliseconds: Vec<u64> = LATENCY_CLASSES.iter().copied().chain([2000]).collect();
    let units: [(&str, u64, &[u64]); 3] = [
        ("nsec", 1, &LATENCY_CLASSES),
        ("usec", 1_000, &LATENCY_CLASSES),
        ("msec", 1_000_000, &milliseconds),
    ];
    for (unit, ns, ends) in units {
        let shares = class_percents(latency, ns, ends);
        let mut shown: Vec<String> = ends
            .iter()
            .zip(shares)
            .filter(|(_, percent)| *percent > 0.0)
            .map(|(end, percent)| format!("{end}={:.2}%", percent.max(0.01)))
            .collect();
        let slow = slow_percent(latency);
        if unit == "msec" && slow > 0.0 {
            shown.push(format!(">=2000={:.2}%", slow.max(0.01)));
        }
        for line in shown.chunks(5) {
            writeln!(out, "  lat ({unit})   : {}", line.join(", "))?;
        }
    }
    Ok(())
}

fn cpu(out: &mut String, outcome: &Outcome) -> Written {
    let percent = |us: i64| us as f64 * 100.0 / outcome.elapsed.as_micros().max(1) as f64;
    let cpu = &outcome.cpu;
    writeln!(
        out,
        "  cpu          : usr={:.2}%, sys={:.2}%, ctx={}, majf={}, minf={}",
        percent(cpu.user_us),
        percent(cpu.system_us),
        cpu.context_switches,
        cpu.major_faults,
        cpu.minor_faults
    )
}

fn depths(out: &mut String, args: &BenchArgs, outcome: &Outcome) -> Written {
    let depths = levels(["1", "2", "4", "8", "16", "32", ">=64"], outcome.depths.depth_percent());
    writeln!(out, "  IO depths    : {depths}")?;
    writeln!(out, "     submit    : {}", batches(&outcome.submits))?;
    writeln!(out, "     complete  : {}", batches(&outcome.completes))?;
    let (reads, writes) = (outcome.read.ios(), outcome.write.ios());
    writeln!(out, "     issued rwts: total={reads},{writes},0,0 short=0,0,0,0 dropped=0,0,0,0")?;
    writeln!(out, "     latency   : target=0, window=0, percentile=100.00%, depth={}", args.iodepth)
}

fn batches(batches: &Levels) -> String {
    levels(["0", "4", "8", "16", "32", "64", ">=64"], batches.batch_percent())
}

fn levels<const N: usize>(names: [&str; N], percents: [f64; N]) -> String {
    let shown = names.iter().zip(percents).map(|(name, percent)| {
        // What is there at all does not show as nothing.
        let percent = if percent > 0.0 { percent.max(0.1) } else { 0.0 };
        format!("{name}={percent:.1}%")
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// What was gone on after: fio's line, and one with the names.
fn errors(out: &mut String, args: &BenchArgs, outcome: &Outcome) -> Written {
    let errors = &outcome.errors;
    if args.continue_on_error != Tolerance::None {
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

/// What it took to go on, where something was wrong.
fn recovery(out: &mut String, outcome: &Outcome) -> Written {
    let stats = &outcome.stats;
    if stats.aborts + stats.resets + stats.retries + outcome.recoveries == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  recovery     : aborts={}, queues created anew={}, I/Os caught in resets={}, retries={}, recoveries={}",
        stats.aborts, stats.recreations, stats.resets, stats.retries, outcome.recoveries
    )
}

fn driver(out: &mut String, outcome: &Outcome) -> Written {
    let stats = &outcome.stats;
    writeln!(
        out,
        "  driver       : commands={}, sgl={}, prp lists={} built+{} prebuilt, bounced={} ({}), doorbells={}+{}, aborts={}, violations={}",
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

fn group(out: &mut String, outcomes: &[Outcome]) -> Written {
    writeln!(out, "\nRun status group 0 (all jobs):")?;
    let reads: Vec<&Direction> = outcomes.iter().map(|outcome| &outcome.read).collect();
    let writes: Vec<&Direction> = outcomes.iter().map(|outcome| &outcome.write).collect();
    group_direction(out, "READ", &reads)?;
    group_direction(out, "WRITE", &writes)
}

fn group_direction(out: &mut String, name: &str, jobs: &[&Direction]) -> Written {
    let active: Vec<&&Direction> = jobs.iter().filter(|job| job.ios() > 0).collect();
    if active.is_empty() {
        return Ok(());
    }
    let total: u64 = active.iter().map(|job| job.bytes).sum();
    let times = || active.iter().map(|job| job.runtime);
    let (shortest, longest) =
        (times().min().unwrap_or_default(), times().max().unwrap_or_default());
    let rates = || active.iter().map(|job| job.bytes_per_second());
    let (slowest, fastest) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    let overall = if longest.is_zero() { 0.0 } else { total as f64 / longest.as_secs_f64() };
    writeln!(
        out,
        "{name:>7}: bw={}, {}/s-{}/s ({}/s-{}/s), io={} ({}), run={}-{}msec",
        rate(overall),
        bytes(slowest),
        bytes(fastest),
        bytes_si(slowest),
        bytes_si(fastest),
        bytes(total as f64),
        human::bytes_si(total as f64),
        milliseconds(shortest),
        milliseconds(longest)
    )
}

fn milliseconds(time: Duration) -> u128 {
    time.as_millis()
}
