//! Storage for the bytes of the namespaces.
//!
//! Offsets are bytes from the start of the controller's storage; the caller has checked that they are inside it.
//! Unwritten and deallocated ranges read as zeros.
//!
//! | file | holds |
//! |---|---|
//! | `store` | the storage as commands see it: all of the following as one |
//! | `cache` | the volatile write cache, which power loss may take |
//! | `defects` | unreadable LBAs |
//! | `memory`, `file` | durable media |

mod cache;
mod defects;
mod error;
mod file;
mod memory;
mod store;

use self::error::MediaResult;
use self::file::FileMedia;
use self::memory::MemoryMedia;
use super::options::{Options, Storage};
use crate::error::Result;

pub(super) use error::MediaError;
pub(super) use store::{LbaRun, Store};

/// The durable part of a controller's storage.
#[derive(Debug)]
enum Media {
    Memory(MemoryMedia),
    File(FileMedia),
    /// No storage, with this capacity in bytes.
    Null(u64),
}

impl Media {
    fn open(options: &Options) -> Result<Media> {
        Ok(match &options.storage {
            Storage::Memory { bytes } => Media::Memory(MemoryMedia::new(*bytes, options.prefault)?),
            Storage::File { path, bytes } => Media::File(FileMedia::open(path, *bytes)?),
            Storage::Null { bytes } => Media::Null(*bytes),
        })
    }

    fn bytes(&self) -> u64 {
        match self {
            Media::Memory(memory) => memory.bytes(),
            Media::File(file) => file.bytes(),
            Media::Null(bytes) => *bytes,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Media::Null(_))
    }

    /// Returns the bytes from `offset` on, if they lie in memory.
    #[inline]
    fn slice_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        match self {
            Media::Memory(memory) => Some(memory.slice_mut(offset, len)),
            Media::File(_) | Media::Null(_) => None,
        }
    }

    /// Makes the range read as zeros; frees its space where possible.
    fn zero(&mut self, offset: u64, len: u64) -> MediaResult {
        match self {
            Media::Memory(memory) => memory.zero(offset, len),
            Media::File(file) => return file.zero(offset, len),
            Media::Null(_) => {}
        }
        Ok(())
    }

    /// Copies from `offset` into `into`; null media yield zeros.
    fn load(&mut self, offset: u64, into: &mut [u8]) -> MediaResult {
        match self {
            Media::Memory(memory) => into.copy_from_slice(memory.slice(offset, into.len())),
            Media::File(file) => return file.load(offset, into),
            Media::Null(_) => into.fill(0),
        }
        Ok(())
    }

    fn store(&mut self, offset: u64, from: &[u8]) -> MediaResult {
        match self {
            Media::Memory(memory) => memory.slice_mut(offset, from.len()).copy_from_slice(from),
            Media::File(file) => return file.store(offset, from),
            Media::Null(_) => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> MediaResult {
        match self {
            Media::File(file) => file.flush(),
            Media::Memory(_) | Media::Null(_) => Ok(()),
        }
    }
}
