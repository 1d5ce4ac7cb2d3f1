//! gio_uring: transfers between devices and the pool, prepared by the CPU, executed by the GPU, awaited by streams.
//!
//! ```text
//! init_queue   queues, rings, control blocks, the partition of the GPU                       once
//! get_iocb     transfers are cut into the contexts of control blocks, behind an event        CPU, once a layer
//! issue_io     a kernel on the I/O partition works through the blocks                        GPU
//! wait_cqe     a stream waits for the blocks' words; the CPU has no part                     GPU
//! ```
//!
//! Blocks begin in issue order, one stream's behind each other: issue blocks first that others' events depend on. If
//! the GPU cannot drive the devices' queues, CPU threads execute the blocks behind the same functions (`staged`), and
//! [`GioUring::description`] says why.
//!
//! Dropping it stops the kernels, deletes the queues, and then frees memory; whatever a kernel that does not stop could
//! still reach is leaked, and logged.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::transfer::{Slice, Transfer};

use crate::commands::cut::Span;
use crate::commands::outcome::{Ended, IocbOutcome};
use crate::commands::table::MappingTable;
use crate::cuda::program::Program;
use crate::cuda::{
    Event, Gpu, Partitions, Priority, QUICK_LOOKS, Stream, flush_rdma_writes, poll_until,
};
use crate::error::{Error, Result};
use crate::options::{EngineChoice, Options, Place};
use crate::reach::device::Device;
use crate::reach::paths::{Carried, failures};
use crate::reach::pool::Pool;
use crate::reach::proxy::{ProxyThread, Ringing};
use crate::reach::queues::QueueMaker;
use crate::rings::engine::{Parts, RingEngine};
use crate::rings::gates::{self, Gates};
use crate::rings::iocb::{Blocks, Execution, Filling, Iocbs, Use};
use crate::rings::member::{Member, ring_member, shape};
use crate::rings::proof::Prover;
use crate::rings::verify::{LazyVerifier, Verifier};
use crate::staged::{Area, Progress, Staged, StagedOptions, Work};

/// How long checks that were begun may take when the rings are dropped.
const VERIFIED_WITHIN: Duration = Duration::from_secs(20);
const WHY_NOT_CAPTURED: &str = "each launch of the graph would wait for the same use of the control blocks, which is \
    over after the first; call wait_cqe in the stream that launches the graph, before the launch";

/// Counters since creation, or since queues were last recreated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commands sent.
    pub commands: u64,
    /// Submission doorbell rings.
    pub sq_rings: u64,
    /// Completion doorbell rings.
    pub cq_rings: u64,
    /// Completions of abandoned commands.
    pub late: u64,
    /// How often the persistent kernel has checked whether to stop; rises while it runs.
    pub looks: u32,
}

/// The choices made, and their reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// How transfers are executed: never [`EngineChoice::Auto`].
    pub engine: EngineChoice,
    /// Why rings were not chosen, if the options allowed them: for a pool that devices do not reach, a reason for each
    /// path.
    pub why_staged: Vec<String>,
    /// Why the I/O kernels have no multiprocessors of their own, if they have none.
    pub no_partition: Option<String>,
    /// Multiprocessors for I/O; 0 with the staged engine.
    pub sms: u32,
    /// Places of submission and completion rings; none with the staged engine.
    pub places: Option<(Place, Place)>,
    /// Places that were tried before those, with the reasons against them.
    pub passed_over: Vec<String>,
    /// What real commands carried before the rings were given to the caller, in both directions with
    /// [`Options::scratch`]; none with the staged engine.
    pub carried: Option<Carried>,
    /// How doorbells are rung, and why not mapped if that was tried.
    pub doorbells: Option<(&'static str, Option<String>)>,
    /// Queues of all devices.
    pub queues: usize,
    /// Bytes of memory for addressing the pool: 16 per region, or prebuilt PRP lists.
    pub table_bytes: u64,
}

/// Arguments for a custom kernel that waits for control blocks (`wait_blocks` of gpu/device/uring.h); valid while the
/// [`Iocbs`] live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitAddresses {
    /// `iocbs`: the control blocks.
    pub iocbs: u64,
    /// `blocks`: their indices.
    pub blocks: u64,
    /// `generations`: their uses.
    pub generations: u64,
    /// `count`: their number.
    pub count: u32,
}

/// The rings of a GPU over some devices and a pool; the entry point of this crate.
pub struct GioUring {
    /// Present until the drop.
    core: Option<Core>,
}

/// Dropped in this order: queues, then tables and blocks, then the pool.
struct Core {
    engine: Engine,
    members: Vec<Member>,
    blocks: Arc<Blocks>,
    pool: Pool,
    gpu: Arc<Gpu>,
    gates: Gates,
    verifier: LazyVerifier,
    /// Whether the end of a transfer does not yet make its data visible to the GPU.
    needs_flush: bool,
    description: Description,
}

enum Engine {
    Rings(Box<RingEngine>),
    Staged(Staged),
}

impl GioUring {
    /// Creates queues on each device, rings over them and control blocks. The pool must be for the controllers of the
    /// same devices, in the same order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options, a pool or namespaces that do not fit; with [`EngineChoice::Rings`], why the GPU
    /// cannot drive the queues; failures of the staged engine; [`Error::Refused`] while the persistent kernel of other
    /// rings runs on the GPU, and if other streams would wait behind these rings' own.
    pub fn init_queue(
        gpu: &Arc<Gpu>,
        devices: Vec<Device>,
        pool: Pool,
        options: &Options,
    ) -> Result<GioUring> {
        check(gpu, &devices, &pool, options)?;
        let why = match options.engine {
            EngineChoice::Staged => Vec::new(),
            EngineChoice::Rings => return with_rings(gpu, &devices, pool, options),
            EngineChoice::Auto => match shadowed(&devices) {
                Some(why) => vec![why],
                None if !pool.is_reached() => failures(pool.reports()),
                None => match with_rings(gpu, &devices, pool.clone(), options) {
                    Err(error) if !error.is_usage() => vec![error.to_string()],
                    decided => return decided,
                },
            },
        };
        assert_eq!(why.is_empty(), options.engine == EngineChoice::Staged, "a choice has reasons");
        staged(gpu, &devices, pool, options, why)
    }

    fn core(&self) -> &Core {
        self.core.as_ref().expect("there until it is dropped")
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.core().pool
    }

    /// Returns the choices made, and their reasons.
    pub fn description(&self) -> &Description {
        let description = &self.core().description;
        debug_assert!(description.engine != EngineChoice::Auto, "one was chosen");
        debug_assert_eq!(description.places.is_some(), description.queues > 0, "rings have both");
        description
    }

    /// Returns what compares checksums.
    ///
    /// # Errors
    /// With the staged engine, for the first call, failures to make it.
    pub(super) fn verifier(&self) -> Result<Arc<Verifier>> {
        let Core { gpu, blocks, engine, verifier, .. } = self.core();
        verifier.get(|| {
            assert!(matches!(engine, Engine::Staged(_)), "rings come with one");
            Verifier::new(gpu, &Program::load(gpu)?, blocks.count())
        })
    }

    pub(crate) fn partitions(&self) -> Option<&Partitions> {
        match &self.core().engine {
            Engine::Rings(engine) => Some(engine.partitions()),
            Engine::Staged(_) => None,
        }
    }

    /// Creates a stream for compute kernels, on the multiprocessors that I/O leaves if these are partitioned.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn compute_stream(&self, priority: Priority) -> Result<Stream> {
        let gpu = &self.core().gpu;
        let stream = match self.partitions() {
            Some(partitions) => partitions.compute.stream(priority),
            None => Stream::new(gpu, priority),
        }?;
        assert!(check_stream(gpu, &stream).is_ok(), "wait_cqe takes it");
        Ok(stream)
    }

    /// Splits transfers into the contexts of free control blocks, on the CPU: at least one for each slice, whose region
    /// is one of the pool. Once issued, they begin when `after`, as last recorded, is over.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the position of an invalid transfer and the limit it exceeds, or for an event of a stream
    /// that is captured into a graph; [`Error::Refused`] while
    /// too few blocks are free: wait for earlier ones. Nothing is taken then.
    pub fn get_iocb<S>(
        &self,
        transfers: impl IntoIterator<Item = Transfer<S>>,
        after: Option<&Event>,
    ) -> Result<Iocbs>
    where
        S: IntoIterator<Item: Borrow<Slice>>,
    {
        let core = self.core();
        let cuts =
            core.members.iter().map(|member| member.table.cut(member.device.namespace.lba_count()));
        debug_assert_eq!(core.members.len(), core.pool.device_count(), "checked in init_queue");
        let mut filling = Filling::new(&core.blocks, cuts);
        for (position, transfer) in transfers.into_iter().enumerate() {
            filling.add(position, transfer)?;
        }
        let iocbs = filling.finish(after.map(|event| core.gates.own(event)).transpose()?);
        debug_assert_eq!(iocbs.blocks() == 0, iocbs.commands() == 0, "a block has a command");
        let is_known = |held: &Use| usize::from(held.device) < core.members.len();
        debug_assert!(iocbs.uses().iter().all(is_known), "a block is for one of the devices");
        Ok(iocbs)
    }

    /// Makes the GPU execute blocks on at most `sms` multiprocessors of the I/O partition (0, or more than there are:
    /// all); a persistent kernel keeps its own. Returns at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks that were issued before, or of other rings; [`Error::OutOfService`] after a
    /// failure, until [`GioUring::recover`]; [`Error::Cuda`].
    pub fn issue_io(&self, iocbs: &Iocbs, sms: u32) -> Result<()> {
        let core = self.core();
        iocbs.check_of(&core.blocks)?;
        match &core.engine {
            Engine::Rings(engine) => {
                engine.issue(&core.blocks, iocbs, if sms == 0 { u32::MAX } else { sms })?;
            }
            Engine::Staged(staged) => core.issue_staged(staged, iocbs)?,
        }
        debug_assert!(iocbs.uses().iter().all(Use::is_issued), "each use has its way");
        Ok(())
    }

    /// Makes later work in `stream` wait until all commands of the blocks have ended, successful or not, without the
    /// CPU. For blocks that are never issued, it waits until they or the rings are dropped. A stream that is captured
    /// into a graph is refused: each replay would wait for this use of the blocks, which is over. Wait in the stream
    /// that launches the graph, before the launch.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of other rings, streams of other GPUs and captured ones; [`Error::Unavailable`] if the data would
    /// need a flush that the stream cannot do; [`Error::Cuda`].
    pub fn wait_cqe(&self, iocbs: &Iocbs, stream: &Stream) -> Result<()> {
        let core = self.core();
        iocbs.check_of(&core.blocks)?;
        check_stream(&core.gpu, stream)?;
        gates::check_not_captured(stream, "wait_cqe", WHY_NOT_CAPTURED)?;
        for held in iocbs.uses() {
            debug_assert!(held.generation != 0, "unused memory holds 0");
            core.blocks.note_wait(held);
            let address = core.blocks.done_address(held.index);
            stream.wait32_at_least(address, held.generation, core.needs_flush)?;
        }
        Ok(())
    }

    /// Returns what a custom kernel needs to wait for the blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of other rings; [`Error::Unavailable`] if the awaited word does not imply that the
    /// data is visible.
    pub fn wait_addresses(&self, iocbs: &Iocbs) -> Result<WaitAddresses> {
        let core = self.core();
        iocbs.check_of(&core.blocks)?;
        if core.needs_flush {
            return Err(Error::unavailable(
                "waiting for transfers in a kernel",
                "this GPU does not see devices' writes to its memory in order (rdma_writes_ordering), so data may arrive after the completion",
                "let the stream wait (wait_cqe), which flushes, or put the pool into host memory",
            ));
        }
        let (iocbs_at, uses) = (core.blocks.iocbs(), iocbs.uses());
        let lists = if uses.is_empty() { (0, 0) } else { core.blocks.lists(uses) };
        assert_eq!(lists.0 == 0, uses.is_empty(), "the lists are in the first block");
        Ok(WaitAddresses {
            iocbs: iocbs_at,
            blocks: lists.0,
            generations: lists.1,
            count: uses.len() as u32,
        })
    }

    /// Returns whether all commands of the blocks have ended; if so, the GPU sees their data.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were not issued, or are of other rings; failures to flush the data.
    pub fn poll(&self, iocbs: &Iocbs) -> Result<bool> {
        let core = self.core();
        iocbs.check_of(&core.blocks)?;
        let is_done = iocbs.is_done()?;
        if is_done {
            core.flush(iocbs)?;
        }
        Ok(is_done)
    }

    /// Waits on the CPU until all commands have ended, and returns their results.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they were not issued, or are of other rings; [`Error::TimedOut`]: their blocks are reused
    /// once they have ended after all; failures to read the GPU's memory.
    pub fn wait(&self, iocbs: Iocbs, timeout: Duration) -> Result<IocbOutcome> {
        let core = self.core();
        iocbs.check_of(&core.blocks)?;
        let mut looks = 0;
        let is_over = poll_until(timeout, || {
            looks += 1;
            let is_done = iocbs.is_done()?;
            if !is_done && looks > QUICK_LOOKS {
                core.gates.check()?;
            }
            Ok(is_done)
        })?;
        if !is_over {
            let (commands, blocks) = (iocbs.commands(), iocbs.blocks());
            let fix = "allow more time, look at the event they wait for, or recover the rings";
            let what = format!("{commands} commands in {blocks} control blocks");
            return Err(Error::timed_out(what, timeout, fix));
        }
        core.flush(&iocbs)?;
        let outcome = iocbs.outcome()?;
        if let Engine::Rings(engine) = &core.engine
            && outcome.failed.iter().any(|(_, ended)| *ended == Ended::Reset)
        {
            engine.look_for_poison()?;
        }
        Ok(outcome)
    }

    /// Stops the kernels and ends all commands, as for a user's interrupt; nothing is issued until
    /// [`GioUring::recover`]. The staged engine continues until it is dropped, which ends its commands.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if a kernel does not stop, or blocks wait for an event that is not over.
    pub fn stop(&self) -> Result<()> {
        let core = self.core();
        match &core.engine {
            Engine::Rings(engine) => engine.stop(&core.blocks),
            Engine::Staged(_) => Ok(()),
        }
    }

    /// Restores service after a failure: stops the kernels, ends all commands under way, asks the devices to abort
    /// commands in flight, recovers failed controllers, and recreates queues that still have commands outstanding.
    ///
    /// # Errors
    /// The obstacle; the rings are out of service then, and the call can be repeated.
    pub fn recover(&self) -> Result<()> {
        let core = self.core();
        match &core.engine {
            Engine::Rings(engine) => {
                let tables = core.members.iter().map(|member| &member.table).collect::<Vec<_>>();
                engine.recover(&core.blocks, &tables)?;
                debug_assert_eq!(engine.queue_count(), core.description.queues, "as before");
                Ok(())
            }
            Engine::Staged(staged) => staged.recover(),
        }
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// Failures to read the GPU's memory.
    pub fn stats(&self) -> Result<Stats> {
        Ok(match &self.core().engine {
            Engine::Rings(engine) => {
                let counters = engine.counters()?;
                Stats {
                    commands: counters.commands,
                    sq_rings: counters.sq_rings,
                    cq_rings: counters.cq_rings,
                    late: counters.late,
                    looks: engine.alive(),
                }
            }
            Engine::Staged(staged) => {
                let stats = staged.stats();
                Stats {
                    commands: stats.contexts,
                    sq_rings: stats.rings,
                    cq_rings: 0,
                    late: stats.late,
                    looks: 0,
                }
            }
        })
    }
}

impl Core {
    /// Makes the data of ended blocks visible to the GPU, if their end does not imply that.
    fn flush(&self, iocbs: &Iocbs) -> Result<()> {
        let is_rings = matches!(self.engine, Engine::Rings(_));
        debug_assert!(is_rings || !self.needs_flush, "copies on a stream are visible behind it");
        if self.needs_flush {
            return iocbs.flush_once(|| flush_rdma_writes(&self.gpu));
        }
        Ok(())
    }

    fn issue_staged(&self, staged: &Staged, iocbs: &Iocbs) -> Result<()> {
        iocbs.claim()?;
        let mut issued = Ok(());
        for held in iocbs.uses() {
            let progress = Arc::new(Progress::new(held.count as usize));
            if issued.is_ok() {
                issued = staged.issue(self.work(held, iocbs.after(), &progress));
            }
            if issued.is_err() {
                issued = issued.and(self.blocks.end_unissued(held));
            }
            held.set_way(if issued.is_ok() {
                Execution::Staged(progress)
            } else {
                Execution::Unbegun
            });
            debug_assert!(issued.is_ok() || self.blocks.is_done(held), "a refused block has ended");
        }
        issued
    }

    fn work(
        &self,
        held: &Use,
        after: Option<&Arc<Event>>,
        progress: &Arc<Progress>,
    ) -> Work<Arc<Event>> {
        assert!(usize::from(held.device) < self.members.len(), "there is such a device");
        assert!(!held.is_issued(), "its way is set once it is sent");
        self.blocks.note_issue(held);
        let contexts: Arc<[_]> = self.blocks.contexts(held).collect();
        assert_eq!(contexts.len(), held.count as usize, "all of its contexts");
        Work {
            device: usize::from(held.device),
            generation: held.generation,
            contexts,
            after: after.cloned(),
            done: self.blocks.done_address(held.index),
            statuses: self.blocks.statuses_address(held.index),
            timeout: self.blocks.timeout(),
            progress: Arc::clone(progress),
        }
    }
}

impl Drop for GioUring {
    fn drop(&mut self) {
        let Some(core) = self.core.take() else { return };
        // First, because what is to stop may wait for blocks that are never issued.
        let ended = core.blocks.end_all_unissued();
        let stopped = match &core.engine {
            Engine::Rings(engine) => engine.stop(&core.blocks),
            Engine::Staged(_) => Ok(()),
        };
        if let Err(error) =
            ended.and(stopped).and_then(|()| core.verifier.await_end(VERIFIED_WITHIN))
        {
            tracing::error!(
                "leaking the rings, their queues and the pool, which a kernel may still use: {error}"
            );
            // A kernel that has yet to begin finds the stop word, and ends no block.
            if let Err(error) = core.blocks.end_all() {
                tracing::error!(
                    "streams wait for control blocks that are never carried out: {error}"
                );
            }
            std::mem::forget(core);
        }
    }
}

fn check(gpu: &Gpu, devices: &[Device], pool: &Pool, options: &Options) -> Result<()> {
    let invalid = |what: String, why: String| Err(Error::invalid(what, why));
    if devices.is_empty() || devices.len() > usize::from(u16::MAX) {
        return invalid(
            format!("rings over {} devices", devices.len()),
            "1 to 65535 are possible".to_owned(),
        );
    }
    if pool.device_count() != devices.len() {
        let what = format!("a pool for {} controllers", pool.device_count());
        return invalid(
            what,
            format!(
                "the rings are over {} devices; make the pool for their controllers",
                devices.len()
            ),
        );
    }
    check_pool(gpu, devices, pool)?;
    if options.queues == 0 {
        return invalid("0 queues on each device".to_owned(), "at least one is needed".to_owned());
    }
    Ok(())
}

/// Checks that the pool's addresses are these devices' and this GPU's, and the LBAs a matching namespace's: others
/// would reach other memory.
fn check_pool(gpu: &Gpu, devices: &[Device], pool: &Pool) -> Result<()> {
    assert_eq!(devices.len(), pool.device_count(), "checked before");
    let (ordinal, pools) = (gpu.info().ordinal, pool.gpu().info().ordinal);
    if pools != ordinal {
        let what = format!("a pool of GPU {pools}");
        return Err(Error::invalid(what, format!("the rings are on GPU {ordinal}")));
    }
    for (index, Device { controller, namespace }) in devices.iter().enumerate() {
        let what = || format!("device {index} ({})", controller.info().device);
        if !pool.is_for(index, controller) {
            let why = "the pool has another controller there; make it for the same, in this order";
            return Err(Error::invalid(what(), why));
        }
        if !controller.owns(namespace) {
            return Err(Error::invalid(what(), "its namespace is another controller's"));
        }
    }
    Ok(())
}

/// Refuses another GPU's stream, for which this GPU's words mean nothing.
pub(super) fn check_stream(gpu: &Gpu, stream: &Stream) -> Result<()> {
    let (ordinal, streams) = (gpu.info().ordinal, stream.gpu().info().ordinal);
    if ordinal == streams {
        return Ok(());
    }
    let why = format!("the rings are on GPU {ordinal}; wait in one of its streams");
    Err(Error::invalid(format!("a stream of GPU {streams}"), why))
}

/// Returns why the GPU cannot ring a device's doorbells, if some are shadowed.
fn shadowed(devices: &[Device]) -> Option<String> {
    let shadowed =
        devices.iter().map(|device| device.controller.info()).find(|info| info.shadow_doorbells)?;
    Some(format!(
        "{}: shadow doorbells are in use; open it without them (dbbuf=off)",
        shadowed.device
    ))
}

/// Keeps the thread that rings for the GPU awake while commands of the blocks are in flight.
fn watched(proxy: &Arc<ProxyThread>, blocks: &Arc<Blocks>) -> (Arc<ProxyThread>, Arc<Ringing>) {
    let blocks = Arc::downgrade(blocks);
    let is_busy = move || blocks.upgrade().is_some_and(|blocks| blocks.is_under_way());
    let work: Arc<Ringing> = Arc::new(is_busy);
    proxy.watch(&work);
    (Arc::clone(proxy), work)
}

/// Builds everything for the GPU to drive the devices' queues.
fn with_rings(
    gpu: &Arc<Gpu>,
    devices: &[Device],
    pool: Pool,
    options: &Options,
) -> Result<GioUring> {
    let making = gpu.may_make("make rings")?;
    let member = |(index, device)| ring_member(index, device, &pool);
    let members = devices.iter().enumerate().map(member).collect::<Result<Vec<_>>>()?;
    assert_eq!(members.len(), pool.device_count(), "checked in init_queue");
    let program = Program::load(gpu)?;
    let gates = Gates::new(gpu)?;
    let prover = Prover { gpu, program: &program, pool: &pool, scratch: options.scratch };
    let maker = Arc::new(QueueMaker::new(gpu, &program, devices, &pool, options, &prover)?);
    let blocks = Arc::new(Blocks::new(gpu, options.blocks, options.timeout)?);
    let tables = members.iter().map(|member| &member.table).collect::<Vec<_>>();
    let verifier = Verifier::new(gpu, &program, options.blocks)?;
    let maker_of = Arc::clone(&maker);
    let parts = Parts {
        gpu,
        program,
        blocks: &blocks,
        tables: &tables,
        controllers: devices.iter().map(|device| Arc::clone(&device.controller)).collect(),
        make_queues: Box::new(move |device| maker_of.make(device)),
        proxy: maker.proxy().map(|proxy| watched(proxy, &blocks)),
        making,
    };
    // The last step that can fail: from here on a kernel may run, which only dropping the whole stops.
    let engine = RingEngine::new(parts, options)?;
    assert_eq!(engine.queue_count(), devices.len() * options.queues as usize, "all were made");
    assert_eq!(blocks.count(), options.blocks, "each is there");
    assert!(!blocks.is_under_way(), "no command was issued yet");
    assert!(engine.partitions().io.sms() > 0, "kernels have multiprocessors");
    let description = Description {
        engine: EngineChoice::Rings,
        why_staged: Vec::new(),
        no_partition: engine.no_partition().map(str::to_owned),
        sms: engine.partitions().io.sms(),
        places: Some(maker.places()),
        passed_over: maker.passed_over().to_vec(),
        carried: Some(maker.carried()),
        doorbells: Some(maker.doorbells()),
        queues: engine.queue_count(),
        table_bytes: tables.iter().map(|table| table.bytes()).sum(),
    };
    // Wherever the completion rings lie: without ordering, writes to one memory may be seen in either order too.
    let needs_flush = pool.place() == Place::Gpu && !gpu.info().attributes.orders_writes();
    let engine = Engine::Rings(Box::new(engine));
    let gpu = Arc::clone(gpu);
    let verifier = LazyVerifier::from(verifier);
    let core =
        Core { engine, members, blocks, pool, gpu, gates, verifier, needs_flush, description };
    Ok(GioUring { core: Some(core) })
}

fn staged(
    gpu: &Arc<Gpu>,
    devices: &[Device],
    pool: Pool,
    options: &Options,
    why_staged: Vec<String>,
) -> Result<GioUring> {
    let _making = gpu.may_make("make rings")?;
    // Contexts name offsets in regions, which chunks of pinned memory are copied to and from.
    let spans = |_| {
        (0..pool.region_count())
            .map(|region| Span { address: 0, bytes: pool.bytes(region) })
            .collect()
    };
    let member = |device: &Device| {
        let table = MappingTable::sgl(shape(&device.namespace, 0), spans(()))?;
        Ok(Member { table, device: device.clone() })
    };
    let members = devices.iter().map(member).collect::<Result<Vec<_>>>()?;
    let blocks = Arc::new(Blocks::new(gpu, options.blocks, options.timeout)?);
    let areas = (0..pool.region_count())
        .map(|region| Area { address: pool.address(region), bytes: pool.bytes(region) });
    let areas = areas.collect::<Vec<_>>();
    let pairs =
        devices.iter().map(|device| (Arc::clone(&device.controller), device.namespace.clone()));
    let pairs = pairs.collect::<Vec<_>>();
    assert_eq!(members.len(), pool.device_count(), "checked in init_queue");
    assert_eq!(areas.len(), pool.region_count(), "each region is an area");
    assert_eq!(pairs.len(), members.len(), "each device is a lane's");
    let staged_options = StagedOptions {
        cores: options.staged_cores.clone(),
        depth: options.depth,
        timeout: options.timeout,
        ..StagedOptions::default()
    };
    let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::new((pool.clone(), Arc::clone(&blocks)));
    let gates = Gates::new(gpu)?;
    let staged = Staged::new(gpu, &pairs, &areas, &keep, &staged_options)?;
    assert!(!blocks.is_under_way(), "no command was issued yet");
    let description = Description {
        engine: EngineChoice::Staged,
        why_staged,
        table_bytes: members.iter().map(|member| member.table.bytes()).sum(),
        ..Description::default()
    };
    let (gpu, engine) = (Arc::clone(gpu), Engine::Staged(staged));
    let (verifier, needs_flush) = (LazyVerifier::default(), false);
    let core =
        Core { engine, members, blocks, pool, gpu, gates, verifier, needs_flush, description };
    Ok(GioUring { core: Some(core) })
}
