//! A connection's requests, made and settled.
//!
//! As in `job`, nothing here touches a Python object but through the address and length of its buffer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adit_kvshare::client::{Answer, Data, Pending, Put, PutWith, Read, Value};
use adit_kvshare::{Client, Result, SharedBytes, SharedBytesMut, Span, Unfinished};
use adit_kvstore::Key;
use adit_kvstore::shard::Part;
use adit_kvstore::store::{self, Removed};

use crate::job::{self, Answered, Deadline, Job};
use crate::lending::Loan;
use crate::reaper::Reaper;
use crate::requests::{Asked, Flight, Way};
use crate::shared::Held;
use crate::view::View;

/// Numbers connections.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What requests are made with: the connection, and the memory that it shares.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    /// Among the connections of this process.
    pub(crate) number: u64,
    /// How often it was connected again. Layouts are known to the server of one era.
    pub(crate) era: u64,
    /// Bytes copied between buffers and the client's pool.
    pub(crate) copied: Arc<AtomicU64>,
    /// The memory that its server has.
    held: Arc<Mutex<Vec<Weak<Held>>>>,
    /// Takes answers for queues, once there is one.
    reaper: Arc<Mutex<Option<Arc<Reaper>>>>,
    timeout: Duration,
}

impl Link {
    /// Wraps a connection whose requests are to be answered within `timeout`.
    pub(crate) fn new(client: Client, timeout: Duration) -> Link {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (era, copied, held, reaper) = Default::default();
        Link { client, number, era, copied, held, reaper, timeout }
    }

    /// Returns the link over a new connection, in the place of this one, whose server is lost: with a pool if it had one,
    /// for which requests are not to wait, and without its memory, which no other server can map.
    ///
    /// # Errors
    /// As [`Client::make_pool`].
    pub(crate) fn again(&self, client: Client) -> Result<Link> {
        if self.client.has_pool() {
            client.make_pool()?;
        }
        if self.held().iter().any(|held| held.strong_count() > 0) {
            tracing::warn!(
                "memory of Client.allocate from before the loss of the server is copied from now on: allocate anew for \
                 transfers without a copy"
            );
        }
        Ok(Link { client, era: self.era + 1, held: Arc::default(), ..self.clone() })
    }

    fn held(&self) -> MutexGuard<'_, Vec<Weak<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes shared memory.
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Arc<Held>> {
        let made = Held::new(self.client.allocate(bytes)?);
        let mut held = self.held();
        held.retain(|held| held.strong_count() > 0);
        held.push(Arc::downgrade(&made));
        Ok(made)
    }

    /// Returns what takes answers for the connection's queues.
    ///
    /// # Errors
    /// The system's, if it has no thread left.
    pub(crate) fn reaper(&self) -> io::Result<Arc<Reaper>> {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = &*reaper {
            return Ok(Arc::clone(reaper));
        }
        let started = Arc::new(Reaper::start()?);
        *reaper = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Stores objects, those in shared memory in place.
    pub(crate) fn put(&self, items: Vec<(Key, View)>, with: &PutWith) -> Job {
        let mut job = self.job(items.len());
        let (keys, views): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let copy = |view| move |mut into: SharedBytesMut<'_>| into.copy_from(View::bytes(view));
        let copies: Vec<_> = views.iter().map(copy).collect();
        let (mut data, mut loans) = (Vec::new(), Vec::new());
        for ((key, view), copy) in keys.into_iter().zip(&views).zip(&copies) {
            let (run, loan) = self.lend(view).unzip();
            data.push((key, run.map_or_else(|| self.counted(view.len(), copy), Data::from)));
            loans.push(loan);
        }
        let flights = self.client.put_many(data, with).into_iter().zip(loans);
        let flights = flights.map(|(pending, loan)| Flight::Put(Some(pending), loan));
        job.add(flights.map(Link::flying));
        drop(copies);
        views.into_iter().for_each(|view| job.keep(view));
        job
    }

    fn counted<'a>(&self, bytes: usize, copy: &'a dyn Fn(SharedBytesMut<'_>)) -> Data<'a> {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
        Data::Copied(bytes, copy)
    }
}

impl Way for Link {
    type Run = Span;
    type Pending<T> = Pending<T>;
    type Unfinished = Unfinished;
    type Put = Put;
    type Read = Read;
    type Value = Value;

    fn job(&self, requests: usize) -> Job {
        Job::new(requests, Some(Deadline::after(self.timeout)), &self.copied)
    }

    fn link(&self) -> Option<&Link> {
        Some(self)
    }

    fn lend(&self, view: &View) -> Option<(Span, Loan<Span>)> {
        // Whichever of them is the last to have its memory tells the server so: without the lock.
        let held: Vec<_> = self.held().iter().filter_map(Weak::upgrade).collect();
        held.iter().find_map(|held| held.lending.take(view.address(), view.len()))
    }

    fn fetch(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<Option<Value>>> {
        self.client.get_many(keys).into_iter()
    }

    fn read(&self, items: Vec<(Key, Part, Span)>) -> impl Iterator<Item = Pending<Read>> {
        self.client.get_many_into(items).into_iter()
    }

    fn find(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.client.exists_many(keys).into_iter()
    }

    fn find_in_use(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.client.refresh_many(keys).into_iter()
    }

    fn remove(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.client.delete_many(keys).into_iter()
    }

    fn expire(&self, keys: Vec<Key>, ttl: Duration) -> impl Iterator<Item = Pending<bool>> {
        self.client.touch_many(keys, ttl).into_iter()
    }

    fn count(&self, keys: Vec<Key>) -> Pending<usize> {
        self.client.lookup_prefix(&keys)
    }

    fn gone(&self, prefix: &[u8], from: Option<u64>) -> Pending<Removed> {
        self.client.removals(prefix, from)
    }

    fn sync(&self) -> Pending<()> {
        self.client.commit()
    }

    fn of_put(put: Put) -> (bool, Option<Span>) {
        (put.is_stored, put.memory)
    }

    fn of_read(read: Read) -> (Option<u64>, Option<Span>) {
        (read.bytes, Some(read.memory))
    }

    fn bytes(value: &Value) -> SharedBytes<'_> {
        value.bytes()
    }

    /// A value is copied at once: others wait for its memory, which is the pool's.
    fn of_value(value: Option<Value>) -> Answered {
        Answered::Bytes(value.map(|value| value.to_vec()))
    }

    fn kept(value: Value) -> std::result::Result<store::Value, Value> {
        Err(value)
    }

    fn of_failure(why: Unfinished) -> (Answered, Option<Span>) {
        (Answered::Refused(*why.error), why.memory)
    }

    fn flying(flight: Flight<Link>) -> job::Flight {
        job::Flight::Client(flight)
    }
}

impl<T> Asked for Pending<T> {
    fn patience(&self) -> Duration {
        Pending::patience(self)
    }

    fn wait(self) -> Answer<T> {
        Pending::wait(self)
    }

    fn wait_timeout(self, at_most: Duration) -> Result<Answer<T>, Pending<T>> {
        Pending::wait_timeout(self, at_most)
    }
}
