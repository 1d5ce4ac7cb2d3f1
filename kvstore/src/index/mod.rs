//! Which objects there are: from keys to ids, and from ids to all that is known of an object.
//!
//! - **Memory.** An object costs 50 bytes for its entry and 5 for its share of the hash table, whatever the key up to
//!   32 bytes; with the 8 bytes of an eviction policy that is 63. Longer keys and further checksums are kept beside,
//!   and cost what they are long. The arrays are as long as the capacity from the start, of zero pages that the
//!   system gives memory as they are first written: room that is not used costs none.
//! - **Identity** is the full key. The hash (SipHash-1-3 under a key of the store's own) only says where to look.
//! - **Ids** are stable while the object exists, dense from 0, and used again after a removal.
//! - A wrong id is the store's own bug, and panics.
//!
//! The index knows nothing of what lies in the extents, of space, or of the order of eviction.

mod arena;
mod entry;
mod slots;

use std::hash::Hasher;
use std::ops::Deref;

use siphasher::sip::SipHasher13;

use crate::error::{Error, Result};
use crate::key::{KEY_BYTES_MAX, Key};
use crate::object::{CHECKSUMS_MAX, Object, ObjectId};
use arena::Arena;
use entry::{Entry, KeyForm, SHORT_BYTES, SumForm};
use slots::{IDS_MAX, Slots, Walk};

/// Keys whose memory is asked for before the first of them is compared.
const GROUP: usize = 32;

/// An object to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What it is called, 1 to 512 bytes.
    pub key: &'a [u8],
    /// What is known of it.
    pub object: Object,
    /// The CRC-32C of each piece, 1 to 512 of them.
    pub checksums: &'a [u32],
}

/// Why an object was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many objects as the index has room for: evict, or open with room for more.
    Full,
    /// There is one with this key: replace it.
    Present(ObjectId),
}

/// The checksums of an object, of its pieces in order.
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

/// The objects of a shard.
#[derive(Debug)]
pub struct Index {
    slots: Slots,
    /// Bytes, not arrays of them: only those are sure to come as zero pages.
    entries: Vec<u8>,
    /// Ids from here on were never used.
    fresh: u32,
    /// The last freed id plus one; 0 if none.
    free: u32,
    len: u32,
    hash_key: [u64; 2],
    long_keys: Arena<u8>,
    sums: Arena<u32>,
}

impl Index {
    /// Most objects of one index.
    pub const OBJECTS_MAX: u32 = IDS_MAX;

    /// An empty index with room for `objects_max` objects. `hash_key` is secret and random, so that nobody can choose
    /// keys that collide.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `objects_max` is 0 or more than [`Index::OBJECTS_MAX`].
    pub fn new(objects_max: u32, hash_key: [u64; 2]) -> Result<Index> {
        if objects_max == 0 || objects_max > IDS_MAX {
            let fix = format!("a shard has 1 to {IDS_MAX} objects; use more shards for more");
            return Err(Error::invalid("objects of a shard", objects_max, fix));
        }
        Ok(Index {
            slots: Slots::new(objects_max),
            entries: vec![0; objects_max as usize * entry::ENTRY_BYTES],
            fresh: 0,
            free: 0,
            len: 0,
            hash_key,
            long_keys: Arena::new(),
            sums: Arena::new(),
        })
    }

    /// How many objects there are.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many there may be.
    pub fn capacity(&self) -> u32 {
        (self.entries.len() / entry::ENTRY_BYTES) as u32
    }

    /// Bytes of memory reserved: all arrays in full, and every long key and list of checksums.
    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.entries.capacity()
            + self.long_keys.memory_bytes()
            + self.sums.memory_bytes()
    }

    /// The hash of a key, as the eviction policies and admission want it.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.hash_key[0], self.hash_key[1]);
        hasher.write(key);
        hasher.finish()
    }

    /// The object with this key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<ObjectId> {
        self.find_hashed(self.hash(key), key)
    }

    /// The object with this key, whose [`Index::hash`] is known.
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<ObjectId> {
        match self.slots.find(hash, |id| self.is_key(id, key)) {
            Walk::Found { id, .. } => Some(ObjectId(id)),
            Walk::Empty { .. } => None,
        }
    }

    /// The object of each of these keys, appended to `found` in their order. The memory of a group of keys is asked
    /// for at once, so that one waits for it while the others' is on its way.
    pub fn find_many(&self, keys: &[impl AsRef<[u8]>], found: &mut Vec<Option<ObjectId>>) {
        found.reserve(keys.len());
        let mut hashes = [0; GROUP];
        for group in keys.chunks(GROUP) {
            for (hash, key) in hashes.iter_mut().zip(group) {
                *hash = self.hash(key.as_ref());
            }
            self.touch_slots(&hashes[..group.len()]);
            self.touch_entries(&hashes[..group.len()]);
            let of_group = hashes.iter().zip(group);
            found.extend(of_group.map(|(hash, key)| self.find_hashed(*hash, key.as_ref())));
        }
    }

    /// Whether this is the id of an object.
    #[inline]
    pub fn contains(&self, id: ObjectId) -> bool {
        self.entries().get(id.0 as usize).is_some_and(entry::is_live)
    }

    /// The first id from `from` on that is an object's. Whoever walks all ids so sees every object that exists from
    /// the start of the walk to its end, whatever is inserted and removed meanwhile.
    pub fn next_live(&self, from: u32) -> Option<ObjectId> {
        (from..self.fresh).map(ObjectId).find(|id| self.contains(*id))
    }

    /// What is known of an object.
    ///
    /// # Panics
    /// If there is no such object.
    #[inline]
    pub fn object(&self, id: ObjectId) -> Object {
        entry::object(self.entry(id))
    }

    /// The checksums of its pieces.
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

    /// The bytes of its key.
    ///
    /// # Panics
    /// If there is no such object.
    #[inline]
    pub fn key_bytes(&self, id: ObjectId) -> &[u8] {
        match entry::key(self.entry(id)) {
            KeyForm::Short(key) => key,
            KeyForm::Long(number) => self.long_keys.get(number),
        }
    }

    /// Its key.
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
    pub fn insert(
        &mut self,
        key: &[u8],
        object: Object,
        checksums: &[u32],
    ) -> Result<ObjectId, Refused> {
        self.insert_hashed(self.hash(key), NewObject { key, object, checksums })
    }

    /// Adds objects, for recovery: quicker than one by one. What became of each is appended to `inserted` in their
    /// order.
    ///
    /// # Panics
    /// As [`Index::insert`] does.
    pub fn insert_many(
        &mut self,
        objects: &[NewObject<'_>],
        inserted: &mut Vec<Result<ObjectId, Refused>>,
    ) {
        inserted.reserve(objects.len());
        let mut hashes = [0; GROUP];
        for group in objects.chunks(GROUP) {
            for (hash, new) in hashes.iter_mut().zip(group) {
                *hash = self.hash(new.key);
            }
            self.touch_slots(&hashes[..group.len()]);
            for (hash, new) in hashes.iter().zip(group) {
                inserted.push(self.insert_hashed(*hash, *new));
            }
        }
    }

    /// Gives an object other contents; it keeps its id and key. Returns what it was.
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

    /// Removes an object. Returns what it was.
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
        let Index { slots, entries, hash_key, long_keys, .. } = self;
        let (entries, _) = entries.as_chunks();
        slots.remove(position, |other| hash_of(&entries[other as usize], long_keys, *hash_key));
        self.free_sums(id);
        if let KeyForm::Long(number) = entry::key(self.entry(id)) {
            self.long_keys.remove(number);
        }
        let free = std::mem::replace(&mut self.free, id.0 + 1);
        entry::set_free(self.entry_mut(id), free);
        self.len -= 1;
        was
    }

    #[inline]
    fn entries(&self) -> &[Entry] {
        self.entries.as_chunks().0
    }

    fn entry_mut(&mut self, id: ObjectId) -> &mut Entry {
        &mut self.entries.as_chunks_mut().0[id.0 as usize]
    }

    #[inline]
    fn entry(&self, id: ObjectId) -> &Entry {
        let entry = &self.entries()[id.0 as usize];
        assert!(entry::is_live(entry), "there is no object {}", id.0);
        entry
    }

    #[inline]
    fn is_key(&self, id: u32, key: &[u8]) -> bool {
        let entry = &self.entries()[id as usize];
        entry::may_be(entry, key)
            && match entry::key(entry) {
                KeyForm::Short(_) => true,
                KeyForm::Long(number) => self.long_keys.get(number) == key,
            }
    }

    /// Loads the slots where the walks for these hashes begin.
    fn touch_slots(&self, hashes: &[u64]) {
        let touched = hashes.iter().fold(0, |sum, hash| sum ^ self.slots.touch(*hash));
        std::hint::black_box(touched);
    }

    /// Loads the first entry that each of these walks comes to.
    fn touch_entries(&self, hashes: &[u64]) {
        let touched = hashes.iter().fold(0, |sum, hash| match self.slots.find(*hash, |_| true) {
            Walk::Found { id, .. } => {
                let entry = &self.entries()[id as usize];
                sum ^ entry[0] ^ entry[entry::ENTRY_BYTES - 1]
            }
            Walk::Empty { .. } => sum,
        });
        std::hint::black_box(touched);
    }

    /// Loads the entries that a removal from the table hashes, so that it does not wait for each of them.
    fn touch_run(&self, position: usize) {
        let entries = self.entries();
        let touched = self.slots.run(position).fold(0, |sum, id| sum ^ entries[id as usize][0]);
        std::hint::black_box(touched);
    }

    /// Adds an object whose key's [`Index::hash`] is known.
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
        assert!((1..=KEY_BYTES_MAX).contains(&new.key.len()), "a key has 1 to 512 bytes");
        let id = self.take_id().ok_or(Refused::Full)?;
        let long = new.key.len() > SHORT_BYTES;
        let number = long.then(|| self.long_keys.insert(new.key));
        let sums = self.keep_sums(new.checksums);
        let entry = self.entry_mut(ObjectId(id));
        entry::set_key(entry, new.key, number);
        entry::set_object(entry, new.object, sums);
        self.slots.put(position, hash, id);
        self.len += 1;
        Ok(ObjectId(id))
    }

    fn take_id(&mut self) -> Option<u32> {
        if self.free != 0 {
            let id = self.free - 1;
            self.free = entry::next_free(&self.entries()[id as usize]);
            return Some(id);
        }
        if self.fresh == self.capacity() {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh - 1)
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

/// The hash of an entry's key.
fn hash_of(entry: &Entry, long_keys: &Arena<u8>, hash_key: [u64; 2]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(hash_key[0], hash_key[1]);
    hasher.write(match entry::key(entry) {
        KeyForm::Short(key) => key,
        KeyForm::Long(number) => long_keys.get(number),
    });
    hasher.finish()
}

#[cfg(test)]
mod tests;
