//! The end of a store: its threads report to one place, which answers the caller of `close`. The last thread records on
//! the media that the store has stopped, if all did so in order.
//!
//! No caller waits for the threads to end unless it asks to. So that a store can be opened as soon as its last handle
//! was dropped, the process knows which devices are being released, and opening them waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_driver::{Device, Target};

use super::devices::Devices;
use super::open::OpenOptions;
use super::pending::{Reply, Unfinished};
use super::pool::Pools;
use crate::error::{Error, Result};
use crate::media::format::{self, Set};
use crate::shard::{Failure, Stats};

/// How long opening devices waits for them to be released.
const RELEASE_MAX: Duration = Duration::from_secs(60);

/// How long the last checkpoints, for the order of eviction, take at most.
const KEEP_AGES_MAX: Duration = Duration::from_secs(5);

/// Returns how long the last checkpoints of a store with this timeout may take: closing has more time than that.
pub(super) fn keep_ages_within(timeout: Duration) -> Duration {
    KEEP_AGES_MAX.min(timeout / 2)
}

/// The names of devices that stores of this process release.
static RELEASING: (Mutex<Vec<Arc<[String]>>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

/// The common end of a store's threads.
pub(super) struct Exit {
    state: Mutex<State>,
    pools: Arc<Pools>,
    /// The names of the store's devices.
    names: Arc<[String]>,
}

struct State {
    /// Threads that have not ended.
    left: usize,
    stats: Stats,
    /// Shards whose threads have ended, and below which sequence their journals were flushed.
    ends: Vec<(u16, u64)>,
    /// What the last thread needs to record them.
    open: Option<Open>,
    /// The first failure.
    failure: Option<Error>,
    /// The caller that waits for the end.
    reply: Option<Reply<Stats>>,
    /// Whether the store is being closed.
    is_closing: bool,
}

/// An open store's devices.
pub(super) struct Open {
    pub(super) devices: Devices,
    pub(super) set: Set,
    pub(super) options: OpenOptions,
}

impl Open {
    /// Records on the media that all shards have stopped: the journal of shard n was flushed below `ends[n]`. Without
    /// that, damage to the last blocks looks like the end of the journal, so failing is no error.
    pub(super) fn record_stop(&self, ends: &[u64]) {
        let Open { devices, set, options } = self;
        let lanes = devices.lanes(options, &[]);
        let recorded = lanes.and_then(|mut lanes| {
            format::end_session(&mut lanes, set, options.durability, ends, &mut devices.clock())
        });
        if let Err(error) = recorded {
            tracing::warn!("{error}: the store is closed, and the superblocks do not say so");
        }
    }

    /// Like [`Open::record_stop`], for shards in any order; does nothing unless each has a journal.
    fn record_stop_of(&self, mut ends: Vec<(u16, u64)>) {
        ends.sort_unstable();
        let ends: Vec<u64> = ends.into_iter().map(|(_, end)| end).collect();
        if ends.len() == usize::from(self.set.shards()) {
            self.record_stop(&ends);
        }
    }
}

/// How a thread ended.
#[derive(Default)]
pub(super) struct End {
    pub(super) stats: Stats,
    /// Its shards, and below which sequence their journals were flushed.
    pub(super) ends: Vec<(u16, u64)>,
}

/// A thread's part of the exit, which it reports when this is dropped.
pub(super) struct Leaving {
    exit: Arc<Exit>,
    end: Option<Result<End>>,
}

impl Leaving {
    /// Sets the thread's result. Without one it has failed.
    pub(super) fn with(&mut self, end: Result<End>) {
        self.end = Some(end);
    }

    /// Notes at once that the thread has panicked.
    pub(super) fn died(&mut self, why: &str) {
        let died = Error::died(why);
        self.exit.lock().failure.get_or_insert(died.clone());
        self.end = Some(Err(died));
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or(Err(Error::Failed(Failure::Closed)));
        self.exit.left(end);
    }
}

impl Exit {
    /// Creates the exit of a store's threads on devices of these names, with the part of each.
    pub(super) fn new(
        threads: usize,
        pools: Arc<Pools>,
        names: Vec<String>,
        open: Open,
    ) -> (Arc<Exit>, Vec<Leaving>) {
        let state = State {
            left: threads,
            stats: Stats::default(),
            ends: Vec::new(),
            open: Some(open),
            failure: None,
            reply: None,
            is_closing: false,
        };
        let exit = Arc::new(Exit { state: Mutex::new(state), pools, names: names.into() });
        let part = |_| Leaving { exit: Arc::clone(&exit), end: None };
        let parts = (0..threads).map(part).collect();
        (exit, parts)
    }

    /// Adds the part of a thread that started later and has no shards. Returns `None` if the store is being closed.
    pub(super) fn join(self: &Arc<Exit>) -> Option<Leaving> {
        let mut state = self.lock();
        if state.is_closing || state.left == 0 {
            return None;
        }
        state.left += 1;
        Some(Leaving { exit: Arc::clone(self), end: Some(Ok(End::default())) })
    }

    /// Notes that the store is being closed, before its threads begin to end. Returns false if it was before.
    pub(super) fn begin(&self) -> bool {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_closing, true) {
            return false;
        }
        if state.left > 0 {
            lock(&RELEASING.0).push(Arc::clone(&self.names));
        }
        true
    }

    /// Returns the first failure of a thread, if there is any.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Answers `reply` once all threads have ended.
    pub(super) fn tell(&self, reply: Reply<Stats>) {
        let mut state = self.lock();
        state.reply = Some(reply);
        self.finish(state);
    }

    fn left(&self, end: Result<End>) {
        let mut state = self.lock();
        match end {
            Ok(End { stats, ends }) => {
                state.stats += stats;
                state.ends.extend(ends);
            }
            Err(error) => _ = state.failure.get_or_insert(error),
        }
        if state.left == 1 {
            let open = state.open.take();
            let ends = state.failure.is_none().then(|| std::mem::take(&mut state.ends));
            // All others have ended, and the caller of `close` waits for this one.
            drop(state);
            open.zip(ends).into_iter().for_each(|(open, ends)| open.record_stop_of(ends));
            state = self.lock();
        }
        state.left -= 1;
        if state.left == 0 {
            let mut releasing = lock(&RELEASING.0);
            let of_this = releasing.iter().position(|names| Arc::ptr_eq(names, &self.names));
            of_this.into_iter().for_each(|at| drop(releasing.swap_remove(at)));
            RELEASING.1.notify_all();
        }
        self.finish(state);
    }

    /// Gives the result to whom it may concern, once it is there.
    fn finish(&self, mut state: MutexGuard<'_, State>) {
        if state.left > 0 {
            return;
        }
        // The failure stays: threads that died are told of when the store is closed.
        let (failure, mut stats, reply) = (state.failure.clone(), state.stats, state.reply.take());
        drop(state);
        self.pools.counts.add_to(&mut stats);
        match (reply, failure) {
            (Some(reply), None) => reply.send(Ok(stats)),
            (Some(reply), Some(failure)) => reply.send(Err(Unfinished::new(failure))),
            (None, Some(failure)) => tracing::error!("the end of a store: {failure}"),
            (None, None) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Waits until no store of this process is releasing one of these devices. After [`RELEASE_MAX`], opening them says who
/// has them.
pub(super) fn wait_for_release(targets: &[Target], devices: &[Device]) {
    let names = names(targets, devices);
    let until = Instant::now() + RELEASE_MAX;
    let is_releasing = |all: &[Arc<[String]>]| {
        all.iter().flat_map(|of| of.iter()).any(|name| names.contains(name))
    };
    let mut releasing = lock(&RELEASING.0);
    while is_releasing(&releasing) {
        match until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => {
                let woken = RELEASING.1.wait_timeout(releasing, left);
                releasing = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Returns the names of a store's devices: of those that are open, or else of the targets.
pub(super) fn names(targets: &[Target], devices: &[Device]) -> Vec<String> {
    if devices.is_empty() {
        return targets.iter().map(ToString::to_string).collect();
    }
    devices.iter().map(|device| device.info().device.clone()).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
