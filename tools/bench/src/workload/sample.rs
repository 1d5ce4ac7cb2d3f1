//! A job for tests: fio's defaults.

use crate::options::*;

/// Reads of 4 KiB in order, as fio has them where nothing is asked for.
pub(crate) fn job() -> JobOptions {
    JobOptions { name: "sample".to_owned(), ..JobOptions::default() }
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
        state_save: None,
        state_load: false,
        dump: false,
    }
}
