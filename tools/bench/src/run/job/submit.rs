//! Chooses which I/O is posted next, and when.

use adit_driver::memory::Prefix;
use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::spec::Lba;
use adit_driver::{RejectReason, Time};

use super::work::{Owned, Tag, What, Work};
use super::{Job, Share};
use crate::data::{Identity, Writer};
use crate::errors::EIO;
use crate::way::Way;
use crate::workload::Step;

/// A deallocation keeps its ranges in the first bytes of its buffer: as many as a command may have, of 16 bytes.
pub(crate) const RANGE_BYTES: usize = 256 * 16;

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Posts all I/Os that are due and have a buffer, and rings.
    #[inline]
    pub(super) fn submit(&mut self) {
        if self.is_down || self.is_thinking() {
            return;
        }
        let in_flight = self.pool.in_flight();
        if self.lets_drain(in_flight) {
            return;
        }
        let room = self.depth_now().saturating_sub(in_flight);
        let mut left = room;
        while left > 0 {
            let batch = left.min(self.set.batch_max);
            let posted = self.post_batch(batch);
            left -= posted;
            if posted < batch {
                break;
            }
        }
    }

    /// Returns whether the job pauses. As in fio, a pause begins once nothing is in flight. Verification and
    /// the end of the job do not pause.
    #[inline]
    fn is_thinking(&mut self) -> bool {
        if !self.pace.thinks() || self.checks.to_verify.is_some() || self.is_over() {
            return false;
        }
        if self.pace.wants_pause() {
            if self.pool.in_flight() > 0 {
                return true;
            }
            self.pace.pause(self.times.now);
        }
        self.times.now < self.pace.paused_until()
    }

    /// Returns whether a full queue must first drain to `iodepth_low`.
    #[inline]
    fn lets_drain(&mut self, in_flight: usize) -> bool {
        let Some(low) = self.options.batch.iodepth_low else { return false };
        self.is_draining = self.pool.is_empty() || (self.is_draining && in_flight > low as usize);
        self.is_draining
    }

    /// Returns how many may be in flight now.
    #[inline]
    fn depth_now(&self) -> usize {
        let depth = self.pool.depth();
        self.search.as_ref().map_or(depth, |search| (search.depth() as usize).min(depth))
    }

    /// Posts up to `most` and rings once; returns how many were posted.
    #[inline]
    fn post_batch(&mut self, most: usize) -> usize {
        if self.asked.is_plain && !self.has_other_work() {
            self.post_plain(most);
        } else {
            while self.inflight.fresh.len() < most {
                if !self.post_next() {
                    break;
                }
            }
        }
        let posted = self.inflight.fresh.len();
        if posted > 0 {
            self.ring();
        }
        posted
    }

    fn ring(&mut self) {
        let stamped = std::mem::take(&mut self.is_stamped);
        let posted = if stamped { self.clock.now() } else { self.times.now };
        self.queue.ring();
        self.times.now = self.clock.now();
        let told = if self.asked.blocks { posted } else { self.times.now };
        for slot in &self.inflight.fresh {
            let flight = &mut self.inflight.flights[*slot as usize];
            (flight.posted, flight.told) = (posted, told);
        }
        let posted = self.inflight.fresh.len();
        self.inflight.fresh.clear();
        // The device sees the batch at once, so each of its I/Os counts with the depth of the whole batch.
        self.outcome.depths.record_many(self.pool.in_flight(), posted);
        self.outcome.submits.record(posted);
    }

    /// Posts the next I/O that is due; returns false if there is none or the queue refuses it.
    ///
    /// A new step stays in registers: see [`Tag`].
    #[inline]
    fn post_next(&mut self) -> bool {
        if self.has_other_work() {
            return self.post_other();
        }
        let Some(work) = self.new_step() else { return false };
        if !self.may_go(&work) {
            self.put_off(work);
            return false;
        }
        self.post(work)
    }

    /// Returns whether work other than a new step may be next.
    #[inline]
    fn has_other_work(&self) -> bool {
        !self.inflight.again.is_empty()
            || self.inflight.held.is_some()
            || self.checks.to_verify.is_some()
            || !self.flushes.to_flush.is_empty()
            || self.wants_flush()
    }

    #[inline(never)]
    fn post_other(&mut self) -> bool {
        // Retries have no rate and do not wait behind paced I/Os.
        let again = self.inflight.again.take(self.times.now);
        let ready = again.or_else(|| self.inflight.held.take());
        let Some(work) = ready.or_else(|| self.next_work()) else { return false };
        if !self.may_go(&work) {
            self.put_off(work);
            return false;
        }
        self.post(work)
    }

    /// Keeps work for later; drops it if the job is over.
    fn put_off(&mut self, work: Work) {
        let What::Step(step) = work.what else { return self.inflight.held = Some(work) };
        if self.checks.to_verify.is_none() && work.retried.is_none() && self.is_ended() {
            // The generator has counted it as written.
            self.forgo(step);
        } else {
            self.inflight.held = Some(work);
        }
    }

    /// Drops work chosen for the previous phase.
    pub(super) fn drop_held(&mut self) {
        let Some(Work { what: What::Step(step), retried: None, .. }) = self.inflight.held.take()
        else {
            return;
        };
        if self.checks.to_verify.is_none() {
            self.forgo(step);
        }
    }

    /// Takes back a step that is not issued.
    fn forgo(&mut self, step: Step) {
        self.issued.bytes -= step.bytes;
        self.issued.ios -= 1;
        if step.way != Way::Read {
            self.checks.unwritten.insert((step.file, step.offset));
        }
    }

    /// Returns whether the I/O is due and overlaps nothing in flight that forbids it.
    #[inline]
    fn may_go(&self, work: &Work) -> bool {
        if self.due_by_log(work).is_some_and(|due| due > self.times.now) {
            return false;
        }
        let What::Step(step) = work.what else { return true };
        let is_due = self.due(work, step).is_none_or(|due| due <= self.times.now);
        is_due && self.inflight.overlaps.as_ref().is_none_or(|overlaps| !overlaps.meets(step))
    }

    /// Returns when an I/O is due by its rate; verification and retries have none.
    #[inline]
    pub(super) fn due(&self, work: &Work, step: Step) -> Option<Time> {
        if work.retried.is_some() || self.checks.to_verify.is_some() {
            None
        } else {
            self.pace.due(step.way)
        }
    }

    /// Posts the I/O; returns whether the queue accepted it.
    #[inline(always)]
    fn post(&mut self, work: Work) -> bool {
        let domain = self.set.files[work.what.file() as usize].domain;
        let Some((slot, mut buffer)) = self.pool.take(domain) else {
            self.inflight.held = Some(work);
            return false;
        };
        let (operation, bytes) = match work.what {
            What::Step(step) => (self.operation(step), step.bytes as usize),
            What::Flush(_) => (Operation::Flush, buffer.len()),
        };
        if let What::Step(step) = work.what
            && step.way == Way::Write
            && self.set.data.touches_writes()
        {
            let writer = self.writer(step);
            self.set.data.before_write(&mut buffer[..bytes], step.offset, writer);
            if self.asked.blocks {
                // The I/O itself begins here.
                self.times.now = self.clock.now();
            } else {
                self.is_stamped = true;
            }
        }
        let since = self.since(&work);
        let tag = Tag::new(slot, work.what.file());
        let bytes = match operation {
            Operation::Deallocate(..) => RANGE_BYTES.min(buffer.len()),
            _ => bytes,
        };
        let buffer = Prefix::new(buffer, bytes);
        let request = Request { operation, buffer: (buffer, tag) };
        let posted = match work.retried {
            None => self.queue.post(self.times.now, request),
            Some(_) => self.queue.post_again(self.times.now, request),
        };
        if let Err(rejected) = posted {
            let (buffer, tag) = rejected.buffer;
            self.pool.put(tag.slot(), buffer.into_buffer());
            self.not_taken(work, rejected.reason);
            return false;
        }
        let flight = &mut self.inflight.flights[slot as usize];
        (flight.work, flight.since) = (work, since);
        self.inflight.fresh.push(slot);
        self.account(&work);
        true
    }

    #[inline]
    pub(super) fn operation(&self, step: Step) -> Operation {
        let shift = self.lba_shifts[step.file as usize];
        let lba = Lba(step.offset >> shift);
        match step.way {
            Way::Read => Operation::Read(lba),
            Way::Write => Operation::Write(lba),
            Way::Trim => Operation::Deallocate(lba, (step.bytes >> shift) as u32),
        }
    }

    /// Returns the start of its latency if that is not when it is posted.
    #[inline]
    fn since(&self, work: &Work) -> Option<Time> {
        match (work.retried, work.what) {
            (Some((_, first)), _) => Some(first),
            (None, What::Step(step)) => self.due(work, step),
            (None, What::Flush(_)) => None,
        }
    }

    #[cold]
    pub(super) fn not_taken(&mut self, work: Work, reason: RejectReason) {
        match reason {
            RejectReason::Full => self.inflight.held = Some(work),
            reason => self.fail(EIO, format!("{} was rejected: {reason}", self.told(&work))),
        }
    }

    /// Counts a posted I/O.
    #[inline]
    fn account(&mut self, work: &Work) {
        if self.set.iolog.is_some() {
            self.log_issued(work);
        }
        let What::Step(step) = work.what else { return };
        if let Some(overlaps) = &mut self.inflight.overlaps {
            overlaps.note(step);
        }
        if work.retried.is_some() || self.checks.to_verify.is_some() {
            return;
        }
        self.pace.issued(step.way, step.bytes, self.times.now);
        if step.way == Way::Write {
            self.flushes.writes_issued += 1;
            self.flushes.is_dirty[step.file as usize] = true;
            if self.checks.backlog_max > 0 {
                self.checks.backlog.push(step);
            }
        }
    }

    fn next_work(&mut self) -> Option<Work> {
        if self.checks.to_verify.is_some() {
            return self.next_check();
        }
        if self.flushes.to_flush.is_empty() && (self.is_over() || self.pace.wants_pause()) {
            return None;
        }
        if self.wants_flush() {
            self.flushes.flushed_at = self.flushes.writes_issued;
            let is_dirty = |file: &u32| std::mem::take(&mut self.flushes.is_dirty[*file as usize]);
            self.flushes.to_flush.extend((0..self.set.files.len() as u32).filter(is_dirty));
        }
        if let Some(file) = self.flushes.to_flush.pop() {
            return Some(Work::new(What::Flush(file)));
        }
        self.new_step()
    }

    #[inline]
    fn new_step(&mut self) -> Option<Work> {
        if self.is_over() || self.pace.wants_pause() {
            return None;
        }
        self.is_ahead = self.share.as_ref().is_some_and(Share::is_ahead);
        if self.is_ahead {
            return None;
        }
        let work = if self.replay.is_some() { self.next_of_log()? } else { self.next_of_plan()? };
        if let Some(share) = &mut self.share {
            share.count();
        }
        Some(work)
    }

    /// Returns the next I/O of the job's workload.
    #[inline]
    fn next_of_plan(&mut self) -> Option<Work> {
        let step = self.next_step()?;
        self.issued.bytes += step.bytes;
        self.issued.ios += 1;
        // A mixed workload may read data of other jobs or earlier passes.
        let check =
            self.options.verify.is_some() && !self.options.rw.writes && step.way == Way::Read;
        let expected = check.then_some(Identity { offset: step.offset, writer: None });
        Some(Work { expected, ..Work::new(What::Step(step)) })
    }

    fn wants_flush(&self) -> bool {
        let is_multiple =
            |every: u32| every > 0 && self.flushes.writes_issued.is_multiple_of(u64::from(every));
        self.flushes.writes_issued > self.flushes.flushed_at
            && [self.options.flushes.fsync, self.options.flushes.fdatasync]
                .into_iter()
                .flatten()
                .any(is_multiple)
    }

    #[inline]
    pub(super) fn next_step(&mut self) -> Option<Step> {
        if self.set.bytes_max.is_some_and(|most| self.issued.bytes >= most) || self.checks_backlog()
        {
            return None;
        }
        let step = self.generate();
        if step.is_some() || self.reads_back() {
            return step;
        }
        self.set.steps.next_pass();
        self.generate()
    }

    /// Returns the next step. As in fio, rates override the mix; verified jobs keep the mix, because their
    /// steps must follow from the seed.
    #[inline]
    fn generate(&mut self) -> Option<Step> {
        let way = if self.asked.is_mixed_by_rates { self.pace.way(self.times.now) } else { None };
        self.set.steps.step_of(way)
    }

    pub(super) fn writer(&self, step: Step) -> Writer {
        Writer { seed: self.set.stamp, generation: step.number }
    }

    /// Describes an I/O.
    pub(super) fn told(&self, work: &Work) -> String {
        let place = self.set.place(work.what.file());
        match work.what {
            What::Step(step) => {
                let what = ["Read", "Write", "Trim"][step.way as usize];
                format!("{what} at offset {}{place}", step.offset)
            }
            What::Flush(_) => format!("Flush{place}"),
        }
    }

    /// Returns the next I/O of the log.
    #[inline(never)]
    pub(super) fn next_of_log(&mut self) -> Option<Work> {
        let what = self.replay.as_mut()?.choose(self.times.start)?;
        if let What::Step(step) = what {
            self.issued.bytes += step.bytes;
            self.issued.ios += 1;
        }
        Some(Work::new(what))
    }

    /// Returns when the log has this I/O; `None` for retries and jobs that replay none.
    #[inline]
    pub(super) fn due_by_log(&self, work: &Work) -> Option<Time> {
        let replay = self.replay.as_ref()?;
        work.retried.is_none().then_some(replay.due)
    }

    /// Logs an I/O that was issued, unless it is a retry.
    #[cold]
    pub(super) fn log_issued(&mut self, work: &Work) {
        let Some(log) = self.set.iolog.as_mut().filter(|_| work.retried.is_none()) else { return };
        let at = self.times.now.since(self.times.start);
        match work.what {
            What::Step(step) => {
                log.record(at, step.file, Some(step.way), (step.offset, step.bytes));
            }
            What::Flush(file) => log.record(at, file, None, (0, 0)),
        }
    }
}
