//! The values that options have.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

/// `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// At random places; else one after the other.
    pub(crate) random: bool,
    /// Reads, or reads among others.
    pub(crate) reads: bool,
    /// Writes, or writes among others.
    pub(crate) writes: bool,
    /// Trims, or trims before writes.
    pub(crate) trims: bool,
    /// What follows a colon: of a random workload, after how many I/Os a new place is chosen (1 where not given); of a
    /// sequential one, how many bytes are skipped after each I/O (0; negative goes backwards).
    pub(crate) step: i64,
}

impl Workload {
    /// I/Os for each block of a pass: two where it is trimmed and then written.
    pub(crate) fn ios_per_block(&self) -> u64 {
        if self.trims && self.writes { 2 } else { 1 }
    }
}

/// `rw_sequencer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sequencer {
    /// I/Os between two random places go on sequentially.
    #[default]
    Sequential,
    /// They are at the same place.
    Identical,
}

/// `bs` and its relatives, for one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockSizes {
    /// Each I/O is as long.
    Fixed(u64),
    /// From, to, in multiples of the first.
    Range(u64, u64),
    /// Sizes with their shares in percent, which are 100 together.
    Split(Vec<(u64, u8)>),
}

impl BlockSizes {
    /// The shortest, in bytes.
    pub(crate) fn min(&self) -> u64 {
        match self {
            BlockSizes::Fixed(bytes) | BlockSizes::Range(bytes, _) => *bytes,
            BlockSizes::Split(sizes) => sizes.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }

    /// The longest, in bytes.
    pub(crate) fn max(&self) -> u64 {
        match self {
            BlockSizes::Fixed(bytes) | BlockSizes::Range(_, bytes) => *bytes,
            BlockSizes::Split(sizes) => sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }
}

/// `random_distribution`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Distribution {
    /// Each block as often as any other.
    #[default]
    Uniform,
    /// Zipf with exponent theta; the center is where in the region the most frequent block lies (0 to 1), anywhere
    /// where not given.
    Zipf {
        /// The exponent.
        theta: f64,
        /// See above.
        center: Option<f64>,
    },
    /// Pareto with power h.
    Pareto {
        /// The power, 0 to 1.
        power: f64,
        /// As with Zipf.
        center: Option<f64>,
    },
    /// Normal with a deviation in percent of the region.
    Normal {
        /// The deviation.
        deviation: f64,
        /// As with Zipf.
        center: Option<f64>,
    },
    /// Zones one after the other: share of accesses and share of the region, both in percent.
    Zoned(Vec<(f64, f64)>),
    /// The same with their sizes in bytes.
    ZonedAbs(Vec<(f64, u64)>),
}

/// `random_generator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RandomGenerator {
    /// The default: a permutation of constant memory, or random numbers with `norandommap`. fio's `tausworthe` and
    /// `tausworthe64` are taken for it.
    #[default]
    Permutation,
    /// A linear feedback shift register: each block once.
    Lfsr,
}

/// `ioengine`, as far as there is a path for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Engine {
    /// pread and pwrite: `psync:`; also for `sync`, `vsync`, `pvsync` and `pvsync2`.
    #[default]
    Psync,
    /// `uring:`; also for `libaio` and `posixaio`.
    Uring,
    /// `uring-cmd:`.
    UringCmd,
    /// `mmap:`.
    Mmap,
    /// `null:`.
    Null,
}

/// `file_service_type`: which of several files is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileService {
    /// In what order.
    pub(crate) order: FileOrder,
    /// I/Os on a file before the next is chosen; without meaning for [`FileOrder::Sequential`].
    pub(crate) ios: u32,
}

/// In what order files are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOrder {
    /// One after the other, again and again.
    RoundRobin,
    /// The next when the pass has ended on the one before.
    Sequential,
    /// Any of those that the pass has not ended on.
    Random,
}

/// `thinktime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThinkTime {
    /// How long; zero is none.
    pub(crate) time: Duration,
    /// How much of it is spent spinning (`thinktime_spin`).
    pub(crate) spin: Duration,
    /// After how many I/Os (`thinktime_blocks`); where not given after each, unless `iotime` decides.
    pub(crate) blocks: Option<u32>,
    /// Whether those that were issued are counted, not those that completed (`thinktime_blocks_type`).
    pub(crate) counts_issues: bool,
    /// After how much time of I/O (`thinktime_iotime`), if that comes before so many I/Os; zero is none.
    pub(crate) iotime: Duration,
}

/// `rate_process`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RateProcess {
    /// Evenly.
    #[default]
    Linear,
    /// Independently of each other.
    Poisson,
}

/// `latency_target`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LatencyTarget {
    /// The latency that is not to be exceeded.
    pub(crate) target: Duration,
    /// How long each depth is tried (`latency_window`).
    pub(crate) window: Duration,
    /// By how many percent of the I/Os (`latency_percentile`).
    pub(crate) percentile: f64,
    /// Goes on for the whole runtime (`latency_run`).
    pub(crate) run: bool,
}

/// `steadystate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SteadyState {
    /// What has to be steady.
    pub(crate) of: SteadyOf,
    /// By how much: in percent of the mean, else in its unit.
    pub(crate) limit: f64,
    /// See `limit`.
    pub(crate) in_percent: bool,
    /// For how long (`steadystate_duration`).
    pub(crate) duration: Duration,
    /// After how long (`steadystate_ramp_time`).
    pub(crate) ramp: Duration,
}

/// What has to be steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SteadyOf {
    /// IOPS do not deviate from their mean.
    Iops,
    /// The slope of IOPS is small.
    IopsSlope,
    /// Bandwidth does not deviate from its mean.
    Bandwidth,
    /// The slope of bandwidth is small.
    BandwidthSlope,
}

/// `buffer_pattern`, `verify_pattern`: bytes that are repeated, of which some are filled in for each block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// Where the block's offset goes (`%o`): 8 bytes, little-endian.
    pub(crate) offsets_at: Vec<usize>,
}

/// `pi_chk`, `apptag` and `apptag_mask`: what is asked of a namespace's protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectionOptions {
    /// `pi_chk`: guard, reference tag, application tag; what is usual for the namespace's type where not given.
    pub(crate) checks: Option<[bool; 3]>,
    /// `apptag`.
    pub(crate) tag: u16,
    /// `apptag_mask`.
    pub(crate) mask: u16,
}

impl Default for ProtectionOptions {
    /// fio's defaults.
    fn default() -> ProtectionOptions {
        ProtectionOptions { checks: None, tag: 0x1234, mask: 0xffff }
    }
}

/// `verify`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VerifyOptions {
    /// How blocks are told from others.
    pub(crate) kind: VerifyKind,
    /// Whether what was written is read back (`do_verify`).
    pub(crate) do_verify: bool,
    /// Whether the first mismatch ends the job (`verify_fatal`).
    pub(crate) fatal: bool,
    /// Reads back after so many writes instead of at the end (`verify_backlog`).
    pub(crate) backlog: Option<u64>,
    /// How many of them at a time (`verify_backlog_batch`).
    pub(crate) backlog_batch: Option<u64>,
    /// Bytes that each header stands for (`verify_interval`); the block where not given.
    pub(crate) interval: Option<u64>,
    /// `verify_pattern`.
    pub(crate) pattern: Option<Pattern>,
    /// Only reads back what an earlier run wrote (`verify_only`).
    pub(crate) only: bool,
    /// `verify_state_save`; none: where the job is interrupted.
    pub(crate) state_save: Option<bool>,
    /// `verify_state_load`.
    pub(crate) state_load: bool,
    /// Shows what is wrong where it is (`verify_dump`): the block is written to a file.
    pub(crate) dump: bool,
}

/// How blocks are told from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyKind {
    /// A header with a CRC-32C
    #[value(alias = "crc32c-intel")]
    Crc32c,
    /// A header with an xxHash64
    Xxhash,
    /// A header with an MD5
    Md5,
    /// A header without a checksum
    Meta,
    /// The whole block is `verify_pattern`, without a header
    Pattern,
}

/// `cpus_allowed_policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CpusPolicy {
    /// All jobs may use all of them.
    #[default]
    Shared,
    /// Each job has one of its own.
    Split,
}

/// What is not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disabled {
    /// Total latency.
    pub(crate) lat: bool,
    /// Completion latency.
    pub(crate) clat: bool,
    /// Submission latency.
    pub(crate) slat: bool,
    /// Bandwidth over time.
    pub(crate) bw: bool,
}

/// `exit_what`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExitWhat {
    /// The jobs of its group.
    #[default]
    Group,
    /// The jobs that run at the same time; those behind a stonewall follow.
    Stonewall,
    /// All jobs of the run.
    All,
}

/// `log_window_value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WindowValue {
    /// The average.
    #[default]
    Average,
    /// The maximum.
    Maximum,
    /// Both, one after the other.
    Both,
}

/// `write_bw_log` and the others: prefixes of files, and what goes into them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// `write_bw_log`.
    pub(crate) bw: Option<PathBuf>,
    /// `write_iops_log`.
    pub(crate) iops: Option<PathBuf>,
    /// `write_lat_log`: of slat, clat and lat.
    pub(crate) lat: Option<PathBuf>,
    /// `write_hist_log`.
    pub(crate) hist: Option<PathBuf>,
    /// `log_avg_msec`: averages over so long; zero logs each I/O.
    pub(crate) avg: Duration,
    /// `log_hist_msec`.
    pub(crate) hist_every: Duration,
    /// `log_hist_coarseness`, 0 to 6.
    pub(crate) hist_coarseness: u8,
    /// `log_window_value` (`log_max_value`): the value that stands for a window.
    pub(crate) window: WindowValue,
    /// `log_offset`.
    pub(crate) offset: bool,
    /// `log_prio`: the priority as a number in hexadecimal digits.
    pub(crate) prio: bool,
    /// `log_issue_time`: when an I/O was issued.
    pub(crate) issue_time: bool,
    /// `log_unix_epoch`.
    pub(crate) unix_epoch: bool,
    /// `per_job_logs`: on unless given; else all jobs share a file.
    pub(crate) shared: bool,
}

/// `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Normal,
    /// Semicolons, version 3
    Terse,
    /// fio's JSON
    Json,
    /// The same with all bins of the histograms
    #[value(name = "json+")]
    JsonPlus,
}

/// `--eta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eta {
    /// Where standard error is a terminal
    Auto,
    /// Elsewhere in lines of their own
    Always,
    /// Not at all
    Never,
}

/// `--sweep NAME=A,B,C`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// An option of a job.
    pub(crate) option: String,
    /// Its values as they are written.
    pub(crate) values: Vec<String>,
}
