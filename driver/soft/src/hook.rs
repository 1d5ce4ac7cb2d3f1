//! The hook between fetching and executing a command. A script ([`super::Controller::set_hook`]) or a plan
//! ([`super::FaultPlan`]) decides here what happens to it.

use std::time::Duration;

use super::faults::{FaultKind, FaultPlan, Injector};
use super::options::Options;
use super::timing::Timing;
use adit_spec::{Cqe, Qid, Sqe, Status};

/// What happens to a fetched command. LBA faults affect only commands with a single LBA range.
#[derive(Clone, Copy, Debug, Default)]
pub enum Verdict {
    /// Executes it normally.
    #[default]
    Run,
    /// Neither executes nor completes it; Abort does not find it.
    Lose,
    /// Executes it without ever completing it; Abort does not find it.
    Mute,
    /// Holds it until Abort ends it or [`super::Controller::release_held`] runs it.
    Hold,
    /// Delays it this long, then runs it; Abort can end it meanwhile.
    Delay(Duration),
    /// Completes it with this status without executing it.
    Fail(Status),
    /// Completes it with success and this dword 0 without executing it. For Abort, dword 0 of 1 means refused.
    Answer(u32),
    /// Executes it and alters its completion entry before posting (the phase tag is set afterwards).
    CorruptCqe(fn(&mut Cqe)),
    /// Executes it and XORs these masks into fields of its completion entry.
    XorCqe {
        /// Command Identifier.
        cid: u16,
        /// SQ Identifier.
        sqid: u16,
        /// SQ Head Pointer.
        sqhd: u16,
    },
    /// Executes it and writes its completion with the wrong phase tag, which hides it and all later ones until the
    /// queue is recreated.
    WrongPhase,
    /// Executes it and posts its completion twice.
    Twice,
    /// Executes it and posts its completion once more after this long.
    Again(Duration),
    /// Makes its LBAs unreadable until rewritten, then executes it; a write fails with Write Fault instead.
    MediaError,
    /// Executes it and flips a stored bit of its LBAs: before a read, after a write.
    Rot {
        /// Bit index into the command's data, modulo its bit count.
        bit: u64,
    },
    /// Executes it at another starting LBA, taken modulo the namespace if it does not fit.
    Misdirect {
        /// The other starting LBA.
        slba: u64,
    },
    /// Fails the controller (CSTS.CFS) instead of executing it.
    Fatal,
    /// Removes the device instead of executing it.
    Remove,
}

impl Verdict {
    /// Converts a plan's fault; `draw` decides its open parameters.
    pub(super) fn of(kind: FaultKind, draw: u64) -> Verdict {
        // Never zero, so that the field always changes.
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
            // Out of range for every queue of fewer than 32768 entries.
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

/// What may affect commands between fetching and completing them.
pub(super) struct Watch {
    pub(super) hook: Option<CommandHook>,
    pub(super) identity: Option<IdentifyHook>,
    pub(super) injector: Option<Injector>,
    pub(super) timing: Option<Box<Timing>>,
}

impl Watch {
    pub(super) fn new(options: &Options) -> Watch {
        let mut watch = Watch {
            hook: None,
            identity: None,
            injector: None,
            timing: options.model.map(|model| Box::new(Timing::new(model.profile()))),
        };
        watch.set_faults(&options.faults, options.seed);
        watch
    }

    pub(super) fn set_faults(&mut self, plan: &FaultPlan, seed: u64) {
        self.injector = (!plan.rules.is_empty()).then(|| Injector::new(plan, seed));
    }

    /// Returns whether it affects no command.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.hook.is_none() && self.injector.is_none() && self.timing.is_none()
    }
}

/// Alters Identify data before the host gets it, given its CNS.
pub(super) type IdentifyHook = Box<dyn FnMut(u8, &mut [u8; 4096]) + Send>;

/// Decides about each command in fetch order.
pub(super) type CommandHook = Box<dyn FnMut(&Sqe, Qid) -> Verdict + Send>;
