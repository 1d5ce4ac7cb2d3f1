//! Streams: work that the GPU does in order. Calls enqueue it and return.
//!
//! The parent module describes who keeps the memory that enqueued work accesses.
#![allow(unsafe_code)]

use super::event::Event;
use super::gpu::{Gpu, is_idle, poll_stream};
use super::library::{NON_BLOCKING, code};
use super::memory::{PinnedMemory, inside};
use super::module::Function;
use super::partition::GreenContext;
use crate::{Error, Result};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// The order of streams: work of a stream with a higher priority starts first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Before all others.
    High,
    /// The default of streams.
    #[default]
    Normal,
    /// After all others; on most GPUs the same as normal.
    Low,
}

/// A queue of work for the GPU.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
    kind: StreamOwner,
}

#[derive(Debug)]
enum StreamOwner {
    Owned,
    /// In a partition, which lives as long.
    Green {
        _context: Arc<GreenContext>,
    },
    Borrowed,
    Cudarc {
        _stream: Arc<CudaStream>,
    },
}

// SAFETY: a stream is a handle that any thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Returns its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Creates a stream that may use the whole GPU.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    pub fn new(gpu: &Arc<Gpu>, priority: Priority) -> Result<Stream> {
        let _bound = gpu.bind()?;
        let priority = priority.number(gpu)?;
        let mut raw: CUstream = ptr::null_mut();
        // SAFETY: it writes one handle, which is given back when the stream is dropped.
        let result =
            unsafe { (gpu.cuda().cuStreamCreateWithPriority)(&mut raw, NON_BLOCKING, priority) };
        gpu.cuda().check("make a stream", "cuStreamCreateWithPriority", result)?;
        Ok(Stream { gpu: gpu.clone(), raw, kind: StreamOwner::Owned })
    }

    /// Returns its handle (`CUstream`, `cudaStream_t`) for other code: a kernel launched in a stream of
    /// [`crate::GioUring::compute_stream`] runs on the multiprocessors that I/O leaves. Valid as long as this. Other code
    /// does not destroy the stream.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Wraps a stream of cudarc's, and keeps it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a stream of another GPU, or of another context than the GPU's primary one.
    pub fn from_cudarc(gpu: &Arc<Gpu>, stream: &Arc<CudaStream>) -> Result<Stream> {
        gpu.check_cudarc("a stream", stream.context())?;
        let kind = StreamOwner::Cudarc { _stream: Arc::clone(stream) };
        Ok(Stream { gpu: gpu.clone(), raw: stream.cu_stream(), kind })
    }

    /// Wraps another library's stream (`CUstream`, `cudaStream_t`; null is the default one), which outlives this.
    ///
    /// # Safety
    ///
    /// It is a stream of this GPU's primary context or of a green context of it, and lives longer than this. Its owner
    /// may go on to use it; what this crate enqueues there takes its turn.
    pub unsafe fn borrowed(gpu: &Arc<Gpu>, raw: *mut c_void) -> Stream {
        Stream { gpu: gpu.clone(), raw: raw.cast(), kind: StreamOwner::Borrowed }
    }

    /// Wraps a stream that a partition created.
    pub(super) fn green(gpu: &Arc<Gpu>, raw: CUstream, context: Arc<GreenContext>) -> Stream {
        Stream { gpu: gpu.clone(), raw, kind: StreamOwner::Green { _context: context } }
    }

    /// Makes later work wait until the event is over. An event that was never recorded is over.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        let _bound = self.gpu.bind()?;
        let raw = event.raw().cast();
        // SAFETY: stream and event are live.
        let result = unsafe { (self.gpu.cuda().cuStreamWaitEvent)(self.raw, raw, 0) };
        self.gpu.cuda().check("let a stream wait for an event", "cuStreamWaitEvent", result)
    }

    /// Records an event that is over once all work enqueued so far is done.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.gpu)?;
        let _bound = self.gpu.bind()?;
        // SAFETY: stream and event are live.
        let result = unsafe { (self.gpu.cuda().cuEventRecord)(event.raw().cast(), self.raw) };
        self.gpu.cuda().check("record an event", "cuEventRecord", result)?;
        Ok(event)
    }

    /// Enqueues a kernel of `blocks` blocks of `threads` threads, with the address of its arguments.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no threads or parts of warps; [`Error::Cuda`].
    pub(crate) fn launch(
        &self,
        function: &Function,
        blocks: u32,
        threads: u32,
        mut argument: u64,
    ) -> Result<()> {
        let what = format!("launch {} on {blocks} blocks of {threads} threads", function.name());
        if blocks == 0 || threads == 0 || !threads.is_multiple_of(32) {
            return Err(Error::invalid(what, "at least one block, of whole warps of 32 threads"));
        }
        let _bound = self.gpu.bind()?;
        let mut parameters = [(&raw mut argument).cast::<c_void>()];
        // SAFETY: the kernel takes one 64-bit number, which is copied before the call returns; the function's module is
        // loaded. What the argument points at is the caller's part.
        let result = unsafe {
            (self.gpu.cuda().cuLaunchKernel)(
                function.raw(),
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.raw,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.gpu.cuda().check(what, "cuLaunchKernel", result)
    }

    /// Enqueues the write of one word, after all earlier work is done and visible.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    pub(crate) fn write32(&self, address: u64, value: u32) -> Result<()> {
        let _bound = self.gpu.bind()?;
        // SAFETY: a word of memory that the caller keeps; the driver refuses unknown addresses.
        let result =
            unsafe { (self.gpu.cuda().cuStreamWriteValue32_v2)(self.raw, address, value, 0) };
        self.gpu.cuda().check("let a stream write a word", "cuStreamWriteValue32", result)
    }

    /// Makes later work wait until the word at `address` is `value` or up to 2^31 - 1 above it, modulo 2^32; then, with
    /// `flush`, until PCIe devices' earlier writes to the GPU's memory are visible.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it cannot flush; [`Error::Cuda`].
    pub(crate) fn wait32_at_least(&self, address: u64, value: u32, flush: bool) -> Result<()> {
        const AT_LEAST: u32 = 0;
        const FLUSH: u32 = 1 << 30;
        if flush && !self.gpu.info().attributes.stream_flush {
            let why = "this GPU cannot (attribute 98)";
            return Err(Error::unavailable(
                "a stream's flush of PCIe writes",
                why,
                "flush by a call",
            ));
        }
        let _bound = self.gpu.bind()?;
        let flags = if flush { AT_LEAST | FLUSH } else { AT_LEAST };
        // SAFETY: a word of memory that the caller keeps.
        let result =
            unsafe { (self.gpu.cuda().cuStreamWaitValue32_v2)(self.raw, address, value, flags) };
        self.gpu.cuda().check("let a stream wait for a word", "cuStreamWaitValue32", result)
    }

    /// Enqueues a copy of a part of pinned memory to the GPU's address `to`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] outside the pinned memory; [`Error::Cuda`].
    pub(crate) fn copy_to_gpu(
        &self,
        to: u64,
        from: &PinnedMemory,
        range: Range<u64>,
    ) -> Result<()> {
        let bytes = range.end.saturating_sub(range.start);
        inside(range.start, bytes, from.bytes())?;
        // SAFETY: inside the pinned memory; both ends are the caller's to keep.
        unsafe { self.copy(to, from.address() + range.start, bytes) }
    }

    /// Enqueues a copy between any two places that the GPU can access: its memory, pinned or registered host memory.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`].
    ///
    /// # Safety
    ///
    /// Both are `bytes` of such memory, which stays until the stream is past the copy.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        let _bound = self.gpu.bind()?;
        // SAFETY: the caller's.
        let result = unsafe { (self.gpu.cuda().cuMemcpyAsync)(to, from, bytes as usize, self.raw) };
        self.gpu.cuda().check(format_args!("copy {bytes} bytes"), "cuMemcpyAsync", result)
    }

    /// Returns whether work enqueued now is captured into a graph instead of done.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`], for the default stream also while another is captured.
    pub(crate) fn is_captured(&self) -> Result<bool> {
        const NONE: u32 = 0;
        let _bound = self.gpu.bind()?;
        let mut status = NONE;
        // SAFETY: the stream is live; it writes one number.
        let result = unsafe { (self.gpu.cuda().cuStreamIsCapturing)(self.raw, &mut status) };
        self.gpu.cuda().check("ask whether a stream is captured", "cuStreamIsCapturing", result)?;
        Ok(status != NONE)
    }

    /// Returns whether all enqueued work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Cuda`] if some of it failed.
    pub fn is_idle(&self) -> Result<bool> {
        let _bound = self.gpu.bind()?;
        is_idle(&self.gpu, self.raw)
    }

    /// Waits until all enqueued work is done.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if it is not done by then, though it may still complete; [`Error::Cuda`] if some of it
    /// failed.
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        let _bound = self.gpu.bind()?;
        if poll_stream(&self.gpu, self.raw, timeout)? {
            return Ok(());
        }
        let fix = "stop the kernel that does not end, or allow more time";
        Err(Error::timed_out("a stream's work", timeout, fix))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if matches!(self.kind, StreamOwner::Borrowed | StreamOwner::Cudarc { .. }) {
            return;
        }
        let Ok(_bound) = self.gpu.bind() else { return };
        // SAFETY: it was made by this crate; work that is enqueued is still done.
        let result = unsafe { (self.gpu.cuda().cuStreamDestroy_v2)(self.raw) };
        if result != code::SUCCESS {
            tracing::warn!(result, "a stream was not destroyed");
        }
    }
}

impl Priority {
    /// Returns the driver's number: lower ones go first. The GPU's context must be current.
    pub(super) fn number(self, gpu: &Gpu) -> Result<i32> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: it writes two ints.
        let result = unsafe { (gpu.cuda().cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) };
        gpu.cuda().check("ask the priorities of streams", "cuCtxGetStreamPriorityRange", result)?;
        Ok(match self {
            Priority::High => greatest,
            Priority::Normal => 0,
            Priority::Low => least,
        })
    }
}
