//! Objects that go: on request, for room, by the clock.

use adit_driver::Time;
use adit_driver::device::CommandQueue;
use adit_driver::memory::AnyBuffer;

use super::log::{Answer, Event};
use super::put::Begun;
use super::request::Outcome;
use super::{Shard, Work};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Record, record_bytes};
use crate::model::key::Key;
use crate::model::object::ObjectId;

/// Objects that expire in one turn at most: a turn is bounded.
const EXPIRATIONS_PER_TURN: usize = 64;

/// What became of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// An object went: its room is on its way to be free.
    One,
    /// Nothing may go, but something that is under way ends by itself, and may leave room.
    Wait,
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
        sequence
    }

    /// Removes the object that is worth least.
    fn evict(&mut self, now: Time) -> Evicted {
        if !self.log.has_room_for_small() {
            self.want_journal();
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
        Evicted::One
    }

    /// With nothing to evict, whether there is something to wait for: never for a lease or a writer, which may not end.
    fn what_else(&self) -> Evicted {
        let is_leased = |place| self.leases.is_leased(place);
        let is_something_under_way = self.coming.puts > 0
            || self.discarding_units > 0
            || self.spaces.sinking_units() > 0
            || self.spaces.is_held_by_reads(is_leased);
        if is_something_under_way { Evicted::Wait } else { Evicted::Nothing }
    }

    /// Takes a checkpoint early if that is what makes room in the journal; else what is reserved is about to be used.
    pub(super) fn want_journal(&mut self) {
        self.wants_checkpoint |= self.log.is_short();
    }

    /// Has so many units on their way to be free. What only waits for a lease to end is not on its way.
    pub(super) fn evict_towards(&mut self, now: Time, units: u64) -> Evicted {
        while self.spaces.sinking_units() < units {
            match self.evict(now) {
                Evicted::One => {}
                Evicted::Nothing if self.spaces.sinking_units() > 0 => return Evicted::Wait,
                other => return other,
            }
        }
        Evicted::Wait
    }

    /// Bytes of an object's record in a checkpoint.
    pub(super) fn record_bytes_of(&self, id: ObjectId) -> u64 {
        record_bytes(self.index.key_bytes(id).len(), self.index.checksums(id).len()) as u64
    }

    /// Has entries for as many new objects as `fresh` says, and room in a checkpoint for so many bytes of records; false
    /// if they have to be waited for.
    pub(super) fn make_entries(
        &mut self,
        now: Time,
        fresh: &dyn Fn(&Index) -> usize,
        record_bytes: u64,
    ) -> Result<bool, Failure> {
        let (mut needs, mut is_counted) = (fresh(&self.index), true);
        loop {
            let objects = u64::from(self.index.len()) + self.coming.puts + needs as u64;
            let bytes = self.record_bytes + self.coming.record_bytes + record_bytes;
            if objects <= u64::from(self.objects_max) && bytes <= self.record_bytes_max {
                if is_counted {
                    return Ok(true);
                }
                // What went may be of a key that is put, whose object is a new one then.
                (needs, is_counted) = (fresh(&self.index), true);
                continue;
            }
            match self.evict(now) {
                Evicted::One => is_counted = false,
                Evicted::Wait | Evicted::NotYet => return Ok(false),
                Evicted::Nothing => return Err(Failure::Full),
            }
        }
    }

    /// Evicts down to the low watermark once the high one is passed.
    pub(super) fn keep_below_watermark(&mut self, now: Time) {
        let live = |shard: &Self| shard.spaces.used_units() - shard.spaces.buried_units();
        if live(self) <= self.live_units_max {
            return;
        }
        let low = self.options.watermarks.low_units(self.spaces.capacity_units());
        while live(self) > low && self.evict(now) == Evicted::One {}
    }

    /// Removes what has expired.
    pub(super) fn expire(&mut self, now: Time) {
        for _ in 0..EXPIRATIONS_PER_TURN {
            if self.expiry.is_empty() {
                break;
            }
            let Some(id) = self.expiry.due(self.wall_s(now)) else { break };
            if !self.log.has_room_for_small() {
                self.want_journal();
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
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Begun::Later(Work::Delete(key));
        }
        if self.log.is_strict()
            && (self.held.has(key.as_bytes()) || self.log.is_pending(key.as_bytes()))
        {
            return Begun::Later(Work::Delete(key));
        }
        let Some(id) = self.index.find(key.as_bytes()) else {
            // Whoever removed it may not know yet whether that survives a power cut.
            self.answer_removal(tag, Outcome::Miss, self.log.newest());
            return Begun::Yes;
        };
        let sequence = self.remove(now, id);
        self.stats.deletes += 1;
        self.answer_removal(tag, Outcome::Deleted, sequence);
        Begun::Yes
    }

    /// Answers a removal: where it matters, when block `sequence` of the journal is durable.
    fn answer_removal(&mut self, tag: u64, outcome: Outcome, sequence: u64) {
        let answer = Answer { tag, item: 0, result: Ok(outcome), memory: AnyBuffer::None };
        if self.log.is_strict() {
            self.log.wait(sequence, Event::Answer(answer));
        } else {
            self.give(answer);
        }
    }
}
