//! A controller's queue pair whose rings and doorbells the GPU reaches.
//!
//! Rings lie in the GPU's memory, in pinned host memory, or (submission rings) in the controller memory buffer.
//! Dropping a queue removes its doorbells from the proxy, deletes it on the controller, and only then releases its
//! memory. Memory that a controller may still write is leaked, both the rings' and that given to [`Queue::keep`] (law
//! 3). Stop the kernels that ring a queue before dropping it.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use adit_driver::controller::{RawQueuePair, RingDepths, RingSpace, SuppliedRings};
use adit_driver::sys::Atomics;
use adit_driver::{Controller, Namespace, Placement};

use crate::cuda::{Gpu, Registration};
use crate::error::{Error, Result};
use crate::options::Place;
use crate::reach::doorbell::{Bells, Doorbells};
use crate::reach::paths::{self, Block, HostBlock, Mapped};

const SQE_BYTES: u64 = 64;
const CQE_BYTES: u64 = 16;
const PAGE_BYTES: u64 = 4096;

/// Keeps the memory of a queue and of its transfers alive.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync>;

/// A queue pair for the GPU to drive, with the GPU's addresses.
#[derive(Debug)]
pub struct Queue {
    /// The controller's queue pair; `None` for a queue of the controller in device code.
    pub raw: Option<RawQueuePair>,
    pub sq: u64,
    pub cq: u64,
    /// Address of the submission queue's tail: a register, or a word of the proxy.
    pub sq_doorbell: u64,
    /// Address of the completion queue's head.
    pub cq_doorbell: u64,
    pub depths: RingDepths,
    /// Whether the GPU reads completions over PCIe.
    pub completions_in_host: bool,
    pub qid: u16,
    pub nsid: u32,
    /// Binary logarithm of the bytes of an LBA.
    pub lba_shift: u32,
    /// PRINFO, in place in dword 12.
    pub protection: u32,
    pub bells: Option<Bells>,
    /// Released after the queue is deleted.
    pub keeps: Vec<Keeper>,
}

impl Queue {
    /// Creates a queue pair of `depth` submission entries, with its submission and completion rings in the given
    /// places.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no path leads to GPU memory, with each path's reason; [`Error::Invalid`] for
    /// incompatible places; the driver's and CUDA's.
    pub fn attach(
        gpu: &Arc<Gpu>,
        controller: &Arc<Controller>,
        namespace: &Namespace,
        depth: u32,
        (submission, completion): (Place, Place),
        doorbells: &Doorbells,
    ) -> Result<Queue> {
        let depths = depths(controller, depth);
        let rings = match (submission, completion) {
            (Place::Cmb, Place::Host) => {
                return in_cmb(gpu, controller, namespace, depths, doorbells);
            }
            (Place::Cmb, _) => {
                let why = "with the submission ring in the controller memory buffer, the completion ring lies in host memory";
                return Err(Error::invalid("the places of a queue's rings", why));
            }
            (_, Place::Cmb) => {
                let why = "a completion ring lies in the GPU's or the host's memory";
                return Err(Error::invalid("the places of a queue's rings", why));
            }
            places => Rings::allocate(gpu, controller, depths, places)?,
        };
        let addresses = (rings.submission.address(), rings.completion.address());
        // SAFETY: the rings are fresh; device code puts commands there that name the pool's memory.
        let raw = unsafe { controller.create_raw_queue_pair(depths, rings.placement())? };
        let keeps: Vec<Keeper> = vec![Arc::new(rings)];
        finish(namespace, raw, addresses, doorbells, keeps)
    }

    /// Keeps `what`, memory that its commands name, until the queue is deleted. Leaks it if deletion fails.
    pub fn keep(&mut self, what: Keeper) {
        self.keeps.push(what);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Dropped first: a late write of the proxy would ring the next queue of this identifier.
        let doorbells = self.bells.take();
        drop(doorbells);
        let Some(raw) = self.raw.take() else { return };
        let qid = self.qid;
        if !raw.delete() {
            tracing::error!(
                "queue {qid} could not be deleted: leaking the memory it may still write"
            );
            std::mem::forget(std::mem::take(&mut self.keeps));
        }
    }
}

/// Returns the entries of both rings for `depth` submission entries: twice as many for completions, where the
/// controller takes that many. With fewer, the rings have fewer identifiers (`slots` in rings/ring_set.rs).
fn depths(controller: &Controller, depth: u32) -> RingDepths {
    let most = controller.info().queue_entries_max;
    RingDepths { submission: depth, completion: depth.saturating_mul(2).min(most) }
}

#[derive(Debug)]
struct Rings {
    submission: Ring,
    completion: Ring,
}

/// The memory of one ring; unmapped from the device before its release.
#[derive(Debug)]
struct Ring {
    mapped: Mapped,
    block: Block,
    bytes: usize,
}

impl Rings {
    fn allocate(
        gpu: &Arc<Gpu>,
        controller: &Arc<Controller>,
        depths: RingDepths,
        (submission, completion): (Place, Place),
    ) -> Result<Rings> {
        let bytes = |depth: u32, entry_bytes: u64| {
            (u64::from(depth) * entry_bytes).next_multiple_of(PAGE_BYTES)
        };
        let sq_bytes = bytes(depths.submission, SQE_BYTES);
        let cq_bytes = bytes(depths.completion, CQE_BYTES);
        Ok(Rings {
            submission: Ring::allocate(gpu, controller, sq_bytes, submission)?,
            completion: Ring::allocate(gpu, controller, cq_bytes, completion)?,
        })
    }

    fn placement(&self) -> Placement {
        let (submission, completion) = (self.submission.space(), self.completion.space());
        Placement::Supplied(SuppliedRings { submission, completion, doorbells: None })
    }
}

impl Ring {
    /// Allocates zeroed memory, mapped for the device.
    fn allocate(
        gpu: &Arc<Gpu>,
        controller: &Arc<Controller>,
        bytes: u64,
        place: Place,
    ) -> Result<Ring> {
        let controllers = std::slice::from_ref(controller);
        let len = usize::try_from(bytes).map_err(|why| Error::invalid("a ring", why))?;
        if place == Place::Host {
            let block = Block::Host(HostBlock::allocate(gpu, controllers, bytes)?);
            return Ok(Ring { mapped: block.map(controller)?, block, bytes: len });
        }
        let (found, reports) = paths::first_to_gpu(gpu, controllers, |path| {
            let block = paths::block(path, gpu, controllers, bytes)?;
            if let Block::Gpu(exposed) = &block {
                exposed.memory().zero()?;
            }
            Ok(Ring { mapped: block.map(controller)?, block, bytes: len })
        });
        found.map(|(_, ring)| ring).ok_or_else(|| paths::no_way(&reports))
    }

    fn address(&self) -> u64 {
        self.block.address()
    }

    fn space(&self) -> RingSpace {
        match &self.block {
            Block::Host(host) => {
                let memory = host.atomics().slice(0, self.bytes);
                // SAFETY: mapped at that address until after the queue's end (`Queue::keeps`).
                unsafe { RingSpace::new(memory, self.mapped.iova()) }
            }
            Block::Gpu(_) => {
                // SAFETY: as above, and it was zeroed when it was allocated, for this queue alone.
                unsafe { RingSpace::remote(self.bytes, self.mapped.iova(), self.block.keeper()) }
            }
        }
    }
}

/// Creates a queue with its submission ring in the controller memory buffer and its completion ring in the driver's
/// memory.
fn in_cmb(
    gpu: &Arc<Gpu>,
    controller: &Arc<Controller>,
    namespace: &Namespace,
    depths: RingDepths,
    doorbells: &Doorbells,
) -> Result<Queue> {
    // SAFETY: device code puts commands there that name the pool's memory.
    let raw = unsafe { controller.create_raw_queue_pair(depths, Placement::Cmb)? };
    let register = |ring: &RingSpace, what| {
        let memory =
            ring.memory().ok_or_else(|| Error::invalid(what, "the CPU does not reach it"))?;
        register_ring(gpu, memory)
    };
    let submission =
        register(raw.submission(), "a submission ring in the controller memory buffer")?;
    let completion = register(raw.completion(), "a completion ring beside it")?;
    let addresses = (submission.address(), completion.address());
    let keeps: Vec<Keeper> = vec![Arc::new(submission), Arc::new(completion)];
    finish(namespace, raw, addresses, doorbells, keeps)
}

/// Makes a ring of the driver's accessible to the GPU.
fn register_ring(gpu: &Arc<Gpu>, memory: &Atomics) -> Result<Registration> {
    let at = std::ptr::NonNull::new(memory.as_ptr()).expect("a ring is not at address zero");
    let owner = Box::new(memory.clone());
    if crate::reach::doorbell::is_device_memory(at.addr().get()) {
        // SAFETY: `owner` keeps the mapping of the controller memory buffer, whose words may be read.
        unsafe { Registration::io(gpu, at, memory.len(), owner) }
    } else {
        // SAFETY: `owner` keeps the memory, which is only reached as atomics.
        unsafe { Registration::memory(gpu, at, memory.len(), owner) }
    }
}

/// Attaches the doorbells to a created queue.
fn finish(
    namespace: &Namespace,
    raw: RawQueuePair,
    (sq, cq): (u64, u64),
    doorbells: &Doorbells,
    keeps: Vec<Keeper>,
) -> Result<Queue> {
    let mut queue = Queue {
        sq,
        cq,
        sq_doorbell: 0,
        cq_doorbell: 0,
        depths: raw.depths(),
        completions_in_host: raw.completion().memory().is_some(),
        qid: raw.qid().0,
        nsid: namespace.nsid().0,
        lba_shift: namespace.limits().lba_shift,
        protection: namespace.protection_control(),
        bells: None,
        raw: None,
        keeps,
    };
    // From here on, dropping the queue deletes it first.
    let raw = queue.raw.insert(raw);
    let bells = doorbells.attach(raw)?;
    (queue.sq_doorbell, queue.cq_doorbell) = (bells.sq, bells.cq);
    queue.bells = Some(bells);
    Ok(queue)
}

#[cfg(test)]
mod tests;
