//! The controller itself: its state, its life and its main loop.
//!
//! [`Controller::step`] follows what the host wrote to CC, then takes commands
//! from the submission queues in turn: fetch, decode, execute, complete. A
//! fault on a queue's own memory is fatal (CSTS.CFS); one on a command's data is
//! that command's status.

use std::fmt;
use std::sync::Arc;

use super::admin::{Events, Features, Statistics};
use super::cmb::Cmb;
use super::command::{Command, Entry};
use super::doorbells::{DOORBELLS_OFFSET, Doorbells, Side};
use super::hook::{CommandHook, Verdict};
use super::media::Media;
use super::memory::{Dma, Fault, HostMemory};
use super::namespace::Namespaces;
use super::options::Options;
use super::queue::{CompletionQueue, Rings, Shadow, SubmissionQueue};
use super::registers::Registers;
use super::status::{ABORT_REQUESTED, Answer, Reply, SUCCESS};
use super::transfer::{Rules, Transfer};
use crate::error::Result;
use crate::spec::register::{ShutdownNotification, ShutdownStatus};
use crate::spec::{Cid, Cqe, Qid, Sqe};
use crate::sys::SharedPages;
use crate::time::Time;

/// Commands taken from one queue before the next has its turn.
const BURST: usize = 64;

/// A command that a test told to wait.
pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) sqid: Qid,
}

/// A software NVMe controller. Whoever has it calls [`Controller::step`].
pub struct Controller {
    pub(super) options: Options,
    pub(super) registers: Registers,
    pub(super) doorbells: Doorbells,
    pub(super) submission: Vec<Option<SubmissionQueue>>,
    pub(super) completion: Vec<Option<CompletionQueue>>,
    /// Queues that exist, so that a step does not look at all that could.
    pub(super) submission_ids: Vec<u16>,
    pub(super) completion_ids: Vec<u16>,
    pub(super) shadow: Option<Shadow>,
    pub(super) polls_shadow: bool,
    pub(super) media: Media,
    pub(super) namespaces: Namespaces,
    pub(super) transfer: Transfer,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) statistics: Statistics,
    pub(super) held: Vec<Held>,
    pub(super) now: Time,
    /// One page that answers are built in.
    pub(super) page: Box<[u8; 4096]>,
    cmb: Option<Arc<Cmb>>,
    hook: Option<CommandHook>,
    interrupt: Option<Box<dyn FnMut(u16) + Send>>,
    refuses_disable: bool,
    must_disable: bool,
    next: usize,
}

impl Controller {
    /// Builds a controller, disabled as after power-on.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for options that do not fit each other,
    /// [`crate::Error::Refused`] when memory or the file cannot be had.
    pub fn new(options: Options) -> Result<Controller> {
        options.check()?;
        let media = Media::open(&options.storage)?;
        let queue_count = options.io_queue_count + 1;
        let cmb = match options.cmb_bytes {
            0 => None,
            bytes => Some(Arc::new(Cmb::new(bytes)?)),
        };
        Ok(Controller {
            registers: Registers::new(&options),
            doorbells: Doorbells::new(queue_count, options.dstrd)?,
            submission: none(queue_count),
            completion: none(queue_count),
            submission_ids: Vec::new(),
            completion_ids: Vec::new(),
            shadow: None,
            polls_shadow: true,
            namespaces: Namespaces::new(&options, media.bytes())?,
            media,
            transfer: Transfer::default(),
            features: Features::new(options.io_queue_count),
            events: Events::default(),
            statistics: Statistics::default(),
            held: Vec::new(),
            now: Time::ZERO,
            page: Box::new([0; 4096]),
            cmb,
            hook: None,
            interrupt: None,
            refuses_disable: false,
            must_disable: false,
            next: 0,
            options,
        })
    }

    /// What it is made of.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Length of BAR0 in bytes: registers and doorbells.
    pub fn bar0_bytes(&self) -> u64 {
        self.doorbells.pages().len() as u64
    }

    /// The memory behind BAR0, of which only the doorbells, from [`DOORBELLS_OFFSET`] on, mean
    /// anything. Only ever written by the host.
    pub fn doorbells(&self) -> &SharedPages {
        self.doorbells.pages()
    }

    /// Resets the controller and gives it fresh memory for its doorbells: a host that still has the old
    /// mapped rings nothing any more.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] when the system has no memory; the old doorbells stay then.
    pub fn renew_doorbells(&mut self) -> Result<()> {
        self.reset();
        self.doorbells.renew()
    }

    /// The controller memory buffer, the whole of BAR [`super::CMB_BAR`].
    pub fn cmb(&self) -> Option<&Arc<Cmb>> {
        self.cmb.as_ref()
    }

    /// Interrupt vectors it has: one per queue.
    pub fn vector_count(&self) -> u16 {
        self.options.io_queue_count + 1
    }

    /// Calls `interrupt` with a vector whenever completions were posted for it.
    pub fn set_interrupt(&mut self, interrupt: Option<Box<dyn FnMut(u16) + Send>>) {
        self.interrupt = interrupt;
    }

    /// Asks `hook` about each command that is fetched; see [`Verdict`].
    pub fn set_hook(&mut self, hook: impl FnMut(&Sqe, Qid) -> Verdict + Send + 'static) {
        self.hook = Some(Box::new(hook));
    }

    /// Lets all commands run again.
    pub fn clear_hook(&mut self) {
        self.hook = None;
    }

    /// Makes CSTS.RDY stay set when the host clears CC.EN, until told otherwise or reset.
    pub fn refuse_disable(&mut self, refuses: bool) {
        self.refuses_disable = refuses;
    }

    /// Fails the controller as a broken one would: CSTS.CFS is set and no command runs.
    pub fn fail(&mut self) {
        self.registers.set_fatal();
    }

    /// Whether shadow doorbells are looked at all the time (as after start), or
    /// only from a ring until they have caught up, as the event indexes promise the host.
    pub fn poll_shadow(&mut self, always: bool) {
        self.polls_shadow = always;
        if let Some(shadow) = &mut self.shadow {
            shadow.polled = always;
        }
    }

    /// Reads 4 or 8 bytes of BAR0 at `offset`. What is no property reads as zero.
    pub fn read_register(&self, offset: u32, width: u32) -> u64 {
        if offset >= DOORBELLS_OFFSET || !offset.is_multiple_of(4) {
            return 0;
        }
        let low = u64::from(self.registers.read(offset));
        match width {
            8 => low | u64::from(self.registers.read(offset + 4)) << 32,
            _ => low,
        }
    }

    /// Writes 4 or 8 bytes of BAR0 at `offset`; doorbells included.
    pub fn write_register(&mut self, offset: u32, width: u32, value: u64) {
        if offset >= DOORBELLS_OFFSET {
            return self.write_doorbell(offset, value as u32);
        }
        if !offset.is_multiple_of(4) {
            return;
        }
        self.write_dword(offset, value as u32);
        if width == 8 {
            self.write_dword(offset + 4, (value >> 32) as u32);
        }
    }

    fn write_dword(&mut self, offset: u32, value: u32) {
        let was_enabled = self.registers.cc.en();
        self.registers.write(offset, value, self.cmb.as_deref());
        self.must_disable |= was_enabled && !self.registers.cc.en();
    }

    /// Writes a doorbell at `offset` of BAR0, for hosts that cannot map the page.
    pub fn write_doorbell(&mut self, offset: u32, value: u32) {
        let index = (offset.saturating_sub(DOORBELLS_OFFSET) / 4) as usize;
        let exists = match self.doorbells.at_index(index) {
            Some((qid, Side::Tail)) => self.submission_queue(qid).is_some(),
            Some((qid, Side::Head)) => self.completion_queue(qid).is_some(),
            None => false,
        };
        if exists {
            self.doorbells.ring(index, value);
        } else {
            self.events.invalid_doorbell_register();
        }
    }

    /// Function level reset: as after power-on; data stays.
    pub fn reset(&mut self) {
        self.drop_queues();
        self.registers = Registers::new(&self.options);
        if let Some(cmb) = &self.cmb {
            cmb.place(None);
        }
        self.refuses_disable = false;
        self.must_disable = false;
    }

    /// Does what there is to do, within bounds; returns how many commands were
    /// taken. `now` is the present on the host's clock.
    pub fn step(&mut self, memory: &dyn HostMemory, now: Time) -> usize {
        self.now = now;
        self.follow_cc();
        if !self.is_running() {
            return 0;
        }
        let cmb = self.cmb.clone();
        let dma = Dma { host: memory, cmb: cmb.as_deref() };
        let taken = self.serve_all(&dma).unwrap_or_else(|Fault| {
            self.registers.set_fatal();
            0
        });
        self.raise_interrupts();
        taken
    }

    fn is_running(&self) -> bool {
        let csts = self.registers.csts;
        csts.rdy() && !csts.cfs() && matches!(csts.shst(), ShutdownStatus::Normal)
    }

    fn follow_cc(&mut self) {
        if self.must_disable && !self.refuses_disable {
            self.drop_queues();
            self.registers.controller_reset();
            self.must_disable = false;
        }
        let csts = self.registers.csts;
        if self.registers.cc.en() && !csts.rdy() && !csts.cfs() {
            self.enable();
        }
        if self.registers.cc.shn() == ShutdownNotification::None {
            return;
        }
        if csts.shst() != ShutdownStatus::Complete {
            let flushed = self.media.flush().is_ok();
            let status = if flushed { ShutdownStatus::Complete } else { ShutdownStatus::Occurring };
            self.registers.set_shutdown(status);
        }
    }

    fn enable(&mut self) {
        if !self.registers.can_enable() {
            return self.registers.set_fatal();
        }
        let (asqs, acqs) = ((self.registers.aqa & 0xfff) + 1, (self.registers.aqa >> 16) + 1);
        let (asq, acq) = (self.registers.asq, self.registers.acq);
        self.add_completion_queue(CompletionQueue::new(0, acq, acqs, Some(0)));
        self.add_submission_queue(SubmissionQueue::new(0, 0, asq, asqs));
        self.registers.set_ready();
    }

    /// Forgets queues, commands and what a controller reset puts back to its default.
    fn drop_queues(&mut self) {
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
        self.submission_ids.clear();
        self.completion_ids.clear();
        self.doorbells.silence();
        self.shadow = None;
        self.held.clear();
        self.events = Events::default();
        self.features.reset();
    }

    pub(super) fn submission_queue(&mut self, qid: u16) -> Option<&mut SubmissionQueue> {
        self.submission.get_mut(usize::from(qid))?.as_mut()
    }

    pub(super) fn completion_queue(&mut self, qid: u16) -> Option<&mut CompletionQueue> {
        self.completion.get_mut(usize::from(qid))?.as_mut()
    }

    /// Adds a queue whose completion queue exists.
    pub(super) fn add_submission_queue(&mut self, queue: SubmissionQueue) {
        let qid = queue.qid;
        if let Some(completion) = self.completion_queue(queue.cqid) {
            completion.sq_count += 1;
        }
        self.doorbells.silence_one(qid, Side::Tail);
        self.submission[usize::from(qid)] = Some(queue);
        self.submission_ids.push(qid);
    }

    pub(super) fn add_completion_queue(&mut self, queue: CompletionQueue) {
        let qid = queue.qid;
        self.doorbells.silence_one(qid, Side::Head);
        self.completion[usize::from(qid)] = Some(queue);
        self.completion_ids.push(qid);
    }

    fn serve_all(&mut self, dma: &Dma<'_>) -> std::result::Result<usize, Fault> {
        for index in 0..self.completion_ids.len() {
            self.post_waiting(self.completion_ids[index], dma)?;
        }
        self.next = self.next.wrapping_add(1);
        let mut taken = 0;
        for turn in 0..self.submission_ids.len() {
            // A command may have deleted queues meanwhile.
            let count = self.submission_ids.len();
            if count == 0 {
                break;
            }
            let qid = self.submission_ids[self.next.wrapping_add(turn) % count];
            taken += self.serve(qid, dma)?;
        }
        self.deliver_events(dma)?;
        Ok(taken)
    }

    fn serve(&mut self, qid: u16, dma: &Dma<'_>) -> std::result::Result<usize, Fault> {
        let mut entry = [0; 64];
        for taken in 0..BURST {
            if !self.fetch(qid, dma, &mut entry)? {
                return Ok(taken);
            }
            self.run(&entry, Qid(qid), dma)?;
        }
        Ok(BURST)
    }

    fn post_waiting(&mut self, cqid: u16, dma: &Dma<'_>) -> std::result::Result<(), Fault> {
        let rings = Rings { doorbells: &self.doorbells, shadow: self.shadow, dma };
        let mut valid = true;
        if let Some(Some(queue)) = self.completion.get_mut(usize::from(cqid)) {
            queue.has_room(&rings, &mut valid)?;
        }
        if !valid {
            self.events.invalid_doorbell_value();
        }
        Ok(())
    }

    /// Takes the next command of a queue, if there is one and room for its completion.
    #[inline]
    fn fetch(
        &mut self,
        qid: u16,
        dma: &Dma<'_>,
        entry: &mut Entry,
    ) -> std::result::Result<bool, Fault> {
        let rings = Rings { doorbells: &self.doorbells, shadow: self.shadow, dma };
        let Some(Some(queue)) = self.submission.get_mut(usize::from(qid)) else {
            return Ok(false);
        };
        if queue.is_empty() && !queue.refresh(&rings)? {
            self.events.invalid_doorbell_value();
        }
        if queue.is_empty() {
            return Ok(false);
        }
        let Some(Some(completion)) = self.completion.get_mut(usize::from(queue.cqid)) else {
            return Ok(false);
        };
        let mut valid = true;
        let has_room = completion.has_room(&rings, &mut valid)?;
        if has_room {
            queue.fetch(dma, entry)?;
        }
        if !valid {
            self.events.invalid_doorbell_value();
        }
        Ok(has_room)
    }

    fn run(&mut self, entry: &Entry, sqid: Qid, dma: &Dma<'_>) -> std::result::Result<(), Fault> {
        let verdict = match &mut self.hook {
            None => Verdict::Run,
            Some(hook) => hook(&zerocopy::transmute!(*entry), sqid),
        };
        match verdict {
            Verdict::Lose => Ok(()),
            Verdict::Hold => {
                self.held.push(Held { entry: *entry, sqid });
                Ok(())
            }
            verdict => self.execute(&Command::parse(entry, sqid), verdict, dma),
        }
    }

    fn execute(
        &mut self,
        command: &Command,
        verdict: Verdict,
        dma: &Dma<'_>,
    ) -> std::result::Result<(), Fault> {
        let is_aborted =
            self.submission_queue(command.sqid.0).is_some_and(|q| q.take_abort(command.cid));
        let answer = match verdict {
            _ if is_aborted => Err(ABORT_REQUESTED),
            Verdict::Fail(status) => Err(status),
            _ if command.sqid.is_admin() => self.admin(command, dma),
            _ => self.io(command, dma),
        };
        self.complete(command, answer, verdict, dma)
    }

    fn complete(
        &mut self,
        command: &Command,
        answer: Answer,
        verdict: Verdict,
        dma: &Dma<'_>,
    ) -> std::result::Result<(), Fault> {
        let (dw0, status) = match answer {
            Ok(Reply::Later) => return Ok(()),
            Ok(Reply::Done(dw0)) => (dw0, SUCCESS),
            Err(status) => {
                self.statistics.record(command, status);
                (0, status)
            }
        };
        let Some(queue) = self.submission_queue(command.sqid.0) else { return Ok(()) };
        let (sqhd, cqid) = (queue.head(), queue.cqid);
        let mut cqe = Cqe::new(dw0, sqhd, command.sqid, Cid(command.cid), status, false);
        if let Verdict::CorruptCqe(alter) = verdict {
            alter(&mut cqe);
        }
        if matches!(verdict, Verdict::Twice) {
            self.post(cqid, cqe, dma)?;
        }
        self.post(cqid, cqe, dma)
    }

    fn post(&mut self, cqid: u16, cqe: Cqe, dma: &Dma<'_>) -> std::result::Result<(), Fault> {
        match self.completion_queue(cqid) {
            Some(queue) => queue.post(dma, cqe),
            None => Ok(()),
        }
    }

    /// Completes a command that waited with `answer`.
    pub(super) fn complete_waiting(
        &mut self,
        command: &Command,
        answer: Answer,
        dma: &Dma<'_>,
    ) -> std::result::Result<(), Fault> {
        self.complete(command, answer, Verdict::Run, dma)
    }

    /// Runs the commands that [`Verdict::Hold`] made wait, in their order; returns how many.
    pub fn release_held(&mut self, memory: &dyn HostMemory) -> usize {
        let cmb = self.cmb.clone();
        let dma = Dma { host: memory, cmb: cmb.as_deref() };
        let held = std::mem::take(&mut self.held);
        for held in &held {
            let command = Command::parse(&held.entry, held.sqid);
            if self.execute(&command, Verdict::Run, &dma).is_err() {
                self.registers.set_fatal();
            }
        }
        self.raise_interrupts();
        held.len()
    }

    fn raise_interrupts(&mut self) {
        let Some(interrupt) = &mut self.interrupt else { return };
        for qid in &self.completion_ids {
            let Some(Some(queue)) = self.completion.get_mut(usize::from(*qid)) else { continue };
            let is_raised = std::mem::take(&mut queue.is_raised);
            if let Some(vector) = queue.vector.filter(|_| is_raised) {
                let mask = 1u32.checked_shl(u32::from(vector)).unwrap_or(0);
                if self.registers.interrupt_mask & mask == 0 {
                    interrupt(vector);
                }
            }
        }
    }

    /// What the walkers go by.
    #[inline]
    pub(super) fn rules(&self) -> Rules {
        let bytes_max = match self.options.mdts {
            0 => u64::MAX,
            mdts => 4096 << mdts,
        };
        Rules { page_bytes: self.registers.cc.page_size(), bytes_max, sgl: self.options.sgl }
    }
}

fn none<T>(count: u16) -> Vec<Option<T>> {
    (0..count).map(|_| None).collect()
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("options", &self.options)
            .field("cc", &self.registers.cc)
            .field("csts", &self.registers.csts)
            .field("queues", &self.submission_ids)
            .finish_non_exhaustive()
    }
}
