//! The two ends of a request's answer: the caller holds a [`Pending`], the store a [`Reply`].
//!
//! A reply that is dropped unsent means that the store has ended, and the pending says so. A read arrives unverified:
//! the thread that takes the answer verifies it ([`ReadCheck`]) before the caller sees it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_driver::deadline;
use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::{self, Dropped, Receipt};

use super::value::Read;
use super::verify::ReadCheck;
use crate::error::{Error, Failure};
use crate::shard::Digest;
use crate::store::memory::Unfinished;

/// The result of a request.
pub type Answer<T, M = AnyBuffer> = Result<T, Unfinished<M>>;

/// Verifies a read: returns what its caller may see.
type Verify<T> = fn(T, ReadCheck) -> T;

/// An answer on its way.
struct Sent<T> {
    answer: Answer<T>,
    /// The verification of a read, if there is any to do.
    check: Option<(ReadCheck, Verify<T>)>,
}

impl<T> Sent<T> {
    /// Returns the answer as the caller may see it.
    fn verified(self) -> Answer<T> {
        match self.check {
            Some((check, verify)) => self.answer.map(|read| verify(read, check)),
            None => self.answer,
        }
    }
}

impl Sent<Read> {
    /// Returns the answer with the digest that its bytes have to match, if they are not verified. Bytes that have to
    /// be copied are verified.
    fn unverified(self) -> Answer<(Read, Option<Digest>)> {
        let read = self.answer?;
        let Some((check, verify)) = self.check else { return Ok((read, None)) };
        if check.has_copy() {
            return Ok((verify(read, check), None));
        }
        let (memory, digest) = check.hand_over(read.memory);
        Ok((Read { memory, ..read }, Some(digest)))
    }
}

/// The store's end of an answer.
pub(crate) struct Reply<T>(runtime::Reply<Sent<T>>);

impl<T> Reply<T> {
    pub(crate) fn send(self, answer: Answer<T>) {
        self.0.send(Sent { answer, check: None });
    }

    /// Sends a read, to be verified by `verify` on the thread that takes it.
    pub(crate) fn send_unverified(self, read: T, check: ReadCheck, verify: Verify<T>) {
        self.0.send(Sent { answer: Ok(read), check: Some((check, verify)) });
    }

    /// Returns whether the answer is still wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }
}

/// A reply to any type of answer.
pub(crate) trait Wanted {
    /// Returns whether the answer is still wanted.
    fn is_wanted(&self) -> bool;

    /// Calls `waker` if the caller gives the answer up.
    fn when_unwanted(&self, waker: Waker);
}

impl<T> Wanted for Reply<T> {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }

    fn when_unwanted(&self, waker: Waker) {
        self.0.when_unwanted(waker);
    }
}

/// Creates both ends. `patience` limits [`Pending::wait`].
pub(crate) fn pair<T>(patience: Duration) -> (Reply<T>, Pending<T>) {
    let (reply, receipt) = runtime::pair();
    (
        Reply(reply),
        Pending { source: AnswerSource::Receipt(receipt), since: Instant::now(), patience },
    )
}

/// Returns an answer that is there.
pub(crate) fn ready<T>(answer: Answer<T>) -> Pending<T> {
    Pending {
        source: AnswerSource::Ready(Some(answer)),
        since: Instant::now(),
        patience: Duration::ZERO,
    }
}

/// A request that the store has: a future for any runtime, or a blocking [`Pending::wait`]. The request goes on whether
/// this is polled or not.
///
/// Dropping it cancels the request if it has not begun: its place in line and its memory go to the next. Otherwise the
/// request is carried out and its answer discarded. Memory stays in place until the device is done with it.
#[must_use = "dropping it cancels the request"]
pub struct Pending<T> {
    source: AnswerSource<T>,
    since: Instant,
    patience: Duration,
}

enum AnswerSource<T> {
    Receipt(Receipt<Sent<T>>),
    /// An answer that was there from the beginning; `None` once it was taken.
    Ready(Option<Answer<T>>),
}

// An answer is not pinned.
impl<T> Unpin for Pending<T> {}

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
        match &mut self.source {
            AnswerSource::Receipt(receipt) => {
                receipt.wait_until(Some(deadline(at_most))).map(received).ok_or(self)
            }
            AnswerSource::Ready(answer) => Ok(taken(answer)),
        }
    }

    /// Returns the answer if it has arrived, without waiting.
    ///
    /// # Errors
    /// Itself if the answer has not arrived.
    pub fn try_wait(mut self) -> Result<Answer<T>, Pending<T>> {
        match &mut self.source {
            AnswerSource::Receipt(receipt) => receipt.take().map(received).ok_or(self),
            AnswerSource::Ready(answer) => Ok(taken(answer)),
        }
    }
}

fn received<T>(sent: Result<Sent<T>, Dropped>) -> Answer<T> {
    sent.map_or_else(closed, Sent::verified)
}

fn closed<T>(Dropped: Dropped) -> Answer<T> {
    Err(Unfinished::new(Failure::Closed))
}

fn taken<T>(answer: &mut Option<Answer<T>>) -> Answer<T> {
    answer.take().expect("an answer is taken once")
}

impl<T> Future for Pending<T> {
    type Output = Answer<T>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<T>> {
        match &mut self.source {
            AnswerSource::Receipt(receipt) => receipt.poll(context.waker()).map(received),
            AnswerSource::Ready(answer) => Poll::Ready(taken(answer)),
        }
    }
}

impl Pending<Read> {
    /// Like its poll as a future, for a server whose client shares the memory: with a digest, what was read is not
    /// verified. The client does that before anything looks at the bytes ([`Digest::is_of`]). For the store they
    /// count as read; where they differ, ask again by
    /// [`Store::get_checked_into`](crate::store::Store::get_checked_into).
    ///
    /// # Panics
    /// As its poll.
    pub fn poll_unverified(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Answer<(Read, Option<Digest>)>> {
        match &mut self.source {
            AnswerSource::Receipt(receipt) => {
                receipt.poll(context.waker()).map(|sent| sent.map_or_else(closed, Sent::unverified))
            }
            AnswerSource::Ready(answer) => Poll::Ready(taken(answer).map(|read| (read, None))),
        }
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
