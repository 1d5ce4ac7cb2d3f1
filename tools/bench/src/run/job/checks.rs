//! Which writes of a job are still to be checked.

use crate::errors::Unwritten;
use crate::options::JobOptions;
use crate::outcome::JobFailure;
use crate::workload::Step;

/// Verification of what was written.
pub(super) struct Checks {
    /// The remaining reads of a verify phase.
    pub(super) to_verify: Option<ToVerify>,
    pub(super) unwritten: Unwritten,
    /// Whether the writer of each block is known; false after an earlier run that left no state.
    pub(super) knows_writer: bool,
    /// Mismatches so far, if the job checks all blocks before it fails.
    pub(super) mismatches: Option<JobFailure>,
    /// Unchecked writes, with `verify_backlog`.
    pub(super) backlog: Vec<Step>,
    /// How many of them are checked together; 0 to check a whole pass.
    pub(super) backlog_max: usize,
}

/// The remaining reads of a verify phase.
pub(super) type ToVerify = Box<dyn Iterator<Item = Step> + Send>;

/// Returns how many writes are checked together; 0 for a whole pass.
pub(super) fn backlog_of(options: &JobOptions) -> usize {
    options.verify.as_ref().and_then(|verify| verify.backlog).unwrap_or(0) as usize
}
