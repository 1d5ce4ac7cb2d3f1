//! One job's options, grouped by what they are about.

use std::path::PathBuf;
use std::time::Duration;

use adit_driver::paths::Durability;
use adit_load::{Distribution, Pattern};

use super::replay::ReplayOptions;
use super::values::*;
use crate::errors::Tolerance;
use crate::units::Size;
use crate::way::PerWay;

/// A section of a job file, or the job of a command line.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The resolved options.
    pub job: JobOptions,
    /// The job's options as written, in order: names without dashes, values without quotes. The JSON lists them
    /// as `job options`.
    pub(crate) given: Vec<(String, String)>,
}

/// One job's options under fio's names; [`JobOptions::usual`] has fio's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOptions {
    /// `name`, or the section's name.
    pub(crate) name: String,
    /// `description`.
    pub(crate) description: Option<String>,
    pub(crate) files: FileOptions,
    pub(crate) rw: Workload,
    /// `rwmixread`: percentage of reads in a mixed workload.
    pub(crate) rwmixread: u8,
    /// `bs`, `bsrange`, `bssplit`.
    pub(crate) bs: PerWay<BlockSizes>,
    pub(crate) random: RandomOptions,
    pub(crate) amount: AmountOptions,
    pub(crate) iodepth: u32,
    pub(crate) batch: BatchOptions,
    pub(crate) nvme: NvmeOptions,
    pub(crate) order: OrderOptions,
    pub(crate) time: TimeOptions,
    pub(crate) rates: RateOptions,
    pub(crate) buffers: BufferOptions,
    /// `verify` and related options.
    pub(crate) verify: Option<VerifyOptions>,
    pub(crate) flushes: FlushOptions,
    pub(crate) cpus: CpuOptions,
    pub(crate) failures: FailureOptions,
    pub(crate) reports: ReportOptions,
    /// `write_bw_log` and the other logs.
    pub(crate) logs: LogOptions,
    /// `read_iolog` and related options.
    pub(crate) replay: ReplayOptions,
    /// Ignored options of the job, with reasons.
    pub(crate) unheeded: Vec<(&'static str, &'static str)>,
}

impl JobOptions {
    /// Returns the smallest block of any way, in bytes.
    pub(crate) fn block_min(&self) -> u64 {
        self.bs.0.iter().map(BlockSizes::min).min().unwrap_or(1)
    }

    /// Returns the largest block of any way, in bytes.
    pub(crate) fn block_max(&self) -> u64 {
        self.bs.0.iter().map(BlockSizes::max).max().unwrap_or(1)
    }
}

/// What the job works on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FileOptions {
    /// `filename`: targets, or paths that `ioengine` and `direct` turn into targets. If empty, the job has its
    /// own files in `directory`.
    pub(crate) filename: Vec<String>,
    /// `ioengine`: the I/O path for a plain `filename`.
    pub(crate) ioengine: Engine,
    /// `direct`: bypasses the page cache (`buffered` is the opposite).
    pub(crate) direct: bool,
    /// `hipri`, an io_uring option.
    pub(crate) hipri: bool,
    /// `fixedbufs`, an io_uring option.
    pub(crate) fixedbufs: bool,
    /// `directory` of the job's own files.
    pub(crate) directory: Option<PathBuf>,
    /// `filename_format` of the job's own files.
    pub(crate) filename_format: String,
    /// `nrfiles`: how many files of its own the job has; `size` is divided among them.
    pub(crate) nrfiles: u32,
    /// `file_service_type`: how the next of several files is chosen.
    pub(crate) file_service: FileService,
    /// `invalidate`: drops the file's pages from the page cache before the job starts.
    pub(crate) invalidate: bool,
    /// `unlink`: removes the job's own files afterwards.
    pub(crate) unlink: bool,
    /// `allow_file_create`: creates or extends files that are missing or too short.
    pub(crate) allow_file_create: bool,
    /// `fallocate`: allocates space for created files; otherwise only sets their length.
    pub(crate) fallocate: bool,
    /// `create_only`: creates files and does nothing else.
    pub(crate) create_only: bool,
    /// `overwrite`: fills created files before the job writes to them.
    pub(crate) overwrite: bool,
}

/// The order of random I/Os.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RandomOptions {
    /// `blockalign`: alignment of random offsets; the smallest block by default.
    pub(crate) blockalign: PerWay<Option<u64>>,
    pub(crate) random_distribution: PerWay<Distribution>,
    /// `percentage_random`: percentage of random I/Os in a random workload.
    pub(crate) percentage_random: PerWay<u8>,
    /// `norandommap`: random blocks may repeat before all have been used.
    pub(crate) norandommap: bool,
    /// `random_generator=lfsr`: random blocks of one size come once even with `norandommap`.
    pub(crate) is_lfsr: bool,
    /// `randseed`: overrides `randrepeat`.
    pub(crate) randseed: Option<u64>,
    /// `randrepeat` (`allrandrepeat`): uses the same seed in every run.
    pub(crate) randrepeat: bool,
}

/// The region and how much of it is used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AmountOptions {
    /// `size` of the job's region; the whole device by default.
    pub(crate) size: Option<Size>,
    /// `filesize`: bytes of each of its files; `size` is then that of all.
    pub(crate) filesize: Option<u64>,
    /// `io_size`: bytes after which the job ends; `size` by default.
    pub(crate) io_size: Option<Size>,
    /// `offset` of the region.
    pub(crate) offset: Size,
    /// `offset_increment`: shifts the region of job N by N times this amount.
    pub(crate) offset_increment: Size,
    /// `number_ios`: I/Os after which the job ends.
    pub(crate) number_ios: Option<u64>,
    /// `loops`: passes over the region.
    pub(crate) loops: u32,
    /// `fill_device`: continues until the device is full, or the file system for files.
    pub(crate) fill_device: bool,
}

/// How many I/Os are submitted and completed at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BatchOptions {
    /// `iodepth_batch` (`iodepth_batch_submit`): most I/Os submitted at once.
    pub(crate) iodepth_batch: Option<u32>,
    /// `iodepth_batch_complete_min` (`iodepth_batch_complete`): completions to wait for.
    pub(crate) iodepth_batch_complete_min: u32,
    /// `iodepth_batch_complete_max`: most completions reaped at once.
    pub(crate) iodepth_batch_complete_max: Option<u32>,
    /// `iodepth_low`: in-flight count at which the queue is refilled.
    pub(crate) iodepth_low: Option<u32>,
    /// `serialize_overlap`: never issues I/O that overlaps I/O in flight.
    pub(crate) serialize_overlap: bool,
}

/// What only NVMe offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NvmeOptions {
    pub(crate) placement: PlacementOptions,
    /// `pi_chk`, `apptag`, `apptag_mask`, if any is given.
    pub(crate) protection: Option<ProtectionOptions>,
}

/// Groups of jobs, and the order in which jobs start and end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OrderOptions {
    /// `numjobs`: threads of the job.
    pub(crate) numjobs: u32,
    pub(crate) group_reporting: bool,
    pub(crate) new_group: bool,
    /// `stonewall` (`wait_for_previous`): starts after all previous jobs have ended.
    pub(crate) stonewall: bool,
    /// `exitall`: ends other jobs when this job ends.
    pub(crate) exitall: bool,
    /// `exitall_on_error`: ends other jobs when this job fails.
    pub(crate) exitall_on_error: bool,
    /// `exit_what`: the jobs that `exitall` ends.
    pub(crate) exit_what: ExitWhat,
    /// `wait_for`: starts after the job of this name has ended.
    pub(crate) wait_for: Option<String>,
    /// `startdelay`: minimum and maximum.
    pub(crate) startdelay: (Duration, Duration),
}

/// How long the job runs, and when it pauses.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimeOptions {
    pub(crate) runtime: Option<Duration>,
    pub(crate) time_based: bool,
    /// `ramp_time`: time before measurement starts.
    pub(crate) ramp_time: Duration,
    /// `thinktime` and related options.
    pub(crate) thinktime: ThinkTime,
    /// `flow` and related options.
    pub(crate) flow: Flow,
    /// `max_latency`: fails the job if an I/O takes longer.
    pub(crate) max_latency: Option<Duration>,
    /// `latency_target` and related options.
    pub(crate) latency_target: Option<LatencyTarget>,
    /// `steadystate` and related options.
    pub(crate) steadystate: Option<SteadyState>,
}

/// Rates, by way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RateOptions {
    /// `rate`: bytes per second.
    pub(crate) rate: PerWay<Option<u64>>,
    /// `rate_min`: fails the job if it is slower.
    pub(crate) rate_min: PerWay<Option<u64>>,
    pub(crate) rate_iops: PerWay<Option<u64>>,
    pub(crate) rate_iops_min: PerWay<Option<u64>>,
    pub(crate) rate_process: RateProcess,
    /// `rate_cycle`: the period over which minimum rates are measured.
    pub(crate) rate_cycle: Duration,
}

/// Contents of written blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BufferOptions {
    pub(crate) buffer_pattern: Option<Pattern>,
    pub(crate) refill_buffers: bool,
    pub(crate) scramble_buffers: bool,
    pub(crate) zero_buffers: bool,
    pub(crate) buffer_compress_percentage: u8,
    /// `buffer_compress_chunk`, in bytes.
    pub(crate) buffer_compress_chunk: u64,
}

/// Durability of writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FlushOptions {
    /// `sync`: the durability of a completed write.
    pub(crate) sync: Durability,
    /// `fsync`: the number of writes between Flush commands.
    pub(crate) fsync: Option<u32>,
    /// `fdatasync`: as `fsync`; on a device the two are the same.
    pub(crate) fdatasync: Option<u32>,
    /// `end_fsync`: sends a Flush when a writing job ends.
    pub(crate) end_fsync: bool,
}

/// The cores a job runs on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CpuOptions {
    /// `cpus_allowed`; by default, one core per job if there are enough.
    pub(crate) cpus_allowed: Option<Vec<usize>>,
    pub(crate) cpus_allowed_policy: CpusPolicy,
    pub(crate) numa_cpu_nodes: Option<Vec<usize>>,
}

/// The response to failed I/Os.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FailureOptions {
    pub(crate) continue_on_error: Tolerance,
    /// `ignore_error`: tolerated errnos of reads, of writes and of verification.
    pub(crate) ignore_error: [Vec<i32>; 3],
    /// `retries`, which fio does not have.
    pub(crate) retries: Option<u8>,
    /// `io_timeout`, which fio does not have.
    pub(crate) io_timeout: Option<Duration>,
}

/// Options of measuring and reporting.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReportOptions {
    pub(crate) percentile_list: Vec<f64>,
    pub(crate) clat_percentiles: bool,
    pub(crate) slat_percentiles: bool,
    pub(crate) lat_percentiles: bool,
    /// `disable_lat`, `disable_clat`, `disable_slat`, `disable_bw_measurement`; `gtod_reduce` sets all of them.
    pub(crate) disable: Disabled,
    /// `disk_util`: reports the kernel's statistics of the underlying disks.
    pub(crate) disk_util: bool,
    /// `unified_rw_reporting`: reports all ways as one.
    pub(crate) unified_rw_reporting: bool,
}
