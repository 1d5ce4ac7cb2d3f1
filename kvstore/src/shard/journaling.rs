//! Writing and flushing the journal, and answering in order.
//!
//! In a `durable` store a record that supersedes an object waits until the data of its own are flushed: a power cut that
//! loses the data of an object must not leave such a record behind. It could be told by its checksums at the opening, as
//! in `restart`, but not from damage to the data of a put that was acknowledged, which must not bring an older object
//! back. One flush covers the data of the waiting objects and the journal blocks of earlier ones. The record of an object
//! with a new key waits for nothing, and one flush covers it and the data ([`super::ahead`]).

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, Operation};

use super::Shard;
use super::batch::NewObject;
use super::log::Event;
use super::request::{Done, Outcome};
use crate::error::Failure;
use crate::io::lane::{Command, Lane, Load, Purpose};
use crate::io::schedule::Class;
use crate::model::place::{Place, UNIT_BYTES, units};

/// Buried space above one `BURIED_PARTS`th of the capacity justifies a flush of its own.
const BURIED_PARTS: u64 = 64;

/// An object whose record waits.
#[derive(Debug)]
struct Held<R> {
    /// The flush that must end first: one that began after the data was written.
    flush: u64,
    new: Box<NewObject>,
    answer: Done<R>,
}

/// The waiting objects, in the order in which their data was written.
#[derive(Debug)]
pub(super) struct HeldObjects<R>(VecDeque<Held<R>>);

impl<R> Default for HeldObjects<R> {
    fn default() -> HeldObjects<R> {
        HeldObjects(VecDeque::new())
    }
}

impl<R> HeldObjects<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an object waits for a flush after `begun`, the last one that began.
    pub(super) fn wants_flush(&self, begun: u64) -> bool {
        self.0.back().is_some_and(|held| held.flush > begun)
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Seals, writes and flushes what is due.
    pub(super) fn journal_step(&mut self, now: Time) {
        if self.is_home_lost() {
            return self.fail_events();
        }
        let has_answered = self.give_what_is_due();
        self.record_flushed(now);
        let is_pressed = self.is_pressed();
        self.log.seal(now, is_pressed, has_answered);
        self.write_blocks(now);
        if self.log.can_flush() && self.is_flush_wanted(now, is_pressed) {
            self.flush(now);
        }
        self.give_what_is_due();
    }

    /// Returns whether requests wait for room that only a flush provides.
    pub(super) fn is_pressed(&self) -> bool {
        let buried = self.spaces.buried_units();
        let is_much = buried > self.spaces.capacity_units() / BURIED_PARTS;
        self.spaces.has_graves() && (is_much || !self.stalled.is_empty())
    }

    /// Returns whether the next turn begins a flush: no completion would wake the thread for objects held back in
    /// this turn.
    pub(super) fn has_flush_to_begin(&self, now: Time) -> bool {
        self.log.can_flush() && self.is_flush_wanted(now, self.is_pressed())
    }

    fn is_flush_wanted(&self, now: Time, is_pressed: bool) -> bool {
        // Wait for blocks being written, so that one flush serves both.
        let is_held = self.held.wants_flush(self.log.flush_numbers().0) && self.log.is_written();
        is_held
            || self.checkpoint_wants_flush()
            || (self.log.has_written()
                && (self.log.is_awaited() || is_pressed || self.log.is_flush_due(now)))
    }

    fn write_blocks(&mut self, now: Time) {
        while self.log.has_sealed() {
            let lane = &mut self.lanes[self.home];
            let Some(mut memory) = lane.take_memory(self.log.sealed_bytes()) else { break };
            // One command, whose completion is that of the write.
            let start = self.log.next_unit() * UNIT_BYTES;
            let fits = lane.info.split().first(start, memory.len() as u64);
            let Some(write) = self.log.take(&mut memory[..fits as usize]) else {
                lane.keep(memory);
                break;
            };
            let bytes = write.bytes();
            self.stats.journal_bytes += bytes as u64;
            let purpose = Purpose::Journal { end: write.sequences.end };
            let commands =
                self.write_home(now, purpose, Class::Metadata, write.unit, memory, bytes);
            assert_eq!(commands, 1, "blocks count as written when their only command is done");
        }
    }

    /// Counts how late blocks were sent, once none waits in the lane.
    pub(super) fn note_sent(&mut self, now: Time) {
        if !self.lanes[self.home].has_waiting_metadata() {
            let delay = self.log.sent(now).map_or(0, |delay| delay.as_nanos() as u64);
            self.stats.journal_delay_max_ns = self.stats.journal_delay_max_ns.max(delay);
        }
    }

    /// Answers a change that block `sequence` of the journal records: at once if that block is sent soon, otherwise
    /// when it is durable.
    pub(super) fn acknowledge(&mut self, now: Time, sequence: u64, answer: Done<R>) {
        if self.log.may_promise(now) {
            self.answers.push_back(answer);
        } else {
            self.log.wait(sequence, Event::Answer(answer));
        }
    }

    /// Writes the first `bytes` of a home lane buffer to `unit`, in as many commands as that takes.
    pub(super) fn write_home(
        &mut self,
        now: Time,
        purpose: Purpose,
        class: Class,
        unit: u64,
        mut memory: Buffer,
        bytes: usize,
    ) -> u32 {
        let lane = &mut self.lanes[self.home];
        let split = lane.info.split();
        let mut commands = 0;
        lane.keep(memory.split_off(bytes));
        let mut place = Place { device: self.home as u8, unit };
        while !memory.is_empty() {
            let bytes = split.first(place.unit * UNIT_BYTES, memory.len() as u64);
            let rest = memory.split_off(bytes as usize);
            let operation = Operation::Write(place.lba(lane.info.lba_bytes));
            let (memory_now, deadline) = (AnyBuffer::One(memory), Time::NEVER);
            lane.push(
                now,
                Command { purpose, operation, class, memory: memory_now, bytes, deadline },
            );
            place = place.plus(units(bytes));
            commands += 1;
            memory = rest;
        }
        self.stats.bytes_to_device += bytes as u64;
        commands
    }

    /// Flushes the journal's device and every device that was written to since its last flush.
    fn flush(&mut self, now: Time) {
        let mut devices = 0;
        let number = self.log.flush_numbers().0 + 1;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if lane.failure().is_some() || !(lane.is_dirty || index == self.home) {
                continue;
            }
            lane.is_dirty = false;
            devices += 1;
            let (purpose, memory) = (Purpose::Flush { number }, AnyBuffer::None);
            let (operation, class) = (Operation::Flush, Class::Metadata);
            let deadline = Time::NEVER;
            lane.push(now, Command { purpose, operation, class, memory, bytes: 0, deadline });
        }
        self.stats.flushes += u64::from(devices);
        self.log.begin_flush(now, devices);
    }

    /// Handles the end of a device's flush. A device that cannot flush loses its own objects; only the journal's
    /// device fails the flush.
    pub(super) fn finish_flush(&mut self, device: usize, number: u64, is_done: bool) {
        if !is_done {
            self.lanes[device].is_dirty = true;
            self.lanes[device].fail("it cannot flush");
            self.fail_undurable(device);
        }
        if is_done || device != self.home {
            self.log.flushed(number);
        } else {
            self.log.abandon_flush(number);
        }
    }

    /// Fails the answers that wait for data that a failed device never flushed.
    pub(super) fn fail_undurable(&mut self, device: usize) {
        let failure = self.failure_of(device);
        let is_dirty = self.lanes[device].is_dirty;
        self.fail_held(Some(device), &failure);
        let (log, answers) = (&mut self.log, &mut self.answers);
        let is_in_vain = |event: &Event<R>| match event {
            Event::Put(new, _) => usize::from(new.object.place.device) == device,
            Event::Answer(answer) => is_dirty && answer.result == Ok(Outcome::Committed),
        };
        log.take_answers(is_in_vain, |answer| {
            answers.push_back(Done { result: Err(failure.clone()), ..answer });
        });
    }

    /// Returns the failure to report for a device that is out of service.
    pub(super) fn failure_of(&self, device: usize) -> Failure {
        let why = self.lanes[device].failure().unwrap_or("it is out of service").to_owned();
        Failure::Device { device: device as u8, why }
    }

    /// Gives the answers whose records are durable, and frees the space they bury. Returns whether puts are among them.
    pub(super) fn give_what_is_due(&mut self) -> bool {
        let (in_progress, mut has_puts) = (self.capacity.coming, false);
        while let Some(due) = self.log.next_due() {
            match due.event {
                Event::Put(new, answer) => {
                    has_puts = true;
                    self.order.unhide(new.hash);
                    self.apply(due.sequence, &new);
                    self.scratch.news.keep(new);
                    self.answers.extend(answer);
                }
                Event::Answer(answer) => self.answers.push_back(answer),
            }
        }
        if has_puts {
            self.log.note_group(in_progress);
        }
        self.spaces.settle(self.log.durable_end());
        has_puts
    }

    /// Answers a commit when everything before it is durable.
    pub(super) fn commit(&mut self, reply: R) {
        if let Err(failure) = self.check_home().and_then(|()| self.check_flushed()) {
            return self.answer(reply, Err(failure), AnyBuffer::None);
        }
        let sequence = self.log.barrier();
        let (result, memory) = (Ok(Outcome::Committed), AnyBuffer::None);
        self.log.wait(
            sequence,
            Event::Answer(Done { reply, result, memory, version: None, unverified: None }),
        );
    }

    /// Fails all answers that wait: nothing becomes durable while the journal's device is out of service.
    pub(super) fn fail_events(&mut self) {
        let Err(failure) = self.check_home() else { return };
        self.fail_held(None, &failure);
        let answers = &mut self.answers;
        self.log.take_answers(
            |_| true,
            |answer| answers.push_back(Done { result: Err(failure.clone()), ..answer }),
        );
    }

    /// Checks that the journal can be written.
    ///
    /// # Errors
    /// [`Failure::Device`] if its device is out of service.
    pub(super) fn check_home(&self) -> Result<(), Failure> {
        if self.is_home_lost() { Err(self.failure_of(self.home)) } else { Ok(()) }
    }

    fn is_home_lost(&self) -> bool {
        self.lanes[self.home].failure().is_some() && self.log.journal().is_some()
    }

    /// Checks that no failed device has data that it never flushed.
    fn check_flushed(&self) -> Result<(), Failure> {
        let is_lost = |lane: &Lane<Q>| lane.failure().is_some() && lane.is_dirty;
        let lost = self.lanes.iter().position(is_lost).filter(|_| self.log.journal().is_some());
        lost.map_or(Ok(()), |device| Err(self.failure_of(device)))
    }

    /// Delays the record of an object until its data is flushed. The room for it stays reserved.
    pub(super) fn hold_back(&mut self, new: Box<NewObject>, answer: Done<R>) {
        let flush = self.log.flush_numbers().0 + 1;
        self.held.0.push_back(Held { flush, new, answer });
    }

    /// Records the objects whose data is flushed.
    pub(super) fn record_flushed(&mut self, now: Time) {
        let ended = self.log.flush_numbers().1;
        while let Some(Held { new, answer, .. }) =
            self.held.0.pop_front_if(|held| held.flush <= ended)
        {
            let sequence = self.append_put(now, &new);
            self.log.wait(sequence, Event::Put(new, Some(answer)));
        }
    }

    /// Fails objects whose data will not be flushed: all, or those on one device.
    pub(super) fn fail_held(&mut self, device: Option<usize>, failure: &Failure) {
        for Held { flush, new, answer } in std::mem::take(&mut self.held.0) {
            let is_there = usize::from(new.object.place.device);
            if device.is_some_and(|device| device != is_there) {
                self.held.0.push_back(Held { flush, new, answer });
                continue;
            }
            self.log.unreserve(new.record_bytes());
            self.capacity.settle(&new);
            self.order.unhide(new.hash);
            self.drop_new(&new);
            self.scratch.news.keep(new);
            self.answers.push_back(Done { result: Err(failure.clone()), ..answer });
        }
    }
}
