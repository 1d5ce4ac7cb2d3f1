//! The end of a store: its threads report to one place, which answers the caller of `close`. The last thread records on
//! the media that the store has stopped, if all did so in order.
//!
//! No caller waits for the threads to end unless it asks to. The devices count as being released meanwhile
//! ([`crate::store::devices::release`]).

use std::sync::{Arc, Mutex, MutexGuard};

use adit_driver::runtime::lock;

use crate::error::{Error, Failure, Result};
use crate::media::format::Set;
use crate::shard::Stats;
use crate::store::answer::Reply;
use crate::store::devices::release::{self, DeviceNames};
use crate::store::devices::{Devices, OpenOptions};
use crate::store::memory::{Pools, Unfinished};

/// The end that a store's threads have in common.
pub(crate) struct Exit {
    state: Mutex<ExitState>,
    pools: Arc<Pools>,
    /// The names of the store's devices.
    names: DeviceNames,
}

#[derive(Default)]
struct ExitState {
    /// Threads that have not ended.
    left: usize,
    stats: Stats,
    /// The shards whose threads have ended, with the sequence below which their journals were flushed.
    ends: Vec<(u16, u64)>,
    /// The store's devices, for the last thread to record the ends.
    devices: Option<(Devices, Set, OpenOptions)>,
    /// The first failure.
    failure: Option<Error>,
    /// The caller that waits for the end.
    reply: Option<Reply<Stats>>,
    /// Whether the store is being closed.
    is_closing: bool,
}

/// How a thread ended.
#[derive(Default)]
pub(crate) struct ThreadEnd {
    pub(crate) stats: Stats,
    /// Its shards, with the sequence below which their journals were flushed.
    pub(crate) ends: Vec<(u16, u64)>,
}

/// A thread's part of the exit, which it reports when this is dropped.
pub(crate) struct ThreadExit {
    exit: Arc<Exit>,
    end: Option<Result<ThreadEnd>>,
}

impl ThreadExit {
    /// Sets the thread's result. Without one it has failed.
    pub(crate) fn with(&mut self, end: Result<ThreadEnd>) {
        self.end = Some(end);
    }

    /// Notes at once that the thread has panicked.
    pub(crate) fn died(&mut self, why: &str) {
        let died = Error::died(why);
        lock(&self.exit.state).failure.get_or_insert(died.clone());
        self.end = Some(Err(died));
    }
}

impl Drop for ThreadExit {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or(Err(Error::Failed(Failure::Closed)));
        self.exit.left(end);
    }
}

impl Exit {
    /// Creates the exit of a store's threads on devices of these names, with the part of each.
    pub(crate) fn new(
        threads: usize,
        pools: Arc<Pools>,
        names: DeviceNames,
        devices: (Devices, Set, OpenOptions),
    ) -> (Arc<Exit>, Vec<ThreadExit>) {
        let state = ExitState { left: threads, devices: Some(devices), ..Default::default() };
        let exit = Arc::new(Exit { state: Mutex::new(state), pools, names });
        let part = |_| ThreadExit { exit: Arc::clone(&exit), end: None };
        let parts = (0..threads).map(part).collect();
        (exit, parts)
    }

    /// Adds the part of a thread that started later and has no shards. Returns `None` if the store is being closed.
    pub(crate) fn join(self: &Arc<Exit>) -> Option<ThreadExit> {
        let mut state = lock(&self.state);
        if state.is_closing || state.left == 0 {
            return None;
        }
        state.left += 1;
        Some(ThreadExit { exit: Arc::clone(self), end: Some(Ok(ThreadEnd::default())) })
    }

    /// Notes that the store is being closed, before its threads begin to end. Returns true to exactly one concurrent
    /// caller.
    pub(crate) fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_closing, true) {
            return false;
        }
        if state.left > 0 {
            release::begin(&self.names);
        }
        true
    }

    /// Returns the first failure of a thread, if there is any.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.state).failure.clone()
    }

    /// Answers `reply` once all threads have ended.
    pub(crate) fn tell(&self, reply: Reply<Stats>) {
        let mut state = lock(&self.state);
        state.reply = Some(reply);
        self.finish(state);
    }

    fn left(&self, end: Result<ThreadEnd>) {
        let mut state = lock(&self.state);
        match end {
            Ok(ThreadEnd { stats, ends }) => {
                state.stats += stats;
                state.ends.extend(ends);
            }
            Err(error) => _ = state.failure.get_or_insert(error),
        }
        if state.left == 1 {
            let devices = state.devices.take().filter(|_| state.failure.is_none());
            let ends = std::mem::take(&mut state.ends);
            // All others have ended, and the caller of `close` waits for this one.
            drop(state);
            if let Some(store) = devices {
                record_stop(store, ends);
            }
            state = lock(&self.state);
        }
        state.left -= 1;
        if state.left == 0 {
            release::end(&self.names);
        }
        self.finish(state);
    }

    /// Delivers the result to the caller of `close`, or a failure to the log, once all threads have ended.
    fn finish(&self, mut state: MutexGuard<'_, ExitState>) {
        if state.left > 0 {
            return;
        }
        // The failure stays, because closing the store later reports it again.
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
}

/// Records that a store has stopped, unless one of its shards has no journal.
fn record_stop((devices, set, options): (Devices, Set, OpenOptions), mut ends: Vec<(u16, u64)>) {
    ends.sort_unstable();
    let ends: Vec<u64> = ends.into_iter().map(|(_, end)| end).collect();
    if ends.len() == usize::from(set.shards()) {
        devices.record_stop(&options, &set, &ends);
    }
}
