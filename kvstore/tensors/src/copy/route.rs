//! How tensors are reached.

use crate::plan::Group;

/// How a layer's tensors are reached.
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

/// How tokens of a tensor are reached, and where the first of them lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) home: Home,
    /// In bytes, of the file or the extent.
    pub(crate) offset: u64,
    /// Whether what follows the last token in the file is cached as well, so that read-ahead may run on into it.
    pub(crate) runs_on: bool,
}

impl Route {
    /// Returns the route of what lies `bytes` further on.
    pub(crate) fn further(self, bytes: u64) -> Route {
        Route { offset: self.offset + bytes, ..self }
    }
}
