//! Opening a store of many objects after a crash, and looking its objects up.
//!
//! Puts objects of one unit through a shard whose device keeps metadata only (see `shelf`), drops it without closing,
//! and opens it again: recovery loads the newest checkpoint and replays the journal over it. A drive would add the
//! bytes read divided by its bandwidth. Then the same metadata is put on a software controller (`soft:mem`), and the
//! store there is opened as a server would, by `Store::open_local`, with the controller on its own thread.
//!
//! Each opening reports three figures: its duration; the CPU time of its thread, which is the duration on an
//! otherwise idle core; and the growth of the process.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_open -- --objects 10000000
//! ```
#![forbid(unsafe_code)]

mod shelf;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, Operation, QueueOptions, Request as Raw};
use adit_driver::spec::Lba;
use adit_driver::{Device, DeviceOptions, Time};
use adit_kvstore::shard::{
    Action, Done, Outcome, PutItem, PutOptions, Recovery, Request, Shard, ShardOptions,
};
use adit_kvstore::{Key, OpenOptions, Store, UNIT_BYTES};
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use shelf::{Shelf, ShelfQueue};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Times opening after a crash.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_open --objects 1000000")]
struct Args {
    /// Objects in the store.
    #[arg(long, default_value_t = 10_000_000)]
    objects: u64,
    /// How often it is opened.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Returns a hash-like key, spread over 128 bits.
fn key(number: u64) -> Key {
    let high = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::from(u128::from(high) << 64 | u128::from(number))
}

/// Puts `count` objects in real time.
fn fill(shard: &mut Shard<ShelfQueue>, idle: &mut Vec<Buffer>, count: u64, start: Instant) {
    let (mut sent, mut done) = (0, 0);
    while done < count {
        let now = Time::from_ns(start.elapsed().as_nanos() as u64);
        while sent < count {
            let Some(buffer) = idle.pop() else { break };
            let (data, options) = (AnyBuffer::One(buffer), PutOptions::default());
            let item = PutItem { key: key(sent), bytes: 4096, data, options };
            shard.submit(
                now,
                Request { reply: sent, deadline: Time::NEVER, action: Action::Put(item) },
            );
            sent += 1;
        }
        shard.poll(now, &mut |answer: Done| {
            assert!(matches!(answer.result, Ok(Outcome::Stored)), "{answer:?}");
            if let AnyBuffer::One(buffer) = answer.memory {
                idle.push(buffer);
            }
            done += 1;
        });
    }
}

/// Waits until everything is durable.
fn commit(shard: &mut Shard<ShelfQueue>, start: Instant) {
    let now = || Time::from_ns(start.elapsed().as_nanos() as u64);
    shard.submit(now(), Request { reply: 0, deadline: Time::NEVER, action: Action::Commit });
    let mut answered = false;
    while !answered {
        shard.poll(now(), &mut |_| answered = true);
    }
}

/// Returns the lookups per second of CPU time, by prefixes of 64 keys in no order.
fn lookups(shard: &mut Shard<ShelfQueue>, objects: u64) -> Result<f64> {
    const PREFIXES: u64 = 20_000;
    let prefix =
        |at: u64| (0..64).map(move |next| key((at * 7_919_777 + next * 104_729) % objects));
    let prefixes: Vec<Vec<Key>> = (0..PREFIXES).map(|at| prefix(at).collect()).collect();
    let start = processor_time()?;
    let found: usize = prefixes.iter().map(|keys| shard.lookup_prefix(Time::ZERO, keys)).sum();
    assert_eq!(found as u64, PREFIXES * 64, "all of them are there");
    Ok(found as f64 / (processor_time()? - start).as_secs_f64())
}

/// Returns the CPU time of this thread.
fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

struct Cost {
    took: Duration,
    processor: Duration,
    grown_bytes: u64,
}

/// Calls `open`, and measures its cost to this thread, and to the process in memory.
fn measured<R>(open: impl FnOnce() -> Result<R>) -> Result<(R, Cost)> {
    let (resident_bytes, start, before) = (resident_bytes()?, Instant::now(), processor_time()?);
    let opened = open()?;
    let (took, processor) = (start.elapsed(), processor_time()? - before);
    let grown_bytes = self::resident_bytes()?.saturating_sub(resident_bytes);
    Ok((opened, Cost { took, processor, grown_bytes }))
}

fn resident_bytes() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("statm has two numbers or more")?.parse()?;
    Ok(pages * 4096)
}

fn report(what: &str, recovery: &Recovery, cost: &Cost) {
    let found = recovery.recovered.as_ref().expect("it is not volatile");
    println!(
        "{what}: opened {} objects in {:.2} s, {:.2} s of processor time: {:.0} MB read, {} records of a checkpoint \
         and {} of the journal; grew by {:.1} bytes an object",
        recovery.objects,
        cost.took.as_secs_f64(),
        cost.processor.as_secs_f64(),
        found.bytes_read as f64 / 1e6,
        found.checkpoint_records,
        found.journal_records,
        cost.grown_bytes as f64 / recovery.objects as f64,
    );
}

/// Opens the store on the shelf repeatedly.
fn open_shelf(shelf: &Shelf, args: &Args) -> Result<()> {
    for _ in 0..args.rounds {
        let set = shelf.read_set()?;
        let options = ShardOptions::default;
        let ((mut shard, recovery), cost) = measured(|| Ok(shelf.recover(&set, options())?))?;
        report("shelf", &recovery, &cost);
        println!("  {:.2} M lookups/s", lookups(&mut shard, args.objects)? / 1e6);
    }
    Ok(())
}

/// Writes the shelf's contents to a device, in runs of adjacent units.
fn carry_over(shelf: &Shelf, device: &Device) -> Result<()> {
    const RUN_BYTES: usize = 128 << 10;
    let units = shelf.units.lock().unwrap_or_else(PoisonError::into_inner);
    let units: BTreeMap<u64, &[u8]> = units.iter().map(|(unit, bytes)| (*unit, &**bytes)).collect();
    let timeout = Duration::from_secs(30);
    let options = QueueOptions { depth: 2, timeout, abort_timeout: timeout };
    let mut queue = device.create_queue::<AnyBuffer>(&options, &[])?;
    let mut units = units.into_iter().peekable();
    while let Some((first, bytes)) = units.next() {
        let mut run = bytes.to_vec();
        while run.len() < RUN_BYTES
            && let Some((_, bytes)) =
                units.next_if(|(unit, _)| *unit == first + run.len() as u64 / UNIT_BYTES)
        {
            run.extend_from_slice(bytes);
        }
        let mut buffer = device.allocate(run.len())?;
        buffer.copy_from_slice(&run);
        let (operation, buffer) = (Operation::Write(Lba(first)), AnyBuffer::One(buffer));
        queue.post(device.now(), Raw { operation, buffer }).expect("nothing else is in flight");
        queue.ring();
        let mut done = 0;
        while done == 0 {
            done = queue.poll(device.now(), |completion| {
                assert!(completion.result.is_ok(), "{:?}", completion.result);
            });
        }
    }
    Ok(())
}

/// Opens the store repeatedly on a software controller with the shelf's contents.
fn open_soft(shelf: &Shelf, args: &Args) -> Result<()> {
    let target = format!("soft:mem={},lba=4096", shelf.bytes).parse()?;
    let device = Device::open(&target, &DeviceOptions::default())?;
    carry_over(shelf, &device)?;
    let options = OpenOptions { devices: vec![device], ..OpenOptions::default() };
    for _ in 0..args.rounds {
        let (store, cost) = measured(|| Ok(Store::open_local(&options)?))?;
        report("soft:mem", &store.recoveries()[0], &cost);
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut shelf = Shelf::new((args.objects * 4096 * 5 / 4) + (16 << 30))?;
    let set = shelf.format(args.objects as u32 + 10_000)?;
    let mut idle =
        (0..32).map(|_| shelf.allocate(4096)).collect::<adit_driver::Result<Vec<_>>>()?;
    let start = Instant::now();
    let mut shard = shelf.open(&set, ShardOptions::default())?;
    fill(&mut shard, &mut idle, args.objects, start);
    commit(&mut shard, start);
    let (stats, took) = (shard.stats(), start.elapsed().as_secs_f64());
    println!(
        "put {} objects: {:.2} M/s, {} checkpoints, {:.1} bytes of memory each, {:.2} M lookups/s",
        stats.objects,
        args.objects as f64 / took / 1e6,
        stats.checkpoints,
        stats.memory_bytes as f64 / stats.objects as f64,
        lookups(&mut shard, args.objects)? / 1e6,
    );
    drop(shard);
    open_shelf(&shelf, &args)?;
    open_soft(&shelf, &args)
}
