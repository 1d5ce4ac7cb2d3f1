//! Carries requests to a poller: one bounded queue for each controller on each core.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crossbeam_queue::ArrayQueue;

use super::alarm::Alarm;
use super::cell::Cell;
use super::outcome::{End, RefuseReason};
use super::retry::Retry;
use crate::controller::shared::lock;
use crate::memory::AnyBuffer;
use crate::queue_pair::{Bounds, CommandError};
use crate::spec::{IoOpcode, Lba, Sqe};

/// A request without its buffer and without a reference to its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// LBAs to or from the buffer.
    Transfer { namespace: usize, opcode: IoOpcode, lba: Lba, control: u32 },
    /// One command, sent unchanged.
    Raw { sqe: Sqe, bounds: Option<Bounds> },
}

/// A poller's record of a request; the queue holds its buffer in flight.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) action: Action,
    pub(super) cell: Arc<Cell>,
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
        note.cell.end(match note.last_error {
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

/// A lane's counters, readable by clients.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) ended: Counter,
    pub(super) retries: Counter,
    pub(super) turns: Counter,
    /// The queue's counters at the lane's last look.
    pub(super) queue: Mutex<crate::Stats>,
}

/// A bounded queue of requests, with the flags of its two ends.
#[derive(Debug)]
pub(super) struct Mailbox {
    requests: ArrayQueue<Request>,
    alarm: Arc<Alarm>,
    /// No new requests are accepted.
    stops: AtomicBool,
    /// The poller has stopped reading.
    closed: AtomicBool,
    /// The last client is gone.
    deserted: AtomicBool,
    /// A sender waits for room.
    wanted: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
    pub(super) counters: Counters,
}

impl Mailbox {
    /// Creates a mailbox for `depth` requests, read by the thread that `alarm` wakes.
    pub(super) fn new(depth: usize, alarm: Arc<Alarm>) -> Mailbox {
        let (stops, closed, deserted, wanted) = Default::default();
        let (requests, waiters) = (ArrayQueue::new(depth), Mutex::default());
        let counters = Counters::default();
        Mailbox { requests, alarm, stops, closed, deserted, wanted, waiters, counters }
    }

    pub(super) fn stats(&self) -> Stats {
        let Counters { ended, retries, turns, .. } = &self.counters;
        let (sleeps, wakes) = self.alarm.counts();
        Stats { ended: ended.get(), retries: retries.get(), turns: turns.get(), sleeps, wakes }
    }

    pub(super) fn queue_stats(&self) -> crate::Stats {
        lock(&self.counters.queue).clone()
    }

    /// Enqueues a request and wakes a sleeping poller. Returns the request if it is not accepted.
    #[inline]
    pub(super) fn send(&self, request: Request) -> Option<(Request, RefuseReason)> {
        if self.stops.load(Ordering::Acquire) {
            return Some((request, RefuseReason::Stopped));
        }
        if let Err(request) = self.requests.push(request) {
            return Some((request, RefuseReason::Full));
        }
        // Contains the fence that the next line needs as well.
        self.alarm.wake();
        if self.closed.load(Ordering::Relaxed) {
            self.refuse_all();
        }
        None
    }

    #[inline]
    pub(super) fn take(&self) -> Option<Request> {
        self.requests.pop()
    }

    pub(super) fn depth(&self) -> usize {
        self.requests.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Calls `waker` once there is room. Retry sending after this call: room made earlier wakes no one.
    pub(super) fn want_room(&self, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        self.wanted.store(true, Ordering::Relaxed);
        drop(waiters);
        // Orders `wanted` before the sender's retry; pairs with the fence in `made_room`.
        fence(Ordering::SeqCst);
    }

    /// Wakes the senders that wait for room, after requests were taken.
    #[inline]
    pub(super) fn made_room(&self) {
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) {
            self.call_waiters();
        }
    }

    #[cold]
    fn call_waiters(&self) {
        let waiters = {
            let mut waiters = lock(&self.waiters);
            self.wanted.store(false, Ordering::Relaxed);
            std::mem::take(&mut *waiters)
        };
        for waker in waiters {
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("a reactor's thread caught a panic while waking a task");
            }
        }
    }

    /// Accepts no new requests; carries out those already queued.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.alarm.wake();
    }

    pub(super) fn desert(&self) {
        self.deserted.store(true, Ordering::Release);
        self.alarm.wake();
    }

    /// Returns whether no new requests can arrive.
    pub(super) fn is_ending(&self) -> bool {
        self.deserted.load(Ordering::Acquire) || self.stops.load(Ordering::Acquire)
    }

    /// Ends reading. Gives back all queued requests, including those of a concurrent sender: as in
    /// [`super::alarm`], either this side finds the request or the sender finds the mailbox closed.
    pub(super) fn close(&self) {
        self.stops.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refuse_all();
        self.call_waiters();
    }

    fn refuse_all(&self) {
        while let Some(request) = self.requests.pop() {
            request.end(RefuseReason::Stopped);
        }
    }
}
