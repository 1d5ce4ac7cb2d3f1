//! `adit demo`: shows everything without a device, in well under a minute.

mod store;

use std::fmt::Write;

use adit_driver::{Device, DeviceOptions, Target};
use clap::Args;

use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use adit_bench::{JobOutcome, Request, RunOptions, Section, Way, WayOutcome, run_on, verdict};

const TARGET: &str = "soft:mem=64M,lba=4096";
/// Options of each workload besides its blocks: written in random order, then read back and checked.
const VERIFIED: &str = "rw=randwrite verify=crc32c";

const INTRODUCTION: &str = "\
A software NVMe controller in this process (soft:mem=64M,lba=4096), driven through its registers, queues and
doorbells as a real one is. Every block is written in random order with a checksum, then read back and checked.
";

const OF_THE_STORE: &str = "
The KV store on the software controller, in a file: KV blocks of a model are put by a second process, which is killed
with SIGKILL while it goes on. What it had committed is restored layer by layer, and compared byte by byte.

";

const WHAT_NEXT: &str = "
The figures are of software only: no flash and no PCIe took part. Next:
  adit identify soft:mem=1G                        what a controller reports
  adit bench --filename=soft:mem=1G --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
  adit kv bench --store soft:mem=2G --workload ycsb-a --object-bytes 4k --objects 100000
  adit kv --help                                   a store of your own, in a file or on a drive
  adit setup status                                your drives, and which of them can be handed over
  adit bench --help                                fio's options; on a controller that 'adit setup bind' has handed over:
  adit bench --filename=vfio:0000:01:00.0 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5
";

/// A pair of rows in the table.
struct Workload {
    name: &'static str,
    options: &'static str,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "4 KiB, 1 in flight", options: "bs=4k iodepth=1 size=8m" },
    Workload { name: "4 KiB, 32 in flight", options: "bs=4k iodepth=32 size=32m" },
    Workload { name: "128 KiB, 32 in flight", options: "bs=128k iodepth=32 size=64m" },
];

/// Writes and reads a software controller, then kills a process that uses the store, and shows what survives;
/// needs no device
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  adit demo")]
pub(crate) struct DemoArgs {
    /// Acts as the process that is killed
    #[arg(long, hide = true, value_name = "TARGET")]
    put_into: Option<Target>,
}

/// Runs the command.
///
/// # Errors
/// When a block differs from what was written, which is a bug of ours.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    if let Some(target) = &args.put_into {
        return store::put_into(target);
    }
    let interrupt = Interrupt::install()?;
    let mut output = Output::Standard;
    output.write(INTRODUCTION)?;
    let device = Device::open(&TARGET.parse()?, &DeviceOptions::default())?;
    let mut table = heading();
    for workload in &WORKLOADS {
        let outcome = measure(workload, &device, &interrupt)?;
        row(&mut table, workload.name, "randwrite", &outcome.ways[Way::Write]);
        row(&mut table, workload.name, "randread", &outcome.ways[Way::Read]);
    }
    output.write(&table)?;
    output.write(OF_THE_STORE)?;
    output.write(&store::run(&interrupt)?)?;
    output.write(WHAT_NEXT)
}

fn measure(workload: &Workload, device: &Device, interrupt: &Interrupt) -> Result<JobOutcome> {
    let once = format!("{VERIFIED} {}", workload.options);
    // An unmeasured first run, because untouched memory is slow.
    run_verified(&once, device, interrupt)?;
    run_verified(&format!("{once} time_based runtime=1"), device, interrupt)
}

fn run_verified(options: &str, device: &Device, interrupt: &Interrupt) -> Result<JobOutcome> {
    let section = Section::of(options).map_err(Failure::failed)?;
    let request =
        Request { run: RunOptions::default(), global: Vec::new(), sections: vec![section] };
    let outcome = run_on(&request, &TARGET.parse()?, device.clone(), interrupt)?;
    verdict(&outcome)?;
    outcome.jobs.into_iter().next().ok_or_else(|| Failure::failed("the demo's job did not run"))
}

fn heading() -> String {
    format!(
        "\n{:<22} {:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {}\n",
        "workload", "", "IOPS", "bandwidth", "p50", "p99", "p99.9", "verified"
    )
}

fn row(table: &mut String, name: &str, way: &str, counted: &WayOutcome) {
    let percentile = |percent| human::latency(counted.lat.percentile_ns(percent));
    writeln!(
        table,
        "{name:<22} {way:<10} {:>8} {:>12} {:>10} {:>10} {:>10}  {} blocks",
        human::si(counted.iops(), 4),
        human::bytes(counted.bytes_per_second()) + "/s",
        percentile(50.0),
        percentile(99.0),
        percentile(99.9),
        counted.ios
    )
    .expect("a string takes everything");
}
