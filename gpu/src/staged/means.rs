//! The resources that the jobs of a lane share: the queue pair, the chunks, the GPU.

use std::sync::Arc;

use adit_driver::memory::Prefix;
use adit_driver::spec::{Lba, Status};
use adit_driver::{
    Buffer, Command, CommandError, Controller, Namespace, QueuePair, RejectReason, Rejected, Time,
};

use super::chunks::Chunks;
use super::copies::Copies;
use super::stats::Stats;
use crate::commands::layout::Context;
use crate::commands::outcome;
use crate::error::Result;

/// Identifies a command's job and context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) serial: u64,
    pub(super) context: u32,
    pub(super) is_write: bool,
    pub(super) was_sent_before: bool,
}

pub(super) type Owned = (Prefix, Tag);

pub(super) struct Later {
    pub(super) due: Time,
    pub(super) chunk: Buffer,
    pub(super) tag: Tag,
}

pub(super) enum Posted {
    /// The queue has it.
    Yes,
    /// There is no room now.
    Full(Buffer),
    /// Permanently refused, which counts as this status.
    Refused(Buffer, u32),
}

/// Place of a region of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// The shared resources of a lane.
pub(super) struct Means<C: Copies> {
    // Dropped first: the device is done with the chunks in flight, or the driver leaks them.
    pub(super) queue: QueuePair<Owned>,
    pub(super) chunks: Chunks<C::Registration>,
    pub(super) copies: C,
    pub(super) controller: Arc<Controller>,
    pub(super) namespace: Namespace,
    pub(super) areas: Arc<[Area]>,
    pub(super) streams: Vec<C::Stream>,
    pub(super) later: Vec<Later>,
    pub(super) stats: Stats,
    /// Chunks in their first stage.
    pub(super) in_first: usize,
    pub(super) has_posted: bool,
    /// Whether a stream was abandoned before everything requested on it was known to be over.
    pub(super) has_lost_lines: bool,
}

impl<C: Copies> Means<C> {
    /// Returns an unused stream, behind an event.
    ///
    /// # Errors
    /// The GPU's, if it creates no stream or does not let it wait.
    pub(super) fn stream(&mut self, after: Option<&C::Event>) -> Result<C::Stream> {
        let stream = match self.streams.pop() {
            Some(stream) => stream,
            None => self.copies.stream()?,
        };
        if let Some(event) = after {
            self.copies.wait(&stream, event)?;
        }
        Ok(stream)
    }

    pub(super) fn bytes_of(&self, context: Context) -> usize {
        context.lbas() as usize * self.namespace.lba_bytes() as usize
    }

    /// Returns the GPU address of a context's data; the context was checked against its region.
    pub(super) fn address_of(&self, context: Context) -> u64 {
        let area = self.areas[usize::from(context.region())];
        assert!(context.address + self.bytes_of(context) as u64 <= area.bytes, "checked at issue");
        area.address + context.address
    }

    pub(super) fn post(&mut self, now: Time, context: Context, chunk: Buffer, tag: Tag) -> Posted {
        let owned = (Prefix::new(chunk, self.bytes_of(context)), tag);
        let command: Command<'_, Owned> = match context.is_write() {
            true => self.namespace.write(Lba(context.lba()), owned),
            false => self.namespace.read(Lba(context.lba()), owned),
        };
        let posted = match tag.was_sent_before {
            true => self.queue.resubmit(now, command),
            false => self.queue.post(now, command),
        };
        match posted {
            Ok(_) => {
                self.has_posted = true;
                Posted::Yes
            }
            Err(Rejected { buffer, reason: RejectReason::Full }) => {
                Posted::Full(buffer.0.into_buffer())
            }
            Err(Rejected { buffer, reason }) => {
                tracing::warn!("{}: {reason}", self.controller.info().device);
                Posted::Refused(buffer.0.into_buffer(), refused(&reason))
            }
        }
    }

    /// Announces the posted commands with one doorbell.
    pub(super) fn ring(&mut self) {
        if std::mem::take(&mut self.has_posted) {
            self.queue.ring();
            self.stats.rings += 1;
        }
    }

    /// Moves a chunk from its first stage to its second.
    pub(super) fn count_second_stage(&mut self) {
        self.in_first -= 1;
        self.stats.second_stage += 1;
        self.stats.overlapped += u64::from(self.in_first > 0);
    }
}

/// Returns the status word of a request that no queue takes, because the namespace changed.
fn refused(reason: &RejectReason) -> u32 {
    let status = match reason {
        RejectReason::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        _ => Status::INVALID_FIELD_IN_COMMAND,
    };
    u32::from(status.bits())
}

/// Returns the status word of a failed command.
pub(super) fn word_of(error: &CommandError) -> u32 {
    match error {
        CommandError::Status(status) => u32::from(status.bits()),
        CommandError::TimedOut { .. } => outcome::TIMED_OUT,
        CommandError::Reset { .. } => outcome::RESET,
        // Only on the kernel paths, which have no queue pairs.
        CommandError::System(_) | CommandError::Short { .. } => {
            u32::from(Status::INTERNAL_ERROR.bits())
        }
    }
}
