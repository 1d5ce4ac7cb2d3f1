//! Building PRP lists (NVMe Base 2.0 section 4.1.1).
//!
//! PRP1 points at the first byte. With two pages, PRP2 is the second page; with more, it points at a list of
//! 8-byte entries. The last entry of a full list page holds the address of the next list page.

use super::{ListMemory, PAGE_BYTES, PRPS_PER_PAGE, Position, Runs, SegmentList};
use crate::spec::Iova;

/// Returns the list pages for a transfer that touches `entries` pages.
pub fn list_pages(entries: u64) -> usize {
    if entries <= 2 {
        return 0;
    }
    // The last page holds up to 512 entries, each earlier page 511 and a chain pointer.
    let listed = entries - 1;
    (listed - 1).div_ceil(PRPS_PER_PAGE - 1) as usize
}

/// Writes the lists of a transfer of `bytes` from `start` and returns PRP1 and PRP2 (`Iova(0)` if unused).
///
/// The planner has checked that PRPs can express the segments.
pub fn build<L: SegmentList + ?Sized>(
    segments: &L,
    start: Position,
    bytes: u64,
    lists: &mut impl ListMemory,
) -> (Iova, Iova) {
    let mut pages = Pages::new(segments, start, bytes);
    let first = pages.next().expect("a transfer has at least one byte");
    let Some(second) = pages.next() else {
        return (first, Iova(0));
    };
    let Some(third) = pages.next() else {
        return (first, second);
    };
    let list = [second, third].into_iter().chain(pages);
    write_list(list, lists);
    (first, lists.page_iova(0))
}

/// Writes entries, chaining pages. One entry of lookahead decides whether a page's last word is data or a
/// chain pointer.
fn write_list(entries: impl Iterator<Item = Iova>, lists: &mut impl ListMemory) {
    let mut entries = entries.peekable();
    let (mut page, mut index) = (0, 0);
    while let Some(entry) = entries.next() {
        let last_word = index == PRPS_PER_PAGE as usize - 1;
        if last_word && entries.peek().is_some() {
            lists.write(page, index, lists.page_iova(page + 1).0);
            (page, index) = (page + 1, 0);
        }
        assert!(entry.0.is_multiple_of(PAGE_BYTES), "listed entries are page aligned");
        lists.write(page, index, entry.0);
        index += 1;
    }
}

/// The addresses of the pages a transfer touches; the first includes its offset.
struct Pages<'a, L: ?Sized> {
    runs: Runs<'a, L>,
    current: Option<(u64, u64)>,
}

impl<'a, L: SegmentList + ?Sized> Pages<'a, L> {
    fn new(segments: &'a L, start: Position, bytes: u64) -> Self {
        Pages { runs: Runs::new(segments, start, bytes), current: None }
    }
}

impl<L: SegmentList + ?Sized> Iterator for Pages<'_, L> {
    type Item = Iova;

    fn next(&mut self) -> Option<Iova> {
        let (at, left) = match self.current.take() {
            Some(current) => current,
            None => self.runs.next().map(|run| (run.iova.0, run.len))?,
        };
        let in_page = (PAGE_BYTES - at % PAGE_BYTES).min(left);
        self.current = (left > in_page).then_some((at + in_page, left - in_page));
        Some(Iova(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_pages_count_chain_pointers() {
        let expected = [
            (1, 0),
            (2, 0),
            (3, 1),
            (513, 1),
            (514, 2),
            (1024, 2),
            (1025, 3),
            (1535, 3),
            (1536, 4),
        ];
        for (entries, pages) in expected {
            assert_eq!(list_pages(entries), pages, "{entries} pages of data");
        }
    }
}
