//! Reads and writes of a file or block device through io_uring.
//!
//! A request in registered memory (`create_queue`'s, or memory used some times since) is a READ_FIXED or
//! WRITE_FIXED, in other memory a READ or WRITE, with several segments a READV or WRITEV. A flush is an
//! fdatasync; a deallocation punches a hole, which on a block device zeroes the range and deallocates it if
//! the device can do both at once. A polled ring carries only reads and writes: `post` itself then carries
//! out flushes and deallocations, and splits requests longer than a command, because the kernel cannot poll
//! for those it splits.
//!
//! The kernel driver sets command deadlines ([`QueueOptions::timeout`] has no effect).
#![allow(unsafe_code)]

use io_uring::types::FsyncFlags;
use io_uring::{cqueue, opcode, squeue};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::extent::{Extent, Run};
use super::file::{self, OpenFile};
use super::kernel_ring::{COMMANDS_MIN, COMMANDS_PER_REQUEST, DEPTH_MAX, FILE, Ring, Shape};
use super::pieces::{Cutter, Join};
use super::{
    CommandQueue, DeviceInfo, DeviceOptions, Durability, Operation, QueueOptions, Request,
};
use crate::Time;
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, Errno, RejectReason, Rejected, Slots, Stats};
use crate::spec::Cid;
use crate::sys::file_io::{PIECES_MAX, Pieces};
use crate::target::KernelTarget;

/// A file and the options of its queues.
#[derive(Clone, Debug)]
pub(super) struct UringDevice {
    file: OpenFile,
    /// Splits requests if completions are polled.
    polled: Option<Cutter>,
    fixed: bool,
}

/// Opens the file and decides whether to poll for completions.
///
/// # Errors
/// As [`file::open`]; [`Error::Refused`] if polling was requested but is impossible.
pub(super) fn open(target: &KernelTarget, options: &DeviceOptions) -> Result<UringDevice> {
    let file = file::open(target, options)?;
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
    Ok(UringDevice { file, polled, fixed: target.fixed })
}

impl UringDevice {
    pub(super) fn info(&self, target: &KernelTarget) -> DeviceInfo {
        let info = self.file.info(target, DEPTH_MAX);
        let deallocates = self.file.punches();
        match self.polled {
            None => DeviceInfo { deallocates, ..info },
            Some(Cutter { command_bytes_max, .. }) => {
                let queue_depth_max = DEPTH_MAX / COMMANDS_PER_REQUEST;
                DeviceInfo { deallocates, command_bytes_max, queue_depth_max, ..info }
            }
        }
    }

    /// Creates a queue with `memory` registered.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    pub(super) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
        device: &str,
    ) -> Result<UringQueue<B>> {
        let (depth, entries) = match self.polled {
            None => (options.depth.clamp(1, DEPTH_MAX), options.depth.clamp(1, DEPTH_MAX)),
            Some(_) => {
                let depth = options.depth.clamp(1, DEPTH_MAX / COMMANDS_PER_REQUEST);
                (depth, (depth * COMMANDS_PER_REQUEST).max(COMMANDS_MIN))
            }
        };
        let memory = if self.fixed { memory } else { &[] };
        let (fd, polled) = (self.file.fd(), self.polled.is_some());
        let shape = Shape {
            device,
            fd,
            depth: entries,
            polled,
            memory,
            piece_bytes: None,
            learns: self.fixed,
        };
        Ok(UringQueue {
            ring: Ring::new(&shape)?,
            slots: Some(Slots::new(depth as usize)),
            asked: vec![0; depth as usize].into(),
            joins: vec![Join::default(); depth as usize].into(),
            commands: entries as usize,
            free_commands: entries as usize,
            cutter: self.polled,
            pieces: Pieces::with_room(PIECES_MAX),
            done_at_once: Vec::with_capacity(depth as usize),
            depth: depth as usize,
            durability: Durability::Cached,
            extent: self.file.extent(),
            file: self.file.clone(),
            device: device.to_owned(),
            gone: None,
            stats: Stats::default(),
        })
    }
}

/// A queue of `uring:`.
#[derive(Debug)]
pub struct UringQueue<B: IoBuffer> {
    ring: Ring<squeue::Entry, cqueue::Entry>,
    /// The requests' buffers; present until drop.
    slots: Option<Slots<B>>,
    /// By slot: bytes to move, 0 for operations without data.
    asked: Box<[u64]>,
    /// By slot.
    joins: Box<[Join]>,
    /// Entries of the ring, in all and free.
    commands: usize,
    free_commands: usize,
    cutter: Option<Cutter>,
    /// Segment lists of entries the kernel has not taken yet.
    pieces: Pieces,
    /// Requests that `post` carried out.
    done_at_once: Vec<Completion<B>>,
    depth: usize,
    durability: Durability,
    extent: Extent,
    file: OpenFile,
    device: String,
    gone: Option<CommandError>,
    stats: Stats,
}

impl<B: IoBuffer> UringQueue<B> {
    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    pub(super) fn notify(&self, event: BorrowedFd<'_>) -> Result<bool> {
        self.ring.notify(event, &self.device)
    }

    #[inline]
    fn slots(&mut self) -> &mut Slots<B> {
        self.slots.as_mut().expect("slots are there until drop")
    }

    /// Returns the number of entries of a request.
    ///
    /// # Errors
    /// The reason for rejecting it, for now or for good.
    #[inline]
    fn admit(&mut self, moves: bool, buffer: &B) -> Result<usize, RejectReason> {
        let needs = match &self.cutter {
            Some(cutter) if moves => cutter.count(buffer)?,
            _ => 1,
        };
        if needs > self.commands {
            return Err(RejectReason::TooLarge { what: "commands", needs, has: self.commands });
        }
        let in_flight = self.slots().in_flight() + self.done_at_once.len();
        let segments = if moves { buffer.segment_count() } else { 0 };
        let has_pieces = segments < 2 || self.make_room(segments);
        if in_flight >= self.depth || needs > self.free_commands || !has_pieces {
            return Err(RejectReason::Full);
        }
        Ok(needs)
    }

    /// Makes room for `segments`, submitting earlier entries if necessary.
    #[cold]
    fn make_room(&mut self, segments: usize) -> bool {
        if self.pieces.len() + segments > PIECES_MAX {
            self.ring.submit();
        }
        if self.ring.pushed() == 0 {
            self.pieces.clear();
        }
        self.pieces.len() + segments <= PIECES_MAX
    }

    #[inline]
    fn push(&mut self, operation: Operation, run: Run, slot: usize, cid: Cid) {
        if self.cutter.is_some() {
            self.push_cut(run, slot, matches!(operation, Operation::Read(_)), cid);
            return;
        }
        let entry = self.entry(operation, run, slot).user_data(cid.0.into());
        // SAFETY: the buffer is in its slot, and stays there until this entry completes; when the queue is dropped, it
        // is freed only once the kernel has nothing left (law 3). Lists of pieces stay until the kernel took the
        // entry, which copies them.
        unsafe { self.ring.push(&entry) };
    }

    /// Adds the entries of a read or write with polled completion.
    fn push_cut(&mut self, run: Run, slot: usize, reads: bool, cid: Cid) {
        let cutter = self.cutter.expect("only where completions are polled for");
        let slots = self.slots.as_ref().expect("slots are there until drop");
        let buffer = slots.get(slot).buffer.as_ref().expect("a request owns its buffer");
        for piece in cutter.pieces(run.offset, buffer) {
            let at = piece.data(buffer);
            let region = buffer.region_of(piece.segment());
            let fixed = self.ring.fixed_in(at, piece.bytes, region);
            let run = Run { offset: piece.at, bytes: piece.bytes };
            let entry = transfer(at, run, fixed, reads, self.durability).user_data(cid.0.into());
            // SAFETY: as in `push`; each piece lies in the request's buffer, which stays until the last of its entries
            // completes.
            unsafe { self.ring.push(&entry) };
        }
    }

    fn entry(&mut self, operation: Operation, run: Run, slot: usize) -> squeue::Entry {
        match operation {
            Operation::Read(_) | Operation::Write(_) => {
                self.transfer(run, slot, matches!(operation, Operation::Read(_)))
            }
            Operation::Flush => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
            Operation::Deallocate(..) => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, run.bytes).offset(run.offset).mode(mode).build()
            }
        }
    }

    #[inline]
    fn transfer(&mut self, run: Run, slot: usize, reads: bool) -> squeue::Entry {
        let slots = self.slots.as_ref().expect("slots are there until drop");
        let buffer = slots.get(slot).buffer.as_ref().expect("a request owns its buffer");
        if buffer.segment_count() != 1 {
            return scattered(&mut self.pieces, buffer, run, reads, self.durability);
        }
        let at = buffer.pointer(0).as_ptr();
        let fixed = self.ring.fixed_in(at, run.bytes, buffer.region_of(0));
        transfer(at, run, fixed, reads, self.durability)
    }

    /// Carries out an operation that a polled ring cannot.
    #[cold]
    fn do_at_once(&mut self, operation: Operation, run: Run, buffer: B) {
        let done = match operation {
            Operation::Flush => self.file.file().sync_data(),
            _ => self.file.punch(run),
        };
        let result = done.map(|()| 0).map_err(|error| CommandError::System(Errno::of(&error)));
        self.stats.submitted += 1;
        self.done_at_once.push(Completion { buffer, result });
    }
}

/// Builds an entry for one piece of memory, registered as number `fixed` if any.
#[inline]
fn transfer(
    at: *mut u8,
    run: Run,
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
    run: Run,
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

/// Translates the kernel's result: bytes moved, or an error number.
#[inline]
fn outcome(result: i32) -> Result<u64, CommandError> {
    u64::try_from(result).map_err(|_| CommandError::System(Errno(result.saturating_neg())))
}

/// Returns the result of a request of `asked` bytes.
#[inline]
fn whole(result: Result<u64, CommandError>, asked: u64) -> Result<u32, CommandError> {
    match result {
        Ok(moved) if moved < asked => Err(CommandError::Short { moved, asked }),
        other => other.map(|_| 0),
    }
}

impl<B: IoBuffer> CommandQueue<B> for UringQueue<B> {
    #[inline]
    fn post(&mut self, _now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let Request { operation, buffer } = request;
        let run = match self.extent.run(operation, &buffer) {
            Ok(run) => run,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        let moves = matches!(operation, Operation::Read(_) | Operation::Write(_));
        let commands = match self.admit(moves, &buffer) {
            Ok(commands) => commands,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        if !moves && self.cutter.is_some() {
            self.do_at_once(operation, run, buffer);
            return Ok(());
        }
        let (slot, cid) = self.slots().occupy(Some(buffer), Time::NEVER, 0, false);
        self.asked[slot] = if moves { run.bytes } else { 0 };
        self.joins[slot] = Join::of(commands);
        self.free_commands -= commands;
        self.push(operation, run, slot, cid);
        self.stats.bytes += self.asked[slot];
        self.stats.submitted += commands as u64;
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.stats.submission_rings += u64::from(self.ring.pushed() > 0);
        self.ring.submit();
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let mut count = self.done_at_once.len();
        let mut commands = count;
        self.done_at_once.drain(..).for_each(&mut done);
        let slots = self.slots.as_mut().expect("slots are there until drop");
        let mut freed = 0;
        self.ring.reap(|user_data, result| {
            let cid = Cid(user_data as u16);
            let Some(slot) = slots.find(cid) else {
                self.stats.unknown_cids += 1;
                return;
            };
            freed += 1;
            let Some(result) = self.joins[slot].end(outcome(result)) else { return };
            let result = whole(result, self.asked[slot]).map_err(|error| self.file.explain(error));
            if let Err(error) = result
                && error.is_gone()
            {
                self.gone.get_or_insert(error);
            }
            let buffer = slots.end_plain(cid).expect("a request in flight owns its buffer");
            count += 1;
            done(Completion { buffer, result });
        });
        commands += freed;
        self.free_commands += freed;
        self.stats.completed += commands as u64;
        count
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.ring.wait(at_most)
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = &self.gone {
            let (device, reason) = (self.device.clone(), error.to_string());
            return Err(Error::Failed { device, reason });
        }
        self.ring.check(&self.device)
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl<B: IoBuffer> Drop for UringQueue<B> {
    fn drop(&mut self) {
        let left = self.ring.drain();
        if left > 0 {
            tracing::error!(
                "{}: leaking the memory of {left} requests that the kernel has not ended",
                self.device
            );
            std::mem::forget(self.slots.take());
            self.ring.leak_memory();
            // The file is not free for others either.
            std::mem::forget(self.file.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    /// An entry's opcode and its flags as of pwritev2(2).
    fn flags(entry: squeue::Entry) -> (u8, i32) {
        // SAFETY: an entry is the kernel's submission queue entry, 64 bytes without padding.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
        (bytes[0], i32::from_ne_bytes(std::array::from_fn(|i| bytes[28 + i])))
    }

    #[test]
    fn writes_say_how_durable_they_are_and_reads_do_not() {
        let buffer = memory::allocate_for_host(4096).expect("memory");
        let at = buffer.pointer(0).as_ptr();
        let run = Run { offset: 0, bytes: 4096 };
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
