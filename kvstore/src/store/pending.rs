//! An answer in progress: the caller holds a [`Pending`], the store a [`Reply`].
//!
//! Both share a cell, which the reply fills once. If the reply is dropped unsent, the store has ended and the cell
//! says so; no caller waits for an answer that cannot come. If the pending is dropped first, the answer and the
//! memory it owns are dropped with the reply.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;

use super::wait;
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

enum State<T> {
    /// No waiter yet.
    Open,
    /// A task waits.
    Task(Waker),
    /// A thread waits on the condition variable.
    Thread,
    /// The answer has arrived.
    Ended(Answer<T>),
    /// The answer was taken.
    Taken,
}

struct Cell<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends. `patience` limits [`Pending::wait`].
pub(super) fn pair<T>(patience: Duration) -> (Reply<T>, Pending<T>) {
    let cell = Arc::new(Cell { state: Mutex::new(State::Open), ended: Condvar::new() });
    let pending = Pending { cell: Arc::clone(&cell), since: Instant::now(), patience };
    (Reply { cell: Some(cell) }, pending)
}

/// The sending end of an answer.
pub(super) struct Reply<T> {
    cell: Option<Arc<Cell<T>>>,
}

impl<T> Reply<T> {
    /// Returns whether the other end still exists.
    pub(super) fn is_wanted(&self) -> bool {
        self.cell.as_ref().is_some_and(|cell| Arc::strong_count(cell) > 1)
    }

    /// Delivers the answer and wakes its waiter.
    pub(super) fn send(mut self, answer: Answer<T>) {
        if let Some(cell) = self.cell.take() {
            end(&cell, answer);
        }
    }
}

fn end<T>(cell: &Cell<T>, answer: Answer<T>) {
    let waiter = std::mem::replace(&mut *cell.lock(), State::Ended(answer));
    match waiter {
        // Outside the lock.
        State::Task(waker) => wait::wake(waker),
        State::Thread => cell.ended.notify_one(),
        State::Open => {}
        State::Ended(_) | State::Taken => unreachable!("a request is answered once"),
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            end(&cell, Err(Unfinished::new(Failure::Closed)));
        }
    }
}

/// A request that the store has accepted: a future for any runtime, or a blocking [`Pending::wait`].
///
/// Dropping it cancels the request if it has not begun. Otherwise the request is carried out and its answer
/// discarded. Memory stays in place until the device is done with it.
#[must_use = "dropping it cancels the request"]
pub struct Pending<T> {
    cell: Arc<Cell<T>>,
    since: Instant,
    patience: Duration,
}

impl<T> Pending<T> {
    /// Returns how much longer [`Pending::wait`] waits.
    pub(super) fn patience(&self) -> Duration {
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
    pub fn wait_timeout(self, at_most: Duration) -> Result<Answer<T>, Pending<T>> {
        let until = Instant::now().checked_add(at_most);
        let mut state = self.cell.lock();
        loop {
            if let Some(answer) = take(&mut state) {
                return Ok(answer);
            }
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                drop(state);
                return Err(self);
            }
            *state = State::Thread;
            // Very long waits are split, so that one code path serves all.
            let waited = self.cell.ended.wait_timeout(state, left.min(Duration::from_secs(3600)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the answer if it has arrived, without waiting.
    ///
    /// # Errors
    /// Itself if the answer has not arrived.
    pub fn try_wait(self) -> Result<Answer<T>, Pending<T>> {
        self.wait_timeout(Duration::ZERO)
    }
}

fn take<T>(state: &mut State<T>) -> Option<Answer<T>> {
    match std::mem::replace(state, State::Open) {
        State::Ended(answer) => {
            *state = State::Taken;
            Some(answer)
        }
        other => {
            *state = other;
            None
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Answer<T>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<T>> {
        let mut state = self.cell.lock();
        assert!(!matches!(*state, State::Taken), "an answer is taken once");
        match take(&mut state) {
            Some(answer) => Poll::Ready(answer),
            None => {
                let waker = context.waker();
                if !matches!(&*state, State::Task(old) if old.will_wake(waker)) {
                    *state = State::Task(waker.clone());
                }
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let mut state = self.cell.lock();
        // Forget the waker: nothing waits any more. The cell drops an answer that came too late, outside the lock.
        if !matches!(*state, State::Ended(_)) {
            let waker = std::mem::replace(&mut *state, State::Open);
            drop(state);
            drop(waker);
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    const LONG: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll<T>(pending: &mut Pending<T>, waker: &Waker) -> Poll<Answer<T>> {
        Pin::new(pending).poll(&mut Context::from_waker(waker))
    }

    #[test]
    fn an_answer_ends_a_wait_on_another_thread() {
        let (reply, pending) = pair(LONG);
        let waiter = std::thread::spawn(move || pending.wait());
        reply.send(Ok(7));
        assert_eq!(waiter.join().expect("no panic").expect("an answer"), 7);
    }

    #[test]
    fn the_last_waker_is_woken_and_the_answer_is_ready() {
        let (reply, mut pending) = pair(LONG);
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&first, &first, &second] {
            assert!(poll(&mut pending, &Waker::from(Arc::clone(count))).is_pending());
        }
        reply.send(Ok(1));
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert!(matches!(poll(&mut pending, Waker::noop()), Poll::Ready(Ok(1))));
    }

    #[test]
    fn a_reply_that_is_dropped_says_that_the_store_is_closed() {
        let (reply, pending) = pair::<()>(LONG);
        drop(reply);
        let unfinished = pending.wait().expect_err("no answer");
        assert_eq!(unfinished.failure(), Some(&Failure::Closed));
    }

    #[test]
    fn nobody_wants_what_was_cancelled_and_its_answer_goes_with_the_reply() {
        let (reply, pending) = pair(LONG);
        assert!(reply.is_wanted());
        drop(pending);
        assert!(!reply.is_wanted());
        let memory = Arc::new(());
        reply.send(Ok(Arc::clone(&memory)));
        assert_eq!(Arc::strong_count(&memory), 1, "the answer is dropped");
    }

    #[test]
    fn a_wait_without_an_answer_ends_and_says_what_it_waited_for() {
        let (_reply, pending) = pair::<()>(Duration::from_millis(2));
        let pending = pending.try_wait().expect_err("not there yet");
        let message = pending.wait().expect_err("no answer").to_string();
        assert!(message.contains("waited 2 ms for the store's answer"), "{message}");
    }

    #[test]
    fn a_panic_of_a_waker_stays_where_it_is() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("in a waker");
            }
        }
        let (reply, mut pending) = pair(LONG);
        assert!(poll(&mut pending, &Waker::from(Arc::new(Panics))).is_pending());
        reply.send(Ok(3));
        assert_eq!(pending.wait().expect("an answer"), 3);
    }
}
