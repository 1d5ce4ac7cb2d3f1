//! Copies to and from a mapping of the file, one at a time, as a baseline.
//!
//! A file truncated while mapped, and a failing or full disk under a hole of the file, raise a bus error
//! (SIGBUS) in the copy. `sys/bus_error.rs` turns it into an error of the request.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use super::{Carry, SynchronousQueue};
use crate::error::{Error, Result};
use crate::memory::IoBuffer;
use crate::paths::extent::ByteRange;
use crate::paths::file::OpenFile;
use crate::paths::request::{Durability, Operation};
use crate::queue_pair::{CommandError, Errno};
use crate::sys::bus_error;

/// A queue of `mmap:`. Deallocation punches a hole in the file (BLKDISCARD on a block device); a flush is an
/// msync of the whole mapping.
pub type MmapQueue<B> = SynchronousQueue<B, Mapped>;

/// A file and its mapping, as long as the file was when opened.
#[derive(Clone)]
pub struct Mapped {
    file: OpenFile,
    map: Arc<MmapRaw>,
    /// Whether each write is followed by an msync of its range.
    syncs: bool,
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({:p}+{:#x})", self.map.as_ptr(), self.map.len())
    }
}

/// Maps the whole of `file`.
///
/// # Errors
/// [`Error::Refused`] if the system refuses.
pub(crate) fn map(file: OpenFile, device: &str) -> Result<Mapped> {
    let refused = |why: std::io::Error| {
        Error::refused(device, "map it", why, "use 'psync:', or a smaller file")
    };
    let mut options = MmapOptions::new();
    options.len(usize::try_from(file.bytes()).unwrap_or(usize::MAX));
    let map = match file.writes() {
        true => options.map_raw(file.file()),
        false => options.map_raw_read_only(file.file()),
    };
    bus_error::catch().map_err(refused)?;
    Ok(Mapped { file, map: Arc::new(map.map_err(refused)?), syncs: false })
}

pub(crate) fn create_queue<B>(mapped: &Mapped, device: &str) -> MmapQueue<B> {
    SynchronousQueue::new(mapped.clone(), mapped.file.extent(), device.to_owned())
}

impl Mapped {
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.syncs = durability != Durability::Cached;
    }

    /// Returns the address of `run`, which must be inside the mapping.
    fn at(&self, run: ByteRange) -> NonNull<u8> {
        let end = run.offset.checked_add(run.bytes);
        assert!(end.is_some_and(|end| end <= self.map.len() as u64), "a run lies in the file");
        let start = NonNull::new(self.map.as_mut_ptr()).expect("a mapping is never at address 0");
        // SAFETY: the run ends inside the mapping, as just checked.
        unsafe { start.add(run.offset as usize) }
    }

    /// Copies between the mapping and `buffer`, which is as long as `run`.
    fn copy<B: IoBuffer>(
        &self,
        run: ByteRange,
        buffer: &B,
        reads: bool,
    ) -> Result<u64, CommandError> {
        let (mut at, mut moved) = (self.at(run), 0);
        for index in 0..buffer.segment_count() {
            let len = buffer.segment(index).len as usize;
            let ours = buffer.pointer(index);
            let (from, to) = if reads { (at, ours) } else { (ours, at) };
            // SAFETY: both are `len` long: the segment is, and the segments together are as long as the run. The
            // buffer is ours alone; others may change the file, but then its bytes are only copied, never looked at.
            let whole = unsafe { bus_error::copy(from, to, len) };
            if !whole {
                return Err(CommandError::System(Errno(libc::EIO)));
            }
            moved += len as u64;
            // SAFETY: at most the end of the run, which is at most the end of the mapping.
            at = unsafe { at.add(len) };
        }
        Ok(moved)
    }

    fn flush(&self) -> Result<u64, CommandError> {
        let flushed = self.map.flush();
        flushed.map(|()| 0).map_err(|error| CommandError::System(Errno::of(&error)))
    }
}

impl Carry for Mapped {
    fn carry_out<B: IoBuffer>(
        &mut self,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
    ) -> Result<u64, CommandError> {
        match operation {
            Operation::Read(_) => self.copy(run, buffer, true),
            Operation::Write(_) if self.file.writes() => {
                let moved = self.copy(run, buffer, false)?;
                let synced = match self.syncs {
                    true => self.map.flush_range(run.offset as usize, run.bytes as usize),
                    false => Ok(()),
                };
                synced.map(|()| moved).map_err(|error| CommandError::System(Errno::of(&error)))
            }
            // The error of pwrite on a file opened for reading only.
            Operation::Write(_) => Err(CommandError::System(Errno(libc::EBADF))),
            Operation::Flush => self.flush(),
            Operation::Deallocate(..) => {
                let done = self.file.deallocate(run).map(|()| 0);
                done.map_err(|error| CommandError::System(Errno::of(&error)))
            }
        }
    }

    fn explain(&self, error: CommandError) -> CommandError {
        self.file.explain(error)
    }
}
