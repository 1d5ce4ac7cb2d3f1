//! A controller's queue pair whose rings and doorbells the GPU reaches.
//!
//! Rings lie in the GPU's memory or in pinned host memory. The rings of one controller share granules of GPU memory
//! ([`RingMemory`]).
//! Dropping a queue removes its doorbells from the proxy, deletes it on the controller, and only then releases its
//! memory. Memory that a controller may still write is leaked, both the rings' and that given to [`Queue::keep`] (law
//! 3). Stop the kernels that ring a queue before dropping it.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use adit_driver::controller::{RawQueuePair, RingDepths, RingSpace, SuppliedRings};
use adit_driver::spec::Iova;
use adit_driver::{Controller, Namespace, Placement};

use crate::cuda::Gpu;
use crate::error::{Error, Result};
use crate::options::Place;
use crate::reach::doorbell::{Bells, Doorbells};
use crate::reach::paths::{self, Block, HostBlock, Mapped, MemoryPath};

const SQE_BYTES: u64 = 64;
const CQE_BYTES: u64 = 16;
const PAGE_BYTES: u64 = 4096;
/// The smallest piece of exportable GPU memory.
const GRANULE_BYTES: u64 = 2 << 20;

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
    /// places. Those in the GPU's memory have a granule of their own.
    ///
    /// # Errors
    /// As [`Queue::attach_in`].
    pub fn attach(
        gpu: &Arc<Gpu>,
        controller: &Arc<Controller>,
        namespace: &Namespace,
        depth: u32,
        places: (Place, Place),
        doorbells: &Doorbells,
    ) -> Result<Queue> {
        let memory = RingMemory::new(gpu, controller, None);
        Queue::attach_in(&memory, namespace, depth, places, doorbells)
    }

    /// Creates a queue pair on the controller of `memory`, which its rings share with others.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no path leads to GPU memory, with each path's reason; the driver's and CUDA's.
    pub(crate) fn attach_in(
        memory: &RingMemory,
        namespace: &Namespace,
        depth: u32,
        places: (Place, Place),
        doorbells: &Doorbells,
    ) -> Result<Queue> {
        let depths = depths(&memory.controller, depth);
        let rings = Rings::allocate(memory, depths, places)?;
        // SAFETY: the rings are fresh; device code puts commands there that name the pool's memory.
        let raw = unsafe { memory.controller.create_raw_queue_pair(depths, rings.placement())? };
        let mut queue = Queue {
            sq: rings.submission.address(),
            cq: rings.completion.address(),
            sq_doorbell: 0,
            cq_doorbell: 0,
            depths: raw.depths(),
            completions_in_host: places.1 == Place::Host,
            qid: raw.qid().0,
            nsid: namespace.nsid().0,
            lba_shift: namespace.limits().lba_shift,
            protection: namespace.protection_control(),
            bells: None,
            raw: None,
            keeps: vec![Arc::new(rings)],
        };
        // From here on, dropping the queue deletes it first.
        let raw = queue.raw.insert(raw);
        let bells = doorbells.attach(raw)?;
        (queue.sq_doorbell, queue.cq_doorbell) = (bells.sq, bells.cq);
        queue.bells = Some(bells);
        Ok(queue)
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

/// The memory of one ring: a part of a block, which stays as long as one of its rings.
#[derive(Debug)]
struct Ring {
    granule: Arc<Granule>,
    offset: u64,
    bytes: usize,
}

/// A block mapped for one controller, from which it is unmapped before the block's release.
#[derive(Debug)]
struct Granule {
    mapped: Mapped,
    block: Block,
}

/// Where the rings of a controller's queues come from. In GPU memory they share granules: exportable memory has no
/// smaller pieces, and each takes a mapping of BAR1 and of the IOMMU. A granule is zeroed once, and no part of it is used
/// twice.
#[derive(Debug)]
pub(crate) struct RingMemory {
    gpu: Arc<Gpu>,
    controller: Arc<Controller>,
    /// How the controller reaches GPU memory, once known.
    path: OnceLock<MemoryPath>,
    /// The granule that rings are being taken from, and the bytes taken. Its rings keep it.
    last: Mutex<(Weak<Granule>, u64)>,
}

impl RingMemory {
    /// Creates an empty one; `path` is the known path to GPU memory.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        controller: &Arc<Controller>,
        path: Option<MemoryPath>,
    ) -> RingMemory {
        let is_to_gpu = |path: &MemoryPath| MemoryPath::TO_GPU.contains(path);
        RingMemory {
            gpu: Arc::clone(gpu),
            controller: Arc::clone(controller),
            path: path.filter(is_to_gpu).map_or_else(OnceLock::new, OnceLock::from),
            last: Mutex::new((Weak::new(), 0)),
        }
    }

    /// Takes zeroed memory of whole pages for a ring.
    fn ring(&self, bytes: u64, place: Place) -> Result<Ring> {
        assert!(bytes.is_multiple_of(PAGE_BYTES), "pages of memory");
        let len = usize::try_from(bytes).map_err(|why| Error::invalid("a ring", why))?;
        if place == Place::Host {
            let controllers = std::slice::from_ref(&self.controller);
            let block = Block::Host(HostBlock::allocate(&self.gpu, controllers, bytes)?);
            let granule = Arc::new(Granule { mapped: block.map(&self.controller)?, block });
            return Ok(Ring { granule, offset: 0, bytes: len });
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (granule, taken) = &mut *last;
        let has_room = |granule: &Arc<Granule>| *taken + bytes <= granule.bytes();
        let (granule, offset) = match granule.upgrade().filter(has_room) {
            Some(granule) => (granule, *taken),
            None => (Arc::new(self.granule(bytes)?), 0),
        };
        *last = (Arc::downgrade(&granule), offset + bytes);
        Ok(Ring { granule, offset, bytes: len })
    }

    /// Allocates GPU memory for at least one ring.
    fn granule(&self, bytes: u64) -> Result<Granule> {
        let make = |path| {
            let controllers = std::slice::from_ref(&self.controller);
            let block = paths::block(path, &self.gpu, controllers, bytes.max(GRANULE_BYTES))?;
            if let Block::Gpu(exposed) = &block {
                exposed.memory().zero()?;
            }
            Ok(Granule { mapped: block.map(&self.controller)?, block })
        };
        if let Some(path) = self.path.get() {
            return make(*path);
        }
        let controllers = std::slice::from_ref(&self.controller);
        let (found, reports) = paths::first_to_gpu(&self.gpu, controllers, make);
        let (path, granule) = found.ok_or_else(|| paths::no_way(&reports))?;
        self.path.get_or_init(|| path);
        Ok(granule)
    }
}

impl Granule {
    fn bytes(&self) -> u64 {
        match &self.block {
            Block::Gpu(exposed) => exposed.memory().bytes(),
            Block::Host(host) => host.bytes() as u64,
        }
    }
}

impl Rings {
    fn allocate(
        memory: &RingMemory,
        depths: RingDepths,
        (submission, completion): (Place, Place),
    ) -> Result<Rings> {
        let bytes = |depth: u32, entry_bytes: u64| {
            (u64::from(depth) * entry_bytes).next_multiple_of(PAGE_BYTES)
        };
        let sq_bytes = bytes(depths.submission, SQE_BYTES);
        let cq_bytes = bytes(depths.completion, CQE_BYTES);
        Ok(Rings {
            submission: memory.ring(sq_bytes, submission)?,
            completion: memory.ring(cq_bytes, completion)?,
        })
    }

    fn placement(&self) -> Placement {
        let (submission, completion) = (self.submission.space(), self.completion.space());
        Placement::Supplied(SuppliedRings { submission, completion, doorbells: None })
    }
}

impl Ring {
    fn address(&self) -> u64 {
        self.granule.block.address() + self.offset
    }

    fn space(&self) -> RingSpace {
        let iova = Iova(self.granule.mapped.iova().0 + self.offset);
        match &self.granule.block {
            Block::Host(host) => {
                let memory = host.atomics().slice(0, self.bytes);
                // SAFETY: mapped at that address until after the queue's end (`Queue::keeps`).
                unsafe { RingSpace::new(memory, iova) }
            }
            Block::Gpu(_) => {
                let owner = Arc::<Granule>::clone(&self.granule);
                // SAFETY: as above, and it was zeroed when it was allocated; this part is this queue's alone.
                unsafe { RingSpace::remote(self.bytes, iova, owner) }
            }
        }
    }
}

#[cfg(test)]
mod tests;
