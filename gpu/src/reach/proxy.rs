//! The CPU doorbell proxy: a thread that turns words in pinned memory into register writes, for GPUs that cannot ring
//! themselves.
//!
//! The GPU stores a doorbell's value into a word of the proxy; the thread sees the change and rings. No change can go
//! unseen by repeating a value: a ring is never full, so a tail cannot come round to its old value before the device
//! has been told, and a completion queue's head follows the device. So one thread serves all queues of all controllers,
//! and changes made while it is busy are merged into one ring.
//!
//! The GPU cannot wake the thread, so it does not sleep while commands may be in flight: the sender wakes it before they
//! begin, and it asks whether they are over ([`ProxyThread::watch`]). Then it polls and yields for the times of
//! [`ProxyOptions::idle`], and sleeps without a wake-up of its own. Unless it has something to ask, it naps instead.
//!
//! Stopping it and removing queues have deadlines; if it does not answer, what it uses is leaked. A panic ends the
//! thread, and [`ProxyThread::check`] reports it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::bus::Doorbell;
use adit_driver::controller::RingDepths;
use adit_driver::runtime::{
    Alarm, Dropped, Idling, Mailbox, Pinning, Poller, Reply, Rest, Round, Seat, Worker, pair,
};

use crate::cuda::{Gpu, PinnedMemory};
use crate::error::{Error, Result};
use crate::options::ProxyOptions;

/// Queues that one proxy serves.
const SLOTS: usize = 1024;
/// Words per queue: a cache line, with the tail first and the head next to it.
const SLOT_WORDS: usize = 16;
/// How long the thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the thread asks whether work is over, while it is not.
const LOOK_EVERY: Duration = Duration::from_micros(20);
const WHAT: &str = "the doorbell proxy";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    pub rung: u64,
    /// Values out of range for the queue's doorbell, which were not rung.
    pub refused: u64,
    pub queues: u32,
}

/// Answers whether doorbells may be rung at any time; asked by the proxy's thread, now and then.
pub(crate) type Ringing = dyn Fn() -> bool + Send + Sync;

/// A running proxy; stops when the last handle and the last queue are gone.
#[derive(Debug)]
pub struct ProxyThread {
    shared: Arc<Shared>,
    /// Free slots.
    free: Mutex<Vec<usize>>,
    poller: Poller<()>,
}

/// A queue's words; dropping it removes the queue from the proxy.
#[derive(Debug)]
pub struct Slot {
    proxy: Arc<ProxyThread>,
    index: usize,
}

#[derive(Debug)]
struct Shared {
    words: PinnedMemory,
    orders: Mailbox<Order>,
    /// While one of them exists, the thread does not nap; while one says so, it does not sleep.
    watched: Mutex<Vec<Weak<Ringing>>>,
    rung: AtomicU64,
    refused: AtomicU64,
}

/// An order to the thread, answered once carried out.
#[derive(Debug)]
enum Order {
    Serve(Served, Reply<()>),
    Leave { index: usize, reply: Reply<()> },
}

/// The thread's view of a queue.
#[derive(Debug)]
struct Served {
    index: usize,
    /// Tail and head.
    doorbells: [Doorbell; 2],
    depths: RingDepths,
    /// The values last rung.
    last: [u32; 2],
}

/// What the thread does.
struct Ringer {
    shared: Arc<Shared>,
    served: Vec<Served>,
    /// How it rests while it must not sleep.
    idling: Idling,
    origin: Instant,
    /// When work is looked for next, after some was there.
    next_look: Time,
}

impl ProxyThread {
    /// Starts the thread. Its words are accessible to all GPUs.
    ///
    /// # Errors
    /// CUDA's when there is no pinned memory; [`Error::Refused`] when no thread can be created.
    pub fn start(gpu: &Arc<Gpu>, options: &ProxyOptions) -> Result<Arc<ProxyThread>> {
        let words = PinnedMemory::allocate(gpu, (SLOTS * SLOT_WORDS * 4) as u64)?;
        let alarm = Alarm::new()?;
        // All orders are urgent: each is waited for.
        let orders = Mailbox::new(1, Arc::clone(&alarm), drop);
        let (rung, refused) = Default::default();
        let watched = Mutex::new(Vec::new());
        let shared = Arc::new(Shared { words, orders, watched, rung, refused });
        let ProxyOptions { core, idle } = *options;
        let ringer = Ringer {
            shared: Arc::clone(&shared),
            served: Vec::new(),
            idling: Idling::new(idle),
            origin: Instant::now(),
            next_look: Time::ZERO,
        };
        let place = core.map(Pinning::on).unwrap_or_default();
        let seat = Seat { name: "adit-doorbells".to_owned(), place, idle };
        let poller = Poller::spawn(seat, alarm, || Some(ringer))?;
        let free = Mutex::new((0..SLOTS).rev().collect());
        Ok(Arc::new(ProxyThread { shared, free, poller }))
    }

    /// Serves a queue with rings of `depths` entries from now on, by its tail and head doorbells. Only the proxy rings
    /// these until the slot is dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is full or has failed.
    pub fn add(
        self: &Arc<Self>,
        doorbells: [Doorbell; 2],
        depths: impl Into<RingDepths>,
    ) -> Result<Slot> {
        self.check()?;
        let index = self.free().pop().ok_or_else(|| {
            let why = format!("it serves {SLOTS} queues already");
            Error::unavailable(WHAT, why, "use fewer queues, or another proxy for some")
        })?;
        let slot = Slot { proxy: Arc::clone(self), index };
        // The initial values of its doorbells.
        self.shared.words_of(index).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let served = Served { index, doorbells, depths: depths.into(), last: [0; 2] };
        self.carry_out(|reply| Order::Serve(served, reply))?;
        Ok(slot)
    }

    /// Lets the thread sleep only while `work` says that none is under way, for as long as it exists. Call
    /// [`ProxyThread::wake`] when some begins.
    pub(crate) fn watch(&self, work: &Arc<Ringing>) {
        self.shared.watched().push(Arc::downgrade(work));
        self.wake();
    }

    /// Keeps the thread awake until the result is dropped.
    pub(crate) fn keep_awake(&self) -> Arc<Ringing> {
        let always: Arc<Ringing> = Arc::new(|| true);
        self.watch(&always);
        always
    }

    /// Tells the thread that work begins, before any of its doorbells is rung.
    pub(crate) fn wake(&self) {
        self.poller.alarm().tell();
    }

    /// Checks that the thread still runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] once it has panicked.
    pub fn check(&self) -> Result<()> {
        if self.poller.is_over() { Err(over()) } else { Ok(()) }
    }

    pub fn stats(&self) -> ProxyStats {
        let queues = (SLOTS - self.free().len()) as u32;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyStats { rung: count(&self.shared.rung), refused: count(&self.shared.refused), queues }
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has carried out an order.
    fn carry_out(&self, order: impl FnOnce(Reply<()>) -> Order) -> Result<()> {
        let (reply, mut receipt) = pair();
        // An order that is refused drops its reply.
        let _ = self.shared.orders.send_urgent(order(reply));
        match receipt.wait_until(Some(Instant::now() + PATIENCE)) {
            Some(Ok(())) => Ok(()),
            Some(Err(Dropped)) => Err(over()),
            None => {
                let what = format!("{WHAT} to take note of its queues");
                Err(Error::timed_out(what, PATIENCE, "see what keeps its core busy"))
            }
        }
    }
}

fn over() -> Error {
    let why = "its thread has panicked: the doorbells rung since are lost";
    Error::unavailable(WHAT, why, "close the rings and make them anew")
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        self.poller.stop();
        if self.poller.ends_by(Instant::now() + PATIENCE) {
            tracing::debug!("{WHAT} stops: {:?}", self.stats());
        } else {
            tracing::error!("{WHAT} does not stop; its memory stays with it");
        }
    }
}

impl Slot {
    /// Returns the GPU's addresses of the tail's and the head's word.
    pub fn addresses(&self) -> [u64; 2] {
        let at = self.proxy.shared.words.address() + (self.index * SLOT_WORDS * 4) as u64;
        [at, at + 4]
    }

    /// Returns the words, for ringing from the CPU.
    #[cfg(test)]
    pub fn words(&self) -> &[AtomicU32] {
        &self.proxy.shared.words_of(self.index)[..2]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let index = self.index;
        // Reused only when the thread has let go of it, or has ended.
        match self.proxy.carry_out(|reply| Order::Leave { index, reply }) {
            Err(error @ Error::TimedOut { .. }) => {
                tracing::error!("a queue's doorbells stay with a thread that hangs: {error}");
            }
            _ => self.proxy.free().push(index),
        }
    }
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, Vec<Weak<Ringing>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether doorbells may be rung at any time; `None` if nothing tells.
    fn is_busy(&self) -> Option<bool> {
        let mut watched = self.watched();
        watched.retain(|work| work.strong_count() > 0);
        let all: Vec<Arc<Ringing>> = watched.iter().filter_map(Weak::upgrade).collect();
        // Asked without the lock: the last of its owners may be here.
        drop(watched);
        (!all.is_empty()).then(|| all.iter().any(|work| work()))
    }

    fn words_of(&self, index: usize) -> &[AtomicU32] {
        &self.words.words()[index * SLOT_WORDS..][..SLOT_WORDS]
    }

    /// Rings the changed doorbells of one queue; returns their number.
    fn turn(&self, queue: &mut Served) -> u64 {
        let mut rung = 0;
        let words = self.words_of(queue.index);
        let entries = [queue.depths.submission, queue.depths.completion];
        for (which, doorbell) in queue.doorbells.iter().enumerate() {
            let value = words[which].load(Ordering::Acquire);
            if value == queue.last[which] {
                continue;
            }
            queue.last[which] = value;
            if value < entries[which] {
                // Counted first, so that an observer of the ring sees it counted.
                self.rung.fetch_add(1, Ordering::Relaxed);
                doorbell.ring(value);
                rung += 1;
            } else {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        rung
    }
}

impl Ringer {
    /// Decides what the thread does after a round, in which `moved` doorbells were rung.
    fn rest(&mut self, moved: usize) -> Round {
        let round = |moved, naps| Round { moved, due_in: Duration::MAX, naps };
        let now = Time::ZERO + self.origin.elapsed();
        if moved > 0 || !matches!(self.idling.rest(now), Rest::Sleep(_)) {
            return round(moved, true);
        }
        if now >= self.next_look {
            match self.shared.is_busy() {
                Some(true) => self.next_look = now + LOOK_EVERY,
                Some(false) => return round(0, false),
                // No word of the GPU's ends a sleep, and nothing else does.
                None => return round(0, !self.served.is_empty()),
            }
        }
        std::thread::yield_now();
        // As if something had moved: the thread goes on.
        round(1, true)
    }
}

impl Worker for Ringer {
    type End = ();

    fn round(&mut self) -> Round {
        while let Some(order) = self.shared.orders.take_urgent() {
            match order {
                Order::Serve(queue, reply) => {
                    self.served.push(queue);
                    reply.send(());
                }
                Order::Leave { index, reply } => {
                    self.served.retain(|queue| queue.index != index);
                    reply.send(());
                }
            }
        }
        let rung: u64 = self.served.iter_mut().map(|queue| self.shared.turn(queue)).sum();
        if rung > 0 {
            self.idling.busy();
        }
        self.rest(rung as usize)
    }

    fn end(&mut self) -> Option<()> {
        Some(())
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.shared.orders.close();
    }
}

#[cfg(test)]
mod tests;
