//! Reaps completions and counts them.

use adit_driver::paths::CommandQueue;
use adit_driver::{CommandError, Time};

use super::counted::{AlikeIos, Cycle, Latencies, ns};
use super::work::{Flight, Owned, What};
use super::{Job, TICK};
use crate::errors::{EIO, ETIMEDOUT};
use crate::logs::IoSample;
use crate::measure::per_second;
use crate::run::cpu::Cpu;
use crate::way::{PerWay, Way};
use crate::workload::Step;

/// Empty polls between two clock readings, which limits the accuracy of deadlines and of the run's end.
const IDLE_POLLS: u32 = 16;
/// One read in this many batches is checked for zeroes.
const SAMPLE_BATCHES: u64 = 64;
/// Interval between computations of the 99th percentile, which are slow.
const PERCENTILE_EVERY_NS: u64 = 500_000_000;

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Reaps finished I/Os. Returns false once there is nothing left to wait for.
    #[inline]
    pub(super) fn reap(&mut self) -> bool {
        if self.asked.is_plain && self.inflight.done.is_empty() && !self.samples_next() {
            if self.take_plain() == 0 {
                return self.wait();
            }
            if !self.inflight.done.is_empty() {
                self.take_in();
            }
            return self.go_on();
        }
        let in_flight = self.pool.in_flight();
        let wanted = (self.options.batch.iodepth_batch_complete_min.max(1) as usize).min(in_flight);
        if self.inflight.done.len() < wanted || wanted == 0 {
            let done = &mut self.inflight.done;
            let found = self.queue.poll(self.times.now, |completion| {
                done.push((completion.buffer, completion.result))
            });
            if found == 0 || self.inflight.done.len() < wanted {
                return self.wait();
            }
        }
        self.take_in();
        self.go_on()
    }

    /// Handles slow changes after a batch. Returns true: there is more to wait for.
    #[inline]
    fn go_on(&mut self) -> bool {
        if self.times.now >= self.times.next_tick {
            self.tick();
        }
        true
    }

    /// Reads the clock for a batch of `count` finished I/Os, and counts it.
    #[inline]
    pub(super) fn begin_batch(&mut self, count: usize) {
        self.times.now = self.clock.now();
        self.load.batches += 1;
        self.load.waited += u64::from(self.load.idle_polls > 0);
        self.load.idle_polls = 0;
        self.load.last_finish = self.times.now;
        self.outcome.completes.record(count);
    }

    /// Counts finished I/Os, at most one batch.
    fn take_in(&mut self) {
        let most = self.options.batch.iodepth_batch_complete_max.unwrap_or(u32::MAX);
        let count = self.inflight.done.len().min(most as usize);
        self.begin_batch(count);
        // Taken and put back to reuse its memory.
        let mut done = std::mem::take(&mut self.inflight.done);
        self.sample_zeroes(&done[0]);
        let mut run = std::mem::take(&mut self.alike);
        for (owned, result) in done.drain(..count) {
            self.finish(owned, result, &mut run);
        }
        self.alike = run;
        self.inflight.done = done;
    }

    /// Counts the I/Os that finished last. Called once the next ones are on their way, so that the device does not wait for
    /// it.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.alike.is_empty() {
            return;
        }
        self.alike.close(&mut self.outcome.ways);
        for way in Way::ALL {
            let counted = &self.outcome.ways[way];
            self.set.progress.store(way, counted.ios, counted.bytes);
        }
    }

    #[inline]
    fn finish(
        &mut self,
        (buffer, tag): Owned,
        result: Result<u32, CommandError>,
        run: &mut AlikeIos,
    ) {
        let buffer = buffer.into_buffer();
        let Flight { since, posted, .. } = self.inflight.flights[tag.slot() as usize];
        let (since, what) =
            (since.unwrap_or(posted), self.inflight.flights[tag.slot() as usize].work.what);
        match (result, what) {
            (Ok(_), What::Step(step)) => {
                self.count(tag.slot(), since, step, run);
                if self.inflight.flights[tag.slot() as usize].work.expected.is_some() {
                    let work = self.inflight.flights[tag.slot() as usize].work;
                    self.check(&buffer[..step.bytes as usize], &work);
                }
            }
            (Ok(_), What::Flush(_)) => self.outcome.sync.record(ns(since, self.load.last_finish)),
            (Err(error), _) => {
                self.io_failed(self.inflight.flights[tag.slot() as usize].work, since, error);
            }
        }
        if let (Some(overlaps), What::Step(step)) = (&mut self.inflight.overlaps, what) {
            overlaps.forget(step);
        }
        self.pool.put(tag.slot(), buffer);
    }

    #[inline]
    fn count(&mut self, slot: u32, since: Time, step: Step, run: &mut AlikeIos) {
        let Flight { posted, told, .. } = self.inflight.flights[slot as usize];
        // When the batch was seen, before earlier I/Os of the batch were checked.
        let latency = Latencies::of(since, posted, told, self.load.last_finish);
        run.add(&mut self.outcome.ways, step, latency, self.asked.disabled);
        if self.asked.is_watched {
            self.count_for_others(slot, step, latency);
        }
    }

    /// Counts for pauses, searches, limits and logs.
    fn count_for_others(&mut self, slot: u32, step: Step, latency: Latencies) {
        self.pace.completed(self.times.now);
        if let Some(search) = &mut self.search {
            search.record(latency.lat);
        }
        if let Some(logs) = &mut self.set.logs {
            let issued = self.inflight.flights[slot as usize].told;
            let io = IoSample {
                slat_ns: latency.slat,
                clat_ns: latency.clat,
                lat_ns: latency.lat,
                bytes: step.bytes,
                offset: step.offset,
                issued_ns: issued.since(self.times.start).as_nanos() as u64,
            };
            logs.record(self.times.now.since(self.times.start), step.way, io);
        }
        let most = self.options.time.max_latency;
        if let Some(most) = most.filter(|most| u128::from(latency.lat) > most.as_nanos()) {
            let took = crate::human::latency(latency.lat);
            let what = self.told(&self.inflight.flights[slot as usize].work);
            let most = crate::human::latency(most.as_nanos() as u64);
            self.fail(ETIMEDOUT, format!("{what} took {took}, more than max_latency={most}"));
        }
    }

    /// Returns whether [`Job::sample_zeroes`] looks at the next batch.
    #[inline]
    fn samples_next(&self) -> bool {
        self.set.samples_zeroes && self.load.batches.is_multiple_of(SAMPLE_BATCHES)
    }

    /// Checks one read in many for data that was never written, which a drive answers without accessing flash.
    fn sample_zeroes(&mut self, (owned, result): &(Owned, Result<u32, CommandError>)) {
        let (buffer, tag) = owned;
        let What::Step(step) = self.inflight.flights[tag.slot() as usize].work.what else { return };
        let is_sample = self.set.samples_zeroes && self.load.batches % SAMPLE_BATCHES == 1;
        if is_sample && step.way == Way::Read && result.is_ok() {
            let is_zero = buffer.iter().all(|byte| *byte == 0);
            self.outcome.sampled_reads.0 += 1;
            self.outcome.sampled_reads.1 += u64::from(is_zero);
        }
    }

    /// After an empty poll, occasionally checks the clock and the controller.
    fn wait(&mut self) -> bool {
        self.load.idle_polls += 1;
        let in_flight = self.pool.in_flight();
        if in_flight == 0 {
            self.pause();
        } else if self.queue.wait(self.wait_at_most()) {
            self.times.now = self.clock.now();
        } else if !self.load.idle_polls.is_multiple_of(IDLE_POLLS) {
            return true;
        }
        self.times.now = self.clock.now();
        if self.times.now >= self.times.next_tick {
            self.tick();
        }
        if self.times.now.since(self.load.last_finish) > self.set.yield_after {
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

    /// Handles slow changes: the ramp's end, the watcher's requests, depths, minimum rates.
    #[cold]
    fn tick(&mut self) {
        self.settle();
        self.times.next_tick = self.times.now + TICK;
        if self.times.is_ramping
            && self.times.now.since(self.times.start) >= self.options.time.ramp_time
        {
            self.count_anew();
        }
        if self.search.as_mut().is_some_and(|search| search.look(self.times.now)) {
            self.is_full = true;
        }
        if self.times.now >= self.times.cycle.percentile_at {
            self.times.cycle.percentile_at =
                self.times.now + std::time::Duration::from_nanos(PERCENTILE_EVERY_NS);
            let slowest = Way::ALL.map(|way| self.outcome.ways[way].lat.percentile_ns(99.0));
            self.set.progress.set_p99_ns(slowest.into_iter().max().unwrap_or(0));
        }
        if self.set.progress.wants_snapshot() {
            self.set.progress.give_snapshot(self.snapshot());
        }
        self.check_rates();
    }

    /// Discards the counts of the ramp.
    fn count_anew(&mut self) {
        self.times.is_ramping = false;
        self.times.counts_from = self.times.now;
        self.load.cpu_before = Cpu::of_this_thread();
        let fresh = super::empty_outcome(&self.set);
        let old = std::mem::replace(&mut self.outcome, fresh);
        (self.outcome.errors, self.outcome.failure) = (old.errors, old.failure);
        (self.load.batches, self.load.waited) = (0, 0);
        self.set.progress.restart();
        self.times.cycle = Cycle { start: self.times.now, ..Cycle::default() };
    }

    /// Returns the I/Os and bytes of each way so far.
    fn counted(&self) -> PerWay<(u64, u64)> {
        PerWay(Way::ALL.map(|way| (self.outcome.ways[way].ios, self.outcome.ways[way].bytes)))
    }

    /// Ends the job if a minimum rate was missed over the last cycle.
    fn check_rates(&mut self) {
        let took = self.times.now.since(self.times.cycle.start.max(self.times.start));
        if self.checks.to_verify.is_some() {
            // Rates do not apply to verification.
            (self.times.cycle.start, self.times.cycle.counted) = (self.times.now, self.counted());
            return;
        }
        if self.times.is_ramping || took < self.options.rates.rate_cycle {
            return;
        }
        let counted = self.counted();
        let before = std::mem::replace(&mut self.times.cycle.counted, counted);
        self.times.cycle.start = self.times.now;
        // A rate for all ways applies only to those the job uses.
        let rw = self.options.rw;
        let does = |way: &Way| [rw.reads, rw.writes, rw.trims][*way as usize];
        for way in Way::ALL.into_iter().filter(does) {
            let rate = |count: u64| per_second(count, took) as u64;
            let ((ios, bytes), (ios_before, bytes_before)) = (counted[way], before[way]);
            let (ios, bytes) = (rate(ios - ios_before), rate(bytes - bytes_before));
            let rates = &self.options.rates;
            for (option, unit, least, got) in [
                ("rate_min", "bytes/s", rates.rate_min[way], bytes),
                ("rate_iops_min", "IOPS", rates.rate_iops_min[way], ios),
            ] {
                if let Some(least) = least.filter(|least| got < *least) {
                    let way = way.name();
                    self.fail(EIO, format!("{option}={least}: {way} reached {got} {unit}"));
                }
            }
        }
    }
}
