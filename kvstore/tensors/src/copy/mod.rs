//! Copy threads. Each owns pinned memory, shared by the drive and the GPU, and carries out one operation at a time, in
//! portions that fit. Pinned memory is kept small, because it takes memory from the page cache.
//!
//! All operations on a tensor go to the same thread, so they happen in the order of the calls. In the overlap *cross*,
//! threads take turns at storage: one reads while another copies to the GPU.

pub(crate) mod checksums;
pub(crate) mod fillings;
pub(crate) mod gpu;
pub(crate) mod queue;
pub(crate) mod route;
#[cfg(test)]
mod tests;
pub(crate) mod threads;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adit_driver::memory::Buffer;

use crate::error::{Error, Result};

use crate::cached::{CachedFile, PIECE_BYTES};
use crate::copy::checksums::Checksums;
use crate::copy::fillings::Fillings;
use crate::copy::gpu::Gpu;
use crate::copy::queue::BlockingQueue;
use crate::copy::route::{Home, Route};
use crate::direct::Direction;
use crate::overlap::Overlap;
use crate::place::Span;
use crate::shape::TensorId;
use crate::stats::Moved;

/// Idle time of a thread before it checks whether all threads are idle.
const LULL: Duration = Duration::from_millis(1);

/// An operation on a tensor.
#[derive(Debug)]
pub(crate) enum Work {
    /// Reads the first `bytes` and passes them to the GPU.
    Read {
        route: Route,
        bytes: u64,
        overlap: Overlap,
        /// Also writes the bytes to the file at this offset.
        copy_to: Option<u64>,
    },
    /// Writes bytes from `at` on, from the GPU's memory.
    Write {
        route: Route,
        at: u64,
        bytes: u64,
        /// Route of the first token by which the thread, once idle, reads all bytes up to this write's end through the
        /// page cache.
        fill: Option<Route>,
    },
    /// Drops a run of the file from the page cache.
    Forget { offset: u64, bytes: u64 },
}

/// A task for a thread.
#[derive(Debug)]
pub(crate) enum Task {
    /// An operation on a tensor.
    Tensor(TensorId, Work),
    /// Waits for all writes left behind.
    Settle,
    /// Deallocates a run of the extent.
    Deallocate { slba: u64, lbas: u64 },
}

/// A task with a ticket that identifies its answer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) task: Task,
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) ticket: u64,
    pub(crate) moved: Moved,
    pub(crate) ended_at: Instant,
    pub(crate) result: Result<()>,
    /// Whether a command of this thread never ended, so that the device may still carry it out.
    pub(crate) is_stuck: bool,
}

/// A message from a thread to its owner.
#[derive(Debug)]
pub(crate) enum Report {
    /// The thread has a worker.
    Started,
    /// The thread could not make a worker and ends.
    NotStarted(Error),
    /// A task ended.
    Done(Done),
    /// The thread panicked; its task never ends.
    Panicked,
}

/// Counters shared by the threads of a run.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Jobs that have not ended.
    pub(crate) unended: AtomicUsize,
    /// Bytes that idle threads read through the page cache.
    pub(crate) filled_bytes: AtomicU64,
}

/// The resources of a copy thread.
pub(crate) struct Worker<G> {
    pub(crate) gpu: Arc<G>,
    /// Pinned memory for a portion; `None` if a command on it never ended.
    pub(crate) memory: Option<Buffer>,
    /// Maximum bytes of a portion, whole tokens.
    pub(crate) portion_bytes: u64,
    pub(crate) file: Option<CachedFile>,
    pub(crate) direct: Option<BlockingQueue>,
    pub(crate) extent: Option<BlockingQueue>,
    /// Locks, one per group, held while reading a tensor in the overlap *cross*.
    pub(crate) turns: [Arc<Mutex<()>>; 2],
    /// The checksums of tokens, if they are kept.
    pub(crate) checksums: Option<Checksums>,
    /// Bytes to read through the page cache while idle.
    pub(crate) fills: Fillings,
    pub(crate) counts: Arc<Counts>,
}

impl<G: Gpu> Worker<G> {
    /// Carries out jobs until their sender is dropped.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>, reports: &Sender<Report>) {
        let reads = Reads::of_this_thread();
        while let Some(Job { ticket, task }) = self.next(jobs) {
            let mut moved = Moved::default();
            let result = self.carry_out(task, &reads, &mut moved);
            let (ended_at, is_stuck) = (Instant::now(), self.is_stuck());
            self.counts.unended.fetch_sub(1, Ordering::Relaxed);
            let done = Done { ticket, moved, ended_at, result, is_stuck };
            if reports.send(Report::Done(done)).is_err() {
                return;
            }
        }
    }

    /// Waits for the next job. Fills the page cache while no thread has a job, so that filling takes no bandwidth from
    /// others and pinned memory is idle. A job waits for at most one piece.
    fn next(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        let mut lull = LULL;
        while !self.fills.is_empty() {
            match jobs.recv_timeout(lull) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    let is_idle = self.counts.unended.load(Ordering::Relaxed) == 0;
                    lull = if is_idle { Duration::ZERO } else { LULL };
                    if is_idle {
                        self.fill();
                    }
                }
            }
        }
        jobs.recv().ok()
    }

    /// Reads one piece into the page cache.
    fn fill(&mut self) {
        let most = PIECE_BYTES.min(self.portion_bytes);
        let Some((route, bytes)) = self.fills.next(most) else { return };
        match self.read(route, bytes, &mut Moved::default()) {
            Ok(()) => drop(self.counts.filled_bytes.fetch_add(bytes, Ordering::Relaxed)),
            // The engine's own read of these bytes will report the error.
            Err(error) => tracing::debug!("cannot fill the page cache: {error}"),
        }
    }

    /// Returns whether a command never ended.
    fn is_stuck(&self) -> bool {
        let mut queues = [&self.direct, &self.extent].into_iter().flatten();
        self.memory.is_none() || queues.any(|queue| queue.core.is_stuck())
    }

    fn carry_out(&mut self, task: Task, reads: &Reads, moved: &mut Moved) -> Result<()> {
        let (tensor, work) = match task {
            Task::Tensor(tensor, work) => (tensor, work),
            Task::Settle => return self.settle(None),
            Task::Deallocate { slba, lbas } => return self.deallocate(slba, lbas),
        };
        match work {
            Work::Read { route, bytes, overlap, copy_to } => {
                moved.bytes = bytes;
                self.fills.forget(tensor);
                self.settle(Some(tensor))?;
                let before = reads.bytes();
                for part in self.portions(bytes) {
                    let len = part.end - part.start;
                    self.read_in_turn(route.further(part.start), len, overlap, moved)?;
                    if route.home != Home::Extent {
                        self.file().check_writeback()?;
                    }
                    let copy_to = copy_to.map(|offset| offset + part.start);
                    self.deliver(tensor, part, copy_to)?;
                }
                let delivered = || Some(reads.bytes()?.saturating_sub(before?));
                let is_direct = self.queue(route).is_some_and(|(queue, _)| !queue.core.is_cached());
                moved.missed_bytes = if is_direct { Some(bytes) } else { delivered() };
                Ok(())
            }
            Work::Write { route, at, bytes, fill } => {
                (moved.bytes, moved.missed_bytes) = (bytes, Some(0));
                self.settle(Some(tensor))?;
                for part in self.portions(bytes) {
                    let route = route.further(part.start);
                    self.write(tensor, route, at + part.start..at + part.end, moved)?;
                }
                if let Some(route) = fill {
                    // Fill the page cache only with bytes that the drive has.
                    self.settle(Some(tensor))?;
                    self.fills.add(tensor, route, at + bytes);
                }
                Ok(())
            }
            Work::Forget { offset, bytes } => {
                self.settle(Some(tensor))?;
                self.fills.forget(tensor);
                self.file().forget(offset, bytes);
                Ok(())
            }
        }
    }

    fn file(&self) -> &CachedFile {
        self.file.as_ref().expect("routes of the file come with the file")
    }

    /// Waits for the writes behind of a tensor, or of all tensors, on every queue, because a tensor's route may change.
    fn settle(&mut self, tensor: Option<TensorId>) -> Result<()> {
        let queues = [&mut self.direct, &mut self.extent].into_iter().flatten();
        // Settle each queue, even if another one fails.
        queues.map(|queue| queue.settle(tensor)).fold(Ok(()), Result::and)
    }

    /// Divides the bytes of an operation into portions.
    fn portions(&self, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<G> {
        let most = self.portion_bytes;
        assert!(most > 0, "memory holds a token");
        (0..bytes).step_by(most as usize).map(move |at| at..bytes.min(at + most))
    }

    /// Returns the queue of a route past the page cache, and the route's first LBA.
    fn queue(&mut self, route: Route) -> Option<(&mut BlockingQueue, u64)> {
        let queue = match route.home {
            Home::Cached => return None,
            Home::Direct => self.direct.as_mut(),
            Home::Extent => self.extent.as_mut(),
        };
        let queue = queue.expect("routes come with their queue");
        let lba = u64::from(queue.core.lba_bytes());
        assert!(route.offset.is_multiple_of(lba), "tokens begin at LBAs");
        Some((queue, route.offset / lba))
    }

    /// Reads a portion; in the overlap *cross*, only while no other thread reads one of the group.
    fn read_in_turn(
        &mut self,
        route: Route,
        bytes: u64,
        overlap: Overlap,
        moved: &mut Moved,
    ) -> Result<()> {
        let turn = Arc::clone(&self.turns[route.home.group() as usize]);
        let _turn = (overlap == Overlap::Cross).then(|| turn.lock());
        let begun = Instant::now();
        let result = self.read(route, bytes, moved);
        moved.took += begun.elapsed();
        result
    }

    /// Reads bytes to the start of pinned memory.
    fn read(&mut self, route: Route, bytes: u64, moved: &mut Moved) -> Result<()> {
        if route.home != Home::Cached {
            return self.transfer(Direction::Read, route, bytes, moved);
        }
        let mut memory = self.memory.take().ok_or_else(gone)?;
        let data = &mut memory[..bytes as usize];
        let result = match route.runs_on {
            true => self.file().read(route.offset, data),
            false => self.file().read_bounded(route.offset, data),
        };
        self.memory = Some(memory);
        result
    }

    /// Moves bytes of a tensor between the drive and the start of pinned memory.
    fn transfer(
        &mut self,
        direction: Direction,
        route: Route,
        bytes: u64,
        moved: &mut Moved,
    ) -> Result<()> {
        let memory = self.memory.take().ok_or_else(gone)?;
        let (queue, slba) = self.queue(route).expect("the route passes the page cache");
        let (memory, result) = queue.transfer(direction, Span { slba, bytes }, memory);
        moved.cost += queue.core.take_cost();
        self.memory = memory;
        result
    }

    /// Verifies a part of a tensor that was read and passes it to the GPU.
    fn deliver(&mut self, tensor: TensorId, part: Range<u64>, copy_to: Option<u64>) -> Result<()> {
        let memory = self.memory.as_ref().ok_or_else(gone)?;
        let bytes = part.end - part.start;
        let data = &memory[..bytes as usize];
        if let Some(checksums) = &self.checksums {
            checksums.verify(tensor, part.start, data)?;
        }
        let copied = self.gpu.to_device(tensor, part.start, data);
        copied.map_err(|why| gpu_failed(tensor, why))?;
        let Some(offset) = copy_to else { return Ok(()) };
        let route = Route { home: Home::Direct, offset, runs_on: false };
        self.transfer(Direction::Write, route, bytes, &mut Moved::default())
    }

    /// Writes a portion.
    fn write(
        &mut self,
        tensor: TensorId,
        route: Route,
        range: Range<u64>,
        moved: &mut Moved,
    ) -> Result<()> {
        let (at, bytes) = (range.start, range.end - range.start);
        let gpu = Arc::clone(&self.gpu);
        let mut checksums = self.checksums.take();
        let kept = &mut checksums;
        let (begun, mut filling) = (Instant::now(), Duration::ZERO);
        let time_of_fill = &mut filling;
        let fill = move |memory: &mut [u8]| {
            let begun = Instant::now();
            gpu.to_host(tensor, at, memory).map_err(|why| gpu_failed(tensor, why))?;
            if let Some(kept) = kept {
                kept.keep(tensor, at, memory);
            }
            *time_of_fill = begun.elapsed();
            Ok(())
        };
        let behind = self.queue(route).filter(|(queue, _)| queue.core.leaves_behind(tensor, bytes));
        let result = if let Some((queue, slba)) = behind {
            let result = queue.write_behind(tensor, Span { slba, bytes }, fill);
            moved.cost += queue.core.take_cost();
            result
        } else {
            self.fill_and_write(route, bytes, fill, moved)
        };
        moved.took += begun.elapsed().saturating_sub(filling);
        self.checksums = checksums;
        result
    }

    fn fill_and_write(
        &mut self,
        route: Route,
        bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
        moved: &mut Moved,
    ) -> Result<()> {
        let len = bytes as usize;
        fill(&mut self.memory.as_mut().ok_or_else(gone)?[..len])?;
        if route.home != Home::Cached {
            return self.transfer(Direction::Write, route, bytes, moved);
        }
        let memory = self.memory.as_ref().ok_or_else(gone)?;
        self.file().write(route.offset, &memory[..len])
    }

    fn deallocate(&mut self, slba: u64, lbas: u64) -> Result<()> {
        let Some(queue) = &mut self.extent else { return Ok(()) };
        let mut memory = self.memory.take().ok_or_else(gone)?;
        // The ranges of any deallocation fit in one page.
        drop(memory.split_off(memory.len().min(4096)));
        queue.deallocate(slba, lbas, memory)
    }
}

/// Returns the error of a thread whose memory a stuck command keeps.
fn gone() -> Error {
    let why = "its memory is still with a command that never ended";
    Error::failed("a copy thread", "move a tensor", why, "check the drive, then restart the run")
}

fn gpu_failed(tensor: TensorId, why: std::io::Error) -> Error {
    Error::failed("the GPU", format!("copy {tensor}"), why, "check it, then restart the run")
}

/// Reads the bytes that drives have delivered for this thread (`read_bytes` of `/proc/thread-self/io`).
#[derive(Debug)]
struct Reads(Option<File>);

impl Reads {
    fn of_this_thread() -> Reads {
        Reads(File::open("/proc/thread-self/io").ok())
    }

    fn bytes(&self) -> Option<u64> {
        let mut text = [0; 512];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        read_bytes(std::str::from_utf8(&text[..len]).ok()?)
    }
}

fn read_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}
