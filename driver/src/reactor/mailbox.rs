//! How requests reach a poller: one bounded queue for each controller on each core.

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

/// What a request asks for, without its buffer and without a reference to its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// LBAs to or from the buffer.
    Transfer { namespace: usize, opcode: IoOpcode, lba: Lba, control: u32 },
    /// One command as it stands.
    Raw { sqe: Sqe, bounds: Option<Bounds> },
}

/// What the poller knows of a request besides its buffer, which the queue has while it is
/// in flight.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) action: Action,
    pub(super) cell: Arc<Cell>,
    pub(super) retry: Retry,
    /// Times it was tried and failed, and how the last time.
    pub(super) failures: u8,
    pub(super) last_error: Option<CommandError>,
}

/// A request on its way to a queue.
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

/// What a thread of a reactor did for one controller. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that ended, however they did.
    pub ended: u64,
    /// Retries scheduled.
    pub retries: u64,
    /// Looks at the mailbox and the queue.
    pub turns: u64,
    /// Times the thread went to sleep, for this or another controller.
    pub sleeps: u64,
    /// Times a request had to wake it.
    pub wakes: u64,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, count: usize) {
        // One writer: no atomic addition is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the lane counts, where clients can read it.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) ended: Counter,
    pub(super) retries: Counter,
    pub(super) turns: Counter,
    /// What the queue had counted at the lane's last look.
    pub(super) queue: Mutex<crate::Stats>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Mailbox {
    requests: ArrayQueue<Request>,
    alarm: Arc<Alarm>,
    /// No new requests are taken.
    stops: AtomicBool,
    /// Nobody looks into it any more.
    closed: AtomicBool,
    /// The last client is gone.
    deserted: AtomicBool,
    /// Somebody waits for room.
    wanted: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
    pub(super) counters: Counters,
}

impl Mailbox {
    /// A mailbox for `depth` requests, read by the thread that `alarm` wakes.
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

    /// Leaves a request and wakes the poller if it sleeps. Returns what it does not take.
    #[inline]
    pub(super) fn send(&self, request: Request) -> Option<(Request, RefuseReason)> {
        if self.stops.load(Ordering::Acquire) {
            return Some((request, RefuseReason::Stopped));
        }
        if let Err(request) = self.requests.push(request) {
            return Some((request, RefuseReason::Full));
        }
        // Has the fence that the next line needs as well.
        self.alarm.wake();
        if self.closed.load(Ordering::Relaxed) {
            self.refuse_all();
        }
        None
    }

    /// The next request.
    #[inline]
    pub(super) fn take(&self) -> Option<Request> {
        self.requests.pop()
    }

    /// Requests that it holds at most.
    pub(super) fn depth(&self) -> usize {
        self.requests.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Has `waker` called once there is room. Try to send again after this: room that was made
    /// before it calls nobody.
    pub(super) fn want_room(&self, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        self.wanted.store(true, Ordering::Relaxed);
        drop(waiters);
        // Before the sender looks for room again; the pair of the one in `made_room`.
        fence(Ordering::SeqCst);
    }

    /// After requests were taken: wakes those who wait for room.
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

    /// Takes no new requests from now on; those in it are still carried out.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.alarm.wake();
    }

    /// Nobody is left who could send.
    pub(super) fn desert(&self) {
        self.deserted.store(true, Ordering::Release);
        self.alarm.wake();
    }

    /// Whether no more requests are to come, but for those in it.
    pub(super) fn is_ending(&self) -> bool {
        self.deserted.load(Ordering::Acquire) || self.stops.load(Ordering::Acquire)
    }

    /// The poller looks no more. What is in it, and what a sender that did not know puts in it
    /// just now, is given back: as in [`super::alarm`], either we find it or the sender finds
    /// it closed.
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
