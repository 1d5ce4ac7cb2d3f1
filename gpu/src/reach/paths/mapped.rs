//! The mapping of a block of memory for one device.

use adit_driver::spec::Iova;
use adit_driver::{Buffer, FileMapping, IoBuffer};

/// A block mapped for one device; unmapped on drop, before the block can go.
#[derive(Debug)]
pub(crate) enum Mapped {
    /// Registered by its address in this process.
    Here(Buffer),
    /// Registered by the file behind it.
    File(FileMapping),
}

impl Mapped {
    pub(crate) fn iova(&self) -> Iova {
        match self {
            Mapped::Here(buffer) => buffer.iova(),
            Mapped::File(mapping) => mapping.iova(),
        }
    }

    /// Returns the device addresses of the two prebuilt PRP lists of the block's pages; `None` for a block of at most
    /// two pages, which needs no list.
    pub(crate) fn lists(&self) -> Option<[Iova; 2]> {
        let prebuilt = match self {
            Mapped::Here(buffer) => buffer.prebuilt(0),
            Mapped::File(mapping) => mapping.prebuilt(),
        };
        prebuilt.map(|lists| lists.tables())
    }
}
