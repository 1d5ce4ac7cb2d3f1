//! Adit's development commands, run as `cargo xtask …`.
//!
//! `vm` boots a throwaway guest with emulated NVMe controllers, `test` runs every check that CI runs, `sim` searches
//! simulated schedules for broken laws, `demo` shows the driver at work on the software controller, `device` tests the
//! GPU's code and `gpu` runs `adit gpu`, both without a GPU. Each installs what it needs through apt and says so; none of
//! them touches a real NVMe device. This crate does not know how the driver works: it only builds and runs the `adit`
//! binary.

mod demo;
mod deps;
mod device;
mod failure;
mod gpu;
mod guest;
mod interrupt;
mod matrix;
mod process;
mod progress;
mod sim;
mod test;
mod vm;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Adit's development commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in a QEMU guest that has an IOMMU and emulated NVMe controllers
    Vm(Box<guest::GuestArgs>),
    /// Install what is missing, then run every check that CI runs
    Test(test::TestArgs),
    /// Run the driver through simulated schedules full of faults, and check its laws
    Sim(sim::SimArgs),
    /// Test the GPU's code without a GPU: as C++ on threads, and as NVRTC compiles it
    Device,
    /// Build adit and run its demonstration on the software controller
    Demo,
    /// Run `adit gpu` with the GPU's code on threads of this machine, which needs no GPU
    Gpu(gpu::GpuArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = interrupt::install().and_then(|()| match cli.command {
        Command::Vm(args) => vm::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Device => device::run(),
        Command::Demo => demo::run(),
        Command::Gpu(args) => gpu::run(&args),
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
