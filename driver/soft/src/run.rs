//! Execution of commands: what scripts and plans do to them, when they are due, and their completions.

use super::command::{Command, SqeBytes};
use super::controller::{Controller, Held};
use super::faults::{FaultPlan, Injector};
use super::hook::Verdict;
use super::io::{self, Range};
use super::media::LbaRun;
use super::memory::{Dma, Fault, HostMemory, Served};
use super::pending::Work;
use super::status::{ABORT_REQUESTED, Answer, Reply, SUCCESS, WRITE_FAULT};
use adit_shared::Time;
use adit_spec::{Cid, Cqe, Qid, Sqe, Status};

impl Controller {
    /// Calls `hook` for each fetched command; its [`Verdict`] decides. The fault plan sees the commands that the hook
    /// lets run.
    pub fn set_hook(&mut self, hook: impl FnMut(&Sqe, Qid) -> Verdict + Send + 'static) {
        self.watch.hook = Some(Box::new(hook));
    }

    /// Calls `alter` with the CNS and the 4096 bytes of each Identify structure before the host gets it. The controller
    /// itself keeps to the truth.
    pub fn alter_identify(&mut self, alter: impl FnMut(u8, &mut [u8; 4096]) + Send + 'static) {
        self.watch.identity = Some(Box::new(alter));
    }

    /// Makes the capabilities register read as `cap`. The controller itself keeps to the truth.
    pub fn set_cap(&mut self, cap: u64) {
        self.registers.set_cap(cap);
    }

    /// Removes the hook; the fault plan stays in force.
    pub fn clear_hook(&mut self) {
        self.watch.hook = None;
    }

    /// Replaces the fault plan, with the same seed. The empty plan ends all faults but leaves existing damage.
    pub fn set_faults(&mut self, plan: FaultPlan) {
        self.watch.set_faults(&plan, self.options.seed);
        self.options.faults = plan;
    }

    /// Returns how often each rule of the fault plan has fired, in the plan's order.
    pub fn fault_counts(&self) -> Vec<u32> {
        self.watch.injector.iter().flat_map(Injector::counts).collect()
    }

    #[inline]
    pub(super) fn run(&mut self, entry: &SqeBytes, sqid: Qid, dma: &Dma<'_>) -> Served {
        if !self.watch.is_idle() {
            return self.run_watched(entry, sqid, dma);
        }
        self.execute(&Command::parse(entry, sqid), Verdict::Run, dma)
    }

    #[inline(never)]
    fn run_watched(&mut self, entry: &SqeBytes, sqid: Qid, dma: &Dma<'_>) -> Served {
        let command = Command::parse(entry, sqid);
        let mut verdict = match &mut self.watch.hook {
            None => Verdict::Run,
            Some(hook) => hook(&zerocopy::transmute!(*entry), sqid),
        };
        if let (Verdict::Run, Some(injector)) = (verdict, &mut self.watch.injector)
            && let Some((kind, draw)) = injector.command(&command, self.now)
        {
            verdict = Verdict::of(kind, draw);
        }
        match verdict {
            Verdict::Lose => {}
            Verdict::Hold => self.held.push(Held { entry: *entry, sqid }),
            // Ends the step at once.
            Verdict::Fatal => return Err(Fault),
            Verdict::Remove => self.pull_out(dma),
            Verdict::Delay(time) => {
                let due = self.done_at(&command).unwrap_or(self.now) + time;
                let work = Work::Execute { entry: *entry, sqid, verdict: Verdict::Run };
                self.pending.push(due, work);
            }
            verdict => match self.done_at(&command) {
                Some(due) => self.pending.push(due, Work::Execute { entry: *entry, sqid, verdict }),
                None => return self.execute(&command, verdict, dma),
            },
        }
        Ok(())
    }

    /// Returns when a timed command is done. Its data moves then, not now: until it completes, Abort or a reset undo it
    /// entirely, and reads do not see it.
    fn done_at(&mut self, command: &Command) -> Option<Time> {
        let timing = self.watch.timing.as_mut().filter(|_| !command.sqid.is_admin())?;
        let lba_shift =
            self.namespaces.active(command.nsid).map_or(0, |namespace| namespace.lba_shift);
        Some(timing.due(self.now, io::effort_of(command, lba_shift)))
    }

    /// Does the work that is due; returns the number of items done.
    #[inline]
    pub(super) fn run_due(&mut self, dma: &Dma<'_>) -> Served<usize> {
        let mut done = 0;
        while let Some(work) = self.pending.pop_due(self.now) {
            match work {
                Work::Execute { entry, sqid, verdict } => {
                    self.execute(&Command::parse(&entry, sqid), verdict, dma)?;
                }
                Work::Post { cqid, cqe } => self.post(cqid, cqe, false, dma)?,
            }
            done += 1;
        }
        Ok(done)
    }

    #[inline]
    fn execute(&mut self, command: &Command, verdict: Verdict, dma: &Dma<'_>) -> Served {
        let is_aborted =
            self.submission_queue(command.sqid.0).is_some_and(|q| q.take_abort(command.cid));
        let answer = match verdict {
            _ if is_aborted => Err(ABORT_REQUESTED),
            Verdict::Run => self.carry_out(command, dma),
            verdict => self.carry_out_wrongly(command, verdict, dma),
        };
        self.complete(command, answer, verdict, dma)
    }

    #[inline]
    fn carry_out(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        if command.sqid.is_admin() { self.admin(command, dma) } else { self.io(command, dma) }
    }

    #[inline(never)]
    fn carry_out_wrongly(&mut self, command: &Command, verdict: Verdict, dma: &Dma<'_>) -> Answer {
        match verdict {
            Verdict::Fail(status) => Err(status),
            Verdict::Answer(dw0) => Ok(Reply::Done(dw0)),
            Verdict::MediaError => self.run_on_bad_media(command, dma),
            Verdict::Rot { bit } => self.run_with_rot(command, bit, dma),
            Verdict::Misdirect { slba } => self.run_elsewhere(command, slba, dma),
            _ => self.carry_out(command, dma),
        }
    }

    fn run_on_bad_media(&mut self, command: &Command, dma: &Dma<'_>) -> Answer {
        let Some(run) = self.run_of(command)? else { return self.carry_out(command, dma) };
        self.media.spoil(run.offset, run.len);
        if io::writes(command.opcode) { Err(WRITE_FAULT) } else { self.carry_out(command, dma) }
    }

    fn run_with_rot(&mut self, command: &Command, bit: u64, dma: &Dma<'_>) -> Answer {
        let Some(run) = self.run_of(command)? else { return self.carry_out(command, dma) };
        let bit = bit % (run.len * 8);
        let flip = |controller: &mut Controller| {
            let flipped = controller.media.flip(run.offset + bit / 8, bit as u8);
            flipped.map_err(|_| WRITE_FAULT)
        };
        if io::writes(command.opcode) {
            let answer = self.carry_out(command, dma)?;
            return flip(self).map(|()| answer);
        }
        flip(self)?;
        self.carry_out(command, dma)
    }

    fn run_elsewhere(&mut self, command: &Command, slba: u64, dma: &Dma<'_>) -> Answer {
        let Some((first, lba_count)) = io::range_of(command) else {
            return self.carry_out(command, dma);
        };
        let starts = self.namespace(command.nsid)?.lba_count().saturating_sub(lba_count) + 1;
        let slba = match slba % starts {
            same if same == first => (same + 1) % starts,
            other => other,
        };
        self.carry_out(&command.at_lba(slba), dma)
    }

    /// Returns the storage run of a single-range command; other commands have no LBAs to damage.
    fn run_of(&self, command: &Command) -> Result<Option<LbaRun>, Status> {
        let range = io::range_of(command).map(|(first, lba_count)| Range { first, lba_count });
        range.map(|range| self.media_run(command.nsid, range)).transpose()
    }

    fn complete(
        &mut self,
        command: &Command,
        answer: Answer,
        verdict: Verdict,
        dma: &Dma<'_>,
    ) -> Served {
        let (dw0, status) = match answer {
            Ok(Reply::Later) => return Ok(()),
            Ok(Reply::Done(dw0)) => (dw0, SUCCESS),
            Err(status) => {
                let status = self.features.with_retry_delay(status);
                self.statistics.record(command, status);
                (0, status)
            }
        };
        let Some(queue) = self.submission_queue(command.sqid.0) else { return Ok(()) };
        let (sqhd, cqid, is_last) = (queue.head(), queue.cqid, queue.is_empty());
        let cqe = Cqe::new(dw0, sqhd, command.sqid, Cid(command.cid), status, false);
        match verdict {
            Verdict::Run if !is_last && self.gathers => self.post(cqid, cqe, true, dma),
            Verdict::Run => self.post(cqid, cqe, false, dma),
            verdict => self.complete_wrongly(cqid, cqe, verdict, dma),
        }
    }

    #[inline(never)]
    fn complete_wrongly(
        &mut self,
        cqid: u16,
        mut cqe: Cqe,
        verdict: Verdict,
        dma: &Dma<'_>,
    ) -> Served {
        match verdict {
            Verdict::Mute => return Ok(()),
            Verdict::CorruptCqe(alter) => alter(&mut cqe),
            Verdict::XorCqe { cid, sqid, sqhd } => {
                cqe.cid = (cqe.cid.get() ^ cid).into();
                cqe.sqid = (cqe.sqid.get() ^ sqid).into();
                cqe.sqhd = (cqe.sqhd.get() ^ sqhd).into();
            }
            Verdict::WrongPhase => {
                return match self.completion_queue(cqid) {
                    Some(queue) => queue.post_unseen(dma, cqe),
                    None => Ok(()),
                };
            }
            Verdict::Twice => self.post(cqid, cqe, false, dma)?,
            Verdict::Again(time) => self.pending.push(self.now + time, Work::Post { cqid, cqe }),
            _ => {}
        }
        self.post(cqid, cqe, false, dma)
    }

    /// Posts a completion; if `gathers`, at the end of the queue's turn at the latest.
    #[inline]
    fn post(&mut self, cqid: u16, cqe: Cqe, gathers: bool, dma: &Dma<'_>) -> Served {
        match self.completion_queue(cqid) {
            Some(queue) => queue.post(dma, cqe, gathers),
            None => Ok(()),
        }
    }

    /// Completes a waiting command with `answer`.
    pub(super) fn complete_waiting(
        &mut self,
        command: &Command,
        answer: Answer,
        dma: &Dma<'_>,
    ) -> Served {
        self.complete(command, answer, Verdict::Run, dma)
    }

    /// Takes a waiting command: held, or not due yet.
    pub(super) fn take_waiting(&mut self, is_meant: impl Fn(&Command) -> bool) -> Option<Command> {
        let parse = |held: &Held| Command::parse(&held.entry, held.sqid);
        match self.held.iter().position(|held| is_meant(&parse(held))) {
            Some(at) => Some(parse(&self.held.remove(at))),
            None => self.pending.take(is_meant),
        }
    }

    /// Runs the commands that [`Verdict::Hold`] held, in order; returns their number.
    pub fn release_held(&mut self, memory: &dyn HostMemory) -> usize {
        let cmb = self.cmb().cloned();
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

    /// Returns whether what it does now depends on the time to less than a few microseconds.
    #[inline]
    pub fn keeps_time(&self) -> bool {
        !self.watch.is_idle() || self.next_due().is_some()
    }

    /// Returns when the next work is due that no doorbell announces: a timed command, a change of CSTS, a clock fault.
    /// `None` until the host acts. After a step at the current time, it lies in the future.
    pub fn next_due(&self) -> Option<Time> {
        let runs = self.is_running() && !self.life.is_pausing();
        let work = self.pending.next_due().filter(|_| runs);
        let faults = self.watch.injector.as_ref().and_then(Injector::next_due);
        let times = [work, self.life.next_due(), faults.filter(|_| !self.life.is_away())];
        times.into_iter().flatten().min()
    }
}
