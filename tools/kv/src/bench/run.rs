//! Runs the command: prepares the store, runs the workload, reports the result.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::{Buffer, Device, Time};
use adit_kvstore::shard::{Done, Request, Stats, Turn};
use adit_kvstore::{FormatStore, Key, Local, OpenOptions, Store, Watermarks, units};

use super::bed::Bed;
use super::chooser::{Chooser, SCAN_MAX};
use super::counted::{Counted, DirectionCounts, Restored};
use super::drive::{self, Far, Watch};
use super::dual_blade;
use super::engine::Engine;
use super::kept;
use super::objects::Objects;
use super::options::KvBenchArgs;
use super::report::BenchOutcome;
use super::trace::{self, TraceRequest};
use super::workload::{Workload, Ycsb};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::store;
use adit_tools_common::blocks::{self, Blocks};
use adit_tools_common::meter::Meter;
use adit_tools_common::session::Session;

/// The part of the capacity that a fill uses.
const FILL_PERMILLE: u64 = 900;
/// Blocks of a sequence: a prefix of 1024 tokens.
const SEQUENCE_BLOCKS: u64 = 64;
/// The longest wait for a command that ends none of those in flight, so that a run ends when it should.
const SLEEP_MAX: Duration = Duration::from_millis(5);

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
    let devices = store::open_devices(&args.store, args.size)?;
    let is_fresh = args.store.iter().any(store::is_made_for_the_run);
    if args.workload.formats() || is_fresh {
        format(args, &devices)?;
    }
    let mut session = Session::of(open(args, devices)?);
    let mut run = BenchRun { args, interrupt: &interrupt, session: &mut session };
    if is_fresh && !args.workload.formats() {
        run.prefill()?;
    }
    let (outcome, failure) = run.measure(&trace)?;
    session.close()?;
    let text = if args.json { outcome.json(args) } else { outcome.table(args) };
    let told = Output::Standard.write(&text);
    match failure {
        Some(failure) => Err(failure),
        None if outcome.interrupted => Err(Failure::interrupted()),
        None => told,
    }
}

fn format(args: &KvBenchArgs, devices: &[Device]) -> Result<()> {
    adit_guard::check_format(&args.store, devices, args.force)?;
    if !args.force {
        kept::refuse(&store::name(&args.store), devices)?;
    }
    Store::format(&FormatStore {
        targets: args.store.clone(),
        devices: devices.to_vec(),
        shards: args.shards,
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

fn open(args: &KvBenchArgs, devices: Vec<Device>) -> Result<Local> {
    let exact = Watermarks { high: 1000, low: 1000 };
    Ok(Store::open_local(&OpenOptions {
        targets: args.store.clone(),
        devices,
        durability: args.durability,
        policy: args.policy,
        tier_bytes: args.tier,
        capacity_objects: args.capacity_blocks,
        watermarks: args.capacity_blocks.map_or_else(Watermarks::default, |_| exact),
        queue_depth: (args.iodepth as u32).max(128),
        ..OpenOptions::default()
    })?)
}

/// A workload on an open store.
struct BenchRun<'a> {
    args: &'a KvBenchArgs,
    interrupt: &'a Interrupt,
    session: &'a mut Session,
}

impl BenchRun<'_> {
    /// Puts the objects of a fill without counting them.
    fn prefill(&mut self) -> Result<()> {
        let count = self.room(units(self.args.object_bytes));
        let (_, failure) = self.drive("filling", Time::NEVER, |engine, depth, watch| {
            drive::fill(engine, depth, count, watch);
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// Runs the workload.
    fn measure(&mut self, trace: &[TraceRequest]) -> Result<(BenchOutcome, Option<Failure>)> {
        let args = self.args;
        let (count, known) = match &args.workload {
            Workload::Trace(_) => (distinct(trace), None),
            Workload::Layers => {
                (self.room(Blocks::layout(args.layers_model())?.block_units()), None)
            }
            Workload::Fill => (self.room(units(args.object_bytes)), None),
            _ => self.there()?,
        };
        let before = self.session.local().stats();
        let begun = self.session.local().now();
        let until = args.runtime().map_or(Time::NEVER, |runtime| begun + runtime);
        let (counted, failure) = if args.workload == Workload::Layers {
            self.layers(count, until)?
        } else {
            let what = args.workload.to_string();
            self.drive(&what, until, |engine, depth, watch| match &args.workload {
                Workload::Trace(_) => drive::replay(engine, depth, trace, watch),
                Workload::Fill => drop(drive::fill(engine, depth, count, watch)),
                _ => {
                    let mut chooser = chooser(args, count);
                    drive::mix(engine, depth, &mut chooser, known.as_deref(), watch);
                }
            })?
        };
        let ended = self.session.local().now();
        if failure.is_none() {
            self.session.commit()?;
        }
        let outcome = BenchOutcome {
            counted,
            objects: count,
            elapsed: ended.since(begun),
            commit: self.session.local().now().since(ended),
            store: since(self.session.local().stats(), before),
            span: trace::span(trace),
            interrupted: self.interrupt.requested(),
        };
        Ok((outcome, failure))
    }

    /// Puts sequences of KV blocks and restores each layer by layer; with a time limit, repeats until then.
    fn layers(&mut self, count: u64, until: Time) -> Result<(Counted, Option<Failure>)> {
        let mut blocks = Blocks::define(self.session, Blocks::layout(self.args.layers_model())?)?;
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
            blocks.put(self.session, sequence, length, &mut |moved| {
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
            if self.interrupt.requested() || self.session.local().now() >= until {
                break;
            }
            let moved = blocks.restore(self.session, sequence, length, layer)?;
            get.record_together(moved.blocks, moved.bytes, moved.took);
            restored.layers += 1;
            restored.latency.record(moved.took.as_nanos() as u64);
            meter.show(|_| format!("layers: {} restored", restored.layers));
        }
        Ok(())
    }

    fn drive(
        &mut self,
        what: &str,
        until: Time,
        load: impl FnOnce(&mut Engine<'_, Local>, usize, &mut Watch<'_>),
    ) -> Result<(Counted, Option<Failure>)> {
        let args = self.args;
        let depth = args.iodepth as usize;
        let most = match args.workload {
            Workload::Ycsb(Ycsb::E) => depth + SCAN_MAX as usize - 1,
            _ => depth,
        };
        let objects = Objects::new(unix_ns());
        let local = self.session.local_mut();
        let looked = Bed::now(local);
        let mut engine = Engine::new(local, args.object_bytes, most, args.verify, objects)?;
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
    fn room(&self, object_units: u64) -> u64 {
        let local = self.session.local();
        let stats = local.stats();
        let fits = stats.capacity_units * FILL_PERMILLE / 1000 / object_units;
        let set = local.set();
        let most = u64::from(set.objects_max()) * u64::from(set.shards());
        let most = self.args.capacity_blocks.unwrap_or(most).min(most);
        self.args.objects.unwrap_or(fits.min(most * FILL_PERMILLE / 1000)).max(1)
    }

    /// Returns the number of existing objects, with their numbers if the user gave no count.
    fn there(&self) -> Result<(u64, Option<Vec<u64>>)> {
        if let Some(count) = self.args.objects {
            return Ok((count, None));
        }
        let mut known = Vec::new();
        self.session.scan(&[], &mut |info| {
            known.extend(blocks::object(&info.key));
            Ok(())
        })?;
        known.sort_unstable();
        match known.len() as u64 {
            0 => Err(Failure::failed(format!(
                "{}: there are no objects of an earlier fill; run --workload fill first",
                store::name(&self.args.store)
            ))),
            count => Ok((count, Some(known))),
        }
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

impl Bed for Local {
    fn now(&self) -> Time {
        Local::now(self)
    }

    fn submit(&mut self, now: Time, requests: impl Iterator<Item = Request>) {
        Local::submit_many(self, now, requests);
    }

    fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> usize {
        let Turn { moved, next, .. } = Local::poll(self, now, done);
        // The software controller or the kernel may need this CPU.
        if moved == 0 && !self.wait(next.since(now).min(SLEEP_MAX)) {
            std::thread::yield_now();
        }
        moved
    }

    fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize {
        Local::lookup_prefix(self, now, keys)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer> {
        Ok(Local::allocate(self, bytes)?)
    }
}
