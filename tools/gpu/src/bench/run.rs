//! Runs a whole bench.

use std::sync::Arc;

use adit_gpu::internals::layout::Form;
use adit_gpu::internals::{self, Partition, Partitions, Program};
use adit_gpu::{Error, Gpu, Result};

use super::beside::{self, Alone};
use super::options::{BenchOptions, ControllerChoice, Watch};
use super::report::{BenchReport, Beside};
use super::rig::Rig;
use super::saturated::{self, grid};
use super::{preparation, server, single};
use crate::controller::{Faults, Shape};

/// Bytes of GPU or host memory that commands read into.
const DATA_BYTES: u64 = 64 << 20;
const NAMESPACE_BYTES: u64 = 1 << 30;

/// Warps of a kernel on the emulated GPU, where each is a thread.
const EMULATED_WARPS: u32 = 256;

/// Measures what the options say. `watch` may end it early; the report then lists what is missing.
///
/// # Errors
/// [`adit_gpu::Error::Invalid`] for invalid options; [`adit_gpu::Error::Unavailable`] without a GPU or NVRTC;
/// [`adit_gpu::Error::OutOfService`] when a command failed or the controller found a bad one; [`adit_gpu::Error::TimedOut`]
/// if a kernel does not end in time; [`adit_gpu::Error::Cuda`] when a call failed, and the driver's with its controllers.
pub fn run(options: &BenchOptions, watch: &Watch<'_>) -> Result<BenchReport> {
    curve(options, &[options.sms], watch).map(|mut reports| reports.remove(0))
}

/// As [`run`], once for each number of multiprocessors in `sms`, which has one or more. Ends after the first if
/// interrupted.
///
/// # Errors
/// As [`run`], before anything is measured if an option is invalid.
pub fn curve(options: &BenchOptions, sms: &[u32], watch: &Watch<'_>) -> Result<Vec<BenchReport>> {
    assert!(!sms.is_empty(), "a curve has a point");
    let points: Vec<_> =
        sms.iter().map(|sms| BenchOptions { sms: *sms, ..options.clone() }).collect();
    points.iter().try_for_each(BenchOptions::check)?;
    let gpu = Gpu::open(options.gpu)?;
    points.iter().try_for_each(|point| point.check_on(gpu.info().sm_count))?;
    watch.tell("compiling the device code");
    let program = Program::load(&gpu)?;
    let mut reports = Vec::new();
    for point in &points {
        if reports.is_empty() || !watch.is_stopped() {
            reports.push(Bench { gpu: &gpu, program: &program, options: point, watch }.run()?);
        }
    }
    Ok(reports)
}

struct Bench<'a> {
    gpu: &'a Arc<Gpu>,
    program: &'a Arc<Program>,
    options: &'a BenchOptions,
    watch: &'a Watch<'a>,
}

impl Bench<'_> {
    fn run(&self) -> Result<BenchReport> {
        let mut report = BenchReport {
            options: self.options.clone(),
            gpu: self.gpu.info().name.clone(),
            saturated: None,
            single: None,
            beside: None,
            preparation: Some(preparation::measure(self.gpu)?),
            missing: Vec::new(),
        };
        self.rings(&mut report).map_err(|error| self.explain(error))?;
        let per_second = report.saturated.map_or(0.0, |part| part.per_second());
        match self.beside(per_second).map_err(|error| self.explain(error))? {
            Ok(part) => report.beside = Some(part),
            Err(why) => report.missing.push(("beside compute", why)),
        }
        Ok(report)
    }

    fn shape(&self) -> Shape {
        Shape {
            queues: self.options.queues,
            depth: self.options.depth,
            place: self.options.placement,
            lba_shift: 9,
            lbas: NAMESPACE_BYTES >> 9,
            form: Form::Sgl,
            media: false,
            faults: Faults::NONE,
        }
    }

    /// Creates rings whose controller, if it is a kernel, runs in `controller`.
    fn rig(&self, io: &Partition, controller: &Partition) -> Result<Rig> {
        let (options, shape) = (self.options, self.shape());
        let data_bytes = DATA_BYTES.max(u64::from(options.block_bytes));
        let made = (&shape, data_bytes);
        let server = server::choose(self.gpu, self.program, controller, options, made)?;
        let blocks = options.queues + single::BATCH;
        let mut rig = Rig::new(self.gpu, self.program, io, server, (&shape, blocks))?;
        let lbas = u64::from(options.block_bytes >> 9);
        for block in 0..blocks {
            // The blocks behind the rings' own are for single commands, through the first ring.
            let ring = if block < options.queues { block } else { 0 };
            rig.fill_reads(block, ring, &shape, lbas)?;
        }
        rig.server.start()?;
        Ok(rig)
    }

    /// Measures saturated rings, and one command at a time.
    fn rings(&self, report: &mut BenchReport) -> Result<()> {
        let Partitions { io, compute, .. } = internals::partition(self.gpu, self.options.sms);
        let mut rig = self.rig(&io, &compute)?;
        let grid = grid(self.options, io.sms());
        report.saturated = Some(saturated::measure(&mut rig, self.options, grid, self.watch)?);
        if self.watch.is_stopped() {
            report.missing.push(("one command at a time", "interrupted".to_owned()));
            return Ok(());
        }
        rig.server.start()?;
        report.single = Some(single::measure(&mut rig, self.options, self.watch)?);
        rig.check()
    }

    /// Names the options that reduce the number of warps, if a kernel had too many.
    fn explain(&self, error: Error) -> Error {
        let BenchOptions { sms, warps, .. } = self.options;
        match error {
            Error::Cuda { what, call, name, code, .. }
                if name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" =>
            {
                let fix = format!(
                    "lower --sms or --warps: {sms} x {warps} warps were asked for (an emulated GPU has room for {EMULATED_WARPS})"
                );
                Error::Cuda { what, call, name, code, fix }
            }
            error => error,
        }
    }

    /// Measures a compute kernel beside the rings, or returns why it cannot.
    fn beside(&self, per_second: f64) -> Result<std::result::Result<Beside, String>> {
        if self.watch.is_stopped() {
            return Ok(Err("interrupted".to_owned()));
        }
        if self.options.controller == ControllerChoice::Cpu {
            let why = "the threads that serve the rings take the CPU that feeds them";
            return Ok(Err(format!("{why}; measure it with the controller on the GPU")));
        }
        let partitions = internals::partition(self.gpu, self.options.sms);
        let sms = partitions.io.sms();
        let Some(warps) = beside::warps(self.options, sms) else {
            let queues = self.options.queues;
            return Ok(Err(format!("the controller of {queues} queues fills {sms} SMs by itself")));
        };
        self.watch.tell("a compute kernel alone");
        let mut alone: Alone = beside::alone(self.gpu, self.program, self.options, self.watch)?;
        if self.watch.is_stopped() {
            return Ok(Err("interrupted".to_owned()));
        }
        let mut rig = self.rig(&partitions.io, &partitions.io)?;
        let grid = (sms.min(self.options.sms), warps * 32);
        let figures = (&mut alone, per_second);
        beside::measure(&mut rig, &partitions, figures, (grid, self.options), self.watch).map(Ok)
    }
}
