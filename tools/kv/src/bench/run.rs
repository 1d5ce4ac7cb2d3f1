//! Runs the command: prepares the store, runs the workload, reports the result.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::{Device, Target, Time};
use adit_kvstore::shard::Stats;
use adit_kvstore::{FormatStore, Local, OpenOptions, Store, Watermarks, units};

use super::bed::Measured;
use super::chooser::{Chooser, SCAN_MAX};
use super::counted::{Counted, DirectionCounts, Restored};
use super::drive::{self, Far, Watch};
use super::dual_blade;
use super::engine::Engine;
use super::kept;
use super::objects::Objects;
use super::options::KvBenchArgs;
use super::report::BenchOutcome;
use super::served::Served;
use super::trace::{self, TraceRequest};
use super::workload::{Workload, Ycsb};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;
use crate::store_arg::StoreArgs;
use adit_tools_common::blocks::{self, Blocks};
use adit_tools_common::meter::Meter;
use adit_tools_common::session::Session;

/// The part of the capacity that a fill uses.
const FILL_PERMILLE: u64 = 900;
/// Blocks of a sequence: a prefix of 1024 tokens.
const SEQUENCE_BLOCKS: u64 = 64;

/// Runs the command.
///
/// # Errors
/// An error of the device, the data or the command line; the report is written if there is anything to report.
pub(crate) fn run(args: &KvBenchArgs) -> Result<()> {
    if let Workload::Tensors(task) = args.workload {
        return dual_blade::run(args, task);
    }
    args.check()?;
    let trace = match &args.workload {
        Workload::Trace(path) => trace::read(path).map_err(Failure::failed)?,
        _ => Vec::new(),
    };
    let interrupt = Interrupt::install()?;
    let store = args.store();
    let (outcome, failure) = match store.socket()? {
        Some(socket) => of_server(args, &store, socket, &interrupt, &trace)?,
        None => of_devices(args, &store.devices()?, &interrupt, &trace)?,
    };
    let text = if args.json { outcome.json(args) } else { outcome.table(args) };
    let told = Output::Standard.write(&text);
    match failure {
        Some(failure) => Err(failure),
        None if outcome.interrupted => Err(Failure::interrupted()),
        None => told,
    }
}

/// The outcome of a run, and the reason if it ended early.
type RunResult = Result<(BenchOutcome, Option<Failure>)>;

/// Runs the workload on a store of this process.
fn of_devices(
    args: &KvBenchArgs,
    targets: &[Target],
    interrupt: &Interrupt,
    trace: &[TraceRequest],
) -> RunResult {
    let devices = store::open_devices(targets, args.size)?;
    let is_fresh = targets.iter().any(store::is_made_for_the_run);
    if args.workload.formats() || is_fresh {
        format(args, targets, &devices)?;
    }
    let mut session = Session::of(open(args, targets, devices)?);
    let mut run = BenchRun { args, interrupt, store: &mut session };
    if is_fresh && !args.workload.formats() {
        run.prefill()?;
    }
    let measured = match args.workload {
        Workload::Layers => run.measure_layers()?,
        _ => run.measure(trace)?,
    };
    session.close()?;
    Ok(measured)
}

/// Runs the workload as a client of the store's server.
fn of_server(
    args: &KvBenchArgs,
    store: &StoreArgs,
    socket: &Path,
    interrupt: &Interrupt,
    trace: &[TraceRequest],
) -> RunResult {
    args.check_served()?;
    let mut served = Served::connect(socket, items_max(args), args.object_bytes)?;
    if args.workload.formats() && !args.force {
        let mut others = 0_u64;
        served.keys(&mut |key| others += u64::from(blocks::object(key).is_none()))?;
        if others > 0 {
            return Err(Failure::usage(format!(
                "{}: nothing was written: the store has {others} objects that no run put, and this may evict them; \
                 serve another one, or add --force if they may be lost",
                store.name()
            )));
        }
    }
    BenchRun { args, interrupt, store: &mut served }.measure(trace)
}

fn format(args: &KvBenchArgs, targets: &[Target], devices: &[Device]) -> Result<()> {
    adit_guard::check_format(targets, devices, args.force)?;
    if !args.force {
        kept::refuse(&store::name(targets), devices)?;
    }
    Store::format(&FormatStore {
        targets: targets.to_vec(),
        devices: devices.to_vec(),
        shards: args.shards.unwrap_or(1),
        objects_max: objects_max(args, devices),
        label: kept::LABEL.to_owned(),
        overwrite: true,
        ..FormatStore::default()
    })?;
    Ok(())
}

/// Returns the number of objects that fit, if they are smaller than a store is formatted for by default.
fn objects_max(args: &KvBenchArgs, devices: &[Device]) -> Option<u64> {
    let bytes: u64 = devices.iter().map(|device| device.info().bytes).sum();
    let object = units(args.object_bytes) * adit_kvstore::UNIT_BYTES;
    (object < 64 << 10).then(|| (bytes / object).max(4096))
}

fn open(args: &KvBenchArgs, targets: &[Target], devices: Vec<Device>) -> Result<Local> {
    let exact = Watermarks { high: 1000, low: 1000 };
    Ok(Store::open_local(&OpenOptions {
        targets: targets.to_vec(),
        devices,
        durability: args.durability(),
        policy: args.policy(),
        tier_bytes: args.tier.unwrap_or(0),
        capacity_objects: args.capacity_blocks,
        watermarks: args.capacity_blocks.map_or_else(Watermarks::default, |_| exact),
        queue_depth: (args.iodepth as u32).max(128),
        ..OpenOptions::default()
    })?)
}

/// Returns how many objects are in flight at most.
fn items_max(args: &KvBenchArgs) -> usize {
    let depth = args.iodepth as usize;
    match args.workload {
        Workload::Ycsb(Ycsb::E) => depth + SCAN_MAX as usize - 1,
        _ => depth,
    }
}

/// A workload on an open store.
struct BenchRun<'a, S> {
    args: &'a KvBenchArgs,
    interrupt: &'a Interrupt,
    store: &'a mut S,
}

impl<S: Measured> BenchRun<'_, S> {
    /// Puts the objects of a fill without counting them.
    fn prefill(&mut self) -> Result<()> {
        let count = self.room(units(self.args.object_bytes))?;
        let (_, failure) = self.drive("filling", Time::NEVER, |engine, depth, watch| {
            drive::fill(engine, depth, count, watch);
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// Runs a workload of single objects.
    fn measure(&mut self, trace: &[TraceRequest]) -> RunResult {
        let args = self.args;
        let (count, known) = match &args.workload {
            Workload::Trace(_) => (distinct(trace), None),
            Workload::Fill => (self.room(units(args.object_bytes))?, None),
            _ => self.there()?,
        };
        self.timed(count, trace::span(trace), |run, until| {
            let what = args.workload.to_string();
            run.drive(&what, until, |engine, depth, watch| match &args.workload {
                Workload::Trace(_) => drive::replay(engine, depth, trace, watch),
                Workload::Fill => drop(drive::fill(engine, depth, count, watch)),
                _ => {
                    let mut chooser = chooser(args, count);
                    drive::mix(engine, depth, &mut chooser, known.as_deref(), watch);
                }
            })
        })
    }

    /// Applies `load` until the time limit, makes everything durable, and counts what the store did.
    fn timed(
        &mut self,
        objects: u64,
        span: Option<Duration>,
        load: impl FnOnce(&mut Self, Time) -> Result<(Counted, Option<Failure>)>,
    ) -> RunResult {
        let before = self.store.stats()?;
        let begun = self.store.now();
        let until = self.args.runtime().map_or(Time::NEVER, |runtime| begun + runtime);
        let (counted, failure) = load(self, until)?;
        let ended = self.store.now();
        let after = match failure {
            None => self.store.commit().and_then(|()| self.store.stats())?,
            // The server may be lost; that is the failure then.
            Some(_) => self.store.stats().unwrap_or(before),
        };
        let outcome = BenchOutcome {
            counted,
            objects,
            elapsed: ended.since(begun),
            commit: self.store.now().since(ended),
            store: since(after, before),
            span,
            interrupted: self.interrupt.requested(),
        };
        Ok((outcome, failure))
    }

    fn drive(
        &mut self,
        what: &str,
        until: Time,
        load: impl FnOnce(&mut Engine<'_, S>, usize, &mut Watch<'_>),
    ) -> Result<(Counted, Option<Failure>)> {
        let args = self.args;
        let depth = args.iodepth as usize;
        let objects = Objects::new(unix_ns());
        let looked = self.store.now();
        let (bytes, items) = (args.object_bytes, items_max(args));
        let mut engine = Engine::new(self.store, bytes, items, args.verify, objects)?;
        let mut line =
            ProgressLine { what, bytes: args.object_bytes, meter: Meter::new(), last: None };
        let interrupt = self.interrupt;
        let mut goes_on = |far: Far| {
            line.show(far);
            !interrupt.requested()
        };
        let mut watch = Watch { until, goes_on: &mut goes_on, looked };
        load(&mut engine, depth, &mut watch);
        Ok(engine.finish())
    }

    /// Returns how many objects a fill puts.
    fn room(&self, object_units: u64) -> Result<u64> {
        let capacity_units = self.store.stats()?.capacity_units;
        let fits = capacity_units / object_units * FILL_PERMILLE / 1000;
        let most = self.store.objects_max();
        let most = self.args.capacity_blocks.unwrap_or(most).min(most);
        let room = fits.min(most.saturating_mul(FILL_PERMILLE) / 1000);
        Ok(self.args.objects.unwrap_or(room).max(1))
    }

    /// Returns the number of existing objects, with their numbers if the user gave no count.
    fn there(&self) -> Result<(u64, Option<Vec<u64>>)> {
        if let Some(count) = self.args.objects {
            return Ok((count, None));
        }
        let mut known = Vec::new();
        self.store.keys(&mut |key| known.extend(blocks::object(key)))?;
        known.sort_unstable();
        match known.len() as u64 {
            0 => Err(Failure::failed(format!(
                "{}: there are no objects of an earlier fill; run --workload fill first",
                self.args.store().name()
            ))),
            count => Ok((count, Some(known))),
        }
    }
}

impl BenchRun<'_, Session> {
    /// Runs the workload of layers.
    fn measure_layers(&mut self) -> RunResult {
        let count = self.room(Blocks::layout(self.args.layers_model())?.block_units())?;
        self.timed(count, None, |run, until| run.layers(count, until))
    }

    /// Puts sequences of KV blocks and restores each layer by layer; with a time limit, repeats until then.
    fn layers(&mut self, count: u64, until: Time) -> Result<(Counted, Option<Failure>)> {
        let mut blocks = Blocks::define(self.store, Blocks::layout(self.args.layers_model())?)?;
        let mut counted = Counted::default();
        let length = count.min(SEQUENCE_BLOCKS);
        let sequences = (count / length).max(1);
        let mut restored = Restored::default();
        let ended = match self.put_sequences(&mut blocks, sequences, length, &mut counted.put) {
            Ok(()) => {
                let (get, restored) = (&mut counted.get, &mut restored);
                self.restore_sequences(&mut blocks, (sequences, length), until, get, restored)
            }
            Err(failure) => Err(failure),
        };
        counted.restored = Some(restored);
        Ok((counted, ended.err()))
    }

    fn put_sequences(
        &mut self,
        blocks: &mut Blocks,
        sequences: u64,
        length: u64,
        put: &mut DirectionCounts,
    ) -> Result<()> {
        let mut meter = Meter::new();
        let interrupt = self.interrupt;
        for sequence in 0..sequences {
            blocks.put(self.store, sequence, length, &mut |moved| {
                put.record_together(moved.blocks, moved.bytes, moved.took);
                meter.show(|_| format!("layers: {sequence} of {sequences} sequences put"));
                if interrupt.requested() { Err(Failure::interrupted()) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    fn restore_sequences(
        &mut self,
        blocks: &mut Blocks,
        (sequences, length): (u64, u64),
        until: Time,
        get: &mut DirectionCounts,
        restored: &mut Restored,
    ) -> Result<()> {
        let mut meter = Meter::new();
        let rounds = if until == Time::NEVER { 1 } else { u64::MAX };
        let count = blocks.layers();
        let layers = (0..rounds)
            .flat_map(|_| 0..sequences)
            .flat_map(|sequence| (0..count).map(move |layer| (sequence, layer)));
        for (sequence, layer) in layers {
            if self.interrupt.requested() || self.store.local().now() >= until {
                break;
            }
            let moved = blocks.restore(self.store, sequence, length, layer)?;
            get.record_together(moved.blocks, moved.bytes, moved.took);
            restored.layers += 1;
            restored.latency.record(moved.took.as_nanos() as u64);
            meter.show(|_| format!("layers: {} restored", restored.layers));
        }
        Ok(())
    }
}

fn chooser(args: &KvBenchArgs, count: u64) -> Chooser {
    match args.workload {
        Workload::Ycsb(ycsb) => Chooser::ycsb(ycsb, count, args.seed),
        Workload::Mixed => Chooser::even(count, args.get_percent, args.seed),
        _ => Chooser::even(count, 100, args.seed),
    }
}

fn distinct(trace: &[TraceRequest]) -> u64 {
    let mut ids: Vec<u64> = trace.iter().flat_map(|request| request.hash_ids.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len() as u64
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// Returns the counts since `before`; sizes are final values.
fn since(after: Stats, before: Stats) -> Stats {
    Stats {
        evictions: after.evictions - before.evictions,
        bytes_written: after.bytes_written - before.bytes_written,
        bytes_to_device: after.bytes_to_device - before.bytes_to_device,
        journal_bytes: after.journal_bytes - before.journal_bytes,
        checkpoint_bytes: after.checkpoint_bytes - before.checkpoint_bytes,
        commands_read: after.commands_read - before.commands_read,
        commands_write: after.commands_write - before.commands_write,
        flushes: after.flushes - before.flushes,
        tier_hits: after.tier_hits - before.tier_hits,
        tier_admissions: after.tier_admissions - before.tier_admissions,
        tier_evictions: after.tier_evictions - before.tier_evictions,
        ..after
    }
}

/// The progress line.
struct ProgressLine<'a> {
    what: &'a str,
    bytes: u64,
    meter: Meter,
    last: Option<Far>,
}

impl ProgressLine<'_> {
    fn show(&mut self, far: Far) {
        let (what, bytes, last) = (self.what, self.bytes, &mut self.last);
        self.meter.show(|since| {
            let before = last.replace(far).unwrap_or(Far { gets: 0, puts: 0, done: 0, whole: 0 });
            let rate = |now: u64, then: u64| {
                let bytes = (now - then) as f64 * bytes as f64 / since.as_secs_f64();
                human::bytes(bytes) + "/s"
            };
            let done = match far.whole {
                0 => String::new(),
                whole => format!(" {:.1} %", far.done as f64 * 100.0 / whole as f64),
            };
            let (get, put) = (rate(far.gets, before.gets), rate(far.puts, before.puts));
            format!("{what}:{done} get {get} put {put}")
        });
    }
}
