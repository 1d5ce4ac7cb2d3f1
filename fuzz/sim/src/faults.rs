//! The faults of a run: which kinds it has, and when each strikes.
//!
//! Each seed switches kinds on and off (swarm testing): faults mask one another, so one run with all of them
//! encounters less than many runs with some. The controller's hook decides what strikes a command when it is fetched;
//! all other faults are actions of the schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Cqe, IoOpcode, Qid, Sqe, Status};

use crate::bus::{Reach, Reached, Watch, lock};
use crate::canary::Canary;
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    /// An I/O command is neither executed nor completed.
    LoseIo,
    /// It waits until it is aborted or released.
    HoldIo,
    /// It fails with some status, not executed.
    FailIo,
    /// It runs, and its completion names no command in flight.
    BadCid,
    /// Its completion names another submission queue.
    BadSqid,
    /// Its completion has an impossible submission queue head.
    BadSqhead,
    /// Its completion has an unknown error status.
    BadStatus,
    /// Its completion comes twice.
    Twice,
    /// Its completion names another command in flight. That is undetectable, so data is no longer checked.
    Alias,
    /// It waits for a while, then runs.
    DelayIo,
    /// It runs, and its completion never comes.
    Mute,
    /// It runs, and its completion comes once more, later.
    Again,
    /// It runs, and its completion and all later ones have the wrong phase.
    WrongPhase,
    /// Its LBAs become unreadable.
    Media,
    /// A bit of its LBAs flips on the medium; their contents are no longer checked.
    Rot,
    /// It runs at other LBAs; the contents of both are no longer checked.
    Misdirect,
    /// An admin command is lost.
    LoseAdmin,
    /// It waits until it is released.
    HoldAdmin,
    /// It fails.
    FailAdmin,
    /// Its completion is wrong or comes twice.
    BadAdmin,
    /// An Abort is refused.
    RefuseAbort,
    /// CSTS.CFS.
    Fatal,
    /// CSTS.RDY stays clear.
    HangEnable,
    /// CSTS.RDY changes slowly, up and down.
    Slow,
    /// CC.EN = 0 is ignored.
    RefuseDisable,
    /// A subsystem reset does nothing.
    RefuseSubsystem,
    /// A function reset fails.
    RefuseReset,
    /// The device is unplugged, and perhaps replugged.
    Unplug,
    /// Its power is cut, and perhaps restored.
    PowerCut,
    /// The bus reports an error or requests the device.
    BusEvent,
    /// A register reads wrong for a while.
    Lie,
    /// The namespace is detached and attached.
    Detach,
    /// The namespace changes its size.
    Resize,
    /// Firmware is activated: commands wait.
    Firmware,
    /// The temperature rises and falls.
    Heat,
    /// Critical warnings.
    Warning,
    /// Nothing polls until deadlines have passed.
    Overdue,
    /// Queue pairs are dropped with commands in flight.
    DropQueue,
    /// Everything is dropped in the middle of the run.
    DropAll,
    /// The controller is opened while faults strike.
    OpenAmidst,
}

impl Fault {
    pub(crate) const ALL: [Fault; 40] = [
        Fault::LoseIo,
        Fault::HoldIo,
        Fault::FailIo,
        Fault::BadCid,
        Fault::BadSqid,
        Fault::BadSqhead,
        Fault::BadStatus,
        Fault::Twice,
        Fault::Alias,
        Fault::DelayIo,
        Fault::Mute,
        Fault::Again,
        Fault::WrongPhase,
        Fault::Media,
        Fault::Rot,
        Fault::Misdirect,
        Fault::LoseAdmin,
        Fault::HoldAdmin,
        Fault::FailAdmin,
        Fault::BadAdmin,
        Fault::RefuseAbort,
        Fault::Fatal,
        Fault::HangEnable,
        Fault::Slow,
        Fault::RefuseDisable,
        Fault::RefuseSubsystem,
        Fault::RefuseReset,
        Fault::Unplug,
        Fault::PowerCut,
        Fault::BusEvent,
        Fault::Lie,
        Fault::Detach,
        Fault::Resize,
        Fault::Firmware,
        Fault::Heat,
        Fault::Warning,
        Fault::Overdue,
        Fault::DropQueue,
        Fault::DropAll,
        Fault::OpenAmidst,
    ];
}

/// The kinds of faults in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swarm(u64);

impl Swarm {
    /// Draws the kinds of a run; a tenth of all runs have none.
    pub(crate) fn draw(random: &mut Random) -> Swarm {
        let mut swarm = Swarm(0);
        let percent = random.pick(&[0, 8, 8, 15, 15, 25, 25, 40, 40, 60]);
        for fault in Fault::ALL {
            // Faults that end all checking, or most runs, are rarer.
            let rare = match fault {
                Fault::RefuseReset => 8,
                Fault::Alias | Fault::HangEnable => 3,
                _ => 1,
            };
            swarm.set(fault, random.chance(percent) && random.one_in(rare));
        }
        swarm
    }

    fn set(&mut self, fault: Fault, on: bool) {
        let bit = 1 << fault as u64;
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    /// Returns whether the run has this kind.
    pub(crate) fn has(self, fault: Fault) -> bool {
        self.0 >> fault as u8 & 1 == 1
    }

    pub(crate) fn kinds(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.has(*fault))
    }
}

/// Decides which faults strike commands.
#[derive(Debug)]
pub(crate) struct Plan {
    swarm: Swarm,
    random: Random,
    /// One in this many commands is struck.
    io_one_in: u64,
    admin_one_in: u64,
    is_calm: bool,
    /// How often each kind struck.
    struck: [u64; Fault::ALL.len()],
    /// Protocol-breaking completions by queue, not yet taken.
    broken: BTreeMap<u16, u64>,
    /// Queues that see no more completions, because one had the wrong phase.
    blind: BTreeSet<u16>,
    /// Queues to which a completion will be repeated.
    repeats: BTreeSet<u16>,
    is_tainted: bool,
    /// LBAs whose data the medium may have corrupted, as bits.
    damaged: u64,
    lbas: u64,
    canary: Option<Canary>,
    watch: Watch,
}

impl Plan {
    pub(crate) fn new(
        swarm: Swarm,
        lbas: u64,
        mut random: Random,
        canary: Option<Canary>,
        watch: Watch,
    ) -> Arc<Mutex<Plan>> {
        let io_one_in = random.pick(&[3, 8, 8, 20, 60]);
        let admin_one_in = random.pick(&[3, 8, 20]);
        Arc::new(Mutex::new(Plan {
            swarm,
            random,
            io_one_in,
            admin_one_in,
            is_calm: true,
            struck: [0; Fault::ALL.len()],
            broken: BTreeMap::new(),
            blind: BTreeSet::new(),
            repeats: BTreeSet::new(),
            is_tainted: false,
            damaged: 0,
            lbas,
            canary,
            watch,
        }))
    }

    /// Stops or resumes striking.
    pub(crate) fn set_calm(&mut self, is_calm: bool) {
        self.is_calm = is_calm;
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        self.struck[fault as usize] += 1;
    }

    /// Returns how often each kind struck, in the order of [`Fault::ALL`].
    pub(crate) fn struck(&self) -> &[u64; Fault::ALL.len()] {
        &self.struck
    }

    pub(crate) fn has_struck(&self, fault: Fault) -> bool {
        self.struck[fault as usize] > 0
    }

    /// Returns whether nothing has struck yet, in which case nothing may fail.
    pub(crate) fn is_clean(&self) -> bool {
        self.struck.iter().all(|count| *count == 0)
    }

    /// Returns whether the controller lied undetectably.
    pub(crate) fn is_tainted(&self) -> bool {
        self.is_tainted
    }

    /// Sets the new size of the namespace.
    pub(crate) fn set_lbas(&mut self, lbas: u64) {
        self.lbas = lbas;
    }

    /// Returns whether the contents of an LBA may be wrong.
    pub(crate) fn is_damaged(&self, lba: u64) -> bool {
        self.damaged >> lba & 1 == 1
    }

    /// Returns whether the contents of any LBA may be wrong.
    pub(crate) fn has_damage(&self) -> bool {
        self.damaged != 0
    }

    pub(crate) fn damage(&mut self, lba: u64) {
        self.damaged |= 1 << lba;
    }

    /// Forgets completions that no queue will see, because the controller is reset.
    pub(crate) fn forget_violations(&mut self) {
        self.broken.clear();
        self.repeats.clear();
    }

    /// Takes the number of broken completions that a queue was sent.
    pub(crate) fn take_violations(&mut self, qid: u16) -> u64 {
        self.broken.remove(&qid).unwrap_or(0)
    }

    /// Decides what happens to a command.
    pub(crate) fn judge(&mut self, sqe: &Sqe, qid: Qid) -> Verdict {
        let verdict = match (qid.is_admin(), self.canary.and_then(|canary| canary.verdict(sqe))) {
            (false, Some(verdict)) if !self.is_calm => verdict,
            (false, _) => self.judge_io(sqe, qid),
            (true, _) => self.judge_admin(sqe.admin_opcode()),
        };
        if qid.is_admin() && executes(verdict) {
            self.follow(sqe);
        }
        verdict
    }

    fn judge_io(&mut self, sqe: &Sqe, qid: Qid) -> Verdict {
        let Some(fault) = self.draw(&IO_KINDS, self.io_one_in) else { return Verdict::Run };
        let moves = [IoOpcode::READ, IoOpcode::WRITE].contains(&sqe.io_opcode());
        if !moves && matches!(fault, Fault::Media | Fault::Rot | Fault::Misdirect) {
            return Verdict::Run;
        }
        self.strike(fault);
        let breaks = matches!(fault, Fault::BadCid | Fault::BadSqid | Fault::BadSqhead);
        if breaks && !self.blind.contains(&qid.0) {
            *self.broken.entry(qid.0).or_default() += 1;
        }
        match fault {
            Fault::LoseIo => Verdict::Lose,
            Fault::HoldIo => Verdict::Hold,
            Fault::FailIo => Verdict::Fail(some_status(&mut self.random)),
            Fault::BadCid => Verdict::CorruptCqe(self.random.pick(&BAD_CIDS)),
            Fault::BadSqid => Verdict::CorruptCqe(|cqe| cqe.sqid = (cqe.sqid.get() ^ 0x40).into()),
            Fault::BadSqhead => Verdict::CorruptCqe(self.random.pick(&BAD_SQHEADS)),
            Fault::BadStatus => Verdict::CorruptCqe(|cqe| cqe.status_word = 0xfffe.into()),
            Fault::Twice => Verdict::Twice,
            Fault::DelayIo => Verdict::Delay(self.some_time()),
            Fault::Mute => Verdict::Mute,
            Fault::Again => {
                self.repeats.insert(qid.0);
                Verdict::Again(self.some_time())
            }
            Fault::WrongPhase => {
                self.blind.insert(qid.0);
                Verdict::WrongPhase
            }
            Fault::Media => Verdict::MediaError,
            Fault::Rot => {
                self.damage_run(first_lba(sqe), sqe);
                Verdict::Rot { bit: self.random.next() }
            }
            Fault::Misdirect => self.misdirect(sqe),
            _ => {
                self.is_tainted = true;
                Verdict::CorruptCqe(|cqe| cqe.cid = (cqe.cid.get() ^ 1).into())
            }
        }
    }

    /// Redirects a command to other LBAs in use.
    fn misdirect(&mut self, sqe: &Sqe) -> Verdict {
        let room = self.lbas.saturating_sub(lba_count(sqe)) + 1;
        let first = first_lba(sqe);
        let slba = match self.random.below(room) {
            same if same == first => (same + 1) % room,
            other => other,
        };
        self.damage_run(slba, sqe);
        self.damage_run(first, sqe);
        if self.swarm.has(Fault::Resize) {
            // It may run after the namespace has changed size, and then at any LBA.
            self.damaged = u64::MAX;
        }
        Verdict::Misdirect { slba }
    }

    fn damage_run(&mut self, first: u64, sqe: &Sqe) {
        (first..first + lba_count(sqe)).for_each(|lba| self.damage(lba));
    }

    /// Returns a time between far less and more than a command's timeout.
    fn some_time(&mut self) -> Duration {
        Duration::from_micros(1 << self.random.below(24))
    }

    fn judge_admin(&mut self, opcode: AdminOpcode) -> Verdict {
        const KINDS: [Fault; 5] = [
            Fault::LoseAdmin,
            Fault::HoldAdmin,
            Fault::FailAdmin,
            Fault::BadAdmin,
            Fault::RefuseAbort,
        ];
        let Some(fault) = self.draw(&KINDS, self.admin_one_in) else { return Verdict::Run };
        if fault == Fault::RefuseAbort && opcode != AdminOpcode::ABORT {
            return Verdict::Run;
        }
        self.strike(fault);
        match fault {
            Fault::RefuseAbort => Verdict::Answer(1),
            Fault::LoseAdmin => Verdict::Lose,
            // A held event request would complete as if an event had occurred.
            Fault::HoldAdmin if opcode == AdminOpcode::ASYNC_EVENT_REQUEST => Verdict::Run,
            Fault::HoldAdmin => Verdict::Hold,
            Fault::FailAdmin => Verdict::Fail(some_status(&mut self.random)),
            _ if self.random.one_in(2) => Verdict::Twice,
            _ => Verdict::CorruptCqe(self.random.pick(&BAD_CIDS)),
        }
    }

    /// Draws one of `kinds` that the run has, for one in this many commands.
    fn draw(&mut self, kinds: &[Fault], one_in: u64) -> Option<Fault> {
        if self.is_calm || !self.random.one_in(one_in) {
            return None;
        }
        let here = kinds.iter().filter(|fault| self.swarm.has(**fault)).count();
        if here == 0 {
            return None;
        }
        let at = self.random.index(here);
        kinds.iter().filter(|fault| self.swarm.has(**fault)).nth(at).copied()
    }

    /// Records which rings the device has.
    fn follow(&mut self, sqe: &Sqe) {
        let dwords = sqe.to_dwords();
        let (qid, entries) = (dwords[10] as u16, u64::from(dwords[10] >> 16) + 1);
        let ring =
            |what, entry_bytes| Reach { qid, iova: sqe.prp1().0, len: entries * entry_bytes, what };
        let mut watch = lock(&self.watch);
        match sqe.admin_opcode() {
            AdminOpcode::CREATE_IO_SQ => watch.reach(ring(Reached::Submission, 64)),
            AdminOpcode::CREATE_IO_CQ => {
                self.blind.remove(&qid);
                // A repeated completion of the old queue may name a command of the new one.
                self.is_tainted |= self.repeats.contains(&qid);
                watch.reach(ring(Reached::Completion, 16));
            }
            AdminOpcode::DELETE_IO_SQ => watch.forget_ring(qid, Reached::Submission),
            AdminOpcode::DELETE_IO_CQ => watch.forget_ring(qid, Reached::Completion),
            _ => {}
        }
    }
}

/// Faults that may strike an I/O command.
const IO_KINDS: [Fault; 16] = [
    Fault::LoseIo,
    Fault::HoldIo,
    Fault::FailIo,
    Fault::BadCid,
    Fault::BadSqid,
    Fault::BadSqhead,
    Fault::BadStatus,
    Fault::Twice,
    Fault::DelayIo,
    Fault::Mute,
    Fault::Again,
    Fault::WrongPhase,
    Fault::Media,
    Fault::Rot,
    Fault::Misdirect,
    Fault::Alias,
];

/// Returns the first LBA of a read or write.
fn first_lba(sqe: &Sqe) -> u64 {
    let dwords = sqe.to_dwords();
    u64::from(dwords[11]) << 32 | u64::from(dwords[10])
}

/// Returns the number of LBAs of a read or write.
fn lba_count(sqe: &Sqe) -> u64 {
    u64::from(sqe.to_dwords()[12] & 0xffff) + 1
}

/// Returns whether the command is carried out when it is fetched.
fn executes(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Run | Verdict::Twice | Verdict::CorruptCqe(_))
}

/// Changes to identifiers of no command in flight: no slot, or another generation of the same slot.
const BAD_CIDS: [fn(&mut Cqe); 3] = [
    |cqe| cqe.cid = 0xffff.into(),
    |cqe| cqe.cid = (cqe.cid.get() ^ 0x8000).into(),
    |cqe| cqe.cid = (cqe.cid.get() ^ 0x4000).into(),
];

const BAD_SQHEADS: [fn(&mut Cqe); 2] =
    [|cqe| cqe.sqhd = 0xffff.into(), |cqe| cqe.sqhd = (cqe.sqhd.get() ^ 0x8000).into()];

fn some_status(random: &mut Random) -> Status {
    let status = random.pick(&[
        Status::INTERNAL_ERROR,
        Status::DATA_TRANSFER_ERROR,
        Status::NAMESPACE_NOT_READY,
        Status::COMMAND_ABORT_REQUESTED,
        Status::INVALID_FIELD_IN_COMMAND,
        Status::new(2, 0x80),
        Status::new(2, 0x81),
        Status::new(7, 0xff),
    ]);
    status.with_dnr(random.one_in(2)).with_crd(random.below(4) as u8)
}
