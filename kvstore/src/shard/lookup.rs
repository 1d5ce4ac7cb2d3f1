//! Calls that a shard answers at once, without a device.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::parts::Parts;
use super::reads::plan::{self, Planned};
use super::request::Part;
#[cfg(feature = "internals")]
use super::tier::Resident;
use crate::catalog::lease::LeaseId;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::key::Key;
use crate::model::object::{LayoutId, Object, ObjectId, TenantId, Version};

/// How many ids one call of a scan looks at, because nothing else happens meanwhile.
const SCANNED_IDS: u32 = 16 << 10;

/// Information about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its layout.
    pub layout: LayoutId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its version, which says when it was stored.
    pub version: Version,
    /// Seconds until it expires, if it does.
    pub ttl_s: Option<u64>,
    /// The index of its device among the targets.
    pub device: u8,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Returns the object of a key with this hash, if it has not expired and its device works.
    pub(crate) fn lookup(&self, now: Time, hash: u64, key: &Key) -> Option<ObjectId> {
        self.parts.lookup(now, hash, key)
    }

    /// Returns whether the object exists.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        self.lookup(now, self.parts.objects.index().hasher().hash(key.as_bytes()), key).is_some()
    }

    /// Returns what the shard knows about an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<Info> {
        let id = self.lookup(now, self.parts.objects.index().hasher().hash(key.as_bytes()), key)?;
        Some(self.info_of(now, id))
    }

    /// Returns what the shard knows about the object with this id.
    pub(crate) fn info_of(&self, now: Time, id: ObjectId) -> Info {
        let objects = &self.parts.objects;
        let object = objects.index().object(id);
        let left = |at_s: u64| at_s.saturating_sub(objects.wall_s(now));
        Info {
            key: objects.index().key(id),
            bytes: object.bytes,
            layout: object.layout,
            tenant: object.tenant,
            version: object.version,
            ttl_s: objects.expiry_of(id).map(left),
            device: object.place.device,
        }
    }

    /// Returns how many of `keys` exist before the first miss. The policy learns that they are a sequence.
    pub fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize {
        let (objects, lanes) = (&mut self.parts.objects, &self.parts.lanes);
        self.reads.lookup_prefix(objects, lanes, now, keys)
    }

    /// Returns whether each object exists.
    pub fn exists_many(&self, now: Time, keys: &[Key]) -> Vec<bool> {
        find_live(&self.parts, now, keys).iter().map(Option::is_some).collect()
    }

    /// Counts as a use of each object, as a read of it does, and returns whether it exists.
    pub fn refresh_many(&mut self, now: Time, keys: &[Key]) -> Vec<bool> {
        let live = find_live(&self.parts, now, keys);
        let objects = &mut self.parts.objects;
        for id in live.iter().flatten() {
            objects.note_used(*id, objects.index().object(*id).tenant);
        }
        live.iter().map(Option::is_some).collect()
    }

    /// Returns at most `limit` objects whose keys begin with `prefix` from cursor `from`, and the next cursor while
    /// there may be more. Looks at a bounded number of objects, so the list may be short, or empty, before the end.
    /// Start at 0. Objects that are added or removed during the scan may or may not appear.
    pub fn scan(
        &self,
        now: Time,
        prefix: &[u8],
        from: u32,
        limit: usize,
    ) -> (Vec<Info>, Option<u32>) {
        let (mut found, objects) = (Vec::new(), &self.parts.objects);
        let (ids_end, end) = (objects.index().ids_end(), from.saturating_add(SCANNED_IDS));
        for id in (from..end.min(ids_end)).map(ObjectId) {
            if found.len() == limit {
                return (found, Some(id.0));
            }
            let is_there =
                objects.index().contains(id) && objects.is_live(&self.parts.lanes, now, id);
            if is_there && objects.index().key_bytes(id).starts_with(prefix) {
                found.push(self.info_of(now, id));
            }
        }
        (found, (end < ids_end).then_some(end))
    }

    /// Keeps the objects of `keys` before the first miss readable until `until`, and returns their number.
    ///
    /// # Errors
    /// [`Failure::Full`] if too many objects are leased.
    pub fn lease(
        &mut self,
        now: Time,
        keys: &[Key],
        until: Time,
    ) -> Result<(LeaseId, usize), Failure> {
        self.wake();
        let find = |key: &Key| {
            self.lookup(now, self.parts.objects.index().hasher().hash(key.as_bytes()), key)
        };
        let ids: Vec<ObjectId> = keys.iter().map_while(find).collect();
        let table = &mut self.parts.objects;
        let objects: Vec<Object> = ids.iter().map(|id| table.index().object(*id)).collect();
        table.order_mut().found(&ids);
        Ok((table.spaces_mut().lease(&objects, until)?, objects.len()))
    }

    /// Returns the bytes of a lease's objects, with their padding; 0 if it has ended.
    pub fn leased_bytes(&self, lease: LeaseId) -> u64 {
        self.parts.objects.spaces().leases().bytes(lease)
    }

    /// Ends a lease. Ignores one that has already expired.
    pub fn release(&mut self, lease: LeaseId) {
        self.wake();
        self.parts.objects.release(lease);
    }

    /// Plans reads of these parts, and holds the objects until `until` or [`Shard::release`].
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] if too many objects are leased.
    pub fn plan(
        &mut self,
        now: Time,
        asked: &[(Key, Part)],
        until: Time,
    ) -> Result<Planned, Failure> {
        self.wake();
        plan::plan(&mut self.parts, now, asked, until)
    }

    /// Returns the bytes of an object, padding included, if they are in memory.
    #[cfg(feature = "internals")]
    pub fn resident(&mut self, now: Time, key: &Key) -> Option<Resident> {
        let id = self.lookup(now, self.parts.objects.index().hasher().hash(key.as_bytes()), key)?;
        let objects = &mut self.parts.objects;
        objects.resident(id, &objects.index().object(id))
    }
}

/// Returns the id of each object that exists, in the order of the keys.
fn find_live<Q: CommandQueue<Load>, R>(
    Parts { objects, lanes, .. }: &Parts<Q, R>,
    now: Time,
    keys: &[Key],
) -> Vec<Option<ObjectId>> {
    let mut found = Vec::new();
    objects.index().find_many(keys, &mut found);
    found.iter_mut().for_each(|id| *id = id.filter(|id| objects.is_live(lanes, now, *id)));
    found
}
