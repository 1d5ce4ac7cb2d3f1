//! Requests of one thread that wait for memory of the pools.
//!
//! Each has a place in its pool's line and a waker of its own, which fires when its memory is there or its caller gives
//! it up. A request that is given up leaves the line at once.
//!
//! Memory comes back by itself while the store carries out requests. If none has come back for [`STILL_MAX`], it is
//! callers who hold it, in values and buffers, and they may be waiting for the very requests that wait here. So these
//! are then given memory beyond the pool, and no request waits for a caller. Callers that want a buffer to fill do wait:
//! that is how a server bounds what it takes in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use adit_driver::{Device, Time};
use smallvec::SmallVec;

use super::pool::{Pool, PoolBuffer, Pools, Turn};
use super::ready::Ready;
use super::request::{Lend, Waiter};
use crate::error::Error;
use crate::shard::Hashed;

/// How long requests wait though no memory comes back.
const STILL_MAX: Duration = Duration::from_millis(100);
/// Requests in progress take at most one part of a pool's size in so many when they get memory beyond it.
const SPILL_PARTS: usize = 4;
/// How soon a thread looks again for requests of other threads that have ended.
const LOOK: Duration = Duration::from_millis(10);

/// A request that needs memory.
#[allow(
    clippy::large_enum_variant,
    reason = "most are requests, and a box would be one more allocation"
)]
pub(super) enum Wanting {
    Request {
        /// The index of its shard on this thread.
        shard: usize,
        asked: Hashed<Waiter>,
    },
    Lend(Lend),
}

impl Wanting {
    fn deadline(&self) -> Time {
        match self {
            Wanting::Request { asked, .. } => asked.request.deadline,
            Wanting::Lend(lend) => lend.deadline,
        }
    }

    fn is_wanted(&self) -> bool {
        match self {
            Wanting::Request { asked, .. } => asked.request.reply.caller.is_wanted(),
            Wanting::Lend(lend) => lend.reply.is_wanted(),
        }
    }

    fn when_unwanted(&self, waker: Waker) {
        match self {
            Wanting::Request { asked, .. } => asked.when_unwanted(waker),
            Wanting::Lend(lend) => lend.reply.when_unwanted(waker),
        }
    }

    pub(super) fn refuse(self, error: impl Into<Error>) {
        match self {
            Wanting::Request { asked, .. } => asked.refuse_with(error),
            Wanting::Lend(lend) => lend.refuse(error),
        }
    }
}

struct Waiting {
    wanting: Wanting,
    turn: Turn,
}

/// The state of a pool's memory.
#[derive(Clone)]
struct Still {
    /// How often memory had come back.
    returns: u64,
    /// None has come back since.
    since: Time,
    /// That was long ago.
    is_long: bool,
}

/// The requests, by number.
pub(super) struct Short {
    waiting: BTreeMap<u64, Waiting>,
    /// When each ends unfinished.
    deadlines: BTreeSet<(Time, u64)>,
    next: u64,
    ready: Arc<Ready>,
    /// By pool.
    stills: Vec<Still>,
}

impl Short {
    /// Creates an empty list of requests for memory of `pools`.
    pub(super) fn new(pools: &Pools) -> Short {
        let still = Still { returns: 0, since: Time::ZERO, is_long: false };
        Short {
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next: 0,
            ready: Ready::all(std::iter::empty()),
            stills: vec![still; pools.each().count()],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets a request wait for `len` bytes that `device`, or any, can use.
    pub(super) fn push(
        &mut self,
        now: Time,
        pools: &Pools,
        wanting: Wanting,
        (len, device): (usize, Option<u8>),
    ) {
        if self.waiting.is_empty() {
            self.note(now, pools);
            let waits = self.stills.iter_mut().filter(|still| !still.is_long);
            waits.for_each(|still| still.since = now);
        }
        let number = self.next;
        self.next += 1;
        let waker = self.ready.waker(number);
        let turn = pools.enter(len, device, waker.clone());
        wanting.when_unwanted(waker);
        self.deadlines.insert((wanting.deadline(), number));
        self.waiting.insert(number, Waiting { wanting, turn });
    }

    /// Returns the next request whose memory is there, with it, or that was given up. Calls `waker` when there is more to
    /// do.
    pub(super) fn granted(&mut self, waker: &Waker) -> Option<(Wanting, Option<PoolBuffer>)> {
        while !self.waiting.is_empty() {
            let number = self.ready.next(waker)?;
            let Some(Waiting { wanting, turn }) = self.waiting.get(&number) else { continue };
            let memory = turn.collect();
            if !wanting.is_wanted() {
                return Some((self.remove(number), None));
            } else if memory.is_some() {
                return Some((self.remove(number), memory));
            }
        }
        None
    }

    /// Returns a request whose deadline has passed.
    pub(super) fn overdue(&mut self, now: Time) -> Option<Wanting> {
        let (deadline, number) = *self.deadlines.first()?;
        (deadline < now).then(|| self.remove(number))
    }

    /// Returns any request.
    pub(super) fn pop(&mut self) -> Option<Wanting> {
        let number = *self.waiting.keys().next()?;
        Some(self.remove(number))
    }

    fn remove(&mut self, number: u64) -> Wanting {
        let waiting = self.waiting.remove(&number).expect("it waits");
        let was_there = self.deadlines.remove(&(waiting.wanting.deadline(), number));
        assert!(was_there, "each request has a deadline");
        waiting.wanting
    }

    /// Returns when to look at it again if no waker fires.
    pub(super) fn next_due(&self, now: Time) -> Time {
        let Some((deadline, _)) = self.deadlines.first() else { return Time::NEVER };
        let look = |still: &Still| if still.is_long { now + LOOK } else { still.since + STILL_MAX };
        self.stills.iter().map(look).fold(*deadline, Time::min)
    }

    /// Notes whether memory came back.
    fn note(&mut self, now: Time, pools: &Pools) {
        for (still, (pool, _)) in self.stills.iter_mut().zip(pools.each()) {
            let returns = pool.returns();
            if returns != still.returns {
                *still = Still { returns, since: now, is_long: false };
            } else if !self.waiting.is_empty() && now.since(still.since) >= STILL_MAX {
                still.is_long = true;
            }
        }
    }

    /// Allocates memory for requests that would otherwise wait for callers. `stuck` returns the bytes of a pool in
    /// requests that are not carried out before these are.
    pub(super) fn spill(
        &mut self,
        now: Time,
        pools: &Pools,
        devices: &[Device],
        stuck: &dyn Fn(&Arc<Pool>) -> usize,
    ) -> SmallVec<[(Wanting, PoolBuffer); 1]> {
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
        matches!(waiting.wanting, Wanting::Request { .. }) && Arc::ptr_eq(waiting.turn.pool(), pool)
    };
    let all = waiting.iter().filter(move |(_, waiting)| is_for(waiting));
    all.map_while(move |(number, waiting)| {
        let with = in_requests + waiting.turn.bytes();
        (in_requests == 0 || with <= most).then(|| {
            in_requests = with;
            (*number, waiting.turn.len())
        })
    })
}
