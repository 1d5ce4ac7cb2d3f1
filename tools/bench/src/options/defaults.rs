//! fio's defaults.

use std::sync::LazyLock;

use adit_load::PERCENTILES;

use super::draft::Draft;
use super::job::JobOptions;
use super::set::set;
use super::table;

/// The name of a job without one.
pub(crate) const NAME: &str = "adit";

/// A job with fio's defaults, which are in the table of options.
static DEFAULTS: LazyLock<Draft> = LazyLock::new(|| {
    let job = JobOptions { name: NAME.to_owned(), ..JobOptions::default() };
    let mut draft = Draft { job, ..Draft::default() };
    draft.job.rwmixread = 50;
    draft.job.reports.percentile_list = PERCENTILES.to_vec();
    for spec in table::options().filter(|spec| !spec.default.is_empty()) {
        set(&mut draft, spec.name, spec.default).expect("the table has valid defaults");
    }
    draft
});

impl JobOptions {
    /// Returns a job with fio's defaults.
    pub(crate) fn usual() -> JobOptions {
        DEFAULTS.job.clone()
    }
}

impl Draft {
    /// Creates a draft with fio's defaults.
    pub(crate) fn new() -> Draft {
        DEFAULTS.clone()
    }
}

impl From<JobOptions> for Draft {
    /// Reopens a finished job so that more options can be set.
    fn from(job: JobOptions) -> Draft {
        let usual = Draft::new();
        Draft {
            verifies: job.verify.is_some(),
            is_verify_given: job.verify.is_some(),
            verify: job.verify.clone().unwrap_or(usual.verify),
            latency: job.time.latency_target.unwrap_or(usual.latency),
            is_steady: job.time.steadystate.is_some(),
            steady: job.time.steadystate.unwrap_or_default(),
            job,
            ..Draft::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_fio() {
        for (name, value) in [
            ("filename_format", "$jobname.$jobnum.$filenum"),
            ("nrfiles", "1"),
            ("file_service_type", "roundrobin:1"),
            ("ioengine", "psync"),
            ("direct", "0"),
            ("invalidate", "1"),
            ("unlink", "0"),
            ("allow_file_create", "1"),
            ("fallocate", "native"),
            ("overwrite", "0"),
            ("cpus_allowed_policy", "shared"),
            ("rw", "read"),
            ("bs", "4k"),
            ("random_distribution", "random"),
            ("percentage_random", "100"),
            ("norandommap", "0"),
            ("random_generator", "tausworthe"),
            ("randrepeat", "1"),
            ("offset", "0"),
            ("loops", "1"),
            ("iodepth", "1"),
            ("iodepth_batch_complete_min", "1"),
            ("numjobs", "1"),
            ("exit_what", "group"),
            ("startdelay", "0"),
            ("thinktime", "0"),
            ("thinktime_blocks_type", "complete"),
            ("rate_process", "linear"),
            ("rate_cycle", "1000"),
            ("latency_percentile", "100"),
            ("scramble_buffers", "1"),
            ("buffer_compress_percentage", "0"),
            ("buffer_compress_chunk", "512"),
            ("do_verify", "1"),
            ("sync", "none"),
            ("continue_on_error", "none"),
            ("percentile_list", "1:5:10:20:30:40:50:60:70:80:90:95:99:99.5:99.9:99.95:99.99"),
            ("clat_percentiles", "1"),
            ("slat_percentiles", "0"),
            ("lat_percentiles", "0"),
            ("disk_util", "1"),
            ("unified_rw_reporting", "none"),
            ("log_window_value", "avg"),
            ("per_job_logs", "1"),
        ] {
            let mut draft = Draft::new();
            set(&mut draft, name, value).expect(name);
            assert_eq!(draft, Draft::new(), "{name}");
        }
        assert_eq!((JobOptions::usual().rwmixread, &*JobOptions::usual().name), (50, NAME));
    }
}
