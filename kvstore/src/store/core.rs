//! State shared by a handle, its writers and its leases: the mailboxes of the threads, and registered memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_driver::runtime::{Refusal, block_until, try_or_want};
use adit_driver::{Device, Time};
use smallvec::smallvec;

use super::devices::Devices;
use super::inbox::Inbox;
use super::open::OpenOptions;
use super::payload::{Form, Payload};
use super::pending::{Answer, Pending, Reply, Unfinished, pair};
use super::pool::{Pool, PoolBuffer, Pools};
use super::request::{Ask, Job, Requests, ThreadShard, Waiter, Work};
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::{Key, KeyHasher};
use crate::shard::{Action, Failure, Hashed, Request};
use adit_driver::memory::AnyBuffer;

/// The shared part of a [`super::Store`].
pub(super) struct Core {
    /// One per thread; shard n belongs to thread n modulo their number.
    pub(super) mailboxes: Vec<Arc<Inbox>>,
    pub(super) set: Set,
    /// Routes keys among `shards`.
    pub(super) hasher: KeyHasher,
    pub(super) shards: u16,
    pub(super) devices: Devices,
    /// The device whose clock all shards use.
    pub(super) clock: Device,
    pub(super) pools: Arc<Pools>,
    /// Options for new lanes.
    pub(super) options: OpenOptions,
    /// How long a call may wait to begin.
    pub(super) timeout: Duration,
    /// How long to wait for an answer, device deadlines included.
    pub(super) patience: Duration,
    pub(super) copied_bytes: AtomicU64,
}

/// Data in registered memory, with the pool it returns to if it is the store's.
pub(super) struct Registered {
    pub(super) memory: AnyBuffer,
    pub(super) bytes: u64,
    pub(super) home: Option<Arc<Pool>>,
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
        let (reply, pending) = self.pair();
        reply.send(Err(Unfinished::new(error)));
        pending
    }

    pub(super) fn mailbox(&self, shard: u16) -> &Inbox {
        &self.mailboxes[usize::from(shard) % self.mailboxes.len()]
    }

    /// Returns how long a call that begins now may wait for room.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends a request to the shard of its key, waiting for room. One that cannot be sent is answered with the failure.
    pub(super) fn send(&self, request: Hashed<Waiter>) {
        let shard = self.shard(request.hash);
        self.send_work(|| self.until(), Job { shard, work: Work::Requests(smallvec![request]) });
    }

    /// Like [`Core::send`], to a given shard and waiting until `until`.
    pub(super) fn send_by(&self, until: Instant, shard: u16, request: Hashed<Waiter>) {
        self.send_work(|| until, Job { shard, work: Work::Requests(smallvec![request]) });
    }

    /// Sends a job; if the mailbox is full, waits for room until `until`.
    fn send_work(&self, until: impl FnOnce() -> Instant, job: Job) {
        let mailbox = self.mailbox(job.shard);
        let sent = match mailbox.send(job) {
            Err((job, Refusal::Full)) => mailbox.send_by(until(), job),
            other => other,
        };
        if let Err((job, why)) = sent {
            let failure = match why {
                Refusal::Full => Failure::Deadline,
                Refusal::Closed => Failure::Closed,
            };
            job.work.refuse(&failure);
        }
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
    pub(super) fn send_lists(&self, until: Instant, lists: &mut [Requests]) {
        for (list, shard) in lists.iter_mut().zip(0..).filter(|(list, _)| !list.is_empty()) {
            self.send_work(|| until, Job { shard, work: Work::Requests(std::mem::take(list)) });
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
        self.ask_by(self.until(), shard, asking(ask, |answer| reply.send(answer)));
        pending
    }

    /// Like [`Core::ask`], but waits until `until` and leaves the answer to `ask`.
    pub(super) fn ask_by(&self, until: Instant, shard: u16, ask: Ask) {
        self.send_work(|| until, Job { shard, work: Work::Ask(self.deadline(), ask) });
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
    pub(super) fn request(&self, hash: u64, action: Action, reply: Waiter) -> Hashed<Waiter> {
        Hashed { hash, request: Request { reply, deadline: self.deadline(), action } }
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
        if payload.bytes() == 0 {
            let why = Error::invalid("the length in bytes", 0, "an object has at least one");
            return Err((payload, Some(why)));
        }
        match payload.0 {
            Form::Lent { memory, bytes } => Ok(Registered { memory, bytes, home: None }),
            Form::Pooled(buffer) => Ok(Registered::pooled(buffer)),
            Form::Bytes(bytes) => {
                if let Err(never) = self.pools.check(bytes.len() as u64) {
                    return Err((Payload(Form::Bytes(bytes)), Some(never)));
                }
                let Some(mut buffer) = self.pools.take(bytes.len(), device) else {
                    return Err((Payload(Form::Bytes(bytes)), None));
                };
                buffer.copy_from_slice(&bytes);
                self.copied_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(Registered::pooled(buffer))
            }
        }
    }

    /// Like [`Core::try_register`], but waits for room until `until`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no room came in time; [`Error::Invalid`] if there never will be enough.
    pub(super) fn register(
        &self,
        until: Instant,
        payload: Payload<'_>,
        device: Option<u8>,
    ) -> Result<Registered> {
        let mut waiting = Some(payload);
        let mut try_to = || {
            let payload = waiting.take().expect("what is not copied is given back");
            match self.try_register(payload, device) {
                Ok(registered) => Some(Ok(registered)),
                Err((_, Some(never))) => Some(Err(never)),
                Err((payload, None)) => {
                    waiting = Some(payload);
                    None
                }
            }
        };
        let registered = block_until(Some(until), |context| {
            try_or_want(context, |waker| self.pools.want(waker), &mut try_to)
        });
        registered.unwrap_or_else(|| Err(self.no_memory()))
    }

    /// Like [`Core::register`], but sends the gathered lists first if memory is short, because they may hold all of
    /// it.
    ///
    /// # Errors
    /// As [`Core::register`].
    pub(super) fn register_for(
        &self,
        until: Instant,
        lists: &mut [Requests],
        data: Payload<'_>,
        device: Option<u8>,
    ) -> Result<Registered> {
        match self.try_register(data, device) {
            Ok(registered) => Ok(registered),
            Err((_, Some(never))) => Err(never),
            Err((data, None)) => {
                self.send_lists(until, lists);
                self.register(until, data, device)
            }
        }
    }

    /// Returns `len` bytes of pool memory, waiting for it.
    ///
    /// # Errors
    /// As [`Core::register`].
    pub(super) fn buffer(&self, len: usize, device: Option<u8>) -> Result<PoolBuffer> {
        self.pools.check(len as u64)?;
        let until = Some(self.until());
        let taken = block_until(until, |context| self.pools.poll_take(context, len, device));
        taken.ok_or_else(|| self.no_memory())
    }

    /// The error for registered memory that did not become free in time.
    fn no_memory(&self) -> Error {
        Error::Timeout {
            waited_for: "registered memory",
            after: self.timeout,
            fix: "drop values and buffers sooner, or raise pool_bytes",
        }
    }
}

impl Registered {
    fn pooled(buffer: PoolBuffer) -> Registered {
        let bytes = buffer.len() as u64;
        let (mut run, home) = buffer.into_parts();
        // Clear what the memory held before: it may be another caller's data.
        run[bytes as usize..].fill(0);
        Registered { memory: AnyBuffer::One(run), bytes, home: Some(home) }
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
