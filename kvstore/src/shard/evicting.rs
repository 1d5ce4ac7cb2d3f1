//! Removing objects: on request, for room, on expiry.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::key_order::Ready;
use super::log::SMALL_RECORD_BYTES;
use super::request::{Condition, Done, Outcome};
use super::stalled::{Begun, Change};
use super::stats::Evictions;
use crate::catalog::index::Index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Record, record_bytes};
use crate::model::key::Key;
use crate::model::object::ObjectId;
use crate::model::place::UNIT_BYTES;

/// Limit of expirations per turn, which bounds a turn.
const EXPIRATIONS_PER_TURN: usize = 64;
/// Limit of evictions per turn, for the same reason.
pub(super) const EVICTIONS_PER_TURN: u32 = 512;
/// Evictions for another reason than space are logged this often at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The result of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// An object was removed; its room will become free.
    One,
    /// Nothing may be evicted, but work in progress will end and may leave room.
    Wait,
    /// The journal is full, and a checkpoint must come first; or the turn has evicted or searched enough.
    NotYet,
    /// Nothing may be evicted, and nothing is about to become free.
    Nothing,
}

/// Why an object is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictReason {
    /// There is too little space, or less than the watermarks leave free.
    Space,
    /// There are as many objects as the store was formatted for, or as many records as fit in a checkpoint.
    Records,
    /// There is enough free space, but not in one run.
    Fragmentation,
}

/// Evictions for one reason that were not logged yet.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    objects: u64,
    /// When they may be logged.
    from: Time,
}

impl Unlogged {
    /// Counts an eviction and tells of them once a minute. `warns` of the first if the store was formatted for too little.
    fn note(&mut self, now: Time, warns: bool, why: impl FnOnce() -> String) {
        self.objects += 1;
        if now < self.from {
            return;
        }
        let (objects, why) = (self.objects, why());
        if warns && self.from == Time::ZERO {
            tracing::warn!("an object was evicted although there was space: {why}");
        } else {
            tracing::info!("{objects} objects were evicted although there was space: {why}");
        }
        *self = Unlogged { objects: 0, from: now + LOG_INTERVAL };
    }
}

/// An object to be removed.
#[derive(Debug)]
pub(super) struct Deleting<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
    pub(super) condition: Condition,
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
        self.options.removals.enter(key);
        self.index.remove(id);
        self.tier.forget(id);
        self.regions.remove(id, object.place);
        self.expiry.clear(id);
        self.forget_tenants(id, &object);
        self.spaces.bury(sequence, object, self.leases.is_leased(object.place));
        sequence
    }

    /// Removes the policy's next victim.
    fn evict(&mut self, now: Time, why: EvictReason) -> Evicted {
        let (index, leases) = (&self.index, &self.leases);
        let victim = self.policy.victim(&mut |id| leases.is_leased(index.object(id).place));
        let Some(victim) = victim else { return self.what_else() };
        // The policy may be a custom one.
        assert!(index.contains(victim), "a policy names an object that is there");
        assert!(
            !leases.is_leased(index.object(victim).place),
            "a policy names none that is leased"
        );
        self.evict_object(now, victim, why)
    }

    /// Evicts an object that is not leased, unless the turn or the journal does not allow it.
    pub(super) fn evict_object(&mut self, now: Time, id: ObjectId, why: EvictReason) -> Evicted {
        if self.evictions_left == 0 {
            return Evicted::NotYet;
        }
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Evicted::NotYet;
        }
        self.evictions_left -= 1;
        let object = self.index.object(id);
        let units = self.spaces.units_of(&object);
        let hash = self.index.hash(self.index.key_bytes(id));
        self.policy.evicted(id, hash);
        self.take_out(now, id);
        self.tenants.counters(object.tenant).evictions += 1;
        let Evictions { space, records, fragmentation, .. } = &mut self.stats.evictions;
        let counted = match why {
            EvictReason::Space => space,
            EvictReason::Records => {
                let objects_max = self.capacity.objects_max;
                // Not by a limit that the caller asked for.
                let is_by_format = self.options.capacity_objects.is_none();
                self.unlogged[0].note(now, is_by_format, || {
                    format!(
                        "this shard is formatted for {objects_max} objects, fewer if keys or objects are long, and \
                         has as many. Format the store with a larger objects_max (adit kv format --objects N)"
                    )
                });
                records
            }
            EvictReason::Fragmentation => {
                self.unlogged[1].note(now, false, || {
                    "it was not in one run. Objects of similar lengths, or lower watermarks, avoid that"
                        .to_owned()
                });
                fragmentation
            }
        };
        counted.objects += 1;
        counted.bytes += units * UNIT_BYTES;
        Evicted::One
    }

    /// Decides, with nothing to evict, whether to wait. Never waits for a lease or a writer, which may not end.
    pub(super) fn what_else(&self) -> Evicted {
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

    /// Evicts until `units` more fit within the capacity when all that sinks is free.
    pub(super) fn evict_towards(&mut self, now: Time, units: u64) -> Evicted {
        while self.spaces.staying_units() + units > self.spaces.capacity_units() {
            match self.evict(now, EvictReason::Space) {
                Evicted::One => {}
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
            match self.evict(now, EvictReason::Records) {
                Evicted::One => is_counted = false,
                Evicted::Wait | Evicted::NotYet => return Ok(false),
                Evicted::Nothing => return Err(Failure::Full),
            }
        }
    }

    /// Evicts down to the low watermark once the high one is exceeded.
    pub(super) fn keep_below_watermark(&mut self, now: Time) {
        let live = |shard: &Self| shard.spaces.used_units() - shard.spaces.buried_units();
        self.capacity.is_draining |= live(self) > self.capacity.live_units_max;
        if !self.capacity.is_draining {
            return;
        }
        let low = self.options.watermarks.low_units(self.spaces.capacity_units());
        self.capacity.is_draining = loop {
            if live(self) <= low {
                break false;
            }
            match self.evict(now, EvictReason::Space) {
                Evicted::One => {}
                // The next turn goes on.
                Evicted::NotYet => break true,
                Evicted::Wait | Evicted::Nothing => break false,
            }
        };
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
            self.note_unleased();
        }
    }

    /// Removes an object on request, behind the puts of its key that began before. If such a put is not visible
    /// because it is not durable yet, waits for that.
    pub(super) fn begin_delete(&mut self, now: Time, deleting: Deleting<R>) -> Begun<R> {
        if let Err(failure) = self.check_home() {
            self.answer(deleting.reply, Err(failure), AnyBuffer::None);
            return Begun::Yes;
        }
        if !self.log.has_room_for_small() {
            self.want_journal();
            return Begun::Later(Change::Delete(deleting));
        }
        let hash = deleting.hash;
        if self.has_unfinished(hash) {
            return Begun::Later(Change::Delete(deleting));
        }
        self.log.reserve(SMALL_RECORD_BYTES);
        let turn = self.order.take_turn(hash);
        self.take_effect(now, hash, turn, Ready::Delete(deleting));
        Begun::Yes
    }

    /// Removes an object in its turn, using the room reserved for the record.
    pub(super) fn delete_in_turn(&mut self, now: Time, deleting: Deleting<R>) {
        let Deleting { reply, hash, key, condition } = deleting;
        self.log.unreserve(SMALL_RECORD_BYTES);
        if let Err(failure) = self.check_home() {
            return self.answer(reply, Err(failure), AnyBuffer::None);
        }
        if let Err(conflict) = self.check_condition(now, (&key, hash), condition) {
            return self.answer(reply, Err(conflict), AnyBuffer::None);
        }
        let Some(id) = self.index.find_hashed(hash, key.as_bytes()) else {
            // Its removal may not be durable yet: answer only when it is.
            return self.answer_change(now, reply, Outcome::Miss, self.log.newest());
        };
        let sequence = self.remove(now, id);
        self.stats.deletes += 1;
        self.answer_change(now, reply, Outcome::Deleted, sequence);
    }

    /// Answers a change without memory that block `sequence` of the journal records.
    pub(super) fn answer_change(&mut self, now: Time, reply: R, outcome: Outcome, sequence: u64) {
        let answer = Done {
            reply,
            result: Ok(outcome),
            memory: AnyBuffer::None,
            version: None,
            unverified: None,
        };
        self.acknowledge(now, sequence, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_despite_space_are_logged_at_once_and_then_counted_for_a_minute() {
        let mut unlogged = Unlogged::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let after = |unlogged: &mut Unlogged, seconds| {
            unlogged.note(at(seconds), false, || "a test".to_owned());
            (unlogged.objects, unlogged.from)
        };
        assert_eq!(after(&mut unlogged, 5), (0, at(65)));
        assert_eq!(after(&mut unlogged, 5), (1, at(65)));
        assert_eq!(after(&mut unlogged, 64), (2, at(65)));
        assert_eq!(after(&mut unlogged, 65), (0, at(125)));
    }
}
