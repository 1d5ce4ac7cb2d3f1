//! The copy engine that a lane needs from a GPU: ordered copies, a word written after them, and when they are over.
//!
//! A lane knows copies only by this trait, so that it runs on a GPU, on the emulated one and on a test's own, whose
//! copies take as long as the test says. Requests on one stream execute in order; streams do not wait for each other.
//!
//! Host memory of a copy belongs to the copy until a mark made behind it is over. The lane keeps such buffers in
//! [`super::job::Job`] and does not touch them.

use std::time::Duration;

use adit_driver::Buffer;

use super::work::Work;
use crate::error::Result;

/// The copy engine of a lane.
pub(super) trait Copies: Send {
    /// A sequence of copies: a CUDA stream, or a test's.
    type Stream: Send;
    /// A point of a stream.
    type Mark: Send;
    /// Work of a caller that a stream waits for.
    type Event: Send;
    /// Registration of host memory with the GPU, ended by dropping it.
    type Registration: Send;

    /// Registers `memory` with the GPU. `owner` keeps it mapped and is dropped after it is unregistered.
    fn register(&mut self, memory: &mut Buffer, owner: Buffer) -> Result<Self::Registration>;

    /// Creates a stream.
    fn stream(&mut self) -> Result<Self::Stream>;

    /// Makes later requests on the stream wait for the event.
    fn wait(&mut self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Returns whether an event has happened.
    fn has_happened(&mut self, event: &Self::Event) -> Result<bool>;

    /// Copies the first `bytes` of `from` to the GPU's address `to`.
    fn copy_to_gpu(
        &mut self,
        stream: &Self::Stream,
        to: u64,
        from: &Buffer,
        bytes: usize,
    ) -> Result<()>;

    /// Copies `bytes` from the GPU's address `from` into `to`.
    fn copy_from_gpu(
        &mut self,
        stream: &Self::Stream,
        to: &mut Buffer,
        from: u64,
        bytes: usize,
    ) -> Result<()>;

    /// Writes a word of GPU memory, visible to observers after everything before it on the stream.
    fn write_word(&mut self, stream: &Self::Stream, at: u64, value: u32) -> Result<()>;

    /// Writes the words of a finished control block: the nonzero statuses, then `done`.
    fn tell(
        &mut self,
        stream: &Self::Stream,
        work: &Work<Self::Event>,
        statuses: &[u32],
    ) -> Result<()> {
        for (index, status) in statuses.iter().enumerate().filter(|(_, status)| **status != 0) {
            self.write_word(stream, work.statuses + 4 * index as u64, *status)?;
        }
        self.write_word(stream, work.done, work.generation)
    }

    /// Makes a mark behind everything requested on the stream so far.
    fn mark(&mut self, stream: &Self::Stream) -> Result<Self::Mark>;

    /// Returns whether everything before the mark is over.
    fn is_over(&mut self, mark: &Self::Mark) -> Result<bool>;

    /// Returns whether everything requested on the stream is over.
    fn is_idle(&mut self, stream: &Self::Stream) -> Result<bool>;

    /// Waits until everything requested on the stream is over; returns false on timeout or if that cannot be known.
    fn drain(&mut self, stream: &Self::Stream, at_most: Duration) -> bool;
}
