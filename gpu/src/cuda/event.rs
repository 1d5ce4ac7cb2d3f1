//! Points in a stream's work that other streams wait for and the CPU polls.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::library::code;
use crate::{Error, Result};
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A point in a stream's work, with the time when it was reached.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
    kind: EventOwner,
}

#[derive(Debug)]
enum EventOwner {
    Owned,
    Borrowed,
    Cudarc { _event: Arc<CudaEvent> },
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
        Ok(Event { gpu: gpu.clone(), raw, kind: EventOwner::Owned })
    }

    /// Wraps another library's event (`CUevent`, `cudaEvent_t`), which outlives this.
    ///
    /// # Safety
    ///
    /// It is an event of this GPU's primary context or of a green context of it, and lives longer than this.
    pub unsafe fn borrowed(gpu: &Arc<Gpu>, raw: *mut c_void) -> Event {
        Event { gpu: gpu.clone(), raw: raw.cast(), kind: EventOwner::Borrowed }
    }

    /// Wraps an event of cudarc's, and keeps it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an event of another GPU, or of another context than the GPU's primary one.
    pub fn from_cudarc(gpu: &Arc<Gpu>, event: impl Into<Arc<CudaEvent>>) -> Result<Event> {
        let event = event.into();
        gpu.check_cudarc("an event", event.context())?;
        let raw = event.cu_event();
        Ok(Event { gpu: gpu.clone(), raw, kind: EventOwner::Cudarc { _event: event } })
    }

    /// Returns its handle (`CUevent`, `cudaEvent_t`) for other code, which may wait for it or record it again, and does
    /// not destroy it. Valid as long as this.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Returns whether everything enqueued before it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if work in the GPU's context failed.
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

    /// Returns whether it was last recorded in a captured stream, and so belongs to a graph. Spoils the capture if so.
    ///
    /// # Errors
    ///
    /// As [`Event::is_over`].
    pub(crate) fn is_captured(&self) -> Result<bool> {
        match self.is_over() {
            Err(Error::Cuda { code: code::CAPTURED_EVENT, .. }) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        }
    }

    /// Returns the milliseconds from this to a later event, both over.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if either is not over or has no time.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let _bound = self.gpu.bind()?;
        let mut elapsed_ms = 0.0;
        // SAFETY: both events are live; it writes one float.
        let result =
            unsafe { (self.gpu.cuda().cuEventElapsedTime)(&mut elapsed_ms, self.raw, later.raw) };
        self.gpu.cuda().check("measure the time between events", "cuEventElapsedTime", result)?;
        Ok(elapsed_ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !matches!(self.kind, EventOwner::Owned) {
            return;
        }
        let Ok(_bound) = self.gpu.bind() else { return };
        // SAFETY: it was made here; CUDA lets work that waits for it continue.
        let result = unsafe { (self.gpu.cuda().cuEventDestroy_v2)(self.raw) };
        if result != code::SUCCESS {
            tracing::warn!(result, "an event was not destroyed");
        }
    }
}
