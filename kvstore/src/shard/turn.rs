//! The loop: sends commands, takes completions, and handles them.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;
use adit_driver::transfer::Direction;

use super::Shard;
use super::answer::Done;
use super::batch::{Item, Job};
use super::checkpoints::Checkpoints;
use super::effects::Pressure;
use super::parts::Parts;
use crate::io::lane::{Finished, Load, Purpose};
use crate::model::place::UNIT_BYTES;

/// A turn handles so many bytes of what a device finished, and answers, before it sends and reaps again: the callers
/// make their next requests while the rest is handled, so that the device does not run out of commands.
const PORTION_BYTES: u64 = 256 << 10;

/// The result of one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Completions and answers; 0 if nothing happened.
    pub moved: usize,
    /// Commands in flight.
    pub in_flight: usize,
    /// The latest time for the next turn; [`Time::NEVER`] if nothing waits for the clock.
    pub next: Time,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Does the pending work without waiting, and passes each answer to `done`.
    pub fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done<R>)) -> Turn {
        self.note_hits();
        // First, so that the devices work while what they finished is handled.
        let mut moved = self.parts.lanes.send(now);
        moved += self.take_finished(now);
        let lanes = &self.parts.lanes;
        // A command that waits in a lane may become due by the clock.
        let has_news = lanes.has_news() || self.tenants().has_news();
        if moved == 0 && now < self.rests_until && !has_news {
            return Turn { moved, in_flight: lanes.in_flight(), next: self.rests_until };
        }
        let Shard { parts, sweeps, .. } = &mut *self;
        parts.note_failures();
        parts.room.begin_turn();
        parts.objects.expire(&mut parts.log, now);
        let is_lost = parts.lanes.is_home_lost();
        parts.room_maker(now).keep_quotas(is_lost);
        sweeps.step(parts, now);
        let pressure = self.pressure();
        self.parts.journal_step(now, pressure);
        let Shard { parts, writes, checkpoints, .. } = &mut *self;
        if writes.waiting() > 0 {
            writes.retry(parts, now);
        }
        parts.room_maker(now).drain();
        if let Some(checkpoints) = checkpoints {
            checkpoints.step(parts, now);
        }
        let spaces = parts.objects.spaces_mut();
        spaces.age_discards(now);
        // A run is not free while it is being deallocated.
        if writes.waiting() == 0 {
            parts.lanes.discard(now, spaces);
        }
        moved += self.parts.lanes.send(now);
        self.parts.log.note_sent(&self.parts.lanes, now);
        while let Some(answer) = self.parts.answers.pop() {
            moved += 1;
            done(answer);
        }
        let next = self.next_due_at(now);
        self.rests_until = if moved == 0 { next } else { Time::ZERO };
        Turn { moved, in_flight: self.parts.lanes.in_flight(), next }
    }

    /// Returns what requires a flush beside the records themselves.
    pub(super) fn pressure(&self) -> Pressure {
        let wants_flush = |checkpoints: &Checkpoints| checkpoints.wants_flush(&self.parts.log);
        Pressure {
            has_waiting: self.writes.waiting() > 0,
            is_checkpoint_waiting: self.checkpoints.as_ref().is_some_and(wants_flush),
        }
    }

    /// Waits in the kernel until a command ends, `at_most` at the longest. Returns false at once where that cannot be
    /// waited for: with work for a turn, with commands in flight on no device, or on several, and on paths that have to
    /// be polled.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        let Parts { lanes, answers, .. } = &mut self.parts;
        answers.is_empty() && !lanes.has_news() && lanes.wait(at_most)
    }

    /// Returns when the clock requires the next turn.
    fn next_due_at(&self, now: Time) -> Time {
        let Parts { lanes, objects, log, room, .. } = &self.parts;
        let expiry = objects.next_expiry(now);
        // Expired objects are removed once there is room for the record.
        let is_removable = expiry > now || log.has_room_for_small();
        let expiry = if is_removable { expiry } else { Time::NEVER };
        let lease = objects.spaces().leases().next_end().unwrap_or(Time::NEVER);
        let by_clock = lease.min(self.writes.until()).min(expiry);
        let by_clock = by_clock.min(objects.spaces().discards_age_at());
        if lanes.is_home_lost() {
            return by_clock;
        }
        let pressure = self.pressure();
        let is_busy = self.is_checkpointing()
            || self.parts.is_pressed(pressure)
            || self.parts.has_flush_to_begin(now, pressure)
            || self.has_objects_to_remove()
            || room.is_busy(pressure.has_waiting);
        if is_busy {
            return now;
        }
        let checkpoint =
            self.checkpoints.as_ref().map_or(Time::NEVER, |it| it.ages_due_at(objects));
        by_clock.min(log.next_due_at(self.parts.due.first())).min(checkpoint)
    }

    /// Returns whether the next turn links objects of tenants, or removes some for a quota or a sweep.
    pub(super) fn has_objects_to_remove(&self) -> bool {
        let Parts { objects, log, .. } = &self.parts;
        let is_due = objects.accounts().is_shrinking() || !self.sweeps.is_empty();
        objects.accounts().own().is_linking() || (is_due && log.has_room_for_small())
    }

    /// Reaps what the devices have finished and handles a portion of each device's. Returns how many commands it
    /// handled.
    pub(super) fn take_finished(&mut self, now: Time) -> usize {
        let mut taken = 0;
        for device in 0..self.parts.lanes.len() {
            self.parts.lanes[device].poll(now);
            let mut portion = 0;
            while portion < PORTION_BYTES
                && let Some(finished) = self.parts.lanes[device].take_finished()
            {
                portion += finished.bytes.max(UNIT_BYTES);
                taken += 1;
                self.finish(now, device, finished);
            }
        }
        taken
    }

    /// Handles the end of a command. Not inlined, so that a turn without any stays short.
    #[inline(never)]
    fn finish(&mut self, now: Time, device: usize, finished: Finished) {
        let Finished { purpose, memory, result, .. } = finished;
        let Shard { parts, writes, reads, checkpoints, .. } = self;
        match purpose {
            Purpose::Batch { batch, command } => {
                let trouble = result.err().map(|fault| parts.lanes.trouble(device, fault));
                let (direction, whole) =
                    parts.batches.unload(batch, command, memory, trouble.as_ref());
                parts.lanes[device].is_dirty |= direction == Direction::Write;
                for at in &whole {
                    let Item { reply, job, memory, failure, .. } = parts.batches.finish(batch, *at);
                    match job {
                        Job::Put(new) => {
                            parts.finish_put(now, (reply, new), memory, failure);
                        }
                        Job::Get(reading) => {
                            reads.finish_get(parts, now, (reply, reading), memory, failure);
                        }
                        Job::Fill(filling) => {
                            writes.finish_fill(parts, reply, &filling, memory, failure);
                        }
                    }
                }
                parts.batches.end(batch, whole);
            }
            Purpose::Journal { end } => {
                parts.log.finish_write(&mut parts.lanes[device], end, result);
                parts.lanes.keep(device, memory);
            }
            Purpose::Flush { number } => {
                parts.finish_flush(device, number, result.is_ok());
            }
            Purpose::Body | Purpose::Header => {
                parts.lanes.keep(device, memory);
                if let Some(checkpoints) = checkpoints {
                    let (lanes, log) = (&mut parts.lanes, &parts.log);
                    checkpoints.finish_write(lanes, log, purpose, result.is_ok());
                }
            }
            Purpose::Discard { unit, units } => {
                parts.lanes.keep(device, memory);
                parts.objects.spaces_mut().discarded(device as u8, unit..unit + units);
            }
            Purpose::Opening { .. } => unreachable!("opening waits for its own commands"),
        }
    }
}
