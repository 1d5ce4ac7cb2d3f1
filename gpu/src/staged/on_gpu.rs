//! The copies of a lane, on a GPU.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::Buffer;

use super::copies::Copies;
use crate::cuda::{Event, Gpu, Priority, Registration, Stream};
use crate::error::Result;

/// Implements [`Copies`] with streams and events.
pub(super) struct OnGpu {
    gpu: Arc<Gpu>,
}

impl OnGpu {
    /// Creates copies to and from this GPU.
    pub(super) fn new(gpu: &Arc<Gpu>) -> OnGpu {
        OnGpu { gpu: Arc::clone(gpu) }
    }
}

impl Copies for OnGpu {
    type Stream = Stream;
    type Mark = Event;
    type Event = Arc<Event>;
    type Registration = Registration;

    fn register(&mut self, memory: &mut Buffer, owner: Buffer) -> Result<Registration> {
        let (at, bytes) = (NonNull::from(&mut **memory).cast(), memory.len());
        // SAFETY: `owner` is a part of the same region, which stays mapped while any part of it is there. The GPU
        // reaches it by the copies below alone.
        unsafe { Registration::memory(&self.gpu, at, bytes, Box::new(owner)) }
    }

    fn stream(&mut self) -> Result<Stream> {
        Stream::new(&self.gpu, Priority::High)
    }

    fn wait(&mut self, stream: &Stream, event: &Arc<Event>) -> Result<()> {
        stream.wait_event(event)
    }

    fn has_happened(&mut self, event: &Arc<Event>) -> Result<bool> {
        event.is_over()
    }

    fn copy_to_gpu(&mut self, stream: &Stream, to: u64, from: &Buffer, bytes: usize) -> Result<()> {
        let from = from[..bytes].as_ptr().addr() as u64;
        // SAFETY: registered memory, which the lane leaves alone until a mark behind the copy is over, and leaks with
        // its registration if that is never known. `to` is in an area of the pool, which the engine's threads keep.
        unsafe { stream.copy(to, from, bytes as u64) }
    }

    fn copy_from_gpu(
        &mut self,
        stream: &Stream,
        to: &mut Buffer,
        from: u64,
        bytes: usize,
    ) -> Result<()> {
        let to = to[..bytes].as_mut_ptr().addr() as u64;
        // SAFETY: as above.
        unsafe { stream.copy(to, from, bytes as u64) }
    }

    fn write_word(&mut self, stream: &Stream, at: u64, value: u32) -> Result<()> {
        stream.write32(at, value)
    }

    fn mark(&mut self, stream: &Stream) -> Result<Event> {
        stream.record()
    }

    fn is_over(&mut self, mark: &Event) -> Result<bool> {
        mark.is_over()
    }

    fn is_idle(&mut self, stream: &Stream) -> Result<bool> {
        stream.is_idle()
    }

    fn drain(&mut self, stream: &Stream, at_most: Duration) -> bool {
        stream.synchronize(at_most).is_ok()
    }
}
