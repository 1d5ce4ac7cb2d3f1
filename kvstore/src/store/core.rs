//! State shared by a handle, its writers and its leases: the mailboxes of the threads, and registered memory.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::runtime::Refusal;
use adit_driver::{Device, Time};
use smallvec::smallvec;

use super::devices::Devices;
use super::feed::Feed;
use super::figures::Figures;
use super::gather::Gather;
use super::inbox::Inbox;
use super::lent::{Origin, Reach, Way};
use super::manner::Manner;
use super::open::OpenOptions;
use super::payload::{Form, Identity, Payload};
use super::pending::{Answer, Pending, Reply, Unfinished, pair, ready};
use super::pool::{PoolBuffer, Pools};
use super::request::{
    Ask, Caller, Fetch, Heap, Job, Kept, Lend, Requests, Source, ThreadShard, Waiter, Work,
};
use super::route;
use super::tier::TierSize;
use super::value::Value;
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::{Key, KeyHasher};
use crate::model::object::Version;
use crate::shard::{Action, Failure, GetItem, Hashed, Hot, Part, Removals, Request};
use adit_driver::memory::AnyBuffer;

/// The shared part of a [`super::Store`].
pub(super) struct Core {
    /// One per thread; shard n belongs to thread n modulo their number.
    pub(super) mailboxes: Vec<Arc<Inbox>>,
    /// One per thread.
    pub(super) figures: Vec<Arc<Figures>>,
    pub(super) set: Set,
    /// Routes keys among `shards`.
    pub(super) hasher: KeyHasher,
    pub(super) shards: u16,
    pub(super) devices: Devices,
    /// The device whose clock all shards use.
    pub(super) clock: Device,
    /// Unix time at its origin.
    pub(super) wall_at_zero: Duration,
    /// By shard: the objects in memory.
    pub(super) hot: Vec<Arc<Hot>>,
    pub(super) pools: Arc<Pools>,
    /// Options for new lanes.
    pub(super) options: OpenOptions,
    /// How long a request may wait to begin.
    pub(super) timeout: Duration,
    /// How long to wait for an answer, device deadlines included.
    pub(super) patience: Duration,
    pub(super) reach: Arc<Reach>,
    /// Of its tenants and layouts.
    pub(super) identity: Identity,
    pub(super) removals: Removals,
    /// Held while the size of the memory tier changes.
    pub(super) tier: Mutex<TierSize>,
}

/// Data for a request: in registered memory, or on the heap until there is some.
pub(super) struct Registered {
    pub(super) memory: AnyBuffer,
    pub(super) bytes: u64,
    pub(super) source: Source,
}

impl Core {
    /// Returns the time, on the store's clock, by which a call made now must have begun.
    pub(super) fn deadline(&self) -> Time {
        self.clock.now() + self.timeout
    }

    pub(super) fn pair<T>(&self) -> (Reply<T>, Pending<T>) {
        pair(self.patience)
    }

    /// Returns an answer that has already failed.
    pub(super) fn refused<T>(&self, error: impl Into<Error>) -> Pending<T> {
        self.failed(Unfinished::new(error))
    }

    /// Like [`Core::refused`], with the caller's memory.
    pub(super) fn failed<T>(&self, unfinished: Unfinished) -> Pending<T> {
        let (reply, pending) = self.pair();
        reply.send(Err(unfinished));
        pending
    }

    pub(super) fn mailbox(&self, shard: u16) -> &Inbox {
        &self.mailboxes[usize::from(shard) % self.mailboxes.len()]
    }

    /// Sends a request to the shard of its key. If the store is closed, answers it with that.
    pub(super) fn send(&self, request: Hashed<Waiter>) {
        self.send_to(self.shard(request.hash), request);
    }

    /// Like [`Core::send`], unless the request was answered without one.
    pub(super) fn send_some(&self, request: Option<Hashed<Waiter>>) {
        request.into_iter().for_each(|request| self.send(request));
    }

    /// Like [`Core::send`], to a given shard.
    pub(super) fn send_to(&self, shard: u16, request: Hashed<Waiter>) {
        self.send_work(Job { shard, work: Work::Requests(smallvec![request]) });
    }

    fn send_work(&self, job: Job) {
        if let Err(job) = self.mailbox(job.shard).send_behind(job) {
            job.work.refuse(&Failure::Closed);
        }
    }

    /// Has the thread of a shard look at a feed, unless the store is closed.
    pub(super) fn feed(&self, shard: u16, feed: Box<dyn Feed>) {
        self.send_work(Job { shard, work: Work::Feed(feed) });
    }

    /// Returns an empty list for each shard.
    pub(super) fn lists(&self) -> Vec<Requests> {
        (0..self.set.shards()).map(|_| Requests::new()).collect()
    }

    /// Adds a request to the list of its key's shard.
    pub(super) fn add(&self, lists: &mut [Requests], request: Hashed<Waiter>) {
        lists[usize::from(self.shard(request.hash))].push(request);
    }

    /// Sends each shard its list and empties the lists.
    pub(super) fn send_lists(&self, lists: &mut [Requests]) {
        for (list, shard) in lists.iter_mut().zip(0..).filter(|(list, _)| !list.is_empty()) {
            self.send_work(Job { shard, work: Work::Requests(std::mem::take(list)) });
        }
    }

    /// Sends a request to the shard of its key if there is room.
    ///
    /// # Errors
    /// The request, with the reason for the refusal.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(super) fn try_send(&self, request: Hashed<Waiter>) -> Result<(), (Work, Refusal)> {
        let shard = self.shard(request.hash);
        let work = Work::Requests(smallvec![request]);
        let sent = self.mailbox(shard).send(Job { shard, work });
        sent.map_err(|(job, why)| (job.work, why))
    }

    /// Runs `ask` on a shard's thread.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        shard: u16,
        ask: impl FnOnce(&mut ThreadShard, Time) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = self.pair();
        self.ask_for(shard, asking(ask, |answer| reply.send(answer)));
        pending
    }

    /// Like [`Core::ask`], but leaves the answer to `ask`.
    pub(super) fn ask_for(&self, shard: u16, ask: Ask) {
        self.send_work(Job { shard, work: Work::Ask(self.deadline(), ask) });
    }

    /// Runs `ask` on a shard's thread and adds its answer to `gather`.
    pub(super) fn gather<P: Send + 'static>(
        &self,
        shard: u16,
        gather: &Arc<Gather<P>>,
        ask: impl FnOnce(&mut ThreadShard, Time) -> Result<P, Failure> + Send + 'static,
    ) {
        let gather = Arc::clone(gather);
        self.ask_for(shard, asking(ask, move |answer| gather.add(shard, answer)));
    }

    /// Runs `ask` for each shard and combines the answers, which are in the order of the shards.
    pub(super) fn ask_each<P: Send + 'static, T: Send + 'static>(
        &self,
        ask: impl Fn(&mut ThreadShard, Time) -> Result<P, Failure> + Clone + Send + 'static,
        combine: impl FnOnce(&mut dyn Iterator<Item = P>) -> T + Send + 'static,
    ) -> Pending<T> {
        let shards = self.set.shards();
        let (reply, pending) = self.pair();
        let gather = Gather::new(usize::from(shards), |parts: Answer<Vec<(u16, P)>>| {
            let combined = |parts: Vec<(u16, P)>| combine(&mut parts.into_iter().map(|(_, p)| p));
            reply.send(parts.map(combined));
        });
        (0..shards).for_each(|shard| self.gather(shard, &gather, ask.clone()));
        pending
    }

    /// Passes the number of `keys` that exist before the first miss to `hear`.
    pub(super) fn find_prefix(
        &self,
        keys: &[Key],
        hear: impl FnOnce(Answer<usize>) + Send + 'static,
    ) {
        let end = keys.len();
        let asked = route::deal(keys, self.set.shards(), |key| self.route(key));
        let least = move |misses: Vec<(u16, usize)>| {
            misses.into_iter().map(|(_, miss)| miss).min().unwrap_or(end)
        };
        let gather = Gather::new(asked.len(), move |misses| hear(misses.map(least)));
        for (shard, share) in asked {
            self.gather(shard, &gather, move |shard, now| {
                Ok(share.first_miss(shard.lookup_prefix(now, &share.items), end))
            });
        }
    }

    /// Runs `end` on a shard's thread, unless the store has stopped.
    pub(super) fn end(&self, shard: u16, end: impl FnOnce(&mut ThreadShard) + Send + 'static) {
        let ask: Ask = Box::new(|there| {
            if let Ok((shard, _)) = there {
                end(shard);
            }
        });
        // What it ends has ended with a store that has stopped.
        let _ = self.mailbox(shard).send_urgent(Job { shard, work: Work::Ask(Time::NEVER, ask) });
    }

    /// Returns the hash of a key.
    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key.as_bytes())
    }

    /// Returns the shard that owns the key with this hash.
    pub(super) fn shard(&self, hash: u64) -> u16 {
        KeyHasher::shard(hash, self.shards)
    }

    /// Returns the shard that owns a key.
    pub(super) fn route(&self, key: &Key) -> u16 {
        self.shard(self.hash(key))
    }

    /// Makes a request to be sent now, given the hash of its key (0 without one).
    pub(super) fn request(&self, hash: u64, action: Action, caller: Caller) -> Hashed<Waiter> {
        let since = self.clock.now();
        let (reply, deadline) = (Waiter { since, caller }, since + self.timeout);
        Hashed { hash, request: Request { reply, deadline, action } }
    }

    /// Returns the Unix time in seconds.
    pub(super) fn wall_s(&self, now: Time) -> u64 {
        (self.wall_at_zero + now.since(Time::ZERO)).as_secs()
    }

    /// Returns the figures of a shard's thread.
    pub(super) fn figures(&self, shard: u16) -> &Figures {
        &self.figures[usize::from(shard) % self.figures.len()]
    }

    /// Reads an object into the store's memory, which the request gets when the object is found. Without a request if the
    /// object is in memory.
    pub(super) fn fetch_request(
        &self,
        key: Key,
        range: Option<Range<u64>>,
        version: Option<Version>,
    ) -> (Option<Hashed<Waiter>>, Pending<Option<Value>>) {
        let hash = self.hash(&key);
        if let Some(value) = self.hot_value(hash, &key, range.as_ref(), version) {
            return (None, ready(Ok(Some(value))));
        }
        let (reply, pending) = self.pair();
        let (part, into) = (Part::All, AnyBuffer::None);
        let action = Action::Get(GetItem { key, part, into, version });
        let waiter = Caller::Fetch(Fetch::new(reply, range));
        (Some(self.request(hash, action, waiter)), pending)
    }

    /// Returns registered memory with the data of `payload`, if there is room now: memory for `device`, or for any
    /// device.
    ///
    /// # Errors
    /// The payload if there is no room; with the reason if there never will be.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(super) fn try_register<'a>(
        &self,
        payload: Payload<'a>,
        device: Option<u8>,
    ) -> Result<Registered, (Payload<'a>, Option<Error>)> {
        match payload.0 {
            Form::Lent { memory, bytes } => self.try_lend(memory, bytes, device),
            Form::Pooled(buffer) => Ok(Registered::pooled(buffer)),
            Form::Bytes(bytes) => {
                let len = bytes.len();
                if let Err(never) = self.pools.check(len as u64) {
                    return Err((Payload(Form::Bytes(bytes)), Some(never)));
                }
                let Some(mut buffer) = self.pools.take(len, device) else {
                    return Err((Payload(Form::Bytes(bytes)), None));
                };
                bytes.copy_to(&mut buffer);
                self.pools.counts.count_copy(len);
                Ok(Registered::pooled(buffer))
            }
        }
    }

    /// Like [`Core::try_register`], but plain bytes that find no room stay on the heap until there is some.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never will be enough, with the caller's memory.
    pub(super) fn register(
        &self,
        payload: Payload<'_>,
        device: Option<u8>,
    ) -> Result<Registered, Unfinished> {
        match self.try_register(payload, device) {
            Ok(registered) => Ok(registered),
            Err((payload, Some(never))) => Err(payload.refused(never)),
            Err((payload, None)) => Ok(self.heap(payload, device)),
        }
    }

    /// Like [`Core::register`], for one of several that keep their order: once one is on the heap, so are those after
    /// it.
    ///
    /// # Errors
    /// As [`Core::register`].
    pub(super) fn register_next(
        &self,
        payload: Payload<'_>,
        is_short: &mut bool,
    ) -> Result<Registered, Unfinished> {
        let is_plain = matches!(payload.0, Form::Bytes(_));
        let registered = if *is_short && is_plain && payload.bytes() > 0 {
            match self.pools.check(payload.bytes()) {
                Ok(()) => self.heap(payload, None),
                Err(never) => return Err(payload.refused(never)),
            }
        } else {
            self.register(payload, None)?
        };
        *is_short |= matches!(registered.source, Source::Waiting(_));
        Ok(registered)
    }

    /// Takes registered memory of the caller's. Copies what a device cannot use.
    ///
    /// # Errors
    /// As [`Core::try_register`].
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    fn try_lend<'a>(
        &self,
        memory: AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Result<Registered, (Payload<'a>, Option<Error>)> {
        let Some(way) = self.reach.way(&memory, bytes, device) else {
            return Ok(self.lend_whole(memory, bytes, device));
        };
        if let Err(never) = self.pools.check(way.through as u64) {
            return Err((Payload::lent(memory, bytes), Some(never)));
        }
        let run = match way.through {
            0 if bytes > 0 => None,
            through => {
                let Some(run) = self.pools.take(through, way.device) else {
                    return Err((Payload::lent(memory, bytes), None));
                };
                Some(run)
            }
        };
        let (memory, origin) = way.carry(memory, run, &self.pools.counts);
        Ok(Registered { memory, bytes, source: Source::Registered(origin) })
    }

    /// Takes registered memory that devices can use as it is, or that none knows. Copies it if that costs less and there
    /// is room.
    fn lend_whole(&self, memory: AnyBuffer, bytes: u64, device: Option<u8>) -> Registered {
        let ticket = self.reach.begin_put(&memory, bytes, device);
        let is_copied = ticket.as_ref().is_some_and(|ticket| ticket.manner == Manner::Copied);
        let run = is_copied.then(|| self.pools.take(bytes as usize, device)).flatten();
        let (memory, origin) = match run {
            Some(run) => Way::copied(bytes, device).carry(memory, Some(run), &self.pools.counts),
            None => {
                self.pools.counts.count_in_place(bytes as usize);
                (memory, Origin::default())
            }
        };
        Registered { memory, bytes, source: Source::Registered(origin.with(ticket)) }
    }

    /// Keeps data that found no room until there is some.
    fn heap(&self, payload: Payload<'_>, device: Option<u8>) -> Registered {
        let bytes = payload.bytes();
        let kept = match payload.0 {
            Form::Bytes(plain) => {
                let (bytes, copied) = plain.into_owned();
                self.pools.counts.count_copy(copied);
                Kept::Bytes(bytes)
            }
            Form::Lent { memory, bytes } => {
                let way = self.reach.way(&memory, bytes, device);
                Kept::Lent(memory, way.expect("only what is copied needs room"))
            }
            Form::Pooled(_) => unreachable!("the store's memory needs no room"),
        };
        let source = Source::Waiting(Box::new(Heap { kept, device }));
        Registered { memory: AnyBuffer::None, bytes, source }
    }

    /// Lends `len` bytes of pool memory that `device`, or any, can use, once there are as many.
    pub(super) fn buffer(&self, len: usize, device: Option<u8>) -> Pending<PoolBuffer> {
        if let Err(never) = self.pools.check(len as u64) {
            return self.refused(never);
        }
        let (reply, pending) = self.pair();
        match self.pools.take(len, device) {
            Some(buffer) => reply.send(Ok(buffer)),
            None => {
                // Any thread can wait for it.
                let lend = Lend { len, device, deadline: self.deadline(), reply };
                self.send_work(Job { shard: 0, work: Work::Lend(lend) });
            }
        }
        pending
    }
}

impl Registered {
    fn pooled(buffer: PoolBuffer) -> Registered {
        let bytes = buffer.len() as u64;
        let (run, pool) = buffer.into_cleared_parts();
        let source = Source::Registered(Origin::pooled(pool));
        Registered { memory: AnyBuffer::One(run), bytes, source }
    }
}

/// Wraps `ask` for a shard's thread and passes its answer to `hear`, which also receives the failure if the call was
/// never made.
pub(super) fn asking<T, E: Into<Error>>(
    ask: impl FnOnce(&mut ThreadShard, Time) -> Result<T, E> + Send + 'static,
    hear: impl FnOnce(Answer<T>) + Send + 'static,
) -> Ask {
    Box::new(move |there: Result<(&mut ThreadShard, Time), Failure>| {
        hear(match there {
            Ok((shard, now)) => ask(shard, now).map_err(Unfinished::new),
            Err(failure) => Err(Unfinished::new(failure)),
        });
    })
}
