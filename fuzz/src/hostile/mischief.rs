//! Chooses what a hostile device does next.
//!
//! Every bus access of the driver is an opportunity for an event; the input says how many pass between two events,
//! and which events happen. A mask selects the kinds of events in a run, so that some runs have a controller that
//! only ever loses commands.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_driver::bus::BusEvent;
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, Cqe, Qid, Sqe, Status};

use crate::input::Input;

/// Choices for the number of opportunities between two events.
const GAPS: [u32; 16] = [0, 0, 1, 1, 2, 3, 5, 8, 13, 21, 40, 80, 160, 320, 640, 1280];
/// Registers worth lying about: CAP, VS, CC, CSTS, CMBLOC, CMBSZ, CMBSTS, CRTO.
const REGISTERS: [u32; 10] = [0x00, 0x08, 0x14, 0x1c, 0x1c, 0x1c, 0x38, 0x3c, 0x58, 0x68];
/// Fields of Identify structures and lists that the driver acts on.
const FIELDS: [u64; 24] = [
    0, 4, 8, 16, 25, 26, 27, 46, 77, 88, 92, 96, 100, 128, 130, 131, 256, 258, 259, 512, 513, 516,
    525, 536,
];
/// Limit of remembered completion rings and data pages.
const REMEMBERED_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    LieOnce,
    LieAlways,
    Scribble,
    ForgeCompletion,
    FlipCompletion,
    ChangeData,
    CorruptVerdict,
    Restart,
    // From here on the controller misbehaves, but does not lie.
    Verdict,
    Release,
    Die,
    Stubborn,
    Vanish,
    BusEvent,
    Event,
    Refuse,
}

const KINDS: [Kind; 16] = [
    Kind::LieOnce,
    Kind::LieAlways,
    Kind::Scribble,
    Kind::ForgeCompletion,
    Kind::FlipCompletion,
    Kind::ChangeData,
    Kind::CorruptVerdict,
    Kind::Restart,
    Kind::Verdict,
    Kind::Release,
    Kind::Die,
    Kind::Stubborn,
    Kind::Vanish,
    Kind::BusEvent,
    Kind::Event,
    Kind::Refuse,
];
/// The kinds that are lies: without them, memory that the controller accesses must be mapped. (A controller that
/// resets itself forgets where its queues are, and may be enabled without knowing.)
const LIES: u16 = 0xff;

/// An action of the bus on the software controller or on memory.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Write { at: u64, bytes: Vec<u8> },
    Post { at: u64, entry: [u8; 16] },
    Flip { at: u64, bit: u8 },
    Release,
    Die,
    Refuse(Refusal, bool),
    Delays(Duration, Duration),
    Vanish,
    Return,
    Restart,
    Report(BusEvent),
    NamespaceChanged(u32),
    AttachNamespace(u32, bool),
    Temperature(u16),
}

/// What a controller refuses while so instructed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    Disable,
    Enable,
    SubsystemReset,
}

/// A completion ring as the device knows it.
#[derive(Clone, Copy, Debug)]
struct Completions {
    at: u64,
    entries: u64,
    taken: u64,
    qid: Qid,
}

/// A lie about a register: the truth with `xor` applied after `and` and `or`.
#[derive(Clone, Copy, Debug)]
struct Lie {
    offset: u32,
    and: u64,
    or: u64,
    xor: u64,
}

/// The choices and the state of a hostile device.
#[derive(Debug)]
pub(super) struct Mischief {
    pub(super) input: Input,
    kinds: u16,
    gap: u32,
    once: Option<Lie>,
    always: Vec<Lie>,
    verdict: Verdict,
    verdicts_left: u8,
    completions: Vec<Completions>,
    pages: Vec<u64>,
    cids: Vec<u16>,
    /// Mapped memory: address and length.
    pub(super) live: BTreeMap<u64, u64>,
    pub(super) refuses_maps: u8,
    pub(super) refuses_unmaps: u8,
    pub(super) refuses_reset: bool,
    pub(super) refuses_cut_off: bool,
    pub(super) refuses_doorbells: bool,
}

impl Mischief {
    pub(super) fn new(mut input: Input) -> Mischief {
        let kinds = match input.back_byte() % 4 {
            0 => input.back_number(2) as u16 & !LIES,
            1 => 1 << (input.back_byte() % 16),
            _ => input.back_number(2) as u16,
        };
        let gap = GAPS[usize::from(input.back_byte() % 16)];
        Mischief {
            input,
            kinds,
            gap,
            once: None,
            always: Vec::new(),
            verdict: Verdict::Run,
            verdicts_left: 0,
            completions: Vec::new(),
            pages: Vec::new(),
            cids: Vec::new(),
            live: BTreeMap::new(),
            refuses_maps: 0,
            refuses_unmaps: 0,
            refuses_reset: false,
            refuses_cut_off: true,
            refuses_doorbells: false,
        }
    }

    /// Returns whether the controller tells no lies in this run.
    pub(super) fn is_honest(&self) -> bool {
        self.kinds & LIES == 0
    }

    /// Returns what the driver sees of a register.
    pub(super) fn shown(&mut self, offset: u32, truth: u64) -> u64 {
        let is_it = |lie: &Lie| lie.offset == offset;
        let once = self.once.take_if(|lie| is_it(lie));
        let lies = self.always.iter().filter(|lie| is_it(lie)).chain(&once);
        lies.fold(truth, |value, lie| (value & lie.and | lie.or) ^ lie.xor)
    }

    /// Observes a register write, which may set the admin completion ring.
    pub(super) fn see_write(&mut self, offset: u32, value: u64) {
        const ACQ: u32 = 0x30;
        if offset == ACQ {
            self.completions.clear();
            self.remember(Completions { at: value, entries: 32, taken: 0, qid: Qid::ADMIN });
        }
    }

    fn remember(&mut self, ring: Completions) {
        self.completions.retain(|known| known.qid != ring.qid);
        self.completions.truncate(REMEMBERED_MAX - 1);
        self.completions.push(ring);
    }

    /// Decides what happens to a command that the controller has fetched.
    pub(super) fn judge(&mut self, sqe: &Sqe, qid: Qid) -> Verdict {
        self.cids.push(sqe.cid().0);
        self.pages.extend((qid.is_admin() && sqe.prp1().0 != 0).then_some(sqe.prp1().0));
        for remembered in [self.cids.len(), self.pages.len()] {
            debug_assert!(remembered <= REMEMBERED_MAX + 1);
        }
        if self.cids.len() > REMEMBERED_MAX {
            self.cids.remove(0);
        }
        if self.pages.len() > REMEMBERED_MAX {
            self.pages.remove(0);
        }
        if qid.is_admin() && sqe.admin_opcode() == AdminOpcode::CREATE_IO_CQ {
            let entries = sqe.queue_entries().map_or(2, |entries| entries.get().into());
            self.remember(Completions { at: sqe.prp1().0, entries, taken: 0, qid: sqe.qid() });
        }
        if let Some(ring) = self.completions.iter_mut().find(|ring| ring.qid == qid) {
            ring.taken += 1;
        }
        match self.verdicts_left {
            0 => Verdict::Run,
            _ => {
                self.verdicts_left -= 1;
                self.verdict
            }
        }
    }

    /// Returns the event at this opportunity, if any.
    pub(super) fn next(&mut self) -> Option<Action> {
        if self.input.is_spent() {
            return None;
        }
        if self.gap > 0 {
            self.gap -= 1;
            return None;
        }
        let kind = usize::from(self.input.back_byte() % 16);
        self.gap = GAPS[usize::from(self.input.back_byte() % 16)];
        if self.kinds & 1 << kind == 0 { None } else { self.act(KINDS[kind]) }
    }

    fn act(&mut self, kind: Kind) -> Option<Action> {
        match kind {
            Kind::LieOnce => self.once = Some(self.lie()),
            Kind::LieAlways => self.lie_always(),
            Kind::Scribble => return self.scribble(),
            Kind::ForgeCompletion => return self.forge(),
            Kind::FlipCompletion => {
                let bit = self.input.back_byte() & 127;
                return Some(Action::Flip { at: self.completion_slot()?, bit });
            }
            Kind::ChangeData => return self.change_data(),
            Kind::CorruptVerdict => {
                let corrupt = self.input.back_pick(&CORRUPTIONS);
                let answer = self.input.back_edgy() as u32;
                let verdicts =
                    [Verdict::CorruptCqe(corrupt), Verdict::Answer(answer), Verdict::WrongPhase];
                (self.verdict, self.verdicts_left) = (self.input.back_pick(&verdicts), 1);
            }
            Kind::Verdict => self.choose_verdict(),
            Kind::Release => return Some(Action::Release),
            Kind::Die => return Some(Action::Die),
            Kind::Stubborn => return Some(self.stubborn()),
            Kind::Vanish => {
                let is_back = self.input.back_byte() & 1 == 0;
                return Some(if is_back { Action::Return } else { Action::Vanish });
            }
            Kind::Restart => return Some(Action::Restart),
            Kind::BusEvent => {
                let events = [BusEvent::Error, BusEvent::RemovalRequested, BusEvent::Gone];
                return Some(Action::Report(self.input.back_pick(&events)));
            }
            Kind::Event => return Some(self.event()),
            Kind::Refuse => self.refuse(),
        }
        None
    }

    fn lie(&mut self) -> Lie {
        let offset = self.input.back_pick(&REGISTERS);
        let how = self.input.back_byte();
        let value = self.input.back_edgy();
        let honest = Lie { offset, and: u64::MAX, or: 0, xor: 0 };
        match how % 5 {
            0 => Lie { and: 0, or: u64::MAX, ..honest },
            1 => Lie { xor: 1 << (value % 64), ..honest },
            2 => Lie { and: 0, or: value, ..honest },
            3 => Lie { and: !(1 << (value % 64)), ..honest },
            _ => Lie { or: 1 << (value % 64), ..honest },
        }
    }

    fn lie_always(&mut self) {
        if self.input.back_byte() & 3 == 0 {
            return self.always.clear();
        }
        let lie = self.lie();
        self.always.retain(|known| known.offset != lie.offset);
        self.always.push(lie);
    }

    /// Writes bytes anywhere in mapped memory.
    fn scribble(&mut self) -> Option<Action> {
        let index = usize::from(self.input.back_byte());
        let count = self.live.len().max(1);
        let (&at, &len) = self.live.iter().nth(index % count)?;
        let offset = match self.input.back_byte() & 1 {
            0 => self.input.back_number(2) * 8 % len,
            _ => self.input.back_number(3) % len,
        };
        let bytes = self.bytes(len - offset);
        Some(Action::Write { at: at + offset, bytes })
    }

    fn bytes(&mut self, at_most: u64) -> Vec<u8> {
        let value = self.input.back_edgy().to_le_bytes();
        let count = self.input.back_pick(&[1, 2, 4, 8, 8, 64, 4096]).min(at_most as usize);
        value.into_iter().cycle().take(count).collect()
    }

    /// Returns a slot of a completion ring at or near the next completion.
    fn completion_slot(&mut self) -> Option<u64> {
        let index = usize::from(self.input.back_byte()) % self.completions.len().max(1);
        let ring = self.completions.get(index).copied()?;
        let near = u64::from(self.input.back_byte() % 8);
        let slot = (ring.taken + near + ring.entries - near.min(2)) % ring.entries;
        Some(ring.at + 16 * slot)
    }

    fn forge(&mut self) -> Option<Action> {
        let at = self.completion_slot()?;
        let known = self.cids.get(usize::from(self.input.back_byte()) % self.cids.len().max(1));
        let cid = known.copied().unwrap_or_default();
        let shape = self.input.back_byte();
        let word = |bit: u8, likely: u16, input: &mut Input| match shape & bit {
            0 => likely,
            _ => input.back_edgy() as u16,
        };
        let cid = word(1, cid, &mut self.input);
        let sqid = word(2, shape as u16 >> 6, &mut self.input);
        let sqhd = word(4, shape as u16 >> 5, &mut self.input);
        let status = word(8, 0, &mut self.input) << 1 | u16::from(shape & 16 != 0);
        let dw0 = if shape & 32 != 0 { self.input.back_edgy() as u32 } else { 0 };
        let dwords = [
            dw0,
            0,
            u32::from(sqid) << 16 | u32::from(sqhd),
            u32::from(status) << 16 | u32::from(cid),
        ];
        let mut entry = [0; 16];
        for (to, dword) in entry.chunks_exact_mut(4).zip(dwords) {
            to.copy_from_slice(&dword.to_le_bytes());
        }
        Some(Action::Post { at, entry })
    }

    /// Changes bytes in a page named by an admin command: mostly Identify data and logs.
    fn change_data(&mut self) -> Option<Action> {
        let back = usize::from(self.input.back_byte() % 4);
        let page = *self.pages.iter().rev().nth(back.min(self.pages.len().saturating_sub(1)))?;
        let offset = match self.input.back_byte() & 3 {
            0 => self.input.back_number(2) % 4096,
            _ => self.input.back_pick(&FIELDS),
        };
        let bytes = self.bytes(4096 - offset);
        Some(Action::Write { at: page + offset, bytes })
    }

    fn choose_verdict(&mut self) {
        let delay = Duration::from_millis(self.input.back_number(2) & 0xfff);
        self.verdict = match self.input.back_byte() % 8 {
            0 | 1 => Verdict::Hold,
            2 => Verdict::Lose,
            3 => Verdict::Mute,
            4 => Verdict::Twice,
            5 => Verdict::Delay(delay),
            6 => Verdict::Again(delay),
            _ => Verdict::Fail(Status::from_bits(self.input.back_number(2) as u16)),
        };
        self.verdicts_left = self.input.back_pick(&[1, 1, 2, 3, 10, 200]);
    }

    fn stubborn(&mut self) -> Action {
        let choice = self.input.back_byte();
        let on = choice & 4 == 0;
        match choice % 4 {
            0 => Action::Refuse(Refusal::Disable, on),
            1 => Action::Refuse(Refusal::Enable, on),
            2 => Action::Refuse(Refusal::SubsystemReset, on),
            _ => {
                let mut delay = || Duration::from_millis(self.input.back_number(2));
                Action::Delays(delay(), delay())
            }
        }
    }

    fn event(&mut self) -> Action {
        let nsid = u32::from(self.input.back_byte() % 5);
        match self.input.back_byte() % 4 {
            0 => Action::NamespaceChanged(nsid),
            1 => Action::AttachNamespace(nsid, true),
            2 => Action::AttachNamespace(nsid, false),
            _ => Action::Temperature(self.input.back_edgy() as u16),
        }
    }

    fn refuse(&mut self) {
        let choice = self.input.back_byte();
        match choice % 8 {
            0 | 1 => self.refuses_maps = choice >> 3,
            2 => self.refuses_unmaps = choice >> 3,
            3 => self.refuses_reset = choice & 8 == 0,
            4 => self.refuses_cut_off = choice & 8 == 0,
            5 => self.refuses_doorbells = choice & 8 == 0,
            _ => {}
        }
    }
}

/// Ways to corrupt a completion entry.
const CORRUPTIONS: [fn(&mut Cqe); 8] = [
    |cqe| cqe.cid = (cqe.cid.get() ^ 1).into(),
    |cqe| cqe.cid = (cqe.cid.get() ^ 0x8000).into(),
    |cqe| cqe.sqid = (cqe.sqid.get() + 1).into(),
    |cqe| cqe.sqhd = (cqe.sqhd.get() ^ 1).into(),
    |cqe| cqe.sqhd = u16::MAX.into(),
    |cqe| cqe.dw0 = u32::MAX.into(),
    |cqe| cqe.dw0 = (cqe.dw0.get() ^ 0x10001).into(),
    |cqe| cqe.status_word = 0x7ffe.into(),
];
