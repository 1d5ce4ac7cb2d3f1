//! The way from clients to a lane: requests, their mailbox, and the lane's counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::outcome::{End, RefuseReason};
use super::retry::Retry;
use crate::memory::AnyBuffer;
use crate::queue_pair::{Bounds, CommandError};
use crate::runtime::{Alarm, Mailbox, Reply, lock};
use crate::spec::{IoOpcode, Lba, Sqe};

/// A request without its buffer and without a reference to its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// LBAs to or from the buffer.
    Transfer { namespace: usize, opcode: IoOpcode, lba: Lba, control: u64 },
    /// One command, sent unchanged.
    Raw { sqe: Sqe, bounds: Option<Bounds> },
}

impl Action {
    /// Returns whether the driver knows what the command does; it does not for a raw one.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self, Action::Raw { bounds: None | Some(Bounds { domain: None, .. }), .. })
    }
}

/// A lane's record of a request; the queue holds its buffer in flight.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) action: Action,
    pub(super) reply: Reply<End>,
    pub(super) retry: Retry,
    /// Failed attempts, and the last failure.
    pub(super) failures: u8,
    pub(super) last_error: Option<CommandError>,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) note: Note,
    pub(super) buffer: AnyBuffer,
}

impl Request {
    /// Ends it unsent, or with its last error if it was sent before.
    pub(super) fn end(self, reason: RefuseReason) {
        let Request { note, buffer } = self;
        note.reply.send(match note.last_error {
            Some(error) => End::Completed(buffer, Err(error)),
            None => End::Refused(buffer, reason),
        });
    }
}

/// Counters of a reactor's thread for one controller. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that ended in any way.
    pub ended: u64,
    /// Retries scheduled.
    pub retries: u64,
    /// Turns: looks at the mailbox and the queue.
    pub turns: u64,
    /// Times the thread went to sleep, for this or another controller.
    pub sleeps: u64,
    /// Times a request woke it.
    pub wakes: u64,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, count: usize) {
        // With one writer, no atomic addition is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A lane's mailbox, with its counters.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) requests: Mailbox<Request>,
    pub(super) ended: Counter,
    pub(super) retries: Counter,
    pub(super) turns: Counter,
    /// The queue's counters at the lane's last look.
    pub(super) queue: Mutex<crate::Stats>,
}

impl Port {
    /// Creates a port for `depth` requests, read by the thread of `alarm`.
    pub(super) fn new(depth: usize, alarm: Arc<Alarm>) -> Arc<Port> {
        let requests =
            Mailbox::new(depth, alarm, |request: Request| request.end(RefuseReason::Stopped));
        let (ended, retries, turns, queue) = Default::default();
        Arc::new(Port { requests, ended, retries, turns, queue })
    }

    pub(super) fn stats(&self) -> Stats {
        let Port { ended, retries, turns, .. } = self;
        let (sleeps, wakes) = self.requests.reader().counts();
        Stats { ended: ended.get(), retries: retries.get(), turns: turns.get(), sleeps, wakes }
    }

    pub(super) fn queue_stats(&self) -> crate::Stats {
        lock(&self.queue).clone()
    }
}
