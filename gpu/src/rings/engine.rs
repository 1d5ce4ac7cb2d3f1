//! The ring engine: kernels that work on the rings, in streams of the I/O partition.
//!
//! One-shot: each call of `issue` launches a kernel that ends with its blocks. Persistent: one kernel runs as long as
//! the engine, and `issue` writes the word that it polls. Either way a stream copies headers to the GPU, after the
//! event that the blocks wait for and before anything that begins them.
//!
//! The engine is in service until a failure. `recover` then stops the kernels, ends every command and recreates queues
//! that still have commands outstanding. Stopping a kernel either succeeds within bounded time or reports failure;
//! after a failure the caller must not free anything the kernel reaches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use adit_driver::Controller;

use crate::commands::outcome::RESET;
use crate::commands::table::MappingTable;
use crate::cuda::program::{Kernel, Program};
use crate::cuda::{Busy, Endless, Gpu, PartitionKind, Partitions, Priority, Runner, Stream};
use crate::error::{Error, Result};
use crate::options::{KernelChoice, Options};
use crate::reach::proxy::{ProxyThread, Ringing};
use crate::reach::queue::Queue;
use crate::rings::beside::Beside;
use crate::rings::iocb::{Blocks, Execution, Iocbs};
use crate::rings::ring_set::{Counters, Rings, abort};

/// Streams that issue blocks in turn: few enough that each has its own hardware queue.
const STREAMS: usize = 4;
/// Warps of a kernel on each multiprocessor.
const WARPS_PER_SM: u32 = 8;
const LANES: u32 = 32;
/// How long stopped kernels may take: far longer than they need, even as threads of a busy CPU.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How long completions of aborted commands may take.
const ABORTED_WITHIN: Duration = Duration::from_millis(200);
/// The most commands that are aborted individually; deleting the queue ends the others.
const ABORTS_MAX: usize = 64;
const LOOK_EVERY: Duration = Duration::from_micros(100);

pub(crate) type MakeQueues = Box<dyn Fn(usize) -> Result<Vec<Queue>> + Send + Sync>;

/// The engine: rings, and the streams and kernels that serve them.
pub(crate) struct RingEngine {
    // Dropped first: the queues go before the streams of the kernels.
    running: RwLock<Running>,
    name: String,
    streams: Vec<Stream>,
    next_stream: AtomicUsize,
    control: Stream,
    program: Arc<Program>,
    partitions: Partitions,
    kernel: KernelChoice,
    /// Present while the persistent kernel runs.
    endless: Mutex<Option<Endless>>,
    gpu: Arc<Gpu>,
    controllers: Vec<Arc<Controller>>,
    make_queues: MakeQueues,
    /// What rings the doorbells, if the GPU does not, and what it asks whether commands are in flight.
    proxy: Option<(Arc<ProxyThread>, Arc<Ringing>)>,
}

/// The state that a recovery replaces.
struct Running {
    rings: Rings,
    /// Why nothing can be issued, until a recovery.
    out_of_service: Option<String>,
}

/// The parts of a ring engine, besides the options.
pub(crate) struct Parts<'a> {
    pub(crate) gpu: &'a Arc<Gpu>,
    pub(crate) program: Arc<Program>,
    pub(crate) blocks: &'a Blocks,
    pub(crate) tables: &'a [&'a MappingTable],
    /// The controllers of the devices that are reset with their queues.
    pub(crate) controllers: Vec<Arc<Controller>>,
    pub(crate) make_queues: MakeQueues,
    pub(crate) proxy: Option<(Arc<ProxyThread>, Arc<Ringing>)>,
    /// Released when everything is created, before the persistent kernel begins.
    pub(crate) making: Busy,
}

impl RingEngine {
    /// Creates queues and rings, and starts the persistent kernel if chosen.
    ///
    /// # Errors
    /// Failures to compile the device code or to create queues, and CUDA's errors.
    pub(crate) fn new(parts: Parts<'_>, options: &Options) -> Result<RingEngine> {
        let Parts { gpu, program, blocks, tables, controllers, make_queues, proxy, making } = parts;
        let sms = options.sms.unwrap_or_else(|| Options::sms_for(tables.len()));
        let partitions = gpu.partition(sms);
        let stream = |_| partitions.io.stream(Priority::High);
        let streams = (0..STREAMS).map(stream).collect::<Result<Vec<_>>>()?;
        let control = partitions.io.stream(Priority::High)?;
        let queues = (0..tables.len()).map(&make_queues).collect::<Result<Vec<_>>>()?;
        let rings = Rings::new(gpu, queues, tables, (blocks.iocbs(), blocks.count()))?;
        let is_endless = options.kernel == KernelChoice::Persistent;
        let beside = is_endless.then(|| Beside::new(gpu, &partitions)).transpose()?;
        let engine = RingEngine {
            running: RwLock::new(Running { rings, out_of_service: None }),
            name: controllers
                .iter()
                .map(|controller| controller.info().device.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            streams,
            next_stream: AtomicUsize::new(0),
            control,
            program,
            partitions,
            kernel: options.kernel,
            endless: Mutex::new(None),
            gpu: Arc::clone(gpu),
            controllers,
            make_queues,
            proxy,
        };
        drop(making);
        engine.start(&engine.read().rings, beside.as_ref())?;
        Ok(engine)
    }

    fn read(&self) -> RwLockReadGuard<'_, Running> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Running> {
        self.running.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the persistent kernel, if chosen, and checks that other streams make progress `beside` it. After an error
    /// none runs.
    fn start(&self, rings: &Rings, beside: Option<&Beside>) -> Result<()> {
        rings.set_stop(false);
        match self.kernel {
            KernelChoice::OneShot => Ok(()),
            KernelChoice::Persistent => {
                let endless = Endless::begin(&self.gpu, Runner::Rings)?;
                let launched = self.launch_persistent(rings, self.partitions.io.sms());
                let started = launched.and_then(|()| self.check_beside(rings, beside));
                if started.is_err() {
                    // A refused launch may have begun.
                    rings.set_stop(true);
                    if let Err(error) = self.await_end(beside) {
                        tracing::error!("a kernel does not stop: what it reaches is leaked");
                        endless.give_up();
                        return Err(error);
                    }
                }
                self.set_endless(started.is_ok().then_some(endless));
                started
            }
        }
    }

    fn check_beside(&self, rings: &Rings, beside: Option<&Beside>) -> Result<()> {
        let Some(beside) = beside else { return Ok(()) };
        let kernel = self.program.function(Kernel::Poke);
        beside.check(&self.streams, kernel, rings.prepare_marker())
    }

    /// Waits until a stopping kernel has ended, and the work launched beside it.
    fn await_end(&self, beside: Option<&Beside>) -> Result<()> {
        self.control.synchronize(STOP_WITHIN)?;
        beside.map_or(Ok(()), |beside| beside.await_end(&self.streams, STOP_WITHIN))
    }

    fn set_endless(&self, endless: Option<Endless>) {
        *self.endless.lock().unwrap_or_else(PoisonError::into_inner) = endless;
    }

    fn launch_persistent(&self, rings: &Rings, sms: u32) -> Result<()> {
        let function = self.program.function(Kernel::Persist);
        self.control.launch(function, sms, WARPS_PER_SM * LANES, rings.uring())
    }

    pub(crate) fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// Returns why the I/O kernels have no multiprocessors of their own, if they have none.
    pub(crate) fn no_partition(&self) -> Option<&str> {
        match &self.partitions.kind {
            PartitionKind::Green => None,
            PartitionKind::Priority { why } => Some(why),
        }
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.read().rings.queue_count()
    }

    /// Returns the rings' counters since their creation.
    pub(crate) fn counters(&self) -> Result<Counters> {
        self.read().rings.counters()
    }

    /// Returns how often the persistent kernel has polled for work.
    pub(crate) fn alive(&self) -> u32 {
        self.read().rings.alive()
    }

    /// Executes blocks on at most `sms` multiprocessors, after what they wait for.
    ///
    /// # Errors
    /// [`Error::OutOfService`] after an earlier failure; [`Error::Cuda`], which takes the engine out of service.
    pub(crate) fn issue(&self, blocks: &Blocks, iocbs: &Iocbs, sms: u32) -> Result<()> {
        let running = self.read();
        if let Some(reason) = &running.out_of_service {
            return Err(Error::OutOfService { device: self.name.clone(), reason: reason.clone() });
        }
        iocbs.claim()?;
        if iocbs.uses().is_empty() {
            return Ok(());
        }
        let issued = self.enqueue(&running.rings, blocks, iocbs, sms);
        drop(running);
        issued.inspect_err(|error| self.take_out_of_service(&error.to_string()))
    }

    fn enqueue(&self, rings: &Rings, blocks: &Blocks, iocbs: &Iocbs, sms: u32) -> Result<()> {
        let stream = &self.streams[self.next_stream.fetch_add(1, Ordering::Relaxed) % STREAMS];
        let argument = prepare(rings, blocks, iocbs);
        if let Some((proxy, _)) = &self.proxy {
            proxy.wake();
        }
        let way = self.begin(stream, blocks, iocbs, sms, argument);
        for held in iocbs.uses() {
            held.set_way(way.as_ref().map_or(Execution::Lost, Execution::clone));
        }
        way.map(drop)
    }

    /// Enqueues everything that begins the blocks.
    fn begin(
        &self,
        stream: &Stream,
        blocks: &Blocks,
        iocbs: &Iocbs,
        sms: u32,
        argument: u64,
    ) -> Result<Execution> {
        if let Some(event) = iocbs.after() {
            stream.wait_event(event)?;
        }
        copy_headers(stream, blocks, iocbs)?;
        if self.kernel == KernelChoice::Persistent {
            for held in iocbs.uses() {
                stream.write32(blocks.issued_address(held.index), held.generation)?;
            }
            return Ok(Execution::Persistent);
        }
        launch(stream, &self.program, iocbs, sms.min(self.partitions.io.sms()), argument)
    }

    /// Refuses further blocks until a recovery. The first reason stays.
    pub(crate) fn take_out_of_service(&self, reason: &str) {
        if self.write().refuse_to_issue(reason) {
            tracing::warn!(device = self.name, reason, "the GPU's rings are out of service");
        }
    }

    /// Takes the engine out of service if one of its rings is.
    pub(crate) fn look_for_poison(&self) -> Result<()> {
        let reason = self.read().rings.poison()?;
        if let Some(reason) = reason {
            self.take_out_of_service(&reason);
        }
        Ok(())
    }

    /// Stops all kernels and ends all commands that wait for them; nothing is issued until a recovery.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if a kernel, or an event that blocks wait for, does not end; [`Error::Cuda`].
    pub(crate) fn stop(&self, blocks: &Blocks) -> Result<()> {
        let mut running = self.write();
        running.refuse_to_issue("they were stopped");
        self.stop_kernels(&running.rings, blocks)?;
        // Blocks whose headers never reached the GPU belong to no kernel.
        blocks.end_all()
    }

    fn stop_kernels(&self, rings: &Rings, blocks: &Blocks) -> Result<()> {
        rings.set_stop(true);
        let started = Instant::now();
        self.control.synchronize(STOP_WITHIN)?;
        self.set_endless(None);
        // Kernels may queue in a stream: the next one begins once the current one's work is abandoned.
        loop {
            // Queried first: an idle stream has made all its blocks visible to the abandoning below, and begins no
            // more.
            let idle = self.streams.iter().map(Stream::is_idle).collect::<Result<Vec<_>>>()?;
            self.give_up(rings, &blocks.under_way())?;
            if idle.iter().all(|idle| *idle) {
                return Ok(());
            }
            if started.elapsed() >= STOP_WITHIN {
                let fix = "look at the events that control blocks wait for";
                return Err(Error::timed_out("the I/O kernels to stop", STOP_WITHIN, fix));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends everything that blocks have in flight or unsent.
    fn give_up(&self, rings: &Rings, under_way: &[u32]) -> Result<()> {
        if under_way.is_empty() {
            return Ok(());
        }
        let argument = rings.prepare_abandon(under_way, RESET);
        self.control.launch(self.program.function(Kernel::Abandon), 1, LANES, argument)?;
        self.control.synchronize(STOP_WITHIN)
    }

    /// Returns the engine to service. Ends all commands under way, those in flight as reset.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if a kernel does not stop; failures to recover controllers or to create queues. The engine
    /// then stays out of service.
    pub(crate) fn recover(&self, blocks: &Blocks, tables: &[&MappingTable]) -> Result<()> {
        let mut running = self.write();
        running.refuse_to_issue("they are being recovered");
        self.stop_kernels(&running.rings, blocks)?;
        blocks.end_all()?;
        self.abort_outstanding(&running.rings)?;
        self.drain(&running.rings)?;
        if self.needs_queues(&running.rings)? {
            self.make_queues_anew(&mut running.rings, tables)?;
        }
        // The streams are as they were when the first kernel began.
        self.start(&running.rings, None)?;
        running.out_of_service = None;
        Ok(())
    }

    /// Asks controllers to abort commands without a completion, each until it refuses.
    fn abort_outstanding(&self, rings: &Rings) -> Result<()> {
        let mut refuses = vec![false; self.controllers.len()];
        for (device, qid, cid) in rings.outstanding()?.into_iter().take(ABORTS_MAX) {
            if refuses[device] {
                continue;
            }
            if let Err(error) = abort(&self.controllers[device], qid, cid) {
                tracing::info!(
                    device = self.name,
                    qid = qid.0,
                    cid = cid.0,
                    "an abort failed: {error}"
                );
                refuses[device] = true;
            }
        }
        Ok(())
    }

    /// Runs a kernel that harvests late completions.
    fn drain(&self, rings: &Rings) -> Result<()> {
        if rings.outstanding()?.is_empty() {
            return Ok(());
        }
        // Completions of commands whose blocks have ended are told of as well.
        let _awake = self.proxy.as_ref().map(|(proxy, _)| proxy.keep_awake());
        rings.set_stop(false);
        let harvested = self.launch_persistent(rings, 1).and_then(|()| await_outstanding(rings));
        // A refused launch may have begun too, and must not be left running.
        rings.set_stop(true);
        self.control.synchronize(STOP_WITHIN)?;
        harvested
    }

    /// Returns whether the queues must be replaced.
    fn needs_queues(&self, rings: &Rings) -> Result<bool> {
        let has_failed = self.controllers.iter().any(|controller| controller.check().is_err());
        let is_whole = rings.queue_count() > 0;
        Ok(!is_whole || has_failed || rings.poison()?.is_some() || !rings.outstanding()?.is_empty())
    }

    /// Deletes all queues, recovers failed controllers, and creates the queues again.
    fn make_queues_anew(&self, rings: &mut Rings, tables: &[&MappingTable]) -> Result<()> {
        let _making = self.gpu.may_make("make the queues of the GPU's rings anew")?;
        for controller in &self.controllers {
            if controller.check().is_err() {
                controller.recover()?;
            }
        }
        rings.delete_queues();
        let queues = (0..tables.len()).map(&self.make_queues).collect::<Result<Vec<_>>>()?;
        rings.replace(queues, tables)
    }
}

impl Running {
    /// Refuses to issue from now on. Returns false if there was a reason already, which stays.
    fn refuse_to_issue(&mut self, reason: &str) -> bool {
        let is_first = self.out_of_service.is_none();
        self.out_of_service.get_or_insert_with(|| reason.to_owned());
        is_first
    }
}

/// Writes the headers of blocks, and the argument of a kernel for them; returns its address.
pub(crate) fn prepare(rings: &Rings, blocks: &Blocks, iocbs: &Iocbs) -> u64 {
    for held in iocbs.uses() {
        let (first, count) = rings.of_device(held.device);
        blocks.prepare(held, first, count);
        blocks.note_issue(held);
    }
    blocks.prepare_issue(rings.uring(), iocbs.uses())
}

pub(crate) fn copy_headers(stream: &Stream, blocks: &Blocks, iocbs: &Iocbs) -> Result<()> {
    for held in iocbs.uses() {
        let (pinned, range) = blocks.prepared_header(held.index);
        stream.copy_to_gpu(blocks.header_address(held.index), pinned, range)?;
    }
    Ok(())
}

/// Launches a kernel for blocks.
pub(crate) fn launch(
    stream: &Stream,
    program: &Program,
    iocbs: &Iocbs,
    sms: u32,
    argument: u64,
) -> Result<Execution> {
    let (grid, threads) = shape(iocbs.commands(), sms);
    stream.launch(program.function(Kernel::Issue), grid, threads, argument)?;
    Ok(Execution::Kernel(Arc::new(stream.record()?)))
}

fn await_outstanding(rings: &Rings) -> Result<()> {
    let started = Instant::now();
    while !rings.outstanding()?.is_empty() && started.elapsed() < ABORTED_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Returns blocks and threads of a kernel for `commands`: enough warps for all, spread over the multiprocessors.
fn shape(commands: u64, sms: u32) -> (u32, u32) {
    let sms = sms.max(1);
    let wanted = commands.div_ceil(u64::from(LANES)).min(u64::from(sms * WARPS_PER_SM)) as u32;
    let each = wanted.div_ceil(sms).max(1);
    (wanted.div_ceil(each).max(1), each * LANES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_no_more_warps_than_chunks_of_commands() {
        assert_eq!(shape(1, 8), (1, 32));
        assert_eq!(shape(32, 8), (1, 32));
        assert_eq!(shape(33, 8), (2, 32));
        assert_eq!(shape(2048, 8), (8, 256));
        assert_eq!(shape(1 << 20, 8), (8, 256));
        assert_eq!(shape(2048, 1), (1, 256));
        assert_eq!(shape(300, 0), (1, 256));
        for commands in 1..2048 {
            let (blocks, threads) = shape(commands, 4);
            assert!(
                u64::from(blocks * threads) >= commands.min(1024) && blocks <= 4 && threads <= 256
            );
        }
    }
}
