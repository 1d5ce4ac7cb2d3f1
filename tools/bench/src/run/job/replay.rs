//! Replays a log of I/Os: what is next, and when.
//!
//! The times of a log stay due, as those of a rate: what is late goes at once, and what follows keeps its time.

use std::sync::Arc;
use std::time::Duration;

use adit_driver::Time;

use super::work::What;
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
    pub(super) fn choose(&mut self, start: Time) -> Option<What> {
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
