//! `adit gpu trace`: moves one layer of a model's KV blocks from a store to the GPU's memory, step by step.
//!
//! Creates and fills a store, which plans the reads of a layer. The GPU carries them out through its own rings
//! into the pages of a paged cache; if it cannot, CPU threads stage them. Behind the data the GPU compares them with the
//! store's checksums. The CPU's actions are steps with times; what is sent to the device is counted.

mod checking;
mod shelf;
mod timeline;

use std::sync::Arc;
use std::time::Duration;
use std::{slice, thread};

use adit_driver::Target;
use adit_gpu::{
    EngineChoice, GioUring, Gpu, IocbOutcome, Iocbs, KernelChoice, Options, Pages, Place, Pool,
    Priority,
};
use adit_kvstore::UNIT_BYTES;
use adit_kvstore::layout::Layout;
use adit_kvstore::store::{LocalLease, ShardTransfers, Transfers};
use adit_load::mix;
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::checking::{Arriving, Checked, Checking};
use self::shelf::{Room, Shelf, Wanted};
use self::timeline::Timeline;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::options::{GpuArg, Placement, check_queues, check_sms, is_emulated};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  One layer of 64 KV blocks of Llama 3 8B, 128 tensors, on the software controller:
    adit gpu trace
  8,000 tensors:
    adit gpu trace --blocks 4000 --layers 1
  Where the device does not reach the GPU's memory, rings all the same:
    adit gpu trace --placement host

The target is formatted as a store. Without one a software controller in memory is made for the trace.

Exit codes: 0 the layer arrived intact, by rings or staged by CPU threads, 1 the target, the store, the rings or CUDA \
failed, or a block is not what was put, 2 an option or the target cannot be, 3 no GPU, 130 interrupted.";

/// Time limit of the layer's commands.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seed of the assignment of pages to blocks, fixed for reproducible traces.
const SEED: u64 = 0xad17;
/// Maximum KV blocks of a trace.
const BLOCKS_MAX: i64 = 65_536;
/// Maximum queue pairs of the rings; the store uses one of those requested.
const QUEUES_MAX: i64 = shelf::QUEUES as i64 - 1;

/// Moves one layer of KV blocks from a store to the GPU through its rings, and shows every step
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    /// The device, on which a store is created; by default a software controller in memory
    target: Option<Target>,

    #[command(flatten)]
    gpu: GpuArg,

    /// The model whose layers the blocks have
    #[arg(long, value_name = "NAME", default_value = "llama-3-8b")]
    model: String,

    /// KV blocks of 16 tokens, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=BLOCKS_MAX))]
    blocks: u32,

    /// How many of the model's layers the blocks have, 1 to 512, or all if it has fewer; the last is read
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=512))]
    layers: u32,

    /// Queue pairs that the GPU drives, 1 to 63; the store uses another one
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=QUEUES_MAX))]
    queues: u32,

    /// Entries of each queue, 2 to 4096
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=4096))]
    depth: u32,

    /// Streaming multiprocessors for I/O, 1 to the GPU's; by default as many as the drive can keep busy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sms: Option<u32>,

    /// A kernel for this layer only, or one that runs as long as the rings exist
    #[arg(long, value_enum, default_value_t = Kernel::OneShot)]
    kernel: Kernel,

    /// Where the pages are; the rings are in the same memory if that works, otherwise in host memory
    #[arg(long, value_enum, default_value_t = Placement::Hbm)]
    placement: Placement,

    /// Overwrites data on the target
    #[arg(long)]
    force: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// [`KernelChoice`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kernel {
    OneShot,
    Persistent,
}

/// Runs the command.
///
/// # Errors
/// No GPU; an error of the target, the store or the rings; a block that differs from what was put; an interrupt
/// by the user.
pub(crate) fn run(args: &TraceArgs) -> Result<()> {
    // Reports errors first that do not depend on the machine.
    let layout = shelf::layout(&args.model, args.layers)?;
    let target = args.target.clone().map_or_else(|| memory(args, &layout), Ok)?;
    check_queues(&target)?;
    let gpu = Gpu::open(args.gpu.ordinal)?;
    args.sms.map_or(Ok(()), |sms| check_sms(sms, &gpu))?;
    let interrupt = Interrupt::install()?;
    let wanted = Wanted { target: &target, force: args.force, layout, blocks: args.blocks };
    let mut shelf = Shelf::fill(&wanted, &interrupt)?;
    let told = trace(args, &gpu, &mut shelf, &interrupt)?;
    shelf.close()?;
    output::report(args.json, || told.json(), || told.text())
}

/// Returns a software controller in memory with room for the blocks.
fn memory(args: &TraceArgs, layout: &Layout) -> Result<Target> {
    let bytes = Room::of(layout, args.blocks).bytes;
    Ok(format!("soft:mem={}M,lba=4096", bytes >> 20).parse()?)
}

fn options(args: &TraceArgs) -> Options {
    let kernel = match args.kernel {
        Kernel::OneShot => KernelChoice::OneShot,
        Kernel::Persistent => KernelChoice::Persistent,
    };
    Options {
        queues: args.queues,
        depth: args.depth,
        sms: args.sms,
        kernel,
        timeout: TIMEOUT,
        ..Options::default()
    }
}

/// The transfer of a layer.
struct Journey<'a> {
    args: &'a TraceArgs,
    gpu: &'a Arc<Gpu>,
    interrupt: &'a Interrupt,
    uring: GioUring,
    pages: Pages<'a>,
    plan: Transfers<LocalLease>,
}

/// Returns the pages of blocks in the random order in which a used cache hands them out, so that, as in a server, no
/// two tensors of a block are adjacent.
fn block_table(blocks: u32) -> Vec<u32> {
    let mut table: Vec<u32> = (0..blocks).collect();
    for end in (1..table.len()).rev() {
        table.swap(end, (mix(SEED ^ end as u64) % (end as u64 + 1)) as usize);
    }
    table
}

/// Makes the rings read the last layer, and verifies it.
///
/// # Errors
/// An error of the rings; a block that differs from what was put; an interrupt by the user.
fn trace(
    args: &TraceArgs,
    gpu: &Arc<Gpu>,
    shelf: &mut Shelf,
    interrupt: &Interrupt,
) -> Result<Told> {
    let plan = shelf.plan(shelf.layout.block().layers - 1)?;
    let (layout, table) = (&shelf.layout, block_table(args.blocks));
    let pages = Pages {
        page_bytes: layout.tensor_units() * UNIT_BYTES,
        first_region: 0,
        regions: u32::from(layout.block().tensors_per_layer),
        table: &table,
    };
    let regions = vec![pages.page_bytes * u64::from(args.blocks); pages.regions as usize];
    let controller = Arc::clone(&shelf.controller);
    let (controllers, place) = (slice::from_ref(&controller), args.placement.place());
    let pool = Pool::allocate(gpu, controllers, &regions, Some(place))?;
    let device = adit_gpu::Device { controller, namespace: shelf.namespace.clone() };
    let uring = GioUring::init_queue(gpu, vec![device], pool, &options(args))?;
    let journey = Journey { args, gpu, interrupt, uring, pages, plan };
    let told = journey.make(shelf)?;
    shelf.release(journey.plan.lease);
    Ok(told)
}

impl Journey<'_> {
    /// Returns the tensors of the layer, that is, the pages to fill.
    fn tensors(&self) -> u64 {
        u64::from(self.args.blocks) * u64::from(self.pages.regions)
    }

    /// # Errors
    /// As [`trace`].
    fn make(&self, shelf: &Shelf) -> Result<Told> {
        let stream = self.uring.compute_stream(Priority::Normal)?;
        let mut timeline = Timeline::begin(!is_emulated(&self.gpu.info().name));
        let event = stream.record()?;
        timeline.step("event", "the compute stream says when the pages are free");
        let planned = self.plan.parts.iter().flat_map(ShardTransfers::transfers);
        let placed = planned.map(|transfer| self.pages.place(transfer));
        let iocbs = self.uring.get_iocb(placed, Some(&event))?;
        timeline.step("get_iocb", filled(&iocbs));
        self.uring.issue_io(&iocbs, self.args.sms.unwrap_or(0))?;
        let (carrier, meanwhile) = match self.uring.description().engine {
            EngineChoice::Staged => ("CPU threads have", "CPU threads bring it"),
            _ => ("the I/O kernel has", "the CPU is free"),
        };
        timeline.step("issue_io", format!("{carrier} them, behind the event"));
        self.uring.wait_cqe(&iocbs, &stream)?;
        let arrived = stream.record()?;
        timeline.step("wait_cqe", format!("the compute stream waits for the data; {meanwhile}"));
        let checking = Checking::begin(self.arriving(), &stream)?;
        while !arrived.is_over()? {
            self.heed()?;
            timeline.check(TIMEOUT)?;
            thread::yield_now();
        }
        timeline.step("data", "the compute stream goes on");
        let outcome = self.uring.wait(iocbs, TIMEOUT)?;
        timeline.step(
            "outcome",
            format!("{} commands ended, {} failed", outcome.commands, outcome.failed.len()),
        );
        refuse_failures(&outcome)?;
        let checked = checking.end(self.arriving(), TIMEOUT)?;
        timeline.step("intact", checked.text());
        let why_staged = self.uring.description().why_staged.clone();
        let (scene, counts) = (self.scene(shelf), self.counts(&outcome)?);
        Ok(Told { scene, why_staged, timeline, counts, checked })
    }

    fn arriving(&self) -> Arriving<'_> {
        let (uring, plan) = (&self.uring, &self.plan);
        Arriving { uring, pages: self.pages, plan, blocks: self.args.blocks }
    }

    /// Stops the rings if the user interrupts.
    ///
    /// # Errors
    /// The interrupt.
    fn heed(&self) -> Result<()> {
        if !self.interrupt.requested() {
            return Ok(());
        }
        Err(Failure::stopped(match self.uring.stop() {
            Ok(()) => "interrupted before the layer was there".to_owned(),
            Err(error) => format!("interrupted; {error}"),
        }))
    }

    /// Describes the setup of the trace.
    fn scene(&self, shelf: &Shelf) -> Vec<(&'static str, String)> {
        let (tensors, bytes) = (self.tensors(), self.tensors() * self.pages.page_bytes);
        let reads: usize = self.plan.parts.iter().map(|part| part.transfers().len()).sum();
        vec![
            ("GPU", self.gpu.info().name.clone()),
            ("device", shelf.controller.info().device.clone()),
            (
                "layer",
                format!(
                    "of {} KV blocks of {}: {tensors} tensors, {}",
                    self.args.blocks,
                    self.args.model,
                    human::capacity(bytes)
                ),
            ),
            ("plan", format!("{reads} runs on the device, held by a lease")),
            ("pages", where_it_lies(self.uring.pool())),
            ("rings", self.rings()),
        ]
    }

    /// Describes what carries the layer out.
    fn rings(&self) -> String {
        let about = self.uring.description();
        if about.engine == EngineChoice::Staged {
            return "none: CPU threads stage the transfers, since".to_owned();
        }
        let places = about.places.map(|(submission, completion)| {
            format!(", entries in {}, completions in {}", submission.name(), completion.name())
        });
        let doorbells = about.doorbells.as_ref().map(|(how, _)| format!(", doorbells {how}"));
        format!(
            "{} queues of {} on {} SMs{}{}",
            about.queues,
            self.args.depth,
            about.sms,
            places.unwrap_or_default(),
            doorbells.unwrap_or_default()
        )
    }

    /// # Errors
    /// When the rings' counters cannot be read.
    fn counts(&self, outcome: &IocbOutcome) -> Result<Vec<(&'static str, u64)>> {
        let stats = self.uring.stats()?;
        Ok(vec![
            ("tensors", self.tensors()),
            ("commands", outcome.commands),
            ("submission doorbells", stats.sq_rings),
            ("completion doorbells", stats.cq_rings),
            ("late completions", stats.late),
        ])
    }
}

/// # Errors
/// The first failed transfer.
fn refuse_failures(outcome: &IocbOutcome) -> Result<()> {
    let Some((position, ended)) = outcome.failed.first() else { return Ok(()) };
    Err(Failure::failed(format!(
        "{} transfers failed, the first that of position {position}: {ended}",
        outcome.failed.len()
    )))
}

/// Describes where the pages are, and how the device reaches them.
fn where_it_lies(pool: &Pool) -> String {
    let place = pool.place().name();
    match pool.path() {
        Some(path) if pool.place() == Place::Gpu => format!("in {place}, by {}", path.name()),
        Some(_) => format!("in {place}"),
        None => format!("in {place}, which the device does not reach"),
    }
}

/// Describes the CPU's work, done once per layer.
fn filled(iocbs: &Iocbs) -> String {
    let (commands, blocks) = (iocbs.commands(), iocbs.blocks());
    let plural = human::plural(blocks as u64);
    format!("the CPU fills {blocks} control block{plural}, once: {commands} commands")
}

/// The report of a layer.
struct Told {
    scene: Vec<(&'static str, String)>,
    why_staged: Vec<String>,
    timeline: Timeline,
    counts: Vec<(&'static str, u64)>,
    checked: Checked,
}

impl Told {
    fn text(&self) -> String {
        let scene = self.scene.iter().map(|(name, what)| format!("{name:<8}{what}\n"));
        let counts = self.counts.iter().map(|(name, count)| format!("  {count:>13}  {name}\n"));
        let (scene, counts): (String, String) = (scene.collect(), counts.collect());
        let whys =
            self.why_staged.iter().map(|why| format!("          {}\n", human::printable(why)));
        let (whys, steps): (String, String) = (whys.collect(), self.timeline.lines());
        format!("{scene}{whys}\n{steps}\n{counts}")
    }

    fn json(&self) -> Value {
        json!({
            "scene": by_name(&self.scene),
            "why_staged": self.why_staged,
            "steps": self.timeline.steps,
            "counts": by_name(&self.counts),
            "verified": self.checked.json(),
        })
    }
}

/// Makes a JSON object of named values.
fn by_name<T: Serialize>(values: &[(&str, T)]) -> Map<String, Value> {
    let key = |name: &str| name.to_lowercase().replace(' ', "_");
    values.iter().map(|(name, value)| (key(name), json!(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_handed_out_once_each_and_in_no_order() {
        let table = block_table(100);
        let mut sorted = table.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..100) && sorted != table);
    }
}
