//! The engine for machines whose GPU cannot drive the devices' queues: CPU threads read into pinned memory and copy
//! from there to the GPU, or the other way round.
//!
//! ```text
//! issue(work) -> a thread's lane of the device
//! read:   device -> pinned chunk -> copy to the GPU          \  two stages: while a chunk is in the second,
//! write:  copy from the GPU -> pinned chunk -> device        /  the next ones are in the first
//! when all of a block is over: failed statuses, then `done`, on the stream of its copies
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `work` | a control block as issued, and how it ended |
//! | `job` | one control block in progress |
//! | `lane` | one device's queue pair and its jobs: no thread, no clock |
//! | `means`, `chunks` | the shared resources of a lane's jobs; its pinned memory |
//! | `copies`, `on_gpu` | what a lane needs from a GPU; its implementation |
//! | `thread` | the threads that turn the lanes |
//!
//! The engine needs no device-accessible memory but its own chunks, and no raw queues: shadow doorbells may be on. It
//! does not split transfers: a context is one command, and no larger than a chunk.

mod chunks;
mod copies;
mod job;
mod lane;
mod means;
mod on_gpu;
mod stats;
#[cfg(test)]
mod tests;
mod thread;
mod work;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use adit_driver::runtime::{Alarm, Idle, Pinning, Poller, Seat};
use adit_driver::{Controller, Namespace};

use crate::commands::layout::LBAS_MAX;
use crate::cuda::{Event, Gpu};
use crate::error::{Error, Result};

pub(crate) use means::Area;
pub(crate) use stats::Stats;
pub(crate) use work::{Progress, Work};

use lane::{Lane, LaneOptions};
use on_gpu::OnGpu;
use thread::{Lanes, Published};

/// Longer than a driver takes to delete its queues with every controller failing.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Neither copies nor commands wake a thread, so naps are short.
const IDLE: Idle = Idle {
    spin: Duration::from_micros(200),
    pause: Duration::from_micros(200),
    sleep_max: Duration::from_micros(50),
};

/// Configuration of the engine.
#[derive(Clone, Debug)]
pub(crate) struct StagedOptions {
    /// The cores of the threads, each of which has a queue pair on each device. Default none: then `threads` unpinned
    /// threads.
    pub(crate) cores: Vec<usize>,
    /// Number of unpinned threads. Default 2.
    pub(crate) threads: usize,
    /// Entries of each queue pair. Default 256.
    pub(crate) depth: u32,
    /// The most pinned bytes of each queue pair; at least four chunks are allocated. Default 16 MiB.
    pub(crate) pinned_bytes: usize,
    /// Time limit of a command before the driver aborts it. Default 10 s.
    pub(crate) timeout: Duration,
    /// Time limit of copies under way when the engine is dropped. Default 10 s.
    pub(crate) drain: Duration,
}

impl Default for StagedOptions {
    fn default() -> Self {
        StagedOptions {
            cores: Vec::new(),
            threads: 2,
            depth: 256,
            pinned_bytes: 16 << 20,
            timeout: Duration::from_secs(10),
            drain: Duration::from_secs(10),
        }
    }
}

/// Returns the bytes of the largest context of a namespace.
pub(crate) fn context_bytes_max(namespace: &Namespace) -> u64 {
    namespace.limits().max_bytes.min(LBAS_MAX << namespace.limits().lba_shift)
}

/// The engine: its threads, devices and the pool's regions.
pub(crate) struct Staged {
    devices: Vec<(Arc<Controller>, Namespace)>,
    areas: Arc<[Area]>,
    threads: Vec<Thread>,
    next: AtomicUsize,
}

struct Thread {
    work: Sender<Work<Arc<Event>>>,
    published: Arc<Published>,
    poller: Poller<()>,
}

impl Staged {
    /// Starts the threads. `areas` are the regions of the pool; `keep` keeps them, and the words that report finished
    /// blocks, for as long as a copy may access them.
    ///
    /// # Errors
    /// The driver's and the GPU's if queues or memory are unavailable, [`Error::Refused`] if no thread can be created.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        devices: &[(Arc<Controller>, Namespace)],
        areas: &[Area],
        keep: &Arc<dyn Any + Send + Sync>,
        options: &StagedOptions,
    ) -> Result<Staged> {
        let areas: Arc<[Area]> = areas.into();
        let mut staged = Staged {
            devices: devices.to_vec(),
            areas: Arc::clone(&areas),
            threads: Vec::new(),
            next: AtomicUsize::new(0),
        };
        let threads = if options.cores.is_empty() { options.threads } else { options.cores.len() };
        for number in 0..threads.max(1) {
            let lane = |(controller, namespace): &(Arc<Controller>, Namespace)| {
                let options = lane_options(namespace, options);
                Lane::new(controller, namespace, OnGpu::new(gpu), &areas, &options)
            };
            let lanes = devices.iter().map(lane).collect::<Result<Vec<_>>>()?;
            let core = options.cores.get(number).copied();
            staged.threads.push(Thread::start(number, core, lanes, Arc::clone(keep))?);
        }
        Ok(staged)
    }

    /// Hands a control block to one of the threads. Never blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context outside its region or larger than a command; the driver's for a controller out
    /// of service; [`Error::OutOfService`] if a thread is gone. The block has not begun.
    pub(crate) fn issue(&self, work: Work<Arc<Event>>) -> Result<()> {
        let (controller, _) = self.check(&work)?;
        controller.check()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        let thread = &self.threads[number];
        thread.work.send(work).map_err(|_| Error::OutOfService {
            device: controller.info().device.clone(),
            reason: format!("thread {number} of the staged engine has ended"),
        })?;
        thread.poller.alarm().tell();
        Ok(())
    }

    fn check(&self, work: &Work<Arc<Event>>) -> Result<&(Arc<Controller>, Namespace)> {
        let count = self.devices.len();
        let invalid = |why: String| Error::invalid("a control block of the staged engine", why);
        let device = self.devices.get(work.device);
        let device = device.ok_or_else(|| invalid(format!("there are {count} devices")))?;
        let most = context_bytes_max(&device.1);
        for (position, context) in work.contexts.iter().enumerate() {
            let bytes = u64::from(context.lbas()) * u64::from(device.1.lba_bytes());
            let area = self.areas.get(usize::from(context.region()));
            let end = context.address.checked_add(bytes);
            if bytes > most || area.zip(end).is_none_or(|(area, end)| end > area.bytes) {
                return Err(invalid(format!(
                    "context {position} is {bytes} bytes at {} of region {}: outside it, or more than {most}",
                    context.address,
                    context.region(),
                )));
            }
        }
        Ok(device)
    }

    /// Recovers every controller that is out of service. Commands in flight have ended by then or end with the threads'
    /// next turns.
    ///
    /// # Errors
    /// The first failure; the other controllers are still tried.
    pub(crate) fn recover(&self) -> Result<()> {
        let recovered = self.devices.iter().map(|(controller, _)| controller.recover());
        recovered.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>().map_err(Error::from)
    }

    /// Returns the sum of all threads' counters.
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for thread in &self.threads {
            sum += thread.published.stats();
        }
        sum
    }
}

/// Returns the configuration of a lane.
fn lane_options(namespace: &Namespace, options: &StagedOptions) -> LaneOptions {
    const CHUNKS_MIN: usize = 4;
    let chunk_bytes = context_bytes_max(namespace) as usize;
    let chunks = (options.pinned_bytes / chunk_bytes).min(options.depth as usize).max(CHUNKS_MIN);
    let StagedOptions { depth, timeout, drain, .. } = *options;
    LaneOptions { depth, chunks, chunk_bytes, timeout, drain }
}

impl Thread {
    fn start(
        number: usize,
        core: Option<usize>,
        lanes: Vec<Lane<OnGpu>>,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Thread> {
        let published = Arc::new(Published::default());
        let (sender, work) = channel();
        let lanes = Lanes { lanes, work, published: Arc::clone(&published), keep };
        let place = core.map(Pinning::on).unwrap_or_default();
        let seat = Seat { name: format!("adit-staged-{number}"), place, idle: IDLE };
        let poller = Poller::spawn(seat, Alarm::new()?, || Some(lanes))?;
        Ok(Thread { work: sender, published, poller })
    }
}

impl Drop for Staged {
    /// Ends what is in flight. Bounded by the copies' and the driver's own limits, and finally by abandoning threads.
    fn drop(&mut self) {
        self.threads.iter().for_each(|thread| thread.poller.stop());
        let end = Instant::now() + STOP_TIMEOUT;
        for Thread { poller, .. } in self.threads.drain(..) {
            if !poller.ends_by(end) {
                tracing::error!(
                    "a thread of the staged engine does not end; it is left with its memory"
                );
            }
        }
    }
}
