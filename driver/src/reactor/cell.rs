//! Passes a request's end from the poller to the waiting sender.
//!
//! A cell belongs to one request at a time and to two parties, each with a reference: the poller ends it
//! once, the [`super::Pending`] takes that end once. If the pending was dropped, the buffer is dropped with
//! the poller's reference, after the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use super::outcome::End;
use crate::controller::shared::lock;

/// The end of one request, and its waiter.
#[derive(Debug, Default)]
pub(super) struct Cell {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
enum State {
    /// Unused, or in use without a waiter.
    #[default]
    Open,
    Task(Waker),
    /// A thread waits on the condition variable.
    Thread,
    Ended(End),
}

impl Cell {
    /// Ends the request and wakes the waiter. Never panics: panics of foreign code, in a waker or in the drop
    /// of memory it registered, are caught and logged.
    pub(super) fn end(self: Arc<Self>, end: End) {
        let waiter = std::mem::replace(&mut *lock(&self.state), State::Ended(end));
        self.wake(waiter);
        // Without a waiter, this was the last reference, and the buffer is dropped.
        shielded("dropping the buffer of a request that nobody waits for", || drop(self));
    }

    /// Call it outside the lock: a waker may run any code.
    fn wake(&self, waiter: State) {
        match waiter {
            State::Task(waker) => shielded("waking a task", || waker.wake()),
            State::Thread => self.ended.notify_one(),
            State::Open => {}
            State::Ended(_) => unreachable!("a request ends once"),
        }
    }

    /// Returns the end, or registers `waker` for it.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<End> {
        let mut state = lock(&self.state);
        match std::mem::take(&mut *state) {
            State::Ended(end) => Poll::Ready(end),
            State::Task(old) if old.will_wake(waker) => {
                *state = State::Task(old);
                Poll::Pending
            }
            _ => {
                *state = State::Task(waker.clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn take(&self) -> Option<End> {
        let mut state = lock(&self.state);
        match std::mem::take(&mut *state) {
            State::Ended(end) => Some(end),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Blocks until the end comes or `deadline`, if any, passes.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<End> {
        let mut state = lock(&self.state);
        loop {
            if let State::Ended(end) = std::mem::take(&mut *state) {
                return Some(end);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            *state = State::Thread;
            // Without a deadline, repeat a long wait, so that there is one way to wait.
            let left = left.unwrap_or(Duration::from_secs(3600));
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Abandons the answer: no waiter is woken any more. Returns `true` if it had come, so that the cell is
    /// free.
    pub(super) fn forget(&self) -> bool {
        matches!(std::mem::take(&mut *lock(&self.state)), State::Ended(_))
    }
}

/// Runs foreign code on a poller's thread, which must survive its panics.
fn shielded(what: &str, f: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        tracing::error!("a reactor's thread caught a panic while {what}");
    }
}

/// Unused cells of a client, so that its requests allocate nothing.
#[derive(Debug)]
pub(super) struct Pool(ArrayQueue<Arc<Cell>>);

impl Pool {
    /// Creates a pool that keeps up to `count` cells, allocated on demand.
    pub(super) fn new(count: usize) -> Pool {
        Pool(ArrayQueue::new(count))
    }

    pub(super) fn take(&self) -> Arc<Cell> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes back the cell of a request whose end was taken.
    pub(super) fn give_back(&self, cell: Arc<Cell>) {
        // A full pool drops it.
        let _ = self.0.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AnyBuffer;
    use crate::reactor::outcome::Lost;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    fn end() -> End {
        End::Completed(AnyBuffer::None, Ok(7))
    }

    fn is_seven(end: Option<End>) -> bool {
        matches!(end, Some(End::Completed(AnyBuffer::None, Ok(7))))
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as arranged");
        }
    }

    #[test]
    fn an_end_is_taken_once_whether_it_comes_before_or_after_the_wait() {
        let cell = Arc::new(Cell::default());
        assert!(cell.take().is_none());
        Arc::clone(&cell).end(end());
        assert!(is_seven(cell.wait(None)));
        assert!(cell.take().is_none());
        let waiter = std::thread::spawn({
            let cell = Arc::clone(&cell);
            move || is_seven(cell.wait(None))
        });
        std::thread::sleep(Duration::from_millis(5));
        cell.end(end());
        assert!(waiter.join().expect("no panic"));
    }

    #[test]
    fn a_wait_with_a_deadline_ends_without_an_end() {
        let cell = Arc::new(Cell::default());
        assert!(cell.wait(Some(Instant::now() + Duration::from_millis(2))).is_none());
        Arc::clone(&cell).end(End::Lost(Lost::Stopped));
        assert!(cell.take().is_some());
    }

    #[test]
    fn the_last_waker_is_the_one_that_is_woken() {
        let cell = Arc::new(Cell::default());
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&first, &first, &second] {
            assert!(cell.poll(&Waker::from(Arc::clone(count))).is_pending());
        }
        Arc::clone(&cell).end(end());
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert!(cell.poll(Waker::noop()).is_ready());
    }

    #[test]
    fn a_panic_of_a_waker_stays_where_it_is() {
        let cell = Arc::new(Cell::default());
        assert!(cell.poll(&Waker::from(Arc::new(Panics))).is_pending());
        Arc::clone(&cell).end(end());
        assert!(is_seven(cell.take()));
    }

    #[test]
    fn a_forgotten_request_wakes_nobody_and_goes_with_its_end() {
        let (early, count) = (Arc::new(Cell::default()), Arc::new(Count::default()));
        assert!(early.poll(&Waker::from(Arc::clone(&count))).is_pending());
        assert!(!early.forget(), "still in flight");
        assert_eq!(Arc::strong_count(&count), 1, "the waker is let go");
        let gone = Arc::downgrade(&early);
        early.end(end());
        assert!(gone.upgrade().is_none(), "with its end in it");
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        let late = Arc::new(Cell::default());
        Arc::clone(&late).end(end());
        assert!(late.forget(), "had ended");
    }

    #[test]
    fn a_pool_uses_cells_again() {
        let pool = Pool::new(1);
        let (first, second) = (pool.take(), pool.take());
        let address = Arc::as_ptr(&first);
        Arc::clone(&first).end(end());
        first.forget();
        pool.give_back(first);
        pool.give_back(second);
        let again = pool.take();
        assert_eq!(Arc::as_ptr(&again), address);
        Arc::clone(&again).end(end());
        assert!(is_seven(again.take()));
    }
}
