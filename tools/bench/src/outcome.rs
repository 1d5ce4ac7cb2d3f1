//! A run's outcome: everything reports show.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_driver::Stats;
use adit_load::Latency;

use super::errors::Errors;
use super::measure::{Levels, Samples, per_second};
use super::options::Section;
use super::run::cpu::Cpu;
use super::way::{PerWay, Way};
use crate::output::Warning;

/// The outcome of a run, or its state so far.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    /// The options of `[global]` as written.
    pub(crate) global: Vec<(String, String)>,
    /// Its end, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// The threads of all jobs in order; those of a group with `group_reporting` are merged.
    pub(crate) jobs: Vec<JobOutcome>,
    /// The groups in order.
    pub(crate) groups: Vec<GroupOutcome>,
    /// How time was measured.
    pub(crate) clock: ClockOutcome,
    /// The kernel's counts of the underlying disks, by name.
    pub(crate) disks: Vec<DiskOutcome>,
    /// Warnings about the figures, in sentences: the machine was the limit, unwritten data was read, the clock
    /// drifted.
    pub(crate) warnings: Vec<Warning>,
    /// Whether the user interrupted it.
    pub(crate) interrupted: bool,
}

/// The kernel's counts of a disk while the jobs ran, for all processes; arrays hold reads, then writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DiskOutcome {
    /// The kernel's name.
    pub(crate) name: String,
    /// Completed I/Os.
    pub(crate) ios: [u64; 2],
    /// I/Os merged into others.
    pub(crate) merges: [u64; 2],
    /// Total milliseconds of all I/Os.
    pub(crate) ms: [u64; 2],
    /// Total milliseconds of all I/Os in the queue.
    pub(crate) queue_ms: u64,
    /// Percentage of the time with at least one I/O in progress.
    pub(crate) busy_percent: f64,
}

/// How time was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClockOutcome {
    /// Whether the processor's time stamp counter was used rather than the system's clock.
    pub(crate) is_tsc: bool,
    /// Its drift from the system's clock over the run, in parts per million.
    pub(crate) drift_ppm: f64,
}

/// The counts of one or several threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobOutcome {
    /// The section it ran.
    pub(crate) section: Section,
    /// The target it ran on, as a string that parses back to it.
    pub(crate) target: String,
    /// The LBA of the target, in bytes.
    pub(crate) lba_bytes: u32,
    /// The group, from 0.
    pub(crate) group: u32,
    pub(crate) threads: u32,
    /// When it started, in milliseconds since 1970; of merged threads, the first one.
    pub(crate) start_unix_ms: u64,
    /// Time from the first counted I/O to the end.
    pub(crate) elapsed: Duration,
    /// Reads, writes and trims.
    pub(crate) ways: PerWay<WayOutcome>,
    /// Flushes.
    pub(crate) sync: Latency,
    /// I/Os in flight.
    pub(crate) depths: Levels,
    /// I/Os submitted at once.
    pub(crate) submits: Levels,
    /// I/Os reaped at once.
    pub(crate) completes: Levels,
    /// The system's counts.
    pub(crate) cpu: Cpu,
    /// The queue's counts.
    pub(crate) stats: Stats,
    /// Recoveries of the controller, for any job.
    pub(crate) recoveries: u64,
    /// Tolerated errors.
    pub(crate) errors: Errors,
    /// Why it ended early.
    pub(crate) failure: Option<JobFailure>,
    /// The greatest depth that kept `latency_target`, if requested.
    pub(crate) latency_depth: Option<u32>,
    /// Whether and when it was steady, if requested.
    pub(crate) steady: Option<SteadyOutcome>,
    /// Whether data passed through the page cache.
    pub(crate) is_cached: bool,
    /// The number of sampled reads, and how many returned only zeroes.
    pub(crate) sampled_reads: (u64, u64),
    /// Percentage of the time the thread was busy; at 100 it was the limit.
    pub(crate) busy_percent: f64,
}

/// The counts of one way.
#[derive(Clone, Debug, Default)]
pub(crate) struct WayOutcome {
    /// Bytes transferred.
    pub(crate) bytes: u64,
    /// Completed I/Os.
    pub(crate) ios: u64,
    /// How long the way was active.
    pub(crate) runtime: Duration,
    /// Time from preparing an I/O to having sent it to the device.
    pub(crate) slat: Latency,
    /// Time from then to seeing its completion.
    pub(crate) clat: Latency,
    /// The sum; with a `rate`, from when the I/O was due.
    pub(crate) lat: Latency,
    /// Rates per half second.
    pub(crate) samples: Samples,
}

/// Why a job ended early.
#[derive(Clone, Debug)]
pub(crate) struct JobFailure {
    /// How many I/Os failed.
    pub(crate) count: u64,
    /// The first failure.
    pub(crate) first: String,
    /// fio's errno.
    pub(crate) errno: i32,
}

/// Whether a job was steady.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SteadyOutcome {
    pub(crate) attained: bool,
    /// Slope per second, in the unit of the measure.
    pub(crate) slope: f64,
    /// The greatest deviation from the mean, in the same unit.
    pub(crate) deviation: f64,
    /// The value compared with the job's limit, in the limit's unit.
    pub(crate) criterion: f64,
    /// IOPS of each second of the window.
    pub(crate) iops: Vec<u64>,
    /// Bytes of each second of the window.
    pub(crate) bytes: Vec<u64>,
}

/// The sums of a group's jobs.
#[derive(Clone, Debug)]
pub(crate) struct GroupOutcome {
    /// The group, from 0.
    pub(crate) group: u32,
    /// By way, as in fio's last lines for a group.
    pub(crate) ways: BTreeMap<Way, GroupWay>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupWay {
    /// Bytes of all jobs.
    pub(crate) bytes: u64,
    /// Bytes per second over the longest job's time.
    pub(crate) rate: f64,
    /// The slowest and the fastest job's rate.
    pub(crate) rates: (f64, f64),
    /// The shortest and the longest job's time.
    pub(crate) runtimes: (Duration, Duration),
}

impl WayOutcome {
    /// Returns I/Os per second of its runtime.
    pub(crate) fn iops(&self) -> f64 {
        per_second(self.ios, self.runtime)
    }

    /// Returns bytes per second of its runtime.
    pub(crate) fn bytes_per_second(&self) -> f64 {
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

impl JobOutcome {
    /// Merges a concurrent thread.
    pub(crate) fn merge(&mut self, other: &JobOutcome) {
        // Each share is of the thread's own time.
        let threads = (f64::from(self.threads), f64::from(other.threads));
        self.busy_percent = (self.busy_percent * threads.0 + other.busy_percent * threads.1)
            / (threads.0 + threads.1);
        self.threads += other.threads;
        self.elapsed = self.elapsed.max(other.elapsed);
        for way in Way::ALL {
            self.ways[way].merge(&other.ways[way]);
        }
        self.sync.merge(&other.sync);
        self.depths.merge(&other.depths);
        self.submits.merge(&other.submits);
        self.completes.merge(&other.completes);
        self.cpu.merge(&other.cpu);
        merge_stats(&mut self.stats, &other.stats);
        self.recoveries = self.recoveries.max(other.recoveries);
        self.errors.merge(&other.errors);
        if self.failure.is_none() {
            self.failure.clone_from(&other.failure);
        }
        self.latency_depth = self.latency_depth.min(other.latency_depth);
        self.sampled_reads.0 += other.sampled_reads.0;
        self.sampled_reads.1 += other.sampled_reads.1;
        self.is_cached |= other.is_cached;
    }
}

/// Adds another queue's counts.
pub(crate) fn merge_stats(ours: &mut Stats, theirs: &Stats) {
    ours.submitted += theirs.submitted;
    ours.completed += theirs.completed;
    ours.bytes += theirs.bytes;
    ours.sgl_commands += theirs.sgl_commands;
    ours.prebuilt_lists += theirs.prebuilt_lists;
    ours.built_lists += theirs.built_lists;
    ours.bounced_commands += theirs.bounced_commands;
    ours.bounced_bytes += theirs.bounced_bytes;
    ours.submission_rings += theirs.submission_rings;
    ours.completion_rings += theirs.completion_rings;
    ours.unknown_cids += theirs.unknown_cids;
    ours.wrong_sqids += theirs.wrong_sqids;
    ours.bad_sqheads += theirs.bad_sqheads;
    ours.stale_sqheads += theirs.stale_sqheads;
    ours.aborts += theirs.aborts;
    ours.recreations += theirs.recreations;
    ours.resets += theirs.resets;
    ours.retries += theirs.retries;
}
