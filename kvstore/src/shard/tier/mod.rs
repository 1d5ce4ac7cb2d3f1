//! The memory tier: hot objects whose bytes stay in memory after they were read and verified.
//!
//! A hit is a lookup and a reference to the bytes: no command, no checksum, no copy. Any thread looks up by itself, in
//! a [`Hot`] table. An object comes in with the read that found it intact, by one copy, which the thread that verifies
//! it makes ([`Filling`]): at once while there is free memory, otherwise if it was read before, not long ago
//! ([`Recent`]). So a scan passes by, and only few reads copy. S3-FIFO chooses the victims among the objects that no
//! reader holds.
//!
//! Invariants:
//!
//! - An entry is of the object that the index has under its id: each step that replaces or removes that object
//!   forgets the entry as well ([`Tier::forget`]), so before the change is acknowledged. The same holds for an object
//!   whose device fails.
//! - Bytes do not change while they are shared. Readers that outlive their entry keep the run that they read, and no
//!   other object gets it meanwhile.
//! - The tier has the memory that it was lent and no more, however many readers hold parts of it. Values that callers
//!   hold pin at most a part of it, with what they keep of memory that the tier gave up.
//!
//! A tier without memory, the default, is off: it finds nothing and takes nothing.

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

/// An object takes at most one part of the tier's memory in so many.
const OBJECT_PARTS: u64 = 8;
/// A search for an object that can go gives up after so many that readers hold.
const HELD_MAX: u32 = 64;
const ENTRIES_MAX: u64 = 1 << 24;
/// S3-FIFO counts no more uses of an object.
const USES_MAX: u64 = 3;

/// An object, as the tier knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: ObjectId,
    pub(crate) place: Place,
    /// Its length in bytes with its padding.
    pub(crate) bytes: u64,
}

/// An object in memory, or about to be.
struct TierEntry {
    known: Known,
    /// The region of its memory.
    region: u64,
    /// As readers see it.
    hot: Arc<HotEntry>,
}

impl TierEntry {
    /// Returns its bytes if they are there.
    fn resident(&self) -> Option<Resident> {
        self.hot.value()
    }

    /// Returns whether it is read, or being filled.
    fn is_held(&self) -> bool {
        self.hot.is_open() || self.hot.peek().is_some_and(Resident::is_shared)
    }
}

/// Objects in memory.
pub struct Tier {
    regions: LentMemory,
    /// The entries as readers on other threads see them.
    hot: Arc<Hot>,
    /// Removed entries that readers kept from being unlinked.
    to_unlink: Vec<Arc<HotEntry>>,
    /// By slot. The slots are the ids of the order.
    entries: Vec<Option<TierEntry>>,
    idle_slots: Vec<u32>,
    slots: NumberMap<ObjectId, u32>,
    order: S3Fifo,
    entries_max: u32,
    /// The longest object that comes in.
    object_bytes_max: u64,
    /// Hashes of keys that were read and are not in memory.
    seen: Recent,
    used_bytes: u64,
    stats: Stats,
    /// Whether it keeps what is replaced and removed, against its rule.
    #[cfg(feature = "internals")]
    stale: Option<Stale>,
    /// What it forgets a turn late.
    #[cfg(feature = "internals")]
    forgotten_late: Vec<ObjectId>,
}

/// A broken rule, which a simulation has to notice.
#[cfg(feature = "internals")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Objects that are replaced or removed stay.
    Kept,
    /// They are forgotten in the next turn, so after the change is acknowledged.
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
    /// Returns whether it has memory.
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

    /// Gives up memory, and the objects in it, until `bytes` at most are left. Returns how many bytes those are.
    pub(super) fn shrink(&mut self, bytes: u64) -> (u64, GivenUp) {
        let mut gone = self.regions.give_up_beyond(bytes);
        if let Some(first) = gone.first() {
            for slot in 0..self.entries.len() {
                let entry = self.entries[slot].as_ref();
                if entry.is_some_and(|entry| entry.region >= first) {
                    // One that is being filled goes with its filling.
                    self.take_out(slot as u32).resident().into_iter().for_each(|it| gone.add(it));
                    self.stats.tier_evictions += 1;
                }
            }
            self.resize();
        }
        (self.regions.bytes(), gone)
    }

    /// Adapts the order to the memory. The objects stay; how often they were hit is forgotten.
    fn resize(&mut self) {
        let bytes = self.regions.bytes();
        let entries_max = (bytes / UNIT_BYTES).min(ENTRIES_MAX);
        self.entries_max = entries_max as u32;
        self.object_bytes_max = self.regions.largest_bytes().min(bytes / OBJECT_PARTS);
        self.order = S3Fifo::new(self.entries_max);
        self.seen = Recent::new(entries_max as usize / 2);
        // A tier that became smaller gives their memory back as well.
        self.slots = Default::default();
        self.idle_slots = Vec::new();
        self.used_bytes = 0;
        let entries: Vec<TierEntry> =
            std::mem::take(&mut self.entries).into_iter().flatten().collect();
        assert!(entries.len() as u64 <= entries_max, "each entry has a unit of memory");
        entries.into_iter().for_each(|entry| self.insert(entry));
    }

    /// Returns the bytes of an object, and notes the use, if they are in memory.
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

    /// Takes an entry that readers on other threads used, and its uses, which it notes.
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

    /// Takes an object in if it is worth it: `about` is made then. Its bytes are missing until they are filled in.
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

    /// Makes room for an object that was seen lately; otherwise only remembers that it was seen. Evicts as many bytes
    /// as it has, which may leave no run that is long enough: then what is free is for others.
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

    /// Drops the entry of an object that is replaced or removed.
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
            // Its key is in use, so its next version may come in with its first read.
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

    /// Notes that an object expires at another time: Unix time in seconds, or never.
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

    /// Lets values pin `bytes` of memory, until its size changes.
    #[cfg(test)]
    pub(crate) fn set_pinned_bytes_max(&self, bytes: u64) {
        self.regions.set_pinned_bytes_max(bytes);
    }

    /// Breaks the rule that it forgets what is replaced and removed, which a simulation has to notice.
    #[cfg(feature = "internals")]
    pub fn keep_stale(&mut self, stale: Stale) {
        self.stale = Some(stale);
    }

    /// Returns whether it keeps an object that it should forget.
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

    /// Returns whether its rule is broken.
    fn keeps_stale(&self) -> bool {
        #[cfg(feature = "internals")]
        return self.stale.is_some();
        #[cfg(not(feature = "internals"))]
        false
    }

    /// Forgets what it should have forgotten in the last turn.
    #[cfg(feature = "internals")]
    pub(super) fn forget_late(&mut self) {
        while let Some(id) = self.forgotten_late.pop() {
            self.drop_entry(id);
        }
    }

    /// Returns the bytes of memory of its tables, without those of its objects.
    pub(super) fn memory_bytes(&self) -> usize {
        self.regions.memory_bytes()
            + self.entries.capacity() * size_of::<Option<TierEntry>>()
            + self.idle_slots.capacity() * size_of::<u32>()
            + self.slots.capacity() * size_of::<(ObjectId, u32)>()
            + self.order.memory_bytes()
            + self.seen.memory_bytes()
    }

    /// Returns its counters and sizes.
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
