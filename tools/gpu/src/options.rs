//! What several commands share of their options: the GPU's number, the place of memory, targets with queues; and
//! checks of these.

use std::sync::Arc;

use adit_driver::{Controller, ControllerOptions, Target};
use adit_gpu::{Device, Gpu, Place};
use clap::{Args, ValueEnum};

use crate::failure::{Failure, Result};

/// The GPU to use.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct GpuArg {
    /// GPU number, from 0
    #[arg(long = "gpu", value_name = "N", default_value_t = 0)]
    pub(crate) ordinal: u32,
}

/// Where memory shared by the GPU and devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// In the GPU's memory
    Hbm,
    /// In pinned host memory
    Host,
}

impl Placement {
    pub(crate) fn place(self) -> Place {
        match self {
            Placement::Hbm => Place::Gpu,
            Placement::Host => Place::Host,
        }
    }
}

/// Returns whether a GPU of this name is the emulated driver's (`gpu/emulated`): its counts are a GPU's, its times are
/// those of threads of the CPU and are not printed.
pub(crate) fn is_emulated(name: &str) -> bool {
    name.starts_with("Emulated GPU")
}

/// Refuses the number of a GPU that does not exist. Without any GPU, the commands report that themselves.
///
/// # Errors
/// A usage error.
pub(crate) fn check_ordinal(ordinal: u32) -> Result<()> {
    match Gpu::count() {
        Ok(count) if ordinal >= count && count > 0 => Err(Failure::usage(format!(
            "--gpu {ordinal}: there is no GPU {ordinal}; there are {count}, from 0 on"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a target without queues that a GPU can drive.
///
/// # Errors
/// A usage error that says which targets have them.
pub(crate) fn check_queues(target: &Target) -> Result<()> {
    match target {
        Target::Kernel(_) => Err(no_queues(target)),
        _ => Ok(()),
    }
}

pub(crate) fn no_queues(target: &Target) -> Failure {
    Failure::usage(format!(
        "{target} is reached through the kernel and has no queues of its own; a GPU drives those of a controller: use vfio:…, vfio-user:… or soft:…"
    ))
}

/// Opens a drive with doorbells in registers, as rings need them.
///
/// # Errors
/// The driver's.
pub(crate) fn open(target: &Target) -> std::result::Result<Device, adit_driver::Error> {
    let options = ControllerOptions { shadow_doorbells: false, ..ControllerOptions::default() };
    let controller = Arc::new(Controller::open(target, &options)?);
    let namespace = controller.namespace_of(target)?;
    Ok(Device { controller, namespace })
}

/// Refuses more multiprocessors than the GPU has.
///
/// # Errors
/// A usage failure with their number.
pub(crate) fn check_sms(asked: u32, gpu: &Gpu) -> Result<()> {
    let there = gpu.info().sm_count;
    if asked <= there {
        return Ok(());
    }
    Err(Failure::usage(format!("--sms {asked}: the GPU has {there} multiprocessors")))
}
