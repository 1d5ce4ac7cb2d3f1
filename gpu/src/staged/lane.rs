//! One device's queue pair and its jobs, driven turn by turn.
//!
//! A lane has no thread and reads no clock. Each turn takes completions, sends due retries, and advances every job by
//! one step, the oldest first. Nothing blocks: what a turn cannot do is left to the next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::{
    Buffer, CommandError, Completion, Controller, Namespace, QueuePairOptions, Time,
};

use super::chunks::Chunks;
use super::copies::Copies;
use super::job::Job;
use super::means::{Area, Later, Means, Posted, Tag};
use super::stats::Stats;
use super::work::Work;
use crate::commands::outcome::RESET;
use crate::error::{Error, Result};

#[derive(Clone, Debug)]
pub(super) struct LaneOptions {
    pub(super) depth: u32,
    /// Number of chunks, each for one command.
    pub(super) chunks: usize,
    /// Bytes of a chunk: the largest context.
    pub(super) chunk_bytes: usize,
    /// Time limit of a command before the driver aborts it.
    pub(super) timeout: Duration,
    /// Time limit of copies under way when the lane is dropped.
    pub(super) drain: Duration,
}

type Landed = (Buffer, Tag, Result<u32, CommandError>);

/// A device's queue pair, its chunks and its jobs.
pub(super) struct Lane<C: Copies> {
    jobs: VecDeque<Job<C>>,
    means: Means<C>,
    next_serial: u64,
    /// The stream that reports control blocks for which no stream could be made.
    refusals: C::Stream,
    /// Time limit of copies under way when it is dropped.
    drain: Duration,
    landed: Vec<Landed>,
}

impl<C: Copies> Lane<C> {
    /// Creates a lane with its own queue pair and chunks.
    ///
    /// # Errors
    /// The driver's and the GPU's.
    pub(super) fn new(
        controller: &Arc<Controller>,
        namespace: &Namespace,
        mut copies: C,
        areas: &Arc<[Area]>,
        options: &LaneOptions,
    ) -> Result<Lane<C>> {
        let refusals = copies.stream()?;
        let chunks = Chunks::new(&mut copies, controller, options.chunk_bytes, options.chunks)?;
        let queue = controller.create_queue_pair(QueuePairOptions {
            depth: options.depth,
            timeout: options.timeout,
            ..QueuePairOptions::default()
        })?;
        let means = Means {
            queue,
            chunks,
            copies,
            controller: Arc::clone(controller),
            namespace: namespace.clone(),
            areas: Arc::clone(areas),
            streams: Vec::new(),
            later: Vec::new(),
            stats: Stats::default(),
            in_first: 0,
            has_posted: false,
            has_lost_lines: false,
        };
        let (jobs, landed) = (VecDeque::new(), Vec::new());
        Ok(Lane { jobs, means, next_serial: 0, refusals, drain: options.drain, landed })
    }

    /// Accepts a control block.
    pub(super) fn add(&mut self, work: Work<C::Event>) {
        let serial = self.next_serial;
        self.next_serial += 1;
        match self.means.stream(work.after.as_ref()) {
            Ok(stream) => self.jobs.push_back(Job::new(serial, stream, work)),
            Err(error) => {
                self.say(&error);
                self.refuse(&work);
            }
        }
    }

    /// Ends a control block that has no stream. Tells the GPU on the reserved stream, and only then the CPU, which may
    /// reuse the words once it knows.
    fn refuse(&mut self, work: &Work<C::Event>) {
        let (copies, stream) = (&mut self.means.copies, &self.refusals);
        let told = copies.tell(stream, work, &vec![RESET; work.contexts.len()]);
        self.means.has_lost_lines |= !copies.drain(stream, self.drain);
        if let Err(error) = told {
            tracing::error!("streams do not learn that a control block is over: {error}");
        }
        work.progress.fail(work.generation, RESET);
    }

    /// Returns whether there is nothing to do until something is added.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.means.queue.in_flight() == 0
    }

    /// Returns whether a copy or a write of a word was not seen to end and may go on.
    pub(super) fn has_lost(&self) -> bool {
        self.means.has_lost_lines
    }

    pub(super) fn stats(&self) -> Stats {
        self.means.stats
    }

    /// Returns the current time on the controller's clock.
    pub(super) fn now(&self) -> Time {
        self.means.controller.now()
    }

    /// Advances everything by one step. Returns how much moved; at 0, time must pass or a device must answer.
    pub(super) fn turn(&mut self, now: Time) -> usize {
        let mut moved = self.reap(now);
        moved += self.send_again(now);
        if self.means.controller.check().is_err() {
            self.give_up_unsent();
        }
        moved += self.turn_jobs(now);
        self.means.ring();
        moved
    }

    /// Takes completions.
    fn reap(&mut self, now: Time) -> usize {
        let landed = &mut self.landed;
        self.means.queue.poll(now, |Completion { buffer: (chunk, tag), result }| {
            landed.push((chunk.into_buffer(), tag, result));
        });
        let count = self.landed.len();
        let mut landed = std::mem::take(&mut self.landed);
        for one in landed.drain(..) {
            self.land(now, one);
        }
        self.landed = landed;
        count
    }

    fn land(&mut self, now: Time, (chunk, tag, result): Landed) {
        let Some(position) = self.waiting(tag) else {
            self.means.stats.late += 1;
            self.means.in_first -= usize::from(!tag.is_write);
            return self.means.chunks.put(chunk);
        };
        if let Err(error) = self.jobs[position].land(&mut self.means, now, (chunk, tag), result) {
            self.abandon(position, &error);
        }
    }

    /// Returns the index of the job that waits for this command.
    fn waiting(&self, tag: Tag) -> Option<usize> {
        let position = self.jobs.binary_search_by_key(&tag.serial, |job| job.serial).ok()?;
        (!self.jobs[position].is_settled_with_the_device()).then_some(position)
    }

    /// Sends due retries.
    fn send_again(&mut self, now: Time) -> usize {
        let mut sent = 0;
        for later in std::mem::take(&mut self.means.later) {
            match self.waiting(later.tag) {
                Some(_) if now < later.due => self.means.later.push(later),
                Some(position) => {
                    sent += 1;
                    self.send_one_again(now, position, later);
                }
                None => {
                    self.means.in_first -= usize::from(!later.tag.is_write);
                    self.means.chunks.put(later.chunk);
                }
            }
        }
        sent
    }

    fn send_one_again(&mut self, now: Time, position: usize, later: Later) {
        let Later { due, chunk, tag } = later;
        let (means, job) = (&mut self.means, &mut self.jobs[position]);
        match means.post(now, job.context_of(tag), chunk, tag) {
            Posted::Yes => means.stats.retries += 1,
            Posted::Full(chunk) => means.later.push(Later { due, chunk, tag }),
            Posted::Refused(chunk, status) => {
                means.chunks.put(chunk);
                job.end_put_off(means, tag, status);
            }
        }
    }

    /// Stops sending to a controller out of service. Its outstanding commands return through its queue.
    fn give_up_unsent(&mut self) {
        for later in std::mem::take(&mut self.means.later) {
            let position = self.waiting(later.tag);
            self.means.chunks.put(later.chunk);
            match position {
                Some(position) => {
                    self.jobs[position].end_put_off(&mut self.means, later.tag, RESET);
                }
                None => self.means.in_first -= usize::from(!later.tag.is_write),
            }
        }
        for job in self.jobs.iter_mut().filter(|job| !job.is_settled_with_the_device()) {
            job.give_up_unsent(&mut self.means, RESET);
        }
    }

    fn turn_jobs(&mut self, now: Time) -> usize {
        let (mut moved, mut position) = (0, 0);
        while position < self.jobs.len() {
            let job = &mut self.jobs[position];
            let turned = job.turn(&mut self.means, now);
            match turned.and_then(|moved| Ok((moved, job.is_told(&mut self.means)?))) {
                Ok((steps, false)) => {
                    moved += steps;
                    position += 1;
                }
                Ok((_, true)) => {
                    let job = self.jobs.remove(position).expect("it is there");
                    job.finish(&mut self.means, now);
                    moved += 1;
                }
                // Check once more; an abandoned job returns no error.
                Err(error) => self.abandon(position, &error),
            }
        }
        moved
    }

    /// Abandons a job, which stays until its stream is idle.
    fn abandon(&mut self, position: usize, error: &Error) {
        self.say(error);
        self.jobs[position].abandon(&mut self.means);
    }

    fn say(&self, error: &Error) {
        let device = &self.means.controller.info().device;
        tracing::error!("{device}: a control block of the staged engine is given up: {error}");
    }

    /// Ends everything, whatever the device does. Waits a while for copies under way; if that is not enough, leaks what
    /// they use.
    pub(super) fn close(&mut self) {
        let end = self.now() + self.drain;
        while let Some(job) = self.jobs.pop_front() {
            let now = self.now();
            job.stop(&mut self.means, now, end.since(now));
        }
    }
}

impl<C: Copies> Drop for Lane<C> {
    /// The queue pair drops afterwards, with its commands in flight.
    fn drop(&mut self) {
        self.close();
    }
}
