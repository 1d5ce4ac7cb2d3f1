//! One GPU: its properties, and its primary context, which it shares with CUDA's runtime and so with every other
//! library.
//!
//! Memory, streams and modules each keep their GPU open. Opening a GPU allocates everything that later small copies
//! need, because an allocation behind an endless kernel may wait for it.
#![allow(unsafe_code)]

use super::copier::Copier;
use super::library::{self, Cuda, code};
use crate::{Error, Result};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute as Attribute, CUstream};
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Whether the CPU can map its dma-bufs (known from CUDA 13.3 on; newer headers name it).
const DMA_BUF_MMAP_SUPPORTED: u32 = 152;
/// Hardware queues that streams share unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise.
const CONNECTIONS_DEFAULT: u32 = 8;

/// Looks at work of the GPU before the thread sleeps between them.
pub(crate) const QUICK_LOOKS: u32 = 256;
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// The open GPUs: opening one twice would allocate again, behind whatever runs.
static OPEN: Mutex<Vec<(CUdevice, Weak<Gpu>)>> = Mutex::new(Vec::new());

/// An open GPU: `Gpu::open(0)`.
#[derive(Debug)]
pub struct Gpu {
    cuda: &'static Cuda,
    device: CUdevice,
    context: CUcontext,
    info: GpuInfo,
    copier: Mutex<Copier>,
}

// SAFETY: the driver's functions may be called from any thread; a context is a handle.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Properties of a GPU.
#[derive(Clone, Debug)]
pub struct GpuInfo {
    /// Its number, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves.
    pub ordinal: u32,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Major and minor: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// The newest CUDA that the driver supports: 13000 is 13.0.
    pub driver_version: u32,
    /// Number of streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Its PCIe address, as in sysfs: `0000:3b:00.0`.
    pub pci_address: String,
    /// Its capabilities.
    pub attributes: Attributes,
}

/// The capabilities of a GPU that this crate uses.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// It shares one address space with the CPU.
    pub unified_addressing: bool,
    /// It can access pinned host memory.
    pub can_map_host_memory: bool,
    /// Foreign memory can be registered for it.
    pub host_register: bool,
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// The CPU can map that dma-buf; `None` if the driver cannot tell (before CUDA 13.3).
    pub dma_buf_mmap: Option<bool>,
    /// PCIe devices can access its memory.
    pub gpu_direct_rdma: bool,
    /// Observers that see PCIe devices' writes to its memory in order: 0 none, 100 the GPU, 200 other GPUs as well.
    pub rdma_writes_ordering: i32,
    /// How to flush such writes: bit 0 by a call, bit 1 by a wait in a stream.
    pub flush_writes: u32,
    /// It can access ordinary host memory.
    pub pageable_memory_access: bool,
    /// It does so through the CPU's page tables: a coherent platform, where the CPU accesses GPU memory likewise.
    pub host_page_tables: bool,
    /// PCIe devices can access memory allocated in granules.
    pub vmm_rdma: bool,
    /// Streams can flush PCIe writes when they wait for a word.
    pub stream_flush: bool,
    /// It has no memory of its own.
    pub integrated: bool,
    /// Hardware queues for streams (`CUDA_DEVICE_MAX_CONNECTIONS`, 8 unless set): with more streams, one may wait
    /// behind another's kernel.
    pub connections: u32,
}

/// The GPU that PCIe devices write to sees their writes in order (`rdma_writes_ordering`).
const ORDERED_FOR_OWNER: i32 = 100;

impl Attributes {
    /// Returns whether the GPU sees PCIe devices' writes to its memory in order. Otherwise it may see a completion
    /// before the data, wherever the completion lies.
    pub fn orders_writes(&self) -> bool {
        self.rdma_writes_ordering >= ORDERED_FOR_OWNER
    }
}

/// Keeps our context current on this thread; dropping it restores the previous one.
pub(crate) struct Bound<'a> {
    gpu: &'a Gpu,
    pushed: bool,
    not_send: PhantomData<*const ()>,
}

impl Gpu {
    /// Returns the number of GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if there is no driver, a driver too old, or no GPU.
    pub fn count() -> Result<u32> {
        count(library::cuda()?)
    }

    /// Opens a GPU by its number, from 0, or shares it if open.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] as [`Gpu::count`]; [`Error::Invalid`] if there are fewer; [`Error::Cuda`].
    pub fn open(ordinal: u32) -> Result<Arc<Gpu>> {
        let cuda = library::cuda()?;
        let count = count(cuda)?;
        if ordinal >= count {
            return Err(Error::invalid(
                format!("GPU {ordinal}"),
                format!("there are {count}, numbered from 0"),
            ));
        }
        let mut device: CUdevice = 0;
        // SAFETY: it writes one device number.
        let result = unsafe { (cuda.cuDeviceGet)(&mut device, ordinal as c_int) };
        cuda.check(format_args!("open GPU {ordinal}"), "cuDeviceGet", result)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let there = open.iter().filter(|(other, _)| *other == device);
        if let Some(gpu) = there.filter_map(|(_, gpu)| gpu.upgrade()).next() {
            return Ok(gpu);
        }
        let gpu = Arc::new(Gpu::make(cuda, device, ordinal)?);
        open.retain(|(_, gpu)| gpu.strong_count() > 0);
        open.push((device, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    fn make(cuda: &'static Cuda, device: CUdevice, ordinal: u32) -> Result<Gpu> {
        let info = info(cuda, device, ordinal)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: it writes one handle, which is given back when the GPU is dropped.
        let result = unsafe { (cuda.cuDevicePrimaryCtxRetain)(&mut context, device) };
        cuda.check(format_args!("open GPU {ordinal}"), "cuDevicePrimaryCtxRetain", result)?;
        let gpu = Gpu { cuda, device, context, info, copier: Mutex::new(Copier::none()) };
        gpu.with_copier(|copier| copier.prepare(&gpu))?;
        Ok(gpu)
    }

    /// Returns its properties.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    pub(crate) fn cuda(&self) -> &'static Cuda {
        self.cuda
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// Checks that an object of cudarc's is of this GPU's primary context.
    pub(super) fn check_cudarc(&self, what: &str, context: &CudaContext) -> Result<()> {
        if context.cu_ctx() == self.context {
            return Ok(());
        }
        let what = format!("{what} of cudarc's context of GPU {}", context.ordinal());
        Err(Error::invalid(what, format!("use one of GPU {}'s primary context", self.info.ordinal)))
    }

    /// Makes its context current on this thread for the lifetime of the result.
    pub(crate) fn bind(&self) -> Result<Bound<'_>> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let result = unsafe { (self.cuda.cuCtxGetCurrent)(&mut current) };
        self.cuda.check("look at the current context", "cuCtxGetCurrent", result)?;
        let pushed = current != self.context;
        if pushed {
            // SAFETY: the context is retained while `self` lives.
            let result = unsafe { (self.cuda.cuCtxPushCurrent_v2)(self.context) };
            self.cuda.check("make the GPU's context current", "cuCtxPushCurrent", result)?;
        }
        Ok(Bound { gpu: self, pushed, not_send: PhantomData })
    }

    /// Runs `copy` with the copier, one user at a time.
    pub(super) fn with_copier<T>(&self, copy: impl FnOnce(&mut Copier) -> Result<T>) -> Result<T> {
        // A panic may have left an unfinished copy, which the copier tracks.
        let mut copier = self.copier.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        copy(&mut copier)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _ = self.with_copier(|copier| {
            copier.release(self);
            Ok(())
        });
        // SAFETY: it was retained by `open`, and nothing that used it is left: each of those kept the GPU.
        let result = unsafe { (self.cuda.cuDevicePrimaryCtxRelease_v2)(self.device) };
        if result != code::SUCCESS {
            tracing::warn!(result, "cuDevicePrimaryCtxRelease");
        }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped: CUcontext = std::ptr::null_mut();
            // SAFETY: this thread pushed it: a `Bound` stays on its thread, and they end in reverse order.
            let result = unsafe { (self.gpu.cuda.cuCtxPopCurrent_v2)(&mut popped) };
            debug_assert_eq!(result, code::SUCCESS, "it was pushed");
        }
    }
}

/// Makes PCIe devices' writes to the GPU's memory visible to it, on platforms that do not order them.
///
/// # Errors
///
/// [`Error::Unavailable`] if the driver cannot; [`Error::Cuda`].
pub(crate) fn flush_rdma_writes(gpu: &Gpu) -> Result<()> {
    const CURRENT_CONTEXT: u32 = 0;
    const TO_OWNER: u32 = 100;
    let what = "flush the writes of PCIe devices to the GPU's memory";
    let Some(flush) = gpu.cuda.cuFlushGPUDirectRDMAWrites else {
        return Err(Error::unavailable(
            what,
            "the driver has no cuFlushGPUDirectRDMAWrites",
            "install a newer driver",
        ));
    };
    let _bound = gpu.bind()?;
    // SAFETY: it takes two numbers.
    let result = unsafe { flush(CURRENT_CONTEXT, TO_OWNER) };
    gpu.cuda.check(what, "cuFlushGPUDirectRDMAWrites", result)
}

/// Polls a stream until its work is done or the time is over; returns whether it is done. The GPU's context must be
/// current.
pub(super) fn poll_stream(gpu: &Gpu, stream: CUstream, timeout: Duration) -> Result<bool> {
    poll_until(timeout, || is_idle(gpu, stream))
}

/// Looks whether work is over until it is, or the time is; returns whether it is. The thread yields after each of the
/// first looks and then sleeps between them.
pub(crate) fn poll_until(
    timeout: Duration,
    mut is_over: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let begun = Instant::now();
    for look in 0_u32.. {
        if is_over()? {
            return Ok(true);
        }
        if begun.elapsed() >= timeout {
            break;
        }
        if look < QUICK_LOOKS {
            std::thread::yield_now()
        } else {
            std::thread::sleep(LOOK_INTERVAL)
        }
    }
    Ok(false)
}

/// Returns whether a stream's work is done; the GPU's context must be current.
pub(super) fn is_idle(gpu: &Gpu, stream: CUstream) -> Result<bool> {
    // SAFETY: the stream is live.
    let result = unsafe { (gpu.cuda().cuStreamQuery)(stream) };
    if result == code::NOT_READY {
        return Ok(false);
    }
    gpu.cuda().check("do a stream's work", "cuStreamQuery", result)?;
    Ok(true)
}

fn count(cuda: &Cuda) -> Result<u32> {
    let mut count: c_int = 0;
    // SAFETY: it writes one int.
    let result = unsafe { (cuda.cuDeviceGetCount)(&mut count) };
    cuda.check("count the GPUs", "cuDeviceGetCount", result)?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(cuda.error("count the GPUs", "cuDeviceGetCount", code::NO_DEVICE)),
    }
}

fn info(cuda: &Cuda, device: CUdevice, ordinal: u32) -> Result<GpuInfo> {
    let ask = |which: Attribute| attribute(cuda, device, which as u32);
    let number = |which| ask(which).map(|value| u32::try_from(value).unwrap_or(0));
    let mut memory_bytes = 0;
    // SAFETY: it writes one size.
    let result = unsafe { (cuda.cuDeviceTotalMem_v2)(&mut memory_bytes, device) };
    cuda.check("ask the size of the GPU's memory", "cuDeviceTotalMem", result)?;
    Ok(GpuInfo {
        ordinal,
        name: text(cuda, device, cuda.cuDeviceGetName, "cuDeviceGetName")?,
        compute_capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver_version: cuda.driver_version()?,
        sm_count: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory_bytes as u64,
        pci_address: text(cuda, device, cuda.cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId")?
            .to_lowercase(),
        attributes: attributes(cuda, device)?,
    })
}

fn attributes(cuda: &Cuda, device: CUdevice) -> Result<Attributes> {
    let number = |which: Attribute| attribute(cuda, device, which as u32);
    let flag = |which| number(which).map(|value| value != 0);
    let flush = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
    Ok(Attributes {
        unified_addressing: flag(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?,
        can_map_host_memory: flag(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)?,
        host_register: flag(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?,
        dma_buf: flag(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
        dma_buf_mmap: attribute(cuda, device, DMA_BUF_MMAP_SUPPORTED).ok().map(|value| value != 0),
        gpu_direct_rdma: flag(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
        rdma_writes_ordering: number(
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
        )?,
        flush_writes: u32::try_from(flush).unwrap_or(0),
        pageable_memory_access: flag(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)?,
        host_page_tables: flag(
            Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        )?,
        vmm_rdma: flag(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        stream_flush: flag(Attribute::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)?,
        integrated: flag(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)?,
        connections: connections(std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().as_deref()),
    })
}

/// Parses the number of hardware queues that the driver creates for streams: 1 to 32, 8 by default.
fn connections(variable: Option<&str>) -> u32 {
    let number = variable.and_then(|text| text.trim().parse().ok());
    number.filter(|number| (1..=32).contains(number)).unwrap_or(CONNECTIONS_DEFAULT)
}

fn attribute(cuda: &Cuda, device: CUdevice, which: u32) -> Result<i32> {
    let mut value: c_int = 0;
    // SAFETY: it writes one int; the driver refuses attributes that it does not know.
    let result = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, which, device) };
    cuda.check(format_args!("ask attribute {which} of the GPU"), "cuDeviceGetAttribute", result)?;
    Ok(value)
}

type TextFunction = unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> u32;

fn text(
    cuda: &Cuda,
    device: CUdevice,
    function: TextFunction,
    call: &'static str,
) -> Result<String> {
    let mut bytes = [0u8; 256];
    // SAFETY: it writes at most the number of bytes passed; the last stays zero.
    let result = unsafe { function(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1, device) };
    cuda.check("ask what the GPU is", call, result)?;
    let text = CStr::from_bytes_until_nul(&bytes).expect("the last byte is zero");
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_as_many_queues_as_the_environment_says_within_the_hardwares() {
        for (variable, count) in
            [(None, 8), (Some("32"), 32), (Some(" 1 "), 1), (Some("33"), 8), (Some("x"), 8)]
        {
            assert_eq!(connections(variable), count, "{variable:?}");
        }
    }
}
