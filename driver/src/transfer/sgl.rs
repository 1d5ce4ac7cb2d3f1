//! Building scatter-gather lists (NVMe Base 2.0 section 4.1.2).
//!
//! A single data block fits in the command. More form a chain of segments, one list page each: the command
//! points at the first, and the last descriptor of each full page points at the next. The pointer to the
//! final segment is a Last Segment descriptor; every pointer carries its segment's length.

use super::{ListMemory, PAGE_BYTES, Position, Runs, SegmentList};
use crate::spec::{Iova, SglDescriptor};

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: u64 = 16;
/// Descriptors in one list page.
const PER_PAGE: u64 = PAGE_BYTES / DESCRIPTOR_BYTES;

/// Returns the list pages for `descriptors` data blocks.
pub fn list_pages(descriptors: u64) -> usize {
    if descriptors <= 1 {
        return 0;
    }
    (descriptors - 1).div_ceil(PER_PAGE - 1) as usize
}

/// Writes the lists of a transfer of `bytes` from `start`, which has `descriptors` data blocks, and returns
/// the command's descriptor.
pub fn build<L: SegmentList + ?Sized>(
    segments: &L,
    start: Position,
    bytes: u64,
    descriptors: u64,
    lists: &mut impl ListMemory,
) -> SglDescriptor {
    let mut blocks = Runs::new(segments, start, bytes).map(|run| data_block(run.iova, run.len));
    if descriptors == 1 {
        return blocks.next().expect("a transfer has at least one byte");
    }
    let mut left = descriptors;
    let mut page = 0;
    while left > 0 {
        let here = in_page(left);
        for index in 0..here {
            let block = blocks.next().expect("the planner counted the blocks");
            write(lists, page, index, block);
        }
        left -= here;
        if left > 0 {
            let next = pointer(lists.page_iova(page + 1), left);
            write(lists, page, here, next);
        }
        page += 1;
    }
    pointer(lists.page_iova(0), descriptors)
}

/// Returns the data blocks in a page, when it and its successors hold `left` in all.
fn in_page(left: u64) -> u64 {
    if left <= PER_PAGE { left } else { PER_PAGE - 1 }
}

/// Returns a pointer to the segment at `at`, which starts a chain of `left` data blocks.
fn pointer(at: Iova, left: u64) -> SglDescriptor {
    if left <= PER_PAGE {
        SglDescriptor::last_segment(at, (left * DESCRIPTOR_BYTES) as u32)
    } else {
        SglDescriptor::segment(at, PAGE_BYTES as u32)
    }
}

fn data_block(iova: Iova, len: u64) -> SglDescriptor {
    SglDescriptor::data_block(iova, u32::try_from(len).expect("a command moves less than 4 GiB"))
}

fn write(lists: &mut impl ListMemory, page: usize, descriptor: u64, value: SglDescriptor) {
    let [low, high] = value.to_words();
    lists.write(page, descriptor as usize * 2, low.get());
    lists.write(page, descriptor as usize * 2 + 1, high.get());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_pages_count_segment_pointers() {
        for (descriptors, pages) in [(1, 0), (2, 1), (256, 1), (257, 2), (511, 2), (512, 3)] {
            assert_eq!(list_pages(descriptors), pages, "{descriptors} data blocks");
        }
    }
}
