//! Pure rules for Physical Region Page entries and lists (Base 4.1.1).
//!
//! A PRP entry is the 64-bit address of a memory page; only the first entry of a transfer may have an offset into its
//! page. A list fills its page from its start address; when entries remain, its last slot points to the next list page.
//! The planner builds lists and the software controller walks them, each with its own code.

use super::ids::Iova;

/// Size of a PRP entry in bytes.
pub const ENTRY_BYTES: u64 = 8;

/// Returns the number of entries in a whole list page of `page_size` bytes.
pub const fn entries_per_page(page_size: u64) -> u64 {
    page_size / ENTRY_BYTES
}

/// Returns the number of entry slots from `list` to the end of its page, the chaining slot included.
pub const fn entries_to_page_end(list: Iova, page_size: u64) -> u64 {
    (page_size - list.page_offset(page_size)) / ENTRY_BYTES
}

/// Returns the number of memory pages that `len_bytes` from `start` touch; `None` if the range wraps.
pub const fn pages_touched(start: Iova, len_bytes: u64, page_size: u64) -> Option<u64> {
    if len_bytes == 0 {
        return Some(0);
    }
    if start.0.checked_add(len_bytes - 1).is_none() {
        return None;
    }
    let offset = start.page_offset(page_size);
    Some((len_bytes - 1 + offset) / page_size + 1)
}

/// Whether `entry` may be the first PRP entry of a transfer: dword aligned, any page offset.
pub const fn is_valid_first(entry: Iova) -> bool {
    entry.is_aligned(4)
}

/// Whether `entry` may be a later PRP entry or the address of a later list page: page aligned.
pub const fn is_valid_next(entry: Iova, page_size: u64) -> bool {
    entry.is_aligned(page_size)
}

/// Whether `list` may be the PRP2 of a command that needs a list: qword aligned, any page offset.
pub const fn is_valid_list_pointer(list: Iova) -> bool {
    list.is_aligned(ENTRY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_fit_a_page() {
        assert_eq!(entries_per_page(4096), 512);
        assert_eq!(entries_to_page_end(Iova(0x1000), 4096), 512);
        assert_eq!(entries_to_page_end(Iova(0x1ff8), 4096), 1);
    }

    #[test]
    fn pages_touched_counts_partial_pages() {
        assert_eq!(pages_touched(Iova(0x1000), 0, 4096), Some(0));
        assert_eq!(pages_touched(Iova(0x1000), 4096, 4096), Some(1));
        assert_eq!(pages_touched(Iova(0x1ffc), 8, 4096), Some(2));
        assert_eq!(pages_touched(Iova(u64::MAX), 1, 4096), Some(1));
        assert_eq!(pages_touched(Iova(u64::MAX), 2, 4096), None);
    }

    #[test]
    fn alignment_rules() {
        assert!(is_valid_first(Iova(0x1004)) && !is_valid_first(Iova(0x1002)));
        assert!(is_valid_next(Iova(0x2000), 4096) && !is_valid_next(Iova(0x2004), 4096));
        assert!(is_valid_list_pointer(Iova(0x2008)) && !is_valid_list_pointer(Iova(0x2004)));
    }
}
