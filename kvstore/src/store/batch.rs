//! Several requests made as one, answered one by one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::pending::{Answer, Pending};

/// The answers to a batch on their way, in the order of its keys. Each can be waited for by itself (iterate over it),
/// or all together: [`Batch::wait`], or as a future.
#[must_use = "dropping it cancels what was not begun"]
pub struct Batch<T> {
    items: Vec<Item<T>>,
}

enum Item<T> {
    Pending(Pending<T>),
    Answer(Option<Answer<T>>),
}

impl<T> Batch<T> {
    pub(super) fn new(pendings: Vec<Pending<T>>) -> Batch<T> {
        Batch { items: pendings.into_iter().map(Item::Pending).collect() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Blocks until all answers have come.
    pub fn wait(self) -> Vec<Answer<T>> {
        let answer = |item| match item {
            Item::Pending(pending) => pending.wait(),
            Item::Answer(answer) => answer.expect("an answer is taken once"),
        };
        self.items.into_iter().map(answer).collect()
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = Pending<T>;
    type IntoIter = std::vec::IntoIter<Pending<T>>;

    /// The answers one by one.
    ///
    /// # Panics
    /// If it was polled as a whole before.
    fn into_iter(self) -> Self::IntoIter {
        let pending = |item| match item {
            Item::Pending(pending) => pending,
            Item::Answer(_) => panic!("a batch is waited for as a whole or one by one"),
        };
        self.items.into_iter().map(pending).collect::<Vec<_>>().into_iter()
    }
}

impl<T> Future for Batch<T> {
    type Output = Vec<Answer<T>>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Answer<T>>> {
        let items = &mut self.get_mut().items;
        let mut is_ready = true;
        for item in items.iter_mut() {
            let Item::Pending(pending) = item else { continue };
            match Pin::new(pending).poll(context) {
                Poll::Ready(answer) => *item = Item::Answer(Some(answer)),
                Poll::Pending => is_ready = false,
            }
        }
        if !is_ready {
            return Poll::Pending;
        }
        let answer = |item: &mut Item<T>| match item {
            Item::Answer(answer) => answer.take().expect("an answer is taken once"),
            Item::Pending(_) => unreachable!("all are ready"),
        };
        Poll::Ready(items.iter_mut().map(answer).collect())
    }
}

impl<T> Unpin for Batch<T> {}

impl<T> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} items)", self.items.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::pair;
    use super::*;
    use std::task::Waker;
    use std::time::Duration;

    #[test]
    fn the_whole_is_ready_when_the_last_is_and_in_order() {
        let (replies, pendings): (Vec<_>, Vec<_>) =
            (0..3).map(|_| pair(Duration::from_secs(60))).unzip();
        let mut batch = Batch::new(pendings);
        let mut poll = || Pin::new(&mut batch).poll(&mut Context::from_waker(Waker::noop()));
        for (reply, number) in replies.into_iter().zip(0..3).rev() {
            assert!(poll().is_pending());
            reply.send(Ok(number));
        }
        let Poll::Ready(answers) = poll() else { panic!("all have come") };
        let numbers: Vec<i32> = answers.into_iter().map(|answer| answer.expect("sent")).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }
}
