//! Reads and writes of a file or block device.
//!
//! A request in registered memory (`create_queue`'s, or memory used some times since) is a READ_FIXED or
//! WRITE_FIXED, in other memory a READ or WRITE, with several segments a READV or WRITEV. A flush is an
//! fdatasync; a deallocation punches a hole, which on a block device zeroes the range and deallocates it if
//! the device can do both at once. A polled ring carries only reads and writes: `post` itself then carries
//! out flushes and deallocations, and splits requests longer than a command, because the kernel cannot poll
//! for those it splits.
#![allow(unsafe_code)]

use io_uring::types::FsyncFlags;
use io_uring::{cqueue, opcode, squeue};

use super::pieces::Cutter;
use super::ring::{FILE, Ring, RingOptions};
use super::{Encoding, KernelQueue, Registration, depth_max};
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer};
use crate::paths::extent::{ByteRange, Extent};
use crate::paths::file::OpenFile;
use crate::paths::info::{DeviceInfo, QueueOptions};
use crate::paths::request::{Durability, Operation};
use crate::queue_pair::{CommandError, Errno, RejectReason};
use crate::sys::file_io::{PIECES_MAX, Pieces};
use crate::target::KernelTarget;

/// A queue of `uring:`.
pub type UringQueue<B> = KernelQueue<B, Plain>;

/// A file and the options of its queues.
#[derive(Clone, Debug)]
pub(crate) struct UringDevice {
    file: OpenFile,
    /// Splits requests if completions are polled.
    polled: Option<Cutter>,
    registration: Registration,
}

/// Decides whether to poll an open file for completions.
///
/// # Errors
/// [`Error::Refused`] if polling was requested but is impossible.
pub(crate) fn open(target: &KernelTarget, file: OpenFile) -> Result<UringDevice> {
    let cannot = file.cannot_poll(target.direct);
    let polled = match (target.polled, cannot) {
        (Some(true), Some(why)) => {
            let fix = "or write 'polled=off'";
            return Err(Error::refused(target.device(), "poll for completions", why, fix));
        }
        (Some(asked), _) => asked,
        (None, cannot) => cannot.is_none(),
    };
    let polled = polled.then(|| file.polled_cutter());
    Ok(UringDevice { file, polled, registration: Registration::of(target.fixed) })
}

impl UringDevice {
    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    pub(crate) fn info(&self, target: &KernelTarget) -> DeviceInfo {
        let mut info = self.file.info(target, depth_max(self.polled.is_some()));
        info.deallocates = self.file.punches();
        if let Some(Cutter { command_bytes_max, .. }) = self.polled {
            info.command_bytes_max = command_bytes_max;
        }
        info
    }

    /// Creates a queue with `memory` registered.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    pub(crate) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
        device: &str,
    ) -> Result<UringQueue<B>> {
        let shape = RingOptions {
            device,
            fd: self.file.fd(),
            polled: self.polled.is_some(),
            memory,
            piece_bytes: None,
            registration: &self.registration,
        };
        let encoding = Plain {
            extent: self.file.extent(),
            file: self.file.clone(),
            cutter: self.polled,
            pieces: Pieces::with_room(PIECES_MAX),
            durability: Durability::Cached,
        };
        let lock = self.file.lock().cloned();
        KernelQueue::new(encoding, options, self.polled.is_some(), shape, lock)
    }
}

/// Encodes requests as reads and writes of a file.
#[derive(Debug)]
pub struct Plain {
    file: OpenFile,
    extent: Extent,
    /// Splits requests if completions are polled.
    cutter: Option<Cutter>,
    /// Segment lists of entries the kernel has not taken yet.
    pieces: Pieces,
    durability: Durability,
}

impl Plain {
    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }
}

impl Encoding for Plain {
    type Entry = squeue::Entry;
    type Done = cqueue::Entry;
    const COUNTS_BYTES: bool = true;

    #[inline]
    fn check<B: IoBuffer>(
        &self,
        operation: Operation,
        buffer: &B,
    ) -> Result<(ByteRange, usize), RejectReason> {
        let run = self.extent.run(operation, buffer)?;
        let commands = match &self.cutter {
            Some(cutter) if operation.moves() => cutter.count(buffer)?,
            _ => 1,
        };
        Ok((run, commands))
    }

    /// Submits earlier entries if their segment lists leave too little room.
    #[inline]
    fn has_room(&mut self, ring: &mut Ring<squeue::Entry, cqueue::Entry>, segments: usize) -> bool {
        if segments < 2 || self.cutter.is_some() {
            return true;
        }
        if self.pieces.len() + segments > PIECES_MAX {
            ring.submit();
        }
        if ring.pushed() == 0 {
            self.pieces.clear();
        }
        self.pieces.len() + segments <= PIECES_MAX
    }

    #[inline]
    fn at_once(&self, operation: Operation, run: ByteRange) -> Option<Result<u32, CommandError>> {
        if self.cutter.is_none() || operation.moves() {
            return None;
        }
        let done = match operation {
            Operation::Flush => self.file.file().sync_data(),
            _ => self.file.punch(run),
        };
        Some(done.map(|()| 0).map_err(|error| CommandError::System(Errno::of(&error))))
    }

    #[inline]
    unsafe fn push<B: IoBuffer>(
        &mut self,
        ring: &mut Ring<squeue::Entry, cqueue::Entry>,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
        user_data: u64,
    ) {
        let (reads, durability) = (matches!(operation, Operation::Read(_)), self.durability);
        if let Some(cutter) = self.cutter {
            for piece in cutter.pieces(run.offset, buffer) {
                let at = piece.data(buffer);
                let fixed = ring.fixed_in(at, piece.bytes, buffer.region_of(piece.segment()));
                let run = ByteRange { offset: piece.at, bytes: piece.bytes };
                let entry = transfer(at, run, fixed, reads, durability).user_data(user_data);
                // SAFETY: passed on to our caller; each piece lies in the request's buffer.
                unsafe { ring.push(&entry) };
            }
            return;
        }
        let entry = match operation {
            Operation::Flush => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
            Operation::Deallocate(..) => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, run.bytes).offset(run.offset).mode(mode).build()
            }
            _ if buffer.segment_count() != 1 => {
                scattered(&mut self.pieces, buffer, run, reads, durability)
            }
            _ => {
                let at = buffer.pointer(0).as_ptr();
                let fixed = ring.fixed_in(at, run.bytes, buffer.region_of(0));
                transfer(at, run, fixed, reads, durability)
            }
        };
        // SAFETY: passed on to our caller. Lists of pieces stay until the kernel took the entry, which copies them.
        unsafe { ring.push(&entry.user_data(user_data)) };
    }

    #[inline]
    fn outcome(result: i32) -> Result<u64, CommandError> {
        u64::try_from(result).map_err(|_| CommandError::System(Errno(result.saturating_neg())))
    }

    fn explain(&self, error: CommandError) -> CommandError {
        self.file.explain(error)
    }
}

/// Builds an entry for one piece of memory, registered as number `fixed` if any.
#[inline]
fn transfer(
    at: *mut u8,
    run: ByteRange,
    fixed: Option<u16>,
    reads: bool,
    durability: Durability,
) -> squeue::Entry {
    let (len, offset, flags) = (run.bytes as u32, run.offset, durability.write_flags());
    match (reads, fixed) {
        (true, Some(index)) => opcode::ReadFixed::new(FILE, at, len, index).offset(offset).build(),
        (true, None) => opcode::Read::new(FILE, at, len).offset(offset).build(),
        (false, Some(index)) => {
            opcode::WriteFixed::new(FILE, at, len, index).offset(offset).rw_flags(flags).build()
        }
        (false, None) => opcode::Write::new(FILE, at, len).offset(offset).rw_flags(flags).build(),
    }
}

/// Builds an entry for several segments, which `pieces` has room for.
#[cold]
fn scattered<B: IoBuffer>(
    pieces: &mut Pieces,
    buffer: &B,
    run: ByteRange,
    reads: bool,
    durability: Durability,
) -> squeue::Entry {
    let (first, count) = (pieces.len(), buffer.segment_count());
    for index in 0..count {
        pieces.push(buffer.pointer(index), buffer.segment(index).len);
    }
    let at = pieces.from(first).as_ptr();
    match reads {
        true => opcode::Readv::new(FILE, at, count as u32).offset(run.offset).build(),
        false => {
            let writev = opcode::Writev::new(FILE, at, count as u32).offset(run.offset);
            writev.rw_flags(durability.write_flags()).build()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    /// Returns an entry's opcode and its flags as of pwritev2(2).
    fn flags(entry: squeue::Entry) -> (u8, i32) {
        // SAFETY: an entry is the kernel's submission queue entry, 64 bytes without padding.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
        (bytes[0], i32::from_ne_bytes(std::array::from_fn(|i| bytes[28 + i])))
    }

    #[test]
    fn writes_say_how_durable_they_are_and_reads_do_not() {
        let buffer = memory::allocate_for_host(4096).expect("memory");
        let at = buffer.pointer(0).as_ptr();
        let run = ByteRange { offset: 0, bytes: 4096 };
        for (durability, expected) in [
            (Durability::Cached, 0),
            (Durability::Data, libc::RWF_DSYNC),
            (Durability::All, libc::RWF_SYNC),
        ] {
            for fixed in [None, Some(3)] {
                let [write, read] =
                    [false, true].map(|reads| flags(transfer(at, run, fixed, reads, durability)));
                assert_eq!((write.1, read.1), (expected, 0), "{durability:?} {fixed:?}");
                assert_ne!(write.0, read.0);
            }
            let [write, read] = [false, true].map(|reads| {
                let mut pieces = Pieces::with_room(1);
                flags(scattered(&mut pieces, &buffer, run, reads, durability))
            });
            assert_eq!((write.1, read.1), (expected, 0), "{durability:?} scattered");
        }
    }
}
