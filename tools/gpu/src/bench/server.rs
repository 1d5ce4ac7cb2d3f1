//! What serves the rings: a kernel of the GPU, or software controllers of the driver, one per thread.

use std::sync::Arc;

use adit_driver::{Controller, ControllerOptions, Target};
use adit_gpu::internals::cut::Span;
use adit_gpu::internals::{DeviceMemory, Doorbells, Partition, Program, Queue};
use adit_gpu::{Gpu, Place, Pool, Result};

use super::options::{BenchOptions, ControllerChoice};
use crate::controller::{Counters, GpuController, Shape};

/// Size of a CPU controller's namespace.
const TARGET: &str = "soft:null,size=1G,dbbuf=off";
/// Maximum number of threads that serve rings.
const CONTROLLERS_MAX: usize = 16;

/// What serves the rings.
#[derive(Debug)]
pub(crate) enum Server {
    /// A kernel; commands point to GPU memory.
    Gpu(Box<GpuController>, DeviceMemory),
    /// Threads; commands point to a pool in host memory.
    Cpu(Vec<Arc<Controller>>, Pool),
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
        let data = DeviceMemory::allocate(gpu, data_bytes)?;
        data.zero()?;
        let controller = GpuController::new(gpu, program, partition, shape)?;
        Ok(Server::Gpu(Box::new(controller), data))
    }

    /// Creates controllers in this process: one for every two processors, at most one for each queue.
    ///
    /// # Errors
    /// The driver's; CUDA's for the pool.
    pub(crate) fn cpu(gpu: &Arc<Gpu>, options: &BenchOptions, data_bytes: u64) -> Result<Server> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (processors / 2).clamp(1, CONTROLLERS_MAX).min(options.queues as usize);
        let target: Target = TARGET.parse()?;
        let settings = ControllerOptions { shadow_doorbells: false, ..Default::default() };
        let open = |_| Controller::open(&target, &settings).map(Arc::new);
        let controllers = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
        let pool = Pool::allocate(gpu, &controllers, &[data_bytes], Some(Place::Host))?;
        Ok(Server::Cpu(controllers, pool))
    }

    pub(crate) fn device_of(&self, queue: u32) -> usize {
        match self {
            Server::Gpu(..) => 0,
            Server::Cpu(controllers, _) => queue as usize % controllers.len(),
        }
    }

    /// Creates the queues of each controller.
    ///
    /// # Errors
    /// The driver's and CUDA's.
    pub(crate) fn queues(&self, gpu: &Arc<Gpu>, shape: &Shape) -> Result<Vec<Vec<Queue>>> {
        match self {
            Server::Gpu(controller, _) => Ok(vec![device_queues(controller, shape)]),
            Server::Cpu(controllers, _) => {
                let doorbells = Doorbells::mapped(gpu, &controllers[0]);
                let mut all: Vec<Vec<Queue>> = controllers.iter().map(|_| Vec::new()).collect();
                for index in 0..shape.queues {
                    let device = self.device_of(index);
                    let controller = &controllers[device];
                    let namespace = controller.namespace(adit_driver::spec::Nsid(1))?;
                    let places = (Place::Host, Place::Host);
                    let queue = Queue::attach(
                        gpu,
                        controller,
                        &namespace,
                        shape.depth,
                        places,
                        &doorbells,
                    )?;
                    all[device].push(queue);
                }
                Ok(all)
            }
        }
    }

    /// Returns where each controller's commands find the data.
    ///
    /// # Panics
    /// If the pool is unreachable, which a pool in host memory never is.
    pub(crate) fn spans(&self) -> Vec<Span> {
        match self {
            Server::Gpu(_, data) => vec![Span { address: data.address(), bytes: data.bytes() }],
            Server::Cpu(controllers, pool) => (0..controllers.len())
                .map(|device| {
                    let iova =
                        pool.iova(device, 0).expect("host memory is reached by all controllers");
                    Span { address: iova.0, bytes: pool.bytes(0) }
                })
                .collect(),
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

    /// Returns the kernel's counters; `None` for threads, which count nothing.
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

/// Returns the queues of a controller in device code, for rings.
pub(crate) fn device_queues(controller: &GpuController, shape: &Shape) -> Vec<Queue> {
    let queue = |pair: crate::controller::Pair| Queue {
        raw: None,
        sq: pair.sq,
        cq: pair.cq,
        sq_doorbell: pair.sq_doorbell,
        cq_doorbell: pair.cq_doorbell,
        depths: shape.depths(),
        completions_in_host: shape.place == Place::Host,
        qid: pair.qid,
        nsid: 1,
        lba_shift: shape.lba_shift,
        protection: 0,
        bells: None,
        keeps: Vec::new(),
    };
    controller.pairs().into_iter().map(queue).collect()
}

/// Creates the server that `options` choose.
///
/// # Errors
/// As [`Server::gpu`] and [`Server::cpu`].
pub(crate) fn choose(
    gpu: &Arc<Gpu>,
    program: &Arc<Program>,
    partition: &Partition,
    options: &BenchOptions,
    (shape, data_bytes): (&Shape, u64),
) -> Result<Server> {
    match options.controller {
        ControllerChoice::Gpu => Server::gpu(gpu, program, partition, shape, data_bytes),
        ControllerChoice::Cpu => Server::cpu(gpu, options, data_bytes),
    }
}
