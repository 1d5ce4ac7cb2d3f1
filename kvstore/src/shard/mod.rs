//! One part of the store with a single owner, and its loop.
//!
//! A shard owns some of the keys, a share of every device, and a queue to each. One thread owns the shard: it submits
//! [`Request`]s and calls [`Shard::poll`], which never waits, never reads a clock and does a bounded amount of work.
//! The shard builds on the folders below (`model`, `space`, `catalog`, `policy`, `io`, `media`); it knows nothing of
//! threads, handles or other shards.
//!
//! [`Shard`] owns parts. Each part owns its state, which others reach by methods only; a part uses those before it in
//! this table, which it gets as arguments:
//!
//! | part | owns |
//! |---|---|
//! | `lanes` | the lanes to the devices: which are in service, which has the journal, what waits to be sent |
//! | `log` | the journal: room for records, sealing, flushes, durable records |
//! | `objects` | every table of objects: index, order of eviction, expiry, tenants, space, leases, and the `tier` |
//! | `room` | how many objects there may be; evictions for a change, and the space that it claimed |
//! | `batch`, `answer` | requests in progress whose commands were planned together; answers that the end of the turn gives |
//! | `effects` | in which order changes of one key take effect, and what waits to become durable |
//! | `writes` | changes that wait for room, writers of objects in parts, the write budget |
//! | `reads` | reads in progress, and how they are verified |
//! | `sweeps` | removals of all objects of a tenant or a prefix |
//! | `checkpoints` | the checkpoint in progress, and when the next is due |
//!
//! Those down to `effects` are in `Parts` (`parts`), because every request works on them: its methods are the steps that need
//! several. Beside the parts:
//!
//! | file | holds |
//! |---|---|
//! | `request`, `answer`, `options`, `stats` | requests, answers, options, counters |
//! | `turn` | the loop: sending commands and handling their completions |
//! | `lookup` | calls that are answered at once |
//! | `change`, `extract`, `memory` | a change on its way; where the bytes of a part lie; the memory of a request |
//! | `opening` | recovery at opening, with records lost by damage; and of a device that was lost |
//!
//! Invariants:
//!
//! - An object is invisible until its data is written, and its bytes are verified before they are delivered.
//! - Changes of one key take effect in the order in which they were submitted.
//! - An extent is reused only when the record that supersedes its object is durable and no reader is left.
//! - Every item is answered once and gets its memory back.

mod answer;
mod batch;
mod change;
mod checkpoints;
mod effects;
mod extract;
mod lanes;
mod log;
mod lookup;
mod memory;
mod objects;
mod opening;
mod options;
mod parts;
mod reads;
mod request;
mod room;
mod stats;
mod sweeps;
#[cfg(test)]
pub(crate) mod tests;
mod tier;
mod turn;
mod writes;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::Buffer;
use adit_driver::paths::{CommandQueue, DeviceQueue};

pub use self::answer::{Done, Outcome};
pub use self::lookup::Info;
pub use self::objects::layouts::Layouts;
pub use self::opening::Recovery;
pub use self::options::ShardOptions;
pub use self::reads::digest::Digest;
pub use self::reads::plan::{Certainty, Check, Planned, PlannedItem, Verification, Verifier};
pub use self::reads::unverified::{Unverified, Verdict};
pub use self::request::{
    Action, Condition, FillItem, GetItem, Part, PutItem, PutOptions, Request, ReserveItem,
    Selection, TouchItem, WriterId,
};
pub(crate) use self::request::{Arriving, Found, Hashed};
pub use self::stats::{Evicted, Evictions, Stats};
pub use self::tier::{GivenUp, Pinned, Resident, Tier};
pub(crate) use self::tier::{Hot, HotObject};
#[cfg(feature = "internals")]
pub use self::tier::{HotReader, Stale};
pub use self::turn::Turn;
pub use crate::catalog::lease::LeaseId;
pub use crate::catalog::removals::{Removals, Removed};
pub use crate::catalog::tenant::{Ledger, TenantStats, Tenants};
pub use crate::error::{Decline, Failure};
pub(crate) use crate::io::figures::DeviceFigures;
pub use crate::io::lane::{
    LANE_BUFFER_BYTES, LANE_MEMORY_BYTES, LANE_MEMORY_MIN_BYTES, Lane, LaneInfo, Load, Tag,
};

use self::checkpoints::Checkpoints;
use self::lanes::Lanes;
use self::parts::Parts;
use self::reads::Reads;
use self::sweeps::Sweeps;
use self::writes::Writes;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, TenantId};
use crate::model::options::Quota;
use crate::model::place::UNIT_BYTES;

/// A part of the store. `R` is what each request carries and each answer returns.
pub struct Shard<Q, R = u64> {
    parts: Parts<Q, R>,
    writes: Writes<R>,
    reads: Reads,
    sweeps: Sweeps<R>,
    /// None without a journal.
    checkpoints: Option<Checkpoints>,
    /// Until then, without completions or requests, there is nothing to do.
    rests_until: Time,
}

impl<R> Shard<DeviceQueue<Load>, R> {
    /// Has the queues raise an eventfd whenever a command ends, if their path can.
    ///
    /// # Errors
    /// As [`DeviceQueue::notify`].
    pub(crate) fn notify(&mut self, event: BorrowedFd<'_>) -> adit_driver::Result<()> {
        self.parts.lanes.notify(event)
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Accepts a request, which [`Shard::poll`] answers. Large writes may be sent at once, all else is sent by the next
    /// poll. The number of requests is unlimited; use [`Shard::waiting`] to bound it.
    pub fn submit(&mut self, now: Time, request: Request<R>) {
        let request = Hashed::new(self.parts.objects.index().hasher(), request);
        self.accept(now, Arriving::one(request), |_, _, _| false);
    }

    /// Accepts requests in order. Neighbours of one kind are planned together.
    pub fn submit_many(&mut self, now: Time, requests: impl IntoIterator<Item = Request<R>>) {
        let hasher = self.parts.objects.index().hasher();
        let requests = requests.into_iter().map(|request| Hashed::new(hasher, request));
        self.accept(now, Arriving::all(requests), |_, _, _| false);
    }

    /// Like [`Shard::submit_many`]. Each get whose object is found passes through `choose`, which may choose the part
    /// and the memory, or take the request away. If the object is in memory, `choose` gets its bytes, too, and returns
    /// whether it shares them; otherwise they are copied to the request's memory.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        mut requests: Arriving<R, impl Iterator<Item = Hashed<R>>>,
        mut choose: impl FnMut(&mut Option<Hashed<R>>, Found, Option<&Resident>) -> bool,
    ) {
        self.wake();
        // Objects in use do not go for new ones.
        self.note_hits();
        while let Some(Hashed { request: Request { deadline, action, .. }, .. }) = &requests.next {
            let times = (now, *deadline);
            let Shard { parts, writes, reads, sweeps, .. } = &mut *self;
            match action {
                Action::Put(_) => writes.put(parts, times, &mut requests),
                Action::Get(_) => reads.get(parts, times, &mut requests, &mut choose),
                Action::Reserve(_) => writes.reserve(parts, times, &mut requests),
                Action::Fill(_) => writes.fill(parts, times, &mut requests),
                Action::Commit | Action::DeleteWhere(_) => {
                    if let Some(Hashed { request: Request { reply, deadline, action }, .. }) =
                        requests.next.take()
                    {
                        match action {
                            Action::DeleteWhere(selection) => {
                                sweeps.push(reply, deadline, selection);
                            }
                            _ => parts.commit(reply),
                        }
                    }
                    requests.advance();
                }
                Action::Seal(_) | Action::Delete(_) | Action::DeleteIf(..) | Action::Touch(_) => {
                    writes.change(parts, now, &mut requests);
                }
            }
            parts.lanes.send_if_much(now);
        }
    }

    /// Returns the lanes to the devices.
    pub(crate) fn lanes(&self) -> &Lanes<Q> {
        &self.parts.lanes
    }

    /// Prepares memory of the caller's for requests, on each device that can use it ([`CommandQueue::register`]).
    pub fn register(&mut self, memory: &Buffer) {
        self.parts.lanes.register(memory);
    }

    /// Returns how many requests have not begun yet, as back-pressure for the caller.
    pub fn waiting(&self) -> usize {
        self.writes.waiting()
    }

    /// Refuses all changes that wait for room, because the store is being closed.
    pub fn refuse_stalled(&mut self) {
        if self.waiting() > 0 {
            self.wake();
            self.writes.refuse_all(&mut self.parts);
        }
    }

    /// Gives up a writer's object and its room. Ignores an unknown writer.
    pub fn abandon(&mut self, writer: WriterId) {
        self.wake();
        self.writes.abandon(&mut self.parts, writer);
    }

    /// Counts a read that its caller has verified. Drops the object if its bytes are not what was put.
    pub fn judge(&mut self, now: Time, verdict: Verdict) {
        self.reads.judge(&mut self.parts, now, verdict);
    }

    /// Counts the reads that other threads answered from memory, and notes that their objects are in use.
    pub(crate) fn note_hits(&mut self) {
        self.reads.note_hits(&mut self.parts);
    }

    /// Begins a last checkpoint, because the store is being closed, if objects were used since the last one. It is
    /// abandoned when it takes longer than `within`, with a warning, and so is one in progress.
    pub fn keep_ages(&mut self, now: Time, within: Duration) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.keep_ages(&self.parts.objects, now, within);
            self.wake();
        }
    }

    /// Returns the id of this layout, defining it if it is new. In a small store its slabs are made smaller;
    /// [`Layouts::get`] returns the result. The id stays its own while it has objects or a holder ([`Layouts::hold`]).
    ///
    /// # Errors
    /// [`Failure::Layout`] if there are 255 such layouts already; [`Failure::Device`] if it cannot be written to the
    /// journal; [`Failure::Full`] while the journal has no room, which polling makes.
    pub fn layout(&mut self, now: Time, layout: Layout) -> Result<LayoutId, Failure> {
        let layout = self.layouts().fitted(layout);
        if let Some(id) = self.layouts().find(&layout) {
            return Ok(id);
        }
        self.wake();
        let may_replace = !self.is_checkpointing();
        self.parts.define_layout(now, layout, may_replace)
    }

    /// Returns the layouts that have a number.
    pub fn layouts(&self) -> &Layouts {
        self.parts.objects.layouts()
    }

    /// Returns the tenant of this name, creating it without a quota if it is new. Its number stays its own while it has
    /// objects, a quota or a holder ([`Tenants::hold`]).
    ///
    /// # Errors
    /// [`Failure::Tenant`] if there are 255 such tenants already, or the name is longer than 64 bytes;
    /// [`Failure::Device`] if it cannot be written to the journal; [`Failure::Full`] while the journal has no room,
    /// which polling makes.
    pub fn tenant(&mut self, now: Time, name: &str) -> Result<TenantId, Failure> {
        if let Some(id) = self.tenants().find(name) {
            return Ok(id);
        }
        self.wake();
        let may_replace = !self.is_checkpointing();
        self.parts.define_tenant(now, name, may_replace)
    }

    /// Sets a tenant's quota in all shards that share the ledger, or lifts it. Call it on shard 0: the quotas in its
    /// journal are those that come back.
    ///
    /// # Errors
    /// [`Failure::Undefined`] if there is no such tenant; [`Failure::Tenant`] for the default one;
    /// [`Failure::Device`] and [`Failure::Full`] as [`Shard::tenant`].
    pub fn set_quota(
        &mut self,
        now: Time,
        id: TenantId,
        quota: Option<Quota>,
    ) -> Result<(), Failure> {
        self.wake();
        self.parts.set_quota(now, id, quota)
    }

    /// Returns the tenants: their names, their quotas, and what they have in this shard.
    pub fn tenants(&self) -> &Tenants {
        self.parts.objects.tenants()
    }

    /// Returns whether a checkpoint is being taken, or about to be. It must not have objects of two tenants or layouts
    /// of one number.
    fn is_checkpointing(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| !checkpoints.is_idle())
    }

    /// Lends memory to the memory tier, which keeps hot objects there: memory of any device, in whole units. Each
    /// buffer goes back as a whole, and an object lies in one of them. Without any, the tier is off.
    ///
    /// # Panics
    /// If a buffer is no whole units.
    pub fn lend_to_tier(&mut self, memory: impl IntoIterator<Item = Buffer>) {
        let whole = memory.into_iter().inspect(|memory| {
            let is_whole = (memory.len() as u64).is_multiple_of(UNIT_BYTES);
            assert!(is_whole, "{} bytes are no whole units", memory.len());
        });
        self.parts.objects.tier_mut().lend(whole);
    }

    /// Takes memory from the memory tier, with the objects in it, until `bytes` at most are left. Returns how many
    /// bytes those are, and what it took, which is freed by dropping it: memory goes as it was lent, the last first.
    /// Memory whose bytes readers hold is freed when they drop them.
    pub fn shrink_tier(&mut self, bytes: u64) -> (u64, GivenUp) {
        self.parts.objects.tier_mut().shrink(bytes)
    }

    /// Returns the table of objects in memory, for any thread.
    pub(crate) fn hot(&self) -> &Arc<Hot> {
        self.parts.objects.tier().hot()
    }

    /// Returns the memory tier, for tests and simulations.
    #[cfg(any(test, feature = "internals"))]
    pub fn tier_mut(&mut self) -> &mut Tier {
        self.parts.objects.tier_mut()
    }

    /// Returns a reader of the objects in memory, for any thread.
    #[cfg(feature = "internals")]
    pub fn hot_reader(&self) -> HotReader {
        HotReader::new(self.hot(), self.parts.objects.index().hasher())
    }

    /// Returns the sequence of the journal below which all blocks were flushed; `None` without a journal.
    pub fn flushed_end(&self) -> Option<u64> {
        let log = &self.parts.log;
        log.journal().map(|_| log.durable_end())
    }

    /// Returns whether there is no work, so that before the next request [`Shard::poll`] is needed only for the
    /// clock.
    pub fn is_idle(&self) -> bool {
        let Parts { lanes, log, answers, .. } = &self.parts;
        // While the journal's device is out of service, nothing can be written.
        let is_written = lanes.is_home_lost()
            || (self.parts.has_settled_all() && log.is_idle() && !self.is_checkpointing());
        // A batch in progress has commands in its lanes.
        is_written
            && self.writes.waiting() == 0
            && self.sweeps.is_empty()
            && answers.is_empty()
            && lanes.is_idle()
    }

    /// Returns the lanes to the devices. Nothing more is written: uncommitted data ends up as after a crash.
    pub fn into_lanes(self) -> Vec<Lane<Q>> {
        self.parts.lanes.into_all()
    }

    /// Returns the counters and the current sizes.
    pub fn stats(&self) -> Stats {
        let Parts { lanes, objects, log, room, .. } = &self.parts;
        let checkpoints = self.checkpoints.as_ref().map(Checkpoints::stats);
        let requests = [self.writes.stats(), self.reads.stats()];
        let tables = [objects.stats(), objects.tier().stats()];
        let parts = [lanes.stats(), log.stats(), room.stats()];
        let mut all = Stats::default();
        requests
            .into_iter()
            .chain(tables)
            .chain(parts)
            .chain(checkpoints)
            .for_each(|stats| all += stats);
        all
    }

    /// Makes the next turn look at everything, after a request or a release.
    fn wake(&mut self) {
        self.rests_until = Time::ZERO;
    }
}
