//! The index of objects: from keys to ids, and from ids to everything known about an object.
//!
//! - **Memory.** An object costs 58 bytes for its entry and 5 for its share of the hash table, for any key of up to
//!   32 bytes. An eviction policy takes 8, its age 1, and its place in a region (see `regions`) 4, which makes 76, and
//!   the regions themselves 4 for each 256 KiB of space. Longer keys and further checksums are stored
//!   separately, at their length. The arrays have their full length from the start (see `table`): unused entries cost
//!   nothing, while the hash table, which is used at random, is soon fully resident. An index being loaded has spare
//!   room, which it frees at the end.
//! - **Identity** is the full key. The hash ([`KeyHasher`]) only says where to look.
//! - **Ids** are stable while the object exists, dense from 0, and reused after a removal.
//! - A wrong id is a bug of the store, and panics.
//!
//! The index does not know the contents of extents, free space, or the order of eviction.

mod ahead;
mod arena;
mod entry;
mod loading;
mod slots;

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::model::key::{KEY_BYTES_MAX, Key, KeyHasher};
use crate::model::object::{CHECKSUMS_MAX, Object, ObjectId};
pub use loading::Loading;

use arena::Arena;
use entry::{Entries, IndexEntry, KeyForm, SHORT_BYTES, SumForm};
use slots::{IDS_MAX, Slots, Walk};

/// Number of keys whose memory is prefetched before the first is compared.
const GROUP: usize = 32;

/// An object to insert.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// Its key, 1 to 512 bytes.
    pub key: &'a [u8],
    /// Its place, length, layout and tenant.
    pub object: Object,
    /// The CRC-32C of each piece, 1 to 512 of them.
    pub checksums: &'a [u32],
}

/// Why an object was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The index is full: evict, or open with room for more.
    Full,
    /// An object with this key exists: replace it.
    Present(ObjectId),
}

/// The checksums of an object's pieces, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums<'a>(SumsHeld<'a>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumsHeld<'a> {
    One([u32; 1]),
    List(&'a [u32]),
}

impl Deref for Checksums<'_> {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match &self.0 {
            SumsHeld::One(one) => one,
            SumsHeld::List(list) => list,
        }
    }
}

/// An object met on a walk over all of them.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// Its id.
    pub id: ObjectId,
    entry: &'a IndexEntry,
    index: &'a Index,
}

impl Live<'_> {
    /// Returns its place, length, layout and tenant.
    #[inline]
    pub fn object(&self) -> Object {
        entry::object(self.entry)
    }

    /// Returns the length of its key in bytes.
    #[inline]
    pub fn key_bytes(&self) -> usize {
        key_of(self.entry, &self.index.long_keys).len()
    }

    /// Returns the number of its checksums.
    #[inline]
    pub fn checksums(&self) -> usize {
        match entry::checksums(self.entry) {
            SumForm::One(_) => 1,
            SumForm::List(number) => self.index.sums.get(number).len(),
        }
    }
}

/// The objects of a shard.
#[derive(Debug)]
pub struct Index {
    /// The regular capacity; ids from here on are spare.
    objects_max: u32,
    slots: Slots,
    entries: Entries,
    /// Ids from here on were never used.
    fresh: u32,
    /// The last freed id plus one; 0 if none.
    free: u32,
    len: u32,
    hasher: KeyHasher,
    long_keys: Arena<u8>,
    sums: Arena<u32>,
}

impl Index {
    /// Maximum objects of one index.
    pub const OBJECTS_MAX: u32 = IDS_MAX;

    /// Creates an empty index with room for `objects_max` objects of the store with this hasher.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `objects_max` is 0 or more than [`Index::OBJECTS_MAX`].
    #[cfg(any(test, feature = "internals"))]
    pub fn new(objects_max: u32, hasher: KeyHasher) -> Result<Index> {
        Index::with_spare(objects_max, 0, hasher)
    }

    /// Creates an index with room for `spare` more objects, as far as ids allow, until [`Index::shed_spare`].
    fn with_spare(objects_max: u32, spare: u32, hasher: KeyHasher) -> Result<Index> {
        if objects_max == 0 || objects_max > IDS_MAX {
            let fix = format!("a shard has 1 to {IDS_MAX} objects; use more shards for more");
            return Err(Error::invalid("objects of a shard", objects_max, fix));
        }
        let spare = spare.min(IDS_MAX - objects_max);
        Ok(Index {
            objects_max,
            slots: Slots::new(objects_max, spare),
            entries: Entries::new(objects_max, spare),
            fresh: 0,
            free: 0,
            len: 0,
            hasher,
            long_keys: Arena::new(),
            sums: Arena::new(),
        })
    }

    /// Returns the number of objects.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there are none.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the maximum number of objects.
    pub fn capacity(&self) -> u32 {
        self.entries.len()
    }

    /// Returns the bytes of memory reserved: all arrays in full, and every long key and list of checksums.
    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.entries.memory_bytes()
            + self.long_keys.memory_bytes()
            + self.sums.memory_bytes()
    }

    /// Returns the hasher of its keys.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Returns the hash of a key, as eviction policies and admission use it.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Returns the object with this key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<ObjectId> {
        self.find_hashed(self.hash(key), key)
    }

    /// Returns the object with this key, given its [`Index::hash`].
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<ObjectId> {
        match self.slots.find(hash, |id| self.is_key(id, key)) {
            Walk::Found { id, .. } => Some(ObjectId(id)),
            Walk::Empty { .. } => None,
        }
    }

    /// Appends the object of each key to `found`, in order. Prefetches memory for a group of keys at a time, so that
    /// their cache misses overlap.
    pub fn find_many(&self, keys: &[impl AsRef<[u8]>], found: &mut Vec<Option<ObjectId>>) {
        found.reserve(keys.len());
        let mut hashes = [0; GROUP];
        for group in keys.chunks(GROUP) {
            for (hash, key) in hashes.iter_mut().zip(group) {
                *hash = self.hash(key.as_ref());
            }
            self.touch_slots(hashes[..group.len()].iter().copied());
            self.touch_entries(&hashes[..group.len()]);
            let of_group = hashes.iter().zip(group);
            found.extend(of_group.map(|(hash, key)| self.find_hashed(*hash, key.as_ref())));
        }
    }

    /// Returns whether this is the id of an object.
    #[inline]
    pub fn contains(&self, id: ObjectId) -> bool {
        self.entries.get(id.0).is_some_and(entry::is_live)
    }

    /// Returns the id behind the last that was ever in use.
    pub fn ids_end(&self) -> u32 {
        self.fresh
    }

    /// Returns the first object's id from `from`. A walk over all ids sees every object that exists for the whole
    /// walk, whatever is inserted and removed meanwhile.
    pub fn next_live(&self, from: u32) -> Option<ObjectId> {
        (from..self.fresh).map(ObjectId).find(|id| self.contains(*id))
    }

    /// Iterates over all objects by id. Faster than a walk by [`Index::next_live`], which lets the index change.
    pub fn live(&self) -> impl Iterator<Item = Live<'_>> {
        let entries = (0..self.fresh).map(|id| Live {
            id: ObjectId(id),
            entry: self.entries.at(id),
            index: self,
        });
        entries.filter(|live| entry::is_live(live.entry))
    }

    /// Returns an object's place, length, layout and tenant.
    ///
    /// # Panics
    /// If there is no such object.
    #[inline]
    pub fn object(&self, id: ObjectId) -> Object {
        entry::object(self.entry(id))
    }

    /// Returns the checksums of its pieces.
    ///
    /// # Panics
    /// If there is no such object.
    #[inline]
    pub fn checksums(&self, id: ObjectId) -> Checksums<'_> {
        Checksums(match entry::checksums(self.entry(id)) {
            SumForm::One(checksum) => SumsHeld::One([checksum]),
            SumForm::List(number) => SumsHeld::List(self.sums.get(number)),
        })
    }

    /// Returns the bytes of its key.
    ///
    /// # Panics
    /// If there is no such object.
    #[inline]
    pub fn key_bytes(&self, id: ObjectId) -> &[u8] {
        key_of(self.entry(id), &self.long_keys)
    }

    /// Returns its key.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn key(&self, id: ObjectId) -> Key {
        Key::new(self.key_bytes(id)).expect("only keys were inserted")
    }

    /// Adds an object.
    ///
    /// # Errors
    /// [`Refused`] if there is no room, or an object with this key.
    ///
    /// # Panics
    /// If the key has no bytes or more than 512, there are no checksums or more than 512, or the place or the length
    /// has too many bits.
    #[cfg(any(test, feature = "internals"))]
    pub fn insert(
        &mut self,
        key: &[u8],
        object: Object,
        checksums: &[u32],
    ) -> Result<ObjectId, Refused> {
        self.insert_hashed(self.hash(key), NewObject { key, object, checksums })
    }

    /// Replaces the contents of an object, which keeps its id and key. Returns the previous contents.
    ///
    /// # Panics
    /// If there is no such object, or as [`Index::insert`] does.
    pub fn replace(&mut self, id: ObjectId, object: Object, checksums: &[u32]) -> Object {
        let was = self.object(id);
        self.free_sums(id);
        let sums = self.keep_sums(checksums);
        entry::set_object(self.entry_mut(id), object, sums);
        was
    }

    /// Removes an object and returns its contents.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn remove(&mut self, id: ObjectId) -> Object {
        let was = self.object(id);
        let hash = self.hash(self.key_bytes(id));
        let Walk::Found { position, .. } = self.slots.find(hash, |other| other == id.0) else {
            panic!("object {} is not in the table", id.0)
        };
        self.touch_run(position);
        let Index { slots, entries, hasher, long_keys, .. } = self;
        slots.remove(position, |other| hasher.hash(key_of(entries.at(other), long_keys)));
        self.release(id);
        was
    }

    #[inline]
    fn entry_mut(&mut self, id: ObjectId) -> &mut IndexEntry {
        self.entries.at_mut(id.0)
    }

    #[inline]
    fn entry(&self, id: ObjectId) -> &IndexEntry {
        let entry = self.entries.at(id.0);
        assert!(entry::is_live(entry), "there is no object {}", id.0);
        entry
    }

    #[inline]
    fn is_key(&self, id: u32, key: &[u8]) -> bool {
        let entry = self.entries.at(id);
        entry::may_be(entry, key)
            && match entry::key(entry) {
                KeyForm::Short(_) => true,
                KeyForm::Long(number) => self.long_keys.get(number) == key,
            }
    }

    /// Returns whether two objects have the same key.
    fn is_same_key(&self, one: u32, other: u32) -> bool {
        self.is_key(one, self.key_bytes(ObjectId(other)))
    }

    /// Loads the slots where the walks for these hashes begin.
    #[inline]
    fn touch_slots(&self, hashes: impl Iterator<Item = u64>) {
        let touched = hashes.fold(0, |sum, hash| sum ^ self.slots.touch(hash));
        std::hint::black_box(touched);
    }

    /// Loads the first entry that each of these walks reaches.
    fn touch_entries(&self, hashes: &[u64]) {
        let touched = hashes.iter().fold(0, |sum, hash| match self.slots.find(*hash, |_| true) {
            Walk::Found { id, .. } => {
                let entry = self.entries.at(id);
                sum ^ entry[0] ^ entry[entry::ENTRY_BYTES - 1]
            }
            Walk::Empty { .. } => sum,
        });
        std::hint::black_box(touched);
    }

    /// Loads the entries that a removal from the table hashes, so that their cache misses overlap.
    fn touch_run(&self, position: usize) {
        let entries = &self.entries;
        let touched = self.slots.run(position).fold(0, |sum, id| sum ^ entries.at(id)[0]);
        std::hint::black_box(touched);
    }

    /// Adds an object, given its key's [`Index::hash`].
    ///
    /// # Errors
    /// As [`Index::insert`].
    ///
    /// # Panics
    /// As [`Index::insert`] does.
    pub fn insert_hashed(&mut self, hash: u64, new: NewObject<'_>) -> Result<ObjectId, Refused> {
        let position = match self.slots.find(hash, |id| self.is_key(id, new.key)) {
            Walk::Found { id, .. } => return Err(Refused::Present(ObjectId(id))),
            Walk::Empty { position } => position,
        };
        let id = self.keep(new).ok_or(Refused::Full)?;
        self.slots.put(position, hash, id.0);
        Ok(id)
    }

    /// Writes the entry of an object that is in no slot yet. Returns `None` if there is no room.
    #[inline]
    fn keep(&mut self, new: NewObject<'_>) -> Option<ObjectId> {
        assert!((1..=KEY_BYTES_MAX).contains(&new.key.len()), "a key has 1 to 512 bytes");
        let id = ObjectId(self.take_id()?);
        let long = new.key.len() > SHORT_BYTES;
        let number = long.then(|| self.long_keys.insert(new.key));
        let sums = self.keep_sums(new.checksums);
        let entry = self.entry_mut(id);
        entry::set_key(entry, new.key, number);
        entry::set_object(entry, new.object, sums);
        self.len += 1;
        Some(id)
    }

    /// Frees the entry of an object that is no longer in a slot.
    fn release(&mut self, id: ObjectId) {
        self.free_sums(id);
        if let KeyForm::Long(number) = entry::key(self.entry(id)) {
            self.long_keys.remove(number);
        }
        let free = std::mem::replace(&mut self.free, id.0 + 1);
        entry::set_free(self.entry_mut(id), free);
        self.len -= 1;
    }

    /// Drops the spare entries, unless there are more objects than the regular capacity. Moves their objects to other
    /// ids, and passes the old and the new id of each to `moved`.
    pub fn shed_spare(&mut self, moved: &mut dyn FnMut(ObjectId, ObjectId)) {
        if self.len > self.objects_max {
            return;
        }
        let kept = self.objects_max;
        if self.fresh > kept {
            let free: Vec<u32> = std::iter::from_fn(|| self.take_free()).collect();
            let mut free = free.into_iter().filter(|id| *id < kept);
            for from in (kept..self.fresh).map(ObjectId) {
                if self.contains(from) {
                    let to = ObjectId(free.next().expect("as many as are free lie behind"));
                    self.rename(from, to);
                    moved(from, to);
                }
            }
            for id in free {
                let next = std::mem::replace(&mut self.free, id + 1);
                entry::set_free(self.entry_mut(ObjectId(id)), next);
            }
            self.fresh = kept;
        }
        self.entries.shed_spare();
    }

    /// Moves an object to the id of a free entry.
    fn rename(&mut self, from: ObjectId, to: ObjectId) {
        let hash = self.hash(self.key_bytes(from));
        let Walk::Found { position, .. } = self.slots.find(hash, |other| other == from.0) else {
            panic!("object {} is not in the table", from.0)
        };
        self.slots.exchange(position, to.0);
        *self.entry_mut(to) = *self.entry(from);
    }

    fn take_id(&mut self) -> Option<u32> {
        if let Some(id) = self.take_free() {
            return Some(id);
        }
        if self.fresh == self.capacity() {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh - 1)
    }

    fn take_free(&mut self) -> Option<u32> {
        let id = self.free.checked_sub(1)?;
        self.free = entry::next_free(self.entries.at(id));
        Some(id)
    }

    fn keep_sums(&mut self, checksums: &[u32]) -> SumForm {
        assert!((1..=CHECKSUMS_MAX).contains(&checksums.len()), "an object has 1 to 512 pieces");
        match checksums {
            [one] => SumForm::One(*one),
            list => SumForm::List(self.sums.insert(list)),
        }
    }

    fn free_sums(&mut self, id: ObjectId) {
        if let SumForm::List(number) = entry::checksums(self.entry(id)) {
            self.sums.remove(number);
        }
    }
}

fn key_of<'a>(entry: &'a IndexEntry, long_keys: &'a Arena<u8>) -> &'a [u8] {
    match entry::key(entry) {
        KeyForm::Short(key) => key,
        KeyForm::Long(number) => long_keys.get(number),
    }
}

#[cfg(test)]
mod tests;
