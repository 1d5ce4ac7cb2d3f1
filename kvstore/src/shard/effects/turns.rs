//! Steps of a change in its turn among those of its key.
//!
//! Another expiry is a put in the journal of the same place and checksums. Its data may not be flushed yet, so outside
//! `durable` it is provisional: if a power cut takes the data, the object that they replaced counts.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::due::Event;
use super::key_order::Ready;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::RECORD_BYTES_MAX;
use crate::shard::answer::{Done, Outcome};
use crate::shard::change::{Deleting, NewObject, Touching};
use crate::shard::lanes::Trouble;
use crate::shard::log::SMALL_RECORD_BYTES;
use crate::shard::memory::Memory;
use crate::shard::parts::Parts;

/// The room of any object's record: which object it will be is known in the turn only.
const ANY_RECORD_BYTES: u64 = RECORD_BYTES_MAX as u64;

impl<Q: CommandQueue<Load>, R> Parts<Q, R> {
    /// Takes the turn of a removal, behind the changes of its key that began before. Returns it if it has to wait: for
    /// room in the journal, or for a put of its key that is not durable yet.
    pub(crate) fn begin_delete(&mut self, now: Time, deleting: Deleting<R>) -> Option<Deleting<R>> {
        if let Err(failure) = self.lanes.check_home() {
            self.answers.give(deleting.reply, Err(failure), AnyBuffer::None);
            return None;
        }
        let hash = deleting.hash;
        let Some(turn) = self.turn_with_room(hash, SMALL_RECORD_BYTES) else {
            return Some(deleting);
        };
        self.take_effect(now, (hash, turn), Ready::Delete(deleting));
        None
    }

    /// Takes the turn of another expiry, as [`Effects::begin_delete`] does.
    pub(crate) fn begin_touch(&mut self, now: Time, touching: Touching<R>) -> Option<Touching<R>> {
        if let Err(failure) = self.lanes.check_home() {
            self.answers.give(touching.reply, Err(failure), AnyBuffer::None);
            return None;
        }
        let hash = touching.hash;
        let Some(turn) = self.turn_with_room(hash, ANY_RECORD_BYTES) else {
            return Some(touching);
        };
        self.take_effect(now, (hash, turn), Ready::Touch(touching));
        None
    }

    /// Takes a turn of a key and reserves room for its record, unless the journal has none or a put of the key is not
    /// durable yet.
    fn turn_with_room(&mut self, hash: u64, record_bytes: u64) -> Option<u32> {
        if !self.log.asks_room(record_bytes) || self.has_unfinished(hash) {
            return None;
        }
        self.log.reserve(record_bytes);
        Some(self.order.take_turn(hash))
    }

    /// Takes the turn of an object whose data are written, behind the changes of its key that began before.
    pub(crate) fn begin_written(&mut self, now: Time, new: Box<NewObject>, answer: Done<R>) {
        self.room.promise(&new);
        self.log.reserve(new.record_bytes());
        let (hash, turn) = (new.hash, self.order.take_turn(new.hash));
        self.take_effect(now, (hash, turn), Ready::Put(new, answer));
    }

    /// Handles the end of a put's writes.
    pub(crate) fn finish_put(
        &mut self,
        now: Time,
        (reply, new): (R, Box<NewObject>),
        memory: Memory,
        trouble: Option<Trouble>,
    ) {
        let key_turn = (new.hash, new.turn);
        let memory = memory.into_any();
        if let Some(sequence) = new.recorded {
            let failure = trouble.map(Trouble::into_failure);
            let failure = failure.or_else(|| self.never_durable(&new));
            let version = failure.is_none().then_some(new.object.version);
            let result = failure.map_or(Ok(Outcome::Stored), Err);
            let answer = Done { version, ..Done::new(reply, result, memory) };
            self.finish_recorded(now, sequence, new, answer);
            return self.take_effect(now, key_turn, Ready::Nothing);
        }
        if let Some(trouble) = trouble {
            self.give_up(new);
            self.answers.give(reply, Err(trouble.into_failure()), memory);
            return self.take_effect(now, key_turn, Ready::Nothing);
        }
        let answer = Done::new(reply, Ok(Outcome::Stored), memory);
        self.take_effect(now, key_turn, Ready::Put(new, answer));
    }

    /// Lets a change take effect once those of its key that began before it have, and those that waited for it.
    fn take_effect(&mut self, now: Time, (hash, turn): (u64, u32), ready: Ready<R>) {
        let mut next = self.order.arrive(hash, turn, ready);
        while let Some(ready) = next {
            match ready {
                Ready::Put(new, answer) => self.record(now, new, answer),
                Ready::Delete(deleting) => self.delete(now, deleting),
                Ready::Touch(touching) => self.touch(now, touching),
                Ready::Nothing => {}
            }
            next = self.order.use_turn(hash);
        }
    }

    /// Records an object whose data is written: at once or, in a `durable` store with an object or put of its key, when
    /// the data is flushed. Its record has room reserved.
    fn record(&mut self, now: Time, mut new: Box<NewObject>, mut answer: Done<R>) {
        let check = || self.check_condition(now, (&new.key, new.hash), new.condition);
        if let Err(failure) = self.never_durable(&new).map_or_else(check, Err) {
            self.give_up(new);
            return self.answers.push(Done { result: Err(failure), ..answer });
        }
        new.object.version = self.objects.next_version(now);
        answer.version = Some(new.object.version);
        if self.log.is_strict() {
            let supersedes = self.supersedes(&new);
            self.order.hide(new.hash);
            if supersedes {
                return self.hold_back(new, answer);
            }
            let sequence = self.append_put(now, &new);
            return self.due.wait(sequence, Event::Put(new, Some(answer)));
        }
        let sequence = self.append_put(now, &new);
        self.show(sequence, new);
        self.acknowledge(now, sequence, answer);
    }

    /// Removes an object, using the room reserved for the record.
    fn delete(&mut self, now: Time, deleting: Deleting<R>) {
        let Deleting { reply, hash, key, condition } = deleting;
        self.log.unreserve(SMALL_RECORD_BYTES);
        let check = |()| self.check_condition(now, (&key, hash), condition);
        if let Err(failure) = self.lanes.check_home().and_then(check) {
            return self.answers.give(reply, Err(failure), AnyBuffer::None);
        }
        // The removal of an object that is not there may not be durable yet: answer only when it is.
        let deleted = match self.objects.find(hash, &key) {
            None => (Outcome::Miss, self.log.newest()),
            Some(id) => (Outcome::Deleted, self.objects.delete(&mut self.log, now, id)),
        };
        self.answer_change(now, reply, deleted);
    }

    /// Sets an object's expiry, using the room reserved for the record.
    fn touch(&mut self, now: Time, touching: Touching<R>) {
        let Touching { reply, hash, key, ttl_s } = touching;
        self.log.unreserve(ANY_RECORD_BYTES);
        if let Err(failure) = self.lanes.check_home() {
            return self.answers.give(reply, Err(failure), AnyBuffer::None);
        }
        let touched = match self.lookup(now, hash, &key) {
            // Its removal may not be durable yet: answer only when it is.
            None => (Outcome::Miss, self.log.newest()),
            Some(id) => (Outcome::Touched, self.objects.touch(&mut self.log, now, id, ttl_s)),
        };
        self.answer_change(now, reply, touched);
    }

    /// Returns why data that were written will never be durable: no flush is sent to a device that is out of service,
    /// and none brings back what was lost before it was attached again.
    fn never_durable(&self, new: &NewObject) -> Option<Failure> {
        let device = new.object.place.device;
        let lane = self.lanes.of(device);
        if !self.log.is_strict() {
            None
        } else if lane.failure().is_some() {
            Some(self.lanes.failure_of(usize::from(device)))
        } else {
            let why = "it failed, and may have lost what was written: put the object again";
            let is_another = lane.attachment != new.attachment;
            is_another.then(|| Failure::Device { device, why: why.to_owned() })
        }
    }
}
