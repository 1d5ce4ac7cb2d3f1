//! Changes that depend on what is there: conditional puts and removals, and other expiries of objects.
//!
//! A condition is checked in the change's turn among those of its key ([`super::key_order`]), where nothing comes between
//! the check and the change. A put that is certain to fail already is refused before its data are written.
//!
//! In a `durable` store a put is hidden between its turn and the end of its flush, and a change that looks at the key must
//! not pass it by: it waits until no change of the key is under way, as a removal does. Elsewhere a put is visible in its
//! turn, and nothing waits.
//!
//! Another expiry is a put in the journal of the same place and checksums. Its data may not be flushed yet, so outside
//! `durable` it is provisional: if a power cut takes the data, the object that they replaced counts.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::key_order::Ready;
use super::log::put_record;
use super::request::{Condition, Outcome};
use super::stalled::{Begun, Change};
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Put, RECORD_BYTES_MAX, Record};
use crate::model::key::Key;
use crate::model::object::{ObjectId, Version};

/// The room of any object's record: which object it will be is known in the turn only.
const RESERVED_BYTES: u64 = RECORD_BYTES_MAX as u64;

/// An object that is to expire at another time.
#[derive(Debug)]
pub(super) struct Touching<R> {
    pub(super) reply: R,
    pub(super) hash: u64,
    pub(super) key: Key,
    /// From its turn on; `None` for never.
    pub(super) ttl_s: Option<u64>,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns the version of the next object, above all before it.
    pub(super) fn next_version(&mut self, now: Time) -> Version {
        self.newest = Version::after(self.newest, self.wall(now));
        self.newest
    }

    /// Checks a condition against the object of a key that a get would find.
    pub(super) fn check_condition(
        &self,
        now: Time,
        (key, hash): (&Key, u64),
        condition: Condition,
    ) -> Result<(), Failure> {
        if condition == Condition::Always {
            return Ok(());
        }
        let found = self.lookup(now, hash, key);
        condition.check(found.map(|id| self.index.object(id).version))
    }

    /// Like [`Shard::check_condition`], on arrival: accepts what an earlier change may still make true.
    pub(super) fn refuse_early(
        &self,
        now: Time,
        (key, hash): (&Key, u64),
        condition: Condition,
    ) -> Result<(), Failure> {
        if !self.stalled.is_empty() || self.order.is_busy(hash) || self.order.is_hidden(hash) {
            return Ok(());
        }
        self.check_condition(now, (key, hash), condition)
    }

    /// Returns whether a change of this key is under way, and its effect not visible in its turn.
    pub(super) fn has_unfinished(&self, hash: u64) -> bool {
        self.log.is_strict() && (self.order.is_busy(hash) || self.order.is_hidden(hash))
    }

    /// Returns whether a change with this condition cannot take its turn yet.
    pub(super) fn waits_for_key(&self, hash: u64, condition: Condition) -> bool {
        condition != Condition::Always && self.has_unfinished(hash)
    }

    /// Takes the turn of another expiry, behind the changes of its key that began before.
    pub(super) fn begin_touch(&mut self, now: Time, touching: Touching<R>) -> Begun<R> {
        if let Err(failure) = self.check_home() {
            self.answer(touching.reply, Err(failure), AnyBuffer::None);
            return Begun::Yes;
        }
        if !self.log.has_room(RESERVED_BYTES) {
            self.want_journal();
            return Begun::Later(Change::Touch(touching));
        }
        let hash = touching.hash;
        if self.has_unfinished(hash) {
            return Begun::Later(Change::Touch(touching));
        }
        self.log.reserve(RESERVED_BYTES);
        let turn = self.order.take_turn(hash);
        self.take_effect(now, hash, turn, Ready::Touch(touching));
        Begun::Yes
    }

    /// Sets an object's expiry in its turn, using the room reserved for the record.
    pub(super) fn touch_in_turn(&mut self, now: Time, touching: Touching<R>) {
        let Touching { reply, hash, key, ttl_s } = touching;
        self.log.unreserve(RESERVED_BYTES);
        if let Err(failure) = self.check_home() {
            return self.answer(reply, Err(failure), AnyBuffer::None);
        }
        let Some(id) = self.lookup(now, hash, &key) else {
            // Its removal may not be durable yet: answer only when it is.
            return self.answer_change(now, reply, Outcome::Miss, self.log.newest());
        };
        let expires_s = ttl_s.map(|ttl_s| self.wall_s(now).saturating_add(ttl_s));
        let sequence = self.record_expiry(now, id, expires_s);
        match expires_s {
            Some(at_s) => self.expiry.set(id, at_s),
            None => self.expiry.clear(id),
        }
        self.tier.expires(id, expires_s);
        self.policy.touched(id);
        self.own.used(id, self.index.object(id).tenant);
        self.answer_change(now, reply, Outcome::Touched, sequence);
    }

    /// Appends the record of an object with another expiry, and returns its sequence.
    fn record_expiry(&mut self, now: Time, id: ObjectId, expires_s: Option<u64>) -> u64 {
        let object = self.index.object(id);
        let is_provisional = !self.log.is_strict();
        if is_provisional {
            self.log.note_replaced(object.bytes);
        }
        let checksums = self.index.checksums(id);
        let (key, slab_base) = (self.index.key_bytes(id), self.spaces.slab_base(&object));
        let put = put_record(key, object, slab_base, expires_s, (&*checksums).into());
        self.log.append(now, &Record::Put(Put { is_provisional, ..put }))
    }
}
