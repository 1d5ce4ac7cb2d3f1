//! Objects that go: on request, for room, by the clock.

use adit_driver::Time;
use adit_driver::device::CommandQueue;
use adit_driver::memory::AnyBuffer;

use super::lane::Load;
use super::log::{Answer, Event};
use super::put::Begun;
use super::request::{Failure, Outcome};
use super::{Shard, Work};
use crate::key::Key;
use crate::object::ObjectId;
use crate::record::{Record, record_bytes};

/// Objects that expire in one turn at most: a turn is bounded.
const EXPIRATIONS_PER_TURN: usize = 64;

/// What became of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// There is going to be room.
    Some,
    /// The journal is full: a checkpoint comes first.
    NotYet,
    /// There is nothing that may go, and nothing on its way out.
    Nothing,
}

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Removes an object; the sequence of the record that says so. There is room for the record.
    pub(super) fn remove(&mut self, now: Time, id: ObjectId) -> u64 {
        self.policy.removed(id);
        self.take_out(now, id)
    }

    /// The same, for one that the policy knows is gone.
    fn take_out(&mut self, now: Time, id: ObjectId) -> u64 {
        let object = self.index.object(id);
        let key = self.index.key_bytes(id);
        let sequence = self.log.append(now, &Record::Delete { key, place: object.place });
        self.record_bytes -= self.record_bytes_of(id);
        self.index.remove(id);
        self.expiry.clear(id);
        self.tenants.credit(object.tenant, self.spaces.units_of(&object));
        self.spaces.bury(sequence, object);
        self.last_removal = sequence;
        sequence
    }

    /// Removes the object that is worth least.
    fn evict(&mut self, now: Time) -> Evicted {
        if !self.log.has_room(1) {
            self.wants_checkpoint = true;
            return Evicted::NotYet;
        }
        let (index, leases) = (&self.index, &self.leases);
        let victim = self.policy.victim(&mut |id| leases.is_leased(index.object(id).place));
        let Some(victim) = victim else { return self.what_else() };
        // The policy may be the user's own.
        assert!(index.contains(victim), "a policy names an object that is there");
        let place = index.object(victim).place;
        assert!(!leases.is_leased(place), "a policy names no object that is leased");
        let hash = self.index.hash(self.index.key_bytes(victim));
        self.policy.evicted(victim, hash);
        self.take_out(now, victim);
        self.stats.evictions += 1;
        Evicted::Some
    }

    /// With nothing to evict, whether there is something to wait for.
    fn what_else(&self) -> Evicted {
        let is_something_under_way = self.spaces.buried_units() > 0 || self.log.reserved() > 0;
        if is_something_under_way { Evicted::Some } else { Evicted::Nothing }
    }

    /// Has so many units on their way to be free.
    pub(super) fn evict_towards(&mut self, now: Time, units: u64) -> Evicted {
        if self.spaces.buried_units() >= units {
            return Evicted::Some;
        }
        let mut evicted = Evicted::Some;
        while self.spaces.buried_units() < units {
            evicted = self.evict(now);
            if evicted != Evicted::Some || self.index.is_empty() {
                break;
            }
        }
        if self.spaces.buried_units() > 0 && evicted == Evicted::Nothing {
            Evicted::Some
        } else {
            evicted
        }
    }

    /// Bytes of an object's record in a checkpoint.
    pub(super) fn record_bytes_of(&self, id: ObjectId) -> u64 {
        record_bytes(self.index.key_bytes(id).len(), self.index.checksums(id).len()) as u64
    }

    /// Has entries for so many new objects, and room in a checkpoint for their records; false if they have to be
    /// waited for.
    pub(super) fn make_entries(&mut self, now: Time, fresh: usize) -> Result<bool, Failure> {
        let most = u64::from(self.objects_max);
        let wanted = self.log.reserved() + fresh as u64;
        if wanted > most && self.log.reserved() == 0 {
            return Err(Failure::Full);
        }
        while u64::from(self.index.len()) + wanted > most
            || self.record_bytes > self.record_bytes_max
        {
            if self.index.is_empty() {
                return Ok(false);
            }
            let before = self.index.len();
            match self.evict(now) {
                Evicted::Some if self.index.len() < before => {}
                Evicted::Some | Evicted::NotYet => return Ok(false),
                Evicted::Nothing => return Err(Failure::Full),
            }
        }
        Ok(true)
    }

    /// Evicts down to the low watermark once the high one is passed.
    pub(super) fn keep_below_watermark(&mut self, now: Time) {
        let live = |shard: &Self| shard.spaces.used_units() - shard.spaces.buried_units();
        if live(self) <= self.live_units_max {
            return;
        }
        let low = self.options.watermarks.low_units(self.spaces.capacity_units());
        while live(self) > low && !self.index.is_empty() {
            let before = live(self);
            if self.evict(now) != Evicted::Some || live(self) == before {
                return;
            }
        }
    }

    /// Removes what has expired.
    pub(super) fn expire(&mut self, now: Time) {
        for _ in 0..EXPIRATIONS_PER_TURN {
            if self.expiry.is_empty() {
                break;
            }
            let Some(id) = self.expiry.due(self.wall_s(now)) else { break };
            if !self.log.has_room(1) {
                self.wants_checkpoint = true;
                break;
            }
            self.remove(now, id);
            self.stats.expirations += 1;
        }
        while let Some(places) = self.leases.expire(now) {
            for place in places {
                self.spaces.unpin(place);
            }
        }
    }

    /// Removes an object on request. One whose put is recorded but not durable yet goes after it appears.
    pub(super) fn begin_delete(&mut self, now: Time, tag: u64, key: Key) -> Begun {
        if let Err(failure) = self.check_home() {
            self.answer(tag, 0, Err(failure), AnyBuffer::None);
            return Begun::Yes;
        }
        if !self.log.has_room(1) {
            self.wants_checkpoint = true;
            return Begun::Later(Work::Delete(key));
        }
        if self.log.is_strict() && self.log.is_pending(key.as_bytes()) {
            return Begun::Later(Work::Delete(key));
        }
        let Some(id) = self.index.find(key.as_bytes()) else {
            self.answer_missing(tag);
            return Begun::Yes;
        };
        let sequence = self.remove(now, id);
        self.stats.deletes += 1;
        let memory = AnyBuffer::None;
        let answer = Answer { tag, item: 0, result: Ok(Outcome::Deleted), memory };
        if self.log.is_strict() {
            self.log.wait(sequence, Event::Answer(answer));
        } else {
            self.give(answer);
        }
        Begun::Yes
    }

    /// Answers that there is nothing to delete. The object may have been evicted a moment ago: where an answer is
    /// durable it must not come back.
    fn answer_missing(&mut self, tag: u64) {
        let (result, memory) = (Ok(Outcome::Miss), AnyBuffer::None);
        if self.log.is_strict() && self.last_removal >= self.log.durable_end() {
            let answer = Answer { tag, item: 0, result, memory };
            return self.log.wait(self.last_removal, Event::Answer(answer));
        }
        self.answer(tag, 0, result, memory);
    }
}
