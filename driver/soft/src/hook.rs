//! The seam between taking a command and carrying it out: where a script
//! ([`super::Controller::set_hook`]) or a plan ([`super::FaultPlan`]) decides what
//! becomes of it.

use std::time::Duration;

use super::faults::FaultKind;
use adit_spec::{Cqe, Qid, Sqe, Status};

/// What becomes of a command that was just fetched. What is about its LBAs does nothing to
/// commands that are not over one range of them.
#[derive(Clone, Copy, Debug, Default)]
pub enum Verdict {
    /// It runs as it should.
    #[default]
    Run,
    /// It is neither executed nor completed, ever; Abort does not find it.
    Lose,
    /// It is executed and never completed; Abort does not find it.
    Mute,
    /// It waits until Abort ends it or [`super::Controller::release_held`] runs it.
    Hold,
    /// It waits this long, then runs; Abort ends it meanwhile.
    Delay(Duration),
    /// It completes with this status, not executed.
    Fail(Status),
    /// It completes with success and this dword 0, not executed. Abort with 1 refuses.
    Answer(u32),
    /// It runs, and its completion entry is altered before it is posted (the
    /// phase tag is set afterwards).
    CorruptCqe(fn(&mut Cqe)),
    /// It runs, and these masks are XORed into fields of its completion entry.
    XorCqe {
        /// Command Identifier.
        cid: u16,
        /// SQ Identifier.
        sqid: u16,
        /// SQ Head Pointer.
        sqhd: u16,
    },
    /// It runs, and its completion is written with the wrong phase tag: not seen, and
    /// what follows in that queue is not looked for, until the queue is made anew.
    WrongPhase,
    /// It runs, and its completion is posted twice.
    Twice,
    /// It runs, and its completion is posted once more after this long.
    Again(Duration),
    /// Its LBAs become unreadable until they are written, then it runs; a write fails
    /// with Write Fault instead.
    MediaError,
    /// It runs, and a bit of its LBAs flips where they are stored: before a read, after a write.
    Rot {
        /// Which one of the command's data, modulo their count.
        bit: u64,
    },
    /// It runs at another starting LBA; one that it does not fit at is taken modulo the namespace.
    Misdirect {
        /// The other starting LBA.
        slba: u64,
    },
    /// The controller fails (CSTS.CFS) instead of running it.
    Fatal,
    /// The device is pulled out instead of running it.
    Remove,
}

impl Verdict {
    /// What a fault of a plan does to the command it met; `draw` decides what the fault leaves open.
    pub(super) fn of(kind: FaultKind, draw: u64) -> Verdict {
        // Never zero, so that the field does change.
        let mask = (draw >> 16) as u16 | 1 << (draw % 16);
        match kind {
            FaultKind::Lose => Verdict::Lose,
            FaultKind::Mute => Verdict::Mute,
            FaultKind::Hold => Verdict::Hold,
            FaultKind::Delay(time) => Verdict::Delay(time),
            FaultKind::Twice => Verdict::Twice,
            FaultKind::Again(time) => Verdict::Again(time),
            FaultKind::Status(status) => Verdict::Fail(status),
            FaultKind::WrongCid => Verdict::XorCqe { cid: mask, sqid: 0, sqhd: 0 },
            FaultKind::WrongSqid => Verdict::XorCqe { cid: 0, sqid: mask, sqhd: 0 },
            // Beyond every queue that has fewer than 32768 entries.
            FaultKind::WrongSqhd => Verdict::XorCqe { cid: 0, sqid: 0, sqhd: mask | 1 << 15 },
            FaultKind::WrongPhase => Verdict::WrongPhase,
            FaultKind::Media => Verdict::MediaError,
            FaultKind::Rot => Verdict::Rot { bit: draw },
            FaultKind::Misdirect => Verdict::Misdirect { slba: draw },
            FaultKind::RefuseAbort => Verdict::Answer(1),
            FaultKind::Fatal => Verdict::Fatal,
            FaultKind::Remove => Verdict::Remove,
            FaultKind::HangEnable
            | FaultKind::SlowEnable(_)
            | FaultKind::SlowDisable(_)
            | FaultKind::RefuseDisable
            | FaultKind::RefuseReset
            | FaultKind::RefuseSubsystemReset
            | FaultKind::Tear => Verdict::Run,
        }
    }
}

/// Decides about each command, in the order they are fetched.
pub(super) type CommandHook = Box<dyn FnMut(&Sqe, Qid) -> Verdict + Send>;
