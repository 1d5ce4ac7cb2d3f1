//! What serves the rings: a kernel of the GPU, or the driver's software controller, in a thread of the CPU.

use std::sync::Arc;

use adit_gpu::internals::cut::Span;
use adit_gpu::internals::{DeviceMemory, Doorbells, Partition, Program, Queue};
use adit_gpu::{Device, Gpu, Place, Pool, Result};

use crate::controller::{Counters, GpuController, Shape};
use crate::options::open;

/// The CPU's controller.
const TARGET: &str = "soft:null,dbbuf=off";

/// What serves the rings.
#[derive(Debug)]
pub(crate) enum Server {
    /// A kernel; commands point to GPU memory.
    Gpu(Box<GpuController>, DeviceMemory),
    /// A thread; commands point to a pool in host memory.
    Cpu(Device, Pool),
}

impl Server {
    /// Creates a controller in device code, in `partition`, whose commands may point to `data_bytes` of GPU memory.
    ///
    /// # Errors
    /// As [`GpuController::new`].
    pub(crate) fn gpu(
        gpu: &Arc<Gpu>,
        program: &Arc<Program>,
        partition: &Partition,
        shape: &Shape,
        data_bytes: u64,
    ) -> Result<Server> {
        let data = DeviceMemory::zeroed(gpu, data_bytes)?;
        let controller = GpuController::new(gpu, program, partition, shape)?;
        Ok(Server::Gpu(Box::new(controller), data))
    }

    /// Creates a controller in this process, with a namespace of `shape`.
    ///
    /// # Errors
    /// The driver's; CUDA's for the pool.
    pub(crate) fn cpu(gpu: &Arc<Gpu>, shape: &Shape, data_bytes: u64) -> Result<Server> {
        let bytes = shape.lbas << shape.lba_shift;
        let device = open(&format!("{TARGET},size={}M", bytes >> 20).parse()?)?;
        let controllers = std::slice::from_ref(&device.controller);
        let pool = Pool::allocate(gpu, controllers, &[data_bytes], Some(Place::Host))?;
        Ok(Server::Cpu(device, pool))
    }

    /// Creates its queues.
    ///
    /// # Errors
    /// The driver's and CUDA's.
    pub(crate) fn queues(&self, gpu: &Arc<Gpu>, shape: &Shape) -> Result<Vec<Queue>> {
        match self {
            Server::Gpu(controller, _) => Ok(controller.queues()),
            Server::Cpu(Device { controller, namespace }, _) => {
                let (doorbells, places) =
                    (Doorbells::mapped(gpu, controller), (Place::Host, Place::Host));
                let queue =
                    |_| Queue::attach(gpu, controller, namespace, shape.depth, places, &doorbells);
                (0..shape.queues).map(queue).collect()
            }
        }
    }

    /// Returns where commands find the data.
    ///
    /// # Panics
    /// If the pool is unreachable, which a pool in host memory never is.
    pub(crate) fn span(&self) -> Span {
        match self {
            Server::Gpu(_, data) => Span { address: data.address(), bytes: data.bytes() },
            Server::Cpu(_, pool) => {
                let iova = pool.iova(0, 0).expect("the controller reaches host memory");
                Span { address: iova.0, bytes: pool.bytes(0) }
            }
        }
    }

    /// Starts whatever must run before the first command.
    ///
    /// # Errors
    /// As [`GpuController::start`].
    pub(crate) fn start(&mut self) -> Result<()> {
        match self {
            Server::Gpu(controller, data) => controller.start(&[(data.address(), data.bytes())]),
            Server::Cpu(..) => Ok(()),
        }
    }

    /// Stops whatever was started.
    ///
    /// # Errors
    /// As [`GpuController::stop`].
    pub(crate) fn stop(&mut self) -> Result<()> {
        match self {
            Server::Gpu(controller, _) => controller.stop(),
            Server::Cpu(..) => Ok(()),
        }
    }

    /// Returns the kernel's counters; `None` for the CPU's controller, which counts nothing.
    ///
    /// # Errors
    /// As [`GpuController::counters`].
    pub(crate) fn counters(&self) -> Result<Option<Counters>> {
        match self {
            Server::Gpu(controller, _) => controller.counters().map(Some),
            Server::Cpu(..) => Ok(None),
        }
    }
}
