//! Removing all objects of a tenant or with a prefix: a walk over the index, a bounded part of it in each turn.

use std::collections::VecDeque;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::answer::Outcome;
use super::objects::Objects;
use super::parts::Parts;
use super::request::Selection;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::object::ObjectId;

/// Limit of objects looked at per turn, which bounds a turn.
const OBJECTS_PER_TURN: usize = 1024;

/// A sweep in progress, or one that waits for those before it.
#[derive(Debug)]
struct Sweep<R> {
    reply: R,
    deadline: Time,
    selection: Selection,
    /// The next object to look at.
    next: u32,
    removed: u64,
}

/// The sweeps of a shard, of which the first is in progress.
#[derive(Debug)]
pub(super) struct Sweeps<R>(VecDeque<Sweep<R>>);

impl<R> Default for Sweeps<R> {
    fn default() -> Sweeps<R> {
        Sweeps(VecDeque::new())
    }
}

impl<R> Sweeps<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Accepts a sweep, which later turns carry out.
    pub(super) fn push(&mut self, reply: R, deadline: Time, selection: Selection) {
        self.0.push_back(Sweep { reply, deadline, selection, next: 0, removed: 0 });
    }

    /// Goes on with the first sweep.
    pub(super) fn step<Q: CommandQueue<Load>>(&mut self, parts: &mut Parts<Q, R>, now: Time) {
        let Some(mut sweep) = self.0.pop_front() else { return };
        let is_late = sweep.next == 0 && sweep.deadline <= now;
        let checked = if is_late { Err(Failure::Deadline) } else { parts.lanes.check_home() };
        if let Err(failure) = checked {
            return parts.answers.give(sweep.reply, Err(failure), AnyBuffer::None);
        }
        if sweep.remove_some(parts, now) {
            let swept = (Outcome::Swept { objects: sweep.removed }, parts.log.newest());
            return parts.answer_change(now, sweep.reply, swept);
        }
        self.0.push_front(sweep);
    }
}

impl<R> Sweep<R> {
    /// Removes some of the selected objects. Returns true at the end.
    fn remove_some<Q>(&mut self, parts: &mut Parts<Q, R>, now: Time) -> bool {
        for _ in 0..OBJECTS_PER_TURN {
            let Some(id) = parts.objects.index().next_live(self.next) else { return true };
            if is_selected(&parts.objects, id, &self.selection) {
                if !parts.log.asks_small() {
                    return false;
                }
                parts.objects.delete(&mut parts.log, now, id);
                self.removed += 1;
            }
            self.next = id.0 + 1;
        }
        false
    }
}

fn is_selected(objects: &Objects, id: ObjectId, selection: &Selection) -> bool {
    match selection {
        Selection::Tenant(name) => {
            objects.tenants().name(objects.index().object(id).tenant) == Some(name)
        }
        Selection::Prefix(prefix) => objects.index().key_bytes(id).starts_with(prefix),
    }
}
