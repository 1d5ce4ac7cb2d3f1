//! Memory that a device reaches by a file, such as the dma-buf of a GPU's memory.
//!
//! This process need not reach it, so there is no [`crate::Buffer`] of it: whoever drives the device writes
//! addresses into commands by hand. It is unmapped before its owner lets it go; if unmapping fails the owner is leaked,
//! and said so (law 3).
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::bus::Bus;
use crate::error::Result;
use crate::memory::{Mapping, prebuild};
use crate::spec::Iova;
use crate::transfer::PAGE_BYTES;
use crate::transfer::prebuilt::PrebuiltPrps;

/// A run of a file that is mapped for one controller, unmapped on drop.
pub struct FileMapping {
    prebuilt: Option<(PrebuiltPrps, Mapping)>,
    bus: Arc<dyn Bus>,
    iova: Iova,
    len: u64,
    /// There until drop.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl FileMapping {
    /// Maps the file and prebuilds its PRP lists where a transfer can need one.
    ///
    /// # Safety
    /// As [`crate::Controller::register_file`].
    pub(crate) unsafe fn new(
        bus: &Arc<dyn Bus>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<FileMapping> {
        // SAFETY: the owner, which the mapping keeps until it is unmapped, keeps the file's bytes.
        let iova = unsafe { bus.map_file(file, offset, len)? };
        let bus = Arc::clone(bus);
        let mut mapping = FileMapping { prebuilt: None, bus, iova, len, owner: Some(owner) };
        let pages = len / PAGE_BYTES;
        if pages > 2 {
            mapping.prebuilt = Some(prebuild(&mapping.bus, iova, pages)?);
        }
        Ok(mapping)
    }

    /// Where the device finds the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Prebuilt PRP lists that cover it, where it is longer than two pages.
    pub fn prebuilt(&self) -> Option<&PrebuiltPrps> {
        self.prebuilt.as_ref().map(|(prps, _)| prps)
    }
}

impl fmt::Debug for FileMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileMapping({}+{:#x})", self.iova, self.len)
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: this mapping's own; who wrote its addresses into commands holds it until they are done.
        if let Err(error) = unsafe { self.bus.unmap(self.iova, self.len) } {
            tracing::error!("leaking {} bytes the device may still write: {error}", self.len);
            std::mem::forget(self.owner.take());
        }
    }
}
