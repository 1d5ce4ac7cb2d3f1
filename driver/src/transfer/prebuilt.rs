//! PRP lists built once for a registered region.
//!
//! A region's pages are contiguous in device memory, so the PRP list of any transfer inside it is part of one
//! long list of all its pages. That list is written once; a transfer's PRP2 points *into* it and no list is
//! built per command.
//!
//! The catch is the chain pointer. A controller reads a list page's last word as data if the list ends there,
//! and as the address of the next list page otherwise. The long list always holds a chain pointer there, so a
//! transfer that ends exactly on a last word would be misread. Hence two phases of the same list, the second
//! shifted by 256 entries: a transfer that ends on a last word in one does not in the other, because the two
//! differ by 256 modulo 511.
//!
//! Up to [`UNCHAINED`] entries fit whole into a page of one phase or the other, so such a list never meets a
//! chain pointer: some controllers (SPDK's vfio-user target) do not follow them.
//!
//! Costs 16 bytes per 4 KiB page (0.4 %).

use super::{PAGE_BYTES, PRPS_PER_PAGE};
use crate::spec::Iova;

/// Data entries of a list page; the last word is the chain pointer.
const DATA_PER_PAGE: u64 = PRPS_PER_PAGE - 1;
/// Shift of each phase, in entries.
const SHIFTS: [u64; 2] = [0, 256];

/// The most entries of a list that never has a chain pointer: 1 MiB of whole pages.
pub const UNCHAINED: u64 = 256;
/// Distance in words from a page's entry in the first phase to that in the second, if it is in the second
/// half of a list page in the first: 256 entries and one more chain pointer.
const LATER: u64 = 257;

/// The prebuilt lists of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrebuiltPrps {
    region: Iova,
    /// By phase: the list's address of the region's first page if a transfer's list begins in its half. The word
    /// of a page in the first phase counts from there.
    starts: [Iova; 2],
}

fn table_bytes(pages: u64, phase: usize) -> u64 {
    (pages + SHIFTS[phase]).div_ceil(DATA_PER_PAGE) * PAGE_BYTES
}

impl PrebuiltPrps {
    /// Returns the bytes of list memory for a region of `pages` pages.
    pub fn bytes_for(pages: u64) -> u64 {
        table_bytes(pages, 0) + table_bytes(pages, 1)
    }

    /// Writes the lists of the `pages` pages at `region` into [`PrebuiltPrps::bytes_for`] bytes at `lists`;
    /// `write(word, value)` stores 64-bit words by index.
    pub fn build(
        region: Iova,
        pages: u64,
        lists: Iova,
        mut write: impl FnMut(usize, u64),
    ) -> PrebuiltPrps {
        assert!(
            region.0.is_multiple_of(PAGE_BYTES) && lists.0.is_multiple_of(PAGE_BYTES),
            "whole pages"
        );
        let tables = [lists, Iova(lists.0 + table_bytes(pages, 0))];
        for (phase, table) in tables.iter().enumerate() {
            let base_word = (table.0 - lists.0) / 8;
            for page in 0..pages {
                let word = word_of(page, phase);
                write((base_word + word) as usize, region.0 + page * PAGE_BYTES);
                let next = word + 1;
                if next % PRPS_PER_PAGE == DATA_PER_PAGE {
                    write((base_word + next) as usize, table.0 + (next + 1) * 8);
                }
            }
        }
        PrebuiltPrps { region, starts: [tables[0], Iova(tables[1].0 + LATER * 8)] }
    }

    /// Returns the start of the two lists of all pages, for an agent that builds its own commands. The second
    /// is shifted by 256 entries; [`PrebuiltPrps::list`] chooses the one for a transfer.
    pub fn tables(&self) -> [Iova; 2] {
        [self.starts[0], Iova(self.starts[1].0 - LATER * 8)]
    }

    /// Returns the list of the pages that hold `bytes` from `second`, the page after the transfer's first:
    /// the value for PRP2.
    #[inline(always)]
    pub fn list(&self, second: Iova, bytes: u64) -> Iova {
        debug_assert!(
            second.0 >= self.region.0 && second.0.is_multiple_of(PAGE_BYTES),
            "a page of the region"
        );
        let word = word_of((second.0 - self.region.0) / PAGE_BYTES, 0);
        // The first half of a list page leaves room for a short list, and the second half of one page is in
        // the first half of a page in the other phase.
        let phase = word / (PRPS_PER_PAGE / 2) % 2;
        if bytes > UNCHAINED * PAGE_BYTES {
            return self.chained(word, bytes.div_ceil(PAGE_BYTES));
        }
        Iova(self.starts[phase as usize].0 + word * 8)
    }

    /// Returns a list that crosses pages in both phases, from the phase in which it does not end on a last
    /// word.
    #[cold]
    fn chained(&self, word: u64, entries: u64) -> Iova {
        let available = PRPS_PER_PAGE - word % PRPS_PER_PAGE;
        if entries < available || !(entries - available).is_multiple_of(DATA_PER_PAGE) {
            return Iova(self.starts[0].0 + word * 8);
        }
        let page = word - word / PRPS_PER_PAGE;
        Iova(self.tables()[1].0 + word_of(page, 1) * 8)
    }
}

/// Returns the word index of a region's page in a phase.
#[inline]
fn word_of(page: u64, phase: usize) -> u64 {
    let entry = page + SHIFTS[phase];
    // Every 511 entries, one more word is a chain pointer.
    entry + entry / DATA_PER_PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const REGION: u64 = 0x100_0000_0000;
    const LISTS: u64 = 0x200_0000_0000;

    fn build(pages: u64) -> (PrebuiltPrps, BTreeMap<u64, u64>) {
        let mut memory = BTreeMap::new();
        let prps = PrebuiltPrps::build(Iova(REGION), pages, Iova(LISTS), |word, value| {
            assert!((word as u64) < PrebuiltPrps::bytes_for(pages) / 8, "inside the list memory");
            memory.insert(LISTS + word as u64 * 8, value);
        });
        (prps, memory)
    }

    /// Reads a list as a controller does: a page's last word is data only if the list ends there.
    fn walk(memory: &BTreeMap<u64, u64>, mut at: u64, mut entries: u64) -> Vec<u64> {
        let mut pages = Vec::new();
        while entries > 0 {
            let last_word = at % PAGE_BYTES == PAGE_BYTES - 8;
            if last_word && entries > 1 {
                at = memory[&at];
                assert_eq!(at % 8, 0);
                continue;
            }
            pages.push(memory[&at]);
            (at, entries) = (at + 8, entries - 1);
        }
        pages
    }

    #[test]
    fn every_run_of_a_region_reads_as_its_pages() {
        let pages = 1700;
        let (prps, memory) = build(pages);
        for first in
            (0..pages).step_by(7).chain([254, 255, 256, 257, 509, 510, 511, 512, 1021, 1022])
        {
            let most = pages - first;
            for entries in
                [2, 3, 31, 255, 256, 257, 510, 511, 512, 513, 767, 1021, 1022, 1023, 1533, most]
            {
                if entries > most || entries == 0 {
                    continue;
                }
                let list = prps.list(Iova(REGION + first * PAGE_BYTES), entries * PAGE_BYTES);
                let expected: Vec<u64> =
                    (first..first + entries).map(|p| REGION + p * PAGE_BYTES).collect();
                assert_eq!(
                    walk(&memory, list.0, entries),
                    expected,
                    "{entries} pages from page {first}"
                );
            }
        }
    }

    fn phase(prps: &PrebuiltPrps, first: u64, entries: u64) -> bool {
        prps.list(Iova(REGION + first * PAGE_BYTES), entries * PAGE_BYTES).0 >= prps.tables()[1].0
    }

    #[test]
    fn lists_take_no_more_pages_than_their_entries() {
        let pages_for = |pages| PrebuiltPrps::bytes_for(pages) / PAGE_BYTES;
        let expected = [(1, 2), (255, 2), (256, 3), (511, 3), (512, 4), (766, 4), (767, 5)];
        assert_eq!(expected.map(|(pages, _)| (pages, pages_for(pages))), expected);
    }

    #[test]
    fn both_phases_are_needed() {
        let (prps, _) = build(1200);
        assert!(!phase(&prps, 0, 511) && phase(&prps, 0, 512) && !phase(&prps, 0, 513));
        assert!(!phase(&prps, 255, 256) && phase(&prps, 256, 256) && phase(&prps, 510, 2));
    }

    #[test]
    fn a_list_of_a_mebibyte_or_less_has_no_chain_pointer() {
        let pages = 1700;
        let (prps, memory) = build(pages);
        for first in 0..pages {
            for entries in [1, 2, 31, 255, UNCHAINED] {
                let list = prps.list(Iova(REGION + first * PAGE_BYTES), entries * PAGE_BYTES).0;
                let last = list + (entries - 1) * 8;
                assert_eq!(list / PAGE_BYTES, last / PAGE_BYTES, "one list page");
                assert_ne!(last % PAGE_BYTES, PAGE_BYTES - 8, "a chain pointer's place");
                // Read without following any pointer.
                for entry in 0..entries.min(pages - first) {
                    let page = REGION + (first + entry) * PAGE_BYTES;
                    assert_eq!(memory[&(list + entry * 8)], page, "{entries} from page {first}");
                }
            }
        }
    }
}
