//! Memory in the tier for an object being read, filled by the thread that verifies the read.

use std::fmt;
use std::sync::Arc;

use super::hot::{Hot, HotEntry};
use super::memory::Unfilled;
use crate::shard::reads::reading::Reading;

/// An object on its way into the tier. Dropping this value abandons the object.
pub(crate) struct Filling {
    hot: Arc<Hot>,
    entry: Arc<HotEntry>,
    room: Option<Unfilled>,
}

impl Filling {
    pub(super) fn new(hot: &Arc<Hot>, entry: Arc<HotEntry>, room: Unfilled) -> Filling {
        Filling { hot: Arc::clone(hot), entry, room: Some(room) }
    }

    /// Fills the memory by `copy` with the bytes that were read and verified. Verifies the copy if others may have
    /// written to the source meanwhile (`is_shared`).
    pub(crate) fn fill(self, reading: &Reading, copy: impl FnOnce(&mut [u8]), is_shared: bool) {
        let pieces = &reading.extract.pieces;
        self.fill_by(|into| {
            copy(into);
            pieces.zero_gaps(into);
            !is_shared || pieces.are_intact(into, reading.checksums.iter().copied())
        });
    }

    /// Fills the memory by `fill`. If that returns false, the object is abandoned.
    pub(super) fn fill_by(mut self, fill: impl FnOnce(&mut [u8]) -> bool) {
        let room = self.room.take().expect("it is filled once");
        self.hot.fill(&self.entry, room.filled(fill));
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // This has no effect on a filled entry.
        self.hot.fill(&self.entry, None);
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filling").finish_non_exhaustive()
    }
}
