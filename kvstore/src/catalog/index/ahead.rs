//! Memory for the next entries, which another thread clears while earlier entries are filled.
//!
//! The system clears memory when it is first written. While millions of objects are loaded this takes up to a fifth of
//! the time, most of it for entries. Once half of a segment is filled, a thread therefore makes a new next segment whose
//! memory is present as far as objects are expected. It replaces the next segment before that is written to.
//!
//! Without such a thread only the time changes. An index that fits in one segment starts none.

use std::thread::{Builder, JoinHandle};

use super::entry::{Entries, IndexEntry, SEGMENT_ENTRIES};
use crate::catalog::table::Table;

/// The preparation of the next segment.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The next id that begins or ends a preparation when it is first taken.
    due: u32,
    /// Entries that are expected to be used.
    expected: u32,
    coming: Option<JoinHandle<Table<IndexEntry>>>,
}

impl Ahead {
    /// Creates the preparation for an index without ids in use or expected objects.
    pub(super) fn new() -> Ahead {
        Ahead { due: SEGMENT_ENTRIES / 2, expected: 0, coming: None }
    }

    /// Sets how many entries will be used. The system clears further ones as they are written.
    pub(super) fn expect(&mut self, entries: u64) {
        self.expected = u32::try_from(entries).unwrap_or(u32::MAX);
    }

    /// Notes that an id was taken. Ids are taken in order first, and in any order once they are free again.
    #[inline]
    pub(super) fn taken(&mut self, id: u32, entries: &mut Entries) {
        if id == self.due {
            self.step(entries);
        }
    }

    #[cold]
    fn step(&mut self, entries: &mut Entries) {
        let next = self.due / SEGMENT_ENTRIES + 1;
        if self.due % SEGMENT_ENTRIES == SEGMENT_ENTRIES / 2 {
            let len = entries.segment_len(next);
            self.coming = len.and_then(|len| clear(len, self.expected_in(next)));
            self.due = next * SEGMENT_ENTRIES - 1;
        } else {
            if let Some(Ok(segment)) = self.coming.take().map(JoinHandle::join) {
                entries.renew(next, segment);
            }
            self.due = next * SEGMENT_ENTRIES + SEGMENT_ENTRIES / 2;
        }
    }

    /// Returns how many entries of a segment are expected to be used.
    fn expected_in(&self, segment: u32) -> usize {
        self.expected.saturating_sub(segment * SEGMENT_ENTRIES) as usize
    }
}

/// Starts to make a segment of `len` entries whose first ones have their memory. Returns `None` if none are expected, or
/// the system grants no thread.
fn clear(len: usize, expected: usize) -> Option<JoinHandle<Table<IndexEntry>>> {
    let make = move || {
        let segment = Table::new(len);
        segment.populate(expected.min(len));
        segment
    };
    if expected == 0 {
        return None;
    }
    Builder::new().name("adit-memory".to_owned()).spawn(make).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::index::entry::ENTRY_BYTES;

    fn mark(id: u32) -> u8 {
        1 + (id % 251) as u8
    }

    #[test]
    fn segments_in_which_objects_are_expected_are_made_while_the_one_before_is_filled() {
        const HALF: u32 = SEGMENT_ENTRIES / 2;
        let halves = [(0, 0), (2, 0), (3, 1), (4, 1), (5, 2), (1 << 40, 2)];
        for (expected, made) in halves.map(|(halves, made)| (halves * u64::from(HALF), made)) {
            let mut entries = Entries::new(5 * HALF, 3);
            let mut ahead = Ahead::new();
            ahead.expect(expected);
            for id in 0..entries.len() {
                entries.at_mut(id).fill(mark(id));
                ahead.taken(id, &mut entries);
                let (segment, at) = (id / SEGMENT_ENTRIES, id % SEGMENT_ENTRIES);
                let is_coming = segment < made && (HALF..2 * HALF - 1).contains(&at);
                assert_eq!(ahead.coming.is_some(), is_coming, "at {id} of {expected}");
            }
            for id in 0..entries.len() {
                assert_eq!(*entries.at(id), [mark(id); ENTRY_BYTES], "entry {id}");
            }
        }
    }

    #[test]
    fn an_index_without_its_next_segment_goes_on_with_the_one_that_is_there() {
        let mut entries = Entries::new(2 * SEGMENT_ENTRIES, 0);
        let mut ahead = Ahead::new();
        ahead.expect(u64::MAX);
        ahead.taken(SEGMENT_ENTRIES / 2, &mut entries);
        ahead.coming = Some(std::thread::spawn(|| panic!("the segment could not be made")));
        ahead.taken(SEGMENT_ENTRIES - 1, &mut entries);
        entries.at_mut(SEGMENT_ENTRIES).fill(7);
        assert_eq!(entries.at(SEGMENT_ENTRIES)[0], 7);
    }
}
