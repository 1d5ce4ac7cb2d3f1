//! Physical Region Page lists, as a controller reads them (NVMe Base 2.0 section 4.1.1).
//!
//! - PRP 1 may point anywhere in a page, dword aligned.
//! - PRP 2 is the second page if the data ends there, else a list; a list may start anywhere in a page, qword aligned,
//!   and ends with that page.
//! - All other entries are page aligned; the last entry of a full list points to the next list if more than one page is
//!   left.

use super::memory::Dma;
use super::status::{DATA_TRANSFER_ERROR, PRP_OFFSET_INVALID};
use super::transfer::DmaRanges;
use adit_spec::{Iova, Status};

/// Entries read at a time.
const BATCH: usize = 64;

pub(super) fn walk(
    dma: &Dma<'_>,
    page_bytes: u64,
    prp: [u64; 2],
    len: u64,
    pieces: &mut DmaRanges,
) -> Result<(), Status> {
    let [first, second] = prp;
    if !first.is_multiple_of(4) {
        return Err(PRP_OFFSET_INVALID);
    }
    let in_first = len.min(page_bytes - first % page_bytes);
    pieces.push(first, in_first);
    let left = len - in_first;
    if left == 0 {
        return Ok(());
    }
    if left <= page_bytes {
        if !second.is_multiple_of(page_bytes) {
            return Err(PRP_OFFSET_INVALID);
        }
        pieces.push(second, left);
        return Ok(());
    }
    if !second.is_multiple_of(8) {
        return Err(PRP_OFFSET_INVALID);
    }
    walk_list(dma, page_bytes, second, left, pieces)
}

/// Follows the list at `at` and its successors.
fn walk_list(
    dma: &Dma<'_>,
    page_bytes: u64,
    mut at: u64,
    mut left: u64,
    pieces: &mut DmaRanges,
) -> Result<(), Status> {
    let mut batch = [0; BATCH * 8];
    while left > 0 {
        let in_page = (page_bytes - at % page_bytes) / 8;
        let count = in_page.min(left.div_ceil(page_bytes)).min(BATCH as u64);
        let bytes = &mut batch[..count as usize * 8];
        dma.read(Iova(at), bytes).map_err(|_| DATA_TRANSFER_ERROR)?;
        let mut next = at.wrapping_add(count * 8);
        let (entries, _) = bytes.as_chunks();
        for (index, entry) in entries.iter().enumerate() {
            let entry = u64::from_le_bytes(*entry);
            if !entry.is_multiple_of(page_bytes) {
                return Err(PRP_OFFSET_INVALID);
            }
            if index as u64 + 1 == in_page && left > page_bytes {
                next = entry;
                break;
            }
            let here = left.min(page_bytes);
            pieces.push(entry, here);
            left -= here;
        }
        at = next;
    }
    Ok(())
}
