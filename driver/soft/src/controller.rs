//! The controller: its state, its lifecycle and its main loop.
//!
//! [`Controller::step`] applies the host's writes to CC (`life`), then fetches commands from the submission queues in
//! turn; `run` executes and completes them. A fault on a queue's own memory is fatal (CSTS.CFS); a fault on a command's
//! data becomes that command's status.

use std::fmt;
use std::sync::Arc;

use super::cmb::Cmb;
use super::command::SqeBytes;
use super::doorbells::{DOORBELLS_OFFSET, Doorbells, Side};
use super::hook::Watch;
use super::media::Store;
use super::memory::{Dma, Fault, HostMemory, Served};
use super::namespace::Namespaces;
use super::options::Options;
use super::pending::Pending;
use super::queue::{CompletionQueue, Queues, Rings, Shadow, SubmissionQueue};
use super::registers::Registers;
use super::state::{Events, Features, Life, Placements, Statistics};
use super::transfer::{DmaRanges, Rules};
use crate::error::Result;
use adit_shared::SharedPages;
use adit_shared::Time;
use adit_spec::Qid;
use adit_spec::register::{NSSR, NSSR_RESET};

/// Commands fetched from one queue before the next has its turn.
const BURST: usize = 64;

/// A command that a script or a plan holds.
pub(super) struct Held {
    pub(super) entry: SqeBytes,
    pub(super) sqid: Qid,
}

/// A software NVMe controller. Its owner calls [`Controller::step`].
pub struct Controller {
    pub(super) options: Options,
    pub(super) registers: Registers,
    pub(super) doorbells: Doorbells,
    pub(super) queues: Queues,
    pub(super) shadow: Option<Shadow>,
    pub(super) polls_shadow: bool,
    pub(super) media: Store,
    pub(super) namespaces: Namespaces,
    pub(super) transfer: DmaRanges,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) statistics: Statistics,
    pub(super) placements: Placements,
    pub(super) held: Vec<Held>,
    pub(super) pending: Pending,
    pub(super) life: Life,
    pub(super) watch: Watch,
    /// Set while a power cut decides the fate of commands in flight; nothing becomes durable then.
    pub(super) is_losing_power: bool,
    /// Commands of a queue are served one after the other: completions may wait for each other.
    pub(super) gathers: bool,
    pub(super) now: Time,
    /// One page to build data structures in.
    pub(super) page: Box<[u8; 4096]>,
    cmb: Option<Arc<Cmb>>,
    interrupt: Option<Box<dyn FnMut(u16) + Send>>,
}

impl Controller {
    /// Creates a controller, disabled as after power-on.
    ///
    /// # Errors
    /// An error for inconsistent options, and if memory or the file is
    /// unavailable.
    pub fn new(options: Options) -> Result<Controller> {
        options.check()?;
        let media = Store::open(&options)?;
        let queue_count = options.io_queue_count + 1;
        let cmb = match options.cmb_bytes {
            0 => None,
            bytes => Some(Arc::new(Cmb::new(bytes)?)),
        };
        Ok(Controller {
            registers: Registers::new(&options),
            doorbells: Doorbells::new(queue_count, options.dstrd)?,
            queues: Queues::new(queue_count),
            shadow: None,
            polls_shadow: true,
            namespaces: Namespaces::new(&options, media.bytes())?,
            media,
            transfer: DmaRanges::default(),
            features: Features::new(&options),
            events: Events::default(),
            statistics: Statistics::default(),
            placements: Placements::new(&options),
            held: Vec::new(),
            pending: Pending::default(),
            life: Life::default(),
            watch: Watch::new(&options),
            is_losing_power: false,
            gathers: false,
            now: Time::ZERO,
            page: Box::new([0; 4096]),
            cmb,
            interrupt: None,
            options,
        })
    }

    /// Returns the options it was created with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the length of BAR0 in bytes: registers and doorbells.
    pub fn bar0_bytes(&self) -> u64 {
        self.doorbells.pages().len() as u64
    }

    /// Returns the memory behind BAR0. Only the doorbells, from [`DOORBELLS_OFFSET`] on, have a meaning; only the host
    /// writes it.
    pub fn doorbells(&self) -> &SharedPages {
        self.doorbells.pages()
    }

    /// Returns the controller memory buffer, the whole of BAR [`super::CMB_BAR`].
    pub fn cmb(&self) -> Option<&Arc<Cmb>> {
        self.cmb.as_ref()
    }

    /// Returns the number of interrupt vectors: one per queue.
    pub fn vector_count(&self) -> u16 {
        self.options.io_queue_count + 1
    }

    /// Returns whether the host has created an I/O submission queue.
    pub fn has_io_queues(&self) -> bool {
        self.queues.submission_ids.iter().any(|qid| *qid != 0)
    }

    /// Sets the callback that runs with a vector after completions were posted for it.
    pub fn set_interrupt(&mut self, interrupt: Option<Box<dyn FnMut(u16) + Send>>) {
        self.interrupt = interrupt;
    }

    /// Sets whether shadow doorbells are polled all the time (the default), or only from a ring until they have caught
    /// up, as the event indices promise the host.
    pub fn poll_shadow(&mut self, always: bool) {
        self.polls_shadow = always;
        if let Some(shadow) = &mut self.shadow {
            shadow.polled = always;
        }
    }

    /// Reads 4 or 8 bytes of BAR0 at `offset`. Undefined properties read as zero; without power, or removed, all ones.
    pub fn read_register(&self, offset: u32, width: u32) -> u64 {
        if self.life.is_away() {
            return u64::MAX >> (64 - 8 * width.clamp(1, 8));
        }
        if offset >= DOORBELLS_OFFSET || !offset.is_multiple_of(4) {
            return 0;
        }
        let low = u64::from(self.registers.read(offset));
        match width {
            8 => low | u64::from(self.registers.read(offset + 4)) << 32,
            _ => low,
        }
    }

    /// Writes 4 or 8 bytes of BAR0 at `offset`, doorbells included.
    pub fn write_register(&mut self, offset: u32, width: u32, value: u64) {
        if self.life.is_away() {
            return;
        }
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
        if offset == NSSR.offset() {
            if value == NSSR_RESET && self.options.nssr {
                self.reset_subsystem();
            }
            return;
        }
        let was_enabled = self.registers.cc.en();
        self.registers.write(offset, value, self.cmb.as_deref());
        self.life.must_disable |= was_enabled && !self.registers.cc.en();
    }

    fn write_doorbell(&mut self, offset: u32, value: u32) {
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

    /// Does the pending work, within bounds, and returns the number of commands fetched. `now` is the host clock's
    /// time.
    pub fn step(&mut self, memory: &dyn HostMemory, now: Time) -> usize {
        self.now = now;
        if self.life.is_away() {
            return 0;
        }
        let cmb = self.cmb.clone();
        let dma = Dma { host: memory, cmb: cmb.as_deref() };
        self.follow_clock(&dma);
        self.follow_cc();
        if !self.is_running() {
            return 0;
        }
        let taken = self.serve_all(&dma).unwrap_or_else(|Fault| {
            self.registers.set_fatal();
            0
        });
        self.raise_interrupts();
        taken
    }

    pub(super) fn submission_queue(&mut self, qid: u16) -> Option<&mut SubmissionQueue> {
        self.queues.submission.get_mut(usize::from(qid))?.as_mut()
    }

    pub(super) fn completion_queue(&mut self, qid: u16) -> Option<&mut CompletionQueue> {
        self.queues.completion.get_mut(usize::from(qid))?.as_mut()
    }

    /// Adds a queue; its completion queue must exist.
    pub(super) fn add_submission_queue(&mut self, queue: SubmissionQueue) {
        let qid = queue.qid;
        if let Some(completion) = self.completion_queue(queue.cqid) {
            completion.sq_count += 1;
        }
        self.doorbells.silence_one(qid, Side::Tail);
        self.queues.submission[usize::from(qid)] = Some(queue);
        self.queues.submission_ids.push(qid);
    }

    pub(super) fn add_completion_queue(&mut self, queue: CompletionQueue) {
        let qid = queue.qid;
        self.doorbells.silence_one(qid, Side::Head);
        self.queues.completion[usize::from(qid)] = Some(queue);
        self.queues.completion_ids.push(qid);
    }

    fn serve_all(&mut self, dma: &Dma<'_>) -> Served<usize> {
        for index in 0..self.queues.completion_ids.len() {
            self.post_waiting(self.queues.completion_ids[index], dma)?;
        }
        if self.is_paused(dma)? {
            return Ok(0);
        }
        let mut taken = self.run_due(dma)?;
        self.queues.first = self.queues.first.wrapping_add(1);
        for turn in 0..self.queues.submission_ids.len() {
            // A command may have deleted queues in the meantime.
            let Some(qid) = self.queues.in_turn(turn) else { break };
            taken += self.serve(qid, dma)?;
        }
        self.deliver_events(dma)?;
        Ok(taken)
    }

    fn serve(&mut self, qid: u16, dma: &Dma<'_>) -> Served<usize> {
        // Faults and scripts act between two commands.
        self.gathers = self.watch.is_idle();
        let served = self.serve_burst(qid, dma);
        self.gathers = false;
        // Also if a command failed the controller: those before it are done.
        let cqid = self.submission_queue(qid).map(|queue| queue.cqid);
        if let Some(queue) = cqid.and_then(|cqid| self.completion_queue(cqid)) {
            queue.publish(dma)?;
        }
        served
    }

    fn serve_burst(&mut self, qid: u16, dma: &Dma<'_>) -> Served<usize> {
        let mut entry = [0; 64];
        for taken in 0..BURST {
            if !self.fetch(qid, dma, &mut entry)? {
                return Ok(taken);
            }
            self.run(&entry, Qid(qid), dma)?;
        }
        Ok(BURST)
    }

    fn post_waiting(&mut self, cqid: u16, dma: &Dma<'_>) -> Served {
        let rings = Rings { doorbells: &self.doorbells, shadow: self.shadow, dma };
        let mut valid = true;
        if let Some(Some(queue)) = self.queues.completion.get_mut(usize::from(cqid))
            && queue.has_waiting()
        {
            queue.has_room(&rings, &mut valid)?;
        }
        if !valid {
            self.events.invalid_doorbell_value();
        }
        Ok(())
    }

    /// Fetches the next command of a queue, if any and if its completion has room.
    #[inline]
    pub(super) fn fetch(&mut self, qid: u16, dma: &Dma<'_>, entry: &mut SqeBytes) -> Served<bool> {
        let rings = Rings { doorbells: &self.doorbells, shadow: self.shadow, dma };
        let Some(Some(queue)) = self.queues.submission.get_mut(usize::from(qid)) else {
            return Ok(false);
        };
        if queue.is_empty() && !queue.refresh(&rings)? {
            self.events.invalid_doorbell_value();
        }
        if queue.is_empty() {
            return Ok(false);
        }
        let Some(Some(completion)) = self.queues.completion.get_mut(usize::from(queue.cqid)) else {
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

    pub(super) fn raise_interrupts(&mut self) {
        let Some(interrupt) = &mut self.interrupt else { return };
        for qid in &self.queues.completion_ids {
            let Some(Some(queue)) = self.queues.completion.get_mut(usize::from(*qid)) else {
                continue;
            };
            let is_raised = std::mem::take(&mut queue.is_raised);
            if let Some(vector) = queue.vector.filter(|_| is_raised) {
                let mask = 1u32.checked_shl(u32::from(vector)).unwrap_or(0);
                if self.registers.interrupt_mask & mask == 0 {
                    interrupt(vector);
                }
            }
        }
    }

    /// Returns the limits for the PRP and SGL walkers.
    #[inline]
    pub(super) fn rules(&self) -> Rules {
        let bytes_max = match self.options.mdts {
            0 => u64::MAX,
            mdts => 4096 << mdts,
        };
        Rules { page_bytes: self.registers.cc.page_size(), bytes_max, sgl: self.options.sgl }
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("options", &self.options)
            .field("cc", &self.registers.cc)
            .field("csts", &self.registers.csts)
            .field("queues", &self.queues.submission_ids)
            .finish_non_exhaustive()
    }
}
