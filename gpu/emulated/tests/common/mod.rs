//! Helpers of the emulated driver's tests: the driver through cudarc's bindings, a context, small wrappers.
//!
//! The process has one driver, so a test holds [`Gpu`] for as long as it uses it, which also restores the settings.
#![allow(unsafe_code)]
#![allow(dead_code)]

use adit_gpu_emulated as emulated;
use cudarc::driver::sys::{
    self, CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream,
};
use cudarc::nvrtc::sys as nvrtc;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

pub(crate) use CUresult::CUDA_SUCCESS as SUCCESS;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A device with a current context and the test's settings.
pub(crate) struct Gpu {
    pub(crate) context: CUcontext,
    alone: Option<MutexGuard<'static, ()>>,
}

impl Gpu {
    pub(crate) fn with(settings: &str) -> Gpu {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        emulated::load();
        emulated::set(settings);
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: they write one pointer.
        unsafe {
            assert_eq!(sys::cuInit(0), SUCCESS);
            assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
            assert_eq!(sys::cuCtxSetCurrent(context), SUCCESS);
        }
        Gpu { context, alone: Some(alone) }
    }

    /// Releases the context; the driver stays the caller's alone while it holds the result.
    pub(crate) fn close(mut self) -> MutexGuard<'static, ()> {
        self.alone.take().expect("a GPU is closed once")
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<CUdeviceptr, CUresult> {
        let mut address = 0;
        // SAFETY: it writes one address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        if result == SUCCESS { Ok(address) } else { Err(result) }
    }

    pub(crate) fn free(&self, address: CUdeviceptr) -> CUresult {
        // SAFETY: the driver knows what it allocated.
        unsafe { sys::cuMemFree_v2(address) }
    }

    pub(crate) fn write(&self, to: CUdeviceptr, bytes: &[u8]) -> CUresult {
        // SAFETY: it reads the bytes.
        unsafe { sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub(crate) fn read(&self, from: CUdeviceptr, bytes: usize) -> Result<Vec<u8>, CUresult> {
        let mut into = vec![0; bytes];
        // SAFETY: it writes as many bytes.
        let result = unsafe { sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), from, bytes) };
        if result == SUCCESS { Ok(into) } else { Err(result) }
    }

    pub(crate) fn word(&self, at: CUdeviceptr) -> u32 {
        u32::from_le_bytes(self.read(at, 4).expect("it is live").try_into().expect("four bytes"))
    }

    /// Creates a stream outside the default stream's order.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream_of(1)
    }

    pub(crate) fn stream_of(&self, flags: u32) -> CUstream {
        let mut stream: CUstream = ptr::null_mut();
        // SAFETY: it writes one handle.
        assert_eq!(unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, 0) }, SUCCESS);
        stream
    }

    pub(crate) fn event(&self) -> CUevent {
        let mut event: CUevent = ptr::null_mut();
        // SAFETY: it writes one handle.
        assert_eq!(unsafe { sys::cuEventCreate(&mut event, 0) }, SUCCESS);
        event
    }

    /// Compiles device code that includes the kernels, and loads it.
    pub(crate) fn module(&self) -> CUmodule {
        self.load(&compile("sm_90").expect("it compiles")).expect("it is for this GPU")
    }

    pub(crate) fn load(&self, image: &[u8]) -> Result<CUmodule, CUresult> {
        let mut module: CUmodule = ptr::null_mut();
        // SAFETY: it reads the image, which ends with a zero.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        if result == SUCCESS { Ok(module) } else { Err(result) }
    }

    pub(crate) fn function(&self, module: CUmodule, name: &CStr) -> Result<CUfunction, CUresult> {
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: it writes one handle.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        if result == SUCCESS { Ok(function) } else { Err(result) }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        emulated::set("");
        // SAFETY: it was retained once.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(0) };
    }
}

pub(crate) fn launch(
    function: CUfunction,
    blocks: u32,
    threads: u32,
    stream: CUstream,
    mut argument: u64,
) -> CUresult {
    let mut parameters: [*mut c_void; 1] = [(&raw mut argument).cast()];
    // SAFETY: the kernel takes one 64-bit argument, which is copied before the call returns.
    unsafe {
        sys::cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            parameters.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
}

/// Compiles a program of the device code with the emulated NVRTC; returns its CUBIN, or the failure.
pub(crate) fn compile(architecture: &str) -> Result<Vec<u8>, nvrtc::nvrtcResult> {
    compile_source("#include \"kernels.cu\"\n", &device_code(), architecture)
}

fn device_code() -> Vec<(String, String)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../device");
    let files = std::fs::read_dir(directory).expect("the device code is there");
    let files =
        files.filter_map(|file| file.ok().map(|file| file.path())).filter(|path| path.is_file());
    let named = files.map(|path| {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("source is text"))
    });
    named.collect()
}

pub(crate) fn compile_source(
    source: &str,
    headers: &[(String, String)],
    architecture: &str,
) -> Result<Vec<u8>, nvrtc::nvrtcResult> {
    let text = |text: &str| CString::new(text).expect("source has no zero byte");
    let names: Vec<CString> = headers.iter().map(|(name, _)| text(name)).collect();
    let texts: Vec<CString> = headers.iter().map(|(_, code)| text(code)).collect();
    let pointers = |all: &[CString]| all.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let (names, texts) = ((pointers(&names), names), (pointers(&texts), texts));
    let (source, option) = (text(source), text(&format!("--gpu-architecture={architecture}")));
    let mut program: nvrtc::nvrtcProgram = ptr::null_mut();
    // SAFETY: all texts end with zeroes and live until the end; sizes are as the library says.
    unsafe {
        let count = headers.len() as i32;
        nvrtc::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            c"test.cu".as_ptr(),
            count,
            texts.0.as_ptr(),
            names.0.as_ptr(),
        );
        let result = nvrtc::nvrtcCompileProgram(program, 1, [option.as_ptr()].as_ptr());
        let mut bytes = 0;
        nvrtc::nvrtcGetCUBINSize(program, &mut bytes);
        let mut image = vec![0u8; bytes];
        if result == nvrtc::nvrtcResult::NVRTC_SUCCESS {
            nvrtc::nvrtcGetCUBIN(program, image.as_mut_ptr().cast());
        }
        nvrtc::nvrtcDestroyProgram(&mut program);
        if result == nvrtc::nvrtcResult::NVRTC_SUCCESS { Ok(image) } else { Err(result) }
    }
}
