//! Foreign memory made accessible to the GPU: host memory, and the registers of a device.
//!
//! Registering registers does not pin them: their mapping must last as long as the registration, which therefore keeps
//! its owner. A process registers memory once, for all its GPUs; each has an address of its own for it.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::code;
use super::memory::{DEVICE_MAP, PORTABLE, device_pointer};
use super::running::Busy;
use crate::{Error, Result};
use cudarc::driver::sys::CUdeviceptr;
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const IO_MEMORY: u32 = 4;
/// The driver refuses addresses that are not multiples of this.
const PAGE_BYTES: usize = 4096;

/// Registered memory. Dropping it unregisters it, and then drops its owner. If the driver does not unregister it, the
/// GPU still has it, and the owner is leaked.
pub(crate) struct Registration {
    gpu: Arc<Gpu>,
    host: NonNull<u8>,
    address: CUdeviceptr,
    bytes: usize,
    /// The other GPUs that reach the memory, and where.
    others: Mutex<Vec<(Arc<Gpu>, CUdeviceptr)>>,
    /// Dropped only in `drop`, once the memory is unregistered.
    owner: ManuallyDrop<Box<dyn Any + Send + Sync>>,
}

// SAFETY: it holds addresses, which it does not reach through, and an owner that may be sent.
unsafe impl Send for Registration {}
// SAFETY: as above; the owner may be shared.
unsafe impl Sync for Registration {}

impl fmt::Debug for Registration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Registration({:p}, {} bytes, for the GPU at {:#x})",
            self.host, self.bytes, self.address
        )
    }
}

impl Registration {
    /// Makes host memory accessible to the GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] or [`Error::Refused`] with the driver's reason.
    ///
    /// # Safety
    ///
    /// `bytes` at `at` are memory that stays mapped while `owner` lives, and that others write only as they would write
    /// memory that the CPU shares by atomics.
    pub(crate) unsafe fn memory(
        gpu: &Arc<Gpu>,
        at: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Registration> {
        let _bound = gpu.bind()?;
        // SAFETY: the caller vouches for the memory.
        let result = unsafe { register(gpu, at, bytes, 0) };
        gpu.cuda().check("register host memory with the GPU", "cuMemHostRegister", result)?;
        finish(gpu, at, bytes, owner)
    }

    /// Makes a device's registers accessible to the GPU. Reads one word of each page first, because the driver requires
    /// present pages and a mapping of registers gets its pages on access.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] without the right to do so, which names what grants it; [`Error::Cuda`].
    ///
    /// # Safety
    ///
    /// As [`Registration::memory`], for whole pages of registers whose first words may be read.
    pub(crate) unsafe fn io(
        gpu: &Arc<Gpu>,
        at: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Registration> {
        if !(at.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
            || bytes == 0
            || !bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(Error::invalid(
                "register a device's registers",
                "they are not whole pages",
            ));
        }
        let _bound = gpu.bind()?;
        let mut result = code::UNKNOWN;
        // The kernel may remove a page between the read and the call; one retry is enough in practice.
        for _ in 0..2 {
            // SAFETY: the caller vouches for the pages and for reading their first words.
            result = unsafe {
                touch(at, bytes);
                register(gpu, at, bytes, IO_MEMORY)
            };
            if result == code::SUCCESS {
                return finish(gpu, at, bytes, owner);
            }
        }
        Err(refusal(gpu, result))
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address at which a GPU, which need not be the one that registered it, sees the memory.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if the driver has not mapped the memory for that GPU.
    pub(crate) fn address_for(&self, gpu: &Arc<Gpu>) -> Result<u64> {
        if gpu.device() == self.gpu.device() {
            return Ok(self.address);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = others.iter().filter(|(other, _)| other.device() == gpu.device());
        if let Some((_, address)) = known.next() {
            return Ok(*address);
        }
        let _bound = gpu.bind()?;
        let address = device_pointer(gpu, self.host)?;
        others.push((Arc::clone(gpu), address));
        Ok(address)
    }

    /// Permits unregistering the memory; returns `None` while an endless kernel runs on a GPU that reaches it.
    fn may_unregister(&mut self) -> Option<Vec<Busy>> {
        let what = format!("{} registered bytes", self.bytes);
        let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
        let gpus = std::iter::once(&self.gpu).chain(others.iter().map(|(gpu, _)| gpu));
        gpus.map(|gpu| gpu.may_free(&what)).collect()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let at = self.host.as_ptr().cast();
        let result = {
            // If it must not be unregistered now, the GPU keeps the memory, which must not be reused. Release the
            // permit before the owner, which may need one itself.
            let Some(_nothing) = self.may_unregister() else { return };
            self.gpu.bind().and_then(|_bound| {
                // SAFETY: it was registered, and its memory is still mapped: the owner lives.
                let result = unsafe { (self.gpu.cuda().cuMemHostUnregister)(at) };
                self.gpu.cuda().check("unregister host memory", "cuMemHostUnregister", result)
            })
        };
        match result {
            // SAFETY: this is its one drop, and it is not accessed again.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.owner) },
            Err(error) => tracing::error!("leaking memory that stays registered: {error}"),
        }
    }
}

/// # Safety
///
/// As [`Registration::memory`].
unsafe fn register(gpu: &Gpu, at: NonNull<u8>, bytes: usize, flags: u32) -> u32 {
    let flags = PORTABLE | DEVICE_MAP | flags;
    // SAFETY: the caller's.
    unsafe { (gpu.cuda().cuMemHostRegister_v2)(at.as_ptr().cast(), bytes, flags) }
}

/// Reads the first word of each page.
///
/// # Safety
///
/// The pages are mapped, and reading those words has no effect.
unsafe fn touch(at: NonNull<u8>, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: inside the caller's pages, at a page's beginning.
        unsafe { at.as_ptr().add(offset).cast::<u32>().read_volatile() };
    }
}

fn finish(
    gpu: &Arc<Gpu>,
    at: NonNull<u8>,
    bytes: usize,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<Registration> {
    let mut registration = Registration {
        gpu: gpu.clone(),
        host: at,
        address: 0,
        bytes,
        others: Mutex::new(Vec::new()),
        owner: ManuallyDrop::new(owner),
    };
    registration.address = device_pointer(gpu, at)?;
    Ok(registration)
}

/// Explains why the driver refuses registers. It uses the same result for several reasons.
fn refusal(gpu: &Gpu, result: u32) -> Error {
    let what = "let the GPU write a device's doorbells";
    match gpu.cuda().error(what, "cuMemHostRegister", result) {
        Error::Refused { what, why, .. } => {
            let fix = "run with CAP_SYS_ADMIN, or load the module nvidia with \
                       NVreg_RegistryDwords=\"PeerMappingOverride=1\"; without it a thread rings the doorbells";
            Error::Refused { what, why, fix: fix.to_owned() }
        }
        Error::Cuda { what, call, name, code, .. } => {
            let fix = "the driver takes no registers that it cannot map for the GPU (a page not there, no I/O mapping, \
                       or the IOMMU of the GPU); a thread rings the doorbells instead";
            Error::Cuda { what, call, name, code, fix: fix.to_owned() }
        }
        other => other,
    }
}
