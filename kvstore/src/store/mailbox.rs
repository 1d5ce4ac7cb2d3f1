//! The bounded queue that carries jobs to one of the store's threads.
//!
//! A full mailbox gives the job back. Jobs that end something (a lease, a writer) have a list of their own, which
//! never refuses. After [`Mailbox::close`] the mailbox is empty: either the closer finds a job, or its sender finds
//! the mailbox closed and empties it. A SeqCst fence between the two steps on both sides guarantees this.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::Thread;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use super::wait;

/// Why a job was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The mailbox is full.
    Busy,
    /// The mailbox accepts no more jobs.
    Closed,
}

/// A bounded queue of jobs with one reader.
pub(super) struct Mailbox<J> {
    jobs: ArrayQueue<J>,
    endings: Mutex<Vec<J>>,
    has_endings: AtomicBool,
    reader: OnceLock<Thread>,
    /// Refuses new jobs.
    stops: AtomicBool,
    /// The reader has stopped reading.
    closed: AtomicBool,
    /// Refuses fetches for now.
    holds_fetches: AtomicBool,
    is_wanted: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
}

impl<J> Mailbox<J> {
    pub(super) fn new(depth: usize) -> Mailbox<J> {
        let (has_endings, stops, closed) = Default::default();
        let (holds_fetches, is_wanted) = Default::default();
        let (jobs, endings, waiters) = (ArrayQueue::new(depth), Mutex::default(), Mutex::default());
        let reader = OnceLock::new();
        Mailbox {
            jobs,
            endings,
            has_endings,
            reader,
            stops,
            closed,
            holds_fetches,
            is_wanted,
            waiters,
        }
    }

    /// Sets the thread that reads it, once.
    pub(super) fn read_by(&self, reader: Thread) {
        // A second reader would be our own bug; its jobs would still be found after a nap.
        let _ = self.reader.set(reader);
    }

    /// Leaves a job and wakes a sleeping reader. `is_fetch` marks a job that will wait for memory.
    ///
    /// # Errors
    /// The job, with the reason for the refusal.
    pub(super) fn send(&self, job: J, is_fetch: bool) -> Result<(), (J, Full)> {
        if self.stops.load(Ordering::Acquire) {
            return Err((job, Full::Closed));
        }
        if is_fetch && self.holds_fetches.load(Ordering::Relaxed) {
            return Err((job, Full::Busy));
        }
        self.jobs.push(job).map_err(|job| (job, Full::Busy))?;
        self.arrived();
        Ok(())
    }

    /// Like [`Mailbox::send`], but waits for room until `deadline`.
    ///
    /// # Errors
    /// As [`Mailbox::send`].
    pub(super) fn send_by(
        &self,
        deadline: Instant,
        job: J,
        is_fetch: bool,
    ) -> Result<(), (J, Full)> {
        let mut waiting = Some(job);
        let sent = wait::until(deadline, |waker| {
            if let Some(waker) = waker {
                self.want_room(waker);
            }
            let job = waiting.take().expect("a job that is not sent is given back");
            match self.send(job, is_fetch) {
                Err((job, Full::Busy)) => {
                    waiting = Some(job);
                    None
                }
                other => Some(other),
            }
        });
        sent.unwrap_or_else(|| Err((waiting.expect("it was given back"), Full::Busy)))
    }

    /// Leaves a job that ends a lease or a writer. Drops it if the store has stopped, because those have ended with
    /// it.
    pub(super) fn send_ending(&self, job: J) {
        if self.stops.load(Ordering::Acquire) {
            return;
        }
        lock(&self.endings).push(job);
        self.has_endings.store(true, Ordering::Release);
        self.arrived();
    }

    fn arrived(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) {
            self.drop_all();
        }
    }

    /// Takes the next job, ending jobs first.
    pub(super) fn take(&self) -> Option<J> {
        if let Some(ending) = self.take_ending() {
            return Some(ending);
        }
        let job = self.jobs.pop()?;
        self.has_room();
        Some(job)
    }

    /// Takes the next ending job.
    pub(super) fn take_ending(&self) -> Option<J> {
        if !self.has_endings.load(Ordering::Acquire) {
            return None;
        }
        let mut endings = lock(&self.endings);
        let ending = endings.pop();
        self.has_endings.store(!endings.is_empty(), Ordering::Relaxed);
        ending
    }

    /// Called by the reader: while `holds` is set, refuses fetches, because enough of them already wait for memory.
    pub(super) fn hold_fetches(&self, holds: bool) {
        if self.holds_fetches.load(Ordering::Relaxed) != holds {
            self.holds_fetches.store(holds, Ordering::Relaxed);
            if !holds {
                self.has_room();
            }
        }
    }

    fn has_room(&self) {
        fence(Ordering::SeqCst);
        if self.is_wanted.load(Ordering::Relaxed) {
            self.call_waiters();
        }
    }

    /// Returns whether there is no room now.
    pub(super) fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && !self.has_endings.load(Ordering::Acquire)
    }

    /// Calls `waker` once there is room. Try again after this call.
    fn want_room(&self, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        self.is_wanted.store(true, Ordering::Relaxed);
        drop(waiters);
        // Pairs with the fence in `has_room`.
        fence(Ordering::SeqCst);
    }

    #[cold]
    fn call_waiters(&self) {
        let waiters = {
            let mut waiters = lock(&self.waiters);
            self.is_wanted.store(false, Ordering::Relaxed);
            std::mem::take(&mut *waiters)
        };
        waiters.into_iter().for_each(wait::wake);
    }

    /// Refuses new jobs from now on.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Stops reading. Drops the remaining jobs, which answers them.
    pub(super) fn close(&self) {
        self.stops.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drop_all();
        self.call_waiters();
    }

    fn drop_all(&self) {
        while self.jobs.pop().is_some() {}
        let endings = std::mem::take(&mut *lock(&self.endings));
        drop(endings);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(2)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_full_mailbox_gives_the_job_back_and_a_taken_one_makes_room() {
        let mailbox = Mailbox::new(1);
        assert!(mailbox.send(1, false).is_ok());
        assert_eq!(mailbox.send(2, false), Err((2, Full::Busy)));
        assert_eq!(mailbox.send_by(soon(), 3, false), Err((3, Full::Busy)));
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| mailbox.send_by(late(), 4, false));
            let mut taken = Vec::new();
            while taken.len() < 2 {
                taken.extend(mailbox.take());
            }
            assert_eq!((sender.join().expect("no panic"), taken), (Ok(()), vec![1, 4]));
        });
    }

    #[test]
    fn endings_come_first_and_are_never_refused() {
        let mailbox = Mailbox::new(1);
        assert!(mailbox.send(1, false).is_ok());
        mailbox.send_ending(2);
        mailbox.send_ending(3);
        let taken: Vec<i32> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!((taken.len(), taken[2]), (3, 1));
        assert!(mailbox.is_empty());
    }

    #[test]
    fn a_closed_mailbox_keeps_nothing_and_takes_nothing() {
        let (mailbox, job) = (Mailbox::new(4), Arc::new(()));
        assert!(mailbox.send(Arc::clone(&job), false).is_ok());
        mailbox.send_ending(Arc::clone(&job));
        mailbox.close();
        assert_eq!(Arc::strong_count(&job), 1);
        assert!(matches!(mailbox.send(Arc::clone(&job), false), Err((_, Full::Closed))));
        mailbox.send_ending(Arc::clone(&job));
        assert_eq!(Arc::strong_count(&job), 1);
    }

    #[test]
    fn fetches_wait_while_they_are_held_and_other_jobs_do_not() {
        let mailbox = Mailbox::new(4);
        mailbox.hold_fetches(true);
        assert_eq!(mailbox.send(1, true), Err((1, Full::Busy)));
        assert_eq!(mailbox.send(2, false), Ok(()));
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| mailbox.send_by(late(), 3, true));
            while !mailbox.is_wanted.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            mailbox.hold_fetches(false);
            assert_eq!(sender.join().expect("no panic"), Ok(()));
        });
        assert_eq!((mailbox.take(), mailbox.take()), (Some(2), Some(3)));
    }

    /// Several threads send while the mailbox closes: each job is taken, given back or dropped; none is left.
    #[test]
    fn nothing_is_left_in_a_mailbox_that_closes_under_load() {
        for round in 0..200 {
            let (mailbox, job) = (Mailbox::new(8), Arc::new(()));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while mailbox.send_by(late(), Arc::clone(&job), false) == Ok(()) {}
                    });
                }
                (0..round).for_each(|_| drop(mailbox.take()));
                mailbox.close();
            });
            assert_eq!(Arc::strong_count(&job), 1, "round {round}");
        }
    }
}
