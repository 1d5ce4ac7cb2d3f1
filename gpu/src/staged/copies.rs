//! What a lane needs from a GPU: ordered copies, a word written after them, and to know when they are over.
//!
//! A lane knows copies only by this trait, so that it runs on a GPU, on the emulated one and on a test's own, whose
//! copies take as long as the test says. Requests on one line execute in order; lines do not wait for each other.
//!
//! Host memory of a copy belongs to the copy until a mark made behind it is over. The lane keeps such buffers in
//! [`super::job::Job`] and does not touch them.

use std::time::Duration;

use adit_driver::Buffer;

use super::work::Work;
use crate::error::Result;

/// The copy engine of a lane.
pub(super) trait Copies: Send {
    /// A sequence of copies.
    type Line: Send;
    /// A point of a line.
    type Mark: Send;
    /// Work of a caller that a line waits for.
    type Event: Send;
    /// Registration of host memory with the GPU, ended by dropping it.
    type Registration: Send;

    /// Registers `memory` with the GPU. `owner` keeps it mapped and is dropped after it is unregistered.
    fn register(&mut self, memory: &mut Buffer, owner: Buffer) -> Result<Self::Registration>;

    fn line(&mut self) -> Result<Self::Line>;

    /// Makes later requests on the line wait for the event.
    fn wait(&mut self, line: &Self::Line, event: &Self::Event) -> Result<()>;

    fn has_happened(&mut self, event: &Self::Event) -> Result<bool>;

    /// Copies the first `bytes` of `from` to the GPU's address `to`.
    fn copy_to_gpu(
        &mut self,
        line: &Self::Line,
        to: u64,
        from: &Buffer,
        bytes: usize,
    ) -> Result<()>;

    /// Copies `bytes` from the GPU's address `from` into `to`.
    fn copy_from_gpu(
        &mut self,
        line: &Self::Line,
        to: &mut Buffer,
        from: u64,
        bytes: usize,
    ) -> Result<()>;

    /// Writes a word of GPU memory, visible to observers after everything before it on the line.
    fn write_word(&mut self, line: &Self::Line, at: u64, value: u32) -> Result<()>;

    /// Writes the words of a finished control block: the nonzero statuses, then `done`.
    fn tell(
        &mut self,
        line: &Self::Line,
        work: &Work<Self::Event>,
        statuses: &[u32],
    ) -> Result<()> {
        for (index, status) in statuses.iter().enumerate().filter(|(_, status)| **status != 0) {
            self.write_word(line, work.statuses + 4 * index as u64, *status)?;
        }
        self.write_word(line, work.done, work.generation)
    }

    /// Makes a mark behind everything requested on the line so far.
    fn mark(&mut self, line: &Self::Line) -> Result<Self::Mark>;

    /// Whether everything before the mark is over.
    fn is_over(&mut self, mark: &Self::Mark) -> Result<bool>;

    /// Whether everything requested on the line is over.
    fn is_idle(&mut self, line: &Self::Line) -> Result<bool>;

    /// Waits until everything requested on the line is over; returns false on timeout or if that cannot be known.
    fn drain(&mut self, line: &Self::Line, at_most: Duration) -> bool;
}
