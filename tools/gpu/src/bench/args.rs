//! The options of `adit gpu bench`.

use std::time::Duration;

use adit_gpu::Place;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::controller::QUEUES_MAX;
use crate::options::{GpuArg, Placement};
use crate::units;

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

/// Longest time of the compute kernel alone.
const COMPUTE: Duration = Duration::from_millis(100);

/// Measures the rings of a GPU against a software controller that checks every command: no PCIe, no drive
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(super) gpu: GpuArg,

    /// Queue pairs, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(QUEUES_MAX)))]
    pub(super) queues: u32,

    /// Entries of each queue, 2 to 4096
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(super) depth: u32,

    /// Multiprocessors of the I/O kernel, 1 to the GPU's; several numbers give a curve
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) sms: Vec<u32>,

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
    pub(super) json: bool,
}

/// What runs the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Processor {
    /// A thread of the CPU: the driver's software controller
    Cpu,
    /// A second kernel, on other multiprocessors
    Gpu,
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
