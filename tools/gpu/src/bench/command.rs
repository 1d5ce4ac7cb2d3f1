//! `adit gpu bench`: measures a GPU's rings against a software controller.

use std::sync::Arc;

use adit_gpu::internals::layout::Form;
use adit_gpu::internals::{self, Partition, Partitions, Program};
use adit_gpu::{Gpu, Place};

use super::args::{BenchArgs, Processor};
use super::beside::{self, Beside};
use super::report::{Point, Report};
use super::watch::Watch;
use super::{saturated, single};
use crate::controller::{Faults, Shape};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::options::check_sms;
use crate::output;
use crate::rig::Rig;
use crate::rig::server::Server;

/// Bytes of a command.
const COMMAND_BYTES: u64 = 1 << LBA_SHIFT;
const LBA_SHIFT: u32 = 9;
/// Bytes of GPU or host memory that commands read into.
const DATA_BYTES: u64 = 64 << 20;
/// Size of the controller's namespace.
const NAMESPACE_BYTES: u64 = 1 << 30;
/// Runs the command.
///
/// # Errors
/// Options that cannot be; no GPU or NVRTC; a command that failed or that the controller refused; CUDA's; an interrupt by
/// the user.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let report = measure(args, Interrupt::install()?)?;
    output::report(args.json, || report.json(), || report.text())
}

fn measure(args: &BenchArgs, interrupt: Interrupt) -> Result<Report> {
    if (args.controller, args.place()) == (Processor::Cpu, Place::Gpu) {
        let why = "threads of the CPU do not reach rings in GPU memory; take host";
        return Err(Failure::usage(format!("--placement hbm: {why}")));
    }
    let gpu = Gpu::open(args.gpu.ordinal)?;
    args.sms.iter().try_for_each(|sms| check_sms(*sms, &gpu))?;
    let mut watch = Watch::new(interrupt);
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
mod tests {
    use super::*;
    use crate::bench::tests::args;

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
