//! Removing all objects of a tenant or with a prefix: a walk over the index, a bounded part of it in each turn.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::request::Outcome;
use crate::error::Failure;
use crate::io::lane::Load;
use crate::model::object::ObjectId;

/// Limit of objects looked at per turn, which bounds a turn.
const OBJECTS_PER_TURN: usize = 1024;

/// Objects that are removed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those of the tenant of this name; the empty name is the default tenant.
    Tenant(Box<str>),
    /// Those whose keys begin with these bytes; all of them if there are none.
    Prefix(Box<[u8]>),
}

/// A request for a sweep.
#[derive(Debug)]
pub(super) struct Sweeping<R> {
    pub(super) reply: R,
    pub(super) deadline: Time,
    pub(super) selection: Selection,
}

/// A sweep in progress, or one that waits for those before it.
#[derive(Debug)]
pub(super) struct Sweep<R> {
    asked: Sweeping<R>,
    /// The next object to look at.
    next: u32,
    removed: u64,
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Accepts a sweep, which later turns carry out.
    pub(super) fn sweep(&mut self, asked: Sweeping<R>) {
        self.sweeps.push_back(Sweep { asked, next: 0, removed: 0 });
    }

    /// Goes on with the first sweep.
    pub(super) fn sweep_step(&mut self, now: Time) {
        let Some(mut sweep) = self.sweeps.pop_front() else { return };
        let is_late = sweep.next == 0 && sweep.asked.deadline <= now;
        let checked = if is_late { Err(Failure::Deadline) } else { self.check_home() };
        if let Err(failure) = checked {
            return self.answer(sweep.asked.reply, Err(failure), AnyBuffer::None);
        }
        if self.sweep_some(now, &mut sweep) {
            let swept = Outcome::Swept { objects: sweep.removed };
            return self.answer_change(now, sweep.asked.reply, swept, self.log.newest());
        }
        self.sweeps.push_front(sweep);
    }

    /// Removes some of the selected objects. Returns true at the end.
    fn sweep_some(&mut self, now: Time, sweep: &mut Sweep<R>) -> bool {
        for _ in 0..OBJECTS_PER_TURN {
            let Some(id) = self.index.next_live(sweep.next) else { return true };
            if self.is_selected(id, &sweep.asked.selection) {
                if !self.log.has_room_for_small() {
                    self.want_journal();
                    return false;
                }
                self.remove(now, id);
                self.stats.deletes += 1;
                sweep.removed += 1;
            }
            sweep.next = id.0 + 1;
        }
        false
    }

    fn is_selected(&self, id: ObjectId, selection: &Selection) -> bool {
        match selection {
            Selection::Tenant(name) => {
                self.tenants.name(self.index.object(id).tenant) == Some(name)
            }
            Selection::Prefix(prefix) => self.index.key_bytes(id).starts_with(prefix),
        }
    }
}
