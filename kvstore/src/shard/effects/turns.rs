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
use crate::shard::answer::{Done, Outcome};
use crate::shard::change::{Alteration, Altering, Change, NewObject};
use crate::shard::lanes::Trouble;
use crate::shard::memory::Memory;
use crate::shard::parts::Parts;

impl<Q: CommandQueue<Load>, R> Parts<Q, R> {
    /// Takes the turn of an alteration, behind the changes of its key that began before. Returns it if it has to wait:
    /// for room in the journal, or for a put of its key that is not durable yet.
    pub(crate) fn begin_altering(&mut self, now: Time, altering: Altering<R>) -> Option<Change<R>> {
        if let Err(failure) = self.lanes.check_home() {
            self.answers.give(altering.reply, Err(failure), AnyBuffer::None);
            return None;
        }
        let (hash, record_bytes) = (altering.hash, altering.how.record_bytes());
        if !self.log.asks_room(record_bytes) || self.has_unfinished(hash) {
            return Some(Change::Alter(altering));
        }
        self.log.reserve(record_bytes);
        let turn = self.order.take_turn(hash);
        self.take_effect(now, (hash, turn), Ready::Alter(altering));
        None
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
                Ready::Alter(altering) => self.alter(now, altering),
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

    /// Alters an object, using the room reserved for the record.
    fn alter(&mut self, now: Time, Altering { reply, hash, key, how }: Altering<R>) {
        self.log.unreserve(how.record_bytes());
        let found = self.lanes.check_home().and_then(|()| match how {
            Alteration::Remove(condition) => {
                self.check_condition(now, (&key, hash), condition)?;
                Ok(self.objects.find(hash, &key))
            }
            Alteration::Expire(_) => Ok(self.lookup(now, hash, &key)),
        });
        let (objects, log) = (&mut self.objects, &mut self.log);
        let altered = match (found, how) {
            (Err(failure), _) => return self.answers.give(reply, Err(failure), AnyBuffer::None),
            (Ok(None), _) => (Outcome::Miss, log.newest()),
            (Ok(Some(id)), Alteration::Remove(_)) => {
                (Outcome::Deleted, objects.delete(log, now, id))
            }
            (Ok(Some(id)), Alteration::Expire(ttl_s)) => {
                (Outcome::Touched, objects.touch(log, now, id, ttl_s))
            }
        };
        self.answer_change(now, reply, altered);
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
