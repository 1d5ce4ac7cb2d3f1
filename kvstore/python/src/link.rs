//! A client's requests: made, waited for and settled.
//!
//! As in `jobs`, nothing here touches a Python object but through the address and length of its buffer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use adit_kvshare::client::{Answer, Data, Pending, PutWith, Read, Value};
use adit_kvshare::wire::Code;
use adit_kvshare::{Client, Error, Result, Span, Unfinished};
use adit_kvstore::Key;
use adit_kvstore::shard::Part;

use crate::shared::{Held, Loan};
use crate::view::View;

/// How long to wait for one answer of several before another is looked at.
const LOOK: Duration = Duration::from_millis(1);

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
    timeout: Duration,
}

impl Link {
    /// Wraps a connection whose requests are to be answered within `timeout`.
    pub(crate) fn new(client: Client, timeout: Duration) -> Link {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Link { client, number, copied: Arc::default(), held: Arc::default(), timeout }
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

    /// Stores objects, those in shared memory in place.
    pub(crate) fn put(&self, items: &[(Key, View)], with: &PutWith) -> Vec<Result<bool>> {
        let copy = |view| move |into: &mut [u8]| View::read(view, into);
        let copies: Vec<_> = items.iter().map(|(_, view)| copy(view)).collect();
        let (mut data, mut loans) = (Vec::new(), Vec::new());
        for ((key, view), copy) in items.iter().zip(&copies) {
            let (run, loan) = self.lend(view).unzip();
            let bytes = run.map_or_else(|| self.counted(view.len(), copy), Data::from);
            data.push((key.clone(), bytes));
            loans.push(loan);
        }
        let pending = self.client.put_many(data, with);
        self.collect(pending, |position, answer| {
            let answer = answer.map(|put| (put.is_stored, put.memory));
            returned(answer, loans[position].take())
        })
    }

    fn counted<'a>(&self, bytes: usize, copy: &'a dyn Fn(&mut [u8])) -> Data<'a> {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
        Data::Copied(bytes, copy)
    }

    /// Reads objects.
    pub(crate) fn get(&self, keys: Vec<Key>) -> Vec<Result<Option<Vec<u8>>>> {
        let pending = self.client.get_many(keys);
        self.collect(pending, |_, answer| Ok(answer?.map(|value| value.to_vec())))
    }

    /// Reads objects into writable buffers: in place where a buffer lies in shared memory.
    pub(crate) fn get_into(&self, items: &[(Key, View)]) -> Vec<Result<Option<u64>>> {
        let (mut lent, mut loans, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for (position, (key, view)) in items.iter().enumerate() {
            match self.lend(view) {
                Some((run, loan)) => {
                    lent.push((key.clone(), Part::All, run));
                    loans.push((position, Some(loan)));
                }
                None => plain.push((position, view)),
            }
        }
        // Those that need the pool go last: values that are not collected yet cannot hold up the others.
        let lent = self.client.get_many_into(lent);
        let copied = self.client.get_many(plain.iter().map(|(at, _)| items[*at].0.clone()));
        let read = self.collect(lent, |at, answer| settle_read(answer, loans[at].1.take()));
        let read: Vec<_> = loans.iter().map(|(position, _)| *position).zip(read).collect();
        let copied = self.collect(copied, |at, answer| self.fill(plain[at].1, answer?.as_ref()));
        let copied = plain.iter().map(|(position, _)| *position).zip(copied);
        let mut all: Vec<_> = read.into_iter().chain(copied).collect();
        assert_eq!(all.len(), items.len(), "each request has an answer");
        all.sort_unstable_by_key(|(position, _)| *position);
        all.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Reads one layer of KV blocks into shared memory.
    ///
    /// # Errors
    /// The position of a buffer that is not in shared memory, or that a request has.
    pub(crate) fn get_layer(
        &self,
        layer: u32,
        items: &[(Key, View)],
    ) -> Result<Vec<Result<Option<u64>>>, usize> {
        let (mut lent, mut loans) = (Vec::new(), Vec::new());
        for (position, (key, view)) in items.iter().enumerate() {
            let Some((run, loan)) = self.lend(view) else {
                let back = lent.into_iter().map(|(_, _, run): (Key, Part, Span)| run);
                back.zip(loans.into_iter().flatten()).for_each(|(run, loan): (_, Loan)| {
                    loan.give(Some(run));
                });
                return Err(position);
            };
            lent.push((key.clone(), Part::Layer(layer), run));
            loans.push(Some(loan));
        }
        let pending = self.client.get_many_into(lent);
        Ok(self.collect(pending, |at, answer| settle_read(answer, loans[at].take())))
    }

    /// Returns which objects exist.
    pub(crate) fn exists(&self, keys: Vec<Key>) -> Vec<Result<bool>> {
        self.collect(self.client.exists_many(keys), |_, answer| Ok(answer?))
    }

    /// Removes objects.
    pub(crate) fn delete(&self, keys: Vec<Key>) -> Vec<Result<bool>> {
        let pending = keys.into_iter().map(|key| self.client.delete(key)).collect();
        self.collect(pending, |_, answer| Ok(answer?))
    }

    fn lend(&self, view: &View) -> Option<(Span, Loan)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().find_map(|held| held.upgrade()?.take(view.address(), view.len()))
    }

    /// Copies a value into a buffer.
    fn fill(&self, view: &View, value: Option<&Value>) -> Result<Option<u64>> {
        let Some(value) = value else { return Ok(None) };
        let (needs, has) = (value.len(), view.len());
        if needs > has {
            let text = format!("the object has {needs} bytes and the buffer {has}: give as many");
            return Err(Error::Refused { code: Code::Memory, text, value: needs as u64 });
        }
        view.write(value);
        self.copied.fetch_add(needs as u64, Ordering::Relaxed);
        Ok(Some(needs as u64))
    }

    /// Waits for answers and settles each as soon as it is there, so that the pool's memory comes back while others
    /// wait for some.
    fn collect<T, R>(
        &self,
        pending: Vec<Pending<T>>,
        mut settle: impl FnMut(usize, Answer<T>) -> Result<R>,
    ) -> Vec<Result<R>> {
        let until = Instant::now() + self.timeout;
        let mut settled: Vec<Option<Result<R>>> = pending.iter().map(|_| None).collect();
        let mut flying: VecDeque<_> = pending.into_iter().enumerate().collect();
        while let Some((position, first)) = flying.pop_front() {
            let left = until.saturating_duration_since(Instant::now());
            let pause = if flying.is_empty() { left } else { left.min(LOOK) };
            let answer = match first.wait_timeout(pause) {
                Ok(answer) => answer,
                Err(_) if left.is_zero() => Err(self.too_late()),
                Err(first) => {
                    flying.push_back((position, first));
                    continue;
                }
            };
            settled[position] = Some(settle(position, answer));
        }
        settled.into_iter().map(|answer| answer.expect("all have ended")).collect()
    }

    fn too_late(&self) -> Unfinished {
        let error = Box::new(Error::Timeout { ms: self.timeout.as_millis() });
        Unfinished { error, memory: None }
    }
}

/// Settles a read into shared memory.
fn settle_read(answer: Answer<Read>, loan: Option<Loan>) -> Result<Option<u64>> {
    returned(answer.map(|read| (read.bytes, Some(read.memory))), loan)
}

/// Settles an answer that brings back lent memory.
fn returned<T>(answer: Answer<(T, Option<Span>)>, loan: Option<Loan>) -> Result<T> {
    let (answer, memory) = match answer {
        Ok((value, memory)) => (Ok(value), memory),
        Err(unfinished) => (Err(*unfinished.error), unfinished.memory),
    };
    if let Some(loan) = loan {
        loan.give(memory);
    }
    answer
}
