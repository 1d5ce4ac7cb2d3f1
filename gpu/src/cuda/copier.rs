//! Small synchronous copies between CPU and GPU memory, through a pinned buffer on a dedicated stream.
//!
//! Opening the GPU creates the buffer and the stream and does a first fill. A copy that does not end in time leaves the
//! buffer to the GPU; the next copy waits for it first.
#![allow(unsafe_code)]

use super::gpu::{Gpu, poll_stream};
use super::library::{NON_BLOCKING, code};
use crate::{Error, Result};
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

const BUFFER_BYTES: usize = 256 << 10;
/// More than any such copy takes; less than a person waits.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The buffer and the stream; null before `prepare`.
#[derive(Debug)]
pub(super) struct Copier {
    stream: CUstream,
    buffer: *mut c_void,
}

// SAFETY: the buffer belongs to this alone, and a stream's handle may be used by any thread.
unsafe impl Send for Copier {}

impl Copier {
    pub(super) fn none() -> Copier {
        Copier { stream: ptr::null_mut(), buffer: ptr::null_mut() }
    }

    pub(super) fn prepare(&mut self, gpu: &Gpu) -> Result<()> {
        let _bound = gpu.bind()?;
        // SAFETY: it writes one handle, which `release` gives back.
        let result =
            unsafe { (gpu.cuda().cuStreamCreateWithPriority)(&mut self.stream, NON_BLOCKING, 0) };
        gpu.cuda().check("make a stream for copies", "cuStreamCreateWithPriority", result)?;
        // SAFETY: it writes one pointer, which `release` gives back.
        let result = unsafe { (gpu.cuda().cuMemHostAlloc)(&mut self.buffer, BUFFER_BYTES, 0) };
        gpu.cuda().check("allocate a pinned buffer for copies", "cuMemHostAlloc", result)?;
        // The driver fills with its own kernel, loaded on first use, which could later wait for one of ours.
        self.zero(gpu, self.buffer as u64, BUFFER_BYTES as u64)
    }

    /// Releases everything. Leaks what a copy still uses.
    pub(super) fn release(&mut self, gpu: &Gpu) {
        let Ok(_bound) = gpu.bind() else { return };
        if self.stream.is_null() {
            return;
        }
        // SAFETY: the stream is ours, and the buffer is freed only when no copy uses it.
        unsafe {
            let is_idle = (gpu.cuda().cuStreamQuery)(self.stream) != code::NOT_READY;
            (gpu.cuda().cuStreamDestroy_v2)(self.stream);
            let nothing = gpu.may_free(format_args!("{BUFFER_BYTES} bytes of pinned memory"));
            if is_idle && !self.buffer.is_null() && nothing.is_some() {
                (gpu.cuda().cuMemFreeHost)(self.buffer);
            }
        }
        *self = Copier::none();
    }

    pub(super) fn write(&mut self, gpu: &Gpu, to: u64, bytes: &[u8]) -> Result<()> {
        let _bound = gpu.bind()?;
        for (index, chunk) in bytes.chunks(BUFFER_BYTES).enumerate() {
            self.wait(gpu)?;
            // SAFETY: the buffer has room for a chunk, and no copy uses it.
            unsafe { ptr::copy_nonoverlapping(chunk.as_ptr(), self.buffer.cast(), chunk.len()) };
            self.copy(gpu, to + (index * BUFFER_BYTES) as u64, self.buffer as u64, chunk.len())?;
        }
        self.wait(gpu)
    }

    pub(super) fn read(&mut self, gpu: &Gpu, from: u64, bytes: &mut [u8]) -> Result<()> {
        let _bound = gpu.bind()?;
        for (index, chunk) in bytes.chunks_mut(BUFFER_BYTES).enumerate() {
            self.wait(gpu)?;
            self.copy(gpu, self.buffer as u64, from + (index * BUFFER_BYTES) as u64, chunk.len())?;
            self.wait(gpu)?;
            // SAFETY: the copy into the buffer has ended, and it has a chunk's bytes.
            unsafe {
                ptr::copy_nonoverlapping(self.buffer.cast(), chunk.as_mut_ptr(), chunk.len())
            };
        }
        Ok(())
    }

    pub(super) fn zero(&mut self, gpu: &Gpu, at: u64, bytes: u64) -> Result<()> {
        let _bound = gpu.bind()?;
        self.wait(gpu)?;
        // SAFETY: the caller's memory, which it keeps while we wait.
        let result = unsafe { (gpu.cuda().cuMemsetD8Async)(at, 0, bytes as usize, self.stream) };
        gpu.cuda().check("fill the GPU's memory with zeroes", "cuMemsetD8Async", result)?;
        self.wait(gpu)
    }

    fn copy(&self, gpu: &Gpu, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: one is our buffer, the other the caller's memory of the GPU, which it keeps while we wait.
        let result = unsafe { (gpu.cuda().cuMemcpyAsync)(to, from, bytes, self.stream) };
        gpu.cuda().check("copy between the CPU's memory and the GPU's", "cuMemcpyAsync", result)
    }

    fn wait(&self, gpu: &Gpu) -> Result<()> {
        if poll_stream(gpu, self.stream, TIMEOUT)? {
            return Ok(());
        }
        let fix = "see with nvidia-smi whether the GPU still works";
        Err(Error::timed_out("a copy between the CPU's memory and the GPU's", TIMEOUT, fix))
    }
}
