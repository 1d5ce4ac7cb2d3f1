//! One job: one thread, one queue pair, `iodepth` I/Os in flight.
//!
//! The loop posts everything that is idle, rings once, polls until something finished, and
//! counts it. It reads the clock once for each batch that finished, and once more before
//! posting where data was stamped or checked in between. Nothing is allocated, locked or asked of the system on the way.
//!
//! A pass over the region that wrote with `--verify` is followed by a phase that reads what it
//! wrote and checks it. The first failure that is not tolerated ends the job: what is in flight is
//! waited for, and the counts so far are reported. A controller that is out of service is waited for as long as
//! it may come back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::{
    Buffer, CommandError, Controller, Error, Namespace, QueuePair, RejectReason, Stats, Time,
};

use super::again::Again;
use super::cpu::Cpu;
use super::errors::{EIO, Errors, Kind, Tolerance, Unwritten, name_of};
use super::generator::{Generator, Pattern, Step, Written};
use super::measure::{Direction, Levels};
use super::plan::Region;
use super::supervisor::Recovery;
use super::verify::{self, Identity, Writer};
use crate::interrupt::Interrupt;

/// Empty polls between two looks at the clock: deadlines and the end of the run are this coarse.
const IDLE_POLLS: u32 = 16;
/// How long a controller that was given up on may take to give buffers back, beyond its own time to reset.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much longer where it is brought back: all admin commands of its bring-up may take their time.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(120);

/// A buffer in flight, with what it is for.
pub(crate) type Owned = (Buffer, Tag);

/// What a buffer in flight is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    work: Work,
    issued: Time,
}

/// One I/O.
#[derive(Clone, Copy, Debug)]
struct Work {
    step: Step,
    /// What to check when it was read.
    expected: Option<Identity>,
    /// How often it was sent before, and when for the first time.
    retried: Option<(u8, Time)>,
}

/// What all jobs have in common.
#[derive(Debug)]
pub(crate) struct Common<'a> {
    pub(crate) controller: &'a Controller,
    pub(crate) namespace: &'a Namespace,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) recovery: &'a Recovery,
    pub(crate) pattern: Pattern,
    pub(crate) verify: bool,
    pub(crate) tolerance: Tolerance,
    /// How often an I/O that failed is sent again.
    pub(crate) retries: u8,
    pub(crate) time_based: bool,
    pub(crate) runtime: Option<Duration>,
    /// When nothing finished for this long, others may have the core.
    pub(crate) yield_after: Duration,
}

/// How far a job is, for whoever watches it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress {
    pub(crate) read_ios: AtomicU64,
    pub(crate) write_ios: AtomicU64,
    /// I/Os that failed; they are in neither of the others.
    pub(crate) failed_ios: AtomicU64,
}

/// Everything a job has counted.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) index: usize,
    pub(crate) elapsed: Duration,
    pub(crate) read: Direction,
    pub(crate) write: Direction,
    pub(crate) depths: Levels,
    pub(crate) submits: Levels,
    pub(crate) completes: Levels,
    pub(crate) cpu: Cpu,
    pub(crate) stats: Stats,
    /// How often the controller was brought back, for whichever job.
    pub(crate) recoveries: u64,
    pub(crate) errors: Errors,
    pub(crate) failure: Option<JobFailure>,
}

/// Why a job ended early.
#[derive(Clone, Debug)]
pub(crate) struct JobFailure {
    /// How many I/Os failed.
    pub(crate) count: u64,
    /// The first failure.
    pub(crate) first: String,
    /// As fio numbers it.
    pub(crate) errno: i32,
}

/// A job ready to run.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    common: &'a Common<'a>,
    progress: &'a Progress,
    region: Region,
    seed: u64,
    generator: Generator,
    /// What is still to be read back, in a verify phase.
    to_verify: Option<Written>,
    unwritten: Unwritten,
    queue: QueuePair<Owned>,
    depth: usize,
    idle: Vec<Buffer>,
    done: Vec<(Owned, Result<u32, CommandError>)>,
    /// Work that the queue had no room for.
    held: Option<Work>,
    /// What failed and is to be sent again.
    again: Again<Work>,
    /// The controller is out of service and may come back: nothing is to be submitted.
    is_down: bool,
    now: Time,
    end: Option<Time>,
    idle_polls: u32,
    last_finish: Time,
    outcome: Outcome,
}

impl<'a> Job<'a> {
    /// Job `index` of `common`, with a queue pair and buffers of one block each.
    pub(crate) fn new(
        common: &'a Common<'a>,
        progress: &'a Progress,
        index: usize,
        seed: u64,
        region: Region,
        queue: QueuePair<Owned>,
        buffers: Vec<Buffer>,
    ) -> Job<'a> {
        Job {
            common,
            progress,
            region,
            seed,
            generator: Generator::new(common.pattern, region.block_count, seed),
            to_verify: None,
            unwritten: Unwritten::new(),
            queue,
            depth: buffers.len(),
            again: Again::new(buffers.len()),
            is_down: false,
            done: Vec::with_capacity(buffers.len()),
            idle: buffers,
            held: None,
            now: Time::ZERO,
            end: None,
            idle_polls: 0,
            last_finish: Time::ZERO,
            outcome: Outcome::new(index),
        }
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Outcome {
        let (cpu, start) = (Cpu::of_this_thread(), self.common.controller.now());
        self.now = start;
        self.end = self.common.runtime.map(|runtime| start + runtime);
        loop {
            self.phase();
            if self.checks_writes() && !self.is_stopped() {
                self.to_verify = Some(self.generator.written());
                self.phase();
                self.to_verify = None;
            }
            if !self.common.time_based || self.is_over() {
                break;
            }
            self.generator.next_pass();
            self.unwritten.clear();
        }
        self.outcome.elapsed = self.common.controller.now().since(start);
        self.outcome.cpu = Cpu::of_this_thread().since(&cpu);
        self.outcome.stats = self.queue.stats();
        self.outcome.recoveries = self.common.recovery.count.load(Ordering::Relaxed);
        self.outcome
    }

    /// Everything up to the end of a pass, or of its verification.
    fn phase(&mut self) {
        self.now = self.common.controller.now();
        let (start, reads, writes) = (self.now, self.outcome.read.ios(), self.outcome.write.ios());
        self.last_finish = start;
        loop {
            self.submit();
            if (self.idle.len() == self.depth && !self.goes_on()) || !self.reap() {
                break;
            }
        }
        let took = self.now.since(start);
        for (direction, before) in
            [(&mut self.outcome.read, reads), (&mut self.outcome.write, writes)]
        {
            if direction.ios() > before {
                direction.runtime += took;
            }
        }
    }

    /// Whether there is something to wait for though nothing is in flight.
    fn goes_on(&self) -> bool {
        (self.is_down || !self.again.is_empty()) && !self.is_stopped()
    }

    /// Posts whatever buffers are idle for, and rings once.
    fn submit(&mut self) {
        if self.is_down {
            return;
        }
        let mut posted = 0;
        while let Some(buffer) = self.idle.pop() {
            let held = self.held.take().or_else(|| self.again.take(self.now));
            let Some(work) = held.or_else(|| self.next_work()) else {
                self.idle.push(buffer);
                break;
            };
            if !self.post(buffer, work) {
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            self.queue.ring();
            // The device sees a batch at once: each of its I/Os had all the others beside it.
            self.outcome.depths.record_many(self.depth - self.idle.len(), posted);
            self.outcome.submits.record(posted);
        }
    }

    /// Whether the queue took it.
    fn post(&mut self, mut buffer: Buffer, work: Work) -> bool {
        if work.step.write && self.common.verify {
            verify::stamp(&mut buffer, self.region.offset(work.step.block), self.writer());
            self.now = self.common.controller.now();
        }
        let issued = work.retried.map_or(self.now, |(_, first)| first);
        let (lba, tag) = (self.region.lba(work.step.block), Tag { work, issued });
        let owned = (buffer, tag);
        let namespace = self.common.namespace;
        let command =
            if work.step.write { namespace.write(lba, owned) } else { namespace.read(lba, owned) };
        let posted = match work.retried {
            None => self.queue.post(self.now, command),
            Some(_) => self.queue.resubmit(self.now, command),
        };
        let Err(rejected) = posted else { return true };
        self.idle.push(rejected.buffer.0);
        match rejected.reason {
            RejectReason::Full => self.held = Some(work),
            reason => {
                let offset = self.region.offset(work.step.block);
                self.fail(EIO, format!("the I/O at offset {offset} was not taken: {reason}"));
            }
        }
        false
    }

    fn next_work(&mut self) -> Option<Work> {
        if self.to_verify.is_some() {
            return self.next_verification();
        }
        if self.is_over() {
            return None;
        }
        let step = self.next_step()?;
        // A mixed workload reads what others, or earlier passes, may have left there.
        let check = self.common.verify && self.common.pattern.read_percent == 100;
        let expected =
            check.then(|| Identity { offset: self.region.offset(step.block), writer: None });
        Some(Work { step, expected, retried: None })
    }

    fn next_step(&mut self) -> Option<Step> {
        let step = self.generator.next_step();
        if step.is_some() || !self.common.time_based || self.checks_writes() {
            return step;
        }
        self.generator.next_pass();
        self.generator.next_step()
    }

    fn next_verification(&mut self) -> Option<Work> {
        if self.is_stopped() {
            return None;
        }
        let unwritten = &self.unwritten;
        let block = self.to_verify.as_mut()?.find(|block| !unwritten.contains(block))?;
        let expected = Identity { offset: self.region.offset(block), writer: Some(self.writer()) };
        Some(Work { step: Step { block, write: false }, expected: Some(expected), retried: None })
    }

    /// Takes in what finished. False once nothing can be waited for any more.
    #[inline]
    fn reap(&mut self) -> bool {
        let done = &mut self.done;
        if self.queue.poll(self.now, |completion| done.push((completion.buffer, completion.result)))
            == 0
        {
            return self.wait();
        }
        self.now = self.common.controller.now();
        self.last_finish = self.now;
        self.idle_polls = 0;
        self.outcome.completes.record(self.done.len());
        // Taken out and put back, so that its memory stays.
        let mut done = std::mem::take(&mut self.done);
        for (owned, result) in done.drain(..) {
            self.finish(owned, result);
        }
        self.done = done;
        self.progress.read_ios.store(self.outcome.read.ios(), Ordering::Relaxed);
        self.progress.write_ios.store(self.outcome.write.ios(), Ordering::Relaxed);
        true
    }

    fn finish(&mut self, (buffer, Tag { work, issued }): Owned, result: Result<u32, CommandError>) {
        match result {
            Ok(_) => {
                let direction =
                    if work.step.write { &mut self.outcome.write } else { &mut self.outcome.read };
                direction.latency.record(self.now.since(issued).as_nanos() as u64);
                direction.bytes += self.region.block_bytes;
                self.check(&buffer, work);
            }
            Err(error) => self.io_failed(work, issued, error),
        }
        self.idle.push(buffer);
    }

    #[cold]
    fn io_failed(&mut self, work: Work, issued: Time, error: CommandError) {
        self.is_down = self.common.recovery.is_in_sight() && self.queue.check().is_err();
        if self.send_again(work, issued, error) {
            return;
        }
        let (kind, what) =
            if work.step.write { (Kind::Write, "Write") } else { (Kind::Read, "Read") };
        if work.step.write {
            self.unwritten.insert(work.step.block);
        }
        let (offset, why) = (self.region.offset(work.step.block), self.reason_for(error));
        self.error(kind, name_of(error), format!("{what} at offset {offset} failed: {why}"));
    }

    /// Whether it is worth sending it again; then it will be.
    fn send_again(&mut self, work: Work, issued: Time, error: CommandError) -> bool {
        let (times, first) = work.retried.unwrap_or((0, issued));
        let delay = self.common.controller.retry_delay(&error);
        let Some(delay) = delay.filter(|_| times < self.common.retries && !self.is_stopped())
        else {
            return false;
        };
        self.again.push(self.now + delay, Work { retried: Some((times + 1, first)), ..work });
        true
    }

    /// Counts an error, and ends the job or tells and goes on.
    fn error(&mut self, kind: Kind, name: &'static str, message: String) {
        let is_told = self.outcome.errors.count(kind, name);
        self.progress.failed_ios.fetch_add(u64::from(kind != Kind::Verify), Ordering::Relaxed);
        // On a controller that does not come back nothing will succeed any more.
        let goes_on = self.is_down || self.queue.check().is_ok();
        if !goes_on || !self.common.tolerance.covers(kind) {
            self.fail(kind.errno(), message);
        } else if is_told {
            tracing::warn!("{}: {message}", self.common.controller.info().device);
        }
    }

    /// What a command's error comes from: of a reset, why it was necessary.
    #[cold]
    fn reason_for(&self, error: CommandError) -> String {
        match (error, self.queue.check()) {
            (CommandError::Reset { .. }, Err(Error::Failed { reason, .. })) => {
                format!("{error}: {reason}")
            }
            _ => error.to_string(),
        }
    }

    #[inline]
    fn check(&mut self, buffer: &Buffer, work: Work) {
        let Some(expected) = work.expected else { return };
        if let Err(mismatch) = verify::check(buffer, expected) {
            self.error(Kind::Verify, "Verify", mismatch.to_string());
        }
        // Checking took time that is not the next I/O's.
        self.now = self.common.controller.now();
    }

    /// Nothing finished: every now and then looks at the clock, and at the controller.
    fn wait(&mut self) -> bool {
        self.idle_polls += 1;
        if !self.idle_polls.is_multiple_of(IDLE_POLLS) {
            return true;
        }
        self.now = self.common.controller.now();
        if self.now.since(self.last_finish) > self.common.yield_after {
            std::thread::yield_now();
        }
        match self.queue.check() {
            Ok(()) => {
                self.is_down = false;
                true
            }
            Err(error) => self.wait_for_lost(&error),
        }
    }

    /// The controller is out of service: its buffers come back once it is reset, or never, and it may come back
    /// itself. False once there is nothing to wait for.
    #[cold]
    fn wait_for_lost(&mut self, error: &Error) -> bool {
        let waited = self.now.since(self.last_finish);
        let ready_timeout = self.common.controller.info().ready_timeout;
        if self.common.recovery.is_in_sight() && waited < ready_timeout + RECOVERY_PATIENCE {
            self.is_down = true;
            return true;
        }
        if self.outcome.failure.is_none() {
            self.fail(EIO, self.reason_of_loss(error));
        }
        waited < ready_timeout + PATIENCE
    }

    fn reason_of_loss(&self, error: &Error) -> String {
        match (self.common.recovery.lost(), error) {
            (Some(why), _) => format!("the controller could not be brought back: {why}"),
            (None, Error::Failed { reason, .. }) => {
                format!("the controller is out of service: {reason}")
            }
            (None, other) => other.to_string(),
        }
    }

    #[cold]
    fn fail(&mut self, errno: i32, message: String) {
        self.again.clear();
        let failure = JobFailure { count: 0, first: message, errno };
        self.outcome.failure.get_or_insert(failure).count += 1;
    }

    fn writer(&self) -> Writer {
        Writer { seed: self.seed, generation: self.generator.pass() }
    }

    fn checks_writes(&self) -> bool {
        self.common.verify && self.common.pattern.read_percent < 100
    }

    /// Whether nothing more is to be submitted, not even to verify.
    fn is_stopped(&self) -> bool {
        self.outcome.failure.is_some() || self.common.interrupt.requested()
    }

    /// Whether no new work is to be begun.
    #[inline]
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.now >= end) || self.is_stopped()
    }
}

impl Outcome {
    fn new(index: usize) -> Outcome {
        Outcome {
            index,
            elapsed: Duration::ZERO,
            read: Direction::new(),
            write: Direction::new(),
            depths: Levels::default(),
            submits: Levels::default(),
            completes: Levels::default(),
            cpu: Cpu::default(),
            stats: Stats::default(),
            recoveries: 0,
            errors: Errors::default(),
            failure: None,
        }
    }

    /// Adds another job that ran at the same time.
    pub(crate) fn merge(&mut self, other: &Outcome) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.depths.merge(&other.depths);
        self.submits.merge(&other.submits);
        self.completes.merge(&other.completes);
        self.cpu.merge(&other.cpu);
        merge_stats(&mut self.stats, &other.stats);
        self.recoveries = self.recoveries.max(other.recoveries);
        self.errors.merge(&other.errors);
        if self.failure.is_none() {
            self.failure.clone_from(&other.failure);
        }
    }
}

fn merge_stats(ours: &mut Stats, theirs: &Stats) {
    ours.submitted += theirs.submitted;
    ours.sgl_commands += theirs.sgl_commands;
    ours.prebuilt_lists += theirs.prebuilt_lists;
    ours.built_lists += theirs.built_lists;
    ours.bounced_commands += theirs.bounced_commands;
    ours.bounced_bytes += theirs.bounced_bytes;
    ours.submission_rings += theirs.submission_rings;
    ours.completion_rings += theirs.completion_rings;
    ours.unknown_cids += theirs.unknown_cids;
    ours.wrong_sqids += theirs.wrong_sqids;
    ours.bad_sqheads += theirs.bad_sqheads;
    ours.aborts += theirs.aborts;
    ours.recreations += theirs.recreations;
    ours.resets += theirs.resets;
    ours.retries += theirs.retries;
}
