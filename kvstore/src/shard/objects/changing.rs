//! The steps in which objects come, change and go. All tables change in the step, and so do the records in the journal.
//! The memory tier has an entry for some of the objects, which is removed with its object.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::Objects;
use crate::catalog::index;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::media::record::{Put, Record, record_bytes};
use crate::model::key::Key;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId};
use crate::model::place::UNIT_BYTES;
use crate::shard::change::NewObject;
use crate::shard::lanes::Lanes;
use crate::shard::log::{Log, put_record};
use crate::shard::reads::reading::Reading;
use crate::shard::tier::{About, Filling, Known, Resident};

/// Limit of expirations per turn, which bounds a turn.
const EXPIRATIONS_PER_TURN: usize = 64;

impl Objects {
    /// Charges a tenant for a new object.
    pub(crate) fn charge(
        &mut self,
        (key, hash): (&Key, u64),
        (tenant, layout): (TenantId, LayoutId),
        units: u64,
    ) -> Result<(), Failure> {
        let (index, layouts) = (&self.index, self.spaces.layouts());
        let old = || {
            let id = index.find_hashed(hash, key.as_bytes())?;
            let old = index.object(id);
            (old.tenant == tenant).then(|| (id, layouts.units_of(&old)))
        };
        self.accounts.charge(tenant, units, old)?;
        self.spaces.layouts_mut().enter(layout);
        Ok(())
    }

    /// Takes an object that will not become visible off its tenant's account.
    pub(crate) fn uncharge(&mut self, (key, hash): (&Key, u64), object: &Object) {
        let (index, units) = (&self.index, self.spaces.layouts().units_of(object));
        let old = || index.find_hashed(hash, key.as_bytes());
        self.accounts.uncharge(object.tenant, units, old);
        self.spaces.layouts_mut().leave(object.layout);
    }

    /// Gives up an object that was never visible, and its room.
    pub(crate) fn give_up(&mut self, new: &NewObject) {
        self.uncharge((&new.key, new.hash), &new.object);
        self.spaces.give_back(&new.object);
    }

    /// Makes an object visible that block `sequence` of the journal records, replacing one with the same key.
    pub(crate) fn insert<Q: CommandQueue<Load>>(
        &mut self,
        lanes: &Lanes<Q>,
        sequence: u64,
        new: &NewObject,
    ) {
        let (key, hash) = (new.key.as_bytes(), new.hash);
        let id = match self.index.find_hashed(hash, key) {
            Some(id) => {
                self.record_bytes -= self.record_bytes_of(id);
                let old = self.index.replace(id, new.object, &new.checksums);
                self.tier.forget(id);
                self.end(sequence, id, old);
                self.regions.insert(id, new.object.place);
                if !lanes.works(new.object.place.device) {
                    // Readers were told of the failure before this was one of the device's objects.
                    self.removals.enter(key);
                }
                self.order.touched(id);
                id
            }
            None => {
                let checksums = &new.checksums;
                let object = index::NewObject { key, object: new.object, checksums };
                let inserted = self.index.insert_hashed(hash, object);
                let id = inserted.expect("there was an entry for each put under way");
                self.regions.insert(id, new.object.place);
                self.order.inserted(id, hash);
                id
            }
        };
        self.record_bytes += self.record_bytes_of(id);
        self.expires(id, new.expires_s);
        self.stats.bytes_written += new.object.bytes;
        self.accounts.note_stored(id, new.object.tenant);
    }

    /// Buries what an id had, which block `sequence` of the journal ends.
    fn end(&mut self, sequence: u64, id: ObjectId, old: Object) {
        let units = self.spaces.layouts().units_of(&old);
        self.accounts.forget(id, &old, units);
        self.spaces.layouts_mut().leave(old.layout);
        self.spaces.bury(sequence, old);
        self.regions.remove(id, old.place);
    }

    fn expires(&mut self, id: ObjectId, at_s: Option<u64>) {
        match at_s {
            Some(at_s) => self.expiry.set(id, at_s),
            None => self.expiry.clear(id),
        }
    }

    fn record_bytes_of(&self, id: ObjectId) -> u64 {
        record_bytes(self.index.key_bytes(id).len(), self.index.checksums(id).len()) as u64
    }

    /// Removes an object and returns the sequence of its record. The journal must have room for the record.
    pub(crate) fn remove(&mut self, log: &mut Log, now: Time, id: ObjectId) -> u64 {
        self.order.removed(id);
        self.take_out(log, now, id)
    }

    /// Like [`Objects::remove`], on request.
    pub(crate) fn delete(&mut self, log: &mut Log, now: Time, id: ObjectId) -> u64 {
        self.stats.deletes += 1;
        self.remove(log, now, id)
    }

    /// Like [`Objects::remove`], for room. Returns the units of the object.
    pub(crate) fn evict(&mut self, log: &mut Log, now: Time, id: ObjectId) -> u64 {
        let object = self.index.object(id);
        let hash = self.index.hash(self.index.key_bytes(id));
        self.order.evicted(id, hash);
        self.take_out(log, now, id);
        self.accounts.counters(object.tenant).evictions += 1;
        self.units_of(&object)
    }

    /// Removes an object that the order has already dropped.
    fn take_out(&mut self, log: &mut Log, now: Time, id: ObjectId) -> u64 {
        let object = self.index.object(id);
        let key = self.index.key_bytes(id);
        let sequence = log.append(now, &Record::Delete { key, place: object.place });
        self.record_bytes -= self.record_bytes_of(id);
        self.removals.enter(key);
        self.index.remove(id);
        self.tier.forget(id);
        self.expiry.clear(id);
        self.end(sequence, id, object);
        sequence
    }

    /// Removes expired objects, and ends leases.
    pub(crate) fn expire(&mut self, log: &mut Log, now: Time) {
        for _ in 0..EXPIRATIONS_PER_TURN {
            if self.expiry.is_empty() {
                break;
            }
            let Some(id) = self.expiry.due(self.wall_s(now)) else { break };
            if !log.asks_small() {
                break;
            }
            self.remove(log, now, id);
            self.stats.expirations += 1;
        }
        while self.spaces.expire_lease(now) {
            self.accounts.note_unleased();
        }
    }

    /// Sets when an object expires, in so many seconds or never. Returns the sequence of its record.
    pub(crate) fn touch(
        &mut self,
        log: &mut Log,
        now: Time,
        id: ObjectId,
        ttl_s: Option<u64>,
    ) -> u64 {
        let expires_s = ttl_s.map(|ttl_s| self.wall_s(now).saturating_add(ttl_s));
        let object = self.index.object(id);
        let is_provisional = !log.is_strict();
        if is_provisional {
            log.note_replaced(object.bytes);
        }
        let sequence = self.with_put(id, expires_s, |put| {
            log.append(now, &Record::Put(Put { is_provisional, ..put }))
        });
        self.expires(id, expires_s);
        self.tier.expires(id, expires_s);
        self.note_used(id, object.tenant);
        sequence
    }

    /// Calls `with` with the record of an object as a checkpoint has it: with its age.
    pub(crate) fn with_record<T>(&self, id: ObjectId, with: impl FnOnce(&Record<'_>) -> T) -> T {
        let age = Some(self.order.age(id));
        self.with_put(id, self.expiry.get(id), |put| with(&Record::Put(Put { age, ..put })))
    }

    fn with_put<T>(
        &self,
        id: ObjectId,
        expires_s: Option<u64>,
        with: impl FnOnce(Put<'_>) -> T,
    ) -> T {
        let object = self.index.object(id);
        let slab_base = self.spaces.slab_base(&object);
        let (key, checksums) = (self.index.key_bytes(id), self.index.checksums(id));
        with(put_record(key, object, slab_base, expires_s, (&*checksums).into()))
    }

    /// Handles a device that failed: its objects are misses from now on.
    pub(crate) fn forget_device(&mut self, device: u8) {
        self.removals.lose_track();
        self.tier.forget_device(device);
    }

    /// Returns the bytes of an object, padding included, if they are in memory.
    pub(crate) fn resident(&mut self, id: ObjectId, object: &Object) -> Option<Resident> {
        let bytes = self.units_of(object) * UNIT_BYTES;
        self.tier.hit(Known { id, place: object.place, bytes })
    }

    /// Offers the tier an object that was read, if all of it was read and it is still there. Returns what to fill with
    /// a copy of its bytes, once they are verified.
    #[inline(never)]
    pub(crate) fn offer_to_tier(&mut self, reading: &Reading) -> Option<Filling> {
        if !self.tier.is_on() || !self.is_current(reading) {
            return None;
        }
        let id = reading.id;
        let object = self.index.object(id);
        let bytes = self.units_of(&object) * UNIT_BYTES;
        if reading.extract.padded_bytes != bytes {
            return None;
        }
        let hash = self.index.hash(self.index.key_bytes(id));
        let found = self.layouts().found(&object);
        let Objects { tier, index, expiry, .. } = self;
        let about = || About::new(id, index.key(id), &object, found, expiry.get(id));
        tier.offer(Known { id, place: object.place, bytes }, hash, about)
    }

    /// Returns whether the object of a read is the one that the index has.
    pub(crate) fn is_current(&self, reading: &Reading) -> bool {
        let is_it =
            |object: Object| (object.place, object.version) == (reading.place, reading.version);
        self.index.contains(reading.id) && is_it(self.index.object(reading.id))
    }
}
