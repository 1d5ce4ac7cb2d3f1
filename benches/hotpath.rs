//! The cost of an I/O in instructions, counted by callgrind.
//!
//! Runs bursts against `soft:null`, which completes at once and moves no data. The controller is stepped between
//! submission and reaping, so that nothing else is counted. `hot_submit` posts and rings a burst, `hot_reap` reaps
//! its completions, `hot_idle` polls an empty queue; none of them is ever inlined.
//!
//! ```text
//! cargo build --release -p adit-benches
//! valgrind --tool=callgrind --toggle-collect='*hot_submit*' \
//!     target/release/hotpath --depth 32 --bs 4096 --bursts 200
//! ```
//!
//! Divide the total by bursts times depth. Without valgrind it prints times.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{
    Buffer, Controller, ControllerOptions, Namespace, QueuePair, QueuePairOptions, Time,
};
use clap::{Parser, ValueEnum};

/// Counts or times the driver's hot path against the null controller.
#[derive(Parser)]
#[command(after_help = "Example:\n  hotpath --depth 32 --bs 131072 --pointer prp --bursts 200")]
struct Args {
    /// I/Os of a burst, submitted with one doorbell.
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Bytes of an I/O.
    #[arg(long, default_value_t = 4096)]
    bs: usize,
    /// Bursts to run.
    #[arg(long, default_value_t = 200)]
    bursts: u32,
    /// How commands point at their data.
    #[arg(long, value_enum, default_value_t = Pointer::Prp)]
    pointer: Pointer,
    /// Empty polls to run after each burst.
    #[arg(long, default_value_t = 1)]
    idle_polls: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pointer {
    Prp,
    Sgl,
}

/// Posts every buffer as a read and rings once.
#[inline(never)]
fn hot_submit(
    queue: &mut QueuePair<Buffer>,
    namespace: &Namespace,
    buffers: &mut Vec<Buffer>,
    now: Time,
) {
    let mut lba = 0;
    while let Some(buffer) = buffers.pop() {
        let posted = queue.post(now, namespace.read(Lba(lba), buffer));
        assert!(posted.is_ok(), "the burst fits the queue");
        lba += 8;
    }
    queue.ring();
}

#[inline(never)]
fn hot_reap(queue: &mut QueuePair<Buffer>, buffers: &mut Vec<Buffer>, now: Time) -> usize {
    let mut failed = 0;
    let finished = queue.poll(now, |completion| {
        failed += usize::from(completion.result.is_err());
        buffers.push(completion.buffer);
    });
    assert_eq!(failed, 0, "the null controller never fails");
    finished
}

#[inline(never)]
fn hot_idle(queue: &mut QueuePair<Buffer>, now: Time) -> usize {
    queue.poll(now, |_| ())
}

struct Harness {
    bus: Arc<SoftBus>,
    queue: QueuePair<Buffer>,
    namespace: Namespace,
    buffers: Vec<Buffer>,
}

fn set_up(args: &Args) -> adit_driver::Result<Harness> {
    let sgl = if args.pointer == Pointer::Sgl { "on" } else { "off" };
    let bus = SoftBus::new(format!("null,dbbuf=off,mdts=12,sgl={sgl}").parse()?, Drive::Manual)?;
    let controller =
        Controller::attach(Arc::<SoftBus>::clone(&bus), &ControllerOptions::default())?;
    let namespace = controller.namespace(Nsid(1))?;
    let queue =
        controller.create_queue_pair(QueuePairOptions { depth: 256, ..Default::default() })?;
    let mut rest = controller.allocate(args.bs * args.depth as usize)?;
    let mut buffers = Vec::with_capacity(args.depth as usize);
    for _ in 0..args.depth {
        let tail = rest.split_off(args.bs);
        buffers.push(std::mem::replace(&mut rest, tail));
    }
    Ok(Harness { bus, queue, namespace, buffers })
}

/// Returns the nanoseconds spent in submission, reaping and empty polls.
fn run(args: &Args, harness: &mut Harness) -> [u128; 3] {
    let Harness { bus, queue, namespace, buffers } = harness;
    let (mut submit, mut reap, mut idle) = (0, 0, 0);
    for burst in 0..args.bursts {
        let now = Time::from_ns(u64::from(burst));
        let start = Instant::now();
        hot_submit(queue, namespace, buffers, now);
        submit += start.elapsed().as_nanos();
        while bus.step() > 0 {}
        let start = Instant::now();
        let finished = hot_reap(queue, buffers, now);
        reap += start.elapsed().as_nanos();
        assert_eq!(finished, args.depth as usize, "a burst completes whole");
        let start = Instant::now();
        for _ in 0..args.idle_polls {
            black_box(hot_idle(queue, now));
        }
        idle += start.elapsed().as_nanos();
    }
    [submit, reap, idle]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut harness = set_up(&args)?;
    let [submit, reap, idle] = run(&args, &mut harness);
    let ios = f64::from(args.bursts) * f64::from(args.depth);
    let polls = f64::from(args.bursts) * f64::from(args.idle_polls);
    let stats = harness.queue.stats();
    let report = serde_json::json!({
        "depth": args.depth,
        "bs": args.bs,
        "bursts": args.bursts,
        "pointer": if args.pointer == Pointer::Sgl { "sgl" } else { "prp" },
        "ios": ios,
        "submit_ns_per_io": submit as f64 / ios,
        "reap_ns_per_io": reap as f64 / ios,
        "empty_poll_ns": idle as f64 / polls,
        "prebuilt_lists": stats.prebuilt_lists,
        "built_lists": stats.built_lists,
        "sgl_commands": stats.sgl_commands,
    });
    println!("{report}");
    Ok(())
}
