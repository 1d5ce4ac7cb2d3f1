//! Copy threads: each owns pinned memory for one tensor, which the drive and the GPU share, and carries out one
//! operation after another.
//!
//! All operations on a tensor go to the same thread, so they happen in the order in which they were asked for. In the
//! overlap *cross*, threads take turns at storage: one reads while another copies to the GPU.

pub(super) mod gpu;
pub(super) mod threads;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_driver::memory::Buffer;
use bytes::Bytes;

use crate::error::{Error, Result};
use crate::media::checksum;
use crate::tensors::copy::gpu::Gpu;
use crate::tensors::group1::CachedFile;
use crate::tensors::group2::{Cost, Direction, Stream};
use crate::tensors::overlap::Overlap;
use crate::tensors::place::Span;
use crate::tensors::shape::TensorId;
use crate::tensors::stats::Moved;

/// Writes that a thread leaves behind at most.
pub(super) const BEHIND_COUNT: u64 = 8;

/// How long a thread is without a job before it looks whether all are.
const LULL: Duration = Duration::from_millis(1);

/// How a tensor is reached, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Through a mapping of the file.
    Mapped { offset: u64 },
    /// Through the page cache. A tensor of group 2 follows in the file if it is the last one, which read-ahead is to leave
    /// alone.
    Cached { offset: u64, is_last: bool },
    /// Through the page cache, which drops it after each use.
    Dropped { offset: u64 },
    /// Past the page cache, in the file.
    Direct { offset: u64 },
    /// In the extent.
    Extent { slba: u64 },
}

/// An operation on a tensor.
#[derive(Debug)]
pub(super) enum Work {
    /// Reads the first `bytes`, and passes them to the GPU or back to the caller.
    Read {
        route: Route,
        bytes: u64,
        overlap: Overlap,
        /// Write what was read to the file at this offset as well.
        copy_to: Option<u64>,
        to_caller: bool,
    },
    /// Writes bytes from `at` on, the GPU's or the caller's.
    Write {
        route: Route,
        at: u64,
        bytes: u64,
        from_caller: Option<Bytes>,
        /// Read them through the page cache, by this route of the tensor, once the thread is idle.
        fill: Option<Route>,
    },
    /// Takes a run of the file out of the page cache.
    Forget { offset: u64, bytes: u64 },
    /// Closes the queue of the mapping. The mapping goes with the last one.
    Unmap,
    /// Waits for writes left behind and deallocates a run of the extent.
    Deallocate { slba: u64, lbas: u64 },
}

/// An operation for a thread.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ticket: u64,
    pub(super) tensor: TensorId,
    /// The tensor's number in its run.
    pub(super) number: u32,
    pub(super) work: Work,
}

/// How an operation ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) ticket: u64,
    pub(super) moved: Moved,
    pub(super) ended_at: Instant,
    /// The bytes that the caller asked for.
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) result: Result<()>,
}

/// What a thread works with.
pub(super) struct Worker<G> {
    pub(super) gpu: Arc<G>,
    /// Pinned memory for one tensor; gone if a command on it never ended.
    pub(super) memory: Option<Buffer>,
    pub(super) file: Option<CachedFile>,
    pub(super) mapped: Option<Stream>,
    pub(super) direct: Option<Stream>,
    pub(super) extent: Option<Stream>,
    /// Held while reading a tensor of each group in the overlap *cross*.
    pub(super) turns: [Arc<Mutex<()>>; 2],
    /// The checksums of writes by tensor, if they are kept.
    pub(super) checksums: Option<Checksums>,
    /// Tensors to read through the page cache while idle, by their route and bytes.
    pub(super) fills: VecDeque<(Route, u64)>,
    /// Jobs that no thread has ended.
    pub(super) unended: Arc<AtomicUsize>,
}

impl<G: Gpu> Worker<G> {
    /// Carries out jobs until their sender is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, done: &Sender<Done>) {
        let reads = Reads::of_this_thread();
        while let Some(job) = self.next(jobs) {
            let ticket = job.ticket;
            let mut moved = Moved::default();
            let result = self.carry_out(job, &reads, &mut moved);
            let (bytes, result) = match result {
                Ok(bytes) => (bytes, Ok(())),
                Err(error) => (None, Err(error)),
            };
            let ended_at = Instant::now();
            self.unended.fetch_sub(1, Ordering::Relaxed);
            if done.send(Done { ticket, moved, ended_at, bytes, result }).is_err() {
                return;
            }
        }
    }

    /// Waits for the next job, and fills the page cache while no thread has one: filling would take the drive's bandwidth
    /// from the others. Pinned memory is idle then.
    fn next(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        while !self.fills.is_empty() {
            match jobs.recv_timeout(LULL) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.unended.load(Ordering::Relaxed) > 0 => {}
                Err(RecvTimeoutError::Timeout) => self.fill(),
            }
        }
        jobs.recv().ok()
    }

    /// Reads a tensor that is to be in the page cache.
    fn fill(&mut self) {
        let Some((route, bytes)) = self.fills.pop_front() else { return };
        if let Err(error) = self.read(route, bytes, &mut Moved::default()) {
            tracing::debug!("its first read will show it as well: {error}");
        }
    }

    /// Forgets to fill the page cache with what lies at `offset` of the file: it is there now, or is not to be.
    fn drop_fill(&mut self, offset: u64) {
        self.fills.retain(
            |(route, _)| !matches!(route, Route::Cached { offset: other, .. } if *other == offset),
        );
    }

    fn carry_out(&mut self, job: Job, reads: &Reads, moved: &mut Moved) -> Result<Option<Vec<u8>>> {
        let Job { tensor, number, work, .. } = job;
        match work {
            Work::Read { route, bytes, overlap, copy_to, to_caller } => {
                moved.bytes = bytes;
                if let Route::Cached { offset, .. } | Route::Direct { offset } = route {
                    self.drop_fill(offset);
                }
                let is_direct = matches!(route, Route::Direct { .. } | Route::Extent { .. });
                let turn = Arc::clone(&self.turns[usize::from(is_direct)]);
                let turn = (overlap == Overlap::Cross).then(|| turn.lock());
                self.settle(route, number)?;
                let (before, begun) = (reads.bytes(), Instant::now());
                self.read(route, bytes, moved)?;
                moved.took = begun.elapsed();
                drop(turn);
                moved.missed_bytes = match route {
                    Route::Direct { .. } | Route::Extent { .. } => Some(bytes),
                    _ => reads.bytes().zip(before).map(|(now, before)| now.saturating_sub(before)),
                };
                self.deliver(tensor, number, bytes, to_caller, copy_to)
            }
            Work::Write { route, at, bytes, from_caller, fill } => {
                (moved.bytes, moved.missed_bytes) = (bytes, Some(0));
                self.write((tensor, number), route, at..at + bytes, from_caller, moved)?;
                // A later write of the same tensor extends what is to be read.
                if let Some(Route::Cached { offset, .. }) = fill {
                    self.drop_fill(offset);
                }
                self.fills.extend(fill.map(|route| (route, at + bytes)));
                Ok(None)
            }
            Work::Forget { offset, bytes } => {
                self.drop_fill(offset);
                self.file().forget(offset, bytes);
                Ok(None)
            }
            Work::Unmap => {
                self.mapped = None;
                Ok(None)
            }
            Work::Deallocate { slba, lbas } => self.deallocate(slba, lbas).map(|()| None),
        }
    }

    fn file(&self) -> &CachedFile {
        self.file.as_ref().expect("routes of the file come with the file")
    }

    /// Waits for writes behind of a tensor, if its route leaves any.
    fn settle(&mut self, route: Route, number: u32) -> Result<()> {
        match self.stream(route) {
            Some((stream, _)) => stream.settle(Some(number)),
            None => Ok(()),
        }
    }

    /// Returns the queue of a route, and the byte of its device at which the tensor begins.
    fn stream(&mut self, route: Route) -> Option<(&mut Stream, u64)> {
        let (stream, byte) = match route {
            Route::Cached { .. } | Route::Dropped { .. } => return None,
            Route::Mapped { offset } => (self.mapped.as_mut(), offset),
            Route::Direct { offset } => (self.direct.as_mut(), offset),
            Route::Extent { slba } => {
                let stream = self.extent.as_mut().expect("routes come with their queue");
                let byte = slba * u64::from(stream.lba_bytes());
                return Some((stream, byte));
            }
        };
        Some((stream.expect("routes come with their queue"), byte))
    }

    fn read(&mut self, route: Route, bytes: u64, moved: &mut Moved) -> Result<()> {
        match route {
            Route::Cached { offset, .. } | Route::Dropped { offset } => {
                let runs_on = matches!(route, Route::Cached { is_last: false, .. });
                let mut memory = self.memory.take().ok_or_else(gone)?;
                let data = &mut memory[..bytes as usize];
                let result = match runs_on {
                    true => self.file().read(offset, data),
                    false => self.file().read_bounded(offset, data),
                };
                self.memory = Some(memory);
                if matches!(route, Route::Dropped { .. }) {
                    self.file().forget(offset, bytes);
                }
                result
            }
            _ => self.transfer(Direction::Read, route, 0..bytes, moved),
        }
    }

    /// Moves a range of a tensor between the drive and the start of pinned memory.
    fn transfer(
        &mut self,
        direction: Direction,
        route: Route,
        range: Range<u64>,
        moved: &mut Moved,
    ) -> Result<()> {
        let memory = self.memory.take().ok_or_else(gone)?;
        let (stream, start) = self.stream(route).expect("the route passes the page cache");
        let lba = u64::from(stream.lba_bytes());
        let span = Span { slba: (start + range.start) / lba, bytes: range.end - range.start };
        let before = stream.cost();
        let (memory, result) = stream.transfer(direction, span, memory);
        let after = stream.cost();
        self.memory = memory;
        if !matches!(route, Route::Mapped { .. }) {
            add_cost(moved, before, after);
        }
        result
    }

    /// Verifies what was read and passes it on.
    fn deliver(
        &mut self,
        tensor: TensorId,
        number: u32,
        bytes: u64,
        to_caller: bool,
        copy_to: Option<u64>,
    ) -> Result<Option<Vec<u8>>> {
        let memory = self.memory.as_ref().ok_or_else(gone)?;
        let data = &memory[..bytes as usize];
        if let Some(checksums) = &self.checksums {
            checksums.verify(tensor, number, data)?;
        }
        let mut copy = None;
        match to_caller {
            true => copy = Some(data.to_vec()),
            false => self.gpu.to_device(tensor, 0, data).map_err(|why| gpu_failed(tensor, why))?,
        }
        if let Some(offset) = copy_to {
            let route = Route::Direct { offset };
            self.transfer(Direction::Write, route, 0..bytes, &mut Moved::default())?;
        }
        Ok(copy)
    }

    fn write(
        &mut self,
        (tensor, number): (TensorId, u32),
        route: Route,
        range: Range<u64>,
        from_caller: Option<Bytes>,
        moved: &mut Moved,
    ) -> Result<()> {
        let bytes = range.end - range.start;
        let (gpu, at) = (Arc::clone(&self.gpu), range.start);
        let mut checksums = self.checksums.take();
        let kept = &mut checksums;
        let (begun, mut filling) = (Instant::now(), Duration::ZERO);
        let time_of_fill = &mut filling;
        let fill = move |memory: &mut [u8]| {
            let begun = Instant::now();
            match &from_caller {
                Some(data) => memory.copy_from_slice(data),
                None => gpu.to_host(tensor, at, memory).map_err(|why| gpu_failed(tensor, why))?,
            }
            if let Some(kept) = kept {
                kept.keep(number, at, memory);
            }
            *time_of_fill = begun.elapsed();
            Ok(())
        };
        let behind = match self.stream(route) {
            Some((stream, start)) if stream.leaves_behind(bytes) => Some((stream, start)),
            _ => None,
        };
        let result = if let Some((stream, start)) = behind {
            let slba = (start + range.start) / u64::from(stream.lba_bytes());
            let before = stream.cost();
            let result = stream.write_behind(number, Span { slba, bytes }, fill);
            add_cost(moved, before, stream.cost());
            result
        } else {
            self.fill_and_write(number, route, range, fill, moved)
        };
        moved.took = begun.elapsed().saturating_sub(filling);
        self.checksums = checksums;
        result
    }

    fn fill_and_write(
        &mut self,
        number: u32,
        route: Route,
        range: Range<u64>,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
        moved: &mut Moved,
    ) -> Result<()> {
        self.settle(route, number)?;
        let bytes = (range.end - range.start) as usize;
        fill(&mut self.memory.as_mut().ok_or_else(gone)?[..bytes])?;
        match route {
            Route::Cached { offset, .. } | Route::Dropped { offset } => {
                let at = offset + range.start;
                let memory = self.memory.as_ref().ok_or_else(gone)?;
                self.file().write(at, &memory[..bytes])?;
                if matches!(route, Route::Dropped { .. }) {
                    self.file().forget(at, bytes as u64);
                }
                Ok(())
            }
            _ => self.transfer(Direction::Write, route, range, moved),
        }
    }

    fn deallocate(&mut self, slba: u64, lbas: u64) -> Result<()> {
        let Some(stream) = &mut self.extent else { return Ok(()) };
        stream.settle(None)?;
        let mut memory = self.memory.take().ok_or_else(gone)?;
        // A page holds the ranges of any deallocation.
        let rest = memory.split_off(memory.len().min(4096));
        drop(rest);
        stream.deallocate(slba, lbas, memory)
    }
}

fn add_cost(moved: &mut Moved, before: Cost, after: Cost) {
    moved.commands += after.commands - before.commands;
    moved.sequential += after.sequential - before.sequential;
    moved.direct += after.active - before.active;
    moved.busy += after.busy - before.busy;
}

/// The error of a thread without memory.
fn gone() -> Error {
    let why = "its memory is still with a command that never ended";
    Error::tensors(
        "a copy thread",
        "move a tensor",
        why,
        "check the drive, then begin the run anew",
    )
}

fn gpu_failed(tensor: TensorId, why: std::io::Error) -> Error {
    Error::tensors("the GPU", format!("copy {tensor}"), why, "check it, then begin the run anew")
}

/// The checksums of writes, by the number of the tensor.
#[derive(Debug, Default)]
pub(super) struct Checksums(HashMap<u32, Vec<(Range<u64>, u32)>>);

impl Checksums {
    /// Keeps that of bytes written from `at` on, instead of those of earlier writes that they touch.
    fn keep(&mut self, number: u32, at: u64, bytes: &[u8]) {
        let range = at..at + bytes.len() as u64;
        let writes = self.0.entry(number).or_default();
        writes.retain(|(other, _)| other.end <= range.start || range.end <= other.start);
        writes.push((range, checksum::of(bytes)));
    }

    /// Verifies all writes that lie in the first bytes of a tensor.
    fn verify(&self, tensor: TensorId, number: u32, bytes: &[u8]) -> Result<()> {
        for (range, expected) in self.0.get(&number).into_iter().flatten() {
            let part = bytes.get(range.start as usize..range.end as usize);
            if let Some(part) = part
                && checksum::of(part) != *expected
            {
                let why = format!(
                    "bytes {} to {} are not those that were written",
                    range.start, range.end
                );
                let fix = "check the drive, and compute the tensors anew";
                return Err(Error::tensors(tensor, "verify it", why, fix));
            }
        }
        Ok(())
    }
}

/// The bytes that drives have delivered for this thread (`read_bytes` of `/proc/thread-self/io`).
#[derive(Debug)]
struct Reads(Option<File>);

impl Reads {
    fn of_this_thread() -> Reads {
        Reads(File::open("/proc/thread-self/io").ok())
    }

    fn bytes(&self) -> Option<u64> {
        let mut text = [0; 512];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..len]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_cover_the_last_write_of_each_byte() {
        let mut checksums = Checksums::default();
        let tensor = TensorId::pair(0)[0];
        checksums.keep(7, 0, b"abcdefgh");
        checksums.keep(7, 8, b"ij");
        assert!(checksums.verify(tensor, 7, b"abcdefghij").is_ok());
        assert!(checksums.verify(tensor, 7, b"abcdefghiX").is_err());
        assert!(
            checksums.verify(tensor, 7, b"abcdefghi").is_ok(),
            "the second is not read as a whole"
        );
        assert!(checksums.verify(tensor, 7, b"Xbcdefgh").is_err());
        checksums.keep(7, 4, b"EFGH");
        assert!(checksums.verify(tensor, 7, b"....EFGHij").is_ok(), "the first was written over");
        assert!(checksums.verify(tensor, 9, b"anything").is_ok(), "another tensor");
    }

    #[test]
    fn the_kernel_counts_what_drives_deliver() {
        let reads = Reads::of_this_thread();
        let before = reads.bytes();
        assert_eq!(reads.bytes().is_some(), before.is_some(), "it says so always or never");
        assert_eq!(Reads(None).bytes(), None);
    }
}
