//! A throwaway guest: the distribution's kernel in QEMU with an IOMMU and emulated NVMe controllers.
//!
//! One guest runs one command and is gone; nothing of it stays on the host but the fetched packages below
//! `target/vm`. The emulation is TCG, so it needs no `/dev/kvm`, and its timings are good for ratios only.
//! The host's own NVMe devices are never touched.

mod arguments;
mod command;
mod controller;
mod counter;
mod cpio;
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
pub(crate) use qemu::DIED;

use crate::deps;
use crate::failure::{Failure, Result};
use crate::gpu;
use crate::workspace;
use command::Devices;
use controller::{Controller, Driver};
use files::Copy;
use initramfs::Contents;
use packages::Kernel;
use programs::Program;
use qemu::Watch;
use scratch::Scratch;
use std::io::Write;

const WIPEFS: &str = "wipefs";

/// How a guest ended.
pub(crate) struct Outcome {
    /// The command's exit code.
    pub exit: u8,
    /// DMA faults in the guest's kernel log, unless they are allowed.
    pub faults: Vec<String>,
}

/// What a terminal shows while the guest runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// That it boots; after that the command speaks for itself.
    UntilBooted,
    /// Nothing of its own: the caller tells.
    Silently,
}

/// What the arguments mean, worked out before anything is built or booted.
pub(crate) struct Plan {
    controllers: Controllers,
    programs: Vec<Program>,
    files: Vec<Copy>,
    line: String,
    needs_adit: bool,
}

impl Plan {
    /// Fails with a usage error where the arguments contradict each other.
    pub(crate) fn new(arguments: &GuestArgs) -> Result<Self> {
        let controllers = Controllers::parse(arguments)?;
        let programs =
            arguments.with.iter().map(|what| Program::find(what)).collect::<Result<Vec<_>>>()?;
        let files =
            arguments.copy.iter().map(|text| Copy::find(text)).collect::<Result<Vec<_>>>()?;
        let named = programs.iter().map(|program| &program.name).chain(&arguments.example);
        let named = named.chain(arguments.test.iter().map(|(_, name)| name));
        let names: Vec<String> = named.cloned().collect();
        let line = command::shell_line(&arguments.command, controllers.count(), &names)?;
        let needs_adit = command::mentions(&arguments.command, "adit")
            && !names.iter().any(|name| name == "adit");
        Ok(Self { controllers, programs, files, line, needs_adit })
    }

    /// `adit` looks with it for what a drive holds before it writes there.
    fn add_wipefs(&mut self) -> Result<()> {
        if self.programs.iter().all(|program| program.name != WIPEFS) {
            deps::ensure([&deps::WIPEFS])?;
            self.programs.push(Program::find(WIPEFS)?);
        }
        Ok(())
    }
}

/// Builds what the guest runs and installs what it takes, so that guests side by side find it there.
///
/// # Errors
/// When that fails; the guest's own run fails of it too, and says so.
pub(crate) fn prepare(arguments: &GuestArgs) -> Result<()> {
    complete_plan(arguments).map(drop)
}

/// The plan, with everything built that it names.
fn complete_plan(arguments: &GuestArgs) -> Result<Plan> {
    let mut plan = Plan::new(arguments)?;
    require_host()?;
    deps::ensure([&deps::QEMU, &deps::C_LIBRARY])?;
    if plan.needs_adit {
        deps::ensure(&deps::TO_BUILD)?;
        plan.programs.push(Program::find(&workspace::build_adit()?.to_string_lossy())?);
        plan.add_wipefs()?;
    }
    for name in &arguments.example {
        deps::ensure(&deps::TO_BUILD)?;
        let program = workspace::build_example(name)?;
        plan.programs.push(Program::find(&program.to_string_lossy())?);
    }
    for (package, name) in &arguments.test {
        deps::ensure(&deps::TO_BUILD)?;
        let built = Program::find(&workspace::build_test(package, name)?.to_string_lossy())?;
        plan.programs.push(built.named(name));
    }
    if arguments.gpu {
        deps::ensure(&deps::TO_BUILD)?;
        plan.programs.extend(emulated_gpu()?);
    }
    Ok(plan)
}

/// The libraries of the emulated CUDA driver.
fn emulated_gpu() -> Result<Vec<Program>> {
    let directory = gpu::build_libraries()?;
    let names = ["libcuda.so.1", "libnvrtc.so.13", "libgdrapi.so.2"];
    let paths = names.iter().map(|name| directory.join(name));
    paths.map(|path| Program::find(&path.to_string_lossy())).collect()
}

/// Boots the guest, runs the command, and passes its output on to `sink` as it comes.
///
/// # Errors
/// When the guest cannot be built or booted, dies, or takes too long. A command that fails is an [`Outcome`].
pub(crate) fn run(
    arguments: &GuestArgs,
    waiting: Waiting,
    sink: &mut dyn Write,
) -> Result<Outcome> {
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

/// The guest's controllers, in the order of the command line.
pub(crate) struct Controllers {
    vfio: Vec<Controller>,
    kernel: Vec<Controller>,
}

impl Controllers {
    fn parse(arguments: &GuestArgs) -> Result<Self> {
        let parse = |texts: &[String], driver| {
            let numbered = texts.iter().enumerate();
            numbered
                .map(|(index, text)| Controller::parse(text, driver, index))
                .collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            vfio: parse(&arguments.nvme, Driver::Vfio)?,
            kernel: parse(&arguments.kernel_nvme, Driver::Kernel)?,
        })
    }

    fn count(&self) -> Devices {
        Devices { vfio: self.vfio.len(), kernel: self.kernel.len() }
    }
}

fn require_host() -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(());
    }
    Err(Failure::new(
        "the guest runs this machine's programs on an emulated PC, so it needs an x86-64 Linux host",
    ))
}
