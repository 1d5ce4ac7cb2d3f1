//! The cost of a store operation in instructions, counted by callgrind.
//!
//! Drives a shard in bursts, as one thread would, over a queue that completes at once and moves no object data (see
//! `shelf`). All memory holds zeroes, so that what is read has the checksums of what was put. `hot_submit` submits a
//! burst, `hot_poll` polls until all of it is answered, `hot_idle` polls an idle shard, `hot_checksum` only computes
//! checksums of equally many bytes; none of them is ever inlined.
//!
//! ```text
//! cargo build --release -p adit-benches
//! valgrind --tool=callgrind --toggle-collect='*hot_submit*' --toggle-collect='*hot_poll*' \
//!     target/release/kv_shard --operation get --bs 4096 --bursts 200
//! ```
//!
//! Divide the total by bursts times depth, and subtract what `--toggle-collect='*hot_checksum*'` counts. Without
//! valgrind it prints times.
#![forbid(unsafe_code)]

mod shelf;

use std::hint::black_box;
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_kvstore::internals::checksum;
use adit_kvstore::shard::{
    Action, Done, GetItem, Outcome, Part, PutItem, PutOptions, Request, Shard, ShardOptions,
};
use adit_kvstore::{Durability, Key};
use clap::{Parser, ValueEnum};
use shelf::{Shelf, ShelfQueue};

/// Counts or times the hot path of a shard.
#[derive(Parser)]
#[command(after_help = "Example:\n  kv_shard --operation put --bs 131072 --bursts 200")]
struct Args {
    /// The operation.
    #[arg(long, value_enum, default_value_t = What::Get)]
    operation: What,
    /// Requests of a burst.
    #[arg(long, default_value_t = 32)]
    depth: u64,
    /// Bytes of an object.
    #[arg(long, default_value_t = 4096)]
    bs: usize,
    /// Bursts to run.
    #[arg(long, default_value_t = 200)]
    bursts: u64,
    /// Objects in the store.
    #[arg(long, default_value_t = 10_000)]
    objects: u64,
    /// What an acknowledgement promises.
    #[arg(long, value_enum, default_value_t = Promise::Restart)]
    durability: Promise,
    /// Idle polls after each burst.
    #[arg(long, default_value_t = 10)]
    idle_polls: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Get,
    Put,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Promise {
    Volatile,
    Restart,
    Durable,
}

impl From<Promise> for Durability {
    fn from(promise: Promise) -> Durability {
        match promise {
            Promise::Volatile => Durability::Volatile,
            Promise::Restart => Durability::Restart,
            Promise::Durable => Durability::Durable,
        }
    }
}

/// Returns a hash-like key, spread over 128 bits.
fn key(number: u64) -> Key {
    let high = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Key::from(u128::from(high) << 64 | u128::from(number))
}

#[inline(never)]
fn hot_submit(shard: &mut Shard<ShelfQueue>, requests: &mut Vec<Request>, now: Time) {
    requests.drain(..).for_each(|request| shard.submit(now, request));
}

/// Polls until `wanted` answers have come.
#[inline(never)]
fn hot_poll(shard: &mut Shard<ShelfQueue>, idle: &mut Vec<Buffer>, wanted: usize, now: Time) {
    let before = idle.len();
    while idle.len() < before + wanted {
        shard.poll(now, &mut |done: Done| {
            assert!(matches!(done.result, Ok(Outcome::Stored | Outcome::Hit { .. })), "{done:?}");
            let AnyBuffer::One(buffer) = done.memory else { unreachable!("one was given") };
            idle.push(buffer);
        });
    }
}

#[inline(never)]
fn hot_idle(shard: &mut Shard<ShelfQueue>, now: Time) -> usize {
    shard.poll(now, &mut |_| ()).moved
}

/// Computes the checksums of what was moved.
#[inline(never)]
fn hot_checksum(buffers: &[Buffer]) {
    for buffer in buffers {
        black_box(checksum::of(buffer));
    }
}

struct Harness {
    args: Args,
    shard: Shard<ShelfQueue>,
    idle: Vec<Buffer>,
    requests: Vec<Request>,
    next: u64,
    now: Time,
}

impl Harness {
    fn new(args: Args) -> adit_kvstore::Result<Harness> {
        let mut shelf = Shelf::new(64 << 30)?;
        let set = shelf.format(args.objects as u32 + 1000)?;
        let options = ShardOptions { durability: args.durability.into(), ..Default::default() };
        let shard = shelf.open(&set, options)?;
        let idle = (0..args.depth).map(|_| shelf.allocate(args.bs)).collect::<Result<_, _>>()?;
        let requests = Vec::with_capacity(args.depth as usize);
        let mut harness = Harness { args, shard, idle, requests, next: 0, now: Time::ZERO };
        for _ in 0..harness.args.objects.div_ceil(harness.args.depth) {
            harness.burst(What::Put);
        }
        Ok(harness)
    }

    fn request(&mut self, what: What, buffer: Buffer) -> Request {
        let memory = AnyBuffer::One(buffer);
        let number = self.next;
        // Coprime with any usual number of objects, so it visits all of them in no order.
        self.next = (self.next + 7919) % self.args.objects;
        let (key, bytes, options) = (key(number), self.args.bs as u64, PutOptions::default());
        let action = match what {
            What::Put => Action::Put(PutItem { key, bytes, data: memory, options }),
            What::Get => Action::Get(GetItem { key, part: Part::All, into: memory, version: None }),
        };
        Request { reply: number, deadline: Time::NEVER, action }
    }

    /// Returns the times of a burst: submission, polling, idle polling, checksums.
    fn burst(&mut self, what: What) -> [Duration; 4] {
        self.now = self.now + Duration::from_micros(100);
        while let Some(buffer) = self.idle.pop() {
            let request = self.request(what, buffer);
            self.requests.push(request);
        }
        let wanted = self.requests.len();
        let start = Instant::now();
        hot_submit(&mut self.shard, &mut self.requests, self.now);
        let submitted = Instant::now();
        hot_poll(&mut self.shard, &mut self.idle, wanted, self.now);
        let polled = Instant::now();
        while hot_idle(&mut self.shard, self.now) > 0 {}
        let quiet = Instant::now();
        for _ in 0..self.args.idle_polls {
            black_box(hot_idle(&mut self.shard, self.now));
        }
        let idled = Instant::now();
        hot_checksum(&self.idle);
        [submitted - start, polled - submitted, idled - quiet, idled.elapsed()]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let (what, bursts, depth, bs) = (args.operation, args.bursts, args.depth, args.bs);
    let polls = bursts * args.idle_polls;
    let mut harness = Harness::new(args)?;
    let mut sum = [Duration::ZERO; 4];
    for _ in 0..bursts {
        let times = harness.burst(what);
        sum.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    let per = |time: Duration, count: u64| time.as_nanos() as f64 / count as f64;
    let operations = bursts * depth;
    let report = serde_json::json!({
        "operation": if what == What::Get { "get" } else { "put" },
        "bs": bs,
        "operations": operations,
        "submit_ns": per(sum[0], operations),
        "poll_ns": per(sum[1], operations),
        "checksum_ns": per(sum[3], operations),
        "idle_poll_ns": per(sum[2], polls),
    });
    println!("{report}");
    Ok(())
}
