//! Fault plans, by script or by seed.
//!
//! A [`FaultPlan`] is a list of rules. Each rule gives the fault ([`FaultKind`]), the commands it affects
//! ([`FaultScope`]), when it fires ([`FaultTrigger`]) and how often. Plans are built from these types or parsed from
//! text (syntax in `docs/use/faults.md`).
//!
//! All randomness derives from [`super::Options::seed`]. Each rule draws from its own stream: the same seed and the
//! same commands meet the same faults, and removing a rule leaves the others unchanged.

mod injector;
mod text;

use std::time::Duration;

use adit_spec::{Nsid, Qid, Status};

pub(super) use injector::{Injector, Moment};

/// Fault rules; the first that fires decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The rules, in order of precedence.
    pub rules: Vec<FaultRule>,
}

/// One fault, and when it occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The fault.
    pub kind: FaultKind,
    /// The commands it affects; ignored for lifecycle faults.
    pub scope: FaultScope,
    /// When it fires.
    pub trigger: FaultTrigger,
    /// How often it may fire; `None` is no limit.
    pub times: Option<u32>,
}

impl FaultRule {
    /// Creates a rule that fires `kind` at every opportunity, on its usual commands.
    pub fn new(kind: FaultKind) -> FaultRule {
        let scope = FaultScope { commands: kind.usual_commands(), ..FaultScope::default() };
        FaultRule { kind, scope, trigger: FaultTrigger::Always, times: None }
    }
}

/// A fault. Each variant's docs name its word in the text syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `lose`: the command is neither executed nor completed, and Abort does not find it.
    Lose,
    /// `mute`: the command is executed but never completed, and Abort does not find it.
    Mute,
    /// `hold`: the command waits until Abort ends it or [`super::Controller::release_held`] runs it.
    Hold,
    /// `delay(TIME)`: the command waits that long before execution.
    Delay(Duration),
    /// `twice`: the completion is posted twice.
    Twice,
    /// `again(TIME)`: the completion is posted, and again after that long.
    Again(Duration),
    /// `status(SCT:SC)` in hexadecimal, then `:dnr`, `:more`, `:crd1` to `:crd3`: the command completes with this
    /// status without being executed. `status(0:0)` falsely reports success.
    Status(Status),
    /// `cid`: the completion has the identifier of another command.
    WrongCid,
    /// `sqid`: the completion names another submission queue.
    WrongSqid,
    /// `sqhd`: the completion has an impossible submission queue head.
    WrongSqhd,
    /// `phase`: the completion is written with the wrong phase tag, which hides it and all later ones of this queue
    /// from the host.
    WrongPhase,
    /// `media`: the command's LBAs become unreadable (Unrecovered Read Error) until rewritten; a write fails with Write
    /// Fault.
    Media,
    /// `rot`: one stored bit of the command's LBAs flips: before a read, after a write.
    Rot,
    /// `misdirect`: the write lands at another LBA of its namespace and completes normally.
    Misdirect,
    /// `noabort`: Abort reports that it aborted nothing.
    RefuseAbort,
    /// `cfs`: the controller fails: CSTS.CFS is set and no command runs.
    Fatal,
    /// `remove`: the device disappears: registers read all ones.
    Remove,
    /// `hang-enable`: CSTS.RDY is never set.
    HangEnable,
    /// `slow-enable(TIME)`: CSTS.RDY is set that long after CC.EN.
    SlowEnable(Duration),
    /// `slow-disable(TIME)`: CSTS.RDY is cleared that long after CC.EN.
    SlowDisable(Duration),
    /// `refuse-disable`: CSTS.RDY stays set until a reset.
    RefuseDisable,
    /// `refuse-reset`: a function reset fails.
    RefuseReset,
    /// `refuse-nssr`: a subsystem reset does nothing.
    RefuseSubsystemReset,
    /// `tear`: at a power cut, LBAs of 4096 bytes tear at 512 bytes, contrary to AWUPF.
    Tear,
}

/// What a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Command,
    /// Commands over a range of LBAs.
    Lbas,
    /// Writes over a range of LBAs.
    Writes,
    /// The controller, triggered by a command or the clock.
    Controller,
    /// A lifecycle step of the controller.
    Life,
}

impl FaultKind {
    fn subject(self) -> Subject {
        match self {
            FaultKind::Media | FaultKind::Rot => Subject::Lbas,
            FaultKind::Misdirect => Subject::Writes,
            FaultKind::Fatal | FaultKind::Remove => Subject::Controller,
            other if other.moment().is_some() => Subject::Life,
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

/// The commands a rule affects: those that match every field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultScope {
    /// By kind.
    pub commands: FaultCommands,
    /// By their submission queue.
    pub queue: Option<Qid>,
    /// By their namespace.
    pub namespace: Option<Nsid>,
    /// By LBAs: first and last of a range that the command's overlap.
    pub lbas: Option<(u64, u64)>,
}

/// Commands by kind.
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
    /// `n=100`: the hundredth match of its scope, counted from 1.
    Nth(u64),
    /// `t=5ms`: from this time on, measured on the bus's clock from its origin.
    From(Duration),
}

/// A probability in parts per billion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultChance(u32);

impl FaultChance {
    /// Certainty in parts per billion.
    pub const CERTAIN_PPB: u32 = 1_000_000_000;

    /// Creates a chance of `ppb` parts per billion; caps at certainty.
    pub const fn from_ppb(ppb: u32) -> FaultChance {
        FaultChance(if ppb > FaultChance::CERTAIN_PPB { FaultChance::CERTAIN_PPB } else { ppb })
    }

    /// Parts per billion.
    pub const fn ppb(self) -> u32 {
        self.0
    }
}
