//! The memory tier: hot objects whose bytes stay in memory after they were read and verified.
//!
//! A hit is a lookup and a reference to the bytes: no command, no checksum, no copy. Any thread looks up by itself, in
//! a [`Hot`] table. An object enters with the read that found it intact, by one copy, which the verifying thread makes
//! ([`Filling`]): at once while memory is free, otherwise only if it was also read recently ([`Recent`]). So scans
//! bypass the tier, and few reads copy. S3-FIFO chooses the victims among the objects that no reader holds.
//!
//! Invariants:
//!
//! - An entry belongs to the object that the index has under its id: each step that replaces or removes that object
//!   also forgets the entry ([`Tier::forget`]), before the change is acknowledged. The same holds for objects of a
//!   failed device.
//! - Bytes do not change while they are shared. Readers that outlive their entry keep the run that they read, and no
//!   other object gets it meanwhile.
//! - The tier uses no more memory than it was lent, however many readers hold parts of it. Values held by callers pin
//!   at most a part of it, given-up memory included.
//!
//! A tier without memory, the default, is off.

mod filling;
mod hot;
mod memory;
mod pins;
mod shelf;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use adit_driver::Buffer;

pub(crate) use self::filling::Filling;
use self::hot::HotEntry;
#[cfg(feature = "internals")]
pub use self::hot::HotReader;
pub(crate) use self::hot::{About, Hot, HotObject};
pub use self::memory::{GivenUp, Pinned, Resident};
use self::memory::{LentMemory, Unfilled};
pub(crate) use self::shelf::Used;
use super::stats::Stats;
use crate::catalog::hash::NumberMap;
use crate::model::object::ObjectId;
use crate::model::place::{Place, UNIT_BYTES};
use crate::policy::evict::{Policy, S3Fifo};
use crate::policy::recent::Recent;

/// An object takes at most one part in this many of the tier's memory.
const OBJECT_PARTS: u64 = 8;
/// A search for a victim gives up after this many objects that readers hold.
const HELD_MAX: u32 = 64;
const ENTRIES_MAX: u64 = 1 << 24;
/// S3-FIFO counts at most this many uses of an object.
const USES_MAX: u64 = 3;

/// An object, as the tier knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: ObjectId,
    pub(crate) place: Place,
    /// Length, padding included.
    pub(crate) bytes: u64,
}

/// An object in memory, or being read into it.
struct TierEntry {
    known: Known,
    /// The region of its memory.
    region: u64,
    /// The entry in the readers' table.
    hot: Arc<HotEntry>,
}

impl TierEntry {
    /// Returns the bytes once they are filled in.
    fn resident(&self) -> Option<Resident> {
        self.hot.value()
    }

    /// Returns whether a reader holds the object, or it is being filled.
    fn is_held(&self) -> bool {
        self.hot.is_open() || self.hot.peek().is_some_and(Resident::is_shared)
    }
}

/// Objects in memory.
pub struct Tier {
    regions: LentMemory,
    /// The entries, for readers on other threads.
    hot: Arc<Hot>,
    /// Removed entries whose unlinking readers blocked.
    to_unlink: Vec<Arc<HotEntry>>,
    /// Entries by slot; a slot is the id of its entry in `order`.
    entries: Vec<Option<TierEntry>>,
    idle_slots: Vec<u32>,
    slots: NumberMap<ObjectId, u32>,
    order: S3Fifo,
    entries_max: u32,
    /// Length of the longest object that the tier accepts.
    object_bytes_max: u64,
    /// Hashes of recently read keys that are not in memory.
    seen: Recent,
    used_bytes: u64,
    stats: Stats,
    /// A deliberately broken rule of invalidation, for simulations.
    #[cfg(feature = "internals")]
    stale: Option<Stale>,
    /// Objects to forget in the next turn.
    #[cfg(feature = "internals")]
    forgotten_late: Vec<ObjectId>,
}

/// A broken rule that a simulation must detect.
#[cfg(feature = "internals")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Replaced and removed objects stay.
    Kept,
    /// Replaced and removed objects are forgotten in the next turn, after the change is acknowledged.
    ForgottenLate,
}

impl Default for Tier {
    fn default() -> Tier {
        Tier {
            regions: LentMemory::default(),
            hot: Arc::default(),
            to_unlink: Vec::new(),
            entries: Vec::new(),
            idle_slots: Vec::new(),
            slots: NumberMap::default(),
            order: S3Fifo::new(0),
            entries_max: 0,
            object_bytes_max: 0,
            seen: Recent::new(0),
            used_bytes: 0,
            stats: Stats::default(),
            #[cfg(feature = "internals")]
            stale: None,
            #[cfg(feature = "internals")]
            forgotten_late: Vec::new(),
        }
    }
}

impl Tier {
    /// Returns whether the tier has memory.
    pub(super) fn is_on(&self) -> bool {
        self.entries_max > 0
    }

    /// Returns whether any object is in memory.
    pub(super) fn has_objects(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Adds memory.
    pub(super) fn lend(&mut self, memory: impl IntoIterator<Item = Buffer>) {
        let before = self.regions.bytes();
        memory.into_iter().for_each(|memory| self.regions.add(memory));
        if self.regions.bytes() > before {
            self.resize();
        }
    }

    /// Gives up memory, and the objects in it, until at most `bytes` are left. Returns the bytes left.
    pub(super) fn shrink(&mut self, bytes: u64) -> (u64, GivenUp) {
        let mut gone = self.regions.give_up_beyond(bytes);
        if let Some(first) = gone.first() {
            for slot in 0..self.entries.len() {
                let entry = self.entries[slot].as_ref();
                if entry.is_some_and(|entry| entry.region >= first) {
                    // The memory of an object being filled is freed with its `Filling`.
                    self.take_out(slot as u32).resident().into_iter().for_each(|it| gone.add(it));
                    self.stats.tier_evictions += 1;
                }
            }
            self.resize();
        }
        (self.regions.bytes(), gone)
    }

    /// Adapts the order to the memory. The objects stay; their hit counts are forgotten.
    fn resize(&mut self) {
        let bytes = self.regions.bytes();
        let entries_max = (bytes / UNIT_BYTES).min(ENTRIES_MAX);
        self.entries_max = entries_max as u32;
        self.object_bytes_max = self.regions.largest_bytes().min(bytes / OBJECT_PARTS);
        self.order = S3Fifo::new(self.entries_max);
        self.seen = Recent::new(entries_max as usize / 2);
        // New tables, so that a smaller tier frees the larger ones.
        self.slots = Default::default();
        self.idle_slots = Vec::new();
        self.used_bytes = 0;
        let entries: Vec<TierEntry> =
            std::mem::take(&mut self.entries).into_iter().flatten().collect();
        assert!(entries.len() as u64 <= entries_max, "each entry has a unit of memory");
        entries.into_iter().for_each(|entry| self.insert(entry));
    }

    /// Returns the bytes of an object if they are in memory, and records the use.
    pub(super) fn hit(&mut self, known: Known) -> Option<Resident> {
        let slot = *self.slots.get(&known.id)?;
        let entry = self.entries[slot as usize].as_ref().expect("a slot in use has an entry");
        assert!(
            entry.known == known || self.keeps_stale(),
            "an entry is of the object in the index"
        );
        if entry.known.bytes != known.bytes {
            return None;
        }
        let resident = entry.resident()?;
        assert_eq!(resident.len() as u64, known.bytes, "all of the object is resident");
        self.order.touched(ObjectId(slot));
        Some(resident)
    }

    /// Returns the table of readers on other threads.
    pub(super) fn hot(&self) -> &Arc<Hot> {
        &self.hot
    }

    /// Returns whether readers on other threads used an entry since the last was taken.
    pub(super) fn has_used(&self) -> bool {
        self.hot.has_used()
    }

    /// Takes and records the uses of one entry by readers on other threads.
    pub(super) fn take_used(&mut self) -> Option<(Arc<HotEntry>, Used)> {
        let (entry, used) = self.hot.take_used()?;
        self.note_used(&entry, used.count);
        Some((entry, used))
    }

    /// Counts hits that delivered `bytes`.
    pub(super) fn count_hits(&mut self, hits: u64, bytes: u64) {
        self.stats.tier_hits += hits;
        self.stats.tier_hit_bytes += bytes;
    }

    fn note_used(&mut self, used: &Arc<HotEntry>, uses: u64) {
        let Some(slot) = self.slots.get(&used.meta.id).copied() else { return };
        let entry = self.entries[slot as usize].as_ref().expect("a slot in use has an entry");
        if !Arc::ptr_eq(&entry.hot, used) {
            return;
        }
        if used.is_given_up() {
            drop(self.take_out(slot));
        } else {
            (0..uses.min(USES_MAX)).for_each(|_| self.order.touched(ObjectId(slot)));
        }
    }

    /// Admits an object if it is worth it, calling `about` only then. Readers miss it until its bytes are filled in.
    pub(super) fn offer(
        &mut self,
        known: Known,
        hash: u64,
        about: impl FnOnce() -> About,
    ) -> Option<Filling> {
        self.unlink_gone();
        if let Some(slot) = self.slots.get(&known.id).copied() {
            let entry = self.entries[slot as usize].as_ref().expect("a slot in use has an entry");
            if !entry.hot.is_given_up() {
                return None;
            }
            drop(self.take_out(slot));
        }
        if known.bytes > self.object_bytes_max {
            return None;
        }
        let room = self.free_room(known.bytes).or_else(|| self.make_room(known.bytes, hash))?;
        let hot = HotEntry::new(hash, about());
        if !self.hot.put(&hot) {
            return None;
        }
        self.insert(TierEntry { known, region: room.region(), hot: Arc::clone(&hot) });
        Some(Filling::new(&self.hot, hot, room))
    }

    /// Unlinks removed entries that no reader blocks.
    fn unlink_gone(&mut self) {
        let Tier { to_unlink, hot, .. } = self;
        to_unlink.retain(|entry| !hot.unlink(entry));
    }

    fn free_room(&mut self, bytes: u64) -> Option<Unfilled> {
        if self.slots.len() as u64 == u64::from(self.entries_max) {
            return None;
        }
        self.regions.take(bytes as usize)
    }

    /// Makes room for an object that was read recently; otherwise only remembers this read. Evicts about as many bytes
    /// as the object has; if that frees no run of sufficient length, returns `None` and leaves the space to others.
    fn make_room(&mut self, bytes: u64, hash: u64) -> Option<Unfilled> {
        if !self.seen.take(hash, self.slots.len() as u64 / 2) {
            self.seen.remember(hash);
            return None;
        }
        let mut evicted = 0;
        while evicted < bytes {
            let entries = &self.entries;
            let is_held =
                |slot: ObjectId| entries[slot.0 as usize].as_ref().is_some_and(TierEntry::is_held);
            let victim = self.order.victim_within(HELD_MAX, &mut { is_held })?;
            evicted += self.evict(victim.0);
            if let Some(room) = self.free_room(bytes) {
                return Some(room);
            }
        }
        None
    }

    /// Evicts an entry and returns its bytes.
    fn evict(&mut self, slot: u32) -> u64 {
        let entry = self.clear(slot);
        self.order.evicted(ObjectId(slot), entry.hot.hash());
        self.seen.remember(entry.hot.hash());
        self.stats.tier_evictions += 1;
        entry.known.bytes
    }

    /// Drops the entry of a replaced or removed object.
    #[inline]
    pub(super) fn forget(&mut self, id: ObjectId) {
        if self.has_objects() && !self.keeps(id) {
            self.drop_entry(id);
        }
    }

    #[inline(never)]
    fn drop_entry(&mut self, id: ObjectId) {
        if let Some(slot) = self.slots.get(&id).copied() {
            let entry = self.take_out(slot);
            // The key is in use, so its next version may enter with its first read.
            self.seen.remember(entry.hot.hash());
            self.stats.tier_invalidations += 1;
        }
    }

    /// Forgets the objects of a device that has failed.
    pub(super) fn forget_device(&mut self, device: u8) {
        let entries = self.entries.iter().flatten();
        let failed = entries.filter(|entry| entry.known.place.device == device);
        let ids: Vec<ObjectId> = failed.map(|entry| entry.known.id).collect();
        ids.into_iter().for_each(|id| self.forget(id));
    }

    /// Changes an object's time of expiry: Unix time in seconds, or never.
    pub(super) fn expires(&mut self, id: ObjectId, at_s: Option<u64>) {
        let slot = self.slots.get(&id).copied();
        if let Some(entry) = slot.and_then(|slot| self.entries[slot as usize].as_ref()) {
            entry.hot.meta.set_expiry(at_s);
        }
    }

    fn insert(&mut self, entry: TierEntry) {
        let slot = self.idle_slots.pop().unwrap_or(self.entries.len() as u32);
        assert!(slot < self.entries_max, "there are slots for all entries");
        self.order.inserted(ObjectId(slot), entry.hot.hash());
        self.used_bytes += entry.known.bytes;
        let before = self.slots.insert(entry.known.id, slot);
        assert!(before.is_none(), "an object has one entry");
        if slot as usize == self.entries.len() {
            self.entries.push(Some(entry));
        } else {
            self.entries[slot as usize] = Some(entry);
        }
    }

    fn take_out(&mut self, slot: u32) -> TierEntry {
        self.order.removed(ObjectId(slot));
        self.clear(slot)
    }

    /// Empties a slot, but leaves it in the order.
    fn clear(&mut self, slot: u32) -> TierEntry {
        let entry = self.entries[slot as usize].take().expect("a slot in use has an entry");
        let known = self.slots.remove(&entry.known.id);
        assert_eq!(known, Some(slot), "the map has what the slots have");
        self.idle_slots.push(slot);
        self.used_bytes -= entry.known.bytes;
        if !self.hot.take_out(&entry.hot) {
            self.to_unlink.push(Arc::clone(&entry.hot));
        }
        entry
    }

    /// Lets values pin `bytes` of memory, until the tier's size changes.
    #[cfg(test)]
    pub(crate) fn set_pinned_bytes_max(&self, bytes: u64) {
        self.regions.set_pinned_bytes_max(bytes);
    }

    /// Breaks the rule that replaced and removed objects are forgotten. A simulation must detect this.
    #[cfg(feature = "internals")]
    pub fn keep_stale(&mut self, stale: Stale) {
        self.stale = Some(stale);
    }

    /// Returns whether the broken rule keeps an object that should be forgotten.
    #[cfg(feature = "internals")]
    fn keeps(&mut self, id: ObjectId) -> bool {
        if self.stale == Some(Stale::ForgottenLate) {
            self.forgotten_late.push(id);
        }
        self.stale.is_some()
    }

    #[cfg(not(feature = "internals"))]
    fn keeps(&mut self, _id: ObjectId) -> bool {
        false
    }

    /// Returns whether the rule is broken.
    fn keeps_stale(&self) -> bool {
        #[cfg(feature = "internals")]
        return self.stale.is_some();
        #[cfg(not(feature = "internals"))]
        false
    }

    /// Forgets the objects that should have been forgotten in the last turn.
    #[cfg(feature = "internals")]
    pub(super) fn forget_late(&mut self) {
        while let Some(id) = self.forgotten_late.pop() {
            self.drop_entry(id);
        }
    }

    /// Returns the bytes of the tables, without the objects.
    pub(super) fn memory_bytes(&self) -> usize {
        self.regions.memory_bytes()
            + self.entries.capacity() * size_of::<Option<TierEntry>>()
            + self.idle_slots.capacity() * size_of::<u32>()
            + self.slots.capacity() * size_of::<(ObjectId, u32)>()
            + self.order.memory_bytes()
            + self.seen.memory_bytes()
    }

    /// Returns counters and sizes.
    pub(super) fn stats(&self) -> Stats {
        Stats {
            tier_admissions: self.hot.filled(),
            tier_objects: self.slots.len() as u64,
            tier_object_bytes: self.used_bytes,
            tier_bytes: self.regions.bytes(),
            tier_pinned_bytes: self.regions.pinned_bytes(),
            tier_given_up_bytes: self.regions.given_up_bytes(),
            ..self.stats
        }
    }
}
