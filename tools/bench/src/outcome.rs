//! What a run comes to: everything that reports tell.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_driver::Stats;

use super::errors::Errors;
use super::measure::{Latency, Levels, Samples};
use super::options::Section;
use super::run::cpu::Cpu;
use super::way::{PerWay, Way};

/// A run from its start to its end, or to now.
#[derive(Debug)]
pub struct RunOutcome {
    /// The options of `[global]` as they were written.
    pub(crate) global: Vec<(String, String)>,
    /// Milliseconds since 1970 at its end.
    pub(crate) unix_ms: u64,
    /// The threads of all jobs in order; those of a group with `group_reporting` as one.
    pub jobs: Vec<JobOutcome>,
    /// The groups in order.
    pub(crate) groups: Vec<GroupOutcome>,
    /// How time was told.
    pub(crate) clock: ClockOutcome,
    /// What the kernel counted for the disks below, by name.
    pub(crate) disks: Vec<DiskOutcome>,
    /// What casts doubt on the figures: the machine was the limit, nothing was ever written where it was read, the clock
    /// was off. Whole sentences.
    pub(crate) warnings: Vec<Warning>,
    /// Whether the user ended it.
    pub(crate) interrupted: bool,
}

/// What the kernel counted for a disk while the jobs ran, whichever process it was for; reads, then writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DiskOutcome {
    /// As the kernel calls it.
    pub(crate) name: String,
    /// I/Os that ended.
    pub(crate) ios: [u64; 2],
    /// I/Os that became part of others.
    pub(crate) merges: [u64; 2],
    /// Milliseconds that all of them took together.
    pub(crate) ms: [u64; 2],
    /// Milliseconds that all I/Os spent in the queue together.
    pub(crate) queue_ms: u64,
    /// Share of the time in which at least one was under way, in percent.
    pub(crate) busy_percent: f64,
}

/// What casts doubt on the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A word for programs, such as `generator-limited`.
    pub code: &'static str,
    /// A sentence for people.
    pub text: String,
}

/// How time was told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClockOutcome {
    /// Whether the processor's time stamp counter was read; else the system's clock.
    pub(crate) is_tsc: bool,
    /// How far it went from the system's clock over the run, in parts per million.
    pub(crate) drift_ppm: f64,
}

/// Everything that a thread counted, or several together.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// The section it ran.
    pub(crate) section: Section,
    /// The target it ran on, as a string that parses.
    pub(crate) target: String,
    /// The LBA of the target, in bytes.
    pub(crate) lba_bytes: u32,
    /// The group, from 0.
    pub(crate) group: u32,
    /// How many threads it stands for.
    pub(crate) threads: u32,
    /// From the first I/O that counts to the end.
    pub(crate) elapsed: Duration,
    /// Reads, writes and trims.
    pub ways: PerWay<WayOutcome>,
    /// Flushes.
    pub(crate) sync: Latency,
    /// How many were in flight.
    pub(crate) depths: Levels,
    /// How many were submitted at once.
    pub(crate) submits: Levels,
    /// How many were taken in at once.
    pub(crate) completes: Levels,
    /// What the system counted.
    pub(crate) cpu: Cpu,
    /// What the queue counted.
    pub(crate) stats: Stats,
    /// How often the controller was brought back, for whichever job.
    pub(crate) recoveries: u64,
    /// What was gone on after.
    pub(crate) errors: Errors,
    /// Why it ended early.
    pub(crate) failure: Option<JobFailure>,
    /// The greatest depth that kept `latency_target`, where that was asked for.
    pub(crate) latency_depth: Option<u32>,
    /// Whether and when it was steady, where that was asked for.
    pub(crate) steady: Option<SteadyOutcome>,
    /// Whether data passed through the page cache.
    pub(crate) is_cached: bool,
    /// Reads that were sampled, and how many of them found only zeroes.
    pub(crate) sampled_reads: (u64, u64),
    /// Share of the time in which the thread had something to do, in percent: at 100 it was the limit.
    pub(crate) busy_percent: f64,
}

/// Everything counted in one way.
#[derive(Clone, Debug)]
pub struct WayOutcome {
    /// Bytes that were moved.
    pub bytes: u64,
    /// I/Os that completed.
    pub ios: u64,
    /// How long there was something to do in this way.
    pub(crate) runtime: Duration,
    /// From when an I/O was prepared to when the device had been told of it.
    pub(crate) slat: Latency,
    /// From then to when it was seen to be complete.
    pub(crate) clat: Latency,
    /// Both; with a `rate`, from when the I/O was due.
    pub lat: Latency,
    /// Rates by the half second.
    pub(crate) samples: Samples,
}

/// Why a job ended early.
#[derive(Clone, Debug)]
pub(crate) struct JobFailure {
    /// How many I/Os failed.
    pub(crate) count: u64,
    /// The first failure.
    pub(crate) first: String,
    /// As fio numbers it.
    pub(crate) errno: i32,
}

/// Whether a job was steady.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SteadyOutcome {
    /// Whether it was.
    pub(crate) attained: bool,
    /// Slope, in the unit of what was measured for each second.
    pub(crate) slope: f64,
    /// The greatest deviation from the mean, in the same unit.
    pub(crate) deviation: f64,
    /// What the job's limit was compared with, in the limit's unit.
    pub(crate) criterion: f64,
    /// IOPS of each second of the window.
    pub(crate) iops: Vec<u64>,
    /// Bytes of each second of the window.
    pub(crate) bytes: Vec<u64>,
}

/// All jobs of a group together.
#[derive(Clone, Debug)]
pub(crate) struct GroupOutcome {
    /// The group, from 0.
    pub(crate) group: u32,
    /// By way: what fio's last lines say of a group.
    pub(crate) ways: BTreeMap<Way, GroupWay>,
}

/// One way of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupWay {
    /// Bytes of all jobs.
    pub(crate) bytes: u64,
    /// Their rate over the longest job's time, in bytes per second.
    pub(crate) rate: f64,
    /// The slowest job's and the fastest job's rates.
    pub(crate) rates: (f64, f64),
    /// The shortest and the longest job's times.
    pub(crate) runtimes: (Duration, Duration),
}

impl JobOutcome {
    /// Adds another thread that ran at the same time.
    pub(crate) fn merge(&mut self, other: &JobOutcome) {
        // Shares of each thread's own time.
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

/// Adds what another queue counted.
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
