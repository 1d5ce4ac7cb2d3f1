//! One job: one thread, one queue pair, `iodepth` I/Os in flight.
//!
//! The loop posts everything that is idle, rings once, polls until something finished, and
//! counts it. It reads the clock once for each batch that finished, and once more before
//! posting where data was stamped or checked in between. Nothing is allocated, locked or asked of the system on the way.
//!
//! A pass over the region that wrote with `--verify` is followed by a phase that reads what it
//! wrote and checks it. The first failure ends the job: what is in flight is waited for, and the
//! counts so far are reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::{
    Buffer, CommandError, Controller, Error, Namespace, QueuePair, RejectReason, Stats, Time,
};

use super::cpu::Cpu;
use super::generator::{Generator, Pattern, Step, Written};
use super::measure::{Direction, Levels};
use super::plan::Region;
use super::verify::{self, Identity, Writer};
use crate::interrupt::Interrupt;

/// Empty polls between two looks at the clock: deadlines and the end of the run are this coarse.
const IDLE_POLLS: u32 = 16;
/// How long a controller that was given up on may take to give buffers back, beyond its own time to reset.
const PATIENCE: Duration = Duration::from_secs(5);

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
}

/// What all jobs have in common.
#[derive(Debug)]
pub(crate) struct Common<'a> {
    pub(crate) controller: &'a Controller,
    pub(crate) namespace: &'a Namespace,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) pattern: Pattern,
    pub(crate) verify: bool,
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
    pub(crate) failure: Option<JobFailure>,
}

/// Why a job ended early.
#[derive(Clone, Debug)]
pub(crate) struct JobFailure {
    /// How many I/Os failed.
    pub(crate) count: u64,
    /// The first failure.
    pub(crate) first: String,
    /// Data was not what it should be; else the I/O itself failed.
    pub(crate) is_mismatch: bool,
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
    queue: QueuePair<Owned>,
    depth: usize,
    idle: Vec<Buffer>,
    done: Vec<(Owned, Result<u32, CommandError>)>,
    /// Work that the queue had no room for.
    held: Option<Work>,
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
            queue,
            depth: buffers.len(),
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
        }
        self.outcome.elapsed = self.common.controller.now().since(start);
        self.outcome.cpu = Cpu::of_this_thread().since(&cpu);
        self.outcome.stats = self.queue.stats();
        self.outcome
    }

    /// Everything up to the end of a pass, or of its verification.
    fn phase(&mut self) {
        self.now = self.common.controller.now();
        let (start, reads, writes) = (self.now, self.outcome.read.ios(), self.outcome.write.ios());
        self.last_finish = start;
        loop {
            self.submit();
            if self.idle.len() == self.depth || !self.reap() {
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

    /// Posts whatever buffers are idle for, and rings once.
    fn submit(&mut self) {
        let mut posted = 0;
        while let Some(buffer) = self.idle.pop() {
            let Some(work) = self.held.take().or_else(|| self.next_work()) else {
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
        let (lba, tag) = (self.region.lba(work.step.block), Tag { work, issued: self.now });
        let owned = (buffer, tag);
        let namespace = self.common.namespace;
        let command =
            if work.step.write { namespace.write(lba, owned) } else { namespace.read(lba, owned) };
        let Err(rejected) = self.queue.post(self.now, command) else { return true };
        self.idle.push(rejected.buffer.0);
        match rejected.reason {
            RejectReason::Full => self.held = Some(work),
            reason => {
                let offset = self.region.offset(work.step.block);
                self.fail(false, || format!("the I/O at offset {offset} was not taken: {reason}"));
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
        Some(Work { step, expected })
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
        let block = self.to_verify.as_mut()?.next()?;
        let expected = Identity { offset: self.region.offset(block), writer: Some(self.writer()) };
        Some(Work { step: Step { block, write: false }, expected: Some(expected) })
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
            Err(error) => {
                let offset = self.region.offset(work.step.block);
                let what = if work.step.write { "Write" } else { "Read" };
                let why = self.reason_for(error);
                self.fail(false, || format!("{what} at offset {offset} failed: {why}"));
            }
        }
        self.idle.push(buffer);
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
            self.fail(true, || mismatch.to_string());
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
            Ok(()) => true,
            Err(error) => self.wait_for_lost(&error),
        }
    }

    /// The controller is out of service: its buffers come back once it is reset, or never.
    #[cold]
    fn wait_for_lost(&mut self, error: &Error) -> bool {
        let patience = self.common.controller.info().ready_timeout + PATIENCE;
        if self.outcome.failure.is_none() {
            self.fail(false, || error.to_string());
        }
        self.now.since(self.last_finish) < patience
    }

    #[cold]
    fn fail(&mut self, is_mismatch: bool, message: impl FnOnce() -> String) {
        match &mut self.outcome.failure {
            Some(failure) => failure.count += 1,
            None => {
                self.outcome.failure = Some(JobFailure { count: 1, first: message(), is_mismatch })
            }
        }
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
}
