//! Several requests made in one call and answered one by one.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use adit_driver::runtime::block_until;

use super::pending::{Answer, Pending};

/// The pending answers of a batch: take them as they arrive ([`Batch::next`], [`Batch::next_async`]), or all together
/// in the order of the keys ([`Batch::wait`], or as a future).
#[must_use = "dropping it cancels what was not begun"]
pub struct Batch<T> {
    /// Indexed by position in the batch; `None` once the answer was taken.
    items: Vec<Option<Pending<T>>>,
    left: usize,
    ready: Arc<Ready>,
    /// The registered memory that a batch of reads shares.
    together: Option<Arc<Together>>,
}

/// Items whose wakers fired since they were last polled.
#[derive(Default)]
struct Ready(Mutex<Looks>);

#[derive(Default)]
struct Looks {
    items: VecDeque<usize>,
    waiter: Option<Waker>,
}

/// Wakes the batch's waiter and records which item is ready.
struct ItemWaker {
    item: usize,
    ready: Arc<Ready>,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for ItemWaker {
    fn wake(self: Arc<Self>) {
        let mut looks = self.ready.lock();
        looks.items.push_back(self.item);
        let waiter = looks.waiter.take();
        drop(looks);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

impl<T> Batch<T> {
    pub(super) fn new(pendings: Vec<Pending<T>>) -> Batch<T> {
        let ready = Arc::new(Ready::default());
        ready.lock().items.extend(0..pendings.len());
        let left = pendings.len();
        let items = pendings.into_iter().map(Some).collect();
        Batch { items, left, ready, together: None }
    }

    /// Creates a batch of reads into the store's own memory.
    pub(super) fn of_reads(pendings: Vec<Pending<T>>, together: Arc<Together>) -> Batch<T> {
        Batch { together: Some(together), ..Batch::new(pendings) }
    }

    /// Records that all values are held until the last one arrives.
    fn hold(&self) {
        if let Some(together) = &self.together {
            together.hold();
        }
    }

    /// Returns how many answers are still to be taken.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Returns whether all answers were taken.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the next answer to arrive with its position in the batch, or `None` once all were taken.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Answer<T>)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        loop {
            let mut looks = self.ready.lock();
            let Some(item) = looks.items.pop_front() else {
                looks.waiter = Some(context.waker().clone());
                return Poll::Pending;
            };
            drop(looks);
            let Some(pending) = &mut self.items[item] else { continue };
            let waker = Waker::from(Arc::new(ItemWaker { item, ready: Arc::clone(&self.ready) }));
            if let Poll::Ready(answer) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) {
                self.items[item] = None;
                self.left -= 1;
                return Poll::Ready(Some((item, answer)));
            }
        }
    }

    /// Blocks until the next answer arrives, as [`Pending::wait`] does. Returns `None` once all were taken.
    #[allow(clippy::should_implement_trait, reason = "a batch is no iterator: it blocks")]
    pub fn next(&mut self) -> Option<(usize, Answer<T>)> {
        let patience = self.items.iter().flatten().map(Pending::patience).max()?;
        let until = Instant::now() + patience;
        let next = block_until(Some(until), |context| self.poll_next(context));
        next.unwrap_or_else(|| {
            let item = self.items.iter().position(Option::is_some)?;
            self.left -= 1;
            Some((item, self.items[item].take()?.wait()))
        })
    }

    /// Async form of [`Batch::next`].
    pub async fn next_async(&mut self) -> Option<(usize, Answer<T>)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks until all remaining answers have arrived. Values of [`super::Store::get_many`] that do not fit in the
    /// store's memory together fail with [`crate::Error::Invalid`].
    pub fn wait(self) -> Vec<Answer<T>> {
        self.hold();
        self.items.into_iter().flatten().map(Pending::wait).collect()
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = Pending<T>;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Option<Pending<T>>>>;

    /// Iterates over the remaining pending answers in the order of the keys. The values must fit in the store's
    /// memory together, as for [`Batch::wait`], because shards read in an order of their own.
    fn into_iter(self) -> Self::IntoIter {
        self.hold();
        self.items.into_iter().flatten()
    }
}

impl<T: 'static> std::future::IntoFuture for Batch<T> {
    type Output = Vec<Answer<T>>;
    type IntoFuture = Whole<T>;

    fn into_future(self) -> Whole<T> {
        self.hold();
        let answers = self.items.iter().map(|_| None).collect();
        Whole { batch: self, answers }
    }
}

/// A future of all remaining answers of a batch, in the order of the keys.
#[must_use = "a future does nothing unless it is polled"]
pub struct Whole<T> {
    batch: Batch<T>,
    answers: Vec<Option<Answer<T>>>,
}

impl<T> Unpin for Whole<T> {}

impl<T> Future for Whole<T> {
    type Output = Vec<Answer<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Answer<T>>> {
        let Whole { batch, answers } = self.get_mut();
        loop {
            match batch.poll_next(context) {
                Poll::Ready(Some((item, answer))) => answers[item] = Some(answer),
                Poll::Ready(None) => {
                    return Poll::Ready(answers.drain(..).flatten().collect());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<T> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} of {} left)", self.left, self.items.len())
    }
}

/// Accounts for the registered memory of a batch of reads whose values are held together.
///
/// If the values of a batch are taken in order or as a whole, they keep their memory until the last arrives; if they
/// need more than the pool has, the last never arrives. Taking values as they arrive allows dropping them, so such a
/// batch may exceed the pool.
pub(super) struct Together {
    is_held: AtomicBool,
    /// Bytes per pool that the reads have or wait for.
    bytes: Box<[AtomicU64]>,
}

impl Together {
    /// Creates an empty account over `pools` pools.
    pub(super) fn new(pools: usize) -> Arc<Together> {
        let bytes = (0..pools).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Together { is_held: AtomicBool::new(false), bytes })
    }

    /// Records that all values are held until the last one arrives.
    pub(super) fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }
}

/// The share of one read.
pub(super) struct Share {
    together: Arc<Together>,
    /// The pool and the bytes requested from it.
    asked: Option<(usize, u64)>,
}

impl Share {
    /// Creates the share of a read that has requested nothing yet.
    pub(super) fn new(together: &Arc<Together>) -> Share {
        Share { together: Arc::clone(together), asked: None }
    }

    /// Requests `bytes` from pool `pool`, replacing an earlier request.
    pub(super) fn ask(&mut self, pool: usize, bytes: u64) {
        self.take_back();
        self.together.bytes[pool].fetch_add(bytes, Ordering::Relaxed);
        self.asked = Some((pool, bytes));
    }

    /// Withdraws the request.
    pub(super) fn take_back(&mut self) {
        if let Some((pool, bytes)) = self.asked.take() {
            self.together.bytes[pool].fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that the batch needs at once from this read's pool, if values are held and that exceeds
    /// `there_are`.
    pub(super) fn too_many(&self, there_are: u64) -> Option<u64> {
        let (pool, _) = self.asked?;
        let bytes = self.together.bytes[pool].load(Ordering::Relaxed);
        (self.together.is_held.load(Ordering::Relaxed) && bytes > there_are).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::pair;
    use super::*;
    use std::task::Waker;
    use std::time::Duration;

    fn batch(count: usize) -> (Vec<super::super::pending::Reply<usize>>, Batch<usize>) {
        let pairs = (0..count).map(|_| pair(Duration::from_secs(60)));
        let (replies, pendings): (Vec<_>, Vec<_>) = pairs.unzip();
        (replies, Batch::new(pendings))
    }

    #[test]
    fn the_whole_is_ready_when_the_last_is_and_in_order() {
        let (replies, batch) = batch(3);
        let mut whole = batch.into_future();
        let mut poll = || Pin::new(&mut whole).poll(&mut Context::from_waker(Waker::noop()));
        for (reply, number) in replies.into_iter().zip(0..3).rev() {
            assert!(poll().is_pending());
            reply.send(Ok(number));
        }
        let Poll::Ready(answers) = poll() else { panic!("all have come") };
        let numbers: Vec<usize> = answers.into_iter().map(|answer| answer.expect("sent")).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn answers_are_given_out_as_they_come_from_another_thread() {
        let (replies, mut batch) = batch(100);
        let sender = std::thread::spawn(move || {
            for (reply, number) in replies.into_iter().zip(0..100).rev() {
                reply.send(Ok(number));
            }
        });
        let mut seen = Vec::new();
        while let Some((item, answer)) = batch.next() {
            assert_eq!(item, answer.expect("sent"));
            seen.push(item);
        }
        sender.join().expect("no panic");
        seen.sort_unstable();
        assert!(batch.is_empty() && seen.into_iter().eq(0..100));
    }

    #[test]
    fn what_comes_last_does_not_hold_up_what_came_before() {
        let (mut replies, mut batch) = batch(3);
        replies.remove(2).send(Ok(2));
        assert!(matches!(batch.next(), Some((2, Ok(2)))));
        let rest = batch.into_iter();
        replies.drain(..).zip([7, 8]).for_each(|(reply, number)| reply.send(Ok(number)));
        let rest: Vec<usize> = rest.map(|pending| pending.wait().expect("sent")).collect();
        assert_eq!(rest, [7, 8]);
    }

    #[test]
    fn what_is_held_together_is_too_much_where_the_sum_is() {
        let together = Together::new(2);
        let mut shares = [0, 1, 2].map(|_| Share::new(&together));
        shares[0].ask(0, 6);
        shares[1].ask(1, 6);
        shares[2].ask(0, 2);
        assert_eq!(shares[2].too_many(7), None, "each may be dropped before the next");
        together.hold();
        assert_eq!(shares[2].too_many(7), Some(8));
        assert_eq!(shares[2].too_many(8), None);
        assert_eq!(shares[1].too_many(7), None, "another pool");
        shares[2].ask(0, 3);
        assert_eq!(shares[0].too_many(8), Some(9), "the last word counts");
        shares[2].take_back();
        assert_eq!((shares[2].too_many(0), shares[0].too_many(6)), (None, None));
    }
}
