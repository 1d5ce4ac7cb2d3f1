//! What shall go wrong: a plan of faults, by script or by seed.
//!
//! A [`FaultPlan`] is a list of rules. Each says what happens ([`FaultKind`]), to
//! which commands ([`FaultScope`]), when ([`FaultTrigger`]) and how often. It is built
//! from these types or from text (`docs/faults.md` has the syntax), and prints as text that
//! parses to the same plan.
//!
//! Chance comes from [`super::Options::seed`] alone: each rule draws from a stream
//! of its own, so the same seed and the same commands meet the same faults, and taking a
//! rule away does not move the others.

mod injector;
mod text;

use std::time::Duration;

use adit_spec::{Nsid, Qid, Status};

pub(super) use injector::{Injector, Moment};

/// Rules about what goes wrong; the first that fires decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The rules, in order of precedence.
    pub rules: Vec<FaultRule>,
}

/// One way to go wrong, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What happens.
    pub kind: FaultKind,
    /// Which commands it happens to; of no meaning for faults of the controller's life.
    pub scope: FaultScope,
    /// When it happens.
    pub trigger: FaultTrigger,
    /// The most times that it happens; `None` is no limit.
    pub times: Option<u32>,
}

impl FaultRule {
    /// `kind`, each time that it can happen, to all commands that it usually is about.
    pub fn new(kind: FaultKind) -> FaultRule {
        let scope = FaultScope { commands: kind.usual_commands(), ..FaultScope::default() };
        FaultRule { kind, scope, trigger: FaultTrigger::Always, times: None }
    }
}

/// What happens. Docs of each name the word for it in the text syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `lose`: the command is neither executed nor completed; Abort does not find it.
    Lose,
    /// `mute`: the command is executed, and never completed; Abort does not find it.
    Mute,
    /// `hold`: the command waits until Abort ends it or [`super::Controller::release_held`] runs it.
    Hold,
    /// `delay(TIME)`: the command waits that long before it is executed.
    Delay(Duration),
    /// `twice`: the completion is posted twice.
    Twice,
    /// `again(TIME)`: the completion is posted, and once more after that long.
    Again(Duration),
    /// `status(SCT:SC)` in hexadecimal, then `:dnr`, `:more`, `:crd1` to `:crd3`: the command
    /// completes with this status, not executed. `status(0:0)` claims what was not done.
    Status(Status),
    /// `cid`: the completion has the identifier of another command.
    WrongCid,
    /// `sqid`: the completion names another submission queue.
    WrongSqid,
    /// `sqhd`: the completion has an impossible submission queue head.
    WrongSqhd,
    /// `phase`: the completion is written with the wrong phase tag, so that the
    /// host does not see it, nor any after it in this queue.
    WrongPhase,
    /// `media`: the command's LBAs cannot be read (Unrecovered Read Error) until they are
    /// written again; if it is a write itself, it fails with Write Fault.
    Media,
    /// `rot`: one bit of the command's LBAs flips where they are stored: before a read, after a write.
    Rot,
    /// `misdirect`: the write lands at another LBA of its namespace and completes as if it had not.
    Misdirect,
    /// `noabort`: Abort answers that it did not abort.
    RefuseAbort,
    /// `cfs`: the controller fails: CSTS.CFS is set and no command runs.
    Fatal,
    /// `remove`: the device is gone: registers read all ones.
    Remove,
    /// `hang-enable`: CSTS.RDY is never set.
    HangEnable,
    /// `slow-enable(TIME)`: CSTS.RDY is set that long after CC.EN.
    SlowEnable(Duration),
    /// `slow-disable(TIME)`: CSTS.RDY is cleared that long after CC.EN.
    SlowDisable(Duration),
    /// `refuse-disable`: CSTS.RDY is not cleared, until a reset.
    RefuseDisable,
    /// `refuse-reset`: a function reset fails.
    RefuseReset,
    /// `refuse-nssr`: a subsystem reset does nothing.
    RefuseSubsystemReset,
    /// `tear`: at a power cut LBAs of 4096 bytes tear at 512 bytes, although AWUPF says they do not.
    Tear,
}

/// What a fault can happen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Any command.
    Command,
    /// Commands over a range of LBAs.
    Lbas,
    /// Those of them that write.
    Writes,
    /// The controller, by a command or by the clock.
    Controller,
    /// A step of the controller's life.
    Life,
}

impl FaultKind {
    fn subject(self) -> Subject {
        match self {
            FaultKind::Media | FaultKind::Rot => Subject::Lbas,
            FaultKind::Misdirect => Subject::Writes,
            FaultKind::Fatal | FaultKind::Remove => Subject::Controller,
            FaultKind::HangEnable
            | FaultKind::SlowEnable(_)
            | FaultKind::SlowDisable(_)
            | FaultKind::RefuseDisable
            | FaultKind::RefuseReset
            | FaultKind::RefuseSubsystemReset
            | FaultKind::Tear => Subject::Life,
            _ => Subject::Command,
        }
    }

    fn usual_commands(self) -> FaultCommands {
        match self {
            FaultKind::RefuseAbort => FaultCommands::AdminOpcode(super::admin::ABORT),
            _ => FaultCommands::Io,
        }
    }
}

/// Which commands a rule is about: those to which all of this applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultScope {
    /// By what they are.
    pub commands: FaultCommands,
    /// By their submission queue.
    pub queue: Option<Qid>,
    /// By their namespace.
    pub namespace: Option<Nsid>,
    /// By their LBAs: first and last of a range that theirs overlap.
    pub lbas: Option<(u64, u64)>,
}

/// Commands by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultCommands {
    /// `any`.
    Any,
    /// `io`: on an I/O queue.
    #[default]
    Io,
    /// `admin`: on the admin queue.
    Admin,
    /// `read`, `write`, ... or `op=NUMBER`: on an I/O queue with this opcode.
    IoOpcode(u8),
    /// `identify`, `abort`, ... or `admin-op=NUMBER`: on the admin queue with this opcode.
    AdminOpcode(u8),
}

/// When a rule fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultTrigger {
    /// Each time.
    #[default]
    Always,
    /// `p=0.001`: by chance.
    Chance(FaultChance),
    /// `n=100`: the hundredth time that its scope applies, counted from 1.
    Nth(u64),
    /// `t=5ms`: from this time on, counted from the origin of the bus's clock.
    From(Duration),
}

/// A probability in parts per billion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultChance(u32);

impl FaultChance {
    /// What is certain, in parts per billion.
    pub const CERTAIN_PPB: u32 = 1_000_000_000;

    /// A chance of `ppb` parts per billion; more than certain is certain.
    pub const fn from_ppb(ppb: u32) -> FaultChance {
        FaultChance(if ppb > FaultChance::CERTAIN_PPB { FaultChance::CERTAIN_PPB } else { ppb })
    }

    /// Parts per billion.
    pub const fn ppb(self) -> u32 {
        self.0
    }
}
