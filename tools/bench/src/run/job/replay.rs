//! Replays a log of I/Os: what is next, and when.
//!
//! As in fio, the times of a log are those between two I/Os: an I/O that is late delays all that follow.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::{Job, Owned, What, Work};
use crate::options::iolog::{Action, Entry};
use crate::workload::Step;

/// A log that is being replayed.
#[derive(Debug)]
pub(super) struct Replay {
    entries: Arc<[Entry]>,
    /// The index of the next entry.
    next: usize,
    /// The number of the job's files; a single one stands for all of the log.
    files: u32,
    /// When the last I/O was issued.
    issued: Time,
    /// When the chosen entry may be issued.
    pub(super) due: Time,
}

impl Replay {
    pub(super) fn new(entries: Arc<[Entry]>, files: usize) -> Replay {
        let start = Time::ZERO;
        Replay { entries, next: 0, files: files as u32, issued: start, due: start }
    }

    /// Chooses the next entry; `start` is the job's. `None` at the end.
    fn choose(&mut self, start: Time) -> Option<What> {
        let entry = *self.entries.get(self.next)?;
        self.due = (self.issued.max(start) + Duration::from_micros(entry.after_us))
            .max(start + Duration::from_micros(entry.at_us));
        let number = self.next as u64;
        self.next += 1;
        let file = entry.file.min(self.files - 1);
        Some(match entry.action {
            Action::Io { way, offset, bytes } => {
                What::Step(Step { way, file, offset, bytes, number })
            }
            Action::Flush => What::Flush(file),
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

    /// Notes when an I/O was issued, and logs it if asked to.
    #[cold]
    pub(super) fn note_issued(&mut self, work: &Work) {
        if work.retried.is_some() {
            return;
        }
        if let Some(replay) = &mut self.replay {
            replay.issued = self.times.now;
        }
        let Some(log) = &mut self.set.iolog else { return };
        let at = self.times.now.since(self.times.start);
        match work.what {
            What::Step(step) => log.record(at, step.file, step.way, (step.offset, step.bytes)),
            What::Flush(file) => log.record_flush(at, file),
        }
    }
}
