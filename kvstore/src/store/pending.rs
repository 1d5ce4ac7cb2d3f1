//! The two ends of a request's answer: the caller holds a [`Pending`], the store a [`Reply`].
//!
//! A reply that is dropped unsent means that the store has ended, and the pending says so.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use adit_driver::deadline;
use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::{self, Dropped, Receipt};

use crate::error::Error;
use crate::shard::Failure;

/// Why a request failed, with any memory that the caller lent.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    /// The reason.
    pub error: Box<Error>,
    /// The memory lent with the request.
    pub memory: AnyBuffer,
}

impl Unfinished {
    /// Creates an error without memory.
    pub(super) fn new(error: impl Into<Error>) -> Unfinished {
        Unfinished { error: Box::new(error.into()), memory: AnyBuffer::None }
    }

    /// Returns the store's failure, if that is the reason.
    pub fn failure(&self) -> Option<&Failure> {
        match &*self.error {
            Error::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        *unfinished.error
    }
}

/// The result of a request.
pub type Answer<T> = Result<T, Unfinished>;

/// The store's end of an answer.
pub(super) type Reply<T> = runtime::Reply<Answer<T>>;

/// Creates both ends. `patience` limits [`Pending::wait`].
pub(super) fn pair<T>(patience: Duration) -> (Reply<T>, Pending<T>) {
    let (reply, receipt) = runtime::pair();
    (reply, Pending { receipt, since: Instant::now(), patience })
}

/// A request that the store has: a future for any runtime, or a blocking [`Pending::wait`]. The request goes on whether
/// this is polled or not.
///
/// Dropping it cancels the request if it has not begun: its place in line and its memory go to the next. Otherwise the
/// request is carried out and its answer discarded. Memory stays in place until the device is done with it.
#[must_use = "dropping it cancels the request"]
pub struct Pending<T> {
    receipt: Receipt<Answer<T>>,
    since: Instant,
    patience: Duration,
}

impl<T> Pending<T> {
    /// Returns how much longer [`Pending::wait`] waits.
    pub fn patience(&self) -> Duration {
        self.patience.saturating_sub(self.since.elapsed())
    }

    /// Blocks until the answer arrives.
    ///
    /// # Errors
    /// [`Unfinished`] with the reason. [`Error::Timeout`] is the last resort: neither the store nor a device answered
    /// long after their deadlines.
    pub fn wait(self) -> Answer<T> {
        let patience = self.patience();
        self.wait_timeout(patience).unwrap_or_else(|pending| {
            Err(Unfinished::new(Error::Timeout {
                waited_for: "the store's answer",
                after: pending.patience,
                fix: "see the log for what its devices say",
            }))
        })
    }

    /// Blocks for at most `at_most`; the inner result is that of [`Pending::wait`].
    ///
    /// # Errors
    /// Itself, to be waited for again, if the answer has not arrived by then.
    pub fn wait_timeout(mut self, at_most: Duration) -> Result<Answer<T>, Pending<T>> {
        self.receipt.wait_until(Some(deadline(at_most))).map(answer).ok_or(self)
    }

    /// Returns the answer if it has arrived, without waiting.
    ///
    /// # Errors
    /// Itself if the answer has not arrived.
    pub fn try_wait(mut self) -> Result<Answer<T>, Pending<T>> {
        self.receipt.take().map(answer).ok_or(self)
    }
}

fn answer<T>(received: Result<Answer<T>, Dropped>) -> Answer<T> {
    received.unwrap_or_else(|Dropped| Err(Unfinished::new(Failure::Closed)))
}

impl<T> Future for Pending<T> {
    type Output = Answer<T>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<T>> {
        self.receipt.poll(context.waker()).map(answer)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("since", &self.since).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_dropped_says_that_the_store_is_closed() {
        let (reply, pending) = pair::<()>(Duration::from_secs(60));
        drop(reply);
        let unfinished = pending.wait().expect_err("no answer");
        assert_eq!(unfinished.failure(), Some(&Failure::Closed));
    }

    #[test]
    fn a_wait_without_an_answer_ends_and_says_what_it_waited_for() {
        let (_reply, pending) = pair::<()>(Duration::from_millis(2));
        let pending = pending.try_wait().expect_err("not there yet");
        let message = pending.wait().expect_err("no answer").to_string();
        assert!(message.contains("waited 2 ms for the store's answer"), "{message}");
    }
}
