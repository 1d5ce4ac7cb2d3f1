//! The seam between taking a command and carrying it out, where tests (and
//! later the fault model) decide what becomes of it.

use crate::spec::{Cqe, Qid, Sqe, Status};

/// What becomes of a command that was just fetched.
#[derive(Clone, Copy, Debug, Default)]
pub enum Verdict {
    /// It runs as it should.
    #[default]
    Run,
    /// It is neither executed nor completed, ever; Abort does not find it.
    Lose,
    /// It waits until Abort ends it or [`super::Controller::release_held`] runs it.
    Hold,
    /// It completes with this status, not executed.
    Fail(Status),
    /// It runs, and its completion entry is altered before it is posted (the
    /// phase tag is set afterwards).
    CorruptCqe(fn(&mut Cqe)),
    /// It runs, and its completion is posted twice.
    Twice,
}

/// Decides about each command, in the order they are fetched.
pub(super) type CommandHook = Box<dyn FnMut(&Sqe, Qid) -> Verdict + Send>;
