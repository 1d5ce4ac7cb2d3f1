//! The hash table of the index: from a key's hash to candidate ids.
//!
//! A slot is 32 bits: an id plus one in the low bits, so that zero pages are empty slots, and above it the remaining
//! bits filled with hash bits, at least six, so that few entries are read in vain. Probing is linear from the slot
//! that the hash's high bits select. A removal shifts back slots that would no longer be found, so there are no
//! tombstones and the table does not degrade. At most four of five slots are taken, plus a few by spare ids, so every
//! walk ends at an empty slot.
//!
//! The table does not know keys: the caller compares them.

use crate::catalog::table::Table;

/// Maximum bits of a slot for an id plus one.
const ID_BITS_MAX: u32 = 26;
/// Maximum number of ids: all values of those bits except the empty slot's.
pub(super) const IDS_MAX: u32 = (1 << ID_BITS_MAX) - 1;
/// Slots that are filled together while an index is loaded: 256 KiB, which fit in a cache and in the TLB.
const SPAN_SLOTS: usize = 1 << 16;

/// The hash table.
#[derive(Debug)]
pub(super) struct Slots {
    words: Table<u32>,
    /// Number of slots.
    count: usize,
    /// Bits of a slot for an id plus one.
    id_bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// At the slot of this id.
    Found { position: usize, id: u32 },
    /// At an empty slot.
    Empty { position: usize },
}

impl Slots {
    /// Creates a table for `ids` ids, and occasionally `spare` more.
    pub(super) fn new(ids: u32, spare: u32) -> Slots {
        assert!(ids > 0 && ids + spare <= IDS_MAX, "an id has {ID_BITS_MAX} bits");
        let most = (ids + spare) as usize;
        let words = Table::new((ids as usize / 4 * 5).max(most + most / 16) + 8);
        let count = words.len();
        Slots { words, count, id_bits: u32::BITS - (ids + spare).leading_zeros() }
    }

    pub(super) fn spans(&self) -> usize {
        self.count.div_ceil(SPAN_SLOTS)
    }

    /// Returns the span where the walk for a hash begins.
    #[inline]
    pub(super) fn span(&self, hash: u64) -> usize {
        self.home(hash) / SPAN_SLOTS
    }

    /// Returns the id in a slot that is not empty.
    #[inline]
    fn id(&self, word: u32) -> u32 {
        (word & ((1 << self.id_bits) - 1)) - 1
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.memory_bytes()
    }

    /// Returns the slot where the walk for a hash begins: its high bits, scaled.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.count as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, position: usize) -> usize {
        if position + 1 == self.count { 0 } else { position + 1 }
    }

    /// Returns the distance from `from` to `to`, wrapping around.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.count - from }
    }

    /// Returns the tag as stored in a slot: the hash's low bits, because its high bits select the slot.
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32) << self.id_bits
    }

    /// Loads the first slot of the walk for this hash.
    #[inline]
    pub(super) fn touch(&self, hash: u64) -> u32 {
        self.words[self.home(hash)]
    }

    /// Walks to the id for which `is_it` holds, among those with the tag of this hash.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Walk {
        let (words, tag): (&[u32], u32) = (&self.words, self.tag(hash));
        let mut position = self.home(hash);
        loop {
            let word = words[position];
            if word == 0 {
                return Walk::Empty { position };
            }
            if (word ^ tag) >> self.id_bits == 0 && is_it(self.id(word)) {
                return Walk::Found { position, id: self.id(word) };
            }
            position = self.after(position);
        }
    }

    /// Writes an id to the empty slot where the walk for its hash ended.
    pub(super) fn put(&mut self, position: usize, hash: u64, id: u32) {
        assert!(self.words[position] == 0, "an id goes into an empty slot");
        assert!((id + 1) >> self.id_bits == 0, "id {id} is one that the table was made for");
        self.words[position] = self.tag(hash) | (id + 1);
    }

    /// Replaces the id in a slot by one whose key has the same hash.
    pub(super) fn exchange(&mut self, position: usize, id: u32) {
        let word = self.words[position];
        assert!(word != 0 && (id + 1) >> self.id_bits == 0, "there is an id to be exchanged");
        self.words[position] = word - self.id(word) + id;
    }

    /// Iterates over the ids from a slot to the next empty one, which a removal of the first examines.
    pub(super) fn run(&self, position: usize) -> impl Iterator<Item = u32> {
        let (before, from) = self.words.split_at(position);
        let words = from.iter().chain(before).take_while(|word| **word != 0);
        words.map(|word| self.id(*word))
    }

    /// Empties a slot, and shifts back following ones that a walk would otherwise no longer reach.
    pub(super) fn remove(&mut self, position: usize, hash_of: impl Fn(u32) -> u64) {
        assert!(self.words[position] != 0, "an empty slot is removed");
        let mut hole = position;
        let mut next = self.after(hole);
        while self.words[next] != 0 {
            let home = self.home(hash_of(self.id(self.words[next])));
            if self.distance(home, next) >= self.distance(hole, next) {
                self.words[hole] = self.words[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.words[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn position(slots: &Slots, hash: u64, id: u32) -> Option<usize> {
        match slots.find(hash, |other| other == id) {
            Walk::Found { position, .. } => Some(position),
            Walk::Empty { .. } => None,
        }
    }

    #[test]
    fn a_walk_goes_on_at_the_start_of_the_table() {
        let mut slots = Slots::new(8, 0);
        for id in 0..8 {
            let Walk::Empty { position } = slots.find(u64::MAX, |_| false) else {
                panic!("nothing is found by a predicate that never holds")
            };
            slots.put(position, u64::MAX, id);
        }
        assert_eq!(position(&slots, u64::MAX, 7), Some(6), "{slots:?}");
        slots.remove(position(&slots, u64::MAX, 0).expect("it is there"), |_| u64::MAX);
        assert!((1..8).all(|id| position(&slots, u64::MAX, id).is_some()), "{slots:?}");
    }

    proptest! {
        /// The hashes take few values, so that walks cross, wrap and share tags.
        #[test]
        fn ids_are_found_until_they_are_removed(
            steps in vec((0_u32..48, 0_u64..12, any::<bool>()), 1..400),
        ) {
            let mut slots = Slots::new(48, 0);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (id, spread, same_tag) in steps {
                if let Some(hash) = model.remove(&id) {
                    let position = position(&slots, hash, id).expect("it was put");
                    let model = &model;
                    slots.remove(position, |other| model[&other]);
                } else {
                    let hash = (u64::MAX / 12 * (spread + 1)) & !63 | u64::from(same_tag);
                    let Walk::Empty { position } = slots.find(hash, |other| other == id) else {
                        panic!("id {id} is not in the table");
                    };
                    slots.put(position, hash, id);
                    model.insert(id, hash);
                }
                for id in 0..48 {
                    let found = model.get(&id).and_then(|hash| position(&slots, *hash, id));
                    prop_assert_eq!(found.is_some(), model.contains_key(&id));
                }
                let taken = slots.words.iter().filter(|word| **word != 0).count();
                prop_assert_eq!(taken, model.len());
            }
        }
    }
}
