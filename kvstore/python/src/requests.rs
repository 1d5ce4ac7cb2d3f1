//! Requests of a store and their answers, written once for both ways to it: in this process, and over a connection.
//!
//! As in `job`, nothing here touches a Python object but through the address and length of its buffer.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use adit_kvshare::{Divide, SharedBytes};
use adit_kvstore::Key;
use adit_kvstore::shard::Part;
use adit_kvstore::store::{Removed, Value};

use crate::job::{self, Answered, Job, Look, fill};
use crate::lending::Loan;
use crate::link::Link;
use crate::view::View;

/// What makes requests of a store, wherever that is.
pub(crate) trait Requests {
    /// Reads objects.
    fn get(&self, keys: Vec<Key>) -> Job;

    /// Reads objects into writable buffers: in place where a buffer lies in memory that the devices know.
    fn get_into(&self, items: Vec<(Key, View)>) -> Job;

    /// Reads one layer of KV blocks into memory that the devices know.
    ///
    /// # Errors
    /// The position of a buffer that is not in such memory, or that a request has.
    fn get_layer(&self, layer: u32, items: Vec<(Key, View)>) -> Result<Job, (usize, Vec<View>)>;

    /// Asks which objects exist.
    fn exists(&self, keys: Vec<Key>) -> Job;

    /// Like `exists`, and counts as a use of each.
    fn refresh(&self, keys: Vec<Key>) -> Job;

    /// Removes objects.
    fn delete(&self, keys: Vec<Key>) -> Job;

    /// Sets when objects expire.
    fn touch(&self, keys: Vec<Key>, ttl: Duration) -> Job;

    /// Asks how many objects exist before the first miss.
    fn lookup_prefix(&self, keys: Vec<Key>) -> Job;

    /// Asks which objects went after a position, of those with a prefix.
    fn removals(&self, prefix: &[u8], from: Option<u64>) -> Job;

    /// Makes what was acknowledged survive a power cut.
    fn commit(&self) -> Job;

    /// Returns the connection, if that is the way: its answers stay there until they are taken.
    fn link(&self) -> Option<&Link>;
}

/// What makes requests, borrowed from nothing.
pub(crate) type Maker = dyn Requests;

/// A call with keys alone.
pub(crate) type ByKeys = fn(&Maker, Vec<Key>) -> Job;

/// A request that was made.
pub(crate) trait Asked: Future + Sized + Unpin {
    /// Returns how long [`Asked::wait`] blocks at most.
    fn patience(&self) -> Duration;

    /// Blocks until it is answered.
    fn wait(self) -> Self::Output;

    /// Blocks for at most `at_most`.
    ///
    /// # Errors
    /// Itself if it is not answered by then.
    fn wait_timeout(self, at_most: Duration) -> Result<Self::Output, Self>;
}

/// Waits for at most `at_most`, and no longer than a request's own patience.
///
/// # Errors
/// The request if it is not answered by then.
pub(crate) fn wait_for<P: Asked>(pending: P, at_most: Duration) -> Result<P::Output, P> {
    match pending.patience() {
        // It answers that it was too late.
        Duration::ZERO => Ok(pending.wait()),
        patience => pending.wait_timeout(at_most.min(patience)),
    }
}

/// A way to a store, and the types that it has for the same things.
pub(crate) trait Way: Sized {
    /// Memory as it is lent to requests.
    type Run: Divide;
    type Pending<T>: Asked<Output = Result<T, Self::Unfinished>>;
    type Unfinished;
    type Put;
    type Read;
    type Value;

    /// Creates the job of so many requests, which are to be added.
    fn job(&self, requests: usize) -> Job;
    fn link(&self) -> Option<&Link>;
    /// Takes the memory of a buffer, if the devices know it and no request has it.
    fn lend(&self, view: &View) -> Option<(Self::Run, Loan<Self::Run>)>;

    /// Sends requests for the values before it returns.
    fn fetch(&self, keys: Vec<Key>) -> impl Iterator<Item = Self::Pending<Option<Self::Value>>>;
    /// Sends the reads before it returns.
    fn read(
        &self,
        items: Vec<(Key, Part, Self::Run)>,
    ) -> impl Iterator<Item = Self::Pending<Self::Read>>;
    fn find(&self, keys: Vec<Key>) -> impl Iterator<Item = Self::Pending<bool>>;
    fn find_in_use(&self, keys: Vec<Key>) -> impl Iterator<Item = Self::Pending<bool>>;
    fn remove(&self, keys: Vec<Key>) -> impl Iterator<Item = Self::Pending<bool>>;
    fn expire(&self, keys: Vec<Key>, ttl: Duration) -> impl Iterator<Item = Self::Pending<bool>>;
    fn count(&self, keys: Vec<Key>) -> Self::Pending<usize>;
    fn gone(&self, prefix: &[u8], from: Option<u64>) -> Self::Pending<Removed>;
    fn sync(&self) -> Self::Pending<()>;

    /// Returns whether the object was stored, and the memory that was lent.
    fn of_put(put: Self::Put) -> (bool, Option<Self::Run>);
    /// Returns the bytes that were read, if there is an object, and the memory that was lent.
    fn of_read(read: Self::Read) -> (Option<u64>, Option<Self::Run>);
    fn of_value(value: Option<Self::Value>) -> Answered;
    fn bytes(value: &Self::Value) -> SharedBytes<'_>;
    /// Returns a value that may wait for its turn to be copied to a buffer, or the value if others wait for its memory.
    fn kept(value: Self::Value) -> Result<Value, Self::Value>;
    /// Returns the failure, and the memory that was lent: none while a device may still write it.
    fn of_failure(why: Self::Unfinished) -> (Answered, Option<Self::Run>);
    fn flying(flight: Flight<Self>) -> job::Flight;

    /// Creates the job of these requests.
    fn job_of(&self, requests: usize, flights: impl IntoIterator<Item = Flight<Self>>) -> Job {
        let mut job = self.job(requests);
        job.add(flights.into_iter().map(Self::flying));
        job
    }
}

impl<W: Way> Requests for W {
    fn get(&self, keys: Vec<Key>) -> Job {
        self.job_of(keys.len(), self.fetch(keys).map(|pending| Flight::Get(Some(pending))))
    }

    fn get_into(&self, items: Vec<(Key, View)>) -> Job {
        let mut job = self.job(items.len());
        let (mut lent, mut plain) = (Vec::new(), Vec::new());
        let (mut loans, mut views) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            job.reads(view.len());
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
        // Those that need memory of a pool go last: values that are not collected yet cannot hold up the others.
        let read = self.read(lent).zip(loans);
        let read = read.map(|(pending, (at, loan))| (at, Flight::Read(Some(pending), Some(loan))));
        let copy = self.fetch(plain).zip(views);
        let copy = copy.map(|(pending, (at, view))| (at, Flight::Copy(Some(pending), Some(view))));
        let mut flights: Vec<_> = read.chain(copy).collect();
        flights.sort_unstable_by_key(|(position, _)| *position);
        job.add(flights.into_iter().map(|(_, flight)| W::flying(flight)));
        job
    }

    fn get_layer(&self, layer: u32, items: Vec<(Key, View)>) -> Result<Job, (usize, Vec<View>)> {
        let mut job = self.job(items.len());
        let (mut lent, mut loans) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            let run = self.lend(&view);
            job.reads(view.len());
            job.keep(view);
            let Some((run, loan)) = run else {
                let back = lent.into_iter().map(|(_, _, run): (Key, Part, W::Run)| run);
                back.zip(loans).for_each(|(run, loan): (_, Loan<_>)| loan.give(Some(run)));
                return Err((position, job.into_views()));
            };
            lent.push((key, Part::Layer(layer), run));
            loans.push(loan);
        }
        let flights = self.read(lent).zip(loans);
        let flights = flights.map(|(pending, loan)| Flight::Read(Some(pending), Some(loan)));
        job.add(flights.map(W::flying));
        Ok(job)
    }

    fn exists(&self, keys: Vec<Key>) -> Job {
        self.job_of(keys.len(), self.find(keys).map(|pending| Flight::Flag(Some(pending))))
    }

    fn refresh(&self, keys: Vec<Key>) -> Job {
        self.job_of(keys.len(), self.find_in_use(keys).map(|pending| Flight::Flag(Some(pending))))
    }

    fn delete(&self, keys: Vec<Key>) -> Job {
        self.job_of(keys.len(), self.remove(keys).map(|pending| Flight::Flag(Some(pending))))
    }

    fn touch(&self, keys: Vec<Key>, ttl: Duration) -> Job {
        self.job_of(keys.len(), self.expire(keys, ttl).map(|pending| Flight::Flag(Some(pending))))
    }

    fn lookup_prefix(&self, keys: Vec<Key>) -> Job {
        self.job_of(1, [Flight::Count(Some(self.count(keys)))])
    }

    fn removals(&self, prefix: &[u8], from: Option<u64>) -> Job {
        self.job_of(1, [Flight::Gone(Some(self.gone(prefix, from)))])
    }

    fn commit(&self) -> Job {
        self.job_of(1, [Flight::Commit(Some(self.sync()))])
    }

    fn link(&self) -> Option<&Link> {
        Way::link(self)
    }
}

/// One request, and what it needs once it is answered.
pub(crate) enum Flight<W: Way> {
    Put(Option<W::Pending<W::Put>>, Option<Loan<W::Run>>),
    Get(Option<W::Pending<Option<W::Value>>>),
    /// Reads into memory of a pool, from which the view's is filled.
    Copy(Option<W::Pending<Option<W::Value>>>, Option<View>),
    /// Reads into memory that was lent.
    Read(Option<W::Pending<W::Read>>, Option<Loan<W::Run>>),
    Flag(Option<W::Pending<bool>>),
    Count(Option<W::Pending<usize>>),
    Gone(Option<W::Pending<Removed>>),
    Commit(Option<W::Pending<()>>),
}

impl<W: Way> Flight<W> {
    /// Returns the answer if it is there.
    pub(crate) fn look(
        &mut self,
        how: Look<'_>,
        copied: &AtomicU64,
        spent: &mut Vec<View>,
    ) -> Option<Answered> {
        match self {
            Flight::Put(pending, loan) => land(pending, how, |answer| {
                returned::<W, _>(answer.map(W::of_put), loan.take(), Answered::Flag)
            }),
            Flight::Read(pending, loan) => land(pending, how, |answer| {
                returned::<W, _>(answer.map(W::of_read), loan.take(), Answered::Length)
            }),
            Flight::Copy(pending, view) => land(pending, how, |answer| {
                let view = view.take().expect("the view is there until the answer");
                let value = match answer {
                    // A caller that polls has a loop to go on with: the copy is made in turns.
                    Ok(Some(value)) if matches!(how, Look::Poll(_)) => match W::kept(value) {
                        Ok(value) => return Answered::Copy(value, view),
                        Err(value) => Ok(Some(value)),
                    },
                    other => other,
                };
                let answered =
                    plain::<W, _>(value, |value| fill(&view, value.as_ref().map(W::bytes), copied));
                spent.push(view);
                answered
            }),
            Flight::Get(pending) => Self::look_at(pending, how, W::of_value),
            Flight::Flag(pending) => Self::look_at(pending, how, Answered::Flag),
            Flight::Count(pending) => {
                Self::look_at(pending, how, |count: usize| Answered::Count(count as u64))
            }
            Flight::Gone(pending) => Self::look_at(pending, how, Answered::Gone),
            Flight::Commit(pending) => Self::look_at(pending, how, |()| Answered::Done),
        }
    }

    fn look_at<T>(
        pending: &mut Option<W::Pending<T>>,
        how: Look<'_>,
        then: impl FnOnce(T) -> Answered,
    ) -> Option<Answered> {
        land(pending, how, |answer| plain::<W, _>(answer, then))
    }

    /// Takes the view of a request that is given up, to be released.
    pub(crate) fn take_view(&mut self) -> Option<View> {
        if let Flight::Copy(_, view) = self { view.take() } else { None }
    }
}

/// Looks for the answer of one request, and settles it.
fn land<P: Asked>(
    place: &mut Option<P>,
    how: Look<'_>,
    settle: impl FnOnce(P::Output) -> Answered,
) -> Option<Answered> {
    const ONCE: &str = "a request is answered once";
    let answer = match how {
        Look::Wait(at_most) => match wait_for(place.take().expect(ONCE), at_most) {
            Ok(answer) => answer,
            Err(pending) => {
                *place = Some(pending);
                return None;
            }
        },
        Look::Poll(waker) => {
            let pending = Pin::new(place.as_mut().expect(ONCE));
            let Poll::Ready(answer) = pending.poll(&mut Context::from_waker(waker)) else {
                return None;
            };
            *place = None;
            answer
        }
    };
    Some(settle(answer))
}

/// Settles an answer that brings back lent memory.
pub(crate) fn returned<W: Way, T>(
    answer: Result<(T, Option<W::Run>), W::Unfinished>,
    loan: Option<Loan<W::Run>>,
    then: impl FnOnce(T) -> Answered,
) -> Answered {
    let (answered, run) = match answer {
        Ok((value, run)) => (then(value), run),
        Err(why) => W::of_failure(why),
    };
    if let Some(loan) = loan {
        loan.give(run);
    }
    answered
}

/// Settles an answer without memory.
pub(crate) fn plain<W: Way, T>(
    answer: Result<T, W::Unfinished>,
    then: impl FnOnce(T) -> Answered,
) -> Answered {
    answer.map_or_else(|why| W::of_failure(why).0, then)
}
