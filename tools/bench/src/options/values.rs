//! The types of option values.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::KernelPath;
use adit_load::Pattern;
use clap::ValueEnum;

/// `rw`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Random order; otherwise sequential.
    pub(crate) random: bool,
    /// Whether it includes reads.
    pub(crate) reads: bool,
    /// Whether it includes writes.
    pub(crate) writes: bool,
    /// Whether it includes trims, alone or before writes.
    pub(crate) trims: bool,
    /// The number after the colon. Random workloads: I/Os per random place (default 1). Sequential ones: bytes
    /// skipped after each I/O (default 0; negative goes backwards).
    pub(crate) step: i64,
}

impl Workload {
    /// Returns the I/Os per block of a pass: two if each block is trimmed and then written.
    pub(crate) fn ios_per_block(&self) -> u64 {
        if self.trims && self.writes { 2 } else { 1 }
    }
}

/// `bs` and related options, for one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockSizes {
    /// One size.
    Fixed(u64),
    /// Minimum and maximum; sizes are multiples of the minimum.
    Range(u64, u64),
    /// Sizes with their shares in percent, 100 in total.
    Split(Vec<(u64, u8)>),
}

impl Default for BlockSizes {
    fn default() -> BlockSizes {
        BlockSizes::Fixed(4096)
    }
}

impl BlockSizes {
    /// Returns the sizes as given, in bytes.
    pub(crate) fn listed(&self) -> Vec<u64> {
        match self {
            BlockSizes::Fixed(bytes) => vec![*bytes],
            BlockSizes::Range(from, to) => vec![*from, *to],
            BlockSizes::Split(sizes) => sizes.iter().map(|(bytes, _)| *bytes).collect(),
        }
    }

    /// Returns the smallest size in bytes.
    pub(crate) fn min(&self) -> u64 {
        self.listed().into_iter().min().unwrap_or(0)
    }

    /// Returns the largest size in bytes.
    pub(crate) fn max(&self) -> u64 {
        self.listed().into_iter().max().unwrap_or(0)
    }
}

/// `ioengine`, for the supported paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// pread and pwrite.
    #[default]
    #[value(aliases = ["sync", "vsync", "pvsync", "pvsync2"])]
    Psync,
    /// io_uring.
    #[value(name = "io_uring", aliases = ["libaio", "posixaio"])]
    Uring,
    /// NVMe commands over io_uring.
    #[value(name = "io_uring_cmd")]
    UringCmd,
    /// A mapping of the file.
    Mmap,
    /// No I/O at all.
    #[value(alias = "cpp_null")]
    Null,
}

impl Engine {
    /// Returns the path that opens a plain file name.
    pub(crate) fn path(self) -> KernelPath {
        match self {
            Engine::Psync => KernelPath::Psync,
            Engine::Uring => KernelPath::Uring,
            Engine::UringCmd => KernelPath::UringCmd,
            Engine::Mmap => KernelPath::Mmap,
            Engine::Null => KernelPath::Null,
        }
    }
}

/// `file_service_type`: how the next of several files is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileService {
    pub(crate) order: FileOrder,
    /// I/Os on a file before the next is chosen; ignored for [`FileOrder::Sequential`].
    pub(crate) ios: u32,
}

/// The order in which files are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileOrder {
    /// In turn, repeatedly.
    #[value(name = "roundrobin")]
    #[default]
    RoundRobin,
    /// The next file once the pass over the current one ends.
    Sequential,
    /// At random among the files whose pass has not ended.
    Random,
}

/// `thinktime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThinkTime {
    /// The pause; zero for none.
    pub(crate) time: Duration,
    /// The part of it spent spinning (`thinktime_spin`).
    pub(crate) spin: Duration,
    /// I/Os between pauses (`thinktime_blocks`); by default one, unless `iotime` is given.
    pub(crate) blocks: Option<u32>,
    /// Whether to count issued rather than completed I/Os (`thinktime_blocks_type`).
    pub(crate) counts_issues: bool,
    /// Time of I/O between pauses (`thinktime_iotime`), if it is reached before `blocks`; zero for none.
    pub(crate) iotime: Duration,
}

/// `flow`: a share in the I/Os of a group of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The job's weight; zero for no share.
    pub(crate) weight: u32,
    /// The group (`flow_id`).
    pub(crate) id: u32,
    /// How long the job sleeps while it waits for others (`flow_sleep`).
    pub(crate) sleep: Duration,
}

/// `rate_process`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RateProcess {
    /// At even intervals.
    #[default]
    Linear,
    /// At independent random intervals.
    Poisson,
}

/// `latency_target`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LatencyTarget {
    /// The latency limit.
    pub(crate) target: Duration,
    /// How long each depth is tried (`latency_window`).
    pub(crate) window: Duration,
    /// The percentage of I/Os that must keep the limit (`latency_percentile`).
    pub(crate) percentile: f64,
    /// Continues for the whole runtime (`latency_run`).
    pub(crate) run: bool,
}

/// `steadystate`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SteadyState {
    /// The measure that must become steady.
    pub(crate) of: SteadyOf,
    /// The allowed deviation, in percent of the mean or in the measure's unit.
    pub(crate) limit: f64,
    /// Whether `limit` is a percentage.
    pub(crate) in_percent: bool,
    /// How long it must stay steady (`steadystate_duration`).
    pub(crate) duration: Duration,
    /// Time before checking starts (`steadystate_ramp_time`).
    pub(crate) ramp: Duration,
}

/// The measure that must become steady.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum SteadyOf {
    /// IOPS stay near their mean.
    Iops,
    /// The slope of IOPS is small.
    #[default]
    IopsSlope,
    /// Bandwidth stays near its mean.
    #[value(name = "bw")]
    Bandwidth,
    /// The slope of bandwidth is small.
    #[value(name = "bw_slope")]
    BandwidthSlope,
}

/// `fdp`, `plids` and `plid_select`: the reclaim unit handles that writes go through (Flexible Data Placement).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacementOptions {
    /// `fdp`, or `dataplacement=fdp`.
    pub(crate) is_on: bool,
    /// `plids`: indices of the namespace's handles; all by default.
    pub(crate) indices: Option<Vec<usize>>,
    /// `plid_select=random`: takes them at random, not in turn.
    pub(crate) is_random: bool,
}

/// `pi_chk`, `apptag` and `apptag_mask`: checks of the namespace's protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectionOptions {
    /// `pi_chk`: guard, reference tag, application tag; by default, as usual for the namespace's protection
    /// type.
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
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VerifyOptions {
    /// How blocks are identified.
    pub(crate) kind: VerifyKind,
    /// Whether to read back written data (`do_verify`).
    pub(crate) do_verify: bool,
    /// Whether the first mismatch ends the job (`verify_fatal`).
    pub(crate) fatal: bool,
    /// Reads back after this many writes instead of at the end (`verify_backlog`).
    pub(crate) backlog: Option<u64>,
    /// Bytes per header (`verify_interval`); the block size by default.
    pub(crate) interval: Option<u64>,
    /// `verify_pattern`.
    pub(crate) pattern: Option<Pattern>,
    /// Only reads back data of an earlier run (`verify_only`).
    pub(crate) only: bool,
    /// `verify_state_save`; if `None`, the state is saved when the job is interrupted.
    pub(crate) state_save: Option<bool>,
    /// `verify_state_load`.
    pub(crate) state_load: bool,
    /// Writes mismatching blocks to files (`verify_dump`).
    pub(crate) dump: bool,
}

/// How blocks are identified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyKind {
    /// A header with a CRC-32C
    #[value(alias = "crc32c-intel")]
    #[default]
    Crc32c,
    /// A header with fio's CRC-64
    Crc64,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpusPolicy {
    /// All jobs share the CPUs.
    #[default]
    Shared,
    /// Each job gets a CPU of its own.
    Split,
}

/// Disabled measurements.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExitWhat {
    /// The jobs of its group.
    #[default]
    Group,
    /// The jobs that run at the same time; those after a stonewall still run.
    Stonewall,
    /// All jobs of the run.
    All,
}

/// `log_window_value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WindowValue {
    /// The average.
    #[default]
    #[value(name = "avg", alias = "0")]
    Average,
    /// The maximum.
    #[value(name = "max", alias = "1")]
    Maximum,
    /// Both, one after the other.
    Both,
}

/// `write_bw_log` and the other logs: file prefixes and contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// `write_bw_log`.
    pub(crate) bw: Option<PathBuf>,
    /// `write_iops_log`.
    pub(crate) iops: Option<PathBuf>,
    /// `write_lat_log`: slat, clat and lat.
    pub(crate) lat: Option<PathBuf>,
    /// `write_iolog`: a file for the I/Os themselves.
    pub(crate) iolog: Option<PathBuf>,
    /// `write_hist_log`.
    pub(crate) hist: Option<PathBuf>,
    /// `log_avg_msec`: the averaging window; zero logs each I/O.
    pub(crate) avg: Duration,
    /// `log_hist_msec`.
    pub(crate) hist_every: Duration,
    /// `log_hist_coarseness`, 0 to 6.
    pub(crate) hist_coarseness: u8,
    /// `log_window_value` (`log_max_value`): the value logged for a window.
    pub(crate) window: WindowValue,
    /// `log_offset`.
    pub(crate) offset: bool,
    /// `log_prio`: logs the priority in hexadecimal.
    pub(crate) prio: bool,
    /// `log_issue_time`: logs when an I/O was issued.
    pub(crate) issue_time: bool,
    /// `log_unix_epoch`.
    pub(crate) unix_epoch: bool,
    /// `per_job_logs=0`: all jobs share one file.
    pub(crate) shared: bool,
}

/// `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Human-readable text
    Normal,
    /// Semicolon-separated, version 3
    Terse,
    /// fio's JSON
    Json,
    /// fio's JSON with all histogram bins
    #[value(name = "json+")]
    JsonPlus,
}

/// `--eta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eta {
    /// If standard error is a terminal
    Auto,
    /// Also if it is not, then one line each
    Always,
    /// Not at all
    Never,
}

impl Eta {
    /// Returns whether progress is shown.
    pub(crate) fn is_shown(self, on_terminal: bool) -> bool {
        self == Eta::Always || (self == Eta::Auto && on_terminal)
    }
}

/// `--sweep NAME=A,B,C`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// An option of a job.
    pub(crate) option: String,
    /// Its values as they are written.
    pub(crate) values: Vec<String>,
}
