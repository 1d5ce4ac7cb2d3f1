//! The mailbox of a thread of the store. Jobs that end something (a lease, a writer) are its urgent ones.
//!
//! A call never waits: a job that finds the mailbox full waits behind it. So does the request itself on the thread, if
//! it needs memory or room. There are as many waiting requests as callers hold unfinished answers. The calls that begin
//! with `try_` are refused meanwhile.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_driver::Time;
use adit_driver::runtime::{Alarm, Mailbox};
use crossbeam_queue::SegQueue;

use super::check::Judged;
use super::request::{Ask, Job, Work};
use crate::shard::Failure;

/// The jobs for one thread.
pub(super) struct Inbox {
    jobs: Mailbox<Job>,
    /// Many reads wait for memory.
    pub(super) lacks_memory: AtomicBool,
    /// Changes wait for room in a shard.
    pub(super) lacks_room: AtomicBool,
    /// Of reads that callers verified, for the thread's next round.
    pub(super) verdicts: SegQueue<Judged>,
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
        let (lacks_memory, lacks_room, verdicts) = Default::default();
        Inbox { jobs, lacks_memory, lacks_room, verdicts }
    }

    /// Has the thread do a round.
    pub(super) fn rouse(&self, shard: u16) {
        let nothing: Ask = Box::new(|_| ());
        // A thread that has ended has nothing left to do.
        let _ = self.jobs.send_urgent(Job { shard, work: Work::Ask(Time::NEVER, nothing) });
    }

    /// Returns whether `try_get` is refused.
    pub(super) fn is_busy_for_reads(&self) -> bool {
        self.lacks_memory.load(Ordering::Relaxed) && !self.jobs.is_stopping()
    }

    /// Returns whether `try_put` is refused.
    pub(super) fn is_busy_for_changes(&self) -> bool {
        (self.lacks_room.load(Ordering::Relaxed) || self.jobs.is_full()) && !self.jobs.is_stopping()
    }
}
