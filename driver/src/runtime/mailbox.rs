//! The bounded queue that carries jobs to a poller thread.
//!
//! A full mailbox gives the job back; its sender may wait for room, or leave the job behind the mailbox, in a list
//! that is never full: for senders that cannot wait and limit the number of their jobs themselves. Jobs keep the order
//! in which one sender left them. Urgent jobs have a list of their own, which is never full either: for jobs that a
//! thread cannot have too many of, such as those that end something. Once closed, a
//! mailbox is empty: either the closer finds a job, or its sender finds the mailbox closed and empties it, by the
//! fences described in `alarm`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crossbeam_queue::ArrayQueue;

use super::alarm::Alarm;
use super::wait::{Waiters, lock};

/// Why a mailbox gave a job back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room now.
    Full,
    /// It accepts no more jobs.
    Closed,
}

/// A bounded queue of jobs, read by the thread of one alarm.
#[derive(Debug)]
pub struct Mailbox<J> {
    jobs: ArrayQueue<J>,
    /// Jobs that found it full. While there are any, all jobs go here, so that none overtakes them.
    behind: Mutex<VecDeque<J>>,
    has_behind: AtomicBool,
    urgent: Mutex<Vec<J>>,
    has_urgent: AtomicBool,
    reader: Arc<Alarm>,
    /// Ends a job that was accepted and will not be taken.
    refuse: fn(J),
    /// Accepts no new jobs.
    stops: AtomicBool,
    /// The reader has stopped reading.
    closed: AtomicBool,
    /// Senders that wait for room.
    waiters: Waiters,
}

impl<J> Mailbox<J> {
    /// Creates a mailbox for `depth` jobs. `refuse` ends jobs that are left when it closes.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn new(depth: usize, reader: Arc<Alarm>, refuse: fn(J)) -> Mailbox<J> {
        let (behind, has_behind, urgent, has_urgent) = Default::default();
        let (stops, closed, waiters) = Default::default();
        let jobs = ArrayQueue::new(depth);
        Mailbox {
            jobs,
            behind,
            has_behind,
            urgent,
            has_urgent,
            reader,
            refuse,
            stops,
            closed,
            waiters,
        }
    }

    /// Leaves a job and wakes a sleeping reader.
    ///
    /// # Errors
    /// The job, with the reason for the refusal.
    #[inline]
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub fn send(&self, job: J) -> Result<(), (J, Refusal)> {
        if self.is_stopping() {
            return Err((job, Refusal::Closed));
        }
        if self.has_behind.load(Ordering::Acquire) {
            return Err((job, Refusal::Full));
        }
        self.jobs.push(job).map_err(|job| (job, Refusal::Full))?;
        self.arrived();
        Ok(())
    }

    /// Leaves a job, behind the mailbox if that is full, and wakes a sleeping reader.
    ///
    /// # Errors
    /// The job, if the mailbox accepts no more.
    #[inline]
    pub fn send_behind(&self, job: J) -> Result<(), J> {
        match self.send(job) {
            Ok(()) => Ok(()),
            Err((job, Refusal::Closed)) => Err(job),
            Err((job, Refusal::Full)) => {
                self.leave_behind(job);
                Ok(())
            }
        }
    }

    #[cold]
    fn leave_behind(&self, job: J) {
        let mut behind = lock(&self.behind);
        behind.push_back(job);
        self.has_behind.store(true, Ordering::Release);
        drop(behind);
        self.arrived();
    }

    /// Leaves a job that goes before all others and needs no room.
    ///
    /// # Errors
    /// The job, if the mailbox accepts no more.
    pub fn send_urgent(&self, job: J) -> Result<(), J> {
        if self.is_stopping() {
            return Err(job);
        }
        lock(&self.urgent).push(job);
        self.has_urgent.store(true, Ordering::Release);
        self.arrived();
        Ok(())
    }

    #[inline]
    fn arrived(&self) {
        // Contains the fence that the next line needs as well.
        self.reader.tell();
        if self.closed.load(Ordering::Relaxed) {
            self.refuse_all();
        }
    }

    /// Takes the next job, urgent ones first. Call [`Mailbox::made_room`] after the last one.
    #[inline]
    pub fn take(&self) -> Option<J> {
        debug_assert!(!self.closed.load(Ordering::Relaxed), "the reader closes it at its end");
        self.take_urgent().or_else(|| self.jobs.pop()).or_else(|| self.take_behind())
    }

    /// Takes the first job behind the mailbox. Call this once that is empty.
    #[inline]
    fn take_behind(&self) -> Option<J> {
        if !self.has_behind.load(Ordering::Acquire) {
            return None;
        }
        let mut behind = lock(&self.behind);
        let job = behind.pop_front();
        self.has_behind.store(!behind.is_empty(), Ordering::Release);
        job
    }

    /// Takes an urgent job, if there is one.
    #[inline]
    pub fn take_urgent(&self) -> Option<J> {
        if !self.has_urgent.load(Ordering::Acquire) {
            return None;
        }
        let mut urgent = lock(&self.urgent);
        let job = urgent.pop();
        self.has_urgent.store(!urgent.is_empty(), Ordering::Relaxed);
        job
    }

    /// Wakes the senders that wait for room, after jobs were taken.
    #[inline]
    pub fn made_room(&self) {
        self.waiters.call();
    }

    /// Calls `waker` once there is room. Send again after this call.
    pub fn want_room(&self, waker: &Waker) {
        self.waiters.want(waker);
    }

    /// Returns the number of jobs it has room for.
    pub fn depth(&self) -> usize {
        self.jobs.capacity()
    }

    /// Returns the number of jobs that wait, without urgent ones.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns whether there is no room now.
    pub fn is_full(&self) -> bool {
        self.jobs.is_full() || self.has_behind.load(Ordering::Acquire)
    }

    /// Returns whether no job waits, urgent or not.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && !self.has_urgent.load(Ordering::Acquire)
            && !self.has_behind.load(Ordering::Acquire)
    }

    /// Returns the alarm of its reader.
    pub fn reader(&self) -> &Alarm {
        &self.reader
    }

    /// Refuses new jobs from now on; those accepted can still be taken.
    pub fn stop(&self) {
        // Told once, so that a reader that stops it in each round can sleep.
        if !self.stops.swap(true, Ordering::AcqRel) {
            self.reader.tell();
        }
    }

    /// Returns whether it refuses new jobs.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Ends reading: refuses what is left, and what senders leave at this moment.
    pub fn close(&self) {
        self.stops.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refuse_all();
        self.waiters.call();
    }

    fn refuse_all(&self) {
        assert!(self.is_stopping(), "a mailbox that accepts jobs refuses none of them");
        std::iter::from_fn(|| self.jobs.pop()).for_each(self.refuse);
        let behind = std::mem::take(&mut *lock(&self.behind));
        behind.into_iter().for_each(self.refuse);
        let urgent = std::mem::take(&mut *lock(&self.urgent));
        urgent.into_iter().for_each(self.refuse);
    }
}

#[cfg(test)]
mod tests {
    use super::super::wait::{block_until, try_or_want};
    use super::*;
    use std::time::{Duration, Instant};

    fn mailbox<J>(depth: usize) -> Mailbox<J> {
        Mailbox::new(depth, Alarm::new().expect("alarm"), drop)
    }

    /// Sends, waiting for room for as long as `at_most`.
    fn send_within<J>(mailbox: &Mailbox<J>, at_most: Duration, job: J) -> Result<(), (J, Refusal)> {
        let mut waiting = Some(job);
        let sent = block_until(Some(Instant::now() + at_most), |context| {
            let want = |waker: &Waker| mailbox.want_room(waker);
            try_or_want(context, want, || {
                match mailbox.send(waiting.take().expect("it was given back")) {
                    Err((job, Refusal::Full)) => {
                        waiting = Some(job);
                        None
                    }
                    sent => Some(sent),
                }
            })
        });
        sent.unwrap_or_else(|| Err((waiting.expect("it was given back"), Refusal::Full)))
    }

    const SOON: Duration = Duration::from_millis(2);
    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn a_full_mailbox_gives_the_job_back_and_a_taken_one_makes_room() {
        let mailbox = mailbox(1);
        assert!(mailbox.send(1).is_ok());
        assert_eq!(mailbox.send(2), Err((2, Refusal::Full)));
        assert_eq!(send_within(&mailbox, SOON, 3), Err((3, Refusal::Full)));
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send_within(&mailbox, LATE, 4));
            let mut taken = Vec::new();
            while taken.len() < 2 {
                taken.extend(mailbox.take());
                mailbox.made_room();
            }
            assert_eq!((sender.join().expect("no panic"), taken), (Ok(()), vec![1, 4]));
        });
    }

    #[test]
    fn urgent_jobs_come_first_and_need_no_room() {
        let mailbox = mailbox(1);
        assert!(mailbox.send(1).is_ok());
        assert_eq!((mailbox.send_urgent(2), mailbox.send_urgent(3)), (Ok(()), Ok(())));
        assert_eq!(mailbox.take_urgent(), Some(3));
        assert_eq!((mailbox.take(), mailbox.take()), (Some(2), Some(1)));
        assert!(mailbox.is_empty() && mailbox.take_urgent().is_none());
    }

    #[test]
    fn jobs_behind_a_full_mailbox_keep_their_order_and_none_overtakes_them() {
        let mailbox = mailbox(2);
        assert!((0..5).all(|job| mailbox.send_behind(job).is_ok()));
        assert_eq!(mailbox.take(), Some(0));
        assert_eq!(mailbox.send(7), Err((7, Refusal::Full)), "there is room, and others are first");
        assert!(mailbox.is_full() && !mailbox.is_empty());
        assert!(mailbox.send_behind(5).is_ok());
        let taken: Vec<i32> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(taken, [1, 2, 3, 4, 5]);
        assert!(mailbox.is_empty() && mailbox.send(6).is_ok());
        mailbox.stop();
        assert_eq!(mailbox.send_behind(8), Err(8));
    }

    #[test]
    fn a_closed_mailbox_keeps_nothing_and_takes_nothing() {
        let (mailbox, job) = (mailbox(4), Arc::new(()));
        assert!(mailbox.send(Arc::clone(&job)).is_ok());
        assert!(mailbox.send_urgent(Arc::clone(&job)).is_ok());
        mailbox.close();
        assert_eq!(Arc::strong_count(&job), 1);
        assert!(matches!(mailbox.send(Arc::clone(&job)), Err((_, Refusal::Closed))));
        assert!(mailbox.send_urgent(Arc::clone(&job)).is_err());
        assert_eq!(Arc::strong_count(&job), 1);
    }

    #[test]
    fn a_stopped_mailbox_gives_out_what_it_has() {
        let mailbox = mailbox(2);
        assert!(mailbox.send(1).is_ok());
        mailbox.stop();
        assert_eq!(mailbox.send(2), Err((2, Refusal::Closed)));
        assert_eq!(mailbox.take(), Some(1));
    }

    /// Several threads send while the mailbox closes: each job is taken, given back or refused; none is left.
    #[test]
    fn nothing_is_left_in_a_mailbox_that_closes_under_load() {
        for round in 0..200 {
            let (mailbox, job) = (mailbox(8), Arc::new(()));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| while send_within(&mailbox, LATE, Arc::clone(&job)).is_ok() {});
                }
                scope.spawn(|| while mailbox.send_urgent(Arc::clone(&job)).is_ok() {});
                scope.spawn(|| while mailbox.send_behind(Arc::clone(&job)).is_ok() {});
                for _ in 0..round {
                    drop(mailbox.take());
                    mailbox.made_room();
                }
                mailbox.close();
            });
            assert_eq!(Arc::strong_count(&job), 1, "round {round}");
        }
    }
}
