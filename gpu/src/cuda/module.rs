//! Compiled device code on the GPU, loaded whole: loading at a launch would wait behind an endless kernel.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::code;
use crate::Result;
use cudarc::driver::sys::{CUfunction, CUmodule};
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

/// A loaded CUBIN or PTX. Unloaded when dropped, which waits for its kernels; leaked behind an endless one.
#[derive(Debug)]
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    raw: CUmodule,
}

// SAFETY: a module is a handle that any thread may use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

#[derive(Clone, Debug)]
pub struct Function {
    _module: Arc<Module>,
    raw: CUfunction,
    name: &'static CStr,
}

// SAFETY: a function is a handle that any thread may use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a CUBIN, or zero-terminated PTX, from NVRTC.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Cuda`] if it is not for this GPU or this driver.
    pub(crate) fn load(gpu: &Arc<Gpu>, image: &[u8]) -> Result<Arc<Module>> {
        let _bound = gpu.bind()?;
        let mut raw: CUmodule = ptr::null_mut();
        // SAFETY: the image says its own length, or ends with a zero; it is read before the call returns.
        let result = unsafe { (gpu.cuda().cuModuleLoadData)(&mut raw, image.as_ptr().cast()) };
        gpu.cuda().check("load the device code", "cuModuleLoadData", result)?;
        Ok(Arc::new(Module { gpu: gpu.clone(), raw }))
    }

    /// Returns a kernel by its name, loaded.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Cuda`] if there is none of that name.
    pub(crate) fn function(self: &Arc<Self>, name: &'static CStr) -> Result<Function> {
        let cuda = self.gpu.cuda();
        let what = || format!("find the kernel {}", name.to_string_lossy());
        let _bound = self.gpu.bind()?;
        let mut raw: CUfunction = ptr::null_mut();
        // SAFETY: the module is loaded; it writes one handle.
        let result = unsafe { (cuda.cuModuleGetFunction)(&mut raw, self.raw, name.as_ptr()) };
        cuda.check(what(), "cuModuleGetFunction", result)?;
        // SAFETY: the function is the module's.
        let result = unsafe { (cuda.cuFuncLoad)(raw) };
        cuda.check(what(), "cuFuncLoad", result)?;
        Ok(Function { _module: self.clone(), raw, name })
    }
}

impl Function {
    pub(super) fn raw(&self) -> CUfunction {
        self.raw
    }

    /// Returns its name in the source.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or("a kernel")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Some(_nothing) = self.gpu.may_free("kernels of a module") else { return };
        let Ok(_bound) = self.gpu.bind() else { return };
        // SAFETY: it was loaded, and no function of it is left: each keeps it.
        let result = unsafe { (self.gpu.cuda().cuModuleUnload)(self.raw) };
        if result != code::SUCCESS {
            tracing::warn!(result, "a module was not unloaded");
        }
    }
}
