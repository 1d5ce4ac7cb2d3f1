//! The CPU doorbell proxy: a thread that turns words in pinned memory into register writes, for GPUs that cannot ring themselves.
//!
//! The GPU stores a doorbell's value into a word of the proxy's; the thread sees that the word has changed and rings. No change can be
//! missed for looking the same: a tail cannot come round to where it was without the device having been told of it, for
//! a ring is never full, and a completion queue's head follows the device. So one thread serves all queues of all controllers, and
//! what is written while it is busy is rung in one.
//!
//! It polls, then yields, then naps for no longer than [`ProxyOptions::idle`] says, which bounds how late a doorbell is. It
//! is stopped, and queues are taken from it, with deadlines; if it does not answer, what it uses is leaked. A panic
//! of the thread ends it, and [`ProxyThread::check`] says so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::bus::Doorbell;
use adit_driver::reactor::{Idle, Idling, Rest, pin};

use crate::cuda::{Gpu, PinnedMemory};
use crate::error::{Error, Result};

/// Queues that one proxy serves.
const SLOTS: usize = 1024;
/// Words of a queue: its own cache line, with the tail first and the head next to it.
const SLOT_WORDS: usize = 16;
/// How long the thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it sleeps with no queue to serve: until there is one, or this long.
const UNUSED: Duration = Duration::from_millis(100);
const WHAT: &str = "the doorbell proxy";

/// How a proxy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// The core that its thread is pinned to; where that is refused it runs where the system puts it, and the log says so.
    /// Default none.
    pub core: Option<usize>,
    /// When it goes from polling to yielding to napping. Default 200 us, 200 us, and naps of at most 50 us.
    pub idle: Idle,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        let us = Duration::from_micros;
        ProxyOptions { core: None, idle: Idle { spin: us(200), pause: us(200), sleep_max: us(50) } }
    }
}

/// What a proxy has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyStats {
    /// Doorbells rung.
    pub(crate) rung: u64,
    /// Values that no doorbell of the queue takes, which were not rung.
    pub(crate) refused: u64,
    /// Queues served now.
    pub(crate) queues: u32,
}

/// A running proxy; stopped when the last handle and the last queue are gone.
#[derive(Debug)]
pub(crate) struct ProxyThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A queue's words; taken from the proxy on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    proxy: Arc<ProxyThread>,
    index: usize,
}

#[derive(Debug)]
struct Shared {
    words: PinnedMemory,
    slots: Mutex<Vec<State>>,
    /// Raised with each change of the slots.
    version: AtomicU64,
    /// The version that the thread goes by.
    seen: AtomicU64,
    stops: AtomicBool,
    failed: AtomicBool,
    rung: AtomicU64,
    refused: AtomicU64,
}

/// What a slot is used for.
#[derive(Debug)]
enum State {
    Free,
    Serving(Entry),
    /// By nobody any more, but the thread may not know that yet.
    Leaving,
}

/// A queue that is served.
#[derive(Clone, Debug)]
struct Entry {
    /// Different for each queue there ever was.
    id: u64,
    /// Tail and head.
    doorbells: [Doorbell; 2],
    depth: u32,
}

/// A queue as the thread has it.
#[derive(Debug)]
struct Served {
    index: usize,
    entry: Entry,
    /// What was last rung.
    last: [u32; 2],
}

impl ProxyThread {
    /// Starts the thread. Its words are for all GPUs.
    ///
    /// # Errors
    /// CUDA's where there is no pinned memory; [`Error::Refused`] where there is no thread.
    pub(crate) fn start(gpu: &Arc<Gpu>, options: &ProxyOptions) -> Result<Arc<ProxyThread>> {
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

    /// Serves a queue of `depth` entries from now on: its tail and head doorbells, which nobody else rings until the slot is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it is full, or has failed.
    pub(crate) fn add(self: &Arc<Self>, doorbells: [Doorbell; 2], depth: u32) -> Result<Slot> {
        self.check()?;
        let index = self.shared.take_slot(doorbells, depth)?;
        let slot = Slot { proxy: Arc::clone(self), index };
        self.settle()?;
        Ok(slot)
    }

    /// An error once the thread has ended by itself.
    ///
    /// # Errors
    /// [`Error::Unavailable`] then.
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.failed.load(Ordering::Acquire) {
            let why = "its thread has panicked: the doorbells rung since are lost";
            return Err(Error::unavailable(WHAT, why, "close the rings and make them anew"));
        }
        Ok(())
    }

    /// What it has done.
    pub(crate) fn stats(&self) -> ProxyStats {
        let is_served = |state: &&State| matches!(state, State::Serving(_));
        let queues = self.shared.slots().iter().filter(is_served).count() as u32;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyStats { rung: count(&self.shared.rung), refused: count(&self.shared.refused), queues }
    }

    /// Has the thread go by the entries as they are now.
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
            // Its panic was caught, and is told by `check`.
            let _ = thread.join();
            tracing::debug!("{WHAT} stops: {:?}", self.stats());
        } else {
            tracing::error!("{WHAT} does not stop; its memory stays with it");
        }
    }
}

impl Slot {
    /// Where the GPU finds the tail's and the head's word.
    pub(crate) fn addresses(&self) -> [u64; 2] {
        let at = self.proxy.shared.words.address() + (self.index * SLOT_WORDS * 4) as u64;
        [at, at + 4]
    }

    /// The words themselves, for whoever rings from the CPU.
    #[cfg(test)]
    pub(crate) fn words(&self) -> &[AtomicU32] {
        &self.proxy.shared.words_of(self.index)[..2]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let shared = &self.proxy.shared;
        shared.slots()[self.index] = State::Leaving;
        // Used again only when the thread has let go of it, or is no more.
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

    /// Puts a queue into a free slot, whose words are what its doorbells are: 0.
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
        // A version of its own is raised after each change, so it is nobody else's.
        let id = self.version.fetch_add(1, Ordering::AcqRel);
        slots[index] = State::Serving(Entry { id, doorbells, depth });
        Ok(index)
    }

    /// The thread.
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

    /// Goes by the slots as they are now, if they were changed.
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

    /// Rings what changed of one queue; how many doorbells.
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
                // Before, so that whoever sees it rung sees it counted.
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

/// Waits for what another thread does, for as long as it may take.
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
