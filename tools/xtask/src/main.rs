//! Adit's development commands, run as `cargo xtask …`.
//!
//! `vm` boots a throwaway guest with emulated NVMe controllers, `test` runs every check that CI runs, `nightly` those that
//! take longer, `sim` searches simulated schedules for broken laws, `soak` runs servers for hours, `tidy` checks the text,
//! `bench-driver` counts and measures the driver's path of an I/O, `python` tests the wheel, `demo` shows the driver and
//! the store on the software controller, `device` tests the GPU's code and `gpu` runs `adit gpu`, both without a GPU;
//! `gpu-lab` builds what measures one, `compare` runs the store beside its peers, `engines` runs inference engines on the
//! store, and `release` makes what a release consists of. Each installs what it needs and says so; none touches a real
//! NVMe device. This crate knows nothing about the driver's internals: it only builds and runs programs.

mod bench_driver;
mod compare;
mod demo;
mod deps;
mod device;
mod engines;
mod failure;
mod gpu;
mod gpu_lab;
mod guest;
mod interrupt;
mod matrix;
mod needs;
mod nightly;
mod process;
mod progress;
mod python;
mod release;
mod sim;
mod soak;
mod tally;
mod test;
mod tidy;
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
    /// Run checks that take too long for each change, step by step: Miri, memcheck, AddressSanitizer
    Nightly(nightly::NightlyArgs),
    /// Run the driver through simulated schedules full of faults, and check its laws
    Sim(sim::SimArgs),
    /// Run servers under load for hours: killed each minute, on a disk that fills up, every byte checked
    Soak(soak::SoakArgs),
    /// Check the rules of the text, or print the figures of the house
    Tidy(tidy::TidyArgs),
    /// Test the GPU's code without a GPU: as C++ on threads, and as NVRTC compiles it
    Device,
    /// Build the Python wheel, install it into a fresh environment and run its tests
    Python,
    /// Count the driver's instructions per I/O, and measure it against the minimum work of an initiator
    BenchDriver(bench_driver::BenchDriverArgs),
    /// Build and run the demonstration on the software controller
    Demo,
    /// Run `adit gpu` with the GPU's code on threads of this machine, which needs no GPU
    Gpu(gpu::GpuArgs),
    /// Build the GPU lab, and run it, make a folder of it for a machine with a GPU, or rehearse that
    GpuLab(gpu_lab::GpuLabArgs),
    /// Run the store beside foyer, RocksDB, plain files and the raw disk, on one file system
    Compare(compare::CompareArgs),
    /// Build real inference engines, and run them on the store
    Engines(engines::EnginesArgs),
    /// Make and check what a release consists of: crates, wheel, program, checksums; publishes nothing
    Release(release::ReleaseArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = interrupt::install().and_then(|()| match cli.command {
        Command::Vm(args) => vm::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Nightly(args) => nightly::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Device => device::run(),
        Command::Python => python::run(),
        Command::BenchDriver(args) => bench_driver::run(&args),
        Command::Demo => demo::run(),
        Command::Gpu(args) => gpu::run(&args),
        Command::GpuLab(args) => gpu_lab::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Engines(args) => engines::run(&args),
        Command::Release(args) => release::run(&args),
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
