//! Pages of a scan, as they are written to a client's memory.

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
pub(super) fn written(tag: u64, (found, next): &Page, memory: &mut [u8]) -> Done {
    let mut rest = memory;
    for info in found {
        let key = info.key.as_bytes();
        let (now, later) = rest.split_at_mut(SCANNED_BYTES + key.len());
        now[..8].copy_from_slice(&info.bytes.to_le_bytes());
        now[8..16].copy_from_slice(&info.version.0.to_le_bytes());
        now[16..SCANNED_BYTES].copy_from_slice(&(key.len() as u16).to_le_bytes());
        now[SCANNED_BYTES..].copy_from_slice(key);
        rest = later;
    }
    Done::new(tag, Code::Done, found.len() as u64, next.unwrap_or(SCAN_END))
}
