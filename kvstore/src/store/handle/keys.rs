//! Calls about keys: conditions, many keys at once, expiries, scans by prefix, and removals.

use std::ops::Range;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::Store;
use crate::model::key::Key;
use crate::model::object::Version;
use crate::shard::{Action, Failure, GetItem, Part, Removed, TouchItem};
use crate::store::answer::{Batch, ObjectInfo, Pending, Read, Reply, ScanCursor, Value, ready};
use crate::store::core::{Made, ShardItems};
use crate::store::memory::Unfinished;
use crate::store::request::{BouncedRead, Caller, ReadCaller, ThreadShard, whole_seconds};

impl Store {
    /// Like [`Store::get_range`], if the object has this version. With another version it fails with
    /// [`Failure::Conflict`], so ranges that are read one after another are never of
    /// different versions.
    pub fn get_range_if(
        &self,
        key: Key,
        range: Range<u64>,
        version: Version,
    ) -> Pending<Option<Value>> {
        self.core.send(self.core.fetch(key, Some(range), Some(version)))
    }

    /// Like [`Store::get_into`], if the object has this version, as [`Store::get_range_if`].
    pub fn get_into_if(
        &self,
        key: Key,
        part: Part,
        into: impl Into<AnyBuffer>,
        version: Version,
    ) -> Pending<Read> {
        self.core.send(self.get_request(key, part, into.into(), Some(version)))
    }

    /// Like [`Store::get_into`] and, with a version, [`Store::get_into_if`], for memory that others may write
    /// meanwhile: the object is read into the store's own memory, verified there on its thread, and copied. So it is
    /// dropped only if its device returned other bytes than were put. One that has no room in the pool is read and
    /// verified in `into`.
    pub fn get_checked_into(
        &self,
        key: Key,
        part: Part,
        into: impl Into<AnyBuffer>,
        version: Option<Version>,
    ) -> Pending<Read> {
        let hash = self.core.hash(&key);
        let (reply, pending) = self.core.pair();
        let bounced = BouncedRead::new(reply, &self.core.reach, into.into()).checked();
        let action = Action::Get(GetItem { key, part, into: AnyBuffer::None, version });
        let caller = Caller::Read(ReadCaller::Bounced(Box::new(bounced)));
        self.core.send(self.core.made((hash, action), (caller, pending)))
    }

    /// Removes an object if it has this version; returns true then. Without an object or with another version it fails
    /// with [`Failure::Conflict`].
    pub fn delete_if(&self, key: Key, version: Version) -> Pending<bool> {
        self.core.send(self.change_request(Action::DeleteIf(key, version)))
    }

    /// Removes several objects, with one message for each shard. Each answer says whether there was an object.
    pub fn delete_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        self.change_many(keys.into_iter().map(Action::Delete))
    }

    /// Lets an object expire after `ttl` from now, rounded up to whole seconds, whatever it had before. Writes a
    /// record and no data, is as durable as a put, and counts as a use. The version stays. Returns false if there is
    /// no object.
    pub fn touch(&self, key: Key, ttl: Duration) -> Pending<bool> {
        let ttl_s = Some(whole_seconds(ttl));
        self.core.send(self.change_request(Action::Touch(TouchItem { key, ttl_s })))
    }

    /// Like [`Store::touch`] for several objects, with one message for each shard.
    pub fn touch_many(&self, keys: impl IntoIterator<Item = Key>, ttl: Duration) -> Batch<bool> {
        let ttl_s = Some(whole_seconds(ttl));
        self.change_many(keys.into_iter().map(|key| Action::Touch(TouchItem { key, ttl_s })))
    }

    /// Lets an object never expire, as [`Store::touch`] sets an expiry. Returns false if there is no object.
    pub fn persist(&self, key: Key) -> Pending<bool> {
        let item = TouchItem { key, ttl_s: None };
        self.core.send(self.change_request(Action::Touch(item)))
    }

    /// Asks whether each object exists, with one message for each shard.
    pub fn exists_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        self.find_many(keys, |shard, now, keys| shard.exists_many(now, keys))
    }

    /// Like [`Store::exists_many`], and counts as a use of each object, so that others are evicted first. Reads and
    /// writes nothing, and no expiry changes.
    pub fn refresh_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        self.find_many(keys, |shard, now, keys| shard.refresh_many(now, keys))
    }

    /// Asks each shard about the keys that it owns.
    fn find_many(
        &self,
        keys: impl IntoIterator<Item = Key>,
        find: fn(&mut ThreadShard, Time, &[Key]) -> Vec<bool>,
    ) -> Batch<bool> {
        let keys: Vec<Key> = keys.into_iter().collect();
        let (replies, pendings): (Vec<_>, Vec<_>) = keys.iter().map(|_| self.core.pair()).unzip();
        let mut replies: Vec<Option<Reply<bool>>> = replies.into_iter().map(Some).collect();
        for (shard, ShardItems { positions, items }) in self.core.deal(&keys) {
            let of = |position: u32| replies[position as usize].take().expect("each is dealt once");
            let replies: Vec<Reply<bool>> = positions.into_iter().map(of).collect();
            let ask = Box::new(move |there: Result<(&mut ThreadShard, Time), Failure>| {
                let found = there.map(|(shard, now)| find(shard, now, &items));
                for (at, reply) in replies.into_iter().enumerate() {
                    let answer = found.as_ref().map(|found| found[at]);
                    reply.send(answer.map_err(|failure| Unfinished::new(failure.clone())));
                }
            });
            self.core.ask_for(shard, ask);
        }
        Batch::new(pendings)
    }

    /// Like [`Store::scan`], of the objects whose keys begin with `prefix`. The index is by hash: a scan looks at all
    /// objects whatever the prefix, at most 16384 in one call, so a page may be empty while there are more.
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        from: u64,
        limit: usize,
    ) -> Pending<(Vec<ObjectInfo>, Option<u64>)> {
        let Some(cursor) = ScanCursor::of(from, self.core.shards) else {
            return ready(Ok((Vec::new(), None)));
        };
        let prefix: Box<[u8]> = prefix.into();
        self.core.ask(cursor.shard, move |shard, now| Ok(cursor.scan(shard, now, &prefix, limit)))
    }

    /// Returns the objects that went after position `from`: at most `limit` of those whose keys begin with `prefix`.
    /// These are all that were evicted, expired, deleted or lost to damage; an object that was replaced is still
    /// there. Begin without a position, which returns none, and go on at [`Removed::next`].
    ///
    /// Each removal comes once, after it happened. The store keeps the latest, some 4 MiB of keys, while there is a
    /// reader. One that falls behind that, comes with a position from before the store was opened, or had objects on
    /// a device that failed, learns that there were more ([`Removed::missed_some`]) and asks which of the objects
    /// that it knows of are there ([`Store::exists_many`]). A call looks at 4096 removals at most, so there may be
    /// more though it names none: that is so unless `next` is `from`.
    pub fn removals(&self, prefix: &[u8], from: Option<u64>, limit: usize) -> Pending<Removed> {
        ready(Ok(self.core.removals.read(prefix, from, limit)))
    }

    /// Makes the request of a change that has no memory, of the key in `action`.
    pub(super) fn change_request(&self, action: Action) -> Made<bool> {
        let hash = action.key().map_or(0, |key| self.core.hash(key));
        let (reply, pending) = self.core.pair();
        let caller = match action {
            Action::Touch(_) => Caller::Touch(reply),
            _ => Caller::Delete(reply),
        };
        self.core.made((hash, action), (caller, pending))
    }

    fn change_many(&self, actions: impl Iterator<Item = Action>) -> Batch<bool> {
        self.core.send_all(actions.map(|action| self.change_request(action)))
    }
}
