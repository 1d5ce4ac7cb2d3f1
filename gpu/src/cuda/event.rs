//! Points in a stream's work that other streams wait for and the CPU polls.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::code;
use crate::Result;
use cudarc::driver::sys::CUevent;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A point in a stream's work, with the time when it was reached.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
    is_owned: bool,
}

// SAFETY: an event is a handle that any thread may use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that was never recorded.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Event> {
        const DEFAULT: u32 = 0;
        let _bound = gpu.bind()?;
        let mut raw: CUevent = ptr::null_mut();
        // SAFETY: it writes one handle, which is given back when the event is dropped.
        let result = unsafe { (gpu.cuda().cuEventCreate)(&mut raw, DEFAULT) };
        gpu.cuda().check("make an event", "cuEventCreate", result)?;
        Ok(Event { gpu: gpu.clone(), raw, is_owned: true })
    }

    /// Wraps another library's event (`CUevent`, `cudaEvent_t`), which outlives this.
    ///
    /// # Safety
    ///
    /// It is an event of this GPU's primary context, and lives longer than this.
    pub unsafe fn borrowed(gpu: &Arc<Gpu>, raw: *mut c_void) -> Event {
        Event { gpu: gpu.clone(), raw: raw.cast(), is_owned: false }
    }

    /// Whether everything enqueued before it is done.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Cuda`] if work in the GPU's context failed.
    pub fn is_over(&self) -> Result<bool> {
        let _bound = self.gpu.bind()?;
        // SAFETY: the event is live.
        let result = unsafe { (self.gpu.cuda().cuEventQuery)(self.raw) };
        if result == code::NOT_READY {
            return Ok(false);
        }
        self.gpu.cuda().check("look at an event", "cuEventQuery", result)?;
        Ok(true)
    }

    /// Returns the milliseconds from this to a later event, both over.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Cuda`] if either is not over or has no time.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let _bound = self.gpu.bind()?;
        let mut elapsed_ms = 0.0;
        // SAFETY: both events are live; it writes one float.
        let result =
            unsafe { (self.gpu.cuda().cuEventElapsedTime)(&mut elapsed_ms, self.raw, later.raw) };
        self.gpu.cuda().check("measure the time between events", "cuEventElapsedTime", result)?;
        Ok(elapsed_ms)
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        let Ok(_bound) = self.gpu.bind() else { return };
        // SAFETY: it was made here; work that waits for it goes on.
        let result = unsafe { (self.gpu.cuda().cuEventDestroy_v2)(self.raw) };
        if result != code::SUCCESS {
            tracing::warn!(result, "an event was not destroyed");
        }
    }
}
