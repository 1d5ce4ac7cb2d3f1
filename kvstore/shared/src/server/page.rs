//! Pages of a scan and of removals, as they are written to a client's memory.

use adit_driver::Buffer;
use adit_kvstore::store::Removed;
use adit_kvstore::{KEY_BYTES_MAX, ScanPage};

use crate::wire::{Code, Done, OBJECT_BYTES_MAX, REMOVED_BYTES, SCAN_END, object_bytes};

/// Returns how many objects certainly fit in memory of so many bytes, whatever their keys.
pub(super) fn objects_max(bytes: usize) -> usize {
    bytes / OBJECT_BYTES_MAX
}

/// Writes a page to `memory`, which has room for it, and answers with its number of objects.
pub(super) fn written(tag: u64, (found, next): &ScanPage, memory: Option<&mut Buffer>) -> Done {
    let page: Vec<u8> = found.iter().flat_map(|info| object_bytes(info, true)).collect();
    if let Some(memory) = memory {
        memory.bytes_mut().write(0, &page);
    }
    Done::new(tag, Code::Done, found.len() as u64, next.unwrap_or(SCAN_END))
}

/// Returns how many removals certainly fit in memory of so many bytes, whatever their keys.
pub(super) fn removals_max(bytes: usize) -> usize {
    bytes / (REMOVED_BYTES + KEY_BYTES_MAX)
}

/// Writes removals to `memory`, which has room for them, and answers with their number.
pub(super) fn removed(tag: u64, removed: &Removed, memory: Option<&mut Buffer>) -> Done {
    let mut page = Vec::new();
    for key in &removed.keys {
        let key = key.as_bytes();
        page.extend((key.len() as u16).to_le_bytes());
        page.extend(key);
    }
    if let Some(memory) = memory {
        memory.bytes_mut().write(0, &page);
    }
    let count = removed.keys.len() as u64;
    Done { missed: removed.missed_some.into(), ..Done::new(tag, Code::Done, count, removed.next) }
}
