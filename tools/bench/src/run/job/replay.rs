//! Replays a log of I/Os: what is next, and when.
//!
//! The times of a log stay due, as those of a rate: what is late goes at once, and what follows keeps its time.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::{Job, Owned, What, Work};
use crate::options::replay::{LogAction, LogEntry};
use crate::workload::Step;

/// A log that is being replayed.
#[derive(Debug)]
pub(super) struct Replay {
    entries: Arc<[LogEntry]>,
    /// The index of the next entry.
    next: usize,
    /// The number of the job's files; a single one stands for all of the log.
    files: u32,
    /// The time of the chosen entry, in microseconds since the start.
    at_us: u64,
    /// When the chosen entry may be issued.
    pub(super) due: Time,
}

impl Replay {
    pub(super) fn new(entries: Arc<[LogEntry]>, files: usize) -> Replay {
        Replay { entries, next: 0, files: files as u32, at_us: 0, due: Time::ZERO }
    }

    /// Chooses the next entry; `start` is the job's. `None` at the end.
    fn choose(&mut self, start: Time) -> Option<What> {
        let entry = *self.entries.get(self.next)?;
        self.at_us = self.at_us.saturating_add(entry.after_us).max(entry.at_us);
        self.due = start + Duration::from_micros(self.at_us);
        let number = self.next as u64;
        self.next += 1;
        let file = entry.file.min(self.files - 1);
        Some(match entry.action {
            LogAction::Io { way, offset, bytes } => {
                What::Step(Step { way, file, offset, bytes, number })
            }
            LogAction::Flush => What::Flush(file),
        })
    }
}

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Returns the next I/O of the log.
    #[inline(never)]
    pub(super) fn next_of_log(&mut self) -> Option<Work> {
        let what = self.replay.as_mut()?.choose(self.times.start)?;
        if let What::Step(step) = what {
            self.bytes_issued += step.bytes;
            self.ios_issued += 1;
        }
        Some(Work::new(what))
    }

    /// Returns when the log has this I/O; `None` for retries and jobs that replay none.
    #[inline]
    pub(super) fn due_by_log(&self, work: &Work) -> Option<Time> {
        let replay = self.replay.as_ref()?;
        work.retried.is_none().then_some(replay.due)
    }

    /// Logs an I/O that was issued, unless it is a retry.
    #[cold]
    pub(super) fn log_issued(&mut self, work: &Work) {
        let Some(log) = self.set.iolog.as_mut().filter(|_| work.retried.is_none()) else { return };
        let at = self.times.now.since(self.times.start);
        match work.what {
            What::Step(step) => log.record(at, step.file, step.way, (step.offset, step.bytes)),
            What::Flush(file) => log.record_flush(at, file),
        }
    }
}
