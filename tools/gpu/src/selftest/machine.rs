//! The base of all checks: the GPU, the compiled device code, the partitions.

use std::sync::Arc;

use adit_gpu::internals::{self, DeviceMemory, PartitionKind, Partitions, Program};
use adit_gpu::{Error, Gpu};

use super::check::{Seen, expect};
use crate::controller::{Counters, GpuController, Shape};
use crate::failure::{Failure, Result};
use crate::rig::Rig;
use crate::rig::server::Server;

const SMS: u32 = 8;
/// Bytes of GPU memory that commands may point to.
pub(super) const DATA_BYTES: u64 = 2 << 20;
/// Blocks and threads of the I/O kernels: a few warps, all of which must make progress.
pub(super) const GRID: (u32, u32) = (2, 64);

/// A GPU with its device code and partitions.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) gpu: Arc<Gpu>,
    pub(super) program: Arc<Program>,
    pub(super) partitions: Partitions,
}

pub(super) fn open(gpu: u32, opened: &mut Option<Arc<Gpu>>) -> Seen {
    let gpu = Gpu::open(gpu)?;
    let info = gpu.info();
    let (major, minor) = info.compute_capability;
    let driver = (info.driver_version / 1000, info.driver_version % 1000 / 10);
    let seen = format!(
        "{}, compute capability {major}.{minor}, {} SMs, CUDA {}.{}",
        info.name, info.sm_count, driver.0, driver.1
    );
    *opened = Some(gpu);
    Ok(seen)
}

pub(super) fn compile(gpu: Option<&Arc<Gpu>>, machine: &mut Option<Machine>) -> Seen {
    let gpu =
        gpu.ok_or_else(|| Failure::unavailable("it is compiled for a GPU, and there is none"))?;
    let program = Program::load(gpu)?;
    let partitions = internals::partition(gpu, SMS);
    *machine = Some(Machine { gpu: Arc::clone(gpu), program, partitions });
    let (major, minor) = gpu.info().compute_capability;
    Ok(format!("compiled and loaded for {major}.{minor}"))
}

/// Checks whether I/O has its own multiprocessors.
pub(super) fn partitions(machine: &Machine) -> Seen {
    let Partitions { io, compute, kind } = &machine.partitions;
    if let PartitionKind::Priority { why } = kind {
        let fix = "kernels run by priorities alone";
        return Err(Error::unavailable("a partition of its own for I/O", why, fix).into());
    }
    let all = machine.gpu.info().sm_count;
    expect(io.sms() + compute.sms() <= all, || {
        format!("{} and {} SMs are more than the GPU's {all}", io.sms(), compute.sms())
    })?;
    Ok(format!("{} SMs for I/O, {} for compute, by green contexts", io.sms(), compute.sms()))
}

impl Machine {
    /// Creates rings of `shape` served by a controller in device code, with a block for each and one more.
    pub(super) fn rig(&self, shape: &Shape) -> Result<Rig> {
        let Partitions { io, compute, .. } = &self.partitions;
        let server = Server::gpu(&self.gpu, &self.program, compute, shape, DATA_BYTES)?;
        let mut rig = Rig::new(&self.gpu, &self.program, io, server, (shape, shape.queues + 1))?;
        rig.server.start()?;
        Ok(rig)
    }
}

/// Returns the controller of such a rig, and the memory that its commands may point to.
pub(super) fn controller(rig: &mut Rig) -> (&mut GpuController, &DeviceMemory) {
    match &mut rig.server {
        Server::Gpu(controller, data) => (controller, data),
        Server::Cpu(..) => unreachable!("a machine's rigs are served by a kernel"),
    }
}

/// Stops the controller, and checks that everything it saw was well-formed.
pub(super) fn seen(rig: &mut Rig) -> Result<Counters> {
    let (controller, _) = controller(rig);
    controller.stop()?;
    let seen = controller.counters()?;
    expect(seen.bad == 0, || format!("the controller refused {} commands: {seen:?}", seen.bad))?;
    Ok(seen)
}
