//! The index's entries: 58 bytes for each object, packed.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | state: 0 not live, 1 to 32 the bytes of a short key, 33 a long key; bit 7: a list of checksums |
//! | 1..33 | a short key and zeroes; or the number of a long key in its arena, then its first 28 bytes |
//! | 33..39 | [`Place::pack`] |
//! | 39..44 | the object's bytes |
//! | 44..48 | the checksum, or the number of the list of them |
//! | 48, 49 | layout, tenant |
//! | 50..58 | version |
//!
//! An all-zero entry, as in fresh pages, is not live. A freed entry keeps the next free id in 1..5.

use crate::catalog::table::Table;
use crate::model::object::{LayoutId, Object, TenantId, Version};
use crate::model::place::Place;

pub(super) const ENTRY_BYTES: usize = 58;
/// Longest key stored in the entry, in bytes.
pub(super) const SHORT_BYTES: usize = 32;
/// The state of an entry with a longer key.
const LONG: u8 = 33;
/// State bit: the checksum field is the number of a list.
const LISTED: u8 = 0x80;
/// Bytes of a long key stored in the entry.
const PREFIX_BYTES: usize = SHORT_BYTES - 4;

/// The entry's bytes: a plain array, so that a large allocation consists of zero pages.
pub(super) type IndexEntry = [u8; ENTRY_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm<'a> {
    /// In the entry.
    Short(&'a [u8]),
    /// In the arena, under this number.
    Long(u32),
}

/// The storage of an object's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumForm {
    /// The only checksum.
    One(u32),
    /// In the arena, under this number.
    List(u32),
}

fn word(entry: &IndexEntry, at: usize) -> u32 {
    u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(super) fn is_live(entry: &IndexEntry) -> bool {
    entry[0] != 0
}

/// Returns the next id of the free list plus one; 0 ends the list.
pub(super) fn next_free(entry: &IndexEntry) -> u32 {
    assert!(!is_live(entry), "only free entries are listed");
    word(entry, 1)
}

pub(super) fn set_free(entry: &mut IndexEntry, next: u32) {
    *entry = [0; ENTRY_BYTES];
    entry[1..5].copy_from_slice(&next.to_le_bytes());
}

/// Makes an entry live, without its object.
pub(super) fn set_key(entry: &mut IndexEntry, key: &[u8], number: Option<u32>) {
    *entry = [0; ENTRY_BYTES];
    if let Some(number) = number {
        entry[0] = LONG;
        entry[1..5].copy_from_slice(&number.to_le_bytes());
        entry[5..=SHORT_BYTES].copy_from_slice(&key[..PREFIX_BYTES]);
    } else {
        assert!(!key.is_empty() && key.len() <= SHORT_BYTES, "a longer key has a number");
        entry[0] = key.len() as u8;
        entry[1..=key.len()].copy_from_slice(key);
    }
}

pub(super) fn key(entry: &IndexEntry) -> KeyForm<'_> {
    match entry[0] & !LISTED {
        LONG => KeyForm::Long(word(entry, 1)),
        len => KeyForm::Short(&entry[1..=usize::from(len)]),
    }
}

/// Returns whether the key may be this one: certain for a short key, by prefix for a long one.
#[inline]
pub(super) fn may_be(entry: &IndexEntry, key: &[u8]) -> bool {
    if key.len() <= SHORT_BYTES {
        usize::from(entry[0] & !LISTED) == key.len() && entry[1..=key.len()] == *key
    } else {
        entry[0] & !LISTED == LONG && entry[5..=SHORT_BYTES] == key[..PREFIX_BYTES]
    }
}

/// Writes everything except the key.
pub(super) fn set_object(entry: &mut IndexEntry, object: Object, sums: SumForm) {
    assert!(is_live(entry), "an object has a key");
    assert!(object.bytes < Object::BYTES_END, "a length has 40 bits");
    entry[33..39].copy_from_slice(&object.place.pack().to_le_bytes()[..6]);
    entry[39..44].copy_from_slice(&object.bytes.to_le_bytes()[..5]);
    let (bits, listed) = match sums {
        SumForm::One(checksum) => (checksum, 0),
        SumForm::List(number) => (number, LISTED),
    };
    entry[0] = entry[0] & !LISTED | listed;
    entry[44..48].copy_from_slice(&bits.to_le_bytes());
    (entry[48], entry[49]) = (object.layout.0, object.tenant.0);
    entry[50..].copy_from_slice(&object.version.0.to_le_bytes());
}

pub(super) fn object(entry: &IndexEntry) -> Object {
    let mut place = [0; 8];
    let mut bytes = [0; 8];
    place[..6].copy_from_slice(&entry[33..39]);
    bytes[..5].copy_from_slice(&entry[39..44]);
    let version = u64::from_le_bytes(entry[50..].try_into().expect("eight bytes"));
    Object {
        place: Place::unpack(u64::from_le_bytes(place)),
        bytes: u64::from_le_bytes(bytes),
        layout: LayoutId(entry[48]),
        tenant: TenantId(entry[49]),
        version: Version(version),
    }
}

pub(super) fn checksums(entry: &IndexEntry) -> SumForm {
    let bits = word(entry, 44);
    if entry[0] & LISTED == 0 { SumForm::One(bits) } else { SumForm::List(bits) }
}

/// Bits of an id that name an entry of a segment. Segments of 58 MiB are whole large pages.
const SEGMENT_BITS: u32 = if cfg!(test) { 10 } else { 20 };
/// Entries of a segment.
pub(super) const SEGMENT_ENTRIES: u32 = 1 << SEGMENT_BITS;

/// The entries by id: the regular ones, and spare ones that exist only while the index is loaded.
///
/// The regular ones are in segments, so that the memory of those to come can be cleared apart from those in use.
#[derive(Debug)]
pub(super) struct Entries {
    /// Of [`SEGMENT_ENTRIES`] each; the last may be shorter.
    segments: Vec<Table<IndexEntry>>,
    /// The number of regular entries.
    kept: u32,
    /// Spare entries, with the ids after the regular ones.
    spare: Option<Table<IndexEntry>>,
    /// The number of both.
    count: u32,
}

impl Entries {
    pub(super) fn new(kept: u32, spare: u32) -> Entries {
        let starts = (0..kept).step_by(SEGMENT_ENTRIES as usize);
        let lens = starts.map(|start| (kept - start).min(SEGMENT_ENTRIES));
        Entries {
            segments: lens.map(|len| Table::new(len as usize)).collect(),
            kept,
            spare: (spare > 0).then(|| Table::new(spare as usize)),
            count: kept + spare,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&IndexEntry> {
        let segment = self.segments.get((id >> SEGMENT_BITS) as usize);
        match segment.and_then(|segment| segment.get(id % SEGMENT_ENTRIES)) {
            None => self.spare.as_ref()?.get(id - self.kept),
            entry => entry,
        }
    }

    #[inline]
    pub(super) fn at(&self, id: u32) -> &IndexEntry {
        self.get(id).expect("an id is below the capacity")
    }

    #[inline]
    pub(super) fn at_mut(&mut self, id: u32) -> &mut IndexEntry {
        let segment = self.segments.get_mut((id >> SEGMENT_BITS) as usize);
        let entry = match segment.and_then(|segment| segment.get_mut(id % SEGMENT_ENTRIES)) {
            None => self.spare.as_mut().and_then(|spare| spare.get_mut(id - self.kept)),
            entry => entry,
        };
        entry.expect("an id is below the capacity")
    }

    /// Returns the length of a segment, if there is one of this number.
    pub(super) fn segment_len(&self, number: u32) -> Option<usize> {
        self.segments.get(number as usize).map(|segment| segment.len())
    }

    /// Replaces a segment in which no entry was written.
    pub(super) fn renew(&mut self, number: u32, segment: Table<IndexEntry>) {
        let unused = &mut self.segments[number as usize];
        assert_eq!(segment.len(), unused.len(), "it holds the same ids");
        debug_assert!(unused.iter().all(|entry| *entry == [0; ENTRY_BYTES]), "it is unused");
        *unused = segment;
    }

    /// Drops the spare entries with their contents.
    pub(super) fn shed_spare(&mut self) {
        self.spare = None;
        self.count = self.kept;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.segments.iter().chain(&self.spare).map(Table::memory_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_gives_back_what_was_packed(
            key_bytes in vec(any::<u8>(), 1..=64), number in any::<u32>(), unit in 0..Place::UNITS_MAX,
            device in any::<u8>(), bytes in 0..Object::BYTES_END, ids in any::<(u8, u8)>(), version: u64,
            sum in any::<u32>(), listed in any::<bool>(),
        ) {
            let long = key_bytes.len() > SHORT_BYTES;
            let sums = if listed { SumForm::List(sum) } else { SumForm::One(sum) };
            let packed = Object {
                place: Place { device, unit },
                bytes,
                layout: LayoutId(ids.0),
                tenant: TenantId(ids.1),
                version: Version(version),
            };
            let mut entry = [0xff; ENTRY_BYTES];
            set_key(&mut entry, &key_bytes, long.then_some(number));
            set_object(&mut entry, packed, sums);
            prop_assert!(is_live(&entry) && may_be(&entry, &key_bytes));
            prop_assert_eq!((object(&entry), checksums(&entry)), (packed, sums));
            let form = if long { KeyForm::Long(number) } else { KeyForm::Short(&key_bytes) };
            prop_assert_eq!(key(&entry), form);
        }

        #[test]
        fn another_short_key_is_told_apart(a in vec(0_u8..2, 1..=5), b in vec(0_u8..2, 1..=5)) {
            let mut entry = [0; ENTRY_BYTES];
            set_key(&mut entry, &a, None);
            prop_assert_eq!(may_be(&entry, &b), a == b);
        }
    }
}
