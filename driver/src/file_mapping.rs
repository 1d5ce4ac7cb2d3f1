//! Memory that a device reaches through a file, such as the dma-buf of a GPU's memory.
//!
//! This process may be unable to access it, so there is no [`crate::Buffer`] for it: the code that drives the
//! device writes its addresses into commands itself. The mapping is removed before its owner is dropped; if
//! unmapping fails, the owner is leaked and an error logged (law 3).
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

/// A run of a file mapped for one controller; unmapped on drop.
pub struct FileMapping {
    prebuilt: Option<(PrebuiltPrps, Mapping)>,
    bus: Arc<dyn Bus>,
    iova: Iova,
    len: u64,
    /// Present until drop.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl FileMapping {
    /// Maps the file, and prebuilds its PRP lists if a transfer can need one.
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
        // SAFETY: the mapping keeps the owner until it is unmapped, and the owner keeps the file's bytes.
        let iova = unsafe { bus.map_file(file, offset, len)? };
        let bus = Arc::clone(bus);
        let mut mapping = FileMapping { prebuilt: None, bus, iova, len, owner: Some(owner) };
        let pages = len / PAGE_BYTES;
        if pages > 2 {
            mapping.prebuilt = Some(prebuild(&mapping.bus, iova, pages)?);
        }
        Ok(mapping)
    }

    /// Returns the device's address of the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Returns prebuilt PRP lists that cover the mapping, if it is longer than two pages.
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
        // SAFETY: this mapping's own; code that wrote its addresses into commands holds the mapping until
        // they are done.
        if let Err(error) = unsafe { self.bus.unmap(self.iova, self.len) } {
            tracing::error!("leaking {} bytes the device may still write: {error}", self.len);
            std::mem::forget(self.owner.take());
        }
    }
}
