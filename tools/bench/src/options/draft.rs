//! A job while its options are read, in any order.

use std::sync::LazyLock;
use std::time::Duration;

use adit_load::{Distribution, PERCENTILES};

use super::iolog::ReplayOptions;
use super::{
    AmountOptions, BatchOptions, BlockSizes, BufferOptions, CpuOptions, Disabled, Engine,
    FailureOptions, FileOptions, FlushOptions, JobOptions, LatencyTarget, LogOptions, OrderOptions,
    PlacementOptions, RandomOptions, RateOptions, ReportOptions, Sequencer, SteadyOf, SteadyState,
    VerifyKind, VerifyOptions, Workload,
};
use super::{FileOrder, FileService, Flow, RateProcess, ThinkTime};

use crate::units::{KbBase, Size};
use crate::way::PerWay;

/// The name of a job without one.
pub(crate) const NAME: &str = "adit";

/// fio's defaults.
static DEFAULTS: LazyLock<JobOptions> = LazyLock::new(|| JobOptions {
    name: NAME.to_owned(),
    description: None,
    filename: Vec::new(),
    files: FileOptions {
        directory: None,
        filename_format: "$jobname.$jobnum.$filenum".to_owned(),
        nrfiles: 1,
        file_service: FileService { order: FileOrder::RoundRobin, ios: 1 },
        invalidate: true,
        unlink: false,
        allow_file_create: true,
        fallocate: true,
        create_only: false,
        overwrite: false,
    },
    ioengine: Engine::Psync,
    direct: false,
    hipri: false,
    fixedbufs: false,
    rw: Workload { random: false, reads: true, writes: false, trims: false, step: 0 },
    rw_sequencer: Sequencer::Sequential,
    rwmixread: 50,
    bs: PerWay::all(BlockSizes::Fixed(4096)),
    random: RandomOptions {
        blockalign: PerWay::all(None),
        random_distribution: PerWay::all(Distribution::Uniform),
        percentage_random: PerWay::all(100),
        norandommap: false,
        is_lfsr: false,
        randseed: None,
        randrepeat: true,
    },
    amount: AmountOptions {
        size: None,
        filesize: None,
        io_size: None,
        offset: Size::Bytes(0),
        offset_increment: Size::Bytes(0),
        number_ios: None,
        loops: 1,
        fill_device: false,
    },
    iodepth: 1,
    batch: BatchOptions {
        iodepth_batch: None,
        iodepth_batch_complete_min: 1,
        iodepth_batch_complete_max: None,
        iodepth_low: None,
    },
    num_range: 1,
    placement: PlacementOptions::default(),
    serialize_overlap: false,
    numjobs: 1,
    order: OrderOptions::default(),
    runtime: None,
    time_based: false,
    ramp_time: Duration::ZERO,
    thinktime: ThinkTime::default(),
    flow: Flow::default(),
    rates: RateOptions {
        rate: PerWay::all(None),
        rate_min: PerWay::all(None),
        rate_iops: PerWay::all(None),
        rate_iops_min: PerWay::all(None),
        rate_process: RateProcess::Linear,
        rate_cycle: Duration::from_secs(1),
    },
    max_latency: None,
    latency_target: None,
    steadystate: None,
    buffers: BufferOptions {
        buffer_pattern: None,
        refill_buffers: false,
        scramble_buffers: true,
        zero_buffers: false,
        buffer_compress_percentage: 0,
        buffer_compress_chunk: 512,
    },
    verify: None,
    protection: None,
    flushes: FlushOptions::default(),
    cpus: CpuOptions::default(),
    failures: FailureOptions::default(),
    reports: ReportOptions {
        percentile_list: PERCENTILES.to_vec(),
        clat_percentiles: true,
        slat_percentiles: false,
        lat_percentiles: false,
        disable: Disabled::default(),
        disk_util: true,
        unified_rw_reporting: false,
    },
    logs: LogOptions::default(),
    replay: ReplayOptions::default(),
    unheeded: Vec::new(),
});

impl Default for JobOptions {
    fn default() -> JobOptions {
        DEFAULTS.clone()
    }
}

/// A job whose options are not all read yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    /// Options that need no other option to be interpreted.
    pub(crate) job: JobOptions,
    /// `kb_base`: the meaning of `k`.
    pub(crate) kb_base: KbBase,
    /// The options around `verify`, kept whether they come before or after it.
    pub(crate) verify: VerifyOptions,
    /// Whether `verify` or `verify_only` turns verification on.
    pub(crate) verifies: bool,
    /// Whether `verify` was given; if not, `verify_pattern` also turns verification on.
    pub(crate) is_verify_given: bool,
    /// The options around `latency_target`; the target is zero until it is given.
    pub(crate) latency: LatencyTarget,
    /// The options around `steadystate`.
    pub(crate) steady: SteadyState,
    /// Whether `steadystate` was given.
    pub(crate) is_steady: bool,
    /// `rwmixread`, if given.
    pub(crate) mix_read: Option<u8>,
    /// `rwmixwrite`, if given.
    pub(crate) mix_write: Option<u8>,
    /// `filesize`: the size of each of the job's own files.
    pub(crate) file_bytes: Option<u64>,
    /// Given options that would affect I/O through the page cache.
    pub(crate) wants_direct: Vec<&'static str>,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft::from(JobOptions::default())
    }
}

impl From<JobOptions> for Draft {
    /// Reopens a finished job so that more options can be set.
    fn from(job: JobOptions) -> Draft {
        Draft {
            verifies: job.verify.is_some(),
            is_verify_given: job.verify.is_some(),
            verify: job.verify.clone().unwrap_or(VERIFY),
            latency: job.latency_target.unwrap_or(LATENCY),
            is_steady: job.steadystate.is_some(),
            steady: job.steadystate.unwrap_or(STEADY),
            kb_base: KbBase::Binary,
            mix_read: None,
            mix_write: None,
            file_bytes: None,
            wants_direct: Vec::new(),
            job,
        }
    }
}

pub(crate) const VERIFY: VerifyOptions = VerifyOptions {
    kind: VerifyKind::Crc32c,
    do_verify: true,
    fatal: false,
    backlog: None,
    backlog_batch: None,
    interval: None,
    pattern: None,
    only: false,
    state_save: None,
    state_load: false,
    dump: false,
};

const LATENCY: LatencyTarget =
    LatencyTarget { target: Duration::ZERO, window: Duration::ZERO, percentile: 100.0, run: false };

const STEADY: SteadyState = SteadyState {
    of: SteadyOf::IopsSlope,
    limit: 0.01,
    in_percent: true,
    duration: Duration::ZERO,
    ramp: Duration::ZERO,
};

impl Draft {
    /// Finishes the job once all options are read.
    ///
    /// # Errors
    /// A sentence, if options contradict each other.
    pub(crate) fn finish(mut self) -> Result<JobOptions, String> {
        self.mix()?;
        self.files();
        self.job.verify = self.verifies.then(|| self.verify.clone());
        self.job.latency_target = (!self.latency.target.is_zero()).then_some(self.latency);
        self.job.steadystate = self.is_steady.then_some(self.steady);
        self.log_names();
        self.endless();
        self.never_steady();
        super::check::job(&self.job)?;
        self.unheeded()?;
        Ok(self.job)
    }

    /// Sets `rwmixread` from `rwmixread` and `rwmixwrite`.
    fn mix(&mut self) -> Result<(), String> {
        self.job.rwmixread = match (self.mix_read, self.mix_write) {
            (Some(read), Some(write)) if u16::from(read) + u16::from(write) != 100 => {
                return Err(format!(
                    "rwmixread={read} and rwmixwrite={write} are not 100 together; give only one"
                ));
            }
            (Some(read), _) => read,
            (None, Some(write)) => 100 - write,
            (None, None) => self.job.rwmixread,
        };
        Ok(())
    }

    /// With `filesize`, files have that length and `size` is the amount of I/O.
    fn files(&mut self) {
        if let Some(bytes) = self.file_bytes {
            let files = super::targets::count(&self.job) as u64;
            let whole = Size::Bytes(bytes.saturating_mul(files));
            self.job.amount.io_size = self.job.amount.io_size.or(self.job.amount.size);
            self.job.amount.size = Some(whole);
            self.job.amount.filesize = Some(bytes);
        }
    }

    /// As in fio, `time_based` needs a `runtime`.
    fn endless(&mut self) {
        if self.job.time_based && self.job.runtime.is_none() {
            self.job.time_based = false;
            self.job.unheeded.push((
                "time_based",
                "there is no runtime; the job ends with its size, give runtime=10 for ten seconds",
            ));
        }
    }

    /// As in fio, a job may be too short to become steady.
    fn never_steady(&mut self) {
        let needed = self.job.steadystate.map(|steady| steady.duration + steady.ramp);
        if self.job.runtime.zip(needed).is_some_and(|(runtime, needed)| runtime < needed) {
            self.job.unheeded.push((
                "steadystate",
                "steadystate_duration and steadystate_ramp_time are longer than runtime, so it is never attained; \
                 give a longer runtime",
            ));
        }
    }

    /// Names unnamed logs after the job.
    fn log_names(&mut self) {
        let logs = &mut self.job.logs;
        for log in [&mut logs.bw, &mut logs.iops, &mut logs.lat, &mut logs.hist] {
            if log.as_ref().is_some_and(|name| name.as_os_str().is_empty()) {
                *log = Some(self.job.name.clone().into());
            }
        }
    }

    /// Refuses options that are ignored only under a condition the job does not meet.
    fn unheeded(&self) -> Result<(), String> {
        let job = &self.job;
        let is_cached =
            matches!(job.ioengine, Engine::Psync | Engine::Uring | Engine::Mmap) && !job.direct;
        let is_path = super::targets::may_be_path(job);
        if let Some(name) = self.wants_direct.first().filter(|_| is_cached && is_path) {
            return Err(format!(
                "{name} matters only through the page cache, where it is not supported; give direct=1"
            ));
        }
        Ok(())
    }
}
