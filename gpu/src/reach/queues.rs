//! Creates the queues of devices, in places where queues have been proven to carry data.
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
use crate::reach::paths::Carried;
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
    /// The places tried before, with the reasons against them.
    passed_over: Vec<String>,
    carried: Carried,
    pool: Pool,
    queues: u32,
    depth: u32,
}

/// Proves that a queue on a device carries data.
pub(crate) trait Prove {
    /// The most entries of a queue to prove.
    const DEPTH: u32;

    /// Returns what it carried.
    ///
    /// # Errors
    /// Why it does not.
    fn prove(&self, device: &Device, queue: Queue) -> Result<Carried>;
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
        prover: &impl Prove,
    ) -> Result<QueueMaker> {
        let proxy = Mutex::new(None);
        let memory = |device: &Device| RingMemory::new(gpu, &device.controller, pool.path());
        let mut maker = QueueMaker {
            memory: devices.iter().map(memory).collect(),
            devices: devices.to_vec(),
            doorbells: Vec::new(),
            why_not_mapped: None,
            places: (Place::Host, Place::Host),
            passed_over: Vec::new(),
            carried: Carried::Nothing,
            pool: pool.clone(),
            queues: options.queues,
            depth: options.depth,
        };
        for device in devices {
            let mapped = Doorbells::mapped(gpu, &device.controller);
            let (choice, start) = (options.doorbells, || shared_proxy(gpu, &options.proxy, &proxy));
            let chosen = self_test::choose(mapped, (gpu, program), device, choice, start)?;
            maker.doorbells.push(chosen.doorbells);
            let why_not = chosen.why_not_mapped.map(|why| why.to_string());
            maker.why_not_mapped = maker.why_not_mapped.or(why_not);
        }
        maker.find_places(options, prover)?;
        Ok(maker)
    }

    /// Finds the best places that the options allow and where each device's queues carry data.
    fn find_places(&mut self, options: &Options, prover: &impl Prove) -> Result<()> {
        let beside = |chosen: Option<Place>| match (chosen, self.pool.place()) {
            (Some(place), _) => vec![place],
            (None, Place::Gpu) => vec![Place::Gpu, Place::Host],
            (None, Place::Host) => vec![Place::Host],
        };
        let (submission, completion) = (beside(options.submission), beside(options.completion));
        let all =
            submission.iter().flat_map(|first| completion.iter().map(move |next| (*first, *next)));
        let mut refusal = None;
        for places in all {
            match self.try_places(places, prover) {
                Ok(carried) => {
                    (self.places, self.carried) = (places, carried);
                    return Ok(());
                }
                Err(error) => {
                    let (submission, completion) = (places.0.name(), places.1.name());
                    let passed =
                        format!("entries in {submission}, completions in {completion}: {error}");
                    self.passed_over.push(passed);
                    refusal = refusal.or(Some(error));
                }
            }
        }
        Err(refusal.expect("some place is possible"))
    }

    /// Creates a queue as deep as the real ones, and proves one on each device; returns what each of them carried.
    fn try_places<P: Prove>(&self, places: (Place, Place), prover: &P) -> Result<Carried> {
        drop(self.queue(0, self.depth, places)?);
        let mut least = Carried::BothWays;
        for (index, device) in self.devices.iter().enumerate() {
            let depth = self.depth.min(P::DEPTH);
            let attempt = || prover.prove(device, self.queue(index, depth, places)?);
            // A stalled machine can cause a silence.
            let carried =
                attempt().or_else(|why| if why.is_unavailable() { attempt() } else { Err(why) })?;
            least = least.min(carried);
        }
        Ok(least)
    }

    fn queue(&self, device: usize, depth: u32, places: (Place, Place)) -> Result<Queue> {
        let (namespace, doorbells) = (&self.devices[device].namespace, &self.doorbells[device]);
        let mut queue =
            Queue::attach_in(&self.memory[device], namespace, depth, places, doorbells)?;
        // Its commands name the pool's memory.
        queue.keep(self.pool.keeper());
        Ok(queue)
    }

    /// Creates the queues of a device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn make(&self, device: usize) -> Result<Vec<Queue>> {
        (0..self.queues).map(|_| self.queue(device, self.depth, self.places)).collect()
    }

    pub(crate) fn places(&self) -> (Place, Place) {
        self.places
    }

    /// Returns what queues carried there, of all devices.
    pub(crate) fn carried(&self) -> Carried {
        self.carried
    }

    /// Returns the places tried before, with the reasons against them.
    pub(crate) fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// Returns the thread that rings for the GPU, if there is one.
    pub(crate) fn proxy(&self) -> Option<&Arc<ProxyThread>> {
        self.doorbells.iter().find_map(|doorbells| match doorbells {
            Doorbells::Proxy(proxy) => Some(proxy),
            Doorbells::Mapped(_) => None,
        })
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
