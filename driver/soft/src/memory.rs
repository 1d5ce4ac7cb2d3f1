//! Host memory as the controller reaches it: by bus address only.
//!
//! The controller never sees a host pointer. A bus, a vfio-user server or a test provides [`HostMemory`]; [`Dma`]
//! overlays the controller memory buffer where the host placed it.

use super::cmb::Cmb;
use crate::error::{Error, Result};
use adit_shared::SharedPages;
use adit_spec::Iova;

/// An address that the host has not made visible to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Result of serving a queue; a fault on the queue's own memory is fatal.
pub(super) type Served<T = ()> = std::result::Result<T, Fault>;

/// Result of a DMA access.
pub type DmaResult = std::result::Result<(), Fault>;

/// The host's memory. An access that is not wholly inside visible memory fails without a visible effect.
pub trait HostMemory {
    /// Fills `into` from `iova`.
    ///
    /// # Errors
    /// [`Fault`] when the host has not mapped all of it.
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult;

    /// Reads a submission queue entry. The default goes through [`HostMemory::read`].
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    #[inline]
    fn fetch(&self, iova: Iova, into: &mut [u8; 64]) -> DmaResult {
        self.read(iova, into)
    }

    /// Writes all of `from` at `iova`.
    ///
    /// # Errors
    /// As [`HostMemory::read`].
    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult;

    /// Reads a little-endian 32-bit word with one acquiring access (shadow doorbells).
    ///
    /// # Errors
    /// As [`HostMemory::read`], and for a misaligned address.
    fn load32(&self, iova: Iova) -> std::result::Result<u32, Fault>;

    /// Writes a little-endian 32-bit word with one releasing access (event indices).
    ///
    /// # Errors
    /// As [`HostMemory::load32`].
    fn store32(&self, iova: Iova, value: u32) -> DmaResult;

    /// Writes a completion queue entry such that its last eight bytes, with the phase tag, become visible after the
    /// rest and after all data written before.
    ///
    /// # Errors
    /// As [`HostMemory::read`], and for an address that is not a multiple of 16.
    fn post(&self, iova: Iova, entry: &[u8; 16]) -> DmaResult;

    /// Posts consecutive entries. The first becomes visible last: a host, which reads them in order, then finds all
    /// of them in one look.
    ///
    /// # Errors
    /// As [`HostMemory::post`].
    #[inline]
    fn post_all(&self, iova: Iova, entries: &[[u8; 16]]) -> DmaResult {
        for (index, entry) in entries.iter().enumerate().rev() {
            self.post(Iova(iova.0.wrapping_add(index as u64 * 16)), entry)?;
        }
        Ok(())
    }
}

/// Host memory, overlaid by the controller memory buffer where enabled.
pub(super) struct Dma<'a> {
    pub(super) host: &'a dyn HostMemory,
    pub(super) cmb: Option<&'a Cmb>,
}

impl Dma<'_> {
    /// Returns the CMB offset of `len` bytes at `iova`, if they lie in it.
    #[inline]
    fn in_cmb(&self, iova: Iova, len: usize) -> Option<(&Cmb, usize)> {
        let cmb = self.cmb?;
        Some((cmb, cmb.offset_of(iova, len)?))
    }

    #[inline]
    pub(super) fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        match self.in_cmb(iova, into.len()) {
            Some((cmb, offset)) => cmb.read(offset, into),
            None => return self.host.read(iova, into),
        }
        Ok(())
    }

    #[inline]
    pub(super) fn fetch(&self, iova: Iova, into: &mut [u8; 64]) -> DmaResult {
        match self.in_cmb(iova, into.len()) {
            Some((cmb, offset)) => cmb.read(offset, into),
            None => return self.host.fetch(iova, into),
        }
        Ok(())
    }

    #[inline]
    pub(super) fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        match self.in_cmb(iova, from.len()) {
            Some((cmb, offset)) => cmb.write(offset, from),
            None => return self.host.write(iova, from),
        }
        Ok(())
    }

    pub(super) fn load32(&self, iova: Iova) -> std::result::Result<u32, Fault> {
        self.host.load32(iova)
    }

    pub(super) fn store32(&self, iova: Iova, value: u32) -> DmaResult {
        self.host.store32(iova, value)
    }

    /// Posts consecutive completion queue entries; see [`HostMemory::post_all`].
    #[inline]
    pub(super) fn post(&self, iova: Iova, entries: &[[u8; 16]]) -> DmaResult {
        let Some((cmb, offset)) = self.in_cmb(iova, entries.as_flattened().len()) else {
            return self.host.post_all(iova, entries);
        };
        for (index, entry) in entries.iter().enumerate().rev() {
            cmb.write(offset + index * entry.len(), entry);
        }
        Ok(())
    }
}

/// Allocates memory that the controller shows to its host.
///
/// # Errors
/// An error if the system has no memory.
pub(super) fn shared_pages(len: usize) -> Result<SharedPages> {
    SharedPages::allocate(len).map_err(|why| {
        let what = format!("allocate {len} bytes");
        Error::refused("shared memory", what, why, "free memory or ask for less")
    })
}
