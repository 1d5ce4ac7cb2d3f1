//! GPU memory exposed by one of the paths, so that devices can access it.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use adit_driver::Controller;
use memmap2::MmapRaw;

use super::coherent::{self, Address};
use super::dma_buf;
use super::gdr::GdrMapping;
use super::mapped::Mapped;
use super::path::MemoryPath;
use crate::cuda::{DeviceMemory, Gpu};
use crate::error::{Error, Result};

/// GPU memory with the view for devices. The view drops before the memory.
#[derive(Debug)]
pub(crate) struct Exposed {
    view: View,
    memory: DeviceMemory,
}

#[derive(Debug)]
pub(super) enum View {
    /// The memory at its own address.
    Own(Address),
    /// Its dma-buf, by the file alone.
    File(OwnedFd),
    /// Its dma-buf mapped into this process, and the file for a device in another process.
    Mapping(MmapRaw, OwnedFd),
    /// A mapping that gdrdrv made.
    Gdr(GdrMapping),
}
impl Exposed {
    /// Allocates at least `bytes` in the GPU and exposes them.
    ///
    /// # Errors
    /// What the path lacks on this machine, before allocating if that can be known.
    pub(crate) fn allocate(gpu: &Arc<Gpu>, bytes: u64, path: MemoryPath) -> Result<Arc<Exposed>> {
        check(path, gpu)?;
        let memory = match path {
            // Granules of virtual memory are in the CPU's page tables only on request.
            MemoryPath::Coherent => DeviceMemory::allocate(gpu, whole_granules(bytes)),
            MemoryPath::Gdrdrv if !gpu.info().attributes.vmm_rdma => {
                DeviceMemory::allocate(gpu, whole_granules(bytes))
            }
            _ => DeviceMemory::exportable(gpu, bytes),
        }?;
        Exposed::new(memory, path)
    }

    /// Exposes memory that the caller allocated.
    ///
    /// # Errors
    /// As [`Exposed::allocate`]; [`Error::Cuda`] for memory whose copies cannot be ordered with devices' accesses.
    pub(crate) fn adopt(
        gpu: &Arc<Gpu>,
        memory: DeviceMemory,
        path: MemoryPath,
    ) -> Result<Arc<Exposed>> {
        check(path, gpu)?;
        memory.order_copies()?;
        Exposed::new(memory, path)
    }

    fn new(memory: DeviceMemory, path: MemoryPath) -> Result<Arc<Exposed>> {
        let view = match path {
            MemoryPath::Coherent => View::Own(coherent::address(&memory)?),
            MemoryPath::DmaBufIommufd => View::File(memory.dma_buf()?),
            MemoryPath::DmaBufMmap => {
                let file = memory.dma_buf()?;
                View::Mapping(dma_buf::map(&file, memory.bytes())?, file)
            }
            MemoryPath::Gdrdrv => View::Gdr(GdrMapping::new(memory.address(), memory.bytes())?),
            MemoryPath::PinnedHost | MemoryPath::CpuOnly => {
                return Err(Error::invalid(path.name(), "no GPU memory is exposed by it"));
            }
        };
        Ok(Arc::new(Exposed { view, memory }))
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Maps it for a device, as [`super::Block::map`].
    pub(super) fn map(self: &Arc<Exposed>, controller: &Controller) -> Result<Mapped> {
        let bytes = self.memory.bytes();
        let at = match &self.view {
            View::File(file) => {
                let owner = Box::new(Arc::clone(self));
                // SAFETY: the file is the memory's dma-buf, as long as the memory, which `owner` keeps.
                let mapped = unsafe { controller.register_file(file.as_fd(), 0, bytes, owner) };
                return Ok(Mapped::File(mapped?));
            }
            View::Own(address) => address.0,
            View::Mapping(map, _) => {
                NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero")
            }
            View::Gdr(mapping) => mapping.at(),
        };
        let len = usize::try_from(bytes).expect("what is mapped here has its length in a word");
        let owner = Box::new(Arc::clone(self));
        // SAFETY: the view is `bytes` long and stays as long as `owner`; no reference to it is ever made.
        let buffer = unsafe { controller.register(at, len, self.file()?, owner) };
        Ok(Mapped::Here(buffer?))
    }

    /// Returns the file behind the view in this process, for a device in another process.
    fn file(&self) -> Result<Option<(File, u64)>> {
        let View::Mapping(_, file) = &self.view else { return Ok(None) };
        let copy = file.try_clone().map_err(|why| {
            Error::refused("a copy of the dma-buf's descriptor", why, "raise the limit (ulimit -n)")
        })?;
        Ok(Some((File::from(copy), 0)))
    }
}

/// Checks what a path is known to lack, before trying it.
fn check(path: MemoryPath, gpu: &Gpu) -> Result<()> {
    let attributes = &gpu.info().attributes;
    match path {
        MemoryPath::Coherent => coherent::check(attributes),
        MemoryPath::DmaBufIommufd => dma_buf::check(attributes),
        MemoryPath::DmaBufMmap => dma_buf::check_mapping(attributes),
        _ => Ok(()),
    }
}

/// Rounds up to whole large pages: CUDA packs smaller allocations, which then begin anywhere in a page.
fn whole_granules(bytes: u64) -> u64 {
    bytes.next_multiple_of(2 << 20)
}
