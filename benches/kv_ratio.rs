//! The store compared with its device: the share of a raw loop's throughput left with keys, checksums and a journal.
//!
//! Each comparison runs a raw loop over one queue of a device and a [`Local`] store on another queue of the same
//! device, in one process and thread, alternating. The figure is the median of the rounds' ratios, with the
//! quartiles. Both keep equally many operations in flight and read the same clock before each poll.
//!
//! | comparison | raw | store |
//! |---|---|---|
//! | get | random reads | random gets, checksums verified |
//! | put restart | sequential writes | puts of new objects, acknowledged when written |
//! | put durable | the depth's writes, then a flush, again | the same, each acknowledged when durable |
//!
//! Of durable puts it also prints the store's flushes, journal blocks and bytes of checkpoints for each put.
//!
//! With `--step` a software controller has no thread of its own: the loops step it, and CPU time is counted. Nothing
//! overlaps then, so the store's own work weighs more than with a drive, but the figure does not depend on other
//! load.
//!
//! Afterwards it puts many times the store's capacity, and reports how much of what reached the device was not
//! objects.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_ratio -- soft:mem=2G
//! cargo run --release -p adit-benches --bin kv_ratio -- uring:/var/tmp/store.img --file-mib 2048
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request as Raw};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Controller, ControllerOptions, Device, DeviceOptions, Target, Time};
use adit_kvstore::shard::{Action, Done, GetItem, Outcome, Part, PutItem, PutOptions, Request};
use adit_kvstore::{Durability, FormatStore, Key, Local, OpenOptions, Store, UNIT_BYTES};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Compares the store with its device.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_ratio soft:mem=2G --rounds 15")]
struct Args {
    /// The device, whose contents are lost.
    target: Target,
    /// Size of the file to create, in MiB.
    #[arg(long, default_value_t = 2048)]
    file_mib: u64,
    /// Rounds of each comparison.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// MiB moved per round.
    #[arg(long, default_value_t = 256)]
    round_mib: u64,
    /// GiB to put to measure other writes; 0 for none.
    #[arg(long, default_value_t = 20)]
    put_gib: u64,
    /// Steps a `soft:` controller between submission and polling, and counts processor time.
    #[arg(long)]
    step: bool,
    /// Writes a block of 4 KiB elsewhere beside each batch of the raw loop that it flushes, as any store with a journal
    /// does.
    #[arg(long)]
    blocks: bool,
    /// Only run comparisons whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// A seeded random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Returns a hash-like key, spread over 128 bits.
fn key(number: u64) -> Key {
    let high = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::from(u128::from(high) << 64 | u128::from(number))
}

#[derive(Clone, Copy)]
struct Comparison {
    name: &'static str,
    is_put: bool,
    durability: Durability,
    bytes: u64,
    depth: u64,
}

impl Comparison {
    /// Returns whether the raw loop flushes.
    fn flushes(&self) -> bool {
        self.durability == Durability::Durable
    }
}

const RESTART: Comparison = Comparison {
    name: "put 128 KiB QD32 restart",
    is_put: true,
    durability: Durability::Restart,
    bytes: 128 << 10,
    depth: 32,
};

const DURABLE: Comparison =
    Comparison { name: "put 128 KiB QD32 durable", durability: Durability::Durable, ..RESTART };

const COMPARISONS: [Comparison; 7] = [
    Comparison { name: "get 128 KiB QD32", is_put: false, ..RESTART },
    Comparison { name: "get 4 KiB QD128", is_put: false, bytes: 4 << 10, depth: 128, ..RESTART },
    RESTART,
    Comparison { name: "put 4 KiB QD1 durable", bytes: 4 << 10, depth: 1, ..DURABLE },
    Comparison { name: "put 4 KiB QD32 durable", bytes: 4 << 10, ..DURABLE },
    Comparison { name: "put 128 KiB QD1 durable", depth: 1, ..DURABLE },
    DURABLE,
];

/// Which time is counted, and what drives the device.
#[derive(Clone)]
enum Run {
    /// Wall-clock time; the device runs by itself.
    Alone,
    /// The thread's CPU time; these loops step the device.
    Stepped(Arc<SoftBus>),
}

impl Run {
    fn step(&self) {
        if let Run::Stepped(bus) = self {
            while bus.step() > 0 {}
            bus.advance(STEP_TAKES);
        }
    }

    fn seconds(&self) -> Result<f64> {
        let clock = match self {
            Run::Alone => ClockId::CLOCK_MONOTONIC,
            Run::Stepped(_) => ClockId::CLOCK_THREAD_CPUTIME_ID,
        };
        Ok(Duration::from(clock_gettime(clock)?).as_secs_f64())
    }

    /// Calls `f` while another thread steps the device.
    fn waiting<R>(&self, f: impl FnOnce() -> R) -> R {
        let Run::Stepped(bus) = self else { return f() };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    bus.step();
                    bus.advance(STEP_TAKES);
                }
            });
            let result = f();
            over.store(true, Ordering::Relaxed);
            result
        })
    }
}

/// Units of the blocks that the raw loop writes in turn.
const BLOCKS: u64 = 256;
/// Virtual time of a step.
const STEP_TAKES: Duration = Duration::from_micros(20);

/// A device and its settings.
struct Bench {
    device: Device,
    run: Run,
    round_bytes: u64,
    writes_blocks: bool,
    random: Random,
}

impl Bench {
    fn format(&self) -> Result<()> {
        let format = FormatStore {
            devices: vec![self.device.clone()],
            overwrite: true,
            ..FormatStore::default()
        };
        self.run.waiting(|| Store::format(&format))?;
        Ok(())
    }

    fn open(&self, durability: Durability, depth: u64) -> Result<Local> {
        // Two slots more than the caller fills, for the journal.
        let options = OpenOptions {
            devices: vec![self.device.clone()],
            durability,
            queue_depth: depth as u32 + 2,
            ..OpenOptions::default()
        };
        Ok(self.run.waiting(|| Store::open_local(&options))?)
    }

    fn buffers(&self, comparison: &Comparison) -> Result<Vec<Buffer>> {
        let allocate = |_| Ok(self.device.allocate(comparison.bytes as usize)?);
        (0..comparison.depth).map(allocate).collect()
    }

    fn queue(&self, depth: u64) -> Result<DeviceQueue<AnyBuffer>> {
        let timeout = std::time::Duration::from_secs(30);
        let options = QueueOptions { depth: depth as u32 + 2, timeout, abort_timeout: timeout };
        Ok(self.device.create_queue(&options, &[])?)
    }
}

struct RawLoop {
    run: Run,
    queue: DeviceQueue<AnyBuffer>,
    device: Device,
    idle: Vec<Buffer>,
    /// What it writes beside each batch, if it does and unless that is in flight; and how often it did.
    block: Option<Buffer>,
    blocks: u64,
    /// The units of the store's data.
    data: std::ops::Range<u64>,
    next: u64,
}

impl RawLoop {
    /// Returns operations per second.
    fn round(&mut self, comparison: &Comparison, count: u64, random: &mut Random) -> Result<f64> {
        // Objects that were sent, those that a flush has covered, and writes that were sent and that are done.
        let (mut sent, mut flushed, mut writes, mut done) = (0, 0, 0, 0);
        let mut is_flushing = false;
        let start = self.run.seconds()?;
        while done < writes || sent < count || (comparison.flushes() && flushed < count) {
            let (now, before) = (self.device.now(), (writes, is_flushing));
            // Those of a batch go at once, and none before the flush of the batch before it is done.
            let may_send = !comparison.flushes() || flushed == sent;
            while may_send && sent < count {
                let Some(buffer) = self.idle.pop() else { break };
                let operation = self.operation(comparison, random);
                let buffer = AnyBuffer::One(buffer);
                self.queue.post(now, Raw { operation, buffer }).expect("room");
                (sent, writes) = (sent + 1, writes + 1);
            }
            if may_send
                && sent > flushed
                && let Some(block) = self.block.take()
            {
                let operation = Operation::Write(self.block_lba());
                let buffer = AnyBuffer::Many(vec![block]);
                self.queue.post(now, Raw { operation, buffer }).expect("room");
                writes += 1;
            }
            if comparison.flushes() && !is_flushing && done == writes && flushed < sent {
                let (operation, buffer) = (Operation::Flush, AnyBuffer::None);
                self.queue.post(now, Raw { operation, buffer }).expect("room");
                is_flushing = true;
            }
            if (writes, is_flushing) != before {
                self.queue.ring();
            }
            self.run.step();
            let (idle, block) = (&mut self.idle, &mut self.block);
            self.queue.poll(now, |completion| {
                assert!(completion.result.is_ok(), "{:?}", completion.result);
                match completion.buffer {
                    AnyBuffer::One(buffer) => {
                        idle.push(buffer);
                        done += 1;
                    }
                    AnyBuffer::Many(mut buffers) => {
                        *block = buffers.pop();
                        done += 1;
                    }
                    _ => (flushed, is_flushing) = (sent, false),
                }
            });
        }
        Ok(count as f64 / (self.run.seconds()? - start))
    }

    /// Returns where the next block goes: one unit behind another at the end of the data.
    fn block_lba(&mut self) -> Lba {
        self.blocks = (self.blocks + 1) % BLOCKS;
        let lbas = UNIT_BYTES / u64::from(self.device.info().lba_bytes);
        Lba((self.data.end - BLOCKS + self.blocks) * lbas)
    }

    fn operation(&mut self, comparison: &Comparison, random: &mut Random) -> Operation {
        let step = comparison.bytes / UNIT_BYTES;
        let places = (self.data.end - self.data.start) / step;
        let lbas = UNIT_BYTES / u64::from(self.device.info().lba_bytes);
        let lba = |place: u64| Lba((self.data.start + place * step) * lbas);
        if !comparison.is_put {
            return Operation::Read(lba(random.below(places)));
        }
        self.next = (self.next + 1) % places;
        Operation::Write(lba(self.next))
    }
}

struct StoreLoop {
    run: Run,
    store: Local,
    idle: Vec<Buffer>,
    objects: u64,
    next: u64,
}

impl StoreLoop {
    /// Returns operations per second.
    fn round(&mut self, comparison: &Comparison, count: u64, random: &mut Random) -> Result<f64> {
        let (mut sent, mut done) = (0, 0);
        let start = self.run.seconds()?;
        while done < count {
            let now = self.store.now();
            while sent < count {
                let Some(buffer) = self.idle.pop() else { break };
                let action = self.action(comparison, AnyBuffer::One(buffer), random);
                self.store.submit(now, Request { reply: sent, deadline: Time::NEVER, action });
                sent += 1;
            }
            let (idle, done) = (&mut self.idle, &mut done);
            self.store.poll(now, &mut |answer: Done| {
                let is_well = matches!(answer.result, Ok(Outcome::Stored | Outcome::Hit { .. }));
                assert!(is_well, "{:?}", answer.result);
                if let AnyBuffer::One(buffer) = answer.memory {
                    idle.push(buffer);
                }
                *done += 1;
            });
            self.run.step();
        }
        Ok(count as f64 / (self.run.seconds()? - start))
    }

    fn action(
        &mut self,
        comparison: &Comparison,
        memory: AnyBuffer,
        random: &mut Random,
    ) -> Action {
        if !comparison.is_put {
            let (key, part) = (key(random.below(self.objects)), Part::All);
            return Action::Get(GetItem { key, part, into: memory, version: None });
        }
        self.next += 1;
        let (key, bytes, options) = (key(self.next - 1), comparison.bytes, PutOptions::default());
        Action::Put(PutItem { key, bytes, data: memory, options })
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values[(values.len() - 1) * part / 4];
    [at(1), at(2), at(3)]
}

fn compare(bench: &mut Bench, comparison: &Comparison, rounds: usize) -> Result<()> {
    bench.format()?;
    let store = bench.open(comparison.durability, comparison.depth)?;
    let data = store.set().geometry().data(0, 0).remove(0);
    let (run, idle) = (bench.run.clone(), bench.buffers(comparison)?);
    let mut store = StoreLoop { run, store, idle, objects: 0, next: 0 };
    let mut raw = RawLoop {
        run: bench.run.clone(),
        queue: bench.queue(comparison.depth)?,
        device: bench.device.clone(),
        idle: bench.buffers(comparison)?,
        block: None,
        blocks: 0,
        next: 0,
        data,
    };
    let count = bench.round_bytes / comparison.bytes;
    let random = &mut bench.random;
    // Half of the data, so that no object is evicted before it is read; and every place has been written once.
    store.objects = (raw.data.end - raw.data.start) * UNIT_BYTES / comparison.bytes / 2;
    let most = u64::from(store.store.set().objects_max()) - 1000;
    store.objects = store.objects.min(most);
    let fill = Comparison { is_put: true, ..*comparison };
    raw.round(&fill, (raw.data.end - raw.data.start) * UNIT_BYTES / comparison.bytes, random)?;
    let (objects, depth) = (store.objects, comparison.depth);
    store.round(&fill, objects.max(depth), random)?;
    if comparison.flushes() && bench.writes_blocks {
        raw.block = Some(bench.device.allocate(UNIT_BYTES as usize)?);
    }
    let before = store.store.stats();
    let (mut ratios, mut raws, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (raw, store) =
            (raw.round(comparison, count, random)?, store.round(comparison, count, random)?);
        ratios.push(store / raw);
        raws.push(raw * comparison.bytes as f64 / 1e6);
        stores.push(store * comparison.bytes as f64 / 1e6);
    }
    let stats = store.store.stats();
    let ([low, ratio, high], [_, raw, _], [_, store, _]) =
        (quartiles(ratios), quartiles(raws), quartiles(stores));
    print!("| {} | {raw:.0} | {store:.0} | {ratio:.3} | {low:.3} to {high:.3} |", comparison.name);
    if comparison.flushes() {
        let puts = (rounds as u64 * count) as f64;
        let flushes = (stats.flushes - before.flushes) as f64 / puts;
        let blocks = ((stats.journal_bytes - before.journal_bytes) / UNIT_BYTES) as f64 / puts;
        let checkpoints = (stats.checkpoint_bytes - before.checkpoint_bytes) as f64 / puts;
        print!(
            " {flushes:.3} flushes, {blocks:.3} journal blocks and {checkpoints:.0} bytes of checkpoints a put |"
        );
    }
    println!();
    Ok(())
}

/// Puts `bytes`, many times the store's capacity, and reports what reached the device.
fn amplification(bench: &mut Bench, bytes: u64) -> Result<()> {
    bench.format()?;
    let store = bench.open(RESTART.durability, RESTART.depth)?;
    let (run, idle) = (bench.run.clone(), bench.buffers(&RESTART)?);
    let mut store = StoreLoop { run, store, idle, objects: 0, next: 0 };
    store.round(&RESTART, bytes / RESTART.bytes, &mut bench.random)?;
    let stats = store.store.stats();
    let ratio = stats.bytes_to_device as f64 / stats.bytes_written as f64;
    println!(
        "\nput {:.1} GB in objects of 128 KiB: device bytes / object bytes {ratio:.5} (journal {:.1} MB, {} \
         checkpoints of {:.1} MB together, {} evictions, {} flushes, discarded {:.1} GB)",
        stats.bytes_written as f64 / 1e9,
        stats.journal_bytes as f64 / 1e6,
        stats.checkpoints,
        stats.checkpoint_bytes as f64 / 1e6,
        stats.evictions.objects(),
        stats.flushes,
        stats.discards_bytes as f64 / 1e9,
    );
    Ok(())
}

fn open(args: &Args) -> Result<(Device, Run)> {
    if let (Target::Soft { options, .. }, true) = (&args.target, args.step) {
        let bus = SoftBus::new(options.parse()?, Drive::Manual)?;
        let about = ControllerOptions { io_queues: 4, ..ControllerOptions::default() };
        let controller = Controller::attach(Arc::<SoftBus>::clone(&bus), &about)?;
        let namespace = controller.namespace(Nsid(1))?;
        let device = Device::of_namespace(controller, namespace, &args.target);
        return Ok((device, Run::Stepped(bus)));
    }
    let options = DeviceOptions {
        queue_count: 4,
        file_bytes: Some(args.file_mib << 20),
        ..DeviceOptions::default()
    };
    Ok((Device::open(&args.target, &options)?, Run::Alone))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (device, run) = open(&args)?;
    let round_bytes = args.round_mib << 20;
    let (writes_blocks, random) = (args.blocks, Random(0x9e37_79b9));
    let mut bench = Bench { device, run, round_bytes, writes_blocks, random };
    println!("{}\n\n| what | raw MB/s | store MB/s | ratio | quartiles |", args.target);
    println!("|---|---|---|---|---|");
    for comparison in COMPARISONS.iter().filter(|one| one.name.contains(&args.only)) {
        compare(&mut bench, comparison, args.rounds)?;
    }
    if args.put_gib > 0 {
        amplification(&mut bench, args.put_gib << 30)?;
    }
    Ok(())
}
