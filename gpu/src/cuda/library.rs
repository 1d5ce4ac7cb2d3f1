//! The CUDA driver's library: its functions, looked up once, and its results as errors.
//!
//! Results are plain numbers here, because a newer driver may return one that the bindings do not know.
#![allow(unsafe_code)]

use crate::{Error, Result};
use cudarc::driver::sys::{
    self, CUcontext, CUdevResourceDesc, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgreenCtx,
    CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUstream,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::sync::OnceLock;

/// The oldest supported driver, in terms of `cuDriverGetVersion`: CUDA 12.4.
pub(crate) const DRIVER_VERSION_MIN: u32 = 12040;

/// Not ordered with the legacy default stream.
pub(crate) const NON_BLOCKING: u32 = 1;

/// `CUdevResource` as far as all its versions agree (CUDA 12.4 on): a group of multiprocessors, written and read by the
/// driver.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Resource {
    kind: u32,
    private: [u32; 23],
    pub(crate) sm_count: u32,
    more: [u32; 11],
}
const _: () = assert!(size_of::<Resource>() == 144);

impl Resource {
    /// A resource for the driver to fill in.
    pub(crate) const NOTHING: Resource =
        Resource { kind: 0, private: [0; 23], sm_count: 0, more: [0; 11] };
}

/// Results that this crate distinguishes.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const STUB_LIBRARY: u32 = 34;
    pub(crate) const CALL_REQUIRES_NEWER_DRIVER: u32 = 36;
    pub(crate) const DEVICE_UNAVAILABLE: u32 = 46;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const NO_BINARY_FOR_GPU: u32 = 209;
    pub(crate) const ECC_UNCORRECTABLE: u32 = 214;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const UNSUPPORTED_PTX_VERSION: u32 = 222;
    pub(crate) const INVALID_IMAGE: u32 = 200;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
    pub(crate) const LAUNCH_OUT_OF_RESOURCES: u32 = 701;
    pub(crate) const LAUNCH_TIMEOUT: u32 = 702;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub(crate) const LAUNCH_FAILED: u32 = 719;
    pub(crate) const NOT_PERMITTED: u32 = 800;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const SYSTEM_NOT_READY: u32 = 802;
    pub(crate) const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub(crate) const COMPAT_NOT_SUPPORTED_ON_DEVICE: u32 = 804;
    /// The first and the last of the results about streams that are captured into graphs.
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    pub(crate) const CAPTURED_EVENT: u32 = 907;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// Makes a structure of a library's functions, each looked up by name.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $table:ident, required { $(fn $needed:ident($($needed_type:ty),*);)* }
        optional { $(fn $wanted:ident($($wanted_type:ty),*);)* }
    ) => {
        $(#[$about])*
        #[allow(non_snake_case)]
        pub(crate) struct $table {
            $(pub $needed: unsafe extern "C" fn($($needed_type),*) -> u32,)*
            $(pub $wanted: Option<unsafe extern "C" fn($($wanted_type),*) -> u32>,)*
        }

        impl ::std::fmt::Debug for $table {
            fn fmt(&self, out: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                out.write_str(stringify!($table))
            }
        }

        impl $table {
            /// Looks up all functions; fails with the name of a missing required one.
            pub(crate) fn of(library: &'static libloading::Library) -> Result<$table, &'static str> {
                // SAFETY: these are the libraries' functions by their documented names and signatures, and the library
                // is never unloaded.
                unsafe {
                    Ok($table {
                        $($needed: match library.get(stringify!($needed)) {
                            Ok(function) => *function,
                            Err(_) => return Err(stringify!($needed)),
                        },)*
                        $($wanted: library.get(stringify!($wanted)).ok().map(|function| *function),)*
                    })
                }
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The driver's functions: required ones, which every driver from 12.4 on has, and optional ones.
    Cuda, required {
        fn cuInit(c_uint);
        fn cuDriverGetVersion(*mut c_int);
        fn cuGetErrorName(u32, *mut *const c_char);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGet(*mut CUdevice, c_int);
        fn cuDeviceGetName(*mut c_char, c_int, CUdevice);
        fn cuDeviceGetAttribute(*mut c_int, u32, CUdevice);
        fn cuDeviceTotalMem_v2(*mut usize, CUdevice);
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(CUdevice);
        fn cuCtxGetCurrent(*mut CUcontext);
        fn cuCtxPushCurrent_v2(CUcontext);
        fn cuCtxPopCurrent_v2(*mut CUcontext);
        fn cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        fn cuMemAlloc_v2(*mut CUdeviceptr, usize);
        fn cuMemFree_v2(CUdeviceptr);
        fn cuPointerSetAttribute(*const c_void, u32, CUdeviceptr);
        fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        fn cuMemFreeHost(*mut c_void);
        fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        fn cuMemHostUnregister(*mut c_void);
        fn cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        fn cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, u32);
        fn cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        fn cuMemRelease(CUmemGenericAllocationHandle);
        fn cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        fn cuMemAddressFree(CUdeviceptr, usize);
        fn cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        fn cuMemUnmap(CUdeviceptr, usize);
        fn cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        fn cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fn cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        fn cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        fn cuStreamDestroy_v2(CUstream);
        fn cuStreamQuery(CUstream);
        fn cuStreamIsCapturing(CUstream, *mut u32);
        fn cuStreamWaitEvent(CUstream, CUevent, c_uint);
        fn cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
        fn cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
        fn cuEventCreate(*mut CUevent, c_uint);
        fn cuEventDestroy_v2(CUevent);
        fn cuEventRecord(CUevent, CUstream);
        fn cuEventQuery(CUevent);
        fn cuEventElapsedTime(*mut f32, CUevent, CUevent);
        fn cuModuleLoadData(*mut CUmodule, *const c_void);
        fn cuModuleUnload(CUmodule);
        fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        fn cuFuncLoad(CUfunction);
        fn cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
    }
    optional {
        fn cuMemGetHandleForAddressRange(*mut c_void, CUdeviceptr, usize, u32, c_ulonglong);
        fn cuFlushGPUDirectRDMAWrites(u32, u32);
        fn cuDeviceGetDevResource(CUdevice, *mut Resource, u32);
        fn cuDevSmResourceSplitByCount(
            *mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint
        );
        fn cuDevResourceGenerateDesc(*mut CUdevResourceDesc, *mut Resource, c_uint);
        fn cuGreenCtxCreate(*mut CUgreenCtx, CUdevResourceDesc, CUdevice, c_uint);
        fn cuGreenCtxDestroy(CUgreenCtx);
        fn cuGreenCtxStreamCreate(*mut CUstream, CUgreenCtx, c_uint, c_int);
    }
}

/// Returns the driver's functions, after checking and initialising the driver.
///
/// # Errors
///
/// [`Error::Unavailable`]: no library, a function missing, a driver too old, no GPU; the next call tries again.
pub(crate) fn cuda() -> Result<&'static Cuda> {
    let cuda = loaded()?;
    cuda.initialise()?;
    Ok(cuda)
}

/// Returns the major version of the newest CUDA that the driver supports, without a need for a GPU; `None` if there is
/// no driver.
pub(crate) fn driver_major() -> Option<u32> {
    let version = loaded().and_then(Cuda::driver_version).ok()?;
    Some(version / 1000)
}

/// Returns the driver's functions, looked up by the first caller that finds them all.
fn loaded() -> Result<&'static Cuda> {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    if let Some(cuda) = CUDA.get() {
        return Ok(cuda);
    }
    let found = find()?;
    Ok(CUDA.get_or_init(|| found))
}

fn find() -> Result<Cuda> {
    // SAFETY: loading the driver's library runs its initialisers, which is what a CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        let why = "libcuda.so.1 is not found";
        return Err(unavailable(
            why,
            "install NVIDIA's driver, or set LD_LIBRARY_PATH to where its library is",
        ));
    }
    // SAFETY: as above; it is there.
    let library = unsafe { sys::culib() };
    Cuda::of(library).map_err(|name| {
        let why = format!("the NVIDIA driver has no {name}, which CUDA 12.4 has");
        unavailable(why, "install driver 550 or newer")
    })
}

fn unavailable(why: impl ToString, fix: &str) -> Error {
    Error::unavailable("the GPU", why, fix)
}

impl Cuda {
    fn initialise(&self) -> Result<()> {
        // SAFETY: it takes no pointer; more than once is allowed.
        let result = unsafe { (self.cuInit)(0) };
        self.check("initialise CUDA", "cuInit", result)?;
        let version = self.driver_version()?;
        if version < DRIVER_VERSION_MIN {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            let why = format!(
                "the NVIDIA driver is for CUDA {major}.{minor}, and 12.4 is the oldest that will do"
            );
            return Err(unavailable(why, "install driver 550 or newer"));
        }
        Ok(())
    }

    /// Returns the newest CUDA that the driver supports: 13000 is 13.0.
    pub(crate) fn driver_version(&self) -> Result<u32> {
        let mut version: c_int = 0;
        // SAFETY: it writes one int.
        let result = unsafe { (self.cuDriverGetVersion)(&mut version) };
        self.check("ask the driver's version", "cuDriverGetVersion", result)?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// Turns a function's result into an error unless it is success.
    pub(crate) fn check(
        &self,
        what: impl fmt::Display,
        call: &'static str,
        result: u32,
    ) -> Result<()> {
        if result == code::SUCCESS { Ok(()) } else { Err(self.error(what, call, result)) }
    }

    pub(crate) fn error(&self, what: impl fmt::Display, call: &'static str, result: u32) -> Error {
        let name = self.name(result);
        match result {
            code::NO_DEVICE
            | code::STUB_LIBRARY
            | code::SYSTEM_DRIVER_MISMATCH
            | code::COMPAT_NOT_SUPPORTED_ON_DEVICE
            | code::CALL_REQUIRES_NEWER_DRIVER
            | code::SYSTEM_NOT_READY => unavailable(format!("{call} says {name}"), fix(result)),
            code::NOT_SUPPORTED => {
                Error::unavailable(what, format!("{call} says {name}"), fix(result))
            }
            code::NOT_PERMITTED => Error::refused(what, format!("{call} says {name}"), fix(result)),
            _ => Error::Cuda {
                what: what.to_string(),
                call,
                name,
                code: result,
                fix: fix(result).to_owned(),
            },
        }
    }

    /// Returns a result's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    fn name(&self, result: u32) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: it writes one pointer, to a text of the library's own that is never freed, or null.
        let asked = unsafe { (self.cuGetErrorName)(result, &mut name) };
        if asked != code::SUCCESS || name.is_null() {
            return format!("CUDA result {result}");
        }
        // SAFETY: as above: it ends with a zero and stays.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// Returns what to do about a result.
fn fix(result: u32) -> &'static str {
    match result {
        code::OUT_OF_MEMORY => {
            "ask for less, or end what else uses the memory (nvidia-smi shows the GPU's)"
        }
        code::NO_DEVICE => {
            "check with nvidia-smi that the driver sees a GPU, and look at CUDA_VISIBLE_DEVICES"
        }
        code::STUB_LIBRARY => {
            "take the stub library for linking out of LD_LIBRARY_PATH: it is not the driver"
        }
        code::CALL_REQUIRES_NEWER_DRIVER => "install a newer NVIDIA driver",
        code::SYSTEM_DRIVER_MISMATCH => {
            "the driver's library and its kernel module differ in version: reboot, or load the module that fits"
        }
        code::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "take the forward compatibility package out of LD_LIBRARY_PATH"
        }
        code::SYSTEM_NOT_READY => "start nvidia-fabricmanager, and look at its log",
        code::DEVICE_UNAVAILABLE => {
            "another process has the GPU for itself: end it, or set the compute mode to default"
        }
        code::INVALID_DEVICE => "choose one of the GPUs that nvidia-smi -L lists",
        code::NO_BINARY_FOR_GPU
        | code::INVALID_IMAGE
        | code::INVALID_PTX
        | code::UNSUPPORTED_PTX_VERSION => {
            "NVRTC is newer than the driver: use one of the driver's CUDA version, or install a newer driver"
        }
        code::HOST_MEMORY_ALREADY_REGISTERED => {
            "unregister it first, or register it once for all its users"
        }
        code::NOT_PERMITTED => "run with the capability that this needs (CAP_SYS_ADMIN)",
        code::NOT_SUPPORTED => "this GPU or its driver has no such thing",
        code::LAUNCH_OUT_OF_RESOURCES => "launch fewer warps",
        code::STREAM_CAPTURE_UNSUPPORTED..=code::CAPTURED_EVENT => {
            "a stream is being captured into a graph: do this before the capture, or after it"
        }
        code::LAUNCH_TIMEOUT => {
            "use a GPU that drives no display: those have a limit on a kernel's time"
        }
        code::ILLEGAL_ADDRESS | code::LAUNCH_FAILED | code::ECC_UNCORRECTABLE | code::UNKNOWN => {
            "the GPU's context is lost: end the process and start again, and look for NVRM lines in the kernel's log"
        }
        _ => "look the name up in the CUDA driver API's documentation of CUresult",
    }
}
