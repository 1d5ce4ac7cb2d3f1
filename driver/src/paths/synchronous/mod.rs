//! Paths that carry out a request in `post`: one in flight, finished before `ring`.

pub(super) mod mmap;
pub(super) mod psync;

use std::fmt;

pub use self::mmap::MmapQueue;
pub use self::psync::PsyncQueue;

use super::extent::{ByteRange, Extent};
use super::request::{CommandQueue, Operation, Request};
use crate::Time;
use crate::error::{Error, Result};
use crate::memory::IoBuffer;
use crate::queue_pair::{CommandError, Completion, RejectReason, Rejected, Stats};

/// Carries out requests.
pub trait Carry: fmt::Debug + Send {
    /// Carries out a request; returns the number of bytes moved.
    ///
    /// # Errors
    /// The system's error.
    fn carry_out<B: IoBuffer>(
        &mut self,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
    ) -> Result<u64, CommandError>;

    /// Returns the cause of a failure.
    fn explain(&self, error: CommandError) -> CommandError;
}

/// A queue of one request, which is finished when `post` returns and returned by the next `poll`.
#[derive(Debug)]
pub struct SynchronousQueue<B, C> {
    carrier: C,
    extent: Extent,
    device: String,
    finished: Option<Completion<B>>,
    gone: Option<CommandError>,
    stats: Stats,
}

impl<B, C> SynchronousQueue<B, C> {
    pub(super) fn new(carrier: C, extent: Extent, device: String) -> SynchronousQueue<B, C> {
        let stats = Stats::default();
        SynchronousQueue { carrier, extent, device, finished: None, gone: None, stats }
    }

    pub(super) fn carrier(&mut self) -> &mut C {
        &mut self.carrier
    }
}

impl<B: IoBuffer, C: Carry> CommandQueue<B> for SynchronousQueue<B, C> {
    fn post(&mut self, _now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let Request { operation, buffer } = request;
        if self.finished.is_some() {
            return Err(Rejected { buffer, reason: RejectReason::Full });
        }
        let run = match self.extent.run(operation, &buffer) {
            Ok(run) => run,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        let result = self.carrier.carry_out(operation, run, &buffer);
        let moves = operation.moves();
        let result = match result {
            Ok(moved) if moves && moved < run.bytes => {
                Err(CommandError::Short { moved, asked: run.bytes })
            }
            other => other.map(|_| 0),
        }
        .map_err(|error| self.carrier.explain(error));
        if let Err(error) = result
            && error.is_gone()
        {
            self.gone.get_or_insert(error);
        }
        self.stats.submitted += 1;
        self.stats.bytes += if moves { run.bytes } else { 0 };
        self.finished = Some(Completion { buffer, result });
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    fn ring(&mut self) {
        self.stats.submission_rings += 1;
    }

    fn poll(&mut self, _now: Time, done: impl FnMut(Completion<B>)) -> usize {
        let finished = self.finished.take().map(done);
        self.stats.completed += u64::from(finished.is_some());
        usize::from(finished.is_some())
    }

    fn check(&self) -> Result<()> {
        let gone = |error: &CommandError| Error::Failed {
            device: self.device.clone(),
            reason: error.to_string(),
        };
        self.gone.as_ref().map_or(Ok(()), |error| Err(gone(error)))
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}
