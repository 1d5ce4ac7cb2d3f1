//! A reactor's thread: turns its lanes in rounds, and rests when idle.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::cores;
use super::idle::{Idle, Idling, Rest};
use super::lane::Lane;
use crate::Time;
use crate::controller::shared::lock;
use crate::error::{Error, Result};

/// The reactor's channel to one of its threads.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) alarm: Arc<Alarm>,
    /// New lanes; `None` once the thread accepts no more.
    lanes: Mutex<Option<Vec<Lane>>>,
    has_lanes: AtomicBool,
    stops: AtomicBool,
}

impl Inbox {
    pub(super) fn new() -> Result<Inbox> {
        let alarm = Arc::new(Alarm::new()?);
        let (has_lanes, stops) = Default::default();
        Ok(Inbox { alarm, lanes: Mutex::new(Some(Vec::new())), has_lanes, stops })
    }

    /// Hands a lane to the thread.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the thread has ended. The lane is dropped.
    pub(super) fn give(&self, lane: Lane) -> Result<()> {
        let mut lanes = lock(&self.lanes);
        let Some(waiting) = lanes.as_mut() else {
            drop(lanes);
            return Err(Error::invalid(
                "attaching to a reactor",
                "one of its threads has ended, and the log says why; start another reactor",
            ));
        };
        waiting.push(lane);
        self.has_lanes.store(true, Ordering::Release);
        drop(lanes);
        self.alarm.wake();
        Ok(())
    }

    /// Tells the thread to finish its requests and end.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.alarm.wake();
    }

    fn take(&self) -> Vec<Lane> {
        let mut lanes = lock(&self.lanes);
        self.has_lanes.store(false, Ordering::Relaxed);
        lanes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn close(&self) {
        let left = lock(&self.lanes).take();
        // Outside the lock: dropping a lane talks to the device.
        drop(left);
    }
}

pub(super) struct Poller {
    pub(super) inbox: Arc<Inbox>,
    pub(super) core: usize,
    pub(super) idle: Idle,
    pub(super) drain_timeout: Duration,
}

impl Poller {
    pub(super) fn run(self) {
        cores::pin(self.core);
        let (inbox, core) = (Arc::clone(&self.inbox), self.core);
        let mut rounds = Rounds::new(self);
        if catch_unwind(AssertUnwindSafe(|| rounds.run())).is_err() {
            tracing::error!(
                "the reactor's thread on core {core} panicked, which is a bug of the driver's; its requests end unfinished"
            );
        }
        // Closes lanes handed over meanwhile; queues are dropped before the thread ends.
        inbox.close();
        if catch_unwind(AssertUnwindSafe(|| drop(rounds))).is_err() {
            tracing::error!("the reactor's thread on core {core} panicked while it ended");
        }
    }
}

/// Result of one turn of each lane.
struct Round {
    moved: usize,
    /// Time until the next deadline, retry or look.
    due_in: Duration,
    /// Commands are in flight without an interrupt.
    is_unheard: bool,
}

struct Rounds {
    poller: Poller,
    lanes: Vec<Lane>,
    idling: Idling,
    origin: Instant,
    /// Limit for unfinished requests; set once the thread is told to stop.
    drain_until: Option<Time>,
}

impl Rounds {
    fn new(poller: Poller) -> Rounds {
        let idling = Idling::new(poller.idle);
        Rounds { poller, lanes: Vec::new(), idling, origin: Instant::now(), drain_until: None }
    }

    fn run(&mut self) {
        loop {
            if self.poller.inbox.has_lanes.load(Ordering::Acquire) {
                self.lanes.append(&mut self.poller.inbox.take());
            }
            let round = self.round();
            // Checked even while requests keep coming: stopping must end them.
            if self.poller.inbox.stops.load(Ordering::Acquire) && self.is_done() {
                return;
            }
            if round.moved > 0 {
                self.idling.busy();
                continue;
            }
            match self.idling.rest(self.now()) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Pause => std::thread::yield_now(),
                Rest::Sleep(nap) => {
                    self.sleep(if round.is_unheard { nap.min(round.due_in) } else { round.due_in });
                }
            }
        }
    }

    fn round(&mut self) -> Round {
        let mut round = Round { moved: 0, due_in: Duration::MAX, is_unheard: false };
        for lane in &mut self.lanes {
            let now = lane.now();
            let turn = lane.turn(now);
            round.moved += turn.moved;
            round.due_in = round.due_in.min(turn.next.since(now));
            round.is_unheard |= turn.in_flight > 0 && lane.interrupt().is_none();
        }
        if round.moved == 0 {
            self.lanes.retain(|lane| !lane.is_over());
        }
        round
    }

    /// Returns the thread's own clock, for resting and draining; lanes use their controllers'.
    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Returns whether a stopping thread has finished or must wait no longer.
    fn is_done(&mut self) -> bool {
        let now = self.now();
        self.lanes.iter().for_each(Lane::stop);
        let until = *self.drain_until.get_or_insert(now + self.poller.drain_timeout);
        if now >= until && !self.lanes.is_empty() {
            tracing::warn!("the reactor stops with requests unfinished; drain_timeout has passed");
        }
        self.lanes.is_empty() || now >= until
    }

    fn sleep(&self, at_most: Duration) {
        let interrupts: Vec<BorrowedFd<'_>> =
            self.lanes.iter().filter_map(Lane::interrupt).collect();
        let inbox = &self.poller.inbox;
        let is_stopping = self.drain_until.is_some();
        inbox.alarm.sleep(at_most, &interrupts, || {
            inbox.has_lanes.load(Ordering::Acquire)
                || (!is_stopping && inbox.stops.load(Ordering::Acquire))
                || self.lanes.iter().any(|lane| lane.has_mail() || lane.is_over())
        });
    }
}
