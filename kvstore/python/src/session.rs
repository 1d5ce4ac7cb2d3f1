//! Requests in flight and their answers.
//!
//! Nothing here touches a Python object but through the address and length of its buffer, so all of it runs detached
//! from the interpreter. Views that are done with are kept, and released where their job ends, attached.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Outcome, Part};
use adit_kvstore::store::{
    Answer, BlocksWriter, DefinedLayout, Payload, Pending, Put, PutWith, Read, Value,
};
use adit_kvstore::{Error, Key, Store};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors;
use crate::memory::{Loan, Shared};
use crate::view::View;

/// What requests are made with: the store, and the memory that its devices know.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) store: Store,
    pub(crate) regions: Arc<[Arc<Shared>]>,
    /// Bytes copied between buffers and the store's memory.
    pub(crate) copied: Arc<AtomicU64>,
}

/// One request, and what it needs once it is answered.
enum Flight {
    Put(Option<Pending<Put>>, Option<Loan>),
    /// Writes a layer of a block.
    Fill(Option<Pending<AnyBuffer>>, Option<Loan>),
    Seal(Option<Pending<Outcome>>),
    Get(Option<Pending<Option<Value>>>),
    /// Reads into the store's memory, from which the view's is filled.
    Copy(Option<Pending<Option<Value>>>, Option<View>),
    /// Reads into registered memory.
    Read(Option<Pending<Read>>, Option<Loan>),
    Flag(Option<Pending<bool>>),
    Count(Option<Pending<usize>>),
    Commit(Option<Pending<()>>),
}

/// How to look for an answer.
#[derive(Clone, Copy)]
enum Look<'a> {
    /// Block until it is there.
    Wait,
    /// Have the waker called if it is not there.
    Poll(&'a Waker),
}

/// The answer to one request.
enum Answered {
    Flag(bool),
    /// Bytes read, or a miss.
    Length(Option<u64>),
    Value(Option<Value>),
    Count(usize),
    Done,
    Failed(Error),
    /// The buffer is shorter than the object.
    Short {
        needs: usize,
        has: usize,
    },
}

enum Slot {
    Flying(Flight),
    Landed(Answered),
}

/// The requests of one call, in the order of its keys.
pub(crate) struct Job {
    slots: Vec<Slot>,
    /// Views to release.
    spent: Vec<View>,
    copied: Arc<AtomicU64>,
}

impl Session {
    /// Stores objects; as a sequence of KV blocks if there is a layout.
    pub(crate) fn put(
        &self,
        items: Vec<(Key, View)>,
        with: &PutWith,
        layout: Option<&DefinedLayout>,
    ) -> Job {
        let mut job = self.job(items.len());
        let (mut loans, mut payloads) = (Vec::new(), Vec::new());
        for (key, view) in items {
            let (payload, loan) = self.payload(&view);
            payloads.push((key, payload));
            loans.push(loan);
            job.spent.push(view);
        }
        let batch = match layout {
            Some(layout) => self.store.put_blocks(layout, payloads, with),
            None => self.store.put_many(payloads, with),
        };
        let flights = batch.into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Put(Some(pending), loan)));
        job
    }

    /// Writes one layer of reserved blocks.
    pub(crate) fn fill(&self, writer: &BlocksWriter, layer: u32, data: Vec<View>) -> Job {
        let mut job = self.job(data.len());
        let (payloads, loans): (Vec<_>, Vec<_>) =
            data.iter().map(|view| self.payload_of_a_part(view)).unzip();
        job.spent = data;
        // A wrong number of buffers has more answers than loans.
        let loans = loans.into_iter().chain(std::iter::repeat_with(|| None));
        let flights = writer.put_layer(layer, payloads).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Fill(Some(pending), loan)));
        job
    }

    /// Turns written blocks into objects.
    pub(crate) fn seal(&self, writer: BlocksWriter) -> Job {
        let mut job = self.job(writer.count());
        job.add(writer.commit().into_iter().map(|pending| Flight::Seal(Some(pending))));
        job
    }

    /// Reads objects.
    pub(crate) fn get(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(self.store.get_many(keys).into_iter().map(|pending| Flight::Get(Some(pending))));
        job
    }

    /// Reads objects into writable buffers: in place where a buffer lies in registered memory.
    pub(crate) fn get_into(&self, items: Vec<(Key, View)>) -> Job {
        let mut job = self.job(items.len());
        let (mut lent, mut plain) = (Vec::new(), Vec::new());
        let (mut loans, mut views) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            match self.lend(&view) {
                Some((run, loan)) => {
                    lent.push((key, Part::All, AnyBuffer::One(run)));
                    loans.push((position, loan));
                    job.spent.push(view);
                }
                None => {
                    plain.push(key);
                    views.push((position, view));
                }
            }
        }
        let read = self.store.get_many_into(lent).into_iter().zip(loans);
        let read = read.map(|(pending, (at, loan))| (at, Flight::Read(Some(pending), Some(loan))));
        let copy = self.store.get_many(plain).into_iter().zip(views);
        let copy = copy.map(|(pending, (at, view))| (at, Flight::Copy(Some(pending), Some(view))));
        let mut flights: Vec<_> = read.chain(copy).collect();
        flights.sort_unstable_by_key(|(position, _)| *position);
        job.add(flights.into_iter().map(|(_, flight)| flight));
        job
    }

    /// Reads one layer of KV blocks into registered memory.
    ///
    /// # Errors
    /// The position of a buffer that is not in registered memory, or that a request has.
    pub(crate) fn get_layer(
        &self,
        layer: u32,
        items: Vec<(Key, View)>,
    ) -> Result<Job, (usize, Vec<View>)> {
        let mut job = self.job(items.len());
        let (mut lent, mut loans) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            let run = self.lend(&view);
            job.spent.push(view);
            let Some((run, loan)) = run else {
                let back = lent.into_iter().map(|(_, run): (Key, AnyBuffer)| run);
                back.zip(loans).for_each(|(run, loan): (_, Loan)| loan.give(run));
                return Err((position, job.spent));
            };
            lent.push((key, AnyBuffer::One(run)));
            loans.push(loan);
        }
        let flights = self.store.get_layer(layer, lent).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Read(Some(pending), Some(loan))));
        Ok(job)
    }

    /// Asks which objects exist.
    pub(crate) fn exists(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(keys.into_iter().map(|key| Flight::Flag(Some(self.store.exists(key)))));
        job
    }

    /// Removes objects.
    pub(crate) fn delete(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(keys.into_iter().map(|key| Flight::Flag(Some(self.store.delete(key)))));
        job
    }

    /// Asks how many objects exist before the first miss.
    pub(crate) fn lookup_prefix(&self, keys: &[Key]) -> Job {
        let mut job = self.job(1);
        job.add([Flight::Count(Some(self.store.lookup_prefix(keys)))]);
        job
    }

    /// Makes what was acknowledged survive a power cut.
    pub(crate) fn commit(&self) -> Job {
        let mut job = self.job(1);
        job.add([Flight::Commit(Some(self.store.commit()))]);
        job
    }

    fn job(&self, requests: usize) -> Job {
        let copied = Arc::clone(&self.copied);
        Job { slots: Vec::with_capacity(requests), spent: Vec::new(), copied }
    }

    fn lend(&self, view: &View) -> Option<(Buffer, Loan)> {
        self.regions.iter().find_map(|region| region.take(view.address(), view.len()))
    }

    /// Returns a buffer's bytes as they go to the store: in place if they lie in registered memory, else as a copy in
    /// the store's memory or, if it has none, on the heap.
    fn payload(&self, view: &View) -> (Payload<'static>, Option<Loan>) {
        let bytes = view.len() as u64;
        let Some((run, loan)) = self.lend(view) else { return (self.copy(view), None) };
        (Payload::lent(run, bytes), Some(loan))
    }

    /// Like [`Session::payload`] for a part of an object, which goes to a device that is chosen already: the store
    /// takes memory of that device for it.
    fn payload_of_a_part(&self, view: &View) -> (Payload<'static>, Option<Loan>) {
        let bytes = view.len() as u64;
        let Some((run, loan)) = self.lend(view) else {
            self.copied.fetch_add(bytes, Ordering::Relaxed);
            return (view.to_vec().into(), None);
        };
        (Payload::lent(run, bytes), Some(loan))
    }

    fn copy(&self, view: &View) -> Payload<'static> {
        let bytes = view.len();
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
        let pooled = if bytes > 0 { self.store.buffer(bytes).try_wait().ok() } else { None };
        match pooled {
            Some(Ok(mut buffer)) => {
                view.read(&mut buffer);
                buffer.into()
            }
            Some(Err(_)) | None => view.to_vec().into(),
        }
    }
}

impl Job {
    fn add(&mut self, flights: impl IntoIterator<Item = Flight>) {
        self.slots.extend(flights.into_iter().map(Slot::Flying));
    }

    /// Blocks until every request is answered.
    pub(crate) fn wait(&mut self) {
        let flying = self.look(Look::Wait);
        assert_eq!(flying, 0, "a wait ends with an answer");
    }

    /// Takes the answers that have come, and has `waker` called for each of the others. Returns their number.
    pub(crate) fn poll(&mut self, waker: &Waker) -> usize {
        self.look(Look::Poll(waker))
    }

    fn look(&mut self, how: Look<'_>) -> usize {
        let mut flying = 0;
        for slot in &mut self.slots {
            let Slot::Flying(flight) = slot else { continue };
            match flight.look(how, &self.copied, &mut self.spent) {
                Some(answered) => *slot = Slot::Landed(answered),
                None => flying += 1,
            }
        }
        flying
    }

    /// Returns the answers as Python objects, `None` for a request that failed, and the first failure.
    pub(crate) fn results<'py>(
        self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, Option<PyErr>)> {
        let (results, mut failure) = (PyList::empty(py), None);
        for (position, slot) in self.slots.into_iter().enumerate() {
            let Slot::Landed(answered) = slot else { unreachable!("every request was answered") };
            let result = match answered.into_object(py) {
                Ok(result) => result,
                Err(why) => {
                    if failure.is_none() && why.value(py).hasattr("index")? {
                        why.value(py).setattr("index", position)?;
                    }
                    failure = failure.or(Some(why));
                    py.None().into_bound(py)
                }
            };
            results.append(result)?;
        }
        Ok((results, failure))
    }

    /// Returns the answers as Python objects.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn all<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (results, failure) = self.results(py)?;
        failure.map_or(Ok(results), Err)
    }

    /// Returns the answer of a job with one request.
    ///
    /// # Errors
    /// Its failure.
    pub(crate) fn one<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        assert_eq!(self.slots.len(), 1, "the job has one request");
        self.all(py)?.get_item(0)
    }
}

impl Flight {
    /// Returns the answer if it is there.
    fn look(
        &mut self,
        how: Look<'_>,
        copied: &AtomicU64,
        spent: &mut Vec<View>,
    ) -> Option<Answered> {
        match self {
            Flight::Put(pending, loan) => land(pending, how, |answer| {
                let answer = answer.map(|put| (put.is_stored(), put.memory));
                returned(answer, loan, Answered::Flag)
            }),
            Flight::Fill(pending, loan) => land(pending, how, |answer| {
                returned(answer.map(|memory| ((), memory)), loan, |()| Answered::Done)
            }),
            Flight::Read(pending, loan) => land(pending, how, |answer| {
                let answer = answer.map(|read| (read.bytes, read.memory));
                returned(answer, loan, Answered::Length)
            }),
            Flight::Copy(pending, view) => land(pending, how, |answer| {
                let view = view.take().expect("the view is there until the answer");
                let answered = plain(answer, |value| fill(&view, value.as_ref(), copied));
                spent.push(view);
                answered
            }),
            Flight::Seal(pending) => land(pending, how, |answer| {
                plain(answer, |outcome| Answered::Flag(outcome == Outcome::Stored))
            }),
            Flight::Get(pending) => land(pending, how, |answer| plain(answer, Answered::Value)),
            Flight::Flag(pending) => land(pending, how, |answer| plain(answer, Answered::Flag)),
            Flight::Count(pending) => land(pending, how, |answer| plain(answer, Answered::Count)),
            Flight::Commit(pending) => {
                land(pending, how, |answer| plain(answer, |()| Answered::Done))
            }
        }
    }
}

/// Looks for the answer of one request, and settles it.
fn land<T>(
    pending: &mut Option<Pending<T>>,
    how: Look<'_>,
    settle: impl FnOnce(Answer<T>) -> Answered,
) -> Option<Answered> {
    let answer = match how {
        Look::Wait => pending.take().expect("a request is answered once").wait(),
        Look::Poll(waker) => {
            let waiting = pending.as_mut().expect("a request is answered once");
            let Poll::Ready(answer) = Pin::new(waiting).poll(&mut Context::from_waker(waker))
            else {
                return None;
            };
            *pending = None;
            answer
        }
    };
    Some(settle(answer))
}

/// Settles an answer that brings back lent memory.
fn returned<T>(
    answer: Answer<(T, AnyBuffer)>,
    loan: &mut Option<Loan>,
    then: impl FnOnce(T) -> Answered,
) -> Answered {
    let (answered, memory) = match answer {
        Ok((value, memory)) => (then(value), memory),
        Err(unfinished) => (Answered::Failed(*unfinished.error), unfinished.memory),
    };
    if let Some(loan) = loan.take() {
        loan.give(memory);
    }
    answered
}

fn plain<T>(answer: Answer<T>, then: impl FnOnce(T) -> Answered) -> Answered {
    answer.map_or_else(|unfinished| Answered::Failed(unfinished.into()), then)
}

/// Copies a value into a buffer.
fn fill(view: &View, value: Option<&Value>, copied: &AtomicU64) -> Answered {
    let Some(value) = value else { return Answered::Length(None) };
    if value.len() > view.len() {
        return Answered::Short { needs: value.len(), has: view.len() };
    }
    view.write(value);
    copied.fetch_add(value.len() as u64, Ordering::Relaxed);
    Answered::Length(Some(value.len() as u64))
}

impl Answered {
    /// Returns the answer as Python sees it.
    ///
    /// # Errors
    /// The request's failure.
    fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Answered::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
            Answered::Length(length) => length.into_pyobject(py)?,
            Answered::Count(count) => count.into_pyobject(py)?.into_any(),
            Answered::Value(Some(value)) => PyBytes::new(py, &value).into_any(),
            Answered::Value(None) | Answered::Done => py.None().into_bound(py),
            Answered::Failed(why) => return Err(errors::of(py, &why)),
            Answered::Short { needs, has } => {
                let text =
                    format!("the object has {needs} bytes and the buffer {has}: give as many");
                return Err(errors::named(py, "BadBufferError", &text));
            }
        })
    }
}
