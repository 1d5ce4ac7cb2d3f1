//! Host memory for the GPU and devices: allocated by the driver, near the first device and in large pages if available,
//! and registered with CUDA.
#![allow(unsafe_code)]

use std::any::Any;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use adit_driver::Controller;
use adit_driver::sys::{Atomics, Backing, HostMemory};

use super::mapped::Mapped;
use crate::cuda::{Gpu, Registration};
use crate::error::{Error, Result};

/// Zeroed host memory, registered with the GPU; unregistered before it is freed.
#[derive(Debug)]
pub(crate) struct HostBlock {
    registration: Registration,
    memory: Arc<Memory>,
}

/// [`HostMemory`] with a name for messages.
struct Memory(HostMemory);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}+{:#x}", self.0.as_ptr(), self.0.len())
    }
}

impl HostBlock {
    /// Allocates at least `bytes` that all of the controllers can access.
    ///
    /// # Errors
    /// The driver's when memory runs out, CUDA's if it refuses to register it.
    pub(crate) fn allocate(
        gpu: &Arc<Gpu>,
        controllers: &[Arc<Controller>],
        bytes: u64,
    ) -> Result<Arc<HostBlock>> {
        let what = format!("{bytes} bytes of pinned host memory");
        let len = usize::try_from(bytes).map_err(|why| Error::invalid(&what, why))?;
        let memory = match most_demanding(controllers) {
            Some(controller) => controller.host_memory(len)?,
            None => HostMemory::allocate_anywhere(len, Backing::Any)?,
        };
        let memory = Arc::new(Memory(memory));
        let owner = Box::new(Arc::clone(&memory));
        // SAFETY: `owner` keeps the memory, which is only reached as atomics and by copies.
        let registration =
            unsafe { Registration::memory(gpu, memory.0.as_ptr(), memory.0.len(), owner)? };
        Ok(Arc::new(HostBlock { registration, memory }))
    }

    pub(crate) fn address(&self) -> u64 {
        self.registration.address()
    }

    /// Returns the first byte's address in this process.
    pub(crate) fn at(&self) -> NonNull<u8> {
        self.memory.0.as_ptr()
    }

    /// Returns the size in bytes, a multiple of 4096.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.0.len()
    }

    /// Returns the memory as atomics, which keep the block.
    pub(crate) fn atomics(self: &Arc<HostBlock>) -> Atomics {
        let owner: Arc<dyn Any + Send + Sync> = Arc::<HostBlock>::clone(self);
        // SAFETY: `owner` keeps the memory; no references to its bytes are made.
        unsafe { Atomics::new(self.at(), self.bytes(), owner) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] outside the block.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.inside(offset, bytes.len())?;
        // SAFETY: inside the memory, checked above; a device that writes there meanwhile makes the bytes a mixture of both, as
        // it would over PCIe.
        unsafe { at.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies from `offset`.
    ///
    /// # Errors
    /// As [`HostBlock::write`].
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.inside(offset, bytes.len())?;
        // SAFETY: as in `write`; the bytes are copied, not interpreted.
        unsafe { at.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn inside(&self, offset: u64, len: usize) -> Result<NonNull<u8>> {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes() as u64);
        if !fits {
            let what = format!("{len} bytes at {offset:#x} of host memory");
            return Err(Error::invalid(what, format!("it has {} bytes", self.bytes())));
        }
        // SAFETY: inside the memory, checked above.
        Ok(unsafe { self.at().add(offset as usize) })
    }

    /// Maps it for a device, as [`super::Block::map`].
    pub(super) fn map(self: &Arc<HostBlock>, controller: &Controller) -> Result<Mapped> {
        let file = self.memory.0.file().map(|(file, offset)| {
            file.try_clone_to_owned().map(|file| (File::from(file), offset)).map_err(|why| {
                let fix = "raise the limit of open files (ulimit -n)";
                Error::refused("a copy of the memory's descriptor", why, fix)
            })
        });
        let owner = Box::new(Arc::clone(self));
        // SAFETY: `owner` keeps the memory, which is only reached as atomics and by copies.
        let buffer =
            unsafe { controller.register(self.at(), self.bytes(), file.transpose()?, owner) };
        Ok(Mapped::Here(buffer?))
    }
}

/// Returns the controller with the strictest demands: one in another process takes only memory with a file.
fn most_demanding(controllers: &[Arc<Controller>]) -> Option<&Arc<Controller>> {
    let is_served =
        |controller: &&Arc<Controller>| controller.info().device.starts_with("vfio-user:");
    controllers.iter().find(is_served).or(controllers.first())
}
