//! What a job is: fio's options, parsed and typed.
//!
//! A job file or a command line gives [`Section`]s: options by name as they were written, and the
//! [`JobOptions`] they come to. [`RunOptions`] are those that are not a job's but the whole run's. What each option
//! means is said once, in `table`, which the job-file parser, the command line, its help and its completions share.

pub(crate) mod absent;
mod again;
mod answers;
mod check;
pub(crate) mod command_line;
mod debug;
#[cfg(test)]
mod documented;
pub(crate) mod draft;
pub(crate) mod effectless;
pub(crate) mod expression;
mod grammar;
mod pattern;
pub(crate) mod table;
pub(crate) mod targets;
pub(crate) mod unheeded;
mod values;
mod workload;
pub(crate) mod written;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use adit_driver::Target;
use adit_driver::device::Durability;

pub(crate) use check::writes;
pub use command_line::BenchArgs;
pub use values::Distribution;
pub(crate) use values::*;

use super::errors::Tolerance;
use super::way::PerWay;
use crate::units::Size;

/// One job section, or the job that a command line describes.
#[derive(Clone, Debug)]
pub struct Section {
    /// What the options come to.
    pub job: JobOptions,
    /// The options as they were written for this job, in order: names without dashes, values without quotes. The JSON
    /// lists them as `job options`.
    pub(crate) given: Vec<(String, String)>,
}

/// Everything that a command line and its job files ask for.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is asked of the whole run.
    pub run: RunOptions,
    /// The options of `[global]` as they were written, for the JSON's `global options`.
    pub global: Vec<(String, String)>,
    /// The jobs, in order; at least one.
    pub sections: Vec<Section>,
}

/// What chooses the random order where neither `randseed` nor `randrepeat=0` is given, as in fio.
pub(crate) const RANDSEED: u64 = 0x89;

impl Request {
    /// Options that were given and are not heeded, each once, with the reason.
    pub(crate) fn unheeded(&self) -> BTreeMap<&'static str, &'static str> {
        let of_jobs = self.sections.iter().flat_map(|section| &section.job.unheeded);
        of_jobs.chain(&self.run.unheeded).copied().collect()
    }

    /// The same, with `fresh` as the `randseed` of jobs that have none and whose order shall not repeat.
    pub(crate) fn seeded(&self, fresh: u64) -> Request {
        let mut seeded = self.clone();
        for Section { job, .. } in &mut seeded.sections {
            job.randseed = job.randseed.or((!job.randrepeat).then_some(fresh));
        }
        seeded
    }
}

/// What is asked of the whole run: fio's options that may not stand in a job file, and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// `--output-format`, several by comma; `--minimal` is terse.
    pub(crate) formats: Vec<OutputFormat>,
    /// `--output`: where the report goes instead of standard output.
    pub(crate) output: Option<PathBuf>,
    /// `--status-interval`: a whole report so often while the jobs run.
    pub(crate) status_interval: Option<Duration>,
    /// `--eta`.
    pub(crate) eta: Eta,
    /// `--eta-interval`: between two lines of progress.
    pub(crate) eta_interval: Duration,
    /// `--readonly`: jobs that write or trim are refused.
    pub(crate) readonly: bool,
    /// `--parse-only`: options are checked and nothing is opened.
    pub(crate) parse_only: bool,
    /// `--showcmd`: prints the jobs as command lines and ends.
    pub(crate) showcmd: bool,
    /// `--allow-destroy`: data that is there may be overwritten.
    pub(crate) allow_destroy: bool,
    /// `--targets`: the jobs run on each of these, in turn.
    pub(crate) targets: Vec<Target>,
    /// `--rounds`: how often the whole is repeated, interleaved.
    pub(crate) rounds: u32,
    /// `--sweep NAME=A,B,C`: the jobs run with each value of each.
    pub(crate) sweep: Vec<Sweep>,
    /// `--ceiling`: measures what the device gives at most, in the same run.
    pub(crate) ceiling: bool,
    /// `--recover`: a controller that fails is brought back.
    pub(crate) recover: bool,
    /// `--eta-newline`: between two lines of progress that stay on the terminal.
    pub(crate) eta_newline: Option<Duration>,
    /// `--aux-path`: where verify states lie.
    pub(crate) aux_path: PathBuf,
    /// `--debug=random`: prints the seeds.
    pub(crate) shows_seeds: bool,
    /// Options of the run that were given and are not heeded, with the reason.
    pub(crate) unheeded: Vec<(&'static str, &'static str)>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            formats: vec![OutputFormat::Normal],
            output: None,
            status_interval: None,
            eta: Eta::Auto,
            eta_interval: Duration::from_millis(500),
            readonly: false,
            parse_only: false,
            showcmd: false,
            allow_destroy: false,
            targets: Vec::new(),
            rounds: 1,
            sweep: Vec::new(),
            ceiling: false,
            recover: false,
            eta_newline: None,
            aux_path: PathBuf::from("."),
            shows_seeds: false,
            unheeded: Vec::new(),
        }
    }
}

/// One job, by fio's names. The defaults are fio's.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOptions {
    /// `name`, or the section's.
    pub(crate) name: String,
    /// `description`.
    pub(crate) description: Option<String>,

    // Where.
    /// `filename`: targets, or paths that `ioengine` and `direct` make targets of. Empty: files of the job's own in
    /// `directory`.
    pub(crate) filename: Vec<String>,
    /// `directory` of the job's own files.
    pub(crate) directory: Option<PathBuf>,
    /// `filename_format` of the job's own files.
    pub(crate) filename_format: String,
    /// `nrfiles`: how many files of its own the job has; `size` is divided among them.
    pub(crate) nrfiles: u32,
    /// `file_service_type`: which of several files is next.
    pub(crate) file_service: FileService,
    /// `ioengine`: which path a plain `filename` is reached by.
    pub(crate) ioengine: Engine,
    /// `direct`: past the page cache (`buffered` is its opposite).
    pub(crate) direct: bool,
    /// `invalidate`: what the page cache holds of the file is dropped before the job starts.
    pub(crate) invalidate: bool,
    /// `hipri`, `fixedbufs`: io_uring's.
    pub(crate) hipri: bool,
    /// See `hipri`.
    pub(crate) fixedbufs: bool,
    /// `unlink`: the job's own files are removed afterwards.
    pub(crate) unlink: bool,
    /// `allow_file_create`: files that are missing or too short are made.
    pub(crate) allow_file_create: bool,
    /// `fallocate`: space is set aside for files that are made; else they are only made as long.
    pub(crate) fallocate: bool,
    /// `create_only`: files are made, and nothing else is done.
    pub(crate) create_only: bool,
    /// `overwrite`: files that are made are filled before they are written.
    pub(crate) overwrite: bool,

    // What.
    /// `rw`.
    pub(crate) rw: Workload,
    /// `rw_sequencer`: what `rw=randread:8` repeats.
    pub(crate) rw_sequencer: Sequencer,
    /// `rwmixread`: share of reads in percent, of a mixed workload.
    pub(crate) rwmixread: u8,
    /// `bs`, `bsrange`, `bssplit`.
    pub(crate) bs: PerWay<BlockSizes>,
    /// `blockalign`: offsets of random I/O are multiples of it; the smallest block where not given.
    pub(crate) blockalign: PerWay<Option<u64>>,
    /// `random_distribution`.
    pub(crate) random_distribution: PerWay<Distribution>,
    /// `percentage_random`: share of I/Os at a random place, of a random workload.
    pub(crate) percentage_random: PerWay<u8>,
    /// `norandommap`: blocks of a random workload may come twice before others come once.
    pub(crate) norandommap: bool,
    /// `random_generator`.
    pub(crate) random_generator: RandomGenerator,
    /// `randseed`: decides whatever `randrepeat` says.
    pub(crate) randseed: Option<u64>,
    /// `randrepeat` (`allrandrepeat`): the same seed in every run.
    pub(crate) randrepeat: bool,

    // How much.
    /// `size`: of the region the job works on; the whole device where not given.
    pub(crate) size: Option<Size>,
    /// `io_size`: bytes after which the job ends, `size` where not given.
    pub(crate) io_size: Option<Size>,
    /// `offset` of the region.
    pub(crate) offset: Size,
    /// `offset_increment`: the region of job N starts N times this later.
    pub(crate) offset_increment: Size,
    /// `number_ios`: I/Os after which the job ends.
    pub(crate) number_ios: Option<u64>,
    /// `loops`: passes over the region.
    pub(crate) loops: u32,
    /// `fill_device`: goes on until the device is full; for files until there is no space.
    pub(crate) fill_device: bool,

    // How many at a time.
    /// `iodepth`.
    pub(crate) iodepth: u32,
    /// `iodepth_batch` (`iodepth_batch_submit`): at most so many are submitted at once.
    pub(crate) iodepth_batch: Option<u32>,
    /// `iodepth_batch_complete_min` (`iodepth_batch_complete`): waits for so many.
    pub(crate) iodepth_batch_complete_min: u32,
    /// `iodepth_batch_complete_max`: at most so many are taken in at once.
    pub(crate) iodepth_batch_complete_max: Option<u32>,
    /// `iodepth_low`: refilled only once so few are in flight.
    pub(crate) iodepth_low: Option<u32>,
    /// `serialize_overlap`: no I/O is issued that touches what is in flight.
    pub(crate) serialize_overlap: bool,
    /// `numjobs`.
    pub(crate) numjobs: u32,
    /// `group_reporting`.
    pub(crate) group_reporting: bool,
    /// `new_group`.
    pub(crate) new_group: bool,
    /// `stonewall` (`wait_for_previous`): starts when all before it are done.
    pub(crate) stonewall: bool,
    /// `exitall`: when this job ends, others end.
    pub(crate) exitall: bool,
    /// `exitall_on_error`: when this job fails, others end.
    pub(crate) exitall_on_error: bool,
    /// `exit_what`: which others.
    pub(crate) exit_what: ExitWhat,
    /// `wait_for`: starts when the job of this name is done.
    pub(crate) wait_for: Option<String>,

    // When.
    /// `runtime`.
    pub(crate) runtime: Option<Duration>,
    /// `time_based`.
    pub(crate) time_based: bool,
    /// `startdelay`: from, to.
    pub(crate) startdelay: (Duration, Duration),
    /// `ramp_time`: what is done before anything counts.
    pub(crate) ramp_time: Duration,
    /// `thinktime` and what belongs to it.
    pub(crate) thinktime: ThinkTime,
    /// `rate`: bytes per second.
    pub(crate) rate: PerWay<Option<u64>>,
    /// `rate_min`: the job fails when it is slower.
    pub(crate) rate_min: PerWay<Option<u64>>,
    /// `rate_iops`.
    pub(crate) rate_iops: PerWay<Option<u64>>,
    /// `rate_iops_min`.
    pub(crate) rate_iops_min: PerWay<Option<u64>>,
    /// `rate_process`.
    pub(crate) rate_process: RateProcess,
    /// `rate_cycle`: over what time the minimum rates are measured.
    pub(crate) rate_cycle: Duration,
    /// `max_latency`: the job fails when an I/O takes longer.
    pub(crate) max_latency: Option<Duration>,
    /// `latency_target` and what belongs to it.
    pub(crate) latency_target: Option<LatencyTarget>,
    /// `steadystate` and what belongs to it.
    pub(crate) steadystate: Option<SteadyState>,

    // Data.
    /// `buffer_pattern`.
    pub(crate) buffer_pattern: Option<Pattern>,
    /// `refill_buffers`.
    pub(crate) refill_buffers: bool,
    /// `scramble_buffers`.
    pub(crate) scramble_buffers: bool,
    /// `zero_buffers`.
    pub(crate) zero_buffers: bool,
    /// `buffer_compress_percentage`.
    pub(crate) buffer_compress_percentage: u8,
    /// `buffer_compress_chunk`, in bytes.
    pub(crate) buffer_compress_chunk: u64,
    /// `verify` and what belongs to it.
    pub(crate) verify: Option<VerifyOptions>,
    /// `pi_chk`, `apptag`, `apptag_mask`, if one of them is given.
    pub(crate) protection: Option<ProtectionOptions>,
    /// `sync`: what a write that completed survives.
    pub(crate) sync: Durability,
    /// `fsync`: a Flush after so many writes.
    pub(crate) fsync: Option<u32>,
    /// `fdatasync`: the same to a device.
    pub(crate) fdatasync: Option<u32>,
    /// `end_fsync`: a Flush at the end of a writing job.
    pub(crate) end_fsync: bool,

    // Who.
    /// `cpus_allowed`; none: one core for each job where there are enough.
    pub(crate) cpus_allowed: Option<Vec<usize>>,
    /// `cpus_allowed_policy`.
    pub(crate) cpus_allowed_policy: CpusPolicy,
    /// `numa_cpu_nodes`.
    pub(crate) numa_cpu_nodes: Option<Vec<usize>>,

    // Failures.
    /// `continue_on_error`.
    pub(crate) continue_on_error: Tolerance,
    /// `ignore_error`: errnos of reads, of writes and of blocks that are not what was written.
    pub(crate) ignore_error: [Vec<i32>; 3],
    /// `retries`: ours.
    pub(crate) retries: Option<u8>,
    /// `io_timeout`: ours.
    pub(crate) io_timeout: Option<Duration>,

    // Telling.
    /// `percentile_list`.
    pub(crate) percentile_list: Vec<f64>,
    /// `clat_percentiles`.
    pub(crate) clat_percentiles: bool,
    /// `slat_percentiles`.
    pub(crate) slat_percentiles: bool,
    /// `lat_percentiles`.
    pub(crate) lat_percentiles: bool,
    /// `disable_lat`, `disable_clat`, `disable_slat`, `disable_bw_measurement`; `gtod_reduce` is all of them.
    pub(crate) disable: Disabled,
    /// `disk_util`: the kernel's statistics of the disks below are told.
    pub(crate) disk_util: bool,
    /// `unified_rw_reporting`: all ways as one.
    pub(crate) unified_rw_reporting: bool,
    /// `write_bw_log` and the others.
    pub(crate) logs: LogOptions,

    /// Options that were given and are not heeded, with the reason.
    pub(crate) unheeded: Vec<(&'static str, &'static str)>,
}

impl Section {
    /// A job by its options as a job file would give them, as in `rw=randwrite bs=4k`.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    pub fn of(options: &str) -> Result<Section, String> {
        let mut draft = draft::Draft::default();
        let mut given = Vec::new();
        for option in options.split_whitespace() {
            let (name, value) = option.split_once('=').unwrap_or((option, "1"));
            written::set(&mut draft, &written::canonical(name), Some(value))?;
            given.push((name.to_owned(), value.to_owned()));
        }
        Ok(Section { job: draft.finish()?, given })
    }
}
