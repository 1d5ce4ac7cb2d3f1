//! Reads and writes of a file or block device through io_uring.
//!
//! A request in registered memory (`create_queue`'s) is a READ_FIXED or WRITE_FIXED, one in other memory a READ or
//! WRITE, one of several segments a READV or WRITEV. A flush is an fdatasync; a deallocation punches a hole, which on a
//! block device zeroes the range and gives it back where the device can do both at once. Where completions are polled
//! for the ring carries nothing but reads and writes, so that `post` itself carries these two out.
//!
//! Deadlines of commands are the kernel driver's ([`QueueOptions::timeout`] has no effect).
#![allow(unsafe_code)]

use io_uring::types::FsyncFlags;
use io_uring::{cqueue, opcode, squeue};

use super::extent::{Extent, Run};
use super::file::{self, OpenFile};
use super::kernel_ring::{DEPTH_MAX, FILE, Ring, Shape};
use super::{CommandQueue, DeviceInfo, DeviceOptions, Operation, QueueOptions, Request};
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer};
use crate::queue_pair::{CommandError, Completion, Errno, RejectReason, Rejected, Stats};
use crate::slots::Slots;
use crate::spec::Cid;
use crate::sys::file_io::{PIECES_MAX, Pieces};
use crate::target::KernelTarget;
use crate::time::Time;

/// A file and how its queues are made.
#[derive(Clone, Debug)]
pub(super) struct UringDevice {
    file: OpenFile,
    polled: bool,
    fixed: bool,
}

/// Opens the file and decides whether completions are polled for.
///
/// # Errors
/// As [`file::open`]; [`Error::Refused`] where polling was asked for and cannot be.
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
    Ok(UringDevice { file, polled, fixed: target.fixed })
}

impl UringDevice {
    /// What it is as a device.
    pub(super) fn info(&self, target: &KernelTarget) -> DeviceInfo {
        let info = self.file.info(target, DEPTH_MAX);
        DeviceInfo { deallocates: self.file.punches(), ..info }
    }

    /// Makes a queue with `memory` registered.
    ///
    /// # Errors
    /// [`Error::Refused`] with what the system said.
    pub(super) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
        device: &str,
    ) -> Result<UringQueue<B>> {
        let depth = options.depth.clamp(1, DEPTH_MAX);
        let memory = if self.fixed { memory } else { &[] };
        let shape = Shape { device, fd: self.file.fd(), depth, polled: self.polled, memory };
        Ok(UringQueue {
            ring: Ring::new(&shape)?,
            slots: Some(Slots::new(depth as usize)),
            asked: vec![0; depth as usize].into(),
            pieces: Pieces::with_room(PIECES_MAX),
            done_at_once: Vec::with_capacity(depth as usize),
            depth: depth as usize,
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
    /// What requests own; there until drop.
    slots: Option<Slots<B>>,
    /// By slot: bytes to be moved, 0 for what moves none.
    asked: Box<[u32]>,
    /// What entries that the kernel has not taken yet name.
    pieces: Pieces,
    /// Requests that `post` carried out.
    done_at_once: Vec<Completion<B>>,
    depth: usize,
    extent: Extent,
    file: OpenFile,
    device: String,
    gone: Option<CommandError>,
    stats: Stats,
}

impl<B: IoBuffer> UringQueue<B> {
    #[inline]
    fn slots(&mut self) -> &mut Slots<B> {
        self.slots.as_mut().expect("slots are there until drop")
    }

    /// Whether one more request, with `segments`, has room.
    #[inline]
    fn has_room(&mut self, segments: usize) -> bool {
        let in_flight = self.slots().in_flight() + self.done_at_once.len();
        if in_flight >= self.depth {
            return false;
        }
        if segments < 2 {
            return true;
        }
        if self.pieces.len() + segments > PIECES_MAX {
            self.ring.submit();
        }
        if self.ring.pushed() == 0 {
            self.pieces.clear();
        }
        self.pieces.len() + segments <= PIECES_MAX
    }

    /// The entry for the request in a slot.
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
            return scattered(&mut self.pieces, buffer, run, reads);
        }
        let (at, len) = (buffer.pointer(0).as_ptr(), run.bytes as u32);
        match (reads, self.ring.fixed(at, run.bytes)) {
            (true, Some(index)) => {
                opcode::ReadFixed::new(FILE, at, len, index).offset(run.offset).build()
            }
            (true, None) => opcode::Read::new(FILE, at, len).offset(run.offset).build(),
            (false, Some(index)) => {
                opcode::WriteFixed::new(FILE, at, len, index).offset(run.offset).build()
            }
            (false, None) => opcode::Write::new(FILE, at, len).offset(run.offset).build(),
        }
    }

    /// Carries out what a polled ring cannot.
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

/// An entry for several segments, which `pieces` has room for.
#[cold]
fn scattered<B: IoBuffer>(pieces: &mut Pieces, buffer: &B, run: Run, reads: bool) -> squeue::Entry {
    let (first, count) = (pieces.len(), buffer.segment_count());
    for index in 0..count {
        pieces.push(buffer.pointer(index), buffer.segment(index).len);
    }
    let at = pieces.from(first).as_ptr();
    match reads {
        true => opcode::Readv::new(FILE, at, count as u32).offset(run.offset).build(),
        false => opcode::Writev::new(FILE, at, count as u32).offset(run.offset).build(),
    }
}

/// What the kernel's result means for a request of `asked` bytes.
#[inline]
fn outcome(result: i32, asked: u32) -> Result<u32, CommandError> {
    match u32::try_from(result) {
        Ok(moved) if moved >= asked => Ok(0),
        Ok(moved) => Err(CommandError::Short { moved: moved.into(), asked: asked.into() }),
        Err(_) => Err(CommandError::System(Errno(result.saturating_neg()))),
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
        if !self.has_room(buffer.segment_count()) {
            return Err(Rejected { buffer, reason: RejectReason::Full });
        }
        let moves = matches!(operation, Operation::Read(_) | Operation::Write(_));
        if !moves && self.ring.polls() {
            self.do_at_once(operation, run, buffer);
            return Ok(());
        }
        let (slot, cid) = self.slots().occupy(Some(buffer), Time::NEVER, 0, false);
        let entry = self.entry(operation, run, slot).user_data(cid.0.into());
        self.asked[slot] = if moves { run.bytes as u32 } else { 0 };
        // SAFETY: the buffer is in its slot, and stays there until this entry completes; when the queue is dropped, it is
        // freed only once the kernel has nothing left (law 3). Lists of pieces stay until the kernel took the entry,
        // which copies them.
        unsafe { self.ring.push(&entry) };
        self.stats.bytes += u64::from(self.asked[slot]);
        self.stats.submitted += 1;
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.stats.submission_rings += 1;
        self.ring.submit();
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let mut count = self.done_at_once.len();
        self.done_at_once.drain(..).for_each(&mut done);
        let slots = self.slots.as_mut().expect("slots are there until drop");
        self.ring.reap(|user_data, result| {
            let Some(buffer) = slots.end_plain(Cid(user_data as u16)) else {
                self.stats.unknown_cids += 1;
                return;
            };
            let asked = self.asked[slots.last_ended()];
            let result = outcome(result, asked);
            if let Err(error) = result
                && self.file.is_gone(error)
            {
                self.gone.get_or_insert(error);
            }
            count += 1;
            done(Completion { buffer, result });
        });
        self.stats.completed += count as u64;
        count
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
        }
    }
}
