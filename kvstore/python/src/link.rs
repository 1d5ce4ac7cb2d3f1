//! A connection's requests, made and settled.
//!
//! As in `job`, nothing here touches a Python object but through the address and length of its buffer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use adit_kvshare::client::{Answer, Data, Pending, Put, PutWith, Read, Value};
use adit_kvshare::{Client, Result, Span};
use adit_kvstore::Key;
use adit_kvstore::shard::Part;

use crate::job::{Answered, Deadline, Job, Look, Requests, fill};
use crate::reaper::Reaper;
use crate::shared::{Held, Loan};
use crate::view::View;

/// Numbers connections.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What requests are made with: the connection, and the memory that it shares.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    /// Among the connections of this process.
    pub(crate) number: u64,
    /// Bytes copied between buffers and the client's pool.
    pub(crate) copied: Arc<AtomicU64>,
    held: Arc<Mutex<Vec<Weak<Held>>>>,
    /// Takes answers for queues, once there is one.
    reaper: Arc<Mutex<Option<Arc<Reaper>>>>,
    timeout: Duration,
}

/// One request, and what it needs once it is answered.
pub(crate) enum Flight {
    Put(Option<Pending<Put>>, Option<Loan>),
    Get(Option<Pending<Option<Value>>>),
    /// Reads into the connection's pool, from which the view's is filled.
    Copy(Option<Pending<Option<Value>>>, Option<View>),
    /// Reads into shared memory.
    Read(Option<Pending<Read>>, Option<Loan>),
    Flag(Option<Pending<bool>>),
    Count(Option<Pending<usize>>),
    Objects(Option<Pending<u64>>),
    Commit(Option<Pending<()>>),
}

impl Link {
    /// Wraps a connection whose requests are to be answered within `timeout`.
    pub(crate) fn new(client: Client, timeout: Duration) -> Link {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (copied, held, reaper) = Default::default();
        Link { client, number, copied, held, reaper, timeout }
    }

    /// Makes shared memory.
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Arc<Held>> {
        let made = Held::new(self.client.allocate(bytes)?);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
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
        let copy = |view| move |into: &mut [u8]| View::read(view, into);
        let copies: Vec<_> = views.iter().map(copy).collect();
        let (mut data, mut loans) = (Vec::new(), Vec::new());
        for ((key, view), copy) in keys.into_iter().zip(&views).zip(&copies) {
            let (run, loan) = self.lend(view).unzip();
            data.push((key, run.map_or_else(|| self.counted(view.len(), copy), Data::from)));
            loans.push(loan);
        }
        let flights = self.client.put_many(data, with).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Put(Some(pending), loan)));
        drop(copies);
        views.into_iter().for_each(|view| job.keep(view));
        job
    }

    fn counted<'a>(&self, bytes: usize, copy: &'a dyn Fn(&mut [u8])) -> Data<'a> {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
        Data::Copied(bytes, copy)
    }

    /// Reads one layer of KV blocks into shared memory.
    ///
    /// # Errors
    /// The position of a buffer that is not in shared memory, or that a request has.
    pub(crate) fn get_layer(
        &self,
        layer: u32,
        items: Vec<(Key, View)>,
    ) -> Result<Job, (usize, Vec<View>)> {
        let mut job = self.job(items.len());
        let (mut lent, mut loans) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            let run = self.lend(&view);
            job.keep(view);
            let Some((run, loan)) = run else {
                let back = lent.into_iter().map(|(_, _, run): (Key, Part, Span)| run);
                back.zip(loans).for_each(|(run, loan): (_, Loan)| loan.give(Some(run)));
                return Err((position, job.into_views()));
            };
            lent.push((key, Part::Layer(layer), run));
            loans.push(loan);
        }
        let flights = self.client.get_many_into(lent).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Read(Some(pending), Some(loan))));
        Ok(job)
    }

    /// Removes all objects whose keys begin with a prefix.
    pub(crate) fn delete_prefix(&self, prefix: Key) -> Job {
        self.one(Flight::Objects(Some(self.client.delete_prefix(prefix))))
    }

    fn job(&self, requests: usize) -> Job {
        Job::new(requests, Some(Deadline::after(self.timeout)), &self.copied)
    }

    fn one(&self, flight: Flight) -> Job {
        let mut job = self.job(1);
        job.add([flight]);
        job
    }

    fn lend(&self, view: &View) -> Option<(Span, Loan)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().find_map(|held| held.upgrade()?.take(view.address(), view.len()))
    }
}

impl Requests for Link {
    fn get(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        let pending = self.client.get_many(keys).into_iter();
        job.add(pending.map(|pending| Flight::Get(Some(pending))));
        job
    }

    fn get_into(&self, items: Vec<(Key, View)>) -> Job {
        let mut job = self.job(items.len());
        let (mut lent, mut plain) = (Vec::new(), Vec::new());
        let (mut loans, mut views) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            match self.lend(&view) {
                Some((run, loan)) => {
                    lent.push((key, Part::All, run));
                    loans.push((position, loan));
                    job.keep(view);
                }
                None => {
                    plain.push(key);
                    views.push((position, view));
                }
            }
        }
        // Those that need the pool go last: values that are not collected yet cannot hold up the others.
        let read = self.client.get_many_into(lent).into_iter().zip(loans);
        let read = read.map(|(pending, (at, loan))| (at, Flight::Read(Some(pending), Some(loan))));
        let copy = self.client.get_many(plain).into_iter().zip(views);
        let copy = copy.map(|(pending, (at, view))| (at, Flight::Copy(Some(pending), Some(view))));
        let mut flights: Vec<_> = read.chain(copy).collect();
        flights.sort_unstable_by_key(|(position, _)| *position);
        job.add(flights.into_iter().map(|(_, flight)| flight));
        job
    }

    fn exists(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        let pending = self.client.exists_many(keys).into_iter();
        job.add(pending.map(|pending| Flight::Flag(Some(pending))));
        job
    }

    fn delete(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(keys.into_iter().map(|key| Flight::Flag(Some(self.client.delete(key)))));
        job
    }

    fn lookup_prefix(&self, keys: &[Key]) -> Job {
        self.one(Flight::Count(Some(self.client.lookup_prefix(keys))))
    }

    fn commit(&self) -> Job {
        self.one(Flight::Commit(Some(self.client.commit())))
    }
}

impl Flight {
    /// Returns the answer if it is there.
    pub(crate) fn look(
        &mut self,
        how: Look<'_>,
        copied: &AtomicU64,
        spent: &mut Vec<View>,
    ) -> Option<Answered> {
        match self {
            Flight::Put(pending, loan) => land(pending, how, |answer| {
                let answer = answer.map(|put| (put.is_stored, put.memory));
                returned(answer, loan, Answered::Flag)
            }),
            Flight::Read(pending, loan) => land(pending, how, |answer| {
                let answer = answer.map(|read| (read.bytes, Some(read.memory)));
                returned(answer, loan, Answered::Length)
            }),
            Flight::Copy(pending, view) => land(pending, how, |answer| {
                let view = view.take().expect("the view is there until the answer");
                let answered = plain(answer, |value| fill(&view, value.as_deref(), copied));
                spent.push(view);
                answered
            }),
            // A value is copied at once: others wait for its memory, which is the pool's.
            Flight::Get(pending) => land(pending, how, |answer| {
                plain(answer, |value| Answered::Bytes(value.map(|value| value.to_vec())))
            }),
            Flight::Flag(pending) => land(pending, how, |answer| plain(answer, Answered::Flag)),
            Flight::Count(pending) => {
                land(pending, how, |answer| plain(answer, |count| Answered::Count(count as u64)))
            }
            Flight::Objects(pending) => land(pending, how, |answer| plain(answer, Answered::Count)),
            Flight::Commit(pending) => {
                land(pending, how, |answer| plain(answer, |()| Answered::Done))
            }
        }
    }

    /// Takes the view of a request that is given up, to be released.
    pub(crate) fn take_view(&mut self) -> Option<View> {
        if let Flight::Copy(_, view) = self { view.take() } else { None }
    }
}

/// Looks for the answer of one request, and settles it.
fn land<T>(
    place: &mut Option<Pending<T>>,
    how: Look<'_>,
    settle: impl FnOnce(Answer<T>) -> Answered,
) -> Option<Answered> {
    let mut pending = place.take().expect("a request is answered once");
    let answer = match how {
        Look::Wait(None) => Ok(pending.wait()),
        Look::Wait(Some(at_most)) => pending.wait_timeout(at_most),
        Look::Poll(waker) => match Pin::new(&mut pending).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(pending),
        },
    };
    match answer {
        Ok(answer) => Some(settle(answer)),
        Err(pending) => {
            *place = Some(pending);
            None
        }
    }
}

/// Settles an answer that brings back lent memory. None comes back while a device may still write it.
fn returned<T>(
    answer: Answer<(T, Option<Span>)>,
    loan: &mut Option<Loan>,
    then: impl FnOnce(T) -> Answered,
) -> Answered {
    let (answered, memory) = match answer {
        Ok((value, memory)) => (then(value), memory),
        Err(unfinished) => (Answered::Refused(*unfinished.error), unfinished.memory),
    };
    if let Some(loan) = loan.take() {
        loan.give(memory);
    }
    answered
}

fn plain<T>(answer: Answer<T>, then: impl FnOnce(T) -> Answered) -> Answered {
    answer.map_or_else(|unfinished| Answered::Refused(*unfinished.error), then)
}
