//! The mailbox of a thread of the store. Jobs that end something (a lease, a writer) are its urgent ones.
//!
//! While enough reads wait for memory, it refuses further ones and still takes other jobs.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use adit_driver::runtime::{Alarm, Mailbox, Refusal, block_until, try_or_want};

use super::request::Job;
use crate::shard::Failure;

/// The jobs for one thread.
pub(super) struct Inbox {
    jobs: Mailbox<Job>,
    /// Refuses fetches for now.
    holds_fetches: AtomicBool,
}

impl Deref for Inbox {
    type Target = Mailbox<Job>;

    fn deref(&self) -> &Mailbox<Job> {
        &self.jobs
    }
}

impl Inbox {
    pub(super) fn new(depth: usize, reader: Arc<Alarm>) -> Inbox {
        let jobs = Mailbox::new(depth, reader, |job: Job| job.work.refuse(&Failure::Closed));
        Inbox { jobs, holds_fetches: AtomicBool::new(false) }
    }

    /// Leaves a job, unless it is a fetch and those are held.
    ///
    /// # Errors
    /// The job, with the reason for the refusal.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(super) fn send(&self, job: Job) -> Result<(), (Job, Refusal)> {
        if self.holds_fetches.load(Ordering::Relaxed)
            && !self.jobs.is_stopping()
            && job.work.is_fetch()
        {
            return Err((job, Refusal::Full));
        }
        self.jobs.send(job)
    }

    /// Like [`Inbox::send`], but waits for room until `deadline`.
    ///
    /// # Errors
    /// As [`Inbox::send`].
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub(super) fn send_by(&self, deadline: Instant, job: Job) -> Result<(), (Job, Refusal)> {
        let mut unsent = Some(job);
        let mut try_to = || match self.send(unsent.take().expect("it was given back")) {
            Err((job, Refusal::Full)) => {
                unsent = Some(job);
                None
            }
            sent => Some(sent),
        };
        let sent = block_until(Some(deadline), |context| {
            try_or_want(context, |waker| self.jobs.want_room(waker), &mut try_to)
        });
        sent.unwrap_or_else(|| Err((unsent.expect("it was given back"), Refusal::Full)))
    }

    /// Called by the reader: while `holds` is set, refuses fetches, because enough of them already wait for memory.
    pub(super) fn hold_fetches(&self, holds: bool) {
        if self.holds_fetches.load(Ordering::Relaxed) != holds {
            self.holds_fetches.store(holds, Ordering::Relaxed);
            if !holds {
                self.jobs.made_room();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::{Pending, pair};
    use super::super::request::{Fetch, Waiter, Work};
    use super::super::value::Value;
    use super::*;
    use crate::model::key::Key;
    use crate::shard::{Action, GetItem, Hashed, Part, Request};
    use adit_driver::Time;
    use adit_driver::memory::AnyBuffer;
    use smallvec::smallvec;
    use std::time::Duration;

    fn fetch() -> (Job, Pending<Option<Value>>) {
        let (reply, pending) = pair(Duration::from_secs(60));
        let item = GetItem { key: Key::from(1u64), part: Part::All, into: AnyBuffer::None };
        let (action, reply) = (Action::Get(item), Waiter::Fetch(Fetch::new(reply, None, None)));
        let request = Request { reply, deadline: Time::NEVER, action };
        let work = Work::Requests(smallvec![Hashed { hash: 0, request }]);
        (Job { shard: 0, work }, pending)
    }

    fn ask() -> Job {
        Job { shard: 0, work: Work::Ask(Time::NEVER, Box::new(|_| {})) }
    }

    #[test]
    fn fetches_wait_while_they_are_held_and_other_jobs_do_not() {
        let inbox = Inbox::new(4, Alarm::new().expect("alarm"));
        inbox.hold_fetches(true);
        assert!(matches!(inbox.send(fetch().0), Err((_, Refusal::Full))));
        let soon = Instant::now() + Duration::from_millis(2);
        assert!(matches!(inbox.send_by(soon, fetch().0), Err((_, Refusal::Full))));
        assert!(inbox.send(ask()).is_ok());
        let late = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| inbox.send_by(late, fetch().0).is_ok());
            std::thread::sleep(Duration::from_millis(2));
            inbox.hold_fetches(false);
            assert!(sender.join().expect("no panic"));
        });
        let taken: Vec<bool> =
            std::iter::from_fn(|| inbox.take()).map(|job| job.work.is_fetch()).collect();
        assert_eq!(taken, [false, true]);
    }

    #[test]
    fn jobs_that_are_left_when_it_closes_are_answered() {
        let inbox = Inbox::new(4, Alarm::new().expect("alarm"));
        let (job, pending) = fetch();
        assert!(inbox.send(job).is_ok());
        inbox.hold_fetches(true);
        inbox.close();
        let unfinished = pending.wait().expect_err("refused");
        assert_eq!(unfinished.failure(), Some(&Failure::Closed));
        assert!(matches!(inbox.send(fetch().0), Err((_, Refusal::Closed))));
    }
}
