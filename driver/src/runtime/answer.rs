//! One answer on its way from one thread to another: the answering thread holds a [`Reply`], the other a
//! [`Receipt`].
//!
//! Both share a cell, which the reply fills once. If the reply is dropped unsent, the cell says so. If the receipt is
//! dropped first, the answer is dropped with the reply, whose owner may ask to be woken then.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use super::wait::{block_until, lock, shielded, wake};

/// The reply was dropped: no answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

#[derive(Debug)]
enum AnswerState<T> {
    /// No waiter yet, or none any more.
    Open,
    Waiting(Waker),
    Ended(Result<T, Dropped>),
    /// The receipt was dropped.
    Unwanted,
}

#[derive(Debug)]
struct Inside<T> {
    state: AnswerState<T>,
    /// Called when the receipt is dropped before the answer.
    on_unwanted: Option<Waker>,
}

#[derive(Debug)]
struct Cell<T>(Mutex<Inside<T>>);

impl<T> Cell<T> {
    fn new() -> Arc<Cell<T>> {
        Arc::new(Cell(Mutex::new(Inside { state: AnswerState::Open, on_unwanted: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        lock(&self.0)
    }

    fn end(self: Arc<Self>, answer: Result<T, Dropped>) {
        let mut inside = self.lock();
        let on_unwanted = inside.on_unwanted.take();
        let waiter = std::mem::replace(&mut inside.state, AnswerState::Ended(answer));
        drop(inside);
        drop(on_unwanted);
        // Outside the lock: a waker may run any code.
        match waiter {
            AnswerState::Waiting(waker) => wake(waker),
            AnswerState::Open | AnswerState::Unwanted => {}
            AnswerState::Ended(_) => unreachable!("a reply is sent once"),
        }
        // Without a receipt, this was the last reference, and the answer is dropped.
        let _ = shielded("dropping an answer that came too late", || drop(self));
    }
}

/// Takes the answer if it has come.
fn take<T>(state: &mut AnswerState<T>) -> Option<Result<T, Dropped>> {
    match std::mem::replace(state, AnswerState::Open) {
        AnswerState::Ended(answer) => Some(answer),
        other => {
            *state = other;
            None
        }
    }
}

/// The sending end of an answer.
#[derive(Debug)]
pub struct Reply<T>(Option<Arc<Cell<T>>>);

impl<T> Reply<T> {
    /// Delivers the answer and wakes its waiter. Never panics: panics of foreign code, in a waker or in the drop of
    /// an answer, are caught and logged.
    pub fn send(mut self, answer: T) {
        if let Some(cell) = self.0.take() {
            cell.end(Ok(answer));
        }
    }

    /// Returns whether the other end still exists.
    pub fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|cell| Arc::strong_count(cell) > 1)
    }

    /// Calls `waker` when the other end is dropped before the answer; at once if it is gone.
    pub fn when_unwanted(&self, waker: Waker) {
        let Some(cell) = &self.0 else { return };
        let mut inside = cell.lock();
        if matches!(inside.state, AnswerState::Unwanted) {
            drop(inside);
            return wake(waker);
        }
        let before = inside.on_unwanted.replace(waker);
        drop(inside);
        drop(before);
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.end(Err(Dropped));
        }
    }
}

/// The receiving end of an answer, which is taken once.
#[derive(Debug)]
pub struct Receipt<T> {
    /// `None` once the answer was taken.
    cell: Option<Arc<Cell<T>>>,
    /// Where the cell goes then.
    home: Option<Arc<Cells<T>>>,
}

/// Creates both ends.
pub fn pair<T>() -> (Reply<T>, Receipt<T>) {
    ends(Cell::new(), None)
}

fn ends<T>(cell: Arc<Cell<T>>, home: Option<Arc<Cells<T>>>) -> (Reply<T>, Receipt<T>) {
    (Reply(Some(Arc::clone(&cell))), Receipt { cell: Some(cell), home })
}

impl<T> Receipt<T> {
    /// Returns the answer, or registers `waker` for it. Only the last waker is called.
    ///
    /// # Panics
    /// If the answer was taken before, as the other calls do.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<T, Dropped>> {
        let mut inside = self.cell().lock();
        let answer = take(&mut inside.state);
        if answer.is_none()
            && !matches!(&inside.state, AnswerState::Waiting(old) if old.will_wake(waker))
        {
            inside.state = AnswerState::Waiting(waker.clone());
        }
        drop(inside);
        answer.map_or(Poll::Pending, |answer| Poll::Ready(self.taken(answer)))
    }

    /// Returns the answer if it has come.
    pub fn take(&mut self) -> Option<Result<T, Dropped>> {
        let answer = take(&mut self.cell().lock().state)?;
        Some(self.taken(answer))
    }

    /// Blocks until the answer comes or `deadline`, if any, passes.
    pub fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Result<T, Dropped>> {
        block_until(deadline, |context| self.poll(context.waker()))
    }

    /// Returns whether the answer was taken.
    pub fn is_taken(&self) -> bool {
        self.cell.is_none()
    }

    fn cell(&self) -> &Cell<T> {
        self.cell.as_ref().expect("an answer is taken once")
    }

    fn taken(&mut self, answer: Result<T, Dropped>) -> Result<T, Dropped> {
        self.give_back();
        answer
    }

    fn give_back(&mut self) {
        if let (Some(cell), Some(home)) = (self.cell.take(), &self.home) {
            // A full list drops it.
            let _ = home.0.push(cell);
        }
    }
}

impl<T> Drop for Receipt<T> {
    fn drop(&mut self) {
        let Some(cell) = &self.cell else { return };
        let mut inside = cell.lock();
        let state = std::mem::replace(&mut inside.state, AnswerState::Unwanted);
        let on_unwanted = inside.on_unwanted.take();
        if matches!(state, AnswerState::Ended(_)) {
            inside.state = AnswerState::Open;
            drop(inside);
            self.give_back();
        } else {
            drop(inside);
        }
        on_unwanted.into_iter().for_each(wake);
        // The answer, or the waker that nothing calls any more, is dropped outside the lock.
    }
}

/// Unused cells of answers, so that a request allocates none.
#[derive(Debug)]
pub struct Cells<T>(ArrayQueue<Arc<Cell<T>>>);

impl<T> Cells<T> {
    /// Creates a list that keeps up to `count` cells, allocated on demand.
    pub fn new(count: usize) -> Arc<Cells<T>> {
        Arc::new(Cells(ArrayQueue::new(count)))
    }

    /// Creates both ends of an answer. Its cell comes back when the answer is taken, or dropped after it came.
    pub fn pair(self: &Arc<Self>) -> (Reply<T>, Receipt<T>) {
        let cell = self.0.pop().unwrap_or_else(Cell::new);
        debug_assert!(matches!(cell.lock().state, AnswerState::Open), "a cell comes back empty");
        ends(cell, Some(Arc::clone(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wait::tests::{Count, Panics};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    #[test]
    fn an_answer_is_taken_once_whether_it_comes_before_or_after_the_wait() {
        let (reply, mut receipt) = pair();
        assert_eq!(receipt.take(), None);
        reply.send(7);
        assert_eq!(receipt.wait_until(None), Some(Ok(7)));
        assert!(receipt.is_taken());
        let (reply, mut receipt) = pair();
        let waiter = std::thread::spawn(move || receipt.wait_until(None));
        std::thread::sleep(Duration::from_millis(5));
        reply.send(8);
        assert_eq!(waiter.join().expect("no panic"), Some(Ok(8)));
    }

    #[test]
    fn a_wait_with_a_deadline_ends_without_an_answer() {
        let (reply, mut receipt) = pair();
        assert_eq!(receipt.wait_until(Some(Instant::now() + Duration::from_millis(2))), None);
        reply.send(1);
        assert_eq!(receipt.take(), Some(Ok(1)));
    }

    #[test]
    fn a_reply_that_is_dropped_says_so() {
        let (reply, mut receipt) = pair::<()>();
        drop(reply);
        assert_eq!(receipt.wait_until(None), Some(Err(Dropped)));
    }

    #[test]
    fn the_last_waker_is_the_one_that_is_woken() {
        let (reply, mut receipt) = pair();
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&first, &first, &second] {
            assert!(receipt.poll(&Waker::from(Arc::clone(count))).is_pending());
        }
        reply.send(1);
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert_eq!(receipt.poll(Waker::noop()), Poll::Ready(Ok(1)));
    }

    #[test]
    fn a_panic_of_a_waker_stays_where_it_is() {
        let (reply, mut receipt) = pair();
        assert!(receipt.poll(&Waker::from(Arc::new(Panics))).is_pending());
        reply.send(3);
        assert_eq!(receipt.take(), Some(Ok(3)));
    }

    #[test]
    fn a_dropped_receipt_wakes_no_task_and_the_answer_goes_with_the_reply() {
        let (reply, mut receipt) = pair();
        let (count, memory) = (Arc::new(Count::default()), Arc::new(()));
        assert!(receipt.poll(&Waker::from(Arc::clone(&count))).is_pending());
        assert!(reply.is_wanted());
        drop(receipt);
        assert!(!reply.is_wanted());
        assert_eq!(Arc::strong_count(&count), 1, "the waker is let go");
        reply.send(Arc::clone(&memory));
        assert_eq!((Arc::strong_count(&memory), count.0.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn the_reply_learns_once_that_its_receipt_went_before_the_answer() {
        let told = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        let count = Arc::new(Count::default());
        let (reply, receipt) = pair::<()>();
        reply.when_unwanted(Waker::from(Arc::clone(&count)));
        drop(receipt);
        assert_eq!(told(&count), 1);
        reply.when_unwanted(Waker::from(Arc::clone(&count)));
        assert_eq!(told(&count), 2, "it is gone already");
        drop(reply);
        let (reply, mut receipt) = pair();
        reply.when_unwanted(Waker::from(Arc::clone(&count)));
        reply.send(());
        assert_eq!(receipt.take(), Some(Ok(())));
        drop(receipt);
        assert_eq!((told(&count), Arc::strong_count(&count)), (2, 1), "it was answered");
    }

    #[test]
    fn cells_are_used_again_once_their_answer_came() {
        let cells = Cells::new(2);
        let (reply, mut taken) = cells.pair();
        reply.send(1);
        assert_eq!(taken.take(), Some(Ok(1)));
        assert_eq!(cells.0.len(), 1, "it was taken");
        let (reply, late) = cells.pair();
        reply.send(2);
        drop(late);
        assert_eq!(cells.0.len(), 1, "it had come");
        let (reply, mut again) = cells.pair();
        assert_eq!((cells.0.len(), again.take()), (0, None));
        drop(again);
        reply.send(3);
        assert_eq!(cells.0.len(), 0, "it was still expected");
    }
}
