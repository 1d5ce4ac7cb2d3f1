//! GPU memory, and CPU memory pinned for it.
//!
//! Freeing either waits for every kernel of the GPU, so memory behind an endless kernel is leaked (`running`). Memory
//! must not be freed while a controller may still write it: unmap it from controllers before dropping it.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::code;
use crate::{Error, Result};
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Flags of `cuMemHostAlloc` and `cuMemHostRegister`: visible to every context, with an address for the GPU.
pub(super) const PORTABLE: u32 = 1;
pub(super) const DEVICE_MAP: u32 = 2;
/// `cuPointerSetAttribute`: synchronous copies of this memory have ended when they return, also for PCIe devices.
const SYNC_MEMOPS: u32 = 6;
const DMA_BUF_FD: u32 = 1;
const GRANULARITY_RECOMMENDED: u32 = 1;

/// GPU memory, freed when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: CUdeviceptr,
    bytes: u64,
    kind: MemoryOrigin,
}

#[derive(Debug)]
enum MemoryOrigin {
    /// By `cuMemAlloc`.
    Plain,
    /// Mapped from an allocation of whole granules.
    Granules(CUmemGenericAllocationHandle),
    /// Foreign memory, freed by its owner.
    Borrowed,
}

impl DeviceMemory {
    /// Allocates memory for the GPU alone, not zeroed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for zero bytes; [`Error::Cuda`], `CUDA_ERROR_OUT_OF_MEMORY` among them.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<DeviceMemory> {
        something(bytes)?;
        let _bound = gpu.bind()?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: it writes one address, which is freed when the memory is dropped.
        let result = unsafe { (gpu.cuda().cuMemAlloc_v2)(&mut address, bytes as usize) };
        gpu.cuda().check(allocating(bytes), "cuMemAlloc", result)?;
        let memory = DeviceMemory { gpu: gpu.clone(), address, bytes, kind: MemoryOrigin::Plain };
        memory.order_copies()?;
        Ok(memory)
    }

    /// Allocates memory for the GPU alone, zeroed.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::allocate`] and [`DeviceMemory::write`].
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: u64) -> Result<DeviceMemory> {
        let memory = DeviceMemory::allocate(gpu, bytes)?;
        memory.zero()?;
        Ok(memory)
    }

    /// Allocates memory that may be exposed to PCIe devices, in whole granules (2 MiB), so that few mappings cover it.
    /// Not zeroed.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the GPU has no such memory; otherwise as [`DeviceMemory::allocate`].
    pub fn exportable(gpu: &Arc<Gpu>, bytes: u64) -> Result<DeviceMemory> {
        something(bytes)?;
        if !gpu.info().attributes.vmm_rdma {
            let why = "PCIe devices cannot reach granules of this GPU (attribute 110)";
            return Err(Error::unavailable(
                "exportable memory of the GPU",
                why,
                "use pinned host memory",
            ));
        }
        let _bound = gpu.bind()?;
        let properties = properties(gpu);
        let granule = granule(gpu, &properties)?;
        let Some(bytes) = bytes.checked_next_multiple_of(granule) else {
            return Err(Error::invalid(allocating(bytes), "more than there are addresses"));
        };
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: it reads the properties and writes one handle.
        let result =
            unsafe { (gpu.cuda().cuMemCreate)(&mut handle, bytes as usize, &properties, 0) };
        gpu.cuda().check(allocating(bytes), "cuMemCreate", result)?;
        let mapped = map(gpu, handle, bytes, granule, &properties);
        if mapped.is_err() {
            // SAFETY: nothing is mapped from it.
            unsafe { (gpu.cuda().cuMemRelease)(handle) };
        }
        let kind = MemoryOrigin::Granules(handle);
        let memory = DeviceMemory { gpu: gpu.clone(), address: mapped?, bytes, kind };
        memory.order_copies()?;
        Ok(memory)
    }

    /// Wraps memory that another owner allocated and frees.
    ///
    /// # Safety
    ///
    /// `bytes` at `address` are memory of this GPU's for as long as this lives.
    pub unsafe fn borrowed(gpu: &Arc<Gpu>, address: u64, bytes: u64) -> DeviceMemory {
        DeviceMemory { gpu: gpu.clone(), address, bytes, kind: MemoryOrigin::Borrowed }
    }

    /// Makes synchronous copies of the memory end before their call returns, also as PCIe devices see it.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] for memory without this attribute, such as that of a stream-ordered pool.
    pub(crate) fn order_copies(&self) -> Result<()> {
        let (cuda, yes, _bound) = (self.gpu.cuda(), 1u32, self.gpu.bind()?);
        // SAFETY: the attribute is an unsigned int, which it reads.
        let result = unsafe {
            (cuda.cuPointerSetAttribute)((&raw const yes).cast(), SYNC_MEMOPS, self.address)
        };
        cuda.check("order copies of the GPU's memory", "cuPointerSetAttribute", result)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes; exportable memory may exceed the request by up to a granule.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn zero(&self) -> Result<()> {
        self.gpu.with_copier(|copier| copier.zero(&self.gpu, self.address, self.bytes))
    }

    /// Copies `bytes` to `offset` synchronously.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside the memory; [`Error::TimedOut`]; [`Error::Cuda`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.inside(offset, bytes.len())?;
        self.gpu.with_copier(|copier| copier.write(&self.gpu, at, bytes))
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.inside(offset, bytes.len())?;
        self.gpu.with_copier(|copier| copier.read(&self.gpu, at, bytes))
    }

    /// Exports all of it as a dma-buf. Both ends must lie at page boundaries.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the GPU or its driver cannot; [`Error::Cuda`] if this memory cannot be exported.
    pub fn dma_buf(&self) -> Result<OwnedFd> {
        let what = "a dma-buf of the GPU's memory";
        let fix =
            "install the open kernel modules of driver 525 or newer, or use pinned host memory";
        let Some(export) = self.gpu.cuda().cuMemGetHandleForAddressRange else {
            return Err(Error::unavailable(
                what,
                "the driver has no cuMemGetHandleForAddressRange",
                fix,
            ));
        };
        if !self.gpu.info().attributes.dma_buf {
            return Err(Error::unavailable(what, "the GPU cannot export it (attribute 124)", fix));
        }
        let _bound = self.gpu.bind()?;
        let mut fd: c_int = -1;
        // SAFETY: for this kind of handle it writes one int.
        let result = unsafe {
            export((&raw mut fd).cast(), self.address, self.bytes as usize, DMA_BUF_FD, 0)
        };
        self.gpu.cuda().check(what, "cuMemGetHandleForAddressRange", result)?;
        if fd < 0 {
            return Err(Error::unavailable(what, "the driver gave no file", fix));
        }
        // SAFETY: the driver has made it for us; it has no other owner.
        Ok(unsafe { File::from_raw_fd(fd) }.into())
    }

    fn inside(&self, offset: u64, bytes: usize) -> Result<u64> {
        inside(offset, bytes as u64, self.bytes)?;
        Ok(self.address + offset)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if matches!(self.kind, MemoryOrigin::Borrowed) {
            return;
        }
        let what = format_args!("{} bytes of the GPU's memory", self.bytes);
        let Some(_nothing) = self.gpu.may_free(what) else { return };
        let Ok(_bound) = self.gpu.bind() else { return };
        let cuda = self.gpu.cuda();
        let result = match self.kind {
            // SAFETY: it was allocated, and only here is it freed.
            MemoryOrigin::Plain => unsafe { (cuda.cuMemFree_v2)(self.address) },
            MemoryOrigin::Borrowed => code::SUCCESS,
            MemoryOrigin::Granules(handle) => unmap(&self.gpu, handle, self.address, self.bytes),
        };
        if result != code::SUCCESS {
            tracing::warn!(result, bytes = self.bytes, "memory of the GPU was not freed");
        }
    }
}

/// Pinned, zeroed CPU memory that the GPU can access, freed when dropped.
#[derive(Debug)]
pub struct PinnedMemory {
    gpu: Arc<Gpu>,
    host: NonNull<u8>,
    address: CUdeviceptr,
    bytes: u64,
}

// SAFETY: it is memory that belongs to this; what others do with its address is theirs to answer for.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared access is by atomics.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates memory that is cached for the CPU, never write-combined, which the CPU reads slowly.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for zero bytes; [`Error::Cuda`].
    pub fn allocate(gpu: &Arc<Gpu>, bytes: u64) -> Result<PinnedMemory> {
        something(bytes)?;
        let _bound = gpu.bind()?;
        let cuda = gpu.cuda();
        let mut host: *mut c_void = ptr::null_mut();
        // SAFETY: it writes one pointer, which is freed when the memory is dropped.
        let result =
            unsafe { (cuda.cuMemHostAlloc)(&mut host, bytes as usize, PORTABLE | DEVICE_MAP) };
        cuda.check(
            format_args!("allocate {bytes} bytes of pinned memory"),
            "cuMemHostAlloc",
            result,
        )?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(cuda.error(
                "allocate pinned memory",
                "cuMemHostAlloc",
                code::OUT_OF_MEMORY,
            ));
        };
        let mut memory = PinnedMemory { gpu: gpu.clone(), host, address: 0, bytes };
        memory.address = device_pointer(gpu, host)?;
        // SAFETY: so many bytes are ours, and no other code knows of them yet.
        unsafe { ptr::write_bytes(host.as_ptr(), 0, bytes as usize) };
        Ok(memory)
    }

    pub fn host(&self) -> NonNull<u8> {
        self.host
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all whole words, which CPU and GPU share.
    pub fn words(&self) -> &[AtomicU32] {
        let words = self.bytes as usize / size_of::<AtomicU32>();
        // SAFETY: it is aligned (to a page), zeroed, ours, and everyone reaches it by atomics.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr().cast(), words) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let what = format_args!("{} bytes of pinned memory", self.bytes);
        let Some(_nothing) = self.gpu.may_free(what) else { return };
        let Ok(_bound) = self.gpu.bind() else { return };
        // SAFETY: it was allocated, and only here is it freed.
        let result = unsafe { (self.gpu.cuda().cuMemFreeHost)(self.host.as_ptr().cast()) };
        if result != code::SUCCESS {
            tracing::warn!(result, bytes = self.bytes, "pinned memory was not freed");
        }
    }
}

/// Returns the GPU address of pinned or registered memory.
pub(super) fn device_pointer(gpu: &Gpu, host: NonNull<u8>) -> Result<CUdeviceptr> {
    let mut address: CUdeviceptr = 0;
    // SAFETY: it writes one address.
    let result =
        unsafe { (gpu.cuda().cuMemHostGetDevicePointer_v2)(&mut address, host.as_ptr().cast(), 0) };
    gpu.cuda().check("ask where the GPU sees host memory", "cuMemHostGetDevicePointer", result)?;
    Ok(address)
}

/// Checks that `bytes` at `offset` lie inside `limit` bytes.
pub(super) fn inside(offset: u64, bytes: u64, limit: u64) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= limit) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{bytes} bytes at offset {offset}"),
        format!("the memory has {limit}"),
    ))
}

fn something(bytes: u64) -> Result<()> {
    if bytes > 0 {
        Ok(())
    } else {
        Err(Error::invalid("allocate 0 bytes", "at least one is needed"))
    }
}

fn allocating(bytes: u64) -> impl std::fmt::Display {
    std::fmt::from_fn(move |out| write!(out, "allocate {bytes} bytes of the GPU's memory"))
}

fn location(gpu: &Gpu) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.device() }
}

fn properties(gpu: &Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(gpu),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 1,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granule(gpu: &Gpu, properties: &CUmemAllocationProp) -> Result<u64> {
    let mut granule = 0;
    // SAFETY: it reads the properties and writes one size.
    let result = unsafe {
        (gpu.cuda().cuMemGetAllocationGranularity)(
            &mut granule,
            properties,
            GRANULARITY_RECOMMENDED,
        )
    };
    gpu.cuda().check("ask the size of a granule", "cuMemGetAllocationGranularity", result)?;
    Ok((granule as u64).max(1))
}

/// Maps an allocation to an address that the GPU may read and write.
fn map(
    gpu: &Gpu,
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
    granule: u64,
    properties: &CUmemAllocationProp,
) -> Result<CUdeviceptr> {
    let cuda = gpu.cuda();
    let size = bytes as usize;
    let mut address: CUdeviceptr = 0;
    // SAFETY: it writes one address, of addresses that are given back below or by `unmap`.
    let result = unsafe { (cuda.cuMemAddressReserve)(&mut address, size, granule as usize, 0, 0) };
    cuda.check("reserve addresses of the GPU", "cuMemAddressReserve", result)?;
    // SAFETY: the addresses are ours, and the allocation has as many bytes.
    let result = unsafe { (cuda.cuMemMap)(address, size, 0, handle, 0) };
    if let Err(error) = cuda.check("map the GPU's memory", "cuMemMap", result) {
        // SAFETY: nothing is mapped there.
        unsafe { (cuda.cuMemAddressFree)(address, size) };
        return Err(error);
    }
    let access = CUmemAccessDesc {
        location: properties.location,
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: it reads one description.
    let result = unsafe { (cuda.cuMemSetAccess)(address, size, &access, 1) };
    if let Err(error) = cuda.check("let the GPU use its memory", "cuMemSetAccess", result) {
        // SAFETY: it is mapped, and no other code knows of it.
        unsafe {
            (cuda.cuMemUnmap)(address, size);
            (cuda.cuMemAddressFree)(address, size);
        }
        return Err(error);
    }
    Ok(address)
}

/// Undoes `map` and frees the allocation; returns the first failure.
fn unmap(gpu: &Gpu, handle: CUmemGenericAllocationHandle, address: CUdeviceptr, bytes: u64) -> u32 {
    let cuda = gpu.cuda();
    // SAFETY: it was mapped from the allocation, and nothing uses it any more.
    let results = unsafe {
        [
            (cuda.cuMemUnmap)(address, bytes as usize),
            (cuda.cuMemAddressFree)(address, bytes as usize),
            (cuda.cuMemRelease)(handle),
        ]
    };
    results.into_iter().find(|&result| result != code::SUCCESS).unwrap_or(code::SUCCESS)
}
