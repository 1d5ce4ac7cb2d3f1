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
