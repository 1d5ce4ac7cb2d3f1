//! An NVMe controller in device code: a persistent kernel that serves rings in memory, for tests and measurements.
//!
//! It runs in its own partition and starts before anything posts to it. It checks every field of every command and
//! counts bad ones; it moves data only if it has media. It has no admin queue: its queues exist from the start, and a
//! failed queue is restored by recreating the whole controller.
//!
//! Dropping it stops it in bounded time. If the kernel does not end, the GPU's memory is leaked with warnings.

mod layout;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adit_driver::controller::RingDepths;
use adit_gpu::internals::layout::{Form, LBAS_MAX};
use adit_gpu::internals::{
    self, DeviceMemory, Endless, Kernel, Partition, PinnedMemory, Program, Queue, Runner,
};
use adit_gpu::{Error, Gpu, Place, Priority, Result, Stream};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use layout::{ControllerArguments, ControllerQueue, ControllerRange, IN_FLIGHT_BYTES};

pub(crate) const QUEUES_MAX: u32 = 256;
/// The most entries of a queue.
const DEPTH_MAX: u32 = 65535;
/// The most ranges that commands may point to.
const RANGES_MAX: usize = 16;
/// How long the kernel may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Distance between doorbells, so that none share a cache line.
const DOORBELL_BYTES: u64 = 128;
const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) queues: u32,
    /// Entries of a submission queue; a completion queue has [`Shape::depths`]'.
    pub(crate) depth: u32,
    /// Where rings and doorbells lie: [`Place::Gpu`] or [`Place::Host`].
    pub(crate) place: Place,
    pub(crate) lba_shift: u32,
    /// Size of its only namespace, 1.
    pub(crate) lbas: u64,
    pub(crate) form: Form,
    /// Whether data are kept, in GPU memory the size of the namespace.
    pub(crate) media: bool,
    pub(crate) faults: Faults,
}

impl Shape {
    /// Returns the entries of both rings: twice as many for completions, as rings on a drive have.
    pub(crate) fn depths(&self) -> RingDepths {
        RingDepths { submission: self.depth, completion: (2 * self.depth).min(DEPTH_MAX) }
    }
}

/// The controller's faults, and the commands of each queue that they hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) kind: Fault,
    /// Hits every n-th command; not 0.
    pub(crate) every: u32,
    /// Number of commands before the first that it may hit.
    pub(crate) first: u32,
    /// Delay of [`Fault::Delayed`].
    pub(crate) delay: Duration,
}

impl Faults {
    pub(crate) const NONE: Faults =
        Faults { kind: Fault::None, every: 1, first: 0, delay: Duration::ZERO };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Fault {
    None = 0,
    /// Unrecovered Read Error.
    Status = 1,
    Lost = 2,
    /// A late completion.
    Delayed = 3,
    Twice = 4,
    /// A completion of a command that is not in flight.
    WrongCommand = 5,
}

/// Counters over all queues since the controller was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) commands: u64,
    pub(crate) completions: u64,
    /// Observed changes of submission doorbells; rings in quick succession count as one.
    pub(crate) sq_rings: u64,
    pub(crate) cq_rings: u64,
    pub(crate) faults: u64,
    /// Looks at a queue with a command waiting.
    pub(crate) looks: u64,
    /// Of these, at a full completion queue.
    pub(crate) full: u64,
    /// Invalid commands and doorbell values.
    pub(crate) bad: u64,
}

/// Memory that both sides access, with its GPU address.
#[derive(Debug)]
enum RingMemory {
    Gpu(DeviceMemory),
    Host(PinnedMemory),
}

impl RingMemory {
    fn allocate(gpu: &Arc<Gpu>, place: Place, bytes: u64) -> Result<RingMemory> {
        match place {
            Place::Gpu => DeviceMemory::zeroed(gpu, bytes).map(RingMemory::Gpu),
            Place::Host => PinnedMemory::allocate(gpu, bytes).map(RingMemory::Host),
        }
    }

    fn address(&self) -> u64 {
        match self {
            RingMemory::Gpu(memory) => memory.address(),
            RingMemory::Host(memory) => memory.address(),
        }
    }
}

/// All memory that the kernel accesses.
#[derive(Debug)]
struct Memory {
    /// Per queue: the submission ring, the completion ring, two doorbells.
    rings: RingMemory,
    queues: DeviceMemory,
    in_flight: DeviceMemory,
    /// The arguments, and the ranges behind them.
    arguments: DeviceMemory,
    media: Option<DeviceMemory>,
    /// Two words: stop, alive.
    words: PinnedMemory,
}

#[derive(Debug)]
pub(crate) struct GpuController {
    shape: Shape,
    stream: Stream,
    program: Arc<Program>,
    memory: Memory,
    /// Present while it runs.
    running: Option<Endless>,
}

impl GpuController {
    /// Creates a controller that will run in `partition`. Allocates all its memory now: while endless kernels run,
    /// allocations may have to wait for them.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Panics
    /// For a shape that no caller has: each checks or fixes its own.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        partition: &Partition,
        shape: &Shape,
    ) -> Result<GpuController> {
        assert!((1..=QUEUES_MAX).contains(&shape.queues), "a warp for each queue: {shape:?}");
        assert!((2..=DEPTH_MAX).contains(&shape.depth), "a ring of entries: {shape:?}");
        assert!((9..=16).contains(&shape.lba_shift), "512 bytes to 64 KiB: {shape:?}");
        assert!((1..1 << 40).contains(&shape.lbas), "a context has 40 bits for an LBA: {shape:?}");
        assert!(shape.faults.every > 0, "a fault hits every so many commands");
        let count = u64::from(shape.queues);
        let zeroed = |bytes| DeviceMemory::zeroed(gpu, bytes);
        let memory = Memory {
            rings: RingMemory::allocate(gpu, shape.place, count * pair_bytes(shape.depths()))?,
            queues: zeroed(count * size_of::<ControllerQueue>() as u64)?,
            in_flight: zeroed(count * IN_FLIGHT_BYTES)?,
            arguments: zeroed(PAGE_BYTES)?,
            media: shape.media.then(|| zeroed(shape.lbas << shape.lba_shift)).transpose()?,
            words: PinnedMemory::allocate(gpu, 8)?,
        };
        let stream = partition.stream(Priority::High)?;
        let controller = GpuController {
            shape: *shape,
            stream,
            program: Arc::clone(program),
            memory,
            running: None,
        };
        controller.write_queues()?;
        Ok(controller)
    }

    /// Starts it. Commands may point only to `ranges` (address, bytes).
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the kernel does not come alive; [`Error::Cuda`].
    pub(crate) fn start(&mut self, ranges: &[(u64, u64)]) -> Result<()> {
        assert!(self.running.is_none(), "it is started once at a time");
        assert!(ranges.len() <= RANGES_MAX, "{} ranges of commands' data", ranges.len());
        let memory = &self.memory;
        let [stop, alive] = [0, 1].map(|word| &memory.words.words()[word]);
        stop.store(0, Ordering::Release);
        let before = alive.load(Ordering::Acquire);
        let base = size_of::<ControllerArguments>() as u64;
        let listed: Vec<ControllerRange> =
            ranges.iter().map(|&(address, bytes)| ControllerRange { address, bytes }).collect();
        memory.arguments.write(base, listed.as_slice().as_bytes())?;
        memory.arguments.write(0, self.arguments(ranges.len() as u32).as_bytes())?;
        // One warp per queue, spread over the multiprocessors.
        let kernel = self.program.function(Kernel::Controller);
        // Begins before the launch: even a refused launch may have begun, and is stopped like any other.
        self.running = Some(Endless::begin(self.stream.gpu(), Runner::Controller)?);
        internals::launch(
            &self.stream,
            kernel,
            (self.shape.queues, 32),
            memory.arguments.address(),
        )?;
        let begin = Instant::now();
        while alive.load(Ordering::Acquire) == before {
            if begin.elapsed() >= PATIENCE {
                let fix = "end other kernels that do not end, or take fewer multiprocessors";
                let what = "the controller in device code to start";
                return Err(Error::timed_out(what, PATIENCE, fix));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn arguments(&self, range_count: u32) -> ControllerArguments {
        let memory = &self.memory;
        let Shape { faults, lbas, lba_shift, form, queues, .. } = self.shape;
        ControllerArguments {
            queues: memory.queues.address(),
            ranges: memory.arguments.address() + size_of::<ControllerArguments>() as u64,
            stop: memory.words.address(),
            alive: memory.words.address() + 4,
            media: memory.media.as_ref().map_or(0, DeviceMemory::address),
            lbas,
            delay_ns: faults.delay.as_nanos() as u64,
            queue_count: queues,
            range_count,
            nsid: 1,
            lba_shift,
            lbas_max: LBAS_MAX as u32,
            form: form as u32,
            fault: faults.kind as u32,
            fault_every: faults.every,
            fault_first: faults.first,
            reserved: 0,
        }
    }

    /// Sets the faults from the next start on.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        assert!(self.running.is_none() && faults.every > 0, "faults change while it is stopped");
        self.shape.faults = faults;
    }

    /// Returns its queues for rings, in order of their identifiers.
    pub(crate) fn queues(&self) -> Vec<Queue> {
        let base = self.memory.rings.address();
        (0..self.shape.queues).map(|index| queue(base, &self.shape, index)).collect()
    }

    fn write_queues(&self) -> Result<()> {
        for (index, queue) in self.queues().iter().enumerate() {
            let mut view = ControllerQueue::new_zeroed();
            view.sq = queue.sq;
            view.cq = queue.cq;
            view.sq_doorbell = queue.sq_doorbell;
            view.cq_doorbell = queue.cq_doorbell;
            view.in_flight = self.memory.in_flight.address() + index as u64 * IN_FLIGHT_BYTES;
            (view.depth, view.cq_depth) = (queue.depths.submission, queue.depths.completion);
            view.qid = u32::from(queue.qid);
            let at = index * size_of::<ControllerQueue>();
            self.memory.queues.write(at as u64, view.as_bytes())?;
        }
        Ok(())
    }

    /// Returns the counters, which are exact once it is stopped.
    ///
    /// # Errors
    /// [`Error::Cuda`] if its memory cannot be read.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let mut bytes = [0; size_of::<ControllerQueue>()];
        let mut all = Counters::default();
        for index in 0..u64::from(self.shape.queues) {
            self.memory.queues.read(index * bytes.len() as u64, &mut bytes)?;
            let queue = ControllerQueue::read_from_bytes(&bytes).expect("as many bytes as it has");
            all.commands += queue.commands;
            all.completions += queue.completions;
            all.sq_rings += queue.sq_rings;
            all.cq_rings += queue.cq_rings;
            all.faults += queue.faults;
            all.looks += queue.looks;
            all.full += queue.full;
            all.bad += queue.bad.iter().sum::<u64>();
        }
        Ok(all)
    }

    /// Reads the namespace's content from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] without media or past its end; [`Error::Cuda`].
    pub(crate) fn read_media(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let none = || Error::invalid("read a controller's media", "it was made without");
        self.memory.media.as_ref().ok_or_else(none)?.read(offset, bytes)
    }

    /// Stops it, if it runs. A later start continues where it stopped.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the kernel does not end; no memory of the GPU is freed from then on.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        self.memory.words.words()[0].store(1, Ordering::Release);
        let ended = self.stream.synchronize(PATIENCE);
        if ended.is_err() {
            tracing::warn!("a controller in device code does not end; its memory is not freed");
            running.give_up();
        }
        ended
    }
}

impl Drop for GpuController {
    fn drop(&mut self) {
        // Failures are in the log.
        drop(self.stop());
    }
}

/// Returns the bytes of a queue pair: both rings in whole pages, and the doorbells.
fn pair_bytes(depths: RingDepths) -> u64 {
    let cq_bytes = u64::from(depths.completion) * 16;
    sq_bytes(depths) + (cq_bytes + 2 * DOORBELL_BYTES).next_multiple_of(PAGE_BYTES)
}

fn sq_bytes(depths: RingDepths) -> u64 {
    (u64::from(depths.submission) * 64).next_multiple_of(PAGE_BYTES)
}

fn queue(base: u64, shape: &Shape, index: u32) -> Queue {
    let depths = shape.depths();
    let sq = base + u64::from(index) * pair_bytes(depths);
    // The doorbells lie at the end of the last page, each on its own cache lines.
    let end = sq + pair_bytes(depths);
    Queue {
        raw: None,
        sq,
        cq: sq + sq_bytes(depths),
        sq_doorbell: end - 2 * DOORBELL_BYTES,
        cq_doorbell: end - DOORBELL_BYTES,
        depths,
        completions_in_host: shape.place == Place::Host,
        qid: index as u16 + 1,
        nsid: 1,
        lba_shift: shape.lba_shift,
        protection: 0,
        bells: None,
        keeps: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::rings::shape;

    #[test]
    fn the_parts_of_queue_pairs_do_not_overlap() {
        for depth in [2, 3, 64, 100, 1000, 4096, 65535] {
            let shape = shape(3, depth);
            let mut from = 1 << 20;
            for index in 0..3 {
                let queue = queue(1 << 20, &shape, index);
                assert!(
                    queue.sq >= from && queue.sq.is_multiple_of(PAGE_BYTES),
                    "{depth}: {queue:?}"
                );
                assert!(queue.cq >= queue.sq + u64::from(depth) * 64, "{depth}: {queue:?}");
                assert!(
                    queue.sq_doorbell >= queue.cq + u64::from(shape.depths().completion) * 16,
                    "{depth}: {queue:?}"
                );
                assert!(
                    queue.cq_doorbell >= queue.sq_doorbell + DOORBELL_BYTES,
                    "{depth}: {queue:?}"
                );
                assert_eq!(u32::from(queue.qid), index + 1);
                from = queue.cq_doorbell + DOORBELL_BYTES;
            }
        }
    }

    #[test]
    fn memory_is_zeroed_beside_a_kernel_that_does_not_end() {
        let name = concat!(module_path!(), "::memory_is_zeroed_beside_a_kernel_that_does_not_end");
        adit_gpu_emulated::alone("free-waits,patience=500", name, || {
            let gpu = Gpu::open(0).expect("a GPU");
            let program = Program::load(&gpu).expect("it compiles");
            let memory = DeviceMemory::allocate(&gpu, 4096).expect("there is memory");
            let words = PinnedMemory::allocate(&gpu, 8).expect("there is memory");
            let arguments = DeviceMemory::allocate(&gpu, PAGE_BYTES).expect("there is memory");
            let mut without_queues = ControllerArguments::new_zeroed();
            (without_queues.stop, without_queues.alive) = (words.address(), words.address() + 4);
            arguments.write(0, without_queues.as_bytes()).expect("it fits");
            let stream = Stream::new(&gpu, Priority::High).expect("a stream");
            let kernel = program.function(Kernel::Controller);
            internals::launch(&stream, kernel, (1, 32), arguments.address())
                .expect("it is enqueued");
            let zeroed = memory.zero();
            assert!(!stream.is_idle().expect("nothing failed"), "it runs all the while");
            words.words()[0].store(1, Ordering::Release);
            stream.synchronize(PATIENCE).expect("it ends");
            zeroed.expect("nothing had to be loaded for it");
        });
    }
}
