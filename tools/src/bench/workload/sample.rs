//! A job for tests: fio's defaults.

use std::time::Duration;

use crate::bench::errors::Tolerance;
use crate::bench::options::*;
use crate::bench::way::PerWay;
use crate::units::Size;

/// Reads of 4 KiB in order, as fio has them where nothing is asked for.
pub(crate) fn job() -> JobOptions {
    JobOptions {
        name: "sample".to_owned(),
        description: None,
        filename: Vec::new(),
        directory: None,
        filename_format: "$jobname.$jobnum.$filenum".to_owned(),
        nrfiles: 1,
        ioengine: Engine::Psync,
        direct: false,
        hipri: false,
        fixedbufs: false,
        unlink: false,
        rw: Workload { random: false, reads: true, writes: false, trims: false, step: 0 },
        rw_sequencer: Sequencer::Sequential,
        rwmixread: 50,
        bs: PerWay::all(BlockSizes::Fixed(4096)),
        blockalign: PerWay::all(None),
        random_distribution: PerWay::all(Distribution::Uniform),
        percentage_random: PerWay::all(100),
        norandommap: false,
        random_generator: RandomGenerator::Permutation,
        randseed: 0x89,
        randrepeat: true,
        size: None,
        io_size: None,
        offset: Size::Bytes(0),
        offset_increment: Size::Bytes(0),
        number_ios: None,
        loops: 1,
        fill_device: false,
        iodepth: 1,
        iodepth_batch: Some(1),
        iodepth_batch_complete_min: 1,
        iodepth_batch_complete_max: None,
        iodepth_low: None,
        numjobs: 1,
        group_reporting: false,
        new_group: false,
        stonewall: false,
        exitall: false,
        runtime: None,
        time_based: false,
        startdelay: (Duration::ZERO, Duration::ZERO),
        ramp_time: Duration::ZERO,
        thinktime: ThinkTime { blocks: 1, ..ThinkTime::default() },
        rate: PerWay::all(None),
        rate_min: PerWay::all(None),
        rate_iops: PerWay::all(None),
        rate_iops_min: PerWay::all(None),
        rate_process: RateProcess::Linear,
        rate_cycle: Duration::from_secs(1),
        max_latency: None,
        latency_target: None,
        steadystate: None,
        buffer_pattern: None,
        refill_buffers: false,
        scramble_buffers: true,
        zero_buffers: false,
        buffer_compress_percentage: 0,
        buffer_compress_chunk: 512,
        verify: None,
        fsync: None,
        fdatasync: None,
        end_fsync: false,
        cpus_allowed: None,
        cpus_allowed_policy: CpusPolicy::Shared,
        numa_cpu_nodes: None,
        continue_on_error: Tolerance::None,
        retries: None,
        io_timeout: None,
        percentile_list: vec![99.0],
        clat_percentiles: true,
        slat_percentiles: false,
        lat_percentiles: false,
        disable: Disabled::default(),
        unified_rw_reporting: false,
        logs: LogOptions::default(),
    }
}

/// What `rw=` says, without a colon.
pub(crate) fn workload(name: &str) -> Workload {
    let plain = name.trim_start_matches("rand");
    let is = |names: &[&str]| names.contains(&plain);
    Workload {
        random: plain != name,
        reads: is(&["read", "rw"]),
        writes: is(&["write", "rw", "trimwrite"]),
        trims: is(&["trim", "trimwrite"]),
        step: 0,
    }
}

/// Verifies with `kind`, as fio where nothing more is asked for.
pub(crate) fn verify(kind: VerifyKind) -> VerifyOptions {
    VerifyOptions {
        kind,
        do_verify: true,
        fatal: false,
        backlog: None,
        backlog_batch: None,
        interval: None,
        pattern: None,
        only: false,
        state_save: true,
        state_load: false,
        dump: false,
    }
}
