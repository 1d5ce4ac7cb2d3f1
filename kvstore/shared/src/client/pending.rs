//! A request's answer, to wait for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use adit_kvstore::{Error, PendingAnswer};
use adit_shared::deadline;

use super::requests::Ended;
use super::shared::Shared;
use super::{Answer, Unfinished};

/// Turns the server's answer into the caller's.
pub(super) type Meaning<T> = fn(&Arc<Shared>, Ended) -> Answer<T>;

/// A request in progress: wait for it, or poll it. As a future it ends when [`Client::reap`](super::Client::reap) or
/// another wait of the same client takes its answer.
///
/// Dropping it cancels the request if it has not been sent. Otherwise it is carried out and its answer dropped; its
/// memory stays in place until then.
#[must_use = "dropping it cancels the request"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    /// Its slot, or its answer if it does not go to the server.
    answer: Reply<T>,
    since: Instant,
}

enum Reply<T> {
    Slot(u32, Meaning<T>),
    Made(Answer<T>),
    Taken,
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    pub(super) fn new(shared: &Arc<Shared>, slot: u32, meaning: Meaning<T>) -> Pending<T> {
        let (answer, since) = (Reply::Slot(slot, meaning), Instant::now());
        Pending { shared: Arc::clone(shared), answer, since }
    }

    /// Creates one that has its answer.
    pub(super) fn made(shared: &Arc<Shared>, answer: Answer<T>) -> Pending<T> {
        let (answer, since) = (Reply::Made(answer), Instant::now());
        Pending { shared: Arc::clone(shared), answer, since }
    }

    /// Takes the answer `from` its slot, verified on this thread. If the bytes are not those that were put, asks again.
    fn take(&mut self, from: impl Fn(&Shared, u32) -> Option<Ended>) -> Option<Answer<T>> {
        loop {
            match std::mem::replace(&mut self.answer, Reply::Taken) {
                Reply::Slot(slot, meaning) => {
                    let Some(mut ended) = from(&self.shared, slot) else {
                        self.answer = Reply::Slot(slot, meaning);
                        return None;
                    };
                    if ended.verify() {
                        return Some(meaning(&self.shared, ended));
                    }
                    let slot = self.shared.with(|state| state.ask_again(ended));
                    self.answer = Reply::Slot(slot, meaning);
                }
                Reply::Made(answer) => return Some(answer),
                Reply::Taken => panic!("an answer is taken once"),
            }
        }
    }
}

impl<T> PendingAnswer for Pending<T> {
    fn patience(&self) -> Duration {
        self.shared.options.timeout.saturating_sub(self.since.elapsed())
    }

    fn wait(self) -> Answer<T> {
        let (left, after) = (self.patience(), self.shared.options.timeout);
        self.wait_timeout(left).unwrap_or_else(|_pending| {
            let fix = "see its log for what its devices say";
            let waited_for = "the server's answer";
            Err(Unfinished::new(Error::Timeout { waited_for, after, fix }))
        })
    }

    fn wait_timeout(mut self, at_most: Duration) -> Result<Answer<T>, Pending<T>> {
        let until = deadline(at_most);
        self.take(|shared, slot| shared.wait(slot, until)).ok_or(self)
    }

    fn try_wait(mut self) -> Result<Answer<T>, Pending<T>> {
        self.take(|shared, slot| shared.with(|state| state.turn_for(slot))).ok_or(self)
    }
}

impl<T> Future for Pending<T> {
    type Output = Answer<T>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<T>> {
        let answer = self.take(|shared, slot| {
            shared.with(|state| {
                let ended = state.turn_for(slot);
                if ended.is_none() {
                    state.set_waker(slot, context.waker());
                }
                ended
            })
        });
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Reply::Slot(slot, _) = self.answer {
            self.shared.with(|state| {
                state.abandon(slot);
                state.turn();
            });
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("since", &self.since).finish_non_exhaustive()
    }
}
