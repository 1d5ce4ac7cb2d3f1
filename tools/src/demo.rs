//! `adit demo`: all of it without a device, in a few seconds.

use std::fmt::Write;
use std::time::Duration;

use adit_driver::{Controller, ControllerOptions};

use crate::bench_old::measure::Direction;
use crate::bench_old::options::{BenchArgs, ReadWrite, Verify};
use crate::bench_old::{Bench, Outcome, Size, verdict};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;

const TARGET: &str = "soft:mem=64M,lba=4096";
/// How long each workload is measured.
const RUNTIME: Duration = Duration::from_secs(1);

const INTRODUCTION: &str = "\
A software NVMe controller in this process (soft:mem=64M,lba=4096), driven through its registers, queues and
doorbells as a real one is. Every block is written in random order with a checksum, then read back and checked.
";

const WHAT_NEXT: &str = "
The figures are of software only: no flash and no PCIe took part. Next:
  adit identify soft:mem=1G                        what a controller says of itself
  adit bench --filename=soft:mem=1G --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
  adit setup status                                your drives, and which of them can be handed over
  adit bench --help                                fio's options; on a controller that 'adit setup bind' has handed over:
  adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
";

/// One row pair of the table.
struct Workload {
    name: &'static str,
    block_bytes: u64,
    iodepth: u32,
    size_bytes: u64,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "4 KiB, 1 in flight", block_bytes: 4096, iodepth: 1, size_bytes: 8 << 20 },
    Workload { name: "4 KiB, 32 in flight", block_bytes: 4096, iodepth: 32, size_bytes: 32 << 20 },
    Workload {
        name: "128 KiB, 32 in flight",
        block_bytes: 128 << 10,
        iodepth: 32,
        size_bytes: 64 << 20,
    },
];

/// Runs the command.
///
/// # Errors
/// When a block is not read as it was written, which would be our own bug.
pub(crate) fn run() -> Result<()> {
    let interrupt = Interrupt::install()?;
    let mut output = Output::Standard;
    output.write(INTRODUCTION)?;
    let controller = Controller::open(&TARGET.parse()?, &ControllerOptions::default())?;
    let mut table = heading();
    for workload in &WORKLOADS {
        let outcome = measure(workload, &controller, &interrupt)?;
        row(&mut table, workload.name, "randwrite", &outcome.write);
        row(&mut table, workload.name, "randread", &outcome.read);
    }
    output.write(&table)?;
    output.write(WHAT_NEXT)
}

fn measure(workload: &Workload, controller: &Controller, interrupt: &Interrupt) -> Result<Outcome> {
    let once = BenchArgs {
        rw: ReadWrite::Randwrite,
        bs: workload.block_bytes,
        iodepth: workload.iodepth,
        size: Some(Size::Bytes(workload.size_bytes)),
        verify: Some(Verify::Crc32c),
        ..BenchArgs::new(TARGET.parse()?)
    };
    // First without being shown: memory that was never touched is slow.
    run_verified(&once, controller, interrupt)?;
    let for_a_while = BenchArgs { time_based: true, runtime: Some(RUNTIME), ..once };
    run_verified(&for_a_while, controller, interrupt)
}

fn run_verified(
    args: &BenchArgs,
    controller: &Controller,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let outcomes = Bench::over(args, controller.clone())?.run(interrupt)?;
    verdict(args, &outcomes)?;
    if interrupt.requested() {
        return Err(Failure::interrupted());
    }
    outcomes.into_iter().next().ok_or_else(|| Failure::failed("the demo's job did not run"))
}

fn heading() -> String {
    format!(
        "\n{:<22} {:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {}\n",
        "workload", "", "IOPS", "bandwidth", "p50", "p99", "p99.9", "verified"
    )
}

fn row(table: &mut String, name: &str, way: &str, direction: &Direction) {
    let percentile = |percent| human::latency(direction.latency.percentile_ns(percent));
    writeln!(
        table,
        "{name:<22} {way:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {} blocks",
        human::si(direction.iops(), 4),
        human::bytes(direction.bytes_per_second()) + "/s",
        percentile(50.0),
        percentile(99.0),
        percentile(99.9),
        direction.ios()
    )
    .expect("a string takes everything");
}
