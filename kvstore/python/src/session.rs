//! Requests of a store of this process, made and settled.
//!
//! As in `job`, nothing here touches a Python object but through the address and length of its buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvshare::SharedBytes;
use adit_kvstore::shard::{Outcome, Part};
use adit_kvstore::store::{
    Answer, BlocksWriter, Payload, Pending, Put, PutWith, Read, Removed, Unfinished, Value,
};
use adit_kvstore::{Key, Store};

use crate::job::{self, Answered, Job};
use crate::lending::{Lending, Loan};
use crate::link::Link;
use crate::requests::{Asked, Flight, Way, plain, returned};
use crate::view::View;

/// The most removals of one answer.
const REMOVALS_MAX: usize = 1000;

/// What requests are made with: the store, and the memory that its devices know.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) store: Store,
    pub(crate) regions: Arc<[Arc<Lending<Buffer>>]>,
    /// Bytes copied between buffers and the store's memory.
    pub(crate) copied: Arc<AtomicU64>,
}

impl Session {
    /// Stores objects; as a sequence of KV blocks if there is a layout.
    pub(crate) fn put(&self, items: Vec<(Key, View)>, with: &PutWith) -> Job {
        let mut job = self.job(items.len());
        let (mut loans, mut payloads) = (Vec::new(), Vec::new());
        for (key, view) in items {
            let (payload, loan) = self.payload(&view);
            payloads.push((key, payload));
            loans.push(loan);
            job.keep(view);
        }
        let batch = match &with.layout {
            Some(layout) => self.store.put_blocks(layout, payloads, with),
            None => self.store.put_many(payloads, with),
        };
        let flights = batch.into_iter().zip(loans);
        let flights = flights.map(|(pending, loan)| Flight::Put(Some(pending), loan));
        job.add(flights.map(Session::flying));
        job
    }

    /// Writes one layer of reserved blocks, and waits for that.
    pub(crate) fn fill(&self, writer: &BlocksWriter, layer: u32, data: Vec<View>) -> Job {
        let mut job = self.job(data.len());
        let (payloads, loans): (Vec<_>, Vec<_>) =
            data.iter().map(|view| self.payload_of_a_part(view)).unzip();
        data.into_iter().for_each(|view| job.keep(view));
        // A wrong number of buffers has more answers than loans.
        let loans = loans.into_iter().chain(std::iter::repeat_with(|| None));
        let asked = writer.put_layer(layer, payloads).into_iter().zip(loans);
        job.land(asked.map(|(pending, loan)| {
            let answer = pending.wait().map(|memory| ((), run(memory)));
            returned::<Session, _>(answer, loan, |()| Answered::Done)
        }));
        job
    }

    /// Turns written blocks into objects, and waits for that.
    pub(crate) fn seal(&self, writer: BlocksWriter) -> Job {
        let mut job = self.job(writer.count());
        let stored = |outcome| Answered::Flag(outcome == Outcome::Stored);
        let asked = writer.commit().into_iter();
        job.land(asked.map(|pending| plain::<Session, _>(pending.wait(), stored)));
        job
    }

    /// Returns a buffer's bytes as they go to the store: in place if they lie in registered memory, else as a copy in
    /// the store's memory or, if it has none, on the heap.
    fn payload(&self, view: &View) -> (Payload<'static>, Option<Loan<Buffer>>) {
        let bytes = view.len() as u64;
        let Some((run, loan)) = self.lend(view) else { return (self.copy(view), None) };
        (Payload::lent(run, bytes), Some(loan))
    }

    /// Like [`Session::payload`] for a part of an object, which goes to a device that is chosen already: the store
    /// takes memory of that device for it.
    fn payload_of_a_part(&self, view: &View) -> (Payload<'static>, Option<Loan<Buffer>>) {
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

impl Way for Session {
    type Run = Buffer;
    type Pending<T> = Pending<T>;
    type Unfinished = Unfinished;
    type Put = Put;
    type Read = Read;
    type Value = Value;

    fn job(&self, requests: usize) -> Job {
        Job::new(requests, None, &self.copied)
    }

    fn link(&self) -> Option<&Link> {
        None
    }

    fn lend(&self, view: &View) -> Option<(Buffer, Loan<Buffer>)> {
        self.regions.iter().find_map(|region| region.take(view.address(), view.len()))
    }

    fn fetch(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<Option<Value>>> {
        self.store.get_many(keys).into_iter()
    }

    fn read(&self, items: Vec<(Key, Part, Buffer)>) -> impl Iterator<Item = Pending<Read>> {
        let lent = items.into_iter().map(|(key, part, run)| (key, part, AnyBuffer::One(run)));
        self.store.get_many_into(lent).into_iter()
    }

    fn find(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.store.exists_many(keys).into_iter()
    }

    fn find_in_use(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.store.refresh_many(keys).into_iter()
    }

    fn remove(&self, keys: Vec<Key>) -> impl Iterator<Item = Pending<bool>> {
        self.store.delete_many(keys).into_iter()
    }

    fn expire(&self, keys: Vec<Key>, ttl: Duration) -> impl Iterator<Item = Pending<bool>> {
        self.store.touch_many(keys, ttl).into_iter()
    }

    fn count(&self, keys: Vec<Key>) -> Pending<usize> {
        self.store.lookup_prefix(&keys)
    }

    fn gone(&self, prefix: &[u8], from: Option<u64>) -> Pending<Removed> {
        self.store.removals(prefix, from, REMOVALS_MAX)
    }

    fn sync(&self) -> Pending<()> {
        self.store.commit()
    }

    fn of_put(put: Put) -> (bool, Option<Buffer>) {
        (put.is_stored(), run(put.memory))
    }

    fn of_read(read: Read) -> (Option<u64>, Option<Buffer>) {
        (read.bytes, run(read.memory))
    }

    fn bytes(value: &Value) -> SharedBytes<'_> {
        (&value[..]).into()
    }

    fn of_value(value: Option<Value>) -> Answered {
        Answered::Value(value)
    }

    fn kept(value: Value) -> Result<Value, Value> {
        Ok(value)
    }

    fn of_failure(why: Unfinished) -> (Answered, Option<Buffer>) {
        (Answered::Failed(*why.error), run(why.memory))
    }

    fn flying(flight: Flight<Session>) -> job::Flight {
        job::Flight::Store(flight)
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

/// Returns the run that was lent, if the store has not ended.
fn run(memory: AnyBuffer) -> Option<Buffer> {
    match memory {
        AnyBuffer::One(run) => Some(run),
        AnyBuffer::None => None,
        AnyBuffer::Many(_) => unreachable!("one run was lent, and comes back in one piece"),
    }
}
