//! One owner of a part of the store, and its loop.
//!
//! A shard has some of the keys, a share of every device, and a queue to each. One thread owns it: it hands in
//! [`Request`]s and calls [`Shard::poll`], which never waits, never reads a clock and does a bounded amount of work.

//!
//! | file | noun |
//! |---|---|
//! | `request` | what is asked and answered |
//! | `lane` | the way to one device |
//! | `batch`, `memory`, `parts` | a request under way: its items, their memory, where its bytes lie |
//! | `put`, `get`, `writers`, `evicting` | objects that come, are read, are written in parts, and go |
//! | `space` | what is free, and what may not be overwritten yet |
//! | `held` | objects whose records wait for their data to be durable |
//! | `log`, `journaling`, `checkpointing` | what is told to the media, and when it is durable |
//! | `planning` | transfers for somebody else to carry out |
//! | `opening`, `attaching` | how it comes back, and a device that was lost |
//!
//! Invariants: nobody sees an object before its data are written, nor its bytes before they were checked; an extent is
//! used again only when the record that supersedes its object is durable and nobody reads it; every item is answered
//! once and gets its memory back.

mod attaching;
mod batch;
mod checkpointing;
mod evicting;
mod get;
mod held;
mod journaling;

mod log;
mod memory;
mod opening;
mod parts;
mod planning;
mod put;
mod request;
mod space;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
mod turn;
mod writers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_driver::Time;
use adit_driver::device::CommandQueue;
use adit_driver::memory::{AnyBuffer, Buffer};
use smallvec::SmallVec;

pub use crate::error::{Decline, Failure};
pub use crate::io::lane::{
    LANE_BUFFER_BYTES, LANE_MEMORY_BYTES, LANE_MEMORY_MIN_BYTES, Lane, LaneInfo, Load, Tag,
};
pub use opening::Recovery;
pub use planning::{Certainty, Planned, PlannedItem, Verification};
pub use request::{
    Action, Done, FillItem, GetItem, Outcome, Part, PutItem, PutOptions, Request, ReserveItem,
    WriterId,
};
pub use stats::Stats;

use self::batch::{Batches, Boxes, NewObject, Reading};
use self::checkpointing::Checkpoints;
use self::held::HeldObjects;
use self::log::{Answer, Log};
use self::put::Putting;
use self::space::Spaces;
use self::writers::{Reserving, Sealing, Writer};
use crate::catalog::expiry::Expiry;
use crate::catalog::index::Index;
pub use crate::catalog::lease::LeaseId;
use crate::catalog::lease::Leases;
use crate::catalog::tenant::{Tenant, Tenants};
use crate::io::lane::Finished;
use crate::media::record::Record;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, ObjectId, TenantId};
use crate::model::options::{Durability, PolicyKind, Watermarks};
use crate::model::place::{Place, UNIT_BYTES};
use crate::model::plan;
use crate::policy::admission::Admission;
use crate::policy::budget::Budget;
use crate::policy::evict::{Policy, PolicyMaker};

/// How a shard works. The defaults are a store's.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// What goes first.
    pub policy: PolicyKind,
    /// A policy of the user's own, in place of `policy`.
    pub custom_policy: Option<PolicyMaker>,
    /// Whether objects are only taken that are asked for again, where measurement says that this helps.
    pub adaptive_admission: bool,
    /// Most bytes that objects take, padding included; the shard's share of the devices where not given.
    pub capacity_bytes: Option<u64>,
    /// Most objects; what the store was formatted for where not given.
    pub capacity_objects: Option<u32>,
    /// When eviction begins and ends.
    pub watermarks: Watermarks,
    /// Bytes a day that objects may write.
    pub write_bytes_per_day: Option<u64>,
    /// How long a record may wait for others before its block is written. Default 10 ms.
    pub seal_interval: Duration,
    /// How long `restart` leaves what was written unflushed at most. Default 1 s.
    pub flush_interval: Duration,
    /// How long space must have been free before its device is told that it holds nothing of value. Default 10 s.
    pub discard_after: Duration,
    /// Unix time in seconds when the clock of `now` stood at zero.
    pub wall_s_at_zero: u64,
    /// Keys the hash of the index, so that nobody can choose keys that collide.
    pub hash_key: [u64; 2],
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions {
            durability: Durability::default(),
            policy: PolicyKind::default(),
            custom_policy: None,
            adaptive_admission: false,
            capacity_bytes: None,
            capacity_objects: None,
            watermarks: Watermarks::default(),
            write_bytes_per_day: None,
            seal_interval: Duration::from_millis(10),
            flush_interval: Duration::from_secs(1),
            discard_after: Duration::from_secs(10),
            wall_s_at_zero: 0,
            hash_key: [0; 2],
        }
    }
}

impl ShardOptions {
    /// An empty policy for objects with ids below `entries`.
    fn build_policy(&self, entries: u32) -> Box<dyn Policy> {
        match &self.custom_policy {
            Some(custom) => custom.build(entries),
            None => self.policy.build(entries),
        }
    }
}

/// Keys that are looked up together.
const LOOKUP_GROUP: usize = 64;
/// A slab of a layout is at most one part in so many of the shard's share of a device.
const SLAB_PARTS: u64 = 16;

/// What a turn of the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Completions and answers; 0 where nothing happened.
    pub moved: usize,
    /// Commands in flight.
    pub in_flight: usize,
    /// When there is something to do by the clock at the latest; [`Time::NEVER`] where nothing waits for it.
    pub next: Time,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// How it lies.
    pub layout: LayoutId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Seconds that it has left, if it expires.
    pub ttl_s: Option<u64>,
    /// The device it is on, by its position among the targets.
    pub device: u8,
}

/// A part of the store.
pub struct Shard<Q> {
    /// The device with the journal and the checkpoints.
    home: usize,
    options: ShardOptions,
    /// What one command may be, on any of the devices.
    limits: plan::Limits,
    lanes: Vec<Lane<Q>>,
    index: Index,
    policy: Box<dyn Policy>,
    expiry: Expiry,
    tenants: Tenants,
    spaces: Spaces,
    leases: Leases,
    admission: Option<Admission>,
    budget: Option<Budget>,
    objects_max: u32,
    /// Live units above which is evicted.
    live_units_max: u64,
    /// Bytes of the records of all objects, which a checkpoint has to hold.
    record_bytes: u64,
    record_bytes_max: u64,
    log: Log,
    /// Objects whose records wait for their data to be flushed.
    held: HeldObjects,
    checkpoints: Option<Checkpoints>,
    wants_checkpoint: bool,
    /// While no command ends and nobody asks for anything, there is nothing to do before.
    rests_until: Time,
    batches: Batches,
    /// What waits for room, in order.
    stalled: VecDeque<Stalled>,
    /// No deadline of theirs is before it.
    stalled_until: Time,
    coming: Coming,
    writers: BTreeMap<WriterId, Writer>,
    writers_made: u64,
    answers: VecDeque<Done>,
    stats: Stats,
    /// Units that a device is being told to forget.
    discarding_units: u64,
    parts: Vec<plan::Part>,
    buffers: Vec<Buffer>,
    complete: Vec<usize>,
    finished: Vec<Finished>,
    readings: Boxes<Reading>,
    news: Boxes<NewObject>,
}

/// Objects that are on their way into the index: their data are being written, or their records are not durable. There
/// is an entry for each.
#[derive(Clone, Copy, Debug, Default)]
struct Coming {
    puts: u64,
    /// Bytes of their records in a checkpoint.
    record_bytes: u64,
}

impl Coming {
    fn add(&mut self, new: &NewObject) {
        self.puts += 1;
        self.record_bytes += new.record_bytes();
    }

    fn remove(&mut self, new: &NewObject) {
        self.puts -= 1;
        self.record_bytes -= new.record_bytes();
    }
}

/// Something that may have to wait for room.
#[derive(Debug)]
struct Stalled {
    tag: u64,
    deadline: Time,
    work: Work,
}

/// What it is.
#[derive(Debug)]
enum Work {
    Put(SmallVec<[Putting; 1]>),
    Reserve(Vec<Reserving>),
    Seal(Sealing),
    Delete(Key),
}

impl<Q: CommandQueue<Load>> Shard<Q> {
    /// Takes a request; it is answered by [`Shard::poll`]. There is no limit but the caller's: see
    /// [`Shard::waiting`].
    pub fn submit(&mut self, now: Time, request: Request) {
        self.wake();
        let Request { tag, deadline, action } = request;
        match action {
            Action::Put(item) => self.put(now, tag, deadline, std::iter::once(item)),
            Action::PutMany(items) => self.put(now, tag, deadline, items.into_iter()),
            Action::Get(item) => self.get(now, tag, deadline, std::iter::once(item)),
            Action::GetMany(items) => self.get(now, tag, deadline, items.into_iter()),
            Action::Reserve(items) => self.reserve(now, tag, deadline, items),
            Action::Fill(items) => self.fill(now, tag, deadline, items),
            Action::Seal(writer) => {
                self.enter(now, Stalled { tag, deadline, work: Work::Seal(Sealing { writer }) });
            }
            Action::Delete(key) => {
                self.enter(now, Stalled { tag, deadline, work: Work::Delete(key) })
            }
            Action::Commit => self.commit(tag),
        }
    }

    /// Requests that were not begun yet: back-pressure for whoever hands them in.
    pub fn waiting(&self) -> usize {
        self.stalled.len()
    }

    /// Whether there is such an object.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        self.lookup(now, self.index.hash(key.as_bytes()), key).is_some()
    }

    /// What is known of an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<Info> {
        let id = self.lookup(now, self.index.hash(key.as_bytes()), key)?;
        Some(self.info_of(now, id))
    }

    fn info_of(&self, now: Time, id: ObjectId) -> Info {
        let object = self.index.object(id);
        let left = |at_s: u64| at_s.saturating_sub(self.wall_s(now));
        Info {
            key: self.index.key(id),
            bytes: object.bytes,
            layout: object.layout,
            tenant: object.tenant,
            ttl_s: self.expiry.get(id).map(left),
            device: object.place.device,
        }
    }

    /// How many of `keys` there are before the first that is missing.
    pub fn lookup_prefix(&self, now: Time, keys: &[Key]) -> usize {
        let (mut found, mut prefix) = (Vec::new(), 0);
        for group in keys.chunks(LOOKUP_GROUP) {
            found.clear();
            self.index.find_many(group, &mut found);
            let is_live = |id: &Option<ObjectId>| id.is_some_and(|id| self.is_live(now, id));
            let live = found.iter().take_while(|id| is_live(id)).count();
            prefix += live;
            if live < group.len() {
                break;
            }
        }
        prefix
    }

    /// Whether an object has not expired and its device works.
    fn is_live(&self, now: Time, id: ObjectId) -> bool {
        let has_time = self.expiry.get(id).is_none_or(|at_s| at_s > self.wall_s(now));
        let device = usize::from(self.index.object(id).place.device);
        has_time && self.lanes[device].failure().is_none()
    }

    /// At most `limit` objects from a cursor on, and the next cursor while there are more. Starts at 0. Objects that
    /// come or go meanwhile are seen or not.
    pub fn scan(&self, now: Time, from: u32, limit: usize) -> (Vec<Info>, Option<u32>) {
        let (mut found, mut next) = (Vec::new(), from);
        while let Some(id) = self.index.next_live(next) {
            if found.len() == limit {
                return (found, Some(id.0));
            }
            next = id.0 + 1;
            if self.is_live(now, id) {
                found.push(self.info_of(now, id));
            }
        }
        (found, None)
    }

    /// Keeps the objects of `keys` before the first that is missing readable until `until`, and says how many they
    /// are.
    ///
    /// # Errors
    /// [`Failure::Full`] when too many objects are leased.
    pub fn lease(
        &mut self,
        now: Time,
        keys: &[Key],
        until: Time,
    ) -> Result<(LeaseId, usize), Failure> {
        let find = |key: &Key| self.lookup(now, self.index.hash(key.as_bytes()), key);
        let ids = keys.iter().map_while(find);
        let places: Vec<_> = ids.map(|id| self.index.object(id).place).collect();
        Ok((self.hold(&places, until)?, places.len()))
    }

    /// Keeps what lies at these places where it is.
    fn hold(&mut self, places: &[Place], until: Time) -> Result<LeaseId, Failure> {
        self.wake();
        let lease = self.leases.lease(places, until).map_err(|_| Failure::Full)?;
        places.iter().for_each(|place| self.spaces.pin(*place));
        Ok(lease)
    }

    /// Ends a lease. One that is over already is ignored.
    pub fn release(&mut self, lease: LeaseId) {
        self.wake();
        for place in self.leases.release(lease).into_iter().flatten() {
            self.spaces.unpin(place);
        }
    }

    /// The tenant of this name, made if it is new; its quota is set where one is given.
    ///
    /// # Errors
    /// [`Failure::Undefined`] when there are 255 already, or the name is empty or longer than 64 bytes;
    /// [`Failure::Device`] when it cannot be told to the journal; [`Failure::Full`] while the journal has no room, which
    /// polling makes.
    pub fn tenant(
        &mut self,
        now: Time,
        name: &str,
        quota_bytes: Option<u64>,
    ) -> Result<TenantId, Failure> {
        let quota_units = quota_bytes.map(|bytes| bytes / UNIT_BYTES);
        let known = self.tenants.find(name);
        let is_as_told = |id: &TenantId| {
            let has = self.tenants.get(*id).and_then(|tenant| tenant.quota_units);
            quota_units.is_none() || has == quota_units
        };
        if let Some(id) = known.filter(is_as_told) {
            return Ok(id);
        }
        self.check_definable()?;
        let id = match known {
            Some(id) => {
                self.tenants.set_quota(id, quota_units);
                id
            }
            None => {
                let added = self.tenants.add(name, quota_units);
                added.map_err(|_| Failure::Undefined("tenant"))?
            }
        };
        self.log.append(now, &Record::Tenant { id, name, quota_units });
        Ok(id)
    }

    /// The number of this layout, which is defined if it is new. Its slabs are made smaller where the store is small:
    /// see [`Shard::layout_of`].
    ///
    /// # Errors
    /// [`Failure::Undefined`] when there are 255 already; [`Failure::Device`] when it cannot be told to the journal;
    /// [`Failure::Full`] while the journal has no room, which polling makes.
    pub fn layout(&mut self, now: Time, layout: Layout) -> Result<LayoutId, Failure> {
        let layout = layout.with_slabs_up_to(self.spaces.extent_units_max() / SLAB_PARTS);
        let known = self.spaces.layouts().iter().position(|known| *known == layout);
        if let Some(at) = known {
            return Ok(LayoutId((at + 1) as u8));
        }
        self.check_definable()?;
        if self.spaces.layouts().len() == usize::from(u8::MAX) {
            return Err(Failure::Undefined("layout"));
        }
        let id = self.spaces.define(layout);
        self.log.append(now, &Record::Layout { id, bytes: &layout.encode() });
        Ok(id)
    }

    /// Whether a definition can be told to the journal.
    fn check_definable(&mut self) -> Result<(), Failure> {
        self.wake();
        self.check_home()?;
        if self.log.has_room_for_small() {
            return Ok(());
        }
        self.want_journal();
        Err(Failure::Full)
    }

    /// The layout of this number.
    pub fn layout_of(&self, id: LayoutId) -> Option<&Layout> {
        self.spaces.layout(id)
    }

    /// The tenant of this number.
    pub fn tenant_of(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(id)
    }

    /// Whether nothing is going on, so that without another request [`Shard::poll`] need not be called but for the
    /// clock's sake.
    pub fn is_idle(&self) -> bool {
        // Nothing is written while the journal's device is out of service.
        let is_written = self.check_home().is_err()
            || (self.held.is_empty() && self.log.is_idle() && !self.is_checkpointing());
        is_written
            && self.batches.open_count() == 0
            && self.stalled.is_empty()
            && self.answers.is_empty()
            && self.lanes.iter().all(Lane::is_idle)
    }

    /// Gives the ways to the devices back. Nothing is written any more: what was not committed is as after a crash.
    pub fn into_lanes(self) -> Vec<Lane<Q>> {
        self.lanes
    }

    /// What it counted, and how large things are now.
    pub fn stats(&self) -> Stats {
        let (free_runs, largest_free_units) = self.spaces.runs();
        let memory = self.index.memory_bytes() + self.policy.memory_bytes();
        Stats {
            objects: u64::from(self.index.len()),
            used_units: self.spaces.used_units() - self.spaces.buried_units(),
            capacity_units: self.spaces.capacity_units(),
            free_runs,
            largest_free_units,
            leased: self.leases.leased() as u64,
            memory_bytes: memory as u64,
            ..self.stats
        }
    }

    /// Unix time in seconds.
    fn wall_s(&self, now: Time) -> u64 {
        self.options.wall_s_at_zero + now.since(Time::ZERO).as_secs()
    }

    /// When the next object expires that can be removed then.
    fn next_expiry(&self, now: Time) -> Time {
        let Some(at_s) = self.expiry.next_s() else { return Time::NEVER };
        if at_s > self.wall_s(now) {
            return Time::ZERO + Duration::from_secs(at_s - self.options.wall_s_at_zero);
        }
        if self.log.has_room_for_small() { now } else { Time::NEVER }
    }

    fn answer(&mut self, tag: u64, item: u32, result: Result<Outcome, Failure>, memory: AnyBuffer) {
        self.answers.push_back(Done { tag, item, result, memory });
    }

    fn give(&mut self, answer: Answer) {
        let Answer { tag, item, result, memory } = answer;
        self.answer(tag, item, result, memory);
    }
}
