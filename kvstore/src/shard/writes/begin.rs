//! How changes begin: at once, or in line once there is room.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Writes;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::shard::change::{Alteration, Altering, Change, Reserving, Sealing, Waiting};
use crate::shard::parts::Parts;
use crate::shard::request::{Action, Arriving, Condition, Hashed, Request, TouchItem};

impl<R> Writes<R> {
    /// Begins waiting changes in order, as far as there is room, and refuses those that are overdue.
    pub(crate) fn retry<Q: CommandQueue<Load>>(&mut self, parts: &mut Parts<Q, R>, now: Time) {
        while let Some(waiting) = self.waiting.pop_front() {
            if let Some(waiting) = self.begin(parts, now, waiting) {
                self.waiting.push_front(waiting);
                break;
            }
        }
        // It may be the deadline of a change that waits no more.
        if self.until <= now || self.waiting.is_empty() {
            self.refuse_overdue(parts, now);
        }
    }

    /// Refuses all changes that wait for room, because the store is being closed.
    pub(crate) fn refuse_all<Q>(&mut self, parts: &mut Parts<Q, R>) {
        for waiting in self.take_waiting() {
            refuse(parts, waiting.change, &Failure::Closed);
        }
    }

    fn take_waiting(&mut self) -> VecDeque<Waiting<R>> {
        self.until = Time::NEVER;
        std::mem::take(&mut self.waiting)
    }

    /// Lets a change wait behind the others.
    fn wait_for_room(&mut self, waiting: Waiting<R>) {
        self.until = self.until.min(waiting.deadline);
        self.waiting.push_back(waiting);
    }

    /// Refuses overdue changes, wherever they wait.
    fn refuse_overdue<Q>(&mut self, parts: &mut Parts<Q, R>, now: Time) {
        for waiting in self.take_waiting() {
            if waiting.deadline <= now {
                refuse(parts, waiting.change, &Failure::Deadline);
            } else {
                self.wait_for_room(waiting);
            }
        }
    }

    /// Begins the change that comes next, which is no put, reservation or fill, or lets it wait.
    pub(crate) fn change<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        requests: &mut Arriving<R, impl Iterator<Item = Hashed<R>>>,
    ) {
        if let Some(Hashed { hash, request }) = requests.next.take() {
            let Request { reply, deadline, action } = request;
            let alter = |reply, key, how| Change::Alter(Altering { reply, hash, key, how });
            let remove = Alteration::Remove;
            let change = match action {
                Action::Seal(writer) => Change::Seal(Sealing { reply, writer }),
                Action::Delete(key) => alter(reply, key, remove(Condition::Always)),
                Action::DeleteIf(key, version) => {
                    alter(reply, key, remove(Condition::Version(version)))
                }
                Action::Touch(TouchItem { key, ttl_s }) => {
                    alter(reply, key, Alteration::Expire(ttl_s))
                }
                other => unreachable!("another part accepts it: {other:?}"),
            };
            self.enter(parts, now, Waiting { deadline, change });
        }
        requests.advance();
    }

    /// Begins a change, or lets it wait behind others.
    pub(crate) fn enter<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        waiting: Waiting<R>,
    ) {
        if !self.waiting.is_empty() {
            return self.wait_for_room(waiting);
        }
        if let Some(waiting) = self.begin(parts, now, waiting) {
            self.wait_for_room(waiting);
        }
    }

    /// Begins a change. Returns it if it has to wait.
    fn begin<Q: CommandQueue<Load>>(
        &mut self,
        parts: &mut Parts<Q, R>,
        now: Time,
        waiting: Waiting<R>,
    ) -> Option<Waiting<R>> {
        let Waiting { deadline, change } = waiting;
        if deadline <= now {
            refuse(parts, change, &Failure::Deadline);
            return None;
        }
        let waits = match change {
            Change::Put(puts) => self.begin_puts(parts, (now, deadline), puts),
            Change::Reserve(items) => self.begin_reserves(parts, now, items),
            Change::Seal(sealing) => self.begin_seal(parts, now, sealing),
            Change::Alter(altering) => parts.begin_altering(now, altering),
        };
        waits.map(|change| Waiting { deadline, change })
    }
}

/// Answers a change that will not begin.
pub(super) fn refuse<Q, R>(parts: &mut Parts<Q, R>, change: Change<R>, failure: &Failure) {
    match change {
        Change::Put(puts) => {
            for put in puts {
                parts.order.expect_no_more(put.new.hash);
                parts.objects.uncharge((&put.new.key, put.new.hash), &put.new.object);
                parts.boxes.keep(put.new);
                parts.answers.give(put.reply, Err(failure.clone()), put.memory.into_any());
            }
        }
        Change::Reserve(items) => {
            for Reserving { reply, object, key, hash, .. } in items {
                parts.objects.uncharge((&key, hash), &object);
                parts.answers.give(reply, Err(failure.clone()), AnyBuffer::None);
            }
        }
        Change::Seal(Sealing { reply, .. }) | Change::Alter(Altering { reply, .. }) => {
            parts.answers.give(reply, Err(failure.clone()), AnyBuffer::None);
        }
    }
}
