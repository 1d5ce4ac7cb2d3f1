//! State shared by a handle, its writers and its leases: the mailboxes of the threads, and registered memory.
//!
//! | file | holds |
//! |---|---|
//! | `route` | lists, divided among shards |
//! | `hot` | reads that the calling thread answers from memory |
//! | `lease` | leases of objects |

mod hot;
mod lease;
mod route;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Refusal;
use adit_driver::{Device, Time};

pub use self::lease::Lease;
pub(crate) use self::lease::ShardLease;
pub(crate) use self::route::{ShardItems, deal};
use super::answer::{Answer, Batch, Gather, Pending, Reply, Value, pair, ready};
use super::devices::{Devices, OpenOptions};
use super::memory::{DeviceReach, PoolBuffer, Pools, Unfinished};
use super::request::{
    Asked, Caller, Fetch, Identity, Lend, ReadCaller, Requests, ThreadShard, Waiter,
};
use super::thread::{Ask, Feed, Figures, Inbox, ShardJob, ShardWork};
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::{Key, KeyHasher};
use crate::model::object::Version;
use crate::shard::{Action, Failure, GetItem, Hashed, Hot, Part, Removals, Request};

/// The shared part of a [`Store`](super::Store).
pub(crate) struct Core {
    /// One per thread; shard n belongs to thread n modulo their number.
    pub(crate) mailboxes: Vec<Arc<Inbox>>,
    /// One per thread.
    pub(crate) figures: Vec<Arc<Figures>>,
    pub(crate) set: Set,
    /// Routes keys among `shards`.
    pub(crate) hasher: KeyHasher,
    pub(crate) shards: u16,
    pub(crate) devices: Devices,
    /// The device whose clock all shards use.
    pub(crate) clock: Device,
    /// Unix time at its origin.
    pub(crate) wall_at_zero: Duration,
    /// For each shard, the objects in memory.
    pub(crate) hot: Vec<Arc<Hot>>,
    pub(crate) pools: Arc<Pools>,
    /// Options for new lanes.
    pub(crate) options: OpenOptions,
    /// How long a request may wait to begin.
    pub(crate) timeout: Duration,
    /// How long to wait for an answer, device deadlines included.
    pub(crate) patience: Duration,
    pub(crate) reach: Arc<DeviceReach>,
    /// Distinguishes its tenants and layouts from those of other stores.
    pub(crate) identity: Identity,
    pub(crate) removals: Removals,
}

/// A request for its shard, unless the call was answered without one, and the caller's end of the answer.
pub(crate) type Made<T> = (Option<(u16, Asked)>, Pending<T>);

impl Core {
    /// Returns the time on the store's clock, and the time by which a call made now must have begun.
    pub(crate) fn times(&self) -> (Time, Time) {
        let now = self.clock.now();
        (now, now + self.timeout)
    }

    pub(crate) fn pair<T>(&self) -> (Reply<T>, Pending<T>) {
        pair(self.patience)
    }

    /// Returns an answer that has already failed.
    pub(crate) fn refused<T>(&self, error: impl Into<Error>) -> Pending<T> {
        ready(Err(Unfinished::new(error)))
    }

    pub(crate) fn mailbox(&self, shard: u16) -> &Inbox {
        &self.mailboxes[usize::from(shard) % self.mailboxes.len()]
    }

    /// Sends a request to its shard, and returns its answer. If the store is closed, the answer says so.
    pub(crate) fn send<T>(&self, (request, pending): Made<T>) -> Pending<T> {
        if let Some((shard, asked)) = request {
            self.send_to(shard, asked.into());
        }
        pending
    }

    /// Sends each shard its share of several requests together, and returns their answers.
    pub(crate) fn send_all<T>(&self, requests: impl IntoIterator<Item = Made<T>>) -> Batch<T> {
        let mut lists: Vec<Requests> = (0..self.shards).map(|_| Requests::default()).collect();
        let listed = |(request, pending): Made<T>| {
            if let Some((shard, asked)) = request {
                lists[usize::from(shard)].push(asked);
            }
            pending
        };
        let pendings = requests.into_iter().map(listed).collect();
        for (list, shard) in lists.into_iter().zip(0..).filter(|(list, _)| !list.is_empty()) {
            self.send_to(shard, list);
        }
        Batch::new(pendings)
    }

    /// Sends a request to its shard if there is room.
    ///
    /// # Errors
    /// The request, with the reason for the refusal.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(crate) fn try_send<T>(
        &self,
        (request, pending): Made<T>,
    ) -> Result<Pending<T>, (ShardWork, Refusal)> {
        let Some((shard, asked)) = request else { return Ok(pending) };
        let work = ShardWork::Requests(asked.into());
        let sent = self.mailbox(shard).send(ShardJob { shard, work });
        sent.map(|()| pending).map_err(|(job, why)| (job.work, why))
    }

    fn send_to(&self, shard: u16, requests: Requests) {
        self.send_work(ShardJob { shard, work: ShardWork::Requests(requests) });
    }

    fn send_work(&self, job: ShardJob) {
        if let Err(job) = self.mailbox(job.shard).send_behind(job) {
            job.work.refuse(&Failure::Closed);
        }
    }

    /// Makes the thread of a shard poll a feed, unless the store is closed.
    pub(crate) fn feed(&self, shard: u16, feed: Box<dyn Feed>) {
        self.send_work(ShardJob { shard, work: ShardWork::Feed(feed) });
    }

    /// Runs `ask` on a shard's thread.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        shard: u16,
        ask: impl FnOnce(&mut ThreadShard, Time) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = self.pair();
        self.ask_for(shard, asking(ask, |answer| reply.send(answer)));
        pending
    }

    /// Like [`Core::ask`], but leaves the answer to `ask`.
    pub(crate) fn ask_for(&self, shard: u16, ask: Ask) {
        self.send_work(ShardJob { shard, work: ShardWork::Ask(self.times().1, ask) });
    }

    /// Runs `ask` on the threads of several shards, with the share of each. Passes the answers to `then`, in the
    /// order of the shards.
    pub(crate) fn ask_shares<S: Send + 'static, P: Send + 'static>(
        &self,
        shares: Vec<(u16, S)>,
        ask: impl Fn(u16, S, &mut ThreadShard, Time) -> Result<P, Failure> + Clone + Send + 'static,
        then: impl FnOnce(Answer<Vec<P>>) + Send + 'static,
    ) {
        let gather = Gather::new(shares.len(), then);
        for (number, share) in shares {
            let (gather, ask) = (Arc::clone(&gather), ask.clone());
            let ask = move |shard: &mut ThreadShard, now| ask(number, share, shard, now);
            self.ask_for(number, asking(ask, move |answer| gather.add(number, answer)));
        }
    }

    /// Runs `ask` for each shard and combines the answers, which are in the order of the shards.
    pub(crate) fn ask_each<P: Send + 'static, T: Send + 'static>(
        &self,
        ask: impl Fn(&mut ThreadShard, Time) -> Result<P, Failure> + Clone + Send + 'static,
        combine: impl FnOnce(Vec<P>) -> T + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = self.pair();
        let each = (0..self.shards).map(|shard| (shard, ())).collect();
        let ask = move |_, (), shard: &mut ThreadShard, now| ask(shard, now);
        self.ask_shares(each, ask, |parts| reply.send(parts.map(combine)));
        pending
    }

    /// Sends a request to each shard, and combines the numbers of objects that they concerned. Its answer may be waited
    /// for as long as `patience`.
    pub(crate) fn request_each<T: Send + 'static>(
        &self,
        patience: Duration,
        action: impl Fn() -> Action,
        combine: impl FnOnce(Vec<u64>) -> T + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = pair(patience);
        let gather =
            Gather::new(usize::from(self.shards), |parts| reply.send(Answer::map(parts, combine)));
        for shard in 0..self.shards {
            let gather = Arc::clone(&gather);
            let caller = Caller::EachShard(Box::new(move |answer| gather.add(shard, answer)));
            self.send_to(shard, Asked::Ready(self.request(0, action(), caller)).into());
        }
        pending
    }

    /// Passes the number of `keys` that exist before the first miss to `then`.
    pub(crate) fn find_prefix(
        &self,
        keys: &[Key],
        then: impl FnOnce(Answer<usize>) + Send + 'static,
    ) {
        let end = keys.len();
        let least = move |misses: Vec<usize>| misses.into_iter().min().unwrap_or(end);
        self.ask_shares(
            self.deal(keys),
            move |_, share, shard, now| {
                Ok(share.first_miss(shard.lookup_prefix(now, &share.items), end))
            },
            move |misses| then(misses.map(least)),
        );
    }

    /// Divides keys among the shards that own them.
    pub(crate) fn deal(&self, keys: &[Key]) -> Vec<(u16, ShardItems<Key>)> {
        deal(keys, self.shards, |key| self.route(key))
    }

    /// Runs `end` on a shard's thread, unless the store has stopped.
    pub(crate) fn end(&self, shard: u16, end: impl FnOnce(&mut ThreadShard) + Send + 'static) {
        let ask: Ask = Box::new(|there| {
            if let Ok((shard, _)) = there {
                end(shard);
            }
        });
        let work = ShardWork::Ask(Time::NEVER, ask);
        // With a store that has stopped, leases and writers have ended.
        let _ = self.mailbox(shard).send_urgent(ShardJob { shard, work });
    }

    /// Returns the hash of a key.
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key.as_bytes())
    }

    /// Returns the shard that owns the key with this hash.
    pub(crate) fn shard(&self, hash: u64) -> u16 {
        KeyHasher::shard(hash, self.shards)
    }

    /// Returns the shard that owns a key.
    pub(crate) fn route(&self, key: &Key) -> u16 {
        self.shard(self.hash(key))
    }

    /// Makes a request to be sent now, given the hash of its key (0 without one).
    pub(crate) fn request(&self, hash: u64, action: Action, caller: Caller) -> Hashed<Waiter> {
        let (since, deadline) = self.times();
        Hashed { hash, request: Request { reply: Waiter { since, caller }, deadline, action } }
    }

    /// Makes a request to the shard of its key, and returns it with its answer.
    pub(crate) fn made<T>(
        &self,
        (hash, action): (u64, Action),
        (caller, pending): (Caller, Pending<T>),
    ) -> Made<T> {
        let request = self.request(hash, action, caller);
        (Some((self.shard(hash), Asked::Ready(request))), pending)
    }

    /// Returns the Unix time in seconds.
    pub(crate) fn wall_s(&self, now: Time) -> u64 {
        (self.wall_at_zero + now.since(Time::ZERO)).as_secs()
    }

    /// Returns the figures of a shard's thread.
    pub(crate) fn figures(&self, shard: u16) -> &Figures {
        &self.figures[usize::from(shard) % self.figures.len()]
    }

    /// Reads an object into the store's memory, which the request gets when the object is found. Without a request if
    /// the object is in memory.
    pub(crate) fn fetch(
        &self,
        key: Key,
        range: Option<Range<u64>>,
        version: Option<Version>,
    ) -> Made<Option<Value>> {
        let hash = self.hash(&key);
        if let Some(value) = self.hot_value(hash, &key, range.as_ref(), version) {
            return (None, ready(Ok(Some(value))));
        }
        let (reply, pending) = self.pair();
        let (part, into) = (Part::All, AnyBuffer::None);
        let action = Action::Get(GetItem { key, part, into, version });
        let caller = Caller::Read(ReadCaller::Fetch(Fetch::new(reply, range)));
        self.made((hash, action), (caller, pending))
    }

    /// Lends `len` bytes of pool memory for `device`, or for any, once they are free.
    pub(crate) fn buffer(&self, len: usize, device: Option<u8>) -> Pending<PoolBuffer> {
        if let Err(never) = self.pools.check(len as u64) {
            return self.refused(never);
        }
        if let Some(buffer) = self.pools.take(len, device) {
            return ready(Ok(buffer));
        }
        let (reply, pending) = self.pair();
        // Any thread can wait for memory.
        let work = ShardWork::Lend(Lend { len, device, deadline: self.times().1, reply });
        self.send_work(ShardJob { shard: 0, work });
        pending
    }
}

/// Wraps `ask` for a shard's thread and passes its answer to `then`, which also receives the failure if the call was
/// never made.
fn asking<T, E: Into<Error>>(
    ask: impl FnOnce(&mut ThreadShard, Time) -> Result<T, E> + Send + 'static,
    then: impl FnOnce(Answer<T>) + Send + 'static,
) -> Ask {
    Box::new(move |there: Result<(&mut ThreadShard, Time), Failure>| {
        then(match there {
            Ok((shard, now)) => ask(shard, now).map_err(Unfinished::new),
            Err(failure) => Err(Unfinished::new(failure)),
        });
    })
}
