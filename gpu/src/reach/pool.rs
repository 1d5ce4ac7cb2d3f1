//! Memory regions that the GPU works on and that devices read and write: where the objects are.
//!
//! A region is one run of GPU or host memory, with an address for the GPU and one for each device that reaches it. GPU
//! memory that devices cannot reach makes a pool as well: CPU threads then stage the transfers, and [`Pool::reports`]
//! gives the reasons.
//!
//! The caller's regions are registered, not owned: the caller frees them after the pool. A region is unmapped from the
//! devices before its memory is released, and leaked if they do not let it go (law 3).

use std::any::Any;
use std::sync::{Arc, Weak};

use adit_driver::Controller;
use adit_driver::spec::Iova;

use crate::cuda::{DeviceMemory, Gpu};
use crate::error::{Error, Result};
use crate::options::Place;
use crate::reach::paths::{self, Block, Exposed, Mapped, MemoryPath, PathReport};

/// The most regions of a pool: a context has 11 bits for the region.
pub const REGIONS_MAX: usize = 1 << 11;
/// Regions begin and end at device pages.
const PAGE_BYTES: u64 = 4096;

/// Memory for the transfers of one set of rings. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    regions: Vec<PoolRegion>,
    gpu: Arc<Gpu>,
    /// Identifies the controllers without keeping them; mappings keep them where needed.
    controllers: Vec<Weak<Controller>>,
    place: Place,
    path: Option<MemoryPath>,
    reports: Vec<PathReport>,
}

/// One run of memory. Mappings drop before the memory.
#[derive(Debug)]
struct PoolRegion {
    /// One mapping per device, or none if devices cannot reach it.
    mapped: Vec<Mapped>,
    memory: Memory,
    bytes: u64,
}

#[derive(Debug)]
enum Memory {
    /// Reachable by devices.
    Block(Block),
    /// GPU memory that no device reaches.
    Apart(DeviceMemory),
}

/// Device addresses of a region's prebuilt PRP lists (driver: `transfer::prebuilt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrpLists {
    /// The list of all pages, and the same list shifted by 256 entries.
    pub(crate) lists: [u64; 2],
}

impl Pool {
    /// Allocates a region for each of `region_bytes`, for the GPU and all of the controllers. Place `None` is the GPU's
    /// memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no or too many regions; CUDA's or the driver's when memory runs out; [`Error::Refused`]
    /// while the persistent kernel of rings runs on the GPU. Unreachable GPU memory is no error: [`Pool::path`] is
    /// `None` then.
    pub fn allocate(
        gpu: &Arc<Gpu>,
        controllers: &[Arc<Controller>],
        region_bytes: &[u64],
        place: Option<Place>,
    ) -> Result<Pool> {
        check_regions(region_bytes.iter().copied())?;
        let _making = gpu.may_make("allocate a pool")?;
        match place.unwrap_or(Place::Gpu) {
            Place::Host => {
                let path = MemoryPath::PinnedHost;
                let regions = allocate_by(path, gpu, controllers, region_bytes)?;
                Ok(Pool::new(gpu, regions, controllers, Place::Host, (Some(path), Vec::new())))
            }
            Place::Gpu => in_gpu(gpu, controllers, region_bytes),
        }
    }

    /// Registers GPU memory that the caller allocated, such as an inference engine's tensors, by address and length.
    /// Both are multiples of 4096.
    ///
    /// # Safety
    /// The memory stays allocated until the pool and all clones of it are gone, and no other code relies on its content
    /// while transfers into it are under way.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no or too many regions and for misaligned ones; [`Error::Refused`] while the persistent
    /// kernel of rings runs on the GPU. Unreachable regions are no error.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        gpu: &Arc<Gpu>,
        controllers: &[Arc<Controller>],
        regions: &[(u64, u64)],
    ) -> Result<Pool> {
        check_regions(regions.iter().map(|region| region.1))?;
        regions.iter().try_for_each(|&(address, bytes)| check_alignment(address, bytes))?;
        let _making = gpu.may_make("register a pool")?;
        // SAFETY: the caller's.
        let memory = |&(address, bytes)| unsafe { DeviceMemory::borrowed(gpu, address, bytes) };
        let (found, reports) = paths::first_to_gpu(gpu, controllers, |path| {
            let adopt = |region| {
                let block = Exposed::adopt(gpu, memory(region), path).map(Block::Gpu)?;
                PoolRegion::reached(block, controllers, region.1)
            };
            regions.iter().map(adopt).collect::<Result<Vec<PoolRegion>>>()
        });
        let (path, regions) = match found {
            Some((path, regions)) => (Some(path), regions),
            None => (
                None,
                regions.iter().map(|region| PoolRegion::apart(memory(region), region.1)).collect(),
            ),
        };
        Ok(Pool::new(gpu, regions, controllers, Place::Gpu, (path, reports)))
    }

    fn new(
        gpu: &Arc<Gpu>,
        regions: Vec<PoolRegion>,
        controllers: &[Arc<Controller>],
        place: Place,
        (path, reports): (Option<MemoryPath>, Vec<PathReport>),
    ) -> Pool {
        let gpu = Arc::clone(gpu);
        let controllers = controllers.iter().map(Arc::downgrade).collect();
        Pool { inner: Arc::new(Inner { regions, gpu, controllers, place, path, reports }) }
    }

    /// Allocates a region of its own for one of the controllers, reached as this pool's are.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if devices do not reach this pool; those of [`Pool::allocate`].
    pub(crate) fn another(&self, controller: &Arc<Controller>, bytes: u64) -> Result<Pool> {
        let Inner { gpu, place, path, reports, .. } = &*self.inner;
        let path = path.ok_or_else(|| paths::no_way(reports))?;
        let controllers = std::slice::from_ref(controller);
        let regions = allocate_by(path, gpu, controllers, &[bytes])?;
        Ok(Pool::new(gpu, regions, controllers, *place, (Some(path), Vec::new())))
    }

    /// Returns the number of regions.
    pub fn region_count(&self) -> usize {
        self.inner.regions.len()
    }

    /// Returns the number of controllers it was created for.
    pub fn device_count(&self) -> usize {
        self.inner.controllers.len()
    }

    /// Returns whether `controller` is the one it was created for at `position`.
    pub(crate) fn is_for(&self, position: usize, controller: &Arc<Controller>) -> bool {
        let is_it = |one: &Weak<Controller>| std::ptr::eq(one.as_ptr(), Arc::as_ptr(controller));
        self.inner.controllers.get(position).is_some_and(is_it)
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    /// Returns the size of a region in bytes, as requested.
    ///
    /// # Panics
    /// If there is no such region.
    pub fn bytes(&self, region: usize) -> u64 {
        self.inner.regions[region].bytes
    }

    /// Returns the GPU's address of a region.
    ///
    /// # Panics
    /// If there is no such region.
    pub fn address(&self, region: usize) -> u64 {
        match &self.inner.regions[region].memory {
            Memory::Block(block) => block.address(),
            Memory::Apart(memory) => memory.address(),
        }
    }

    /// Returns a device's address of a region; `device` is its position among the controllers. `None` if the device
    /// cannot reach it and transfers must be staged.
    ///
    /// # Panics
    /// If there is no such region.
    pub fn iova(&self, device: usize, region: usize) -> Option<Iova> {
        self.inner.regions[region].mapped.get(device).map(Mapped::iova)
    }

    /// Returns whether every device reaches every region.
    pub fn is_reached(&self) -> bool {
        let count = self.inner.controllers.len();
        self.inner.regions.iter().all(|region| region.mapped.len() == count)
    }

    /// Returns where the regions lie.
    pub fn place(&self) -> Place {
        self.inner.place
    }

    /// Returns the path by which devices reach it, if any.
    pub fn path(&self) -> Option<MemoryPath> {
        self.inner.path
    }

    /// Returns the results of the tried paths, best first.
    pub fn reports(&self) -> &[PathReport] {
        &self.inner.reports
    }

    /// Copies from `offset` of a region.
    ///
    /// # Errors
    /// [`Error::Invalid`] outside the region; CUDA's.
    pub fn read(&self, region: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(region, offset, bytes.len() as u64)?;
        match &self.inner.regions[region].memory {
            Memory::Block(block) => block.read(offset, bytes),
            Memory::Apart(memory) => memory.read(offset, bytes),
        }
    }

    /// Copies `bytes` to `offset` of a region.
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn write(&self, region: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(region, offset, bytes.len() as u64)?;
        match &self.inner.regions[region].memory {
            Memory::Block(block) => block.write(offset, bytes),
            Memory::Apart(memory) => memory.write(offset, bytes),
        }
    }

    /// Returns a device's addresses of a region's prebuilt PRP lists; `None` for a region of at most two pages, or one
    /// that the device does not reach.
    pub(crate) fn prp_lists(&self, device: usize, region: usize) -> Option<PrpLists> {
        let lists = self.inner.regions.get(region)?.mapped.get(device)?.lists()?;
        Some(PrpLists { lists: lists.map(|list| list.0) })
    }

    /// Keeps the pool alive for as long as a device uses it.
    pub(crate) fn keeper(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<Inner>::clone(&self.inner)
    }

    /// Checks that `len` bytes at `offset` lie inside a region.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they do not.
    pub(crate) fn check(&self, region: usize, offset: u64, len: u64) -> Result<()> {
        let bytes = self.inner.regions.get(region).map(|region| region.bytes);
        let end = offset.checked_add(len);
        if bytes.zip(end).is_some_and(|(bytes, end)| end <= bytes) {
            return Ok(());
        }
        let what = format!("{len} bytes at {offset:#x} of region {region}");
        let there = bytes
            .map_or("there is no such region".to_owned(), |bytes| format!("it has {bytes} bytes"));
        Err(Error::invalid(what, there))
    }
}

impl PoolRegion {
    fn reached(block: Block, controllers: &[Arc<Controller>], bytes: u64) -> Result<PoolRegion> {
        let mapped = block.map_for(controllers)?;
        Ok(PoolRegion { mapped, memory: Memory::Block(block), bytes })
    }

    fn apart(memory: DeviceMemory, bytes: u64) -> PoolRegion {
        PoolRegion { mapped: Vec::new(), memory: Memory::Apart(memory), bytes }
    }
}

/// Allocates GPU regions by the first path that works for all of them, or unreachable for the devices.
fn in_gpu(gpu: &Arc<Gpu>, controllers: &[Arc<Controller>], region_bytes: &[u64]) -> Result<Pool> {
    let by = |path| allocate_by(path, gpu, controllers, region_bytes);
    let (found, reports) = paths::first_to_gpu(gpu, controllers, by);
    let (path, regions) = match found {
        Some((path, regions)) => (Some(path), regions),
        None => {
            let apart = |&bytes| Ok(PoolRegion::apart(DeviceMemory::allocate(gpu, bytes)?, bytes));
            (None, region_bytes.iter().map(apart).collect::<Result<_>>()?)
        }
    };
    Ok(Pool::new(gpu, regions, controllers, Place::Gpu, (path, reports)))
}

fn allocate_by(
    path: MemoryPath,
    gpu: &Arc<Gpu>,
    controllers: &[Arc<Controller>],
    region_bytes: &[u64],
) -> Result<Vec<PoolRegion>> {
    let allocate = |&bytes| {
        PoolRegion::reached(paths::block(path, gpu, controllers, bytes)?, controllers, bytes)
    };
    region_bytes.iter().map(allocate).collect()
}

fn check_regions(mut bytes: impl ExactSizeIterator<Item = u64>) -> Result<()> {
    let count = bytes.len();
    if count == 0 || count > REGIONS_MAX {
        let why = format!("it has 1 to {REGIONS_MAX}; make fewer, larger regions");
        return Err(Error::invalid(format!("a pool of {count} regions"), why));
    }
    if bytes.any(|bytes| bytes == 0) {
        return Err(Error::invalid("a region of 0 bytes", "a region has at least one byte"));
    }
    Ok(())
}

fn check_alignment(address: u64, bytes: u64) -> Result<()> {
    let aligned = address.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES);
    if aligned && address.checked_add(bytes).is_some() {
        return Ok(());
    }
    let what = format!("a region of {bytes} bytes at {address:#x}");
    Err(Error::invalid(what, "both must be multiples of 4096; register the whole allocation"))
}
