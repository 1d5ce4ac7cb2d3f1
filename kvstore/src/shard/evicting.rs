//! Removing objects: on request, for room, on expiry.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::log::Event;
use super::request::{Done, Outcome};
use super::stalled::{Begun, Change};
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Record, record_bytes};
use crate::model::key::Key;
use crate::model::object::ObjectId;

/// Limit of expirations per turn, which bounds a turn.
const EXPIRATIONS_PER_TURN: usize = 64;

/// The result of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// An object was removed; its room will become free.
    One,
    /// Nothing may be evicted, but work in progress will end and may leave room.
    Wait,
    /// The journal is full: a checkpoint must come first.
    NotYet,
    /// Nothing may be evicted, and nothing is about to become free.
    Nothing,
}

/// An object to be removed.
#[derive(Debug)]
pub(super) struct Deleting<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Removes an object and returns the sequence of its record. The journal must have room for the record.
    pub(super) fn remove(&mut self, now: Time, id: ObjectId) -> u64 {
        self.policy.removed(id);
        self.take_out(now, id)
    }

    /// Like [`Shard::remove`], for an object that the policy has already dropped.
    fn take_out(&mut self, now: Time, id: ObjectId) -> u64 {
        let object = self.index.object(id);
        let key = self.index.key_bytes(id);
        let sequence = self.log.append(now, &Record::Delete { key, place: object.place });
        self.capacity.record_bytes -= self.record_bytes_of(id);
        self.index.remove(id);
        self.expiry.clear(id);
        self.tenants.credit(object.tenant, self.spaces.units_of(&object));
        self.spaces.bury(sequence, object);
        sequence
    }

    /// Removes the policy's next victim.
    fn evict(&mut self, now: Time) -> Evicted {
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Evicted::NotYet;
        }
        let (index, leases) = (&self.index, &self.leases);
        let victim = self.policy.victim(&mut |id| leases.is_leased(index.object(id).place));
        let Some(victim) = victim else { return self.what_else() };
        // The policy may be a custom one.
        assert!(index.contains(victim), "a policy names an object that is there");
        let place = index.object(victim).place;
        assert!(!leases.is_leased(place), "a policy names no object that is leased");
        let hash = self.index.hash(self.index.key_bytes(victim));
        self.policy.evicted(victim, hash);
        self.take_out(now, victim);
        self.stats.evictions += 1;
        Evicted::One
    }

    /// Decides, with nothing to evict, whether to wait. Never waits for a lease or a writer, which may not end.
    fn what_else(&self) -> Evicted {
        let is_leased = |place| self.leases.is_leased(place);
        let is_something_under_way = self.capacity.coming > 0
            || self.spaces.discarding_units() > 0
            || self.spaces.sinking_units() > 0
            || self.spaces.is_held_by_reads(is_leased);
        if is_something_under_way { Evicted::Wait } else { Evicted::Nothing }
    }

    /// Requests an early checkpoint if that makes room in the journal. Otherwise the reserved room is about to be
    /// used.
    pub(super) fn want_journal(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.is_wanted |= self.log.is_short();
        }
    }

    /// Evicts until `units` are on their way to be free. Units that only wait for a lease do not count.
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

    pub(super) fn record_bytes_of(&self, id: ObjectId) -> u64 {
        record_bytes(self.index.key_bytes(id).len(), self.index.checksums(id).len()) as u64
    }

    /// Makes room for `fresh` new index entries, and for `record_bytes` in a checkpoint. Returns false if the caller
    /// has to wait.
    pub(super) fn make_entries(
        &mut self,
        now: Time,
        fresh: &dyn Fn(&Index) -> usize,
        record_bytes: u64,
    ) -> Result<bool, Failure> {
        let (mut needs, mut is_counted) = (fresh(&self.index), true);
        loop {
            if self.capacity.fits(self.index.len(), needs, record_bytes) {
                if is_counted {
                    return Ok(true);
                }
                // The victim may have had the key of a put, which then needs a new entry.
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

    /// Evicts down to the low watermark once the high one is exceeded.
    pub(super) fn keep_below_watermark(&mut self, now: Time) {
        let live = |shard: &Self| shard.spaces.used_units() - shard.spaces.buried_units();
        if live(self) <= self.capacity.live_units_max {
            return;
        }
        let low = self.options.watermarks.low_units(self.spaces.capacity_units());
        while live(self) > low && self.evict(now) == Evicted::One {}
    }

    /// Removes expired objects.
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

    /// Removes an object on request. If its put is recorded but not durable yet, waits until it is visible.
    pub(super) fn begin_delete(&mut self, now: Time, deleting: Deleting<R>) -> Begun<R> {
        if let Err(failure) = self.check_home() {
            self.answer(deleting.reply, Err(failure), AnyBuffer::None);
            return Begun::Yes;
        }
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Begun::Later(Change::Delete(deleting));
        }
        let key = deleting.key.as_bytes();
        if self.log.is_strict() && (self.held.has(key) || self.log.is_pending(key)) {
            return Begun::Later(Change::Delete(deleting));
        }
        let Some(id) = self.index.find_hashed(deleting.hash, key) else {
            // Its removal may not be durable yet: answer only when it is.
            self.answer_removal(deleting.reply, Outcome::Miss, self.log.newest());
            return Begun::Yes;
        };
        let sequence = self.remove(now, id);
        self.stats.deletes += 1;
        self.answer_removal(deleting.reply, Outcome::Deleted, sequence);
        Begun::Yes
    }

    /// Answers a removal; with `durable`, when block `sequence` of the journal is durable.
    fn answer_removal(&mut self, reply: R, outcome: Outcome, sequence: u64) {
        let answer = Done { reply, result: Ok(outcome), memory: AnyBuffer::None };
        if self.log.is_strict() {
            self.log.wait(sequence, Event::Answer(answer));
        } else {
            self.answers.push_back(answer);
        }
    }
}
