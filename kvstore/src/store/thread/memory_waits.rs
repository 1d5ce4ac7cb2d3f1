//! Requests of one thread that wait for memory of the pools.
//!
//! Each request has a place in its pool's queue and a waker of its own, which fires when its memory is there or its
//! caller abandons it. An abandoned request leaves the queue at once.
//!
//! Memory comes back by itself while the store carries out requests. If none has come back for [`STILL_MAX`], callers
//! hold it, in values and buffers, and they may be waiting for the very requests that wait here. These then get
//! memory beyond the pool, so that no request waits for a caller. A caller that wants a buffer to fill does wait: so
//! a server bounds the bytes that it takes in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use adit_driver::{Device, Time};
use smallvec::SmallVec;

use crate::error::Error;
use crate::store::answer::{ReadyList, Wanted};
use crate::store::memory::{Pool, PoolBuffer, Pools, QueuedTake};
use crate::store::request::{Lend, Unequipped};

/// How long requests wait though no memory comes back.
const STILL_MAX: Duration = Duration::from_millis(100);
/// While requests get memory beyond a pool, those in progress take at most this fraction of the pool's size: one part
/// in 4.
const SPILL_PARTS: usize = 4;
/// How soon a thread looks again for requests of other threads that have ended.
const LOOK: Duration = Duration::from_millis(10);

/// A request that waits for memory: one to a shard, or a caller that wants to fill it.
#[allow(
    clippy::large_enum_variant,
    reason = "most are requests, and a box would be one more allocation"
)]
pub(crate) enum MemoryWaiter {
    Request {
        /// The index of its shard on this thread.
        shard: usize,
        asked: Unequipped,
    },
    Lend(Lend),
}

impl MemoryWaiter {
    /// Returns how many bytes it lacks, and for which device, or any.
    pub(crate) fn lacks(&self) -> (usize, Option<u8>) {
        match self {
            MemoryWaiter::Request { asked, .. } => asked.lacks(),
            MemoryWaiter::Lend(lend) => (lend.len, lend.device),
        }
    }

    /// Returns when it fails if it still waits.
    pub(crate) fn deadline(&self) -> Time {
        match self {
            MemoryWaiter::Request { asked, .. } => asked.deadline(),
            MemoryWaiter::Lend(lend) => lend.deadline,
        }
    }

    /// Returns the store's end of its answer.
    pub(crate) fn reply(&self) -> &dyn Wanted {
        match self {
            MemoryWaiter::Request { asked, .. } => asked.reply(),
            MemoryWaiter::Lend(lend) => &lend.reply,
        }
    }

    /// Answers with an error, and gives back the caller's memory.
    pub(crate) fn refuse(self, error: impl Into<Error>) {
        match self {
            MemoryWaiter::Request { asked, .. } => asked.refuse(error),
            MemoryWaiter::Lend(lend) => lend.refuse(error),
        }
    }
}

struct Waiting {
    waiter: MemoryWaiter,
    queued: QueuedTake,
}

/// How long no memory has come back to a pool.
#[derive(Clone)]
struct PoolStillness {
    /// How often memory had come back at `since`.
    returns: u64,
    /// No memory has come back since.
    since: Time,
    /// Whether that was long ago.
    is_long: bool,
}

/// The requests, by number.
pub(crate) struct MemoryWaits {
    waiting: BTreeMap<u64, Waiting>,
    /// The deadline of each.
    deadlines: BTreeSet<(Time, u64)>,
    next: u64,
    ready: Arc<ReadyList>,
    /// One for each pool.
    stills: Vec<PoolStillness>,
}

impl MemoryWaits {
    /// Creates an empty list of requests for memory of `pools`.
    pub(crate) fn new(pools: &Pools) -> MemoryWaits {
        let still = PoolStillness { returns: 0, since: Time::ZERO, is_long: false };
        MemoryWaits {
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next: 0,
            ready: ReadyList::all(std::iter::empty()),
            stills: vec![still; pools.each().count()],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a request, which waits for the memory that it lacks.
    pub(crate) fn push(&mut self, now: Time, pools: &Pools, waiter: MemoryWaiter) {
        if self.waiting.is_empty() {
            self.note(now, pools);
            let waits = self.stills.iter_mut().filter(|still| !still.is_long);
            waits.for_each(|still| still.since = now);
        }
        let number = self.next;
        self.next += 1;
        let waker = self.ready.waker(number);
        let (len, device) = waiter.lacks();
        let queued = pools.enter(len, device, waker.clone());
        waiter.reply().when_unwanted(waker);
        self.deadlines.insert((waiter.deadline(), number));
        self.waiting.insert(number, Waiting { waiter, queued });
    }

    /// Returns the next request whose memory is there, with the memory, or that was abandoned. Calls `waker` when
    /// there is another.
    pub(crate) fn granted(&mut self, waker: &Waker) -> Option<(MemoryWaiter, Option<PoolBuffer>)> {
        while !self.waiting.is_empty() {
            let number = self.ready.next(waker)?;
            let Some(Waiting { waiter, queued }) = self.waiting.get(&number) else { continue };
            let memory = queued.collect();
            if !waiter.reply().is_wanted() {
                return Some((self.remove(number), None));
            } else if memory.is_some() {
                return Some((self.remove(number), memory));
            }
        }
        None
    }

    /// Returns a request whose deadline has passed.
    pub(crate) fn overdue(&mut self, now: Time) -> Option<MemoryWaiter> {
        let (deadline, number) = *self.deadlines.first()?;
        (deadline < now).then(|| self.remove(number))
    }

    /// Returns any request.
    pub(crate) fn pop(&mut self) -> Option<MemoryWaiter> {
        let number = *self.waiting.keys().next()?;
        Some(self.remove(number))
    }

    fn remove(&mut self, number: u64) -> MemoryWaiter {
        let waiting = self.waiting.remove(&number).expect("it waits");
        let was_there = self.deadlines.remove(&(waiting.waiter.deadline(), number));
        assert!(was_there, "each request has a deadline");
        waiting.waiter
    }

    /// Returns when to look at the requests again if no waker fires.
    pub(crate) fn next_due(&self, now: Time) -> Time {
        let Some((deadline, _)) = self.deadlines.first() else { return Time::NEVER };
        let look = |still: &PoolStillness| {
            if still.is_long { now + LOOK } else { still.since + STILL_MAX }
        };
        self.stills.iter().map(look).fold(*deadline, Time::min)
    }

    /// Notes whether memory came back.
    fn note(&mut self, now: Time, pools: &Pools) {
        for (still, (pool, _)) in self.stills.iter_mut().zip(pools.each()) {
            let returns = pool.returns();
            if returns != still.returns {
                *still = PoolStillness { returns, since: now, is_long: false };
            } else if !self.waiting.is_empty() && now.since(still.since) >= STILL_MAX {
                still.is_long = true;
            }
        }
    }

    /// Allocates memory for requests that would otherwise wait for callers. `stuck` returns the bytes of a pool that
    /// are held by requests which wait for these.
    pub(crate) fn spill(
        &mut self,
        now: Time,
        pools: &Pools,
        devices: &[Device],
        stuck: &dyn Fn(&Arc<Pool>) -> usize,
    ) -> SmallVec<[(MemoryWaiter, PoolBuffer); 1]> {
        self.note(now, pools);
        let mut spilled = SmallVec::<[(u64, PoolBuffer); 1]>::new();
        for (still, (pool, device)) in self.stills.iter_mut().zip(pools.each()) {
            if !still.is_long {
                continue;
            }
            let in_requests = pool.in_requests().saturating_sub(stuck(pool));
            for (number, len) in spillable(&self.waiting, pool, in_requests) {
                match pool.allocate(&devices[device], len) {
                    Ok(memory) => spilled.push((number, memory)),
                    Err(error) => {
                        tracing::warn!("requests wait on, because all memory is held: {error}");
                        (still.since, still.is_long) = (now, false);
                        break;
                    }
                }
            }
        }
        let take = |(number, memory): (u64, PoolBuffer)| {
            pools.counts.spills.fetch_add(1, Ordering::Relaxed);
            pools.counts.spilled_bytes.fetch_add(memory.len() as u64, Ordering::Relaxed);
            (self.remove(number), memory)
        };
        spilled.into_iter().map(take).collect()
    }
}

/// Returns the requests that may have memory beyond the pool now, in order, with what they need in bytes. `in_requests`
/// bytes of the pool come back by themselves.
fn spillable(
    waiting: &BTreeMap<u64, Waiting>,
    pool: &Arc<Pool>,
    mut in_requests: usize,
) -> impl Iterator<Item = (u64, usize)> {
    let most = pool.bytes() / SPILL_PARTS;
    let is_for = |waiting: &Waiting| {
        matches!(waiting.waiter, MemoryWaiter::Request { .. })
            && Arc::ptr_eq(waiting.queued.pool(), pool)
    };
    let all = waiting.iter().filter(move |(_, waiting)| is_for(waiting));
    all.map_while(move |(number, waiting)| {
        let with = in_requests + waiting.queued.bytes();
        (in_requests == 0 || with <= most).then(|| {
            in_requests = with;
            (*number, waiting.queued.len())
        })
    })
}
