//! Changes that need room, in the order in which they came: each begins, waits for room, or is refused.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;
use smallvec::SmallVec;

use super::Shard;
use super::conditions::Touching;
use super::evicting::Deleting;
use super::put::Putting;
use super::writers::{Reserving, Sealing};
use crate::error::Failure;
use crate::io::lane::Load;

/// A change to the shard's objects. It needs room in the journal, and most need more.
#[derive(Debug)]
pub(super) enum Change<R> {
    Put(SmallVec<[Putting<R>; 1]>),
    Reserve(SmallVec<[Reserving<R>; 1]>),
    Seal(Sealing<R>),
    Delete(Deleting<R>),
    Touch(Touching<R>),
}

/// A change that may have to wait for room.
#[derive(Debug)]
pub(super) struct Stalled<R> {
    pub(super) deadline: Time,
    pub(super) change: Change<R>,
}

/// The result of an attempt to begin a change.
pub(super) enum Begun<R> {
    /// It is in progress, or was answered.
    Yes,
    /// It has to wait.
    Later(Change<R>),
}

/// Changes that wait for room, in order.
#[derive(Debug)]
pub(super) struct Line<R> {
    changes: VecDeque<Stalled<R>>,
    /// A lower bound of their deadlines.
    pub(super) until: Time,
}

impl<R> Default for Line<R> {
    fn default() -> Line<R> {
        Line { changes: VecDeque::new(), until: Time::NEVER }
    }
}

impl<R> Line<R> {
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn push(&mut self, stalled: Stalled<R>) {
        self.until = self.until.min(stalled.deadline);
        self.changes.push_back(stalled);
    }

    /// Returns whether deadlines may have passed, or `until` is that of a change that waits no more.
    fn is_overdue(&self, now: Time) -> bool {
        self.until <= now || self.is_empty()
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Begins waiting changes in order, as far as possible.
    pub(super) fn retry_stalled(&mut self, now: Time) {
        while let Some(stalled) = self.stalled.changes.pop_front() {
            if let Some(stalled) = self.begin(now, stalled) {
                self.stalled.changes.push_front(stalled);
                break;
            }
        }
        if self.stalled.is_overdue(now) {
            self.refuse_overdue(now);
        }
    }

    /// Refuses all changes that wait for room, because the store is being closed.
    pub fn refuse_stalled(&mut self) {
        if self.stalled.is_empty() {
            return;
        }
        self.wake();
        for stalled in std::mem::take(&mut self.stalled).changes {
            self.refuse(stalled.change, &Failure::Closed);
        }
    }

    /// Refuses overdue changes, wherever they wait.
    fn refuse_overdue(&mut self, now: Time) {
        for stalled in std::mem::take(&mut self.stalled).changes {
            if stalled.deadline <= now {
                self.refuse(stalled.change, &Failure::Deadline);
            } else {
                self.stalled.push(stalled);
            }
        }
    }

    /// Begins a change, or queues it behind others.
    pub(super) fn enter(&mut self, now: Time, stalled: Stalled<R>) {
        if !self.stalled.is_empty() {
            return self.stalled.push(stalled);
        }
        if let Some(stalled) = self.begin(now, stalled) {
            self.stalled.push(stalled);
        }
    }

    /// Begins a change. Returns it if it has to wait.
    fn begin(&mut self, now: Time, stalled: Stalled<R>) -> Option<Stalled<R>> {
        let Stalled { deadline, change } = stalled;
        if deadline <= now {
            self.refuse(change, &Failure::Deadline);
            return None;
        }
        let begun = match change {
            Change::Put(puts) => self.begin_puts(now, deadline, puts),
            Change::Reserve(items) => self.begin_reserves(now, items),
            Change::Seal(sealing) => self.begin_seal(now, sealing),
            Change::Delete(deleting) => self.begin_delete(now, deleting),
            Change::Touch(touching) => self.begin_touch(now, touching),
        };
        match begun {
            Begun::Yes => None,
            Begun::Later(change) => Some(Stalled { deadline, change }),
        }
    }

    /// Answers a change that will not begin.
    pub(super) fn refuse(&mut self, change: Change<R>, failure: &Failure) {
        match change {
            Change::Put(puts) => {
                puts.into_iter().for_each(|put| self.fail_put(put, failure.clone()));
            }
            Change::Reserve(items) => {
                for Reserving { reply, object, key, hash, .. } in items {
                    self.uncharge((&key, hash), &object);
                    self.answer(reply, Err(failure.clone()), AnyBuffer::None);
                }
            }
            Change::Seal(Sealing { reply, .. })
            | Change::Delete(Deleting { reply, .. })
            | Change::Touch(Touching { reply, .. }) => {
                self.answer(reply, Err(failure.clone()), AnyBuffer::None);
            }
        }
    }
}
