//! A hand-made run that exercises everything reports show.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_driver::Stats;

use crate::errors::{ErrorKind, Errors, Tolerance};
use crate::measure::Levels;
use crate::options::{
    BlockSizes, JobOptions, LatencyTarget, Section, SteadyOf, SteadyState, Workload,
};
use crate::outcome::{
    ClockOutcome, DiskOutcome, GroupOutcome, GroupWay, JobFailure, JobOutcome, RunOutcome,
    SteadyOutcome, WayOutcome,
};
use crate::output::Warning;
use crate::run::cpu::Cpu;
use crate::way::{PerWay, Way};
use adit_load::Latency;

/// Saturday, 21 November 2026.
const UNIX_MS: u64 = 1_795_275_818_534;

/// Returns the run of all golden reports.
pub(super) fn run() -> RunOutcome {
    let jobs = vec![mix(), trims(), steady(), unified(), broken()];
    RunOutcome {
        global: vec![("size".to_owned(), "64m".to_owned()), ("bs".to_owned(), "4k".to_owned())],
        unix_ms: UNIX_MS,
        groups: (0..4).map(|number| group(number, &jobs)).collect(),
        jobs,
        clock: ClockOutcome { is_tsc: true, drift_ppm: -1.25 },
        disks: vec![DiskOutcome {
            name: "sda".to_owned(),
            ios: [40_000, 21],
            merges: [1, 2],
            ms: [812, 3],
            queue_ms: 815,
            busy_percent: 97.25,
        }],
        warnings: vec![
            warning(
                "generator-limited",
                "the job 'mix' had its core busy for 99 %: it was the limit",
            ),
            warning("unwritten", "97 % of the reads found only zeroes: write the region first"),
        ],
        interrupted: false,
    }
}

fn warning(code: &'static str, text: &str) -> Warning {
    Warning { code, text: text.to_owned() }
}

/// Returns a job without I/O.
pub(super) fn job(name: &str, group: u32) -> JobOutcome {
    let job = JobOptions { name: name.to_owned(), ..JobOptions::usual() };
    JobOutcome {
        section: Section { job, given: vec![("rw".to_owned(), "read".to_owned())] },
        target: "soft:mem=64M".to_owned(),
        lba_bytes: 512,
        group,
        threads: 1,
        start_unix_ms: UNIX_MS - 2001,
        elapsed: Duration::from_millis(2001),
        ways: PerWay([WayOutcome::default(), WayOutcome::default(), WayOutcome::default()]),
        sync: Latency::new(),
        depths: Levels::default(),
        submits: Levels::default(),
        completes: Levels::default(),
        cpu: Cpu::default(),
        stats: Stats::default(),
        recoveries: 0,
        errors: Errors::default(),
        failure: None,
        latency_depth: None,
        steady: None,
        is_cached: false,
        sampled_reads: (0, 0),
        busy_percent: 0.0,
    }
}

/// Generates numbers that look like latencies, a few of them a thousand times longer.
fn latencies(count: u64, about_ns: u64) -> impl Iterator<Item = u64> {
    let mut state = 1_u64;
    (0..count).map(move |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        let tail = if random.is_multiple_of(997) { 1000 } else { 1 };
        (about_ns + random % about_ns) * tail
    })
}

/// Records `ios` I/Os of 4 KiB and two rate samples.
pub(super) fn fill(way: &mut WayOutcome, ios: u64, about_ns: u64) {
    (way.ios, way.bytes, way.runtime) = (ios, ios * 4096, Duration::from_millis(2001));
    for ns in latencies(ios, about_ns) {
        way.slat.record(ns / 10);
        way.clat.record(ns - ns / 10);
        way.lat.record(ns);
    }
    for (at_ms, ios) in [(500, ios / 4 + 3), (1000, ios / 4 - 2)] {
        way.samples.push(at_ms, ios * 4096, ios, Duration::from_millis(500));
    }
}

fn system(job: &mut JobOutcome) {
    for (level, times) in [(1, 10), (2, 20), (4, 300), (8, 4000), (33, 1)] {
        job.depths.record_many(level, times);
        job.submits.record_many(level.min(4), times);
        job.completes.record_many(level - 1, times);
    }
    job.cpu = Cpu {
        user_us: 1_500_000,
        system_us: 250_000,
        context_switches: 134,
        preemptions: 3,
        major_faults: 1,
        minor_faults: 26,
    };
    job.busy_percent = 98.75;
}

fn workload(reads: bool, writes: bool, trims: bool) -> Workload {
    Workload { random: true, reads, writes, trims, step: 0 }
}

/// Reads and writes with all driver counters.
fn mix() -> JobOutcome {
    let mut job = job("mix", 0);
    let asked = &mut job.section.job;
    asked.description = Some("hello there".to_owned());
    (asked.reports.slat_percentiles, asked.reports.lat_percentiles) = (true, true);
    (asked.rw, asked.iodepth) = (workload(true, true, false), 8);
    asked.time.latency_target = Some(LatencyTarget {
        target: Duration::from_micros(500),
        window: Duration::from_secs(1),
        percentile: 99.9,
        run: false,
    });
    job.section.given.push(("description".to_owned(), "hello there".to_owned()));
    fill(&mut job.ways[Way::Read], 40_000, 80_000);
    fill(&mut job.ways[Way::Write], 20_000, 9_000);
    latencies(1000, 1_200).for_each(|ns| job.sync.record(ns));
    system(&mut job);
    job.latency_depth = Some(6);
    job.sampled_reads = (1000, 970);
    let stats = &mut job.stats;
    (stats.submitted, stats.completed, stats.retries, stats.aborts) = (61_000, 61_000, 2, 1);
    (stats.built_lists, stats.prebuilt_lists, stats.bounced_commands) = (7, 59_000, 12);
    (stats.bounced_bytes, stats.submission_rings, stats.completion_rings) = (49_152, 8000, 7900);
    job
}

/// Trims and writes of several sizes that tolerate errors.
fn trims() -> JobOutcome {
    let mut job = job("trims", 1);
    let asked = &mut job.section.job;
    (asked.rw, asked.failures.continue_on_error) = (workload(false, true, true), Tolerance::All);
    (asked.order.numjobs, asked.order.new_group) = (2, true);
    asked.bs[Way::Write] = BlockSizes::Split(vec![(4096, 90), (65_536, 10)]);
    fill(&mut job.ways[Way::Write], 30_000, 300);
    fill(&mut job.ways[Way::Trim], 30_000, 3_000_000);
    system(&mut job);
    for _ in 0..3 {
        job.errors.count(ErrorKind::Write, "Write Fault");
    }
    job.target = "uring-cmd:/dev/ng0n1".to_owned();
    job
}

/// Several threads merged, ended by a steady state; without samples, and too fast for MiB.
fn steady() -> JobOutcome {
    let mut job = job("steady", 2);
    let asked = &mut job.section.job;
    (asked.order.numjobs, asked.order.group_reporting, asked.order.stonewall) = (2, true, true);
    asked.time.steadystate = Some(SteadyState {
        of: SteadyOf::IopsSlope,
        limit: 0.3,
        in_percent: true,
        duration: Duration::from_secs(2),
        ramp: Duration::ZERO,
    });
    asked.reports.percentile_list = vec![50.0, 99.9];
    job.threads = 2;
    fill(&mut job.ways[Way::Read], 25_000, 90);
    job.ways[Way::Read].bytes = 1 << 40;
    job.ways[Way::Read].samples = Default::default();
    system(&mut job);
    job.steady = Some(SteadyOutcome {
        attained: true,
        slope: 12.5,
        deviation: 31.0,
        criterion: 0.105,
        iops: vec![12_469, 12_531],
        bytes: vec![51_073_024, 51_326_976],
    });
    job.target = "null:".to_owned();
    job
}

/// All ways merged.
fn unified() -> JobOutcome {
    let mut job = job("unified", 3);
    job.section.job.reports.unified_rw_reporting = true;
    job.section.job.rw = workload(true, true, false);
    job.section.job.order.new_group = true;
    fill(&mut job.ways[Way::Read], 5_000, 4_000_000);
    fill(&mut job.ways[Way::Write], 5000, 2_500_000);
    system(&mut job);
    job.target = "psync:/tmp/disk.img".to_owned();
    job
}

/// A job that failed at its first I/O.
fn broken() -> JobOutcome {
    let mut job = job("broken", 3);
    job.elapsed = Duration::ZERO;
    job.section.job.reports.unified_rw_reporting = true;
    job.failure = Some(JobFailure {
        count: 1,
        first: "read of 4096 bytes at 0: Invalid Field in Command".to_owned(),
        errno: 5,
    });
    job
}

/// Sums up a group's jobs.
fn group(number: u32, jobs: &[JobOutcome]) -> GroupOutcome {
    let mut ways = BTreeMap::new();
    for way in Way::ALL {
        let jobs = jobs.iter().filter(|job| job.group == number).map(|job| &job.ways[way]);
        let active: Vec<&WayOutcome> = jobs.filter(|way| way.ios > 0).collect();
        let Some(first) = active.first() else { continue };
        let rate = active.iter().map(|way| way.bytes_per_second()).sum();
        let bytes = active.iter().map(|way| way.bytes).sum();
        let (rates, runtimes) = ((rate, rate), (first.runtime, first.runtime));
        ways.insert(way, GroupWay { bytes, rate, rates, runtimes });
    }
    GroupOutcome { group: number, ways }
}
