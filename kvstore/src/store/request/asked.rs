//! Requests on their way to a shard, with and without their memory, and lists of them.

use std::sync::Arc;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use smallvec::smallvec;

use super::arrivals::{Arrival, Changes};
use super::caller::{Caller, Waiter};
use super::unequipped::Unequipped;
use crate::shard::{Action, Failure, Hashed, PutItem, Request};
use crate::store::memory::Pool;

/// A request on its way to a shard.
#[allow(
    clippy::large_enum_variant,
    reason = "most are ready, and a box would be one more allocation"
)]
pub(crate) enum Asked {
    /// A request that a shard can begin.
    Ready(Hashed<Waiter>),
    /// A put or a part whose data wait for memory.
    Unequipped(Unequipped),
}

impl Asked {
    /// Returns when it fails if it has not begun.
    pub(crate) fn deadline(&self) -> Time {
        match self {
            Asked::Ready(asked) => asked.request.deadline,
            Asked::Unequipped(asked) => asked.deadline(),
        }
    }

    /// Answers with a failure without having begun.
    pub(crate) fn refuse(self, failure: Failure) {
        match self {
            Asked::Ready(asked) => asked.refuse(failure),
            Asked::Unequipped(asked) => asked.refuse(failure),
        }
    }

    /// Returns the bytes of `pool` that its data take.
    pub(crate) fn pooled_bytes(&self, pool: &Arc<Pool>) -> usize {
        let Asked::Ready(Hashed { request, .. }) = self else { return 0 };
        let (Caller::Put { origin, .. }, Action::Put(PutItem { data: AnyBuffer::One(run), .. })) =
            (&request.reply.caller, &request.action)
        else {
            return 0;
        };
        if origin.pool().is_some_and(|its| Arc::ptr_eq(its, pool)) { run.len() } else { 0 }
    }

    /// Returns whether it changes which objects there are, and so may have to wait for room in its shard.
    fn is_change(&self) -> bool {
        match self {
            Asked::Ready(asked) => asked.is_change(),
            Asked::Unequipped(asked) => asked.key_hash().is_some(),
        }
    }
}

impl Arrival for Asked {
    fn key_hash(&self) -> Option<u64> {
        match self {
            Asked::Ready(asked) => asked.key_hash(),
            Asked::Unequipped(asked) => asked.key_hash(),
        }
    }

    fn is_wanted(&self) -> bool {
        match self {
            Asked::Ready(asked) => asked.request.reply.caller.is_wanted(),
            Asked::Unequipped(asked) => asked.reply().is_wanted(),
        }
    }
}

impl Hashed<Waiter> {
    /// Answers with a failure without having begun.
    pub(crate) fn refuse(self, failure: Failure) {
        let Request { reply, action, .. } = self.request;
        reply.caller.answer(Err(failure), action.into_memory(), None);
    }

    /// Returns whether it may begin: its caller still waits, and it is not late.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.request.reply.caller.is_wanted() && now <= self.request.deadline
    }

    /// Returns the hash of the key whose changes are in order with it, if it changes one.
    pub(crate) fn key_hash(&self) -> Option<u64> {
        let is_ordered = matches!(
            self.request.action,
            Action::Put(_)
                | Action::Delete(_)
                | Action::DeleteIf(..)
                | Action::Touch(_)
                | Action::Seal(_)
        );
        is_ordered.then_some(self.hash)
    }

    fn is_change(&self) -> bool {
        !matches!(self.request.action, Action::Get(_) | Action::Fill(_) | Action::Commit)
    }
}

/// Requests that are planned together; of one kind, if several.
pub(crate) enum Requests {
    /// A shard can begin all of them.
    Ready(Changes<Hashed<Waiter>>),
    /// Some wait for memory.
    Mixed(Changes<Asked>),
}

impl Default for Requests {
    fn default() -> Requests {
        Requests::Ready(Changes::new())
    }
}

impl From<Asked> for Requests {
    fn from(asked: Asked) -> Requests {
        match asked {
            Asked::Ready(asked) => Requests::Ready(smallvec![asked]),
            unequipped => Requests::Mixed(smallvec![unequipped]),
        }
    }
}

impl Requests {
    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Requests::Ready(all) => all.is_empty(),
            Requests::Mixed(all) => all.is_empty(),
        }
    }

    /// Adds a request behind the others.
    pub(crate) fn push(&mut self, asked: Asked) {
        match (&mut *self, asked) {
            (Requests::Ready(all), Asked::Ready(asked)) => all.push(asked),
            (Requests::Mixed(all), asked) => all.push(asked),
            (Requests::Ready(_), asked) => {
                let mut all = std::mem::take(self).into_asked();
                all.push(asked);
                *self = Requests::Mixed(all);
            }
        }
    }

    /// Returns them one by one.
    pub(crate) fn into_asked(self) -> Changes<Asked> {
        match self {
            Requests::Ready(all) => all.into_iter().map(Asked::Ready).collect(),
            Requests::Mixed(all) => all,
        }
    }

    /// Returns whether they change which objects there are, and so may have to wait for room in their shard.
    pub(crate) fn are_changes(&self) -> bool {
        match self {
            Requests::Ready(all) => all.first().is_some_and(Hashed::is_change),
            Requests::Mixed(all) => all.first().is_some_and(Asked::is_change),
        }
    }
}
