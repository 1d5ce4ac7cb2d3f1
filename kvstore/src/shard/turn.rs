//! The loop: sends commands, takes completions, and handles them.

use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, Operation};
use adit_driver::spec::{Status, StatusCodeType};
use adit_driver::transfer::Direction;
use adit_driver::{CommandError, Time};

use super::batch::{Item, Items, Job, Trouble};
use super::evicting::EVICTIONS_PER_TURN;
use super::request::Done;
use super::{SEND_BYTES, SENT_WRITES, Shard, Turn};
use crate::error::Failure;
use crate::io::lane::{Command, Fault, Finished, Lane, Load, Purpose};
use crate::io::schedule::Class;
use crate::model::place::{Place, UNIT_BYTES};

/// Returns whether an error is about the data on the medium rather than the way to it.
fn is_of_medium(error: &CommandError) -> bool {
    let is_integrity =
        |status: &Status| status.code_type() == StatusCodeType::MediaAndDataIntegrity;
    !error.is_retryable() || matches!(error, CommandError::Status(status) if is_integrity(status))
}

/// Shorter runs are not worth a discard.
const DISCARD_UNITS_MIN: u64 = 256;
const DISCARD_UNITS_MAX: u64 = 1 << 18;
/// A turn handles so many bytes of what a device finished, and answers, before it sends and reaps again: the callers make
/// their next requests while the rest is handled, so that the device does not run out of commands.
const PORTION_BYTES: u64 = 256 << 10;

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Does the pending work without waiting, and passes each answer to `done`.
    pub fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done<R>)) -> Turn {
        self.note_hits();
        // First, so that the devices work while what they finished is handled.
        let mut moved = self.send(now);
        moved += self.take_finished(now);
        // A command that waits in a lane may become due by the clock.
        let has_news = self.lanes.iter().any(Lane::has_news) || self.tenants.has_news();
        if moved == 0 && now < self.rests_until && !has_news {
            return Turn { moved, in_flight: self.in_flight(), next: self.rests_until };
        }
        self.evictions_left = EVICTIONS_PER_TURN;
        self.note_failures();
        self.expire(now);
        self.tenant_step(now);
        self.sweep_step(now);
        self.journal_step(now);
        if !self.stalled.is_empty() {
            self.retry_stalled(now);
        }
        if self.capacity.is_draining {
            self.keep_below_watermark(now);
        }
        self.checkpoint_step(now);
        self.discard_step(now);
        moved += self.send(now);
        self.note_sent(now);
        while let Some(answer) = self.answers.pop_front() {
            moved += 1;
            done(answer);
        }
        let next = self.next_due_at(now);
        self.rests_until = if moved == 0 { next } else { Time::ZERO };
        Turn { moved, in_flight: self.in_flight(), next }
    }

    /// Waits in the kernel until a command ends, `at_most` at the longest. Returns false at once where that cannot be waited
    /// for: with work for a turn, with commands in flight on no device, or on several, and on paths that have to be polled.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        if !self.answers.is_empty() || self.lanes.iter().any(Lane::has_news) {
            return false;
        }
        let mut busy = self.lanes.iter_mut().filter(|lane| lane.in_flight() > 0);
        let (Some(lane), None) = (busy.next(), busy.next()) else { return false };
        lane.queue.wait(at_most)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.lanes.iter().map(Lane::in_flight).sum()
    }

    /// Makes the next turn look at everything, after a request or a release.
    pub(super) fn wake(&mut self) {
        self.rests_until = Time::ZERO;
    }

    /// Returns when the clock requires the next turn.
    fn next_due_at(&self, now: Time) -> Time {
        let lease = self.leases.next_end().unwrap_or(Time::NEVER);
        let by_clock = lease.min(self.stalled.until).min(self.next_expiry(now));
        let by_clock = by_clock.min(self.spaces.discards_age_at());
        if self.check_home().is_err() {
            return by_clock;
        }
        let is_making_room =
            self.evictions_left == 0 || (self.making.is_searching() && !self.stalled.is_empty());
        let is_busy = self.is_checkpointing()
            || self.is_pressed()
            || self.has_flush_to_begin(now)
            || self.has_objects_to_remove()
            || is_making_room;
        if is_busy {
            now
        } else {
            by_clock.min(self.log.next_due_at()).min(self.next_checkpoint_at())
        }
    }

    /// Handles devices that failed since the last turn.
    pub(super) fn note_failures(&mut self) {
        for device in 0..self.lanes.len() {
            let lane = &mut self.lanes[device];
            if lane.failure().is_some() && !std::mem::replace(&mut lane.is_failure_noted, true) {
                self.stats.device_failures += 1;
                // Its objects are misses from now on.
                self.options.removals.lose_track();
                self.tier.forget_device(device as u8);
                self.fail_undurable(device);
            }
        }
    }

    /// Sends the commands that wait, as many as the devices take. Returns their number.
    pub(super) fn send(&mut self, now: Time) -> usize {
        self.unsent_bytes = 0;
        self.lanes.iter_mut().map(|lane| lane.send(now)).sum()
    }

    /// Reaps what the devices have finished and handles a portion of each device's. Returns how many commands it
    /// handled.
    pub(super) fn take_finished(&mut self, now: Time) -> usize {
        let mut taken = 0;
        for device in 0..self.lanes.len() {
            self.lanes[device].poll(now);
            let mut portion = 0;
            while portion < PORTION_BYTES
                && let Some(finished) = self.lanes[device].take_finished()
            {
                portion += finished.bytes.max(UNIT_BYTES);
                taken += 1;
                self.finish(now, device, finished);
            }
        }
        taken
    }

    fn finish(&mut self, now: Time, device: usize, finished: Finished) {
        let Finished { purpose, memory, result, .. } = finished;
        let is_done = result.is_ok();
        match purpose {
            Purpose::Batch { batch, command } => {
                let trouble = result.err().map(|fault| self.trouble(device, fault));
                self.finish_command(now, batch, command, memory, trouble);
            }
            Purpose::Journal { end } if is_done => {
                self.log.written(end);
                self.keep(device, memory);
            }
            Purpose::Journal { .. } => {
                // It is written again when the device is back.
                if let Err(fault) = &result {
                    let is_full = matches!(fault, Fault::Command(error) if error.is_no_space());
                    let fix = if is_full { "; free space on its file system first" } else { "" };
                    self.lanes[device]
                        .fail(&format!("its journal cannot be written: {fault}{fix}"));
                }
                self.keep(device, memory);
            }
            Purpose::Flush { number } => self.finish_flush(device, number, is_done),
            Purpose::Body | Purpose::Header => {
                self.keep(device, memory);
                self.finish_checkpoint_write(purpose, is_done);
            }
            Purpose::Discard { unit, units } => {
                self.keep(device, memory);
                self.spaces.discarded(device as u8, unit..unit + units);
            }
            Purpose::Opening { .. } => unreachable!("opening waits for its own commands"),
        }
    }

    fn keep(&mut self, device: usize, memory: AnyBuffer) {
        let AnyBuffer::One(memory) = memory else { unreachable!("metadata is in one buffer") };
        self.lanes[device].keep(memory);
    }

    fn trouble(&self, device: usize, fault: Fault) -> Trouble {
        let lane = &self.lanes[device];
        let why = lane.failure().map_or_else(|| fault.to_string(), str::to_owned);
        let failure = Failure::Device { device: device as u8, why };
        match fault {
            Fault::Expired => Trouble::Expired,
            Fault::Command(error) if lane.failure().is_none() && error.is_no_space() => {
                Trouble::Unreadable(Failure::NoSpace { device: lane.info.device.clone() })
            }
            Fault::Command(error) if lane.failure().is_none() && is_of_medium(&error) => {
                Trouble::Unreadable(failure)
            }
            Fault::Command(_) | Fault::Rejected(_) | Fault::Gone => Trouble::Gone(failure),
        }
    }

    /// Sends the commands of items whose parts are in the scratch list.
    pub(super) fn launch(
        &mut self,
        now: Time,
        deadline: Time,
        direction: Direction,
        items: Items<R>,
    ) {
        let (number, batch) = self.batches.open();
        (batch.direction, batch.items) = (direction, items);
        batch.plan.remake(&mut self.scratch.parts, &self.limits);
        self.scratch.parts.clear();
        batch.begin();
        for command in 0..batch.plan.runs().len() {
            let run = batch.plan.runs()[command];
            let memory = batch.load(&run, &mut self.scratch.buffers);
            let lane = &mut self.lanes[usize::from(run.place.device)];
            let lba = run.place.lba(lane.info.lba_bytes);
            let (operation, class) = match direction {
                Direction::Read => (Operation::Read(lba), Class::Read),
                Direction::Write => (Operation::Write(lba), Class::Write),
            };
            match direction {
                Direction::Read => self.stats.commands_read += 1,
                Direction::Write => {
                    self.stats.commands_write += 1;
                    self.stats.bytes_to_device += run.bytes;
                    // Flushes wait for the last of them.
                    let least = if self.log.is_strict() { SEND_BYTES / SENT_WRITES } else { 0 };
                    self.unsent_bytes += run.bytes.max(least);
                }
            }
            let purpose = Purpose::Batch { batch: number, command: command as u32 };
            let bytes = run.bytes;
            lane.push(now, Command { purpose, operation, class, memory, bytes, deadline });
        }
    }

    fn finish_command(
        &mut self,
        now: Time,
        number: u32,
        command: u32,
        memory: AnyBuffer,
        trouble: Option<Trouble>,
    ) {
        let batch = self.batches.get(number);
        if batch.direction == Direction::Write {
            let device = batch.plan.runs()[command as usize].place.device;
            self.lanes[usize::from(device)].is_dirty = true;
        }
        let mut whole = std::mem::take(&mut self.scratch.whole);
        batch.unload(command, memory, trouble.as_ref(), &mut whole);
        for index in whole.drain(..) {
            let Item { reply, job, memory, failure, .. } = self.batches.get(number).finish(index);
            match job {
                Job::Put(new) => self.finish_put(now, reply, new, memory, failure),
                Job::Get(reading) => self.finish_get(now, reply, reading, memory, failure),
                Job::Fill(filling) => self.finish_fill(reply, &filling, memory, failure),
            }
        }
        self.scratch.whole = whole;
        if self.batches.get(number).is_over() {
            self.batches.close(number);
        }
    }

    /// Deallocates long free runs, one at a time in the background. Pauses while requests wait for room, because a
    /// run is not free while it is being deallocated.
    fn discard_step(&mut self, now: Time) {
        self.spaces.age_discards(now);
        let able = || self.lanes.iter().filter(|lane| lane.info.deallocates);
        let is_busy = self.spaces.discarding_units() > 0 || !self.stalled.is_empty();
        if is_busy || able().any(|lane| lane.memory.is_empty()) {
            return;
        }
        let units = |lane: &Lane<Q>| {
            lane.info.deallocate_lbas_max / (UNIT_BYTES / u64::from(lane.info.lba_bytes))
        };
        let most = able().map(units).min().unwrap_or(0).min(DISCARD_UNITS_MAX);
        if most == 0 {
            return;
        }
        let Some((device, run)) = self.spaces.next_discard(DISCARD_UNITS_MIN, most) else {
            return;
        };
        let lane = &mut self.lanes[usize::from(device)];
        if lane.failure().is_some() || !lane.info.deallocates {
            return self.spaces.discarded(device, run);
        }
        let memory = lane.memory.pop().expect("each lane has memory");
        let (unit, units) = (run.start, run.end - run.start);
        let per_unit = UNIT_BYTES / u64::from(lane.info.lba_bytes);
        let lba = Place { device, unit }.lba(lane.info.lba_bytes);
        let operation = Operation::Deallocate(lba, (units * per_unit) as u32);
        let (purpose, class) = (Purpose::Discard { unit, units }, Class::Background);
        let (memory, deadline) = (AnyBuffer::One(memory), Time::NEVER);
        self.stats.discards_bytes += units * UNIT_BYTES;
        lane.push(now, Command { purpose, operation, class, memory, bytes: 0, deadline });
    }
}
