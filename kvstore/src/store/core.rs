//! What a handle, its writers and its leases share: the way to the threads, and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_driver::Time;

use super::devices::{DeviceShard, Devices};
use super::job::{Ask, Item, Job, Work};
use super::mailbox::{Full, Mailbox};
use super::open::OpenOptions;
use super::payload::{Form, Payload};
use super::pending::{Answer, Pending, Reply, Unfinished, pair};
use super::pool::{Pool, PoolBuffer, Pools};
use super::wait;
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::Key;
use crate::shard::Failure;
use adit_driver::memory::AnyBuffer;

/// See the module.
pub(super) struct Core {
    /// One for each thread; shard n is with thread n modulo their number.
    pub(super) mailboxes: Vec<Arc<Mailbox<Job>>>,
    pub(super) set: Set,
    pub(super) devices: Devices,
    pub(super) pools: Arc<Pools>,
    /// How lanes are made.
    pub(super) options: OpenOptions,
    /// How long a call may wait to be begun.
    pub(super) timeout: Duration,
    /// How long an answer is waited for, devices' deadlines included.
    pub(super) patience: Duration,
    pub(super) copied_bytes: AtomicU64,
}

/// Data in registered memory, and where that belongs if it is the store's.
pub(super) struct Registered {
    pub(super) memory: AnyBuffer,
    pub(super) bytes: u64,
    pub(super) home: Option<Arc<Pool>>,
}

impl Core {
    /// When a call that is made now is too late to be begun, on the store's clock.
    pub(super) fn deadline(&self) -> Time {
        self.devices.now() + self.timeout
    }

    /// The two ends of an answer.
    pub(super) fn pair<T>(&self) -> (Reply<T>, Pending<T>) {
        pair(self.patience)
    }

    /// An answer that is there already.
    pub(super) fn refused<T>(&self, error: impl Into<Error>) -> Pending<T> {
        let (reply, pending) = self.pair();
        reply.send(Err(Unfinished::new(error)));
        pending
    }

    pub(super) fn mailbox(&self, shard: u16) -> &Mailbox<Job> {
        &self.mailboxes[usize::from(shard) % self.mailboxes.len()]
    }

    fn job(&self, shard: u16, work: Work) -> Job {
        Job { shard, deadline: self.deadline(), work }
    }

    /// Until when a call that begins now waits for room, wherever it has to.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends work to a shard, waiting for room. What cannot be sent is answered.
    pub(super) fn send(&self, shard: u16, work: Work) {
        self.send_by(self.until(), shard, work);
    }

    /// The same for a call that waits until then.
    pub(super) fn send_by(&self, until: Instant, shard: u16, work: Work) {
        let is_fetch = work.is_fetch();
        let sent = self.mailbox(shard).send_by(until, self.job(shard, work), is_fetch);
        if let Err((job, why)) = sent {
            let failure = match why {
                Full::Busy => Failure::Deadline,
                Full::Closed => Failure::Closed,
            };
            job.work.refuse(&failure);
        }
    }

    /// An empty list for each shard.
    pub(super) fn lists(&self) -> Vec<Vec<Item>> {
        (0..self.set.shards()).map(|_| Vec::new()).collect()
    }

    /// Sends each shard its list, and leaves them empty.
    pub(super) fn send_lists(&self, until: Instant, lists: &mut [Vec<Item>]) {
        for (list, shard) in lists.iter_mut().zip(0..).filter(|(list, _)| !list.is_empty()) {
            self.send_by(until, shard, Work::Many(std::mem::take(list)));
        }
    }

    /// Sends work to a shard if there is room.
    ///
    /// # Errors
    /// The work, with the reason why it is not taken.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(super) fn try_send(&self, shard: u16, work: Work) -> Result<(), (Work, Full)> {
        let is_fetch = work.is_fetch();
        let sent = self.mailbox(shard).send(self.job(shard, work), is_fetch);
        sent.map_err(|(job, why)| (job.work, why))
    }

    /// Has a shard's thread call `ask`.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        shard: u16,
        ask: impl FnOnce(&mut DeviceShard, Time) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (reply, pending) = self.pair();
        self.send(shard, Work::Ask(asking(ask, |answer| reply.send(answer))));
        pending
    }

    /// Which shard has a key.
    pub(super) fn route(&self, key: &Key) -> u16 {
        self.set.route(key)
    }

    /// Registered memory with the data of `payload`, if there is room now: for `device`, or for any.
    ///
    /// # Errors
    /// The payload where there is none; the reason where there never will be.
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

    /// The same, waiting for room until then.
    ///
    /// # Errors
    /// [`Error::Timeout`] where none came; [`Error::Invalid`] where none ever will.
    pub(super) fn register(
        &self,
        until: Instant,
        payload: Payload<'_>,
        device: Option<u8>,
    ) -> Result<Registered> {
        let mut waiting = Some(payload);
        let registered = wait::until(until, |waker| {
            if let Some(waker) = waker {
                self.pools.want(waker);
            }
            match self
                .try_register(waiting.take().expect("what is not copied is given back"), device)
            {
                Ok(registered) => Some(Ok(registered)),
                Err((_, Some(never))) => Some(Err(never)),
                Err((payload, None)) => {
                    waiting = Some(payload);
                    None
                }
            }
        });
        registered.unwrap_or_else(|| Err(self.no_memory()))
    }

    /// The same. Where memory is short, what was gathered so far is sent first: it may hold all of it.
    ///
    /// # Errors
    /// As [`Core::register`].
    pub(super) fn register_for(
        &self,
        until: Instant,
        lists: &mut [Vec<Item>],
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

    /// Memory of `len` bytes of the pools', waiting for it.
    ///
    /// # Errors
    /// As [`Core::register`].
    pub(super) fn buffer(&self, len: usize, device: Option<u8>) -> Result<PoolBuffer> {
        self.pools.check(len as u64)?;
        let taken = wait::until(self.until(), |waker| {
            if let Some(waker) = waker {
                self.pools.want(waker);
            }
            self.pools.take(len, device)
        });
        taken.ok_or_else(|| self.no_memory())
    }

    /// That no registered memory came back in time.
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
        // Behind the data there may be what the memory held before, which is nobody's to read.
        run[bytes as usize..].fill(0);
        Registered { memory: AnyBuffer::One(run), bytes, home: Some(home) }
    }
}

/// A call of `ask` by a shard's thread, whose answer `hear` is given. It also hears why there was no call.
pub(super) fn asking<T, E: Into<Error>>(
    ask: impl FnOnce(&mut DeviceShard, Time) -> Result<T, E> + Send + 'static,
    hear: impl FnOnce(Answer<T>) + Send + 'static,
) -> Ask {
    Box::new(move |there: Result<(&mut DeviceShard, Time), Failure>| {
        hear(match there {
            Ok((shard, now)) => ask(shard, now).map_err(Unfinished::new),
            Err(failure) => Err(Unfinished::new(failure)),
        });
    })
}
