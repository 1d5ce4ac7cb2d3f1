//! What a lane asks of a GPU: copies in an order, a word written behind them, and to know when they are over.
//!
//! A lane knows copies by this trait only, so that it runs on a GPU, on the emulated one and on a test's own, whose
//! copies take as long as the test says. What is asked for on one line happens in the order of asking; lines do not
//! wait for each other.
//!
//! What a copy reads or writes on the host belongs to it until a mark that was made behind it is over. The lane keeps
//! such buffers in [`super::job::Job`] and touches none of them.

use std::time::Duration;

use adit_driver::Buffer;

use super::work::Work;
use crate::error::Result;

/// See the module.
pub(super) trait Copies: Send {
    /// Copies that happen one after another.
    type Line: Send;
    /// A point of a line.
    type Mark: Send;
    /// What a caller's work has to reach before a line may go on.
    type Event: Send;
    /// What makes host memory known to the GPU, and forgets it again when it is dropped.
    type Registration: Send;

    /// Makes `memory` known to the GPU. `owner` keeps it mapped and is dropped after the GPU has forgotten it.
    fn register(&mut self, memory: &mut Buffer, owner: Buffer) -> Result<Self::Registration>;

    /// A line of its own.
    fn line(&mut self) -> Result<Self::Line>;

    /// What is asked for on the line from now on happens after the event.
    fn wait(&mut self, line: &Self::Line, event: &Self::Event) -> Result<()>;

    /// Whether the event has happened.
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

    /// Writes a word of GPU memory, visible to all that looks at it after everything before it on the line.
    fn write_word(&mut self, line: &Self::Line, at: u64, value: u32) -> Result<()>;

    /// Writes the words of a control block that is over: the statuses that are not 0, then `done`.
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

    /// A mark behind everything that the line was asked for.
    fn mark(&mut self, line: &Self::Line) -> Result<Self::Mark>;

    /// Whether everything before the mark is over.
    fn is_over(&mut self, mark: &Self::Mark) -> Result<bool>;

    /// Whether everything that the line was asked for is over.
    fn is_idle(&mut self, line: &Self::Line) -> Result<bool>;

    /// Waits until everything that the line was asked for is over; `false` if it is not in time or cannot be known.
    fn drain(&mut self, line: &Self::Line, at_most: Duration) -> bool;
}
