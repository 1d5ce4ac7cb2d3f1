//! Opening a store of many objects after a crash, and looking its objects up.
//!
//! Puts objects of one unit through a shard whose device keeps metadata only (see `shelf`), takes no leave of it, and
//! opens it again: the newest checkpoint is loaded and the journal replayed over it. What a drive adds is the bytes
//! read over its bandwidth.
//!
//! ```text
//! cargo run --release -p adit-benches --bin kv_open -- --objects 10000000
//! ```
#![forbid(unsafe_code)]

mod shelf;

use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_kvstore::Key;
use adit_kvstore::shard::{
    Action, Done, Outcome, PutItem, PutOptions, Request, Shard, ShardOptions,
};
use clap::Parser;
use shelf::{Shelf, ShelfQueue};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Times opening after a crash.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_open --objects 1000000")]
struct Args {
    /// Objects in the store.
    #[arg(long, default_value_t = 10_000_000)]
    objects: u64,
    /// Times it is opened.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Keys as hashes are: spread over 128 bits.
fn key(number: u64) -> Key {
    let high = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::from(u128::from(high) << 64 | u128::from(number))
}

/// Puts `count` objects; time passes as it would.
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
                Request { tag: sent, deadline: Time::NEVER, action: Action::Put(item) },
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

/// Lets everything become durable.
fn commit(shard: &mut Shard<ShelfQueue>, start: Instant) {
    let now = || Time::from_ns(start.elapsed().as_nanos() as u64);
    shard.submit(now(), Request { tag: 0, deadline: Time::NEVER, action: Action::Commit });
    let mut answered = false;
    while !answered {
        shard.poll(now(), &mut |_| answered = true);
    }
}

/// Lookups a second, by prefixes of 64 keys in no order.
fn lookups(shard: &Shard<ShelfQueue>, objects: u64) -> f64 {
    const PREFIXES: u64 = 20_000;
    let prefix =
        |at: u64| (0..64).map(move |next| key((at * 7_919_777 + next * 104_729) % objects));
    let prefixes: Vec<Vec<Key>> = (0..PREFIXES).map(|at| prefix(at).collect()).collect();
    let start = Instant::now();
    let found: usize = prefixes.iter().map(|keys| shard.lookup_prefix(Time::ZERO, keys)).sum();
    assert_eq!(found as u64, PREFIXES * 64, "all of them are there");
    found as f64 / start.elapsed().as_secs_f64()
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
        lookups(&shard, args.objects) / 1e6,
    );
    drop(shard);
    for _ in 0..args.rounds {
        let set = shelf.read_set()?;
        let start = Instant::now();
        let (shard, recovery) = shelf.recover(&set, ShardOptions::default())?;
        let took = start.elapsed();
        report(&recovery, took);
        println!("  {:.2} M lookups/s", lookups(&shard, args.objects) / 1e6);
    }
    Ok(())
}

fn report(recovery: &adit_kvstore::shard::Recovery, took: Duration) {
    let found = recovery.recovered.as_ref().expect("it is not volatile");
    println!(
        "opened {} objects in {:.2} s: {:.0} MB read, {:.0} MB/s, {} records of a checkpoint and {} of the journal",
        recovery.objects,
        took.as_secs_f64(),
        found.bytes_read as f64 / 1e6,
        found.bytes_read as f64 / 1e6 / took.as_secs_f64(),
        found.checkpoint_records,
        found.journal_records,
    );
}
