//! Where the bytes of the namespaces are kept.
//!
//! Offsets are bytes from the start of the controller's storage; the caller has
//! checked that they are inside it. What was never written, or was deallocated,
//! reads as zeros.

mod file;
mod memory;

use self::file::FileMedia;
use self::memory::MemoryMedia;
use super::memory::{Dma, Fault};
use super::options::Storage;
use crate::error::Result;
use crate::spec::Iova;

/// What moving data can end in, other than well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediaError {
    /// The host's side of it: an address it did not map.
    Host,
    /// The media's side of it: the file behind it failed.
    Media,
    /// The bytes compared are not the same.
    Differ,
}

impl From<Fault> for MediaError {
    fn from(_: Fault) -> MediaError {
        MediaError::Host
    }
}

impl From<std::io::Error> for MediaError {
    fn from(_: std::io::Error) -> MediaError {
        MediaError::Media
    }
}

/// The result of moving data.
pub(super) type MediaResult = std::result::Result<(), MediaError>;

/// The storage of one controller.
#[derive(Debug)]
pub(super) enum Media {
    /// Memory of this process.
    Memory(MemoryMedia),
    /// A sparse file.
    File(FileMedia),
    /// Nowhere, of this many bytes.
    Null(u64),
}

impl Media {
    pub(super) fn open(storage: &Storage) -> Result<Media> {
        Ok(match storage {
            Storage::Memory { bytes } => Media::Memory(MemoryMedia::new(*bytes)?),
            Storage::File { path, bytes } => Media::File(FileMedia::open(path, *bytes)?),
            Storage::Null { bytes } => Media::Null(*bytes),
        })
    }

    /// Capacity in bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Media::Memory(memory) => memory.bytes(),
            Media::File(file) => file.bytes(),
            Media::Null(bytes) => *bytes,
        }
    }

    /// Copies from `offset` to the host.
    #[inline]
    pub(super) fn read(&mut self, offset: u64, dma: &Dma<'_>, to: Iova, len: usize) -> MediaResult {
        match self {
            Media::Memory(memory) => Ok(dma.write(to, memory.slice(offset, len))?),
            Media::File(file) => file.read(offset, dma, to, len),
            Media::Null(_) => Ok(()),
        }
    }

    /// Copies from the host to `offset`.
    #[inline]
    pub(super) fn write(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        from: Iova,
        len: usize,
    ) -> MediaResult {
        match self {
            Media::Memory(memory) => Ok(dma.read(from, memory.slice_mut(offset, len))?),
            Media::File(file) => file.write(offset, dma, from, len),
            Media::Null(_) => Ok(()),
        }
    }

    /// Compares with the host's memory.
    pub(super) fn compare(
        &mut self,
        offset: u64,
        dma: &Dma<'_>,
        with: Iova,
        len: usize,
    ) -> MediaResult {
        match self {
            Media::Memory(memory) => memory.compare(offset, dma, with, len),
            Media::File(file) => file.compare(offset, dma, with, len),
            Media::Null(_) => Ok(()),
        }
    }

    /// Copies inside the media. What comes of ranges that overlap is not defined, as in the specification.
    pub(super) fn copy(&mut self, from: u64, to: u64, len: u64) -> MediaResult {
        match self {
            Media::Memory(memory) => memory.copy(from, to, len),
            Media::File(file) => return file.copy(from, to, len),
            Media::Null(_) => {}
        }
        Ok(())
    }

    /// Makes the range read as zeros; gives its space back where it can.
    pub(super) fn zero(&mut self, offset: u64, len: u64) -> MediaResult {
        match self {
            Media::Memory(memory) => memory.zero(offset, len),
            Media::File(file) => return file.zero(offset, len),
            Media::Null(_) => {}
        }
        Ok(())
    }

    /// Reads the range and throws it away (Verify).
    pub(super) fn verify(&mut self, offset: u64, len: u64) -> MediaResult {
        match self {
            Media::File(file) => file.verify(offset, len),
            Media::Memory(_) | Media::Null(_) => Ok(()),
        }
    }

    /// Makes all that was written durable.
    pub(super) fn flush(&mut self) -> MediaResult {
        match self {
            Media::File(file) => file.flush(),
            Media::Memory(_) | Media::Null(_) => Ok(()),
        }
    }
}
