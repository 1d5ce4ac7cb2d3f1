//! One part of the store with a single owner, and its loop.
//!
//! A shard owns some of the keys, a share of every device, and a queue to each. One thread owns the shard: it submits
//! [`Request`]s and calls [`Shard::poll`], which never waits, never reads a clock and does a bounded amount of work.
//! The shard builds on the folders below (`model`, `space`, `catalog`, `policy`, `io`, `media`); it knows nothing of
//! threads, handles or other shards.
//!
//! | file | holds |
//! |---|---|
//! | `request` | requests and their outcomes |
//! | `turn` | the loop: sending commands and handling their completions |
//! | `batch`, `parts` | a request in progress: its items, their memory, where its bytes lie |
//! | `put`, `get`, `writers`, `evicting` | storing, reading, writing in parts, and removing objects |
//! | `unverified`, `digest` | reads that their callers verify, or another process |
//! | `stalled`, `room`, `claim`, `capacity` | changes that wait for room; what goes for them; how many objects there may be |
//! | `key_order` | in which order changes of one key take effect |
//! | `conditions` | what must hold of a key for a change of it; versions; other expiries |
//! | `tenants`, `sweeping` | tenants' quotas; removing all objects of a tenant or a prefix |
//! | `space` | what is free, and what may not be overwritten yet |
//! | `log`, `journaling`, `checkpointing` | records on the media, and when they are durable |
//! | `ahead` | records that are written with their data, and those that are taken back |
//! | `planning` | reads that another executor carries out |
//! | `tier` | hot objects in memory |
//! | `stats` | counters |
//! | `opening`, `renewed` | recovery at opening, with records lost by damage; and of a device that was lost |
//!
//! Invariants:
//!
//! - An object is invisible until its data is written, and its bytes are verified before they are delivered.
//! - Changes of one key take effect in the order in which they were submitted.
//! - An extent is reused only when the record that supersedes its object is durable and no reader is left.
//! - Every item is answered once and gets its memory back.

mod ahead;
mod batch;
mod capacity;
mod checkpointing;
mod claim;
mod conditions;
mod digest;
mod evicting;
mod get;
mod journaling;
mod key_order;
mod log;
mod making;
mod opening;
mod parts;
mod planning;
mod put;
mod renewed;
mod replaced;
mod request;
mod room;
mod space;
mod stalled;
mod stats;
mod sweeping;
mod tenants;
#[cfg(test)]
pub(crate) mod tests;
mod tier;
mod turn;
mod unverified;
mod writers;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, DeviceQueue};

pub use crate::error::{Decline, Failure};
pub use crate::io::lane::{
    LANE_BUFFER_BYTES, LANE_MEMORY_BYTES, LANE_MEMORY_MIN_BYTES, Lane, LaneInfo, Load, Tag,
};
pub use digest::Digest;
pub use opening::Recovery;
pub use planning::{Certainty, Check, Planned, PlannedItem, Verification, Verifier};
pub use request::{
    Action, Condition, Done, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, Request,
    ReserveItem, TouchItem, WriterId,
};
pub(crate) use request::{Arriving, Found, Hashed};
pub use stats::{Evicted, Evictions, Stats};
pub use sweeping::Selection;
pub use tier::{GivenUp, Pinned, Resident};
pub(crate) use tier::{Hot, HotObject};
#[cfg(feature = "internals")]
pub use tier::{HotReader, Stale};
pub use unverified::{Unverified, Verdict};

use self::batch::{Batches, Boxes, NewObject, Reading};
use self::capacity::Capacity;
use self::checkpointing::Checkpoints;
use self::conditions::Touching;
use self::evicting::{Deleting, Unlogged};
use self::journaling::HeldObjects;
use self::key_order::KeyOrder;
use self::log::Log;
use self::making::Making;
use self::space::Spaces;
use self::stalled::{Change, Line, Stalled};
use self::sweeping::{Sweep, Sweeping};
use self::tenants::Shrinking;
use self::tier::Tier;
use self::writers::{Sealing, Writers};
use crate::catalog::expiry::Expiry;
use crate::catalog::index::Index;
pub use crate::catalog::lease::LeaseId;
use crate::catalog::lease::Leases;
use crate::catalog::regions::Regions;
pub use crate::catalog::removals::{Removals, Removed};
use crate::catalog::tenant::Tenants;
pub use crate::catalog::tenant::{Ledger, TenantStats};
pub(crate) use crate::io::figures::DeviceFigures;
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{Hold, LayoutId, Object, ObjectId, TenantId, Version};
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::model::place::{Place, UNIT_BYTES};
use crate::model::plan;
use crate::policy::budget::Budget;
use crate::policy::evict::{OwnOrder, Policy, PolicyMaker};
use crate::policy::order::Order;

/// Options of a shard. The defaults are those of a store.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// The eviction policy.
    pub policy: PolicyKind,
    /// A custom eviction policy, used instead of `policy`.
    pub custom_policy: Option<PolicyMaker>,
    /// Maximum bytes of all objects, padding included; by default the shard's share of the devices.
    pub capacity_bytes: Option<u64>,
    /// Maximum number of objects; by default what the store was formatted for.
    pub capacity_objects: Option<u32>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Bytes per day that objects may write.
    pub write_bytes_per_day: Option<u64>,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// The longest that `restart` leaves written data unflushed. Default 1 s.
    pub flush_interval: Duration,
    /// How long space stays free before it is deallocated on its device. Default 10 s.
    pub discard_after: Duration,
    /// Unix time at the origin of the clock that `now` uses.
    pub wall_at_zero: Duration,
    /// Whether to keep objects that damage to the journal may have made outdated: blocks that cannot be read may have
    /// replaced or deleted them. By default they are dropped, for ever.
    pub keep_outdated: bool,
    /// What tenants use of their quotas; shards of one store have clones of one ledger.
    pub ledger: Ledger,
    /// What goes; shards of one store have clones of one log.
    pub removals: Removals,
    /// Whether reads end unverified, for their callers to verify ([`Unverified`]). By default the shard verifies them.
    pub callers_verify: bool,
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions {
            durability: Durability::default(),
            policy: PolicyKind::default(),
            custom_policy: None,
            capacity_bytes: None,
            capacity_objects: None,
            watermarks: Watermarks::default(),
            write_bytes_per_day: None,
            seal_interval: Duration::from_millis(10),
            flush_interval: Duration::from_secs(1),
            discard_after: Duration::from_secs(10),
            wall_at_zero: Duration::ZERO,
            keep_outdated: false,
            ledger: Ledger::default(),
            removals: Removals::default(),
            callers_verify: false,
        }
    }
}

impl ShardOptions {
    /// Builds an empty policy for objects with ids below `entries`.
    fn build_policy(&self, entries: u32) -> Box<dyn Policy> {
        match &self.custom_policy {
            Some(custom) => custom.build(entries),
            None => self.policy.build(entries),
        }
    }
}

/// Bytes of writes that are sent without waiting for the next turn: the device works on them while the checksums of the
/// next ones are computed.
const SEND_BYTES: u64 = 512 << 10;
/// In a `durable` store, so many writes are sent at once, too.
const SENT_WRITES: u64 = 16;
/// How many ids one call of a scan looks at, because nothing else happens meanwhile.
const SCANNED_IDS: u32 = 16 << 10;
/// Number of keys looked up together.
const LOOKUP_GROUP: usize = 64;
/// Why another layout has no number.
const LAYOUTS_IN_USE: &str = "a store has at most 255 layouts with objects or a user: remove the objects of one, or try again once a checkpoint \
     has ended";
/// A slab of a layout takes at most one `SLAB_PARTS`th of the shard's share of a device.
const SLAB_PARTS: u64 = 16;

/// The result of one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Completions and answers; 0 if nothing happened.
    pub moved: usize,
    /// Commands in flight.
    pub in_flight: usize,
    /// The latest time for the next turn; [`Time::NEVER`] if nothing waits for the clock.
    pub next: Time,
}

/// Information about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its layout.
    pub layout: LayoutId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its version, which says when it was stored.
    pub version: Version,
    /// Seconds until it expires, if it does.
    pub ttl_s: Option<u64>,
    /// The index of its device among the targets.
    pub device: u8,
}

/// A part of the store. `R` is what each request carries and each answer returns.
pub struct Shard<Q, R = u64> {
    /// Index of the device with the journal and the checkpoints.
    home: usize,
    options: ShardOptions,
    /// Limits of one command, valid on every device.
    limits: plan::Limits,
    lanes: Vec<Lane<Q>>,
    index: Index,
    regions: Regions,
    policy: Order,
    expiry: Expiry,
    /// The highest version so far.
    newest: Version,
    tenants: Tenants,
    /// The objects of tenants that evict their own.
    own: OwnOrder,
    shrinking: Shrinking,
    spaces: Spaces,
    leases: Leases,
    budget: Option<Budget>,
    /// Hot objects in memory.
    tier: Tier,
    capacity: Capacity,
    log: Log<R>,
    /// Objects whose records wait for their data to be flushed.
    held: HeldObjects<R>,
    checkpoints: Option<Checkpoints>,
    /// Bytes of the writes that began since commands were last sent.
    unsent_bytes: u64,
    /// Until then, without completions or requests, there is nothing to do.
    rests_until: Time,
    batches: Batches<R>,
    stalled: Line<R>,
    /// Room for the first of them.
    making: Making,
    /// Evictions that this turn may still make.
    evictions_left: u32,
    /// For records, and against fragmentation.
    unlogged: [Unlogged; 2],
    order: KeyOrder<R>,
    sweeps: VecDeque<Sweep<R>>,
    writers: Writers,
    answers: VecDeque<Done<R>>,
    stats: Stats,
    scratch: Scratch,
}

/// Memory that is reused from turn to turn, so that an operation allocates none.
#[derive(Debug, Default)]
struct Scratch {
    parts: Vec<plan::Part>,
    buffers: Vec<Buffer>,
    /// Numbers of items that became whole.
    whole: Vec<usize>,
    readings: Boxes<Reading>,
    news: Boxes<NewObject>,
    /// What a lookup found.
    prefix: Vec<ObjectId>,
}

impl<R> Shard<DeviceQueue<Load>, R> {
    /// Has the queues raise an eventfd whenever a command ends, if their path can.
    ///
    /// # Errors
    /// As [`DeviceQueue::notify`].
    pub(crate) fn notify(&mut self, event: BorrowedFd<'_>) -> adit_driver::Result<()> {
        for lane in &mut self.lanes {
            lane.notifies = lane.queue.notify(event)?;
        }
        Ok(())
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Accepts a request, which [`Shard::poll`] answers. Large writes may be sent at once, all else is sent by the next
    /// poll. The number of requests is unlimited; use [`Shard::waiting`] to bound it.
    pub fn submit(&mut self, now: Time, request: Request<R>) {
        let request = Hashed::new(self.index.hasher(), request);
        self.accept(now, Arriving::one(request), |_, _, _| false);
    }

    /// Accepts requests in order. Neighbours of one kind are planned together.
    pub fn submit_many(&mut self, now: Time, requests: impl IntoIterator<Item = Request<R>>) {
        let hasher = self.index.hasher();
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
            let deadline = *deadline;
            match action {
                Action::Put(_) => self.put(now, deadline, &mut requests),
                Action::Get(_) => self.get(now, deadline, &mut requests, &mut choose),
                Action::Reserve(_) => self.reserve(now, deadline, &mut requests),
                Action::Fill(_) => self.fill(now, deadline, &mut requests),
                Action::Seal(_)
                | Action::Delete(_)
                | Action::DeleteIf(..)
                | Action::Touch(_)
                | Action::DeleteWhere(_)
                | Action::Commit => {
                    requests.next.take().into_iter().for_each(|one| self.accept_one(now, one));
                    requests.advance();
                }
            }
            if self.unsent_bytes >= SEND_BYTES {
                self.send(now);
            }
        }
    }

    fn accept_one(&mut self, now: Time, Hashed { hash, request }: Hashed<R>) {
        let Request { reply, deadline, action } = request;
        let change = match action {
            Action::Seal(writer) => Change::Seal(Sealing { reply, writer }),
            Action::Delete(key) => {
                Change::Delete(Deleting { reply, hash, key, condition: Condition::Always })
            }
            Action::DeleteIf(key, version) => {
                let condition = Condition::Version(version);
                Change::Delete(Deleting { reply, hash, key, condition })
            }
            Action::Touch(TouchItem { key, ttl_s }) => {
                Change::Touch(Touching { reply, hash, key, ttl_s })
            }
            Action::Commit => return self.commit(reply),
            Action::DeleteWhere(selection) => {
                return self.sweep(Sweeping { reply, deadline, selection });
            }
            _ => unreachable!("the other actions are accepted in lists"),
        };
        self.enter(now, Stalled { deadline, change });
    }

    /// Returns whether every command in flight raises the eventfd that [`Shard::notify`] was given once it ends.
    pub(crate) fn notifies(&self) -> bool {
        self.lanes.iter().all(|lane| lane.notifies)
    }

    /// Prepares memory of the caller's for requests, on each device that can use it ([`CommandQueue::register`]).
    pub fn register(&mut self, memory: &Buffer) {
        for lane in self.lanes.iter_mut().filter(|lane| (lane.info.accepts)(memory)) {
            lane.queue.register(memory);
        }
    }

    /// Returns how many requests have not begun yet, as back-pressure for the caller.
    pub fn waiting(&self) -> usize {
        self.stalled.len()
    }

    /// Returns whether the object exists.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        self.lookup(now, self.index.hash(key.as_bytes()), key).is_some()
    }

    /// Returns what the shard knows about an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<Info> {
        let id = self.lookup(now, self.index.hash(key.as_bytes()), key)?;
        Some(self.info_of(now, id))
    }

    /// Returns what the shard knows about the object with this id.
    pub(crate) fn info_of(&self, now: Time, id: ObjectId) -> Info {
        let object = self.index.object(id);
        let left = |at_s: u64| at_s.saturating_sub(self.wall_s(now));
        Info {
            key: self.index.key(id),
            bytes: object.bytes,
            layout: object.layout,
            tenant: object.tenant,
            version: object.version,
            ttl_s: self.expiry.get(id).map(left),
            device: object.place.device,
        }
    }

    /// Returns how many of `keys` exist before the first miss. The policy learns that they are a sequence.
    pub fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize {
        let (mut found, mut prefix) = (Vec::new(), std::mem::take(&mut self.scratch.prefix));
        prefix.clear();
        for group in keys.chunks(LOOKUP_GROUP) {
            found.clear();
            self.index.find_many(group, &mut found);
            let live = |id: &Option<ObjectId>| id.filter(|id| self.is_live(now, *id));
            let before = prefix.len();
            prefix.extend(found.iter().map_while(live));
            if prefix.len() - before < group.len() {
                break;
            }
        }
        self.policy.found(&prefix);
        let count = prefix.len();
        self.scratch.prefix = prefix;
        count
    }

    /// Returns whether an object has not expired and its device works.
    fn is_live(&self, now: Time, id: ObjectId) -> bool {
        let has_time = self.expiry.get(id).is_none_or(|at_s| at_s > self.wall_s(now));
        let device = usize::from(self.index.object(id).place.device);
        has_time && self.lanes[device].failure().is_none()
    }

    /// Returns whether each object exists.
    pub fn exists_many(&self, now: Time, keys: &[Key]) -> Vec<bool> {
        let mut found = Vec::new();
        self.index.find_many(keys, &mut found);
        found.into_iter().map(|id| id.is_some_and(|id| self.is_live(now, id))).collect()
    }

    /// Counts as a use of each object, as a read of it does, and returns whether it exists.
    pub fn refresh_many(&mut self, now: Time, keys: &[Key]) -> Vec<bool> {
        let mut found = Vec::new();
        self.index.find_many(keys, &mut found);
        let live = found.into_iter().map(|id| id.filter(|id| self.is_live(now, *id)));
        let live: Vec<Option<ObjectId>> = live.collect();
        for id in live.iter().flatten() {
            self.policy.touched(*id);
            self.own.used(*id, self.index.object(*id).tenant);
        }
        live.iter().map(Option::is_some).collect()
    }

    /// Returns at most `limit` objects whose keys begin with `prefix` from cursor `from`, and the next cursor while there
    /// may be more. Looks at a bounded number of objects, so the list may be short, or empty, before the end. Start at 0.
    /// Objects that are added or removed during the scan may or may not appear.
    pub fn scan(
        &self,
        now: Time,
        prefix: &[u8],
        from: u32,
        limit: usize,
    ) -> (Vec<Info>, Option<u32>) {
        let mut found = Vec::new();
        let (ids_end, end) = (self.index.ids_end(), from.saturating_add(SCANNED_IDS));
        for id in (from..end.min(ids_end)).map(ObjectId) {
            if found.len() == limit {
                return (found, Some(id.0));
            }
            let is_there = self.index.contains(id) && self.is_live(now, id);
            if is_there && self.index.key_bytes(id).starts_with(prefix) {
                found.push(self.info_of(now, id));
            }
        }
        (found, (end < ids_end).then_some(end))
    }

    /// Keeps the objects of `keys` before the first miss readable until `until`, and returns their number.
    ///
    /// # Errors
    /// [`Failure::Full`] if too many objects are leased.
    pub fn lease(
        &mut self,
        now: Time,
        keys: &[Key],
        until: Time,
    ) -> Result<(LeaseId, usize), Failure> {
        let find = |key: &Key| self.lookup(now, self.index.hash(key.as_bytes()), key);
        let ids: Vec<ObjectId> = keys.iter().map_while(find).collect();
        let objects: Vec<Object> = ids.iter().map(|id| self.index.object(*id)).collect();
        self.policy.found(&ids);
        Ok((self.hold(&objects, until)?, objects.len()))
    }

    /// Returns the bytes of a lease's objects, with their padding; 0 if it has ended.
    pub fn leased_bytes(&self, lease: LeaseId) -> u64 {
        self.leases.bytes(lease)
    }

    /// Protects the data of these objects from being overwritten.
    fn hold(&mut self, objects: &[Object], until: Time) -> Result<LeaseId, Failure> {
        self.wake();
        let places: Vec<Place> = objects.iter().map(|object| object.place).collect();
        let units: u64 = objects.iter().map(|object| self.spaces.units_of(object)).sum();
        let lease = self.leases.lease(&places, units * UNIT_BYTES, until);
        let lease = lease.map_err(|_| Failure::Full)?;
        places.iter().for_each(|place| self.spaces.pin(*place));
        Ok(lease)
    }

    /// Ends a lease. Ignores one that has already expired.
    pub fn release(&mut self, lease: LeaseId) {
        self.wake();
        for place in self.leases.release(lease).into_iter().flatten() {
            self.spaces.unpin(place);
        }
        self.note_unleased();
    }

    /// Returns the id of this layout, defining it if it is new. In a small store its slabs are made smaller;
    /// [`Shard::layout_of`] returns the result. The id stays its own while it has objects or a holder
    /// ([`Shard::hold_layout`]).
    ///
    /// # Errors
    /// [`Failure::Layout`] if there are 255 such layouts already; [`Failure::Device`] if it cannot be written to the journal;
    /// [`Failure::Full`] while the journal has no room, which polling makes.
    pub fn layout(&mut self, now: Time, layout: Layout) -> Result<LayoutId, Failure> {
        let layout = self.in_slabs(layout);
        let known = self.spaces.layouts().iter().position(|known| *known == layout);
        if let Some(at) = known {
            return Ok(LayoutId((at + 1) as u8));
        }
        self.check_definable()?;
        let id = if self.spaces.layouts().len() < usize::from(u8::MAX) {
            self.spaces.define(layout)
        } else {
            let free = self.spaces.free_layout().filter(|_| self.may_replace());
            let id = free.ok_or(Failure::Layout(LAYOUTS_IN_USE))?;
            self.spaces.redefine(id, layout);
            id
        };
        self.log.append(now, &Record::Layout { id, bytes: &layout.encode() });
        Ok(id)
    }

    /// Returns how many layouts have objects or a holder; none if this is one of them.
    pub fn layouts_beside(&self, layout: Layout) -> usize {
        let layout = self.in_slabs(layout);
        let is_used = self.spaces.used_layouts().any(|used| *used == layout);
        if is_used { 0 } else { self.spaces.used_layouts().count() }
    }

    /// Returns a layout as this shard keeps it: with slabs that its space has room for.
    fn in_slabs(&self, layout: Layout) -> Layout {
        layout.with_slabs_up_to(self.spaces.extent_units_max() / SLAB_PARTS)
    }

    /// Keeps a layout's id from being given to another.
    ///
    /// # Panics
    /// If there is no such layout.
    pub fn hold_layout(&self, id: LayoutId) -> Hold {
        self.spaces.hold(id)
    }

    /// Checks that a definition can be written to the journal.
    pub(super) fn check_definable(&mut self) -> Result<(), Failure> {
        self.wake();
        self.check_home()?;
        if self.log.has_room_for_small() {
            return Ok(());
        }
        self.want_journal();
        Err(Failure::Full)
    }

    /// Returns the layout with this id.
    pub fn layout_of(&self, id: LayoutId) -> Option<&Layout> {
        self.spaces.layout(id)
    }

    /// Returns the sequence of the journal below which all blocks were flushed; `None` without a journal.
    pub fn flushed_end(&self) -> Option<u64> {
        self.log.journal().map(|_| self.log.durable_end())
    }

    /// Returns whether there is no work, so that before the next request [`Shard::poll`] is needed only for the
    /// clock.
    pub fn is_idle(&self) -> bool {
        // While the journal's device is out of service, nothing can be written.
        let is_written = self.check_home().is_err()
            || (self.held.is_empty() && self.log.is_idle() && !self.is_checkpointing());
        // A batch in progress has commands in its lanes.
        is_written
            && self.stalled.is_empty()
            && self.sweeps.is_empty()
            && self.answers.is_empty()
            && self.lanes.iter().all(Lane::is_idle)
    }

    /// Returns the lanes to the devices. Nothing more is written: uncommitted data ends up as after a crash.
    pub fn into_lanes(self) -> Vec<Lane<Q>> {
        self.lanes
    }

    /// Returns the counters and the current sizes.
    pub fn stats(&self) -> Stats {
        let (free_runs, largest_free_units) = self.spaces.runs();
        let order = self.policy.memory_bytes() + self.own.memory_bytes();
        let memory = self.index.memory_bytes()
            + order
            + self.regions.memory_bytes()
            + self.tier.memory_bytes();
        Stats {
            objects: u64::from(self.index.len()),
            used_units: self.spaces.used_units() - self.spaces.buried_units(),
            capacity_units: self.spaces.capacity_units(),
            free_runs,
            largest_free_units,
            leased: self.leases.leased() as u64,
            memory_bytes: memory as u64,
            ..self.tier.counted(self.stats)
        }
    }

    /// Returns what each device did for this shard, and how busy it is.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceFigures> + '_ {
        self.lanes.iter().map(Lane::figures)
    }

    /// Returns the Unix time.
    fn wall(&self, now: Time) -> Duration {
        self.options.wall_at_zero + now.since(Time::ZERO)
    }

    /// Returns the Unix time in seconds.
    fn wall_s(&self, now: Time) -> u64 {
        self.wall(now).as_secs()
    }

    /// Returns when the next object expires that can be removed then.
    fn next_expiry(&self, now: Time) -> Time {
        let Some(at_s) = self.expiry.next_s() else { return Time::NEVER };
        if at_s > self.wall_s(now) {
            return Time::ZERO + (Duration::from_secs(at_s) - self.options.wall_at_zero);
        }
        if self.log.has_room_for_small() { now } else { Time::NEVER }
    }

    fn answer(&mut self, reply: R, result: Result<Outcome, Failure>, memory: AnyBuffer) {
        self.answers.push_back(Done { reply, result, memory, version: None, unverified: None });
    }
}
