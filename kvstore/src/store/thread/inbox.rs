//! The mailbox of a thread of the store. Its urgent jobs are those that end something: a lease, or a writer.
//!
//! A call never waits: a job that finds the mailbox full waits behind it. So does the request itself on the thread, if
//! it needs memory or room. There are as many waiting requests as callers hold unfinished answers. The calls that begin
//! with `try_` are refused meanwhile.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_driver::Time;
use adit_driver::runtime::{Alarm, Mailbox};

use super::feed::Feed;
use crate::error::{Failure, Result};
use crate::store::answer::Verdicts;
use crate::store::request::{Lend, Requests, ThreadShard};

/// Work for one shard.
pub(crate) struct ShardJob {
    /// The shard's number in the store.
    pub(crate) shard: u16,
    pub(crate) work: ShardWork,
}

#[allow(clippy::large_enum_variant, reason = "most work is one request")]
pub(crate) enum ShardWork {
    Requests(Requests),
    /// A call that runs on the thread, unless it is later than the deadline.
    Ask(Time, Ask),
    /// A caller that waits for memory to fill.
    Lend(Lend),
    /// A feed to poll.
    Feed(Box<dyn Feed>),
}

/// A callback that receives the shard, or the failure if it never reached the shard.
pub(crate) type Ask = Box<dyn FnOnce(Result<(&mut ThreadShard, Time), Failure>) + Send>;

impl ShardWork {
    /// Answers with a failure without having begun.
    pub(crate) fn refuse(self, failure: &Failure) {
        match self {
            ShardWork::Requests(all) => {
                all.into_asked().into_iter().for_each(|one| one.refuse(failure.clone()));
            }
            ShardWork::Ask(_, ask) => ask(Err(failure.clone())),
            ShardWork::Lend(lend) => lend.refuse(failure.clone()),
            ShardWork::Feed(feed) => drop(feed),
        }
    }
}

/// The jobs for one thread.
pub(crate) struct Inbox {
    jobs: Mailbox<ShardJob>,
    /// Whether many requests wait for memory.
    pub(crate) lacks_memory: AtomicBool,
    /// Whether changes wait for room in a shard.
    pub(crate) lacks_room: AtomicBool,
    /// The verdicts on reads that callers verified, for the thread's next round.
    pub(crate) verdicts: Arc<Verdicts>,
}

impl Deref for Inbox {
    type Target = Mailbox<ShardJob>;

    fn deref(&self) -> &Mailbox<ShardJob> {
        &self.jobs
    }
}

impl Inbox {
    /// Creates an empty mailbox for `depth` jobs, to the thread that `reader` wakes.
    pub(crate) fn new(depth: usize, reader: Arc<Alarm>) -> Inbox {
        let verdicts = Arc::new(Verdicts::new(Arc::clone(&reader)));
        let refuse = |job: ShardJob| job.work.refuse(&Failure::Closed);
        let (lacks_memory, lacks_room) = Default::default();
        Inbox { jobs: Mailbox::new(depth, reader, refuse), lacks_memory, lacks_room, verdicts }
    }

    /// Returns whether `try_get` is refused.
    pub(crate) fn is_busy_for_reads(&self) -> bool {
        self.lacks_memory.load(Ordering::Relaxed) && !self.jobs.is_stopping()
    }

    /// Returns whether `try_put` is refused.
    pub(crate) fn is_busy_for_changes(&self) -> bool {
        (self.lacks_room.load(Ordering::Relaxed) || self.jobs.is_full()) && !self.jobs.is_stopping()
    }
}
