//! Routes to tensors: through the page cache, past it, or in the extent.

use crate::plan::Group;

/// The place of a layer's tensors and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the thread's file, through the page cache.
    Cached,
    /// In the thread's file, past the page cache.
    Direct,
    /// In the extent.
    Extent,
}

impl Home {
    /// Returns the group of its layers.
    pub(crate) fn group(self) -> Group {
        match self {
            Home::Cached => Group::Cached,
            Home::Direct | Home::Extent => Group::Direct,
        }
    }
}

/// The way to some tokens of a tensor, and the place of the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) home: Home,
    /// Offset in bytes in the file or the extent.
    pub(crate) offset: u64,
    /// Whether the bytes behind the last token in the file are cached too, so that read-ahead may continue into them.
    pub(crate) runs_on: bool,
}

impl Route {
    /// Returns the route `bytes` further on.
    pub(crate) fn further(self, bytes: u64) -> Route {
        Route { offset: self.offset + bytes, ..self }
    }
}
