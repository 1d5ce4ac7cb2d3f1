//! Several requests made in one call and answered one by one.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use adit_driver::deadline;
use adit_driver::runtime::block_until;

use super::pending::{Answer, Pending};
use super::ready::ReadyList;

/// The pending answers of a batch: take them as they arrive ([`Batch::next`], [`Batch::next_async`]), or all together
/// in the order of the keys ([`Batch::wait`], or as a future).
#[must_use = "dropping it cancels what was not begun"]
pub struct Batch<T> {
    /// Indexed by position in the batch; `None` once the answer was taken.
    items: Vec<Option<Pending<T>>>,
    left: usize,
    ready: Arc<ReadyList>,
}

impl<T> Batch<T> {
    pub(crate) fn new(pendings: Vec<Pending<T>>) -> Batch<T> {
        let left = pendings.len();
        let ready = ReadyList::all(0..left as u64);
        let items = pendings.into_iter().map(Some).collect();
        Batch { items, left, ready }
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
            let Some(number) = self.ready.next(context.waker()) else { return Poll::Pending };
            let item = number as usize;
            let Some(pending) = &mut self.items[item] else { continue };
            let waker = self.ready.waker(number);
            if let Poll::Ready(answer) = Pin::new(pending).poll(&mut Context::from_waker(&waker)) {
                self.items[item] = None;
                self.left -= 1;
                return Poll::Ready(Some((item, answer)));
            }
        }
    }

    /// Waits for the next answer and blocks meanwhile, as [`Pending::wait`] does. Returns `None` once all were taken.
    #[allow(clippy::should_implement_trait, reason = "a batch is no iterator: it blocks")]
    pub fn next(&mut self) -> Option<(usize, Answer<T>)> {
        let patience = self.items.iter().flatten().map(Pending::patience).max()?;
        let next = block_until(Some(deadline(patience)), |context| self.poll_next(context));
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

    /// Blocks until all remaining answers have arrived.
    pub fn wait(self) -> Vec<Answer<T>> {
        self.items.into_iter().flatten().map(Pending::wait).collect()
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = Pending<T>;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Option<Pending<T>>>>;

    /// Iterates over the remaining pending answers in the order of the keys.
    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().flatten()
    }
}

impl<T: 'static> std::future::IntoFuture for Batch<T> {
    type Output = Vec<Answer<T>>;
    type IntoFuture = Whole<T>;

    fn into_future(self) -> Whole<T> {
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

impl<T> Whole<T> {
    /// Blocks until all remaining answers have arrived.
    pub(crate) fn wait(self) -> Vec<Answer<T>> {
        self.batch.wait()
    }
}

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
}
