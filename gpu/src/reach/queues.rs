//! Creates the queues of devices. The first queue determines the place of the rings and how doorbells are rung.
//!
//! Unless the options say otherwise, rings lie beside the pool if that works, else in host memory.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::Gpu;
use crate::cuda::program::Program;
use crate::error::Result;
use crate::options::ProxyOptions;
use crate::options::{Options, Place};
use crate::reach::device::Device;
use crate::reach::doorbell::Doorbells;
use crate::reach::pool::Pool;
use crate::reach::proxy::ProxyThread;
use crate::reach::queue::{Queue, RingMemory};
use crate::reach::self_test;

/// Creates queues on devices in the way that works there.
pub(crate) struct QueueMaker {
    devices: Vec<Device>,
    /// What each device's rings are taken from.
    memory: Vec<RingMemory>,
    doorbells: Vec<Doorbells>,
    why_not_mapped: Option<String>,
    places: (Place, Place),
    pool: Pool,
    queues: u32,
    depth: u32,
}

impl QueueMaker {
    /// Finds out how to create queues on these devices.
    ///
    /// # Errors
    /// Requests of the options that do not work here, and the failure of every alternative.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        program: &Program,
        devices: &[Device],
        pool: &Pool,
        options: &Options,
    ) -> Result<QueueMaker> {
        let proxy = Mutex::new(None);
        let memory = |device: &Device| RingMemory::new(gpu, &device.controller, pool.path());
        let mut maker = QueueMaker {
            memory: devices.iter().map(memory).collect(),
            devices: devices.to_vec(),
            doorbells: Vec::new(),
            why_not_mapped: None,
            places: (Place::Host, Place::Host),
            pool: pool.clone(),
            queues: options.queues,
            depth: options.depth,
        };
        for device in devices {
            let pair = (&device.controller, &device.namespace);
            let start = || shared_proxy(gpu, &options.proxy, &proxy);
            let chosen = self_test::choose(gpu, program, pair, options.doorbells, start)?;
            maker.doorbells.push(chosen.doorbells);
            let why_not = chosen.why_not_mapped.map(|why| why.to_string());
            maker.why_not_mapped = maker.why_not_mapped.or(why_not);
        }
        maker.places = maker.find_places(options)?;
        Ok(maker)
    }

    /// Finds the best places that the options allow, by creating a queue there.
    fn find_places(&self, options: &Options) -> Result<(Place, Place)> {
        let beside = |chosen: Option<Place>| match (chosen, self.pool.place()) {
            (Some(place), _) => vec![place],
            // With submission rings in a controller, completion rings can only lie in host memory.
            (None, Place::Gpu) if options.submission != Some(Place::Cmb) => {
                vec![Place::Gpu, Place::Host]
            }
            (None, _) => vec![Place::Host],
        };
        let mut refusal = None;
        for submission in beside(options.submission) {
            for completion in beside(options.completion) {
                match self.queue(0, (submission, completion)) {
                    Ok(_) => return Ok((submission, completion)),
                    Err(error) => refusal = refusal.or(Some(error)),
                }
            }
        }
        Err(refusal.expect("some place is possible"))
    }

    fn queue(&self, device: usize, places: (Place, Place)) -> Result<Queue> {
        let (namespace, doorbells) = (&self.devices[device].namespace, &self.doorbells[device]);
        let mut queue =
            Queue::attach_in(&self.memory[device], namespace, self.depth, places, doorbells)?;
        // Its commands name the pool's memory.
        queue.keep(self.pool.keeper());
        Ok(queue)
    }

    /// Creates the queues of a device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn make(&self, device: usize) -> Result<Vec<Queue>> {
        (0..self.queues).map(|_| self.queue(device, self.places)).collect()
    }

    pub(crate) fn places(&self) -> (Place, Place) {
        self.places
    }

    /// Returns how doorbells are rung, and why not mapped if that was tried.
    pub(crate) fn doorbells(&self) -> (&'static str, Option<String>) {
        (self.doorbells[0].name(), self.why_not_mapped.clone())
    }
}

/// Returns the proxy for all devices, started on first use.
fn shared_proxy(
    gpu: &Arc<Gpu>,
    options: &ProxyOptions,
    proxy: &Mutex<Option<Arc<ProxyThread>>>,
) -> Result<Arc<ProxyThread>> {
    let mut proxy = proxy.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(proxy) = &*proxy {
        return Ok(Arc::clone(proxy));
    }
    let started = ProxyThread::start(gpu, options)?;
    Ok(Arc::clone(proxy.insert(started)))
}
