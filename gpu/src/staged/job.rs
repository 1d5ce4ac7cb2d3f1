//! One control block in progress.
//!
//! A context is in one place at a time: not started, being copied, on the device (or waiting for a retry), or over.
//! `owed` counts those that the device has yet to answer for good. At 0, the failed statuses and `done` are written
//! behind the last copy on the job's own stream: an observer of `done` sees the data, which the engine no longer touches.
//! The CPU is told afterwards.
//!
//! A job whose GPU call fails is abandoned, but stays here until its stream is idle: the stream's requests access the pool
//! and the words, which may have another owner once the CPU has been told.

use std::collections::VecDeque;
use std::time::Duration;

use adit_driver::{Buffer, CommandError, Time};

use super::copies::Copies;
use super::means::{Later, Means, Posted, Tag, word_of};
use super::work::Work;
use crate::commands::layout::Context;
use crate::commands::outcome::{NOT_SENT, RESET, TIMED_OUT};
use crate::error::{Error, Result};

/// The most copies per mark, which bounds how long a second stage waits.
const BATCH: usize = 4;

/// A control block, its progress and its stream.
pub(super) struct Job<C: Copies> {
    pub(super) serial: u64,
    work: Work<C::Event>,
    stream: C::Stream,
    /// How each context ended, or would end if the deadline came now.
    statuses: Vec<u32>,
    next: usize,
    /// Contexts without a final answer from the device, including those not started.
    owed: usize,
    /// Chunks and their contexts, in the order of their copies.
    copying: VecDeque<(Buffer, usize)>,
    /// Marks on the stream, with the number of copies that each ends.
    marks: VecDeque<(C::Mark, usize)>,
    /// Copies behind the last mark.
    unmarked: usize,
    /// Chunks copied from the GPU that no queue has yet.
    copied: VecDeque<(Buffer, usize)>,
    /// Whether its event is not yet known to have happened.
    waits: bool,
    started: Option<Time>,
    deadline: Time,
    /// The mark behind `done`.
    conclusion: Option<C::Mark>,
    /// Whether it only waits for its stream to become idle.
    is_given_up: bool,
}

impl<C: Copies> Job<C> {
    /// Creates a job that has not begun, on its own stream behind the work's event.
    pub(super) fn new(serial: u64, stream: C::Stream, work: Work<C::Event>) -> Job<C> {
        let count = work.contexts.len();
        Job {
            serial,
            stream,
            statuses: vec![NOT_SENT; count],
            next: 0,
            owed: count,
            copying: VecDeque::new(),
            marks: VecDeque::new(),
            unmarked: 0,
            copied: VecDeque::new(),
            waits: work.after.is_some(),
            started: None,
            deadline: Time::NEVER,
            conclusion: None,
            is_given_up: false,
            work,
        }
    }

    /// Advances everything by one step. Returns how much moved.
    ///
    /// # Errors
    /// The GPU's; the job cannot continue.
    pub(super) fn turn(&mut self, means: &mut Means<C>, now: Time) -> Result<usize> {
        if self.conclusion.is_some() || self.is_given_up {
            return Ok(0);
        }
        let mut moved = self.settle(means)?;
        self.look_at_event(means, now)?;
        if now >= self.deadline {
            self.expire(means);
        }
        moved += self.send_copied(means, now);
        moved += self.start(means, now)?;
        if self.owed == 0 {
            self.conclude(means)?;
        } else if self.unmarked > 0 {
            self.mark(means)?;
        }
        Ok(moved)
    }

    /// Takes back the chunks of finished copies.
    fn settle(&mut self, means: &mut Means<C>) -> Result<usize> {
        let mut settled = 0;
        while let Some((mark, count)) = self.marks.front()
            && means.copies.is_over(mark)?
        {
            for (chunk, context) in self.copying.drain(..*count) {
                match self.work.contexts[context].is_write() {
                    true => self.copied.push_back((chunk, context)),
                    false => means.chunks.put(chunk),
                }
            }
            settled += count;
            self.marks.pop_front();
        }
        Ok(settled)
    }

    /// Starts the deadline at the first moment that work may begin.
    fn look_at_event(&mut self, means: &mut Means<C>, now: Time) -> Result<()> {
        if self.waits
            && let Some(event) = &self.work.after
        {
            self.waits = !means.copies.has_happened(event)?;
        }
        if !self.waits && self.deadline == Time::NEVER {
            self.deadline = now + self.work.timeout;
        }
        Ok(())
    }

    /// Starts contexts while there are chunks, and room in the queue.
    fn start(&mut self, means: &mut Means<C>, now: Time) -> Result<usize> {
        let first = self.next;
        if means.chunks.is_empty() {
            return Err(Error::OutOfService {
                device: means.controller.info().device.clone(),
                reason: "copies that never ended have all of the pinned memory".to_owned(),
            });
        }
        while self.next < self.work.contexts.len() {
            let Some(chunk) = means.chunks.take(self.waits) else { break };
            let index = self.next;
            let context = self.work.contexts[index];
            if context.is_write() {
                self.copy_from_gpu(means, index, context, chunk)?;
            } else if !self.post(means, now, index, chunk) {
                break;
            }
            self.started.get_or_insert(now);
            self.next = index + 1;
        }
        Ok(self.next - first)
    }

    fn copy_from_gpu(
        &mut self,
        means: &mut Means<C>,
        index: usize,
        context: Context,
        mut chunk: Buffer,
    ) -> Result<()> {
        let (from, bytes) = (means.address_of(context), means.bytes_of(context));
        let copied = means.copies.copy_from_gpu(&self.stream, &mut chunk, from, bytes);
        means.in_first += 1;
        self.copying.push_back((chunk, index));
        copied?;
        means.stats.copies += 1;
        self.unmarked += 1;
        if self.unmarked == BATCH { self.mark(means) } else { Ok(()) }
    }

    fn mark(&mut self, means: &mut Means<C>) -> Result<()> {
        let mark = means.copies.mark(&self.stream)?;
        means.stats.marks += 1;
        self.marks.push_back((mark, std::mem::take(&mut self.unmarked)));
        Ok(())
    }

    /// Sends chunks copied from the GPU to the device.
    fn send_copied(&mut self, means: &mut Means<C>, now: Time) -> usize {
        let mut sent = 0;
        while let Some((chunk, index)) = self.copied.pop_front() {
            if !self.post(means, now, index, chunk) {
                break;
            }
            sent += 1;
        }
        sent
    }

    /// Posts the command of a context; returns false if there is no room. A chunk with copied data is kept, any other
    /// is freed.
    fn post(&mut self, means: &mut Means<C>, now: Time, index: usize, chunk: Buffer) -> bool {
        let context = self.work.contexts[index];
        let tag = Tag {
            serial: self.serial,
            context: index as u32,
            is_write: context.is_write(),
            was_sent_before: false,
        };
        match means.post(now, context, chunk, tag) {
            Posted::Yes => {
                self.statuses[index] = TIMED_OUT;
                match context.is_write() {
                    true => means.count_second_stage(),
                    false => means.in_first += 1,
                }
                true
            }
            Posted::Full(chunk) => {
                match context.is_write() {
                    true => self.copied.push_front((chunk, index)),
                    false => means.chunks.put(chunk),
                }
                false
            }
            Posted::Refused(chunk, status) => {
                means.in_first -= usize::from(context.is_write());
                means.chunks.put(chunk);
                self.end(index, status);
                true
            }
        }
    }

    /// Handles the result of an outstanding command.
    ///
    /// # Errors
    /// The GPU's; the job cannot continue.
    pub(super) fn land(
        &mut self,
        means: &mut Means<C>,
        now: Time,
        (chunk, tag): (Buffer, Tag),
        result: Result<u32, CommandError>,
    ) -> Result<()> {
        let index = tag.context as usize;
        let status = match result {
            Ok(_) if tag.is_write => 0,
            Ok(_) => return self.copy_to_gpu(means, index, chunk),
            Err(error) => {
                if let Some(due) = self.next_try(means, now, tag, &error) {
                    means.later.push(Later {
                        due,
                        chunk,
                        tag: Tag { was_sent_before: true, ..tag },
                    });
                    return Ok(());
                }
                word_of(&error)
            }
        };
        means.in_first -= usize::from(!tag.is_write);
        means.chunks.put(chunk);
        self.end(index, status);
        Ok(())
    }

    /// Returns when to retry a failed command: once, if its controller considers it worthwhile.
    fn next_try(
        &self,
        means: &Means<C>,
        now: Time,
        tag: Tag,
        error: &CommandError,
    ) -> Option<Time> {
        if tag.was_sent_before {
            return None;
        }
        let due = now + means.controller.retry_delay(error)?;
        (due < self.deadline).then_some(due)
    }

    fn copy_to_gpu(&mut self, means: &mut Means<C>, index: usize, chunk: Buffer) -> Result<()> {
        let context = self.work.contexts[index];
        let (to, bytes) = (means.address_of(context), means.bytes_of(context));
        means.count_second_stage();
        let copied = means.copies.copy_to_gpu(&self.stream, to, &chunk, bytes);
        self.copying.push_back((chunk, index));
        self.end(index, 0);
        copied?;
        means.stats.copies += 1;
        self.unmarked += 1;
        if self.unmarked == BATCH { self.mark(means) } else { Ok(()) }
    }

    /// Returns whether the device owes no more answers; any further one is late.
    pub(super) fn is_settled_with_the_device(&self) -> bool {
        self.owed == 0
    }

    pub(super) fn context_of(&self, tag: Tag) -> Context {
        self.work.contexts[tag.context as usize]
    }

    /// Ends a context that was on the device or awaiting a retry, whose chunk is free again.
    pub(super) fn end_put_off(&mut self, means: &mut Means<C>, tag: Tag, status: u32) {
        means.in_first -= usize::from(!tag.is_write);
        self.end(tag.context as usize, status);
    }

    /// Ends the contexts that no queue has.
    pub(super) fn give_up_unsent(&mut self, means: &mut Means<C>, status: u32) {
        for index in std::mem::replace(&mut self.next, self.statuses.len())..self.statuses.len() {
            self.end(index, status);
        }
        while let Some((chunk, index)) = self.copied.pop_front() {
            means.in_first -= 1;
            means.chunks.put(chunk);
            self.end(index, status);
        }
    }

    /// Ends everything because the deadline has passed. The device may still execute its commands; their chunks return
    /// with its answers.
    fn expire(&mut self, means: &mut Means<C>) {
        self.give_up_unsent(means, NOT_SENT);
        if self.owed > 0 && means.controller.check().is_err() {
            self.reset_unanswered();
        }
        self.owed = 0;
    }

    fn reset_unanswered(&mut self) {
        for status in self.statuses.iter_mut().filter(|status| **status == TIMED_OUT) {
            *status = RESET;
        }
    }

    fn end(&mut self, index: usize, status: u32) {
        assert!(self.owed > 0, "a context ends once");
        self.statuses[index] = status;
        self.owed -= 1;
    }

    /// Writes `done`, behind all copies.
    fn conclude(&mut self, means: &mut Means<C>) -> Result<()> {
        self.tell(means)?;
        self.conclusion = Some(means.copies.mark(&self.stream)?);
        means.stats.marks += 1;
        Ok(())
    }

    fn tell(&self, means: &mut Means<C>) -> Result<()> {
        means.copies.tell(&self.stream, &self.work, &self.statuses)
    }

    /// Returns whether `done` is visible; for an abandoned job, whether its stream is idle.
    ///
    /// # Errors
    /// The GPU's; the job cannot continue. Never for an abandoned job.
    pub(super) fn is_told(&self, means: &mut Means<C>) -> Result<bool> {
        match &self.conclusion {
            _ if self.is_given_up => Ok(self.is_line_idle(means)),
            Some(mark) => means.copies.is_over(mark),
            None => Ok(false),
        }
    }

    /// Returns whether the stream has nothing left to do. If the GPU cannot tell, its context is lost and executes
    /// nothing more.
    fn is_line_idle(&self, means: &mut Means<C>) -> bool {
        means.copies.is_idle(&self.stream).unwrap_or_else(|error| {
            tracing::error!("what the GPU still writes of a control block is not known: {error}");
            means.has_lost_lines = true;
            true
        })
    }

    /// Tells the CPU how it ended. Its stream's requests are over, or can never be known to be.
    pub(super) fn finish(mut self, means: &mut Means<C>, now: Time) {
        self.count(means);
        for (chunk, context) in self.copying.drain(..) {
            means.in_first -= usize::from(self.work.contexts[context].is_write());
            means.chunks.put(chunk);
        }
        self.report(now);
        if !self.is_given_up {
            means.streams.push(self.stream);
        }
    }

    /// Abandons a job whose copies the GPU refuses or that no thread handles any more; it ends when its stream is idle.
    /// The lane loses the chunks that a copy may still use; their memory stays mapped.
    pub(super) fn abandon(&mut self, means: &mut Means<C>) {
        self.give_up_unsent(means, RESET);
        self.reset_unanswered();
        self.owed = 0;
        self.marks.clear();
        self.unmarked = 0;
        self.conclusion = None;
        self.is_given_up = true;
        for (chunk, index) in self.copying.drain(..) {
            means.in_first -= usize::from(self.work.contexts[index].is_write());
            self.statuses[index] = RESET;
            means.chunks.lose(chunk);
        }
        // Tells the GPU's waiters if still possible; the CPU is told in any case.
        if let Err(error) = self.tell(means) {
            tracing::error!("streams do not learn that a control block is over: {error}");
        }
    }

    /// Ends the job without waiting for the device. Waits up to `at_most` for its stream; if that is not enough, the pool
    /// and the words, which the stream may still write, are leaked.
    pub(super) fn stop(mut self, means: &mut Means<C>, now: Time, at_most: Duration) {
        if !self.is_given_up {
            self.give_up_unsent(means, NOT_SENT);
            self.reset_unanswered();
            self.owed = 0;
        }
        let is_told = self.is_given_up || self.conclusion.is_some() || self.tell(means).is_ok();
        if !is_told || !means.copies.drain(&self.stream, at_most) {
            means.has_lost_lines = true;
            if !self.is_given_up {
                self.abandon(means);
            }
        }
        self.finish(means, now);
    }

    fn count(&self, means: &mut Means<C>) {
        means.stats.blocks += 1;
        means.stats.contexts += self.statuses.len() as u64;
        let succeeded = self.statuses.iter().zip(self.work.contexts.iter());
        means.stats.bytes += succeeded
            .filter(|(status, _)| **status == 0)
            .map(|(_, context)| means.bytes_of(*context) as u64)
            .sum::<u64>();
    }

    fn report(&self, now: Time) {
        let took = self.started.map(|started| now.since(started)).unwrap_or_default();
        self.work.progress.finish(self.work.generation, &self.statuses, took);
    }
}
