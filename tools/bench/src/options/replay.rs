//! The I/Os of a log that a job replays, and the options that change them.

use std::sync::Arc;

use crate::way::Way;

/// `read_iolog` and the options that change what is replayed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReplayOptions {
    /// `read_iolog`: logs, of which the job's thread N replays the Nth.
    pub(crate) logs: Vec<String>,
    /// `replay_no_stall`: ignores the times.
    pub(crate) no_stall: bool,
    /// `replay_time_scale`: the speed in percent; 0 for 100.
    pub(crate) time_scale: u32,
    /// `replay_redirect`: the target of all I/Os.
    pub(crate) redirect: Option<String>,
    /// `replay_scale`: divides the offsets, unless it is 0.
    pub(crate) scale: u64,
    /// `replay_align`: rounds the offsets down to a multiple, unless it is 0.
    pub(crate) align: u64,
    /// `replay_skip`: leaves out reads, writes, trims, flushes.
    pub(crate) skip: [bool; 4],
    /// The logs, once they are read.
    pub(crate) read: Option<Arc<[Arc<[LogEntry]>]>>,
}

/// An action of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    /// The least time after the previous action, in microseconds.
    pub(crate) after_us: u64,
    /// The least time after the start, in microseconds.
    pub(crate) at_us: u64,
    /// The index of the log's file.
    pub(crate) file: u32,
    pub(crate) action: LogAction,
}

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAction {
    /// An I/O of `bytes` at `offset`.
    Io {
        way: Way,
        offset: u64,
        bytes: u64,
    },
    Flush,
}

impl LogEntry {
    /// Returns way, offset and length of an I/O.
    pub(crate) fn io(&self) -> Option<(Way, u64, u64)> {
        match self.action {
            LogAction::Io { way, offset, bytes } => Some((way, offset, bytes)),
            LogAction::Flush => None,
        }
    }
}

impl ReplayOptions {
    /// Returns what the job's thread replays.
    pub(crate) fn of_thread(&self, thread: u32) -> Option<&Arc<[LogEntry]>> {
        self.read.as_ref().map(|logs| &logs[thread as usize % logs.len()])
    }

    /// Returns the speed in percent.
    fn percent(&self) -> u64 {
        if self.time_scale == 0 { 100 } else { self.time_scale.into() }
    }

    /// Applies the options to a log.
    pub(super) fn changed(&self, entries: Vec<LogEntry>) -> Vec<LogEntry> {
        let mut waited = 0;
        let mut kept = Vec::with_capacity(entries.len());
        for mut entry in entries {
            waited += entry.after_us;
            let kind = entry.io().map_or(3, |(way, ..)| way as usize);
            if self.skip[kind] {
                continue;
            }
            let scaled = |us: u64| (u128::from(us) * 100 / u128::from(self.percent())) as u64;
            let (after, at) = (std::mem::take(&mut waited), entry.at_us);
            (entry.after_us, entry.at_us) =
                if self.no_stall { (0, 0) } else { (scaled(after), scaled(at)) };
            if let LogAction::Io { offset, .. } = &mut entry.action {
                *offset /= self.scale.max(1);
                *offset -= *offset % self.align.max(1);
            }
            kept.push(entry);
        }
        kept
    }
}
