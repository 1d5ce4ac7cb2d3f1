//! Pages of a scan and of removals, as they are written to a client's memory.

use adit_driver::Buffer;
use adit_kvstore::store::Removed;
use adit_kvstore::{KEY_BYTES_MAX, ScanPage};

use crate::wire::{Code, Done, OBJECT_BYTES_MAX, REMOVED_BYTES, SCAN_END, object_bytes};

/// Returns how many objects to ask for: at most `limit`, and no more than fit in `memory` whatever their keys.
pub(super) fn objects_max(memory: &Buffer, limit: u64) -> usize {
    least(limit, memory.len() / OBJECT_BYTES_MAX)
}

/// Returns how many removals to ask for, as [`objects_max`].
pub(super) fn removals_max(memory: &Buffer, limit: u64) -> usize {
    least(limit, memory.len() / (REMOVED_BYTES + KEY_BYTES_MAX))
}

fn least(limit: u64, most: usize) -> usize {
    usize::try_from(limit).map_or(most, |limit| limit.min(most))
}

/// Writes a page to `memory`, which has room for it, and answers with its number of objects.
pub(super) fn written((found, next): &ScanPage, memory: &mut Buffer) -> Done {
    let page: Vec<u8> = found.iter().flat_map(|info| object_bytes(info, true)).collect();
    memory.bytes_mut().write(0, &page);
    Done::new(Code::Done, found.len() as u64, next.unwrap_or(SCAN_END))
}

/// Writes removals to `memory`, which has room for them, and answers with their number.
pub(super) fn removed(removed: &Removed, memory: &mut Buffer) -> Done {
    let mut page = Vec::new();
    for key in &removed.keys {
        let key = key.as_bytes();
        page.extend((key.len() as u16).to_le_bytes());
        page.extend(key);
    }
    memory.bytes_mut().write(0, &page);
    let count = removed.keys.len() as u64;
    Done { missed: removed.missed_some.into(), ..Done::new(Code::Done, count, removed.next) }
}
