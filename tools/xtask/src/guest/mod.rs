//! A throwaway guest: the distribution's kernel in QEMU with an IOMMU and emulated NVMe controllers.
//!
//! A guest runs one command and is deleted; only the fetched packages below `target/vm` stay on the host.
//! Emulation uses TCG, so it needs no `/dev/kvm`, and its timings are good for ratios only. The host's own NVMe
//! devices are never touched.

mod archive;
mod arguments;
mod command;
mod controller;
mod controllers;
mod counter;
mod files;
mod initramfs;
mod modules;
mod monitor;
mod output;
mod packages;
mod programs;
mod qemu;
mod rules;
mod scratch;
mod vmlinux;

pub(crate) use arguments::GuestArgs;
pub(crate) use command::quote;
pub(crate) use qemu::{DIED, GuestOutcome, Waiting};

use crate::deps;
use crate::failure::{Failure, Result};
use crate::gpu;
use crate::workspace;
use controllers::Controllers;
use files::Copy;
use initramfs::Contents;
use packages::Kernel;
use programs::Program;
use qemu::Watch;
use scratch::Scratch;
use std::io::Write;

const WIPEFS: &str = "wipefs";

/// The interpreted arguments, before anything is built or booted.
pub(crate) struct Plan {
    controllers: Controllers,
    programs: Vec<Program>,
    files: Vec<Copy>,
    line: String,
    needs_adit: bool,
}

impl Plan {
    /// Interprets arguments; fails with a usage error if they contradict each other.
    pub(crate) fn new(arguments: &GuestArgs) -> Result<Self> {
        let controllers = Controllers::parse(arguments)?;
        let programs =
            arguments.with.iter().map(|what| Program::find(what)).collect::<Result<Vec<_>>>()?;
        let files =
            arguments.copy.iter().map(|text| Copy::find(text)).collect::<Result<Vec<_>>>()?;
        let named = programs
            .iter()
            .map(|program| &program.name)
            .chain(&arguments.example)
            .chain(&arguments.test);
        let names: Vec<String> = named.cloned().collect();
        let line = command::shell_line(&arguments.command, controllers.count(), &names)?;
        let needs_adit = command::mentions(&arguments.command, "adit")
            && !names.iter().any(|name| name == "adit");
        Ok(Self { controllers, programs, files, line, needs_adit })
    }

    /// Adds wipefs, with which `adit` inspects a drive before writing to it.
    fn add_wipefs(&mut self) -> Result<()> {
        if self.programs.iter().all(|program| program.name != WIPEFS) {
            deps::ensure([&deps::WIPEFS])?;
            self.programs.push(Program::find(WIPEFS)?);
        }
        Ok(())
    }
}

/// Builds and installs everything the guest needs, so that concurrent guests find it ready.
///
/// # Errors
/// When that fails; the guest's own run will fail for the same reason and report it.
pub(crate) fn prepare(arguments: &GuestArgs) -> Result<()> {
    complete_plan(arguments).map(drop)
}

/// Returns the plan after building everything in it.
fn complete_plan(arguments: &GuestArgs) -> Result<Plan> {
    let mut plan = Plan::new(arguments)?;
    require_host()?;
    deps::ensure([&deps::QEMU, &deps::C_LIBRARY])?;
    if plan.needs_adit {
        deps::ensure(&deps::TO_BUILD)?;
        plan.programs.push(Program::find(&workspace::build_checked("adit")?.to_string_lossy())?);
        plan.add_wipefs()?;
    }
    for name in &arguments.example {
        deps::ensure(&deps::TO_BUILD)?;
        let program = workspace::build_example(name)?;
        plan.programs.push(Program::find(&program.to_string_lossy())?);
    }
    for name in &arguments.test {
        deps::ensure(&deps::TO_BUILD)?;
        let built = Program::find(&workspace::build_test(name)?.to_string_lossy())?;
        plan.programs.push(built.named(name));
    }
    if arguments.gpu {
        deps::ensure(&deps::TO_BUILD)?;
        plan.programs.extend(emulated_gpu()?);
    }
    Ok(plan)
}

/// Returns the libraries of the emulated CUDA driver.
fn emulated_gpu() -> Result<Vec<Program>> {
    let directory = gpu::build_libraries()?;
    let names = ["libcuda.so.1", "libnvrtc.so.13", "libgdrapi.so.2"];
    let paths = names.iter().map(|name| directory.join(name));
    paths.map(|path| Program::find(&path.to_string_lossy())).collect()
}

/// Boots the guest, runs the command, and passes its output to `sink` as it arrives.
///
/// # Errors
/// When the guest cannot be built or booted, dies, or takes too long. A failing command is an [`GuestOutcome`].
pub(crate) fn run(
    arguments: &GuestArgs,
    waiting: Waiting,
    sink: &mut dyn Write,
) -> Result<GuestOutcome> {
    let plan = complete_plan(arguments)?;
    let cache = workspace::target_directory()?.join("vm");
    let kernel = match &arguments.kernel {
        Some(directory) => Kernel::find(directory)?,
        None => Kernel::fetched(&cache)?,
    };
    let busybox = packages::busybox(&cache)?;
    let scratch = Scratch::create(&cache)?;
    let marker = scratch::marker()?;
    let contents = Contents {
        kernel: &kernel,
        cache: &cache,
        busybox: &busybox,
        extra_modules: &arguments.module,
        programs: &plan.programs,
        files: &plan.files,
        marker: &marker,
        line: &plan.line,
    };
    let initramfs = scratch.write("initramfs", &contents.archive(&plan.controllers)?)?;
    let qemu = qemu::arguments(arguments, &kernel, &initramfs, &plan.controllers, &scratch)?;
    let watch =
        Watch { limit_s: arguments.timeout, marker: &marker, rules: &arguments.qmp, waiting };
    let mut outcome = qemu::run(&qemu, &watch, &scratch, sink)?;
    if arguments.allow_dmar {
        outcome.faults.clear();
    }
    Ok(outcome)
}

fn require_host() -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(());
    }
    Err(Failure::new(
        "the guest runs this machine's programs on an emulated PC, so it needs an x86-64 Linux host",
    ))
}
