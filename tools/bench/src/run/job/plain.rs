//! The shortest way through a job whose options ask nothing of single I/Os.
//!
//! Such a job measures the path, so what it does between a completion and the next submission counts. This file does what
//! `submit` and `reap` do, less the questions that such a job's options have answered before it began. Retries, failures
//! and what waits for the end of a job still go the general way.

use adit_driver::memory::Prefix;
use adit_driver::paths::{CommandQueue, Request};

use super::Job;
use super::counted::Latencies;
use super::work::{Flight, Owned, Tag, What, Work};
use crate::way::Way;

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Returns whether the job's options ask nothing of single I/Os: all go to one file, at once, unchecked and unlogged,
    /// and none waits for another.
    pub(super) fn has_plain_options(&self) -> bool {
        let options = self.options;
        let has_rate =
            |way| options.rates.rate[way].is_some() || options.rates.rate_iops[way].is_some();
        let is_paced = self.pace.thinks() || Way::ALL.into_iter().any(has_rate);
        let is_shared = self.set.flow.is_some() || self.set.files.len() > 1;
        let is_scripted = self.replay.is_some() || options.rw.trims;
        let is_checked = options.verify.is_some() || self.inflight.overlaps.is_some();
        let is_logged = self.asked.is_watched || self.set.iolog.is_some();
        let flushes = options.flushes.fsync.is_some() || options.flushes.fdatasync.is_some();
        let changes_data = options.rw.writes && self.set.data.touches_writes();
        let batch = &options.batch;
        let batches =
            batch.iodepth_batch_complete_min > 1 || batch.iodepth_batch_complete_max.is_some();
        !(is_paced
            || is_shared
            || is_scripted
            || is_checked
            || is_logged
            || flushes
            || changes_data
            || batches
            || self.asked.blocks)
    }

    /// Posts up to `most` new I/Os of a plain job, for which there are buffers.
    #[inline]
    pub(super) fn post_plain(&mut self, most: usize) {
        if self.is_over() {
            return;
        }
        let left = self.issued.ios_max.map_or(u64::MAX, |all| all - self.issued.ios);
        let most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        let domain = self.set.files[0].domain;
        while self.inflight.fresh.len() < most {
            let Some(step) = self.next_step() else { return };
            let Some((slot, buffer)) = self.pool.take(domain) else {
                unreachable!("a job's depth is the number of its buffers")
            };
            (self.issued.bytes, self.issued.ios) =
                (self.issued.bytes + step.bytes, self.issued.ios + 1);
            let buffer = Prefix::new(buffer, step.bytes as usize);
            let request =
                Request { operation: self.operation(step), buffer: (buffer, Tag::new(slot, 0)) };
            let work = Work::new(What::Step(step));
            if let Err(rejected) = self.queue.post(self.times.now, request) {
                let (buffer, tag) = rejected.buffer;
                self.pool.put(tag.slot(), buffer.into_buffer());
                return self.not_taken(work, rejected.reason);
            }
            let flight = &mut self.inflight.flights[slot as usize];
            (flight.work, flight.since) = (work, None);
            self.inflight.fresh.push(slot);
        }
    }

    /// Takes the completions of a plain job that have arrived, puts its buffers back and counts the I/Os; keeps those that
    /// the general way handles. Returns how many arrived.
    #[inline]
    pub(super) fn take_plain(&mut self) -> usize {
        let Job { queue, pool, inflight, .. } = self;
        let found = queue.poll(self.times.now, |completion| {
            let (buffer, tag) = completion.buffer;
            let slot = tag.slot();
            let work = &inflight.flights[slot as usize].work;
            if completion.result.is_err()
                || work.retried.is_some()
                || !matches!(work.what, What::Step(_))
            {
                inflight.done.push(((buffer, tag), completion.result));
                return;
            }
            pool.put(slot, buffer.into_buffer());
            inflight.ended.push(slot);
        });
        if self.inflight.ended.is_empty() {
            return found;
        }
        self.begin_batch(self.inflight.ended.len());
        for slot in self.inflight.ended.drain(..) {
            let Flight { work, posted, told, .. } = self.inflight.flights[slot as usize];
            let What::Step(step) = work.what else { unreachable!("kept") };
            let latencies = Latencies::of(posted, posted, told, self.load.last_finish);
            self.alike.add(&mut self.outcome.ways, step, latencies, self.asked.disabled);
        }
        found
    }
}
