//! Requests of a store of this process, made and settled.
//!
//! As in `job`, nothing here touches a Python object but through the address and length of its buffer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Outcome, Part};
use adit_kvstore::store::{
    Answer, BlocksWriter, DefinedLayout, Payload, Pending, Put, PutWith, Read, Value,
};
use adit_kvstore::{Key, Store};

use crate::job::{Answered, Job, Look, Requests, fill};
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
pub(crate) enum Flight {
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
            job.keep(view);
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
        data.into_iter().for_each(|view| job.keep(view));
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
            job.keep(view);
            let Some((run, loan)) = run else {
                let back = lent.into_iter().map(|(_, run): (Key, AnyBuffer)| run);
                back.zip(loans).for_each(|(run, loan): (_, Loan)| loan.give(run));
                return Err((position, job.into_views()));
            };
            lent.push((key, AnyBuffer::One(run)));
            loans.push(loan);
        }
        let flights = self.store.get_layer(layer, lent).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| Flight::Read(Some(pending), Some(loan))));
        Ok(job)
    }

    fn job(&self, requests: usize) -> Job {
        Job::new(requests, None, &self.copied)
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

impl Requests for Session {
    fn get(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(self.store.get_many(keys).into_iter().map(|pending| Flight::Get(Some(pending))));
        job
    }

    fn get_into(&self, items: Vec<(Key, View)>) -> Job {
        let mut job = self.job(items.len());
        let (mut lent, mut plain) = (Vec::new(), Vec::new());
        let (mut loans, mut views) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            match self.lend(&view) {
                Some((run, loan)) => {
                    lent.push((key, Part::All, AnyBuffer::One(run)));
                    loans.push((position, loan));
                    job.keep(view);
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

    fn exists(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(keys.into_iter().map(|key| Flight::Flag(Some(self.store.exists(key)))));
        job
    }

    fn delete(&self, keys: Vec<Key>) -> Job {
        let mut job = self.job(keys.len());
        job.add(keys.into_iter().map(|key| Flight::Flag(Some(self.store.delete(key)))));
        job
    }

    fn lookup_prefix(&self, keys: &[Key]) -> Job {
        let mut job = self.job(1);
        job.add([Flight::Count(Some(self.store.lookup_prefix(keys)))]);
        job
    }

    fn commit(&self) -> Job {
        let mut job = self.job(1);
        job.add([Flight::Commit(Some(self.store.commit()))]);
        job
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
                let answered = plain(answer, |value| fill(&view, value.as_deref(), copied));
                spent.push(view);
                answered
            }),
            Flight::Seal(pending) => land(pending, how, |answer| {
                plain(answer, |outcome| Answered::Flag(outcome == Outcome::Stored))
            }),
            Flight::Get(pending) => land(pending, how, |answer| plain(answer, Answered::Value)),
            Flight::Flag(pending) => land(pending, how, |answer| plain(answer, Answered::Flag)),
            Flight::Count(pending) => {
                land(pending, how, |answer| plain(answer, |count| Answered::Count(count as u64)))
            }
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
        Look::Wait(_) => pending.take().expect("a request is answered once").wait(),
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
