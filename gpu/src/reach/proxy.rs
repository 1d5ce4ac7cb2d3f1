//! The CPU doorbell proxy: a thread that turns words in pinned memory into register writes, for GPUs that cannot ring
//! themselves.
//!
//! The GPU stores a doorbell's value into a word of the proxy; the thread sees the change and rings. No change can go
//! unseen by repeating a value: a ring is never full, so a tail cannot come round to its old value before the device
//! has been told, and a completion queue's head follows the device. So one thread serves all queues of all controllers,
//! and changes made while it is busy are merged into one ring.
//!
//! The thread polls, then yields, then naps for at most [`ProxyOptions::idle`]'s limit, which bounds a doorbell's
//! delay. Stopping it and removing queues have deadlines; if it does not answer, what it uses is leaked. A panic ends
//! the thread, and [`ProxyThread::check`] reports it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::bus::Doorbell;
use adit_driver::reactor::{Idling, Rest, pin};

use crate::cuda::{Gpu, PinnedMemory};
use crate::error::{Error, Result};
use crate::options::ProxyOptions;

/// Queues that one proxy serves.
const SLOTS: usize = 1024;
/// Words per queue: a cache line, with the tail first and the head next to it.
const SLOT_WORDS: usize = 16;
/// How long the thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest sleep without a queue to serve.
const UNUSED: Duration = Duration::from_millis(100);
const WHAT: &str = "the doorbell proxy";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    pub rung: u64,
    /// Values out of range for the queue's doorbell, which were not rung.
    pub refused: u64,
    pub queues: u32,
}

/// A running proxy; stops when the last handle and the last queue are gone.
#[derive(Debug)]
pub struct ProxyThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
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
    slots: Mutex<Vec<State>>,
    /// Incremented with each change of the slots.
    version: AtomicU64,
    /// The version that the thread has applied.
    seen: AtomicU64,
    stops: AtomicBool,
    failed: AtomicBool,
    rung: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
enum State {
    Free,
    Serving(Entry),
    /// Removed, but the thread may not know that yet.
    Leaving,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Unique over all queues ever served.
    id: u64,
    /// Tail and head.
    doorbells: [Doorbell; 2],
    depth: u32,
}

/// The thread's view of a queue.
#[derive(Debug)]
struct Served {
    index: usize,
    entry: Entry,
    /// The values last rung.
    last: [u32; 2],
}

impl ProxyThread {
    /// Starts the thread. Its words are accessible to all GPUs.
    ///
    /// # Errors
    /// CUDA's when there is no pinned memory; [`Error::Refused`] when no thread can be created.
    pub fn start(gpu: &Arc<Gpu>, options: &ProxyOptions) -> Result<Arc<ProxyThread>> {
        let words = PinnedMemory::allocate(gpu, (SLOTS * SLOT_WORDS * 4) as u64)?;
        let shared = Arc::new(Shared {
            words,
            slots: Mutex::new(Vec::new()),
            version: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            stops: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            rung: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let (theirs, options) = (Arc::clone(&shared), options.clone());
        let builder = std::thread::Builder::new().name("adit-doorbells".to_owned());
        let thread = builder.spawn(move || theirs.run(&options)).map_err(|why| {
            Error::refused(
                WHAT,
                format!("its thread does not start: {why}"),
                "raise the thread limit (ulimit -u)",
            )
        })?;
        Ok(Arc::new(ProxyThread { shared, thread: Some(thread) }))
    }

    /// Serves a queue of `depth` entries from now on, by its tail and head doorbells. Only the proxy rings these until
    /// the slot is dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is full or has failed.
    pub fn add(self: &Arc<Self>, doorbells: [Doorbell; 2], depth: u32) -> Result<Slot> {
        self.check()?;
        let index = self.shared.take_slot(doorbells, depth)?;
        let slot = Slot { proxy: Arc::clone(self), index };
        self.settle()?;
        Ok(slot)
    }

    /// Checks that the thread still runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] once it has panicked.
    pub fn check(&self) -> Result<()> {
        if self.shared.failed.load(Ordering::Acquire) {
            let why = "its thread has panicked: the doorbells rung since are lost";
            return Err(Error::unavailable(WHAT, why, "close the rings and make them anew"));
        }
        Ok(())
    }

    pub fn stats(&self) -> ProxyStats {
        let is_served = |state: &&State| matches!(state, State::Serving(_));
        let queues = self.shared.slots().iter().filter(is_served).count() as u32;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyStats { rung: count(&self.shared.rung), refused: count(&self.shared.refused), queues }
    }

    /// Waits until the thread has applied the current entries.
    fn settle(&self) -> Result<()> {
        let version = self.shared.version.fetch_add(1, Ordering::AcqRel) + 1;
        self.unpark();
        let goes_by_it = || {
            self.shared.seen.load(Ordering::Acquire) >= version
                || self.shared.failed.load(Ordering::Acquire)
        };
        if wait_until(goes_by_it) {
            return self.check();
        }
        Err(Error::TimedOut {
            waited_for: format!("{WHAT} to take note of its queues"),
            after: PATIENCE,
            fix: "see what keeps its core busy".to_owned(),
        })
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.as_ref().map(JoinHandle::thread) {
            Thread::unpark(thread);
        }
    }
}

impl Drop for ProxyThread {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        self.unpark();
        let Some(thread) = self.thread.take() else { return };
        if wait_until(|| thread.is_finished()) {
            // Its panic was caught, and `check` reports it.
            let _ = thread.join();
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
        let shared = &self.proxy.shared;
        shared.slots()[self.index] = State::Leaving;
        // Reused only when the thread has let go of it, or has ended.
        match self.proxy.settle() {
            Err(error @ Error::TimedOut { .. }) => {
                tracing::error!("a queue's doorbells stay with a thread that hangs: {error}");
            }
            _ => shared.slots()[self.index] = State::Free,
        }
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, Vec<State>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words_of(&self, index: usize) -> &[AtomicU32] {
        &self.words.words()[index * SLOT_WORDS..][..SLOT_WORDS]
    }

    /// Puts a queue into a free slot with zeroed words, the initial values of its doorbells.
    fn take_slot(&self, doorbells: [Doorbell; 2], depth: u32) -> Result<usize> {
        let mut slots = self.slots();
        let free = slots.iter().position(|state| matches!(state, State::Free));
        let index = free.unwrap_or(slots.len());
        if index == SLOTS {
            let why = format!("it serves {SLOTS} queues already");
            return Err(Error::unavailable(
                WHAT,
                why,
                "use fewer queues, or another proxy for some",
            ));
        }
        if index == slots.len() {
            slots.push(State::Free);
        }
        self.words_of(index).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // Every change increments the version, so this value is unique.
        let id = self.version.fetch_add(1, Ordering::AcqRel);
        slots[index] = State::Serving(Entry { id, doorbells, depth });
        Ok(index)
    }

    fn run(&self, options: &ProxyOptions) {
        if let Some(core) = options.core {
            pin(core);
        }
        if catch_unwind(AssertUnwindSafe(|| self.serve(options))).is_err() {
            self.failed.store(true, Ordering::Release);
        }
    }

    fn serve(&self, options: &ProxyOptions) {
        let origin = Instant::now();
        let (mut idling, mut served) = (Idling::new(options.idle), Vec::new());
        while !self.stops.load(Ordering::Acquire) {
            self.take_note(&mut served);
            let rung: u64 = served.iter_mut().map(|queue| self.turn(queue)).sum();
            if rung > 0 {
                idling.busy();
                continue;
            }
            match idling.rest(Time::ZERO + origin.elapsed()) {
                _ if served.is_empty() => std::thread::park_timeout(UNUSED),
                Rest::Spin => std::hint::spin_loop(),
                Rest::Pause => std::thread::yield_now(),
                Rest::Sleep(nap) => std::thread::park_timeout(nap),
            }
        }
    }

    /// Applies the current slots, if they changed.
    fn take_note(&self, served: &mut Vec<Served>) {
        let version = self.version.load(Ordering::Acquire);
        if version == self.seen.load(Ordering::Relaxed) {
            return;
        }
        let before = std::mem::take(served);
        let last = |id| before.iter().find(|queue| queue.entry.id == id).map(|queue| queue.last);
        for (index, state) in self.slots().iter().enumerate() {
            if let State::Serving(entry) = state {
                let last = last(entry.id).unwrap_or_default();
                served.push(Served { index, entry: entry.clone(), last });
            }
        }
        self.seen.store(version, Ordering::Release);
    }

    /// Rings the changed doorbells of one queue; returns their number.
    fn turn(&self, queue: &mut Served) -> u64 {
        let mut rung = 0;
        let words = self.words_of(queue.index);
        for (which, doorbell) in queue.entry.doorbells.iter().enumerate() {
            let value = words[which].load(Ordering::Acquire);
            if value == queue.last[which] {
                continue;
            }
            queue.last[which] = value;
            if value < queue.entry.depth {
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

/// Waits for another thread, up to the time limit.
fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

#[cfg(test)]
mod tests;
