//! Unfilled in the memory tier for an object that was read, to be filled by the thread that verifies the read.

use std::fmt;
use std::sync::Arc;

use super::hot::{Hot, HotEntry};
use super::memory::Unfilled;
use crate::shard::reads::reading::Reading;

/// An object on its way into the tier. Dropping this gives it up.
pub(crate) struct Filling {
    hot: Arc<Hot>,
    entry: Arc<HotEntry>,
    room: Option<Unfilled>,
}

impl Filling {
    pub(super) fn new(hot: &Arc<Hot>, entry: Arc<HotEntry>, room: Unfilled) -> Filling {
        Filling { hot: Arc::clone(hot), entry, room: Some(room) }
    }

    /// Has `copy` copy what was read and verified. If others may have written to it since (`is_shared`), only the copy
    /// counts, and is verified.
    pub(crate) fn fill(self, reading: &Reading, copy: impl FnOnce(&mut [u8]), is_shared: bool) {
        let pieces = &reading.extract.pieces;
        self.fill_by(|into| {
            copy(into);
            pieces.zero_gaps(into);
            !is_shared || pieces.are_intact(into, reading.checksums.iter().copied())
        });
    }

    /// Has `fill` write all of the bytes. If it returns false, the object stays out.
    pub(super) fn fill_by(mut self, fill: impl FnOnce(&mut [u8]) -> bool) {
        let room = self.room.take().expect("it is filled once");
        self.hot.fill(&self.entry, room.filled(fill));
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // Without effect once it is filled.
        self.hot.fill(&self.entry, None);
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filling").finish_non_exhaustive()
    }
}
