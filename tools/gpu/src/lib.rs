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
mod options;
mod rig;
pub mod selftest;
mod trace;

use clap::{Args, Subcommand};

use adit_tools_common::{failure, human, interrupt, output, units};
use failure::Result;

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
    Bench(bench::args::BenchArgs),
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
