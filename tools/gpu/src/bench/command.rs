//! `adit gpu bench`: measures a GPU's rings against a software controller.

use std::sync::Arc;
use std::time::Duration;

use adit_gpu::internals::layout::Form;
use adit_gpu::internals::{self, Partition, Partitions, Program};
use adit_gpu::{Gpu, Place};
use adit_kv::Meter;
use clap::{Args, ValueEnum};

use super::beside::{self, Beside};
use super::report::{Point, Report};
use super::{saturated, single};
use crate::controller::{Faults, QUEUES_MAX, Shape};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::rig::Rig;
use crate::rig::server::Server;
use crate::{GpuArg, Placement, trace, units};

const EXAMPLES: &str = "\
Examples:
  Queues in GPU memory, served by a second kernel, for two seconds:
    adit gpu bench
  How many commands a multiprocessor carries, and what it costs compute:
    adit gpu bench --sms 1,2,4,8
  One queue in host memory, served by a thread of the CPU, for a program to read:
    adit gpu bench --controller cpu --queues 1 --json

The controller checks every command, each of 512 bytes; one that it refuses ends the bench. On the emulated GPU \
('cargo xtask gpu -- bench') only counts are printed: its times mean nothing.

Exit codes: 0 measured, 1 a command, the controller or CUDA failed, 2 an option cannot be, 3 no GPU, or none that rings \
can use (a compiler for device code included), 130 interrupted: nothing is printed.";

/// Bytes of a command.
const COMMAND_BYTES: u64 = 1 << LBA_SHIFT;
const LBA_SHIFT: u32 = 9;
/// Bytes of GPU or host memory that commands read into.
const DATA_BYTES: u64 = 64 << 20;
/// Size of the controller's namespace.
const NAMESPACE_BYTES: u64 = 1 << 30;
/// Longest time of the compute kernel alone.
const COMPUTE: Duration = Duration::from_millis(100);

/// Measures the rings of a GPU against a software controller that checks every command: no PCIe, no drive
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    gpu: GpuArg,

    /// Queue pairs, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(QUEUES_MAX)))]
    pub(super) queues: u32,

    /// Entries of each queue, 2 to 4096
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(super) depth: u32,

    /// Multiprocessors of the I/O kernel, 1 to the GPU's; several numbers give a curve
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8", value_parser = clap::value_parser!(u32).range(1..))]
    sms: Vec<u32>,

    /// Warps of the I/O kernel on each multiprocessor, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) warps: u32,

    /// Where the rings are [default: hbm with the GPU's controller, host with the CPU's]
    #[arg(long)]
    placement: Option<Placement>,

    /// What serves the rings
    #[arg(long, value_enum, default_value_t = Processor::Gpu)]
    pub(super) controller: Processor,

    /// How long to measure the saturated rings, and each other part at most: 500ms, 2s, 5m
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    pub(super) runtime: Duration,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What runs the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Processor {
    /// A thread of the CPU: the driver's software controller
    Cpu,
    /// A second kernel, on other multiprocessors
    Gpu,
}

impl Processor {
    pub(super) fn name(self) -> &'static str {
        match self {
            Processor::Cpu => "cpu",
            Processor::Gpu => "gpu",
        }
    }
}

impl BenchArgs {
    pub(super) fn place(&self) -> Place {
        match (self.placement, self.controller) {
            (Some(placement), _) => placement.place(),
            (None, Processor::Cpu) => Place::Host,
            (None, Processor::Gpu) => Place::Gpu,
        }
    }

    /// Returns how long the compute kernel alone shall take.
    pub(super) fn compute(&self) -> Duration {
        COMPUTE.min(self.runtime)
    }
}

/// Shows progress, and heeds the user's interrupt.
pub(super) struct Watch {
    interrupt: Interrupt,
    meter: Meter,
}

impl Watch {
    /// Shows the current step.
    ///
    /// # Errors
    /// The user's interrupt.
    pub(super) fn step(&mut self, what: impl Into<String>) -> Result<()> {
        if self.interrupt.requested() {
            return Err(Failure::interrupted());
        }
        self.meter.show(|_| what.into());
        Ok(())
    }
}

/// Runs the command.
///
/// # Errors
/// Options that cannot be; no GPU or NVRTC; a command that failed or that the controller refused; CUDA's; an interrupt by
/// the user.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let report = measure(args, Interrupt::install()?)?;
    Output::Standard.write(&if args.json { report.json() } else { report.text() })
}

fn measure(args: &BenchArgs, interrupt: Interrupt) -> Result<Report> {
    if (args.controller, args.place()) == (Processor::Cpu, Place::Gpu) {
        let why = "threads of the CPU do not reach rings in GPU memory; take host";
        return Err(Failure::usage(format!("--placement hbm: {why}")));
    }
    let gpu = Gpu::open(args.gpu.ordinal)?;
    args.sms.iter().try_for_each(|sms| trace::check_sms(*sms, &gpu))?;
    let mut watch = Watch { interrupt, meter: Meter::new() };
    watch.step("compiling the device code")?;
    let program = Program::load(&gpu)?;
    let bench = Bench { gpu: &gpu, program: &program, args };
    let points = args.sms.iter().map(|sms| bench.point(*sms, &mut watch));
    let points = points.collect::<Result<Vec<_>>>()?;
    Ok(Report { args: args.clone(), gpu: gpu.info().name.clone(), points })
}

struct Bench<'a> {
    gpu: &'a Arc<Gpu>,
    program: &'a Arc<Program>,
    args: &'a BenchArgs,
}

impl Bench<'_> {
    /// Measures with `sms` multiprocessors for the I/O kernel.
    fn point(&self, sms: u32, watch: &mut Watch) -> Result<Point> {
        let partitions = internals::partition(self.gpu, sms);
        let Partitions { io, compute, .. } = &partitions;
        let mut rig = self.rig(io, compute)?;
        let grid = (sms.min(io.sms()), self.args.warps * 32);
        let mut saturated = saturated::measure(&mut rig, self.args, grid, watch)?;
        let single = single::measure(&mut rig, self.args, watch)?;
        let seen = rig.finish(saturated.commands + single.commands)?;
        saturated.cq_full = seen.map(|seen| seen.full);
        drop(rig);
        let beside = self.beside(sms, &partitions, saturated.per_second(), watch)?;
        Ok(Point { sms, saturated, single, beside })
    }

    /// Creates rings whose controller, if it is a kernel, runs in `controller`.
    fn rig(&self, io: &Partition, controller: &Partition) -> Result<Rig> {
        let args = self.args;
        let shape = Shape {
            queues: args.queues,
            depth: args.depth,
            place: args.place(),
            lba_shift: LBA_SHIFT,
            lbas: NAMESPACE_BYTES >> LBA_SHIFT,
            form: Form::Sgl,
            media: false,
            faults: Faults::NONE,
        };
        let server = match args.controller {
            Processor::Gpu => Server::gpu(self.gpu, self.program, controller, &shape, DATA_BYTES)?,
            Processor::Cpu => Server::cpu(self.gpu, &shape, DATA_BYTES)?,
        };
        // One for each ring, and those behind them for single commands.
        let blocks = args.queues + single::BATCH;
        let mut rig = Rig::new(self.gpu, self.program, io, server, (&shape, blocks))?;
        for block in 0..blocks {
            rig.fill_reads(block, &shape, COMMAND_BYTES >> LBA_SHIFT)?;
        }
        rig.server.start()?;
        Ok(rig)
    }

    /// Measures a compute kernel beside the rings, or returns why it cannot.
    fn beside(
        &self,
        sms: u32,
        partitions: &Partitions,
        per_second: f64,
        watch: &mut Watch,
    ) -> Result<std::result::Result<Beside, String>> {
        if self.args.controller == Processor::Cpu {
            return Ok(Err("the CPU, which serves the rings, is to feed them".to_owned()));
        }
        let (io, queues) = (&partitions.io, self.args.queues);
        let Some(warps) = beside::warps((queues, self.args.warps), io.sms()) else {
            return Ok(Err(format!("the controller of {queues} queues fills the SMs by itself")));
        };
        watch.step("a compute kernel alone")?;
        let alone = beside::alone(self.gpu, self.program, self.args.compute())?;
        let mut rig = self.rig(io, io)?;
        let grid = (sms.min(io.sms()), warps * 32);
        let each = per_second * beside::ROUND.as_secs_f64() / f64::from(queues);
        let rounds = saturated::rounds(queues, each as u64);
        beside::measure(&mut rig, partitions, &alone, (grid, &rounds), watch).map(Ok)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    pub(in crate::bench) fn args(line: &str) -> BenchArgs {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).expect("options that can be").args
    }

    /// Runs a small bench on the emulated GPU, alone in its process.
    fn bench(name: &str, line: &str, check: impl Fn(&Report)) {
        let test = format!("{}::{name}", module_path!());
        adit_gpu_emulated::alone("sms=8", &test, || {
            let small = "--queues 2 --depth 64 --sms 2 --warps 2 --runtime 1ms";
            let args = args(&format!("{small} {line}"));
            let report = measure(&args, Interrupt::default()).expect("measured");
            let left = adit_gpu_emulated::report();
            assert_eq!((left.kernels_running, left.allocations), (0, 0), "{left:?}");
            assert_eq!((left.misuses, left.frees_behind_kernels), (0, 0), "{left:?}");
            check_counts(&report);
            check(&report);
        });
    }

    fn check_counts(report: &Report) {
        let [Point { saturated, single, .. }] = &report.points[..] else { panic!("one point") };
        assert!(saturated.commands > 0);
        // The device is told after each quarter of a lap: four times a lap, and once more for each queue.
        let (rings, queues) = (saturated.cq_rings as f64, f64::from(report.args.queues));
        assert!(rings <= 4.0 * saturated.laps + queues, "{saturated:?}");
        assert!(saturated.sq_rings <= saturated.commands, "{saturated:?}");
        // Only the controller in device code counts its looks at full completion rings; it has none.
        let counts = report.args.controller == Processor::Gpu;
        assert_eq!(saturated.cq_full, counts.then_some(0));
        assert_eq!(single.sq_rings, single.commands);
        assert!(single.commands >= u64::from(single::BATCH) && single.p50_ns <= single.p99_ns);
    }

    #[test]
    fn a_controller_on_the_gpu_serves_rings_in_gpu_memory() {
        bench("a_controller_on_the_gpu_serves_rings_in_gpu_memory", "", |report| {
            let beside = report.points[0].beside.as_ref().expect("compute ran beside the rings");
            assert!(beside.alone.ms > 0.0 && beside.busy.ms > 0.0, "{beside:?}");
            assert!(beside.busy.longest_round_ns > 0, "{beside:?}");
            assert!(beside.commands > 0 && beside.sms_all == 8, "{beside:?}");
        });
    }

    #[test]
    fn a_controller_on_the_gpu_serves_rings_in_host_memory() {
        let name = "a_controller_on_the_gpu_serves_rings_in_host_memory";
        bench(name, "--placement host", |report| assert!(report.points[0].beside.is_ok()));
    }

    #[test]
    fn a_controller_on_the_cpu_serves_rings_in_host_memory() {
        let name = "a_controller_on_the_cpu_serves_rings_in_host_memory";
        bench(name, "--controller cpu", |report| assert!(report.points[0].beside.is_err()));
    }
}
