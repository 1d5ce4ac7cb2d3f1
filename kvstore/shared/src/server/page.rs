//! Pages of a scan, as they are written to a client's memory.

use adit_driver::Buffer;
use adit_kvstore::KEY_BYTES_MAX;
use adit_kvstore::store::ObjectInfo;

use crate::wire::{Code, Done, SCAN_END, SCANNED_BYTES};

/// Objects, and where to go on.
pub(super) type Page = (Vec<ObjectInfo>, Option<u64>);

/// Returns how many objects certainly fit in memory of so many bytes, whatever their keys.
pub(super) fn objects_max(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX) / (SCANNED_BYTES + KEY_BYTES_MAX)
}

/// Writes a page to `memory`, which has room for it, and answers with its number of objects.
pub(super) fn written(tag: u64, (found, next): &Page, memory: Option<&mut Buffer>) -> Done {
    let mut page = Vec::new();
    for info in found {
        let key = info.key.as_bytes();
        page.extend(info.bytes.to_le_bytes());
        page.extend(info.version.0.to_le_bytes());
        page.extend((key.len() as u16).to_le_bytes());
        page.extend(key);
    }
    if let Some(memory) = memory {
        memory.bytes_mut().write(0, &page);
    }
    Done::new(tag, Code::Done, found.len() as u64, next.unwrap_or(SCAN_END))
}
