//! Makes the requests of a call from its keys and buffers.
//!
//! As in `flight`, this module touches Python objects only through the address and length of their buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_driver::Buffer;
use adit_kvstore::shard::{Outcome, Part};
use adit_kvstore::store::{BlocksWriter, Payload, PutWith};
use adit_kvstore::{Key, Store};

use crate::answer::Answered;
use crate::flight::{Backend, Flight, plain, returned};
use crate::job::{Deadline, Job};
use crate::lending::{Lender, Loan};
use crate::view::View;

/// Maximum removals in one answer.
const REMOVALS_MAX: usize = 1000;

/// A call with its arguments.
pub(crate) enum Call {
    /// Stores objects, in place where their buffers lie in registered memory.
    Put(Vec<(Key, View)>, PutWith),
    /// Reads objects.
    Get(Vec<Key>),
    /// Reads objects into writable buffers, in place where a buffer lies in registered memory.
    GetInto(Vec<(Key, View)>),
    /// Checks which objects exist.
    Exists(Vec<Key>),
    /// Like `Exists`, but counts a use of each.
    Refresh(Vec<Key>),
    /// Removes objects.
    Delete(Vec<Key>),
    /// Sets the expiry of objects.
    Touch(Vec<Key>, Duration),
    /// Counts the objects before the first miss.
    LookupPrefix(Vec<Key>),
    /// Returns removed objects with a prefix, after a position.
    Removals(Vec<u8>, Option<u64>),
    /// Makes acknowledged changes survive a power cut.
    Commit,
}

/// Makes requests: a store or a connection to one, with its registered memory.
pub(crate) struct Session<S: Backend> {
    pub(crate) store: S,
    pub(crate) lender: Lender<S::Memory>,
    /// Bytes copied between buffers and the store's or the client's memory that the store does not count.
    pub(crate) copied: Arc<AtomicU64>,
    /// Time limit of requests, if the store has no deadlines of its own.
    pub(crate) timeout: Option<Duration>,
}

impl<S: Backend> Session<S> {
    /// Creates the job of requests that are to be added.
    fn job(&self) -> Job {
        Job::new(self.timeout.map(Deadline::after), &self.copied)
    }

    fn job_of(&self, flights: impl IntoIterator<Item = Flight<S>>) -> Job {
        let mut job = self.job();
        job.add(flights.into_iter().map(S::flying));
        job
    }

    /// Takes the memory of a buffer, if it is registered and no request uses it.
    fn lend(&self, view: &View) -> Option<(S::Memory, Loan<S::Memory>)> {
        self.lender.take(view.address(), view.len())
    }

    /// Makes the requests of a call.
    pub(crate) fn begin(&self, call: Call) -> Job {
        let store = &self.store;
        let flags = |asked: S::Batch<bool>| {
            self.job_of(asked.into_iter().map(|pending| Flight::Flag(Some(pending))))
        };
        match call {
            Call::Put(items, with) => self.put(items, &with),
            Call::Get(keys) => {
                let gets = store.get_many(keys).into_iter();
                self.job_of(gets.map(|pending| Flight::Get(Some(pending))))
            }
            Call::GetInto(items) => self.get_into(items),
            Call::Exists(keys) => flags(store.exists_many(keys)),
            Call::Refresh(keys) => flags(store.refresh_many(keys)),
            Call::Delete(keys) => flags(store.delete_many(keys)),
            Call::Touch(keys, ttl) => flags(store.touch_many(keys, ttl)),
            Call::LookupPrefix(keys) => {
                self.job_of([Flight::Count(Some(store.lookup_prefix(&keys)))])
            }
            Call::Removals(prefix, from) => {
                let removals = store.removals(&prefix, from, REMOVALS_MAX);
                self.job_of([Flight::Removals(Some(removals))])
            }
            Call::Commit => self.job_of([Flight::Commit(Some(store.commit()))]),
        }
    }

    fn put(&self, items: Vec<(Key, View)>, with: &PutWith) -> Job {
        let mut job = self.job();
        let (keys, views): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let (mut data, mut loans) = (Vec::new(), Vec::new());
        for (key, view) in keys.into_iter().zip(&views) {
            let (run, loan) = self.lend(view).unzip();
            data.push((
                key,
                match run {
                    Some(run) => S::lent(run, view.len() as u64),
                    None => self.plain(view),
                },
            ));
            loans.push(loan);
        }
        let flights = self.store.put_all(data, with).into_iter().zip(loans);
        job.add(flights.map(|(pending, loan)| S::flying(Flight::Put(Some(pending), loan))));
        views.into_iter().for_each(|view| job.keep(view));
        job
    }

    /// Returns bytes that the put copies.
    fn plain<'a>(&self, view: &'a View) -> S::Data<'a> {
        if S::COPIES_UNCOUNTED {
            self.copied.fetch_add(view.len() as u64, Ordering::Relaxed);
        }
        view.bytes().into()
    }

    fn get_into(&self, items: Vec<(Key, View)>) -> Job {
        let mut job = self.job();
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
        // Requests that need pool memory come last, so that uncollected values do not delay the others.
        let read = self.store.get_many_into(lent).into_iter().zip(loans);
        let read = read.map(|(pending, (at, loan))| (at, Flight::Read(Some(pending), Some(loan))));
        let copy = self.store.get_many(plain).into_iter().zip(views);
        let copy = copy.map(|(pending, (at, view))| (at, Flight::Copy(Some(pending), Some(view))));
        let mut flights: Vec<_> = read.chain(copy).collect();
        flights.sort_unstable_by_key(|(position, _)| *position);
        job.add(flights.into_iter().map(|(_, flight)| S::flying(flight)));
        job
    }

    /// Reads one layer of KV blocks into registered memory.
    ///
    /// # Errors
    /// The position of a buffer that is not in such memory, or that another request uses.
    pub(crate) fn get_layer(
        &self,
        layer: u32,
        items: Vec<(Key, View)>,
    ) -> Result<Job, (usize, Vec<View>)> {
        let mut job = self.job();
        let (mut lent, mut loans) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.into_iter().enumerate() {
            let run = self.lend(&view);
            job.reads(view.len());
            job.keep(view);
            let Some((run, loan)) = run else {
                let back = lent.into_iter().map(|(_, _, run): (Key, Part, S::Memory)| run);
                back.zip(loans).for_each(|(run, loan): (_, Loan<_>)| loan.give(Some(run)));
                return Err((position, job.into_views()));
            };
            lent.push((key, Part::Layer(layer), run));
            loans.push(loan);
        }
        let flights = self.store.get_many_into(lent).into_iter().zip(loans);
        let read = |(pending, loan)| S::flying(Flight::Read(Some(pending), Some(loan)));
        job.add(flights.map(read));
        Ok(job)
    }
}

impl Session<Store> {
    /// Writes one layer of reserved blocks, and waits for the answers.
    pub(crate) fn fill(&self, writer: &BlocksWriter, layer: u32, data: Vec<View>) -> Job {
        let mut job = self.job();
        let part = |view| match self.lend(view) {
            Some((run, loan)) => (Payload::lent(run, view.len() as u64), Some(loan)),
            None => (view.bytes().into(), None::<Loan<Buffer>>),
        };
        let (payloads, loans): (Vec<Payload<'_>>, Vec<_>) = data.iter().map(part).unzip();
        // With a wrong number of buffers, there are more answers than loans.
        let loans = loans.into_iter().chain(std::iter::repeat_with(|| None));
        let asked = writer.put_layer(layer, payloads).into_iter().zip(loans);
        job.land(asked.map(|(pending, loan)| {
            returned::<Store>(pending.wait().map(|memory| (Answered::Done, memory)), loan)
        }));
        data.into_iter().for_each(|view| job.keep(view));
        job
    }

    /// Turns written blocks into objects, and waits for the answers.
    pub(crate) fn seal(&self, writer: BlocksWriter) -> Job {
        let mut job = self.job();
        let stored = |outcome| Answered::Flag(outcome == Outcome::Stored);
        job.land(writer.commit().into_iter().map(|pending| plain(stored)(pending.wait())));
        job
    }
}
