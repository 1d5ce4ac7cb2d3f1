//! `adit gpu`: queues driven by a GPU, from the command line.
//!
//! | module | command |
//! |---|---|
//! | `doctor` | what the machine has, what works with it, and why the rest does not |
//! | `selftest` | whether the GPU can drive rings, check by check |
//! | `bench` | performance of the rings |
//! | `lab` | all of it, and more, step by step into one report |
//! | `trace` | one layer of a store's KV blocks through the rings, step by step |
//!
//! Without a GPU the commands other than `doctor` end with a reason and exit code 3.

mod bench;
mod controller;
pub mod doctor;
mod lab;
mod rig;
pub mod selftest;
mod trace;

use adit_gpu::{Gpu, Place};
use clap::{Args, Subcommand, ValueEnum};

use adit_tools_common::{failure, human, interrupt, output, units};
use failure::{Failure, Result};

const EXAMPLES: &str = "\
Targets:
  soft:mem=1G          the software controller, in this process
  vfio:0000:01:00.0    a controller bound to vfio-pci

Examples:
  adit gpu doctor vfio:0000:01:00.0
  adit gpu selftest
  adit gpu bench --queues 8 --sms 8
  adit gpu trace
  adit gpu lab --out gpu-lab.json

Without a GPU they say why there is none and end with exit code 3; each command's help has its exit \
codes. 'cargo xtask gpu -- trace' runs them with the GPU's code on threads of this machine.";

/// `adit gpu`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct GpuCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::command::DoctorArgs),
    Selftest(selftest::command::SelftestArgs),
    Bench(bench::command::BenchArgs),
    Lab(lab::LabArgs),
    Trace(Box<trace::TraceArgs>),
}

/// Runs the command.
///
/// # Errors
/// An error of the GPU, the device or the command line; no GPU.
pub fn run(command: &GpuCommand) -> Result<()> {
    match &command.command {
        Command::Doctor(args) => doctor::command::run(args),
        Command::Selftest(args) => selftest::command::run(args),
        Command::Bench(args) => bench::command::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Trace(args) => trace::run(args),
    }
}

/// The GPU to use.
#[derive(Args, Clone, Copy, Debug)]
struct GpuArg {
    /// GPU number, from 0
    #[arg(long = "gpu", value_name = "N", default_value_t = 0)]
    ordinal: u32,
}

/// Where memory shared by the GPU and devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// In the GPU's memory
    Hbm,
    /// In pinned host memory
    Host,
}

impl Placement {
    fn place(self) -> Place {
        match self {
            Placement::Hbm => Place::Gpu,
            Placement::Host => Place::Host,
        }
    }
}

/// Returns whether a GPU of this name is the emulated driver's (`gpu/emulated`): its counts are a GPU's, its times are
/// those of threads of the CPU and are not printed.
fn is_emulated(name: &str) -> bool {
    name.starts_with("Emulated GPU")
}

/// Refuses the number of a GPU that does not exist. Without any GPU, the commands report that themselves.
///
/// # Errors
/// A usage error.
fn check(ordinal: u32) -> Result<()> {
    match Gpu::count() {
        Ok(count) if ordinal >= count && count > 0 => Err(Failure::usage(format!(
            "--gpu {ordinal}: there is no GPU {ordinal}; there are {count}, from 0 on"
        ))),
        _ => Ok(()),
    }
}
