//! Sample jobs for tests, with fio's defaults.

use crate::options::draft::Draft;
use crate::options::*;

/// Returns fio's default job: sequential reads of 4 KiB.
pub(crate) fn job() -> JobOptions {
    JobOptions { name: "sample".to_owned(), ..JobOptions::usual() }
}

/// Parses `rw=` without a colon.
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

/// Returns fio's default verification with `kind`.
pub(crate) fn verify(kind: VerifyKind) -> VerifyOptions {
    VerifyOptions { kind, ..Draft::new().verify }
}
