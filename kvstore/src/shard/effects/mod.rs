//! How changes take effect: in the order of their keys, and answered once that is durable enough.
//!
//! In a `durable` store a record that supersedes an object waits until the data of its own are flushed: a power cut
//! that loses the data of an object must not leave such a record behind. It could be told by its checksums at the
//! opening, as in `restart`, but not from damage to the data of a put that was acknowledged, which must not bring an
//! older object back. One flush covers the data of the waiting objects and the journal blocks of earlier ones. The
//! record of an object with a new key waits for nothing, and one flush covers it and the data (`ahead`).
//!
//! A condition is checked in the change's turn among those of its key, where nothing comes between the check and the
//! change. In a `durable` store a put is hidden between its turn and the end of its flush, and a change that looks at
//! the key must not pass it by: it waits until no change of the key is under way, as a removal does. Elsewhere a put is
//! visible in its turn, and nothing waits.
//!
//! | file | holds |
//! |---|---|
//! | `turns` | what a change does in its turn |
//! | `key_order` | in which order changes of one key take their turns |
//! | `due` | what happens once a record is durable |
//! | `ahead` | records that are written with their data, and those that are taken back |

mod ahead;
pub(super) mod due;
pub(super) mod key_order;
mod turns;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use self::due::{Event, Held};
use super::answer::{Done, Outcome};
use super::change::NewObject;
use super::log::put_record;
use super::parts::Parts;
use super::request::Condition;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Put, Record};

/// Buried space above one `BURIED_PARTS`th of the capacity justifies a flush of its own.
const BURIED_PARTS: u64 = 64;

/// Other reasons for a flush, or for a change to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    /// Whether changes wait for room.
    pub(super) has_waiting: bool,
    /// Whether the checkpoint in progress waits for a flush.
    pub(super) is_checkpoint_waiting: bool,
}

impl<Q: CommandQueue<Load>, R> Parts<Q, R> {
    /// Returns whether every put recorded before block `sequence` is visible.
    pub(super) fn has_settled(&self, sequence: u64) -> bool {
        self.log.has_data_before(sequence) && self.due.first().is_none_or(|first| first >= sequence)
    }

    /// Returns whether nothing waits to become durable.
    pub(super) fn has_settled_all(&self) -> bool {
        self.held.is_empty() && self.due.first().is_none()
    }

    /// Returns whether a change of this key is under way, and its effect not visible in its turn.
    pub(super) fn has_unfinished(&self, hash: u64) -> bool {
        self.log.is_strict() && self.order.is_unsettled(hash)
    }

    /// Returns whether a change with this condition cannot take its turn yet.
    pub(super) fn waits_for_key(&self, hash: u64, condition: Condition) -> bool {
        condition != Condition::Always && self.has_unfinished(hash)
    }

    /// Returns whether the record of a put in a `durable` store will supersede an object, or a put that is not visible.
    fn supersedes(&self, new: &NewObject) -> bool {
        self.order.is_hidden(new.hash) || self.objects.find(new.hash, &new.key).is_some()
    }

    /// Seals, writes and flushes due blocks, and gives the answers that this makes due.
    pub(super) fn journal_step(&mut self, now: Time, pressure: Pressure) {
        if self.lanes.is_home_lost() {
            return self.fail_all();
        }
        let has_answered = self.give_what_is_due();
        self.record_flushed(now);
        let is_pressed = self.is_pressed(pressure);
        let is_awaited = self.due.first().is_some() && !has_answered;
        self.log.seal(now, is_pressed, is_awaited);
        self.log.write_blocks(&mut self.lanes, now);
        if self.has_flush_to_begin(now, pressure) {
            self.log.flush(&mut self.lanes, now);
        }
        self.give_what_is_due();
    }

    /// Returns whether a flush is to begin: no completion would wake the thread for objects held back in this turn.
    pub(super) fn has_flush_to_begin(&self, now: Time, pressure: Pressure) -> bool {
        let log = &self.log;
        if !log.can_flush() {
            return false;
        }
        // Wait for blocks being written, so that one flush serves both.
        let wants_flush = self.held.back().is_some_and(|held| held.flush > log.flush_begun());
        let is_awaited = || self.due.first().is_some_and(|first| first < log.ready_end());
        (wants_flush && log.is_written())
            || pressure.is_checkpoint_waiting
            || (log.has_written()
                && (is_awaited() || self.is_pressed(pressure) || log.is_flush_due(now)))
    }

    /// Gives the answers whose records are durable, and frees the space they bury. Returns whether puts are among them.
    fn give_what_is_due(&mut self) -> bool {
        let (in_progress, mut has_puts) = (self.room.coming(), false);
        while let Some(due) = self.due.next(self.log.durable_end()) {
            match due.event {
                Event::Put(new, answer) => {
                    has_puts = true;
                    self.order.unhide(new.hash);
                    self.show(due.sequence, new);
                    answer.into_iter().for_each(|answer| self.answers.push(answer));
                }
                Event::Answer(answer) => self.answers.push(answer),
            }
        }
        if has_puts {
            self.log.note_group(in_progress);
        }
        self.objects.spaces_mut().settle(self.log.durable_end());
        has_puts
    }

    /// Makes an object visible that block `sequence` of the journal records.
    fn show(&mut self, sequence: u64, new: Box<NewObject>) {
        self.room.settle(&new);
        self.objects.insert(&self.lanes, sequence, &new);
        self.boxes.keep(new);
    }

    /// Gives up an object whose data was written, and the room for its record.
    fn give_up(&mut self, new: Box<NewObject>) {
        self.log.unreserve(new.record_bytes());
        self.room.settle(&new);
        self.objects.give_up(&new);
        self.boxes.keep(new);
    }

    /// Answers a commit when everything before it is durable.
    pub(super) fn commit(&mut self, reply: R) {
        let checked = self.lanes.check_home().and_then(|()| self.lanes.check_flushed());
        if let Err(failure) = checked {
            return self.answers.give(reply, Err(failure), AnyBuffer::None);
        }
        let sequence = self.log.barrier();
        let answer = Done::new(reply, Ok(Outcome::Committed), AnyBuffer::None);
        self.due.wait(sequence, Event::Answer(answer));
    }

    /// Answers a change that block `sequence` of the journal records: at once if that block is sent soon, otherwise
    /// when it is durable.
    fn acknowledge(&mut self, now: Time, sequence: u64, answer: Done<R>) {
        if self.log.may_promise(now) {
            self.answers.push(answer);
        } else {
            self.due.wait(sequence, Event::Answer(answer));
        }
    }

    /// Answers a change without memory that block `sequence` of the journal records.
    pub(super) fn answer_change(
        &mut self,
        now: Time,
        reply: R,
        (outcome, sequence): (Outcome, u64),
    ) {
        let answer = Done::new(reply, Ok(outcome), AnyBuffer::None);
        self.acknowledge(now, sequence, answer);
    }

    /// Delays the record of an object until its data is flushed. The room for it stays reserved.
    fn hold_back(&mut self, new: Box<NewObject>, answer: Done<R>) {
        self.held.push_back(Held { flush: self.log.flush_begun() + 1, new, answer });
    }

    /// Records the objects whose data is flushed.
    fn record_flushed(&mut self, now: Time) {
        let ended = self.log.flush_ended();
        while let Some(Held { new, answer, .. }) =
            self.held.pop_front_if(|held| held.flush <= ended)
        {
            let sequence = self.append_put(now, &new);
            self.due.wait(sequence, Event::Put(new, Some(answer)));
        }
    }

    /// Handles devices that failed since the last turn: their objects are misses from now on.
    pub(super) fn note_failures(&mut self) {
        for device in 0..self.lanes.len() {
            if self.lanes.note_failure(device) {
                self.objects.forget_device(device as u8);
                self.fail_undurable(device);
            }
        }
    }

    /// Handles the end of a device's flush. A device that cannot flush loses its own objects; only the journal's
    /// device fails the flush.
    pub(super) fn finish_flush(&mut self, device: usize, number: u64, is_done: bool) {
        if !is_done {
            let lane = &mut self.lanes[device];
            lane.is_dirty = true;
            lane.fail("it cannot flush");
            self.fail_undurable(device);
        }
        if is_done || !self.lanes.is_home(device) {
            self.log.flushed(number);
        } else {
            self.log.abandon_flush(number);
        }
    }

    /// Fails the answers that wait for data that a failed device never flushed.
    fn fail_undurable(&mut self, device: usize) {
        let failure = self.lanes.failure_of(device);
        let is_dirty = self.lanes[device].is_dirty;
        self.fail_held(Some(device), &failure);
        let is_in_vain = |event: &Event<R>| match event {
            Event::Put(new, _) => usize::from(new.object.place.device) == device,
            Event::Answer(answer) => is_dirty && answer.result == Ok(Outcome::Committed),
        };
        self.fail_due(is_in_vain, &failure);
    }

    /// Fails all answers that wait: nothing becomes durable while the journal's device is out of service.
    pub(super) fn fail_all(&mut self) {
        let Err(failure) = self.lanes.check_home() else { return };
        self.fail_held(None, &failure);
        self.fail_due(|_| true, &failure);
    }

    fn fail_due(&mut self, is_in_vain: impl Fn(&Event<R>) -> bool, failure: &Failure) {
        self.due.take_answers(is_in_vain, |answer| {
            self.answers.push(Done { result: Err(failure.clone()), ..answer });
        });
    }

    /// Fails objects whose data will not be flushed: all, or those on one device.
    fn fail_held(&mut self, device: Option<usize>, failure: &Failure) {
        for Held { flush, new, answer } in std::mem::take(&mut self.held) {
            let is_there = usize::from(new.object.place.device);
            if device.is_some_and(|device| device != is_there) {
                self.held.push_back(Held { flush, new, answer });
                continue;
            }
            self.order.unhide(new.hash);
            self.give_up(new);
            self.answers.push(Done { result: Err(failure.clone()), ..answer });
        }
    }

    /// Returns whether requests wait for room that only a flush provides.
    pub(super) fn is_pressed(&self, pressure: Pressure) -> bool {
        let spaces = self.objects.spaces();
        let is_much = spaces.buried_units() > spaces.capacity_units() / BURIED_PARTS;
        spaces.has_graves() && (is_much || pressure.has_waiting)
    }

    /// Appends the record of an object, using its reservation, and returns its sequence.
    fn append_put(&mut self, now: Time, new: &NewObject) -> u64 {
        self.log.unreserve(new.record_bytes());
        let NewObject { key, hash, object, slab_base, expires_s, checksums, .. } = new;
        let checksums = checksums.as_slice().into();
        let put = put_record(key.as_bytes(), *object, *slab_base, *expires_s, checksums);
        // In `durable`, what it supersedes is never to come back.
        let is_provisional = !self.log.is_strict() && self.objects.find(*hash, key).is_some();
        if is_provisional {
            self.log.note_replaced(object.bytes);
        }
        self.log.append(now, &Record::Put(Put { is_provisional, ..put }))
    }
}
