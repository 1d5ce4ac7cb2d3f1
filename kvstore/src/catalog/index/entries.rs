//! The entries of an index by id: the regular ones, and spare ones that exist only while it is loaded.

use super::entry::Entry;
use crate::catalog::table::Table;

#[derive(Debug)]
pub(super) struct Entries {
    kept: Table<Entry>,
    /// Spare entries, with the ids after the regular ones.
    spare: Option<Table<Entry>>,
}

impl Entries {
    pub(super) fn new(kept: u32, spare: u32) -> Entries {
        let spare = (spare > 0).then(|| Table::new(spare as usize));
        Entries { kept: Table::new(kept as usize), spare }
    }

    pub(super) fn len(&self) -> u32 {
        (self.kept.len() + self.spare.as_ref().map_or(0, |spare| spare.len())) as u32
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Entry> {
        let id = id as usize;
        let kept: &[Entry] = &self.kept;
        match kept.get(id) {
            None => self.spare.as_ref()?.get(id - kept.len()),
            entry => entry,
        }
    }

    #[inline]
    pub(super) fn at(&self, id: u32) -> &Entry {
        self.get(id).expect("an id is below the capacity")
    }

    #[inline]
    pub(super) fn at_mut(&mut self, id: u32) -> &mut Entry {
        let id = id as usize;
        let kept: &mut [Entry] = &mut self.kept;
        let count = kept.len();
        match kept.get_mut(id) {
            Some(entry) => entry,
            None => &mut self.spare.as_mut().expect("an id is below the capacity")[id - count],
        }
    }

    /// Drops the spare entries with their contents.
    pub(super) fn shed_spare(&mut self) {
        self.spare = None;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.kept.memory_bytes() + self.spare.as_ref().map_or(0, Table::memory_bytes)
    }
}
