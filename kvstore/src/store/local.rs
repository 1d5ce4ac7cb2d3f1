//! All shards of a store on the caller's own thread: no mailbox, no other thread, no lock.
//!
//! The calls are those of a [`Shard`], for any number of shards. A commit and the removal of many objects
//! concern all of them and are answered by the last. Each shard numbers writers, tenants and layouts by itself: an
//! external writer id carries its shard in the high bits, and external tenant and layout ids are mapped by table.

use std::mem;
use std::time::Duration;

use adit_driver::sys::HostMemory;
use adit_driver::{Buffer, Device, Time};

use super::answer::{ObjectInfo, ScanCursor, ShardTransfers, Transfers, merged};
use super::core::{ShardItems, deal};
use super::devices::{
    self, DeviceShard, Devices, FoundStore, OpenOptions, keep_ages_within, tier_share,
};
use super::request::Identity;
use super::tier::{TierSize, make_way};
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::{Key, KeyHasher};
use crate::model::layout::Layout;
use crate::model::object::{Hold, LayoutId, TenantId};
use crate::model::options::Quota;
use crate::shard::{
    Action, Arriving, Done, Failure, FillItem, Hashed, LeaseId, Outcome, Part, PutItem, Recovery,
    Request, ReserveItem, Shard, Stats, TenantStats, Turn, WriterId,
};

/// Bits of a writer's number within its shard.
const WRITER_BITS: u32 = 48;
/// Limit for tenants and for layouts, including the default one.
const NAMES_MAX: usize = 256;

/// A store that the calling thread drives. Call [`Local::poll`] repeatedly while there is work.
///
/// To the store, dropping this is a crash. [`Local::close`] first makes acknowledged data durable.
pub struct Local {
    shards: Vec<DeviceShard<LocalReply>>,
    tenants: Names<TenantId>,
    layouts: Names<LayoutId>,
    /// Keep ids of tenants and layouts in use as long as the handle exists.
    holds: Vec<Hold>,
    joints: Vec<Joint>,
    joints_made: u64,
    /// Requests for each shard; kept to reuse the memory.
    lists: Vec<Vec<Hashed<LocalReply>>>,
    devices: Devices,
    set: Set,
    recoveries: Vec<Recovery>,
    /// Options for new lanes, and timeouts.
    options: OpenOptions,
    /// Identifies its leases.
    identity: Identity,
}

/// The reply that a request to a shard carries.
enum LocalReply {
    /// The reply of the caller's request.
    Request(u64),
    /// One shard's part of joint request `number`.
    Part { number: u64 },
}

/// A request to all shards in progress: a commit, or the removal of many objects.
struct Joint {
    number: u64,
    reply: u64,
    /// Shards that have not answered.
    left: usize,
    /// Objects that the others have removed.
    objects: u64,
    failure: Option<Failure>,
}

/// Maps external ids to per-shard ids. Entry 0 is the default id.
struct Names<T>(Vec<Vec<T>>);

impl<T: Copy + Default + PartialEq> Names<T> {
    fn new(shards: u16) -> Names<T> {
        Names(vec![vec![T::default(); usize::from(shards)]])
    }

    /// Returns the external id for these per-shard ids, or `None` if the table is full. With one shard it is the
    /// shard's own.
    fn name(&mut self, ids: Vec<T>, external: fn(u8) -> T) -> Option<T> {
        if let [only] = ids.as_slice() {
            return Some(*only);
        }
        let known = self.0.iter().position(|known| *known == ids);
        let number = known.unwrap_or(self.0.len());
        if number < NAMES_MAX && known.is_none() {
            self.0.push(ids);
        }
        u8::try_from(number).ok().map(external)
    }

    fn in_shard(&self, shard: u16, number: u8) -> Option<T> {
        self.0.get(usize::from(number)).map(|ids| ids[usize::from(shard)])
    }
}

/// A lease of objects across shards.
#[derive(Debug)]
#[must_use = "the objects are leased until it is released or its time is over"]
pub struct LocalLease {
    parts: Vec<(u16, LeaseId)>,
    store: Identity,
}

impl Local {
    pub(crate) fn open(options: &OpenOptions) -> Result<Local> {
        let found = FoundStore::look(options)?;
        let (mut shards, mut recoveries) = (Vec::new(), Vec::new());
        for number in 0..found.set.shards() {
            let (shard, recovery) = found.open(number, &[], false)?;
            shards.push(shard);
            recoveries.push(recovery);
        }
        let FoundStore { devices, set, .. } = found;
        let (tenants, layouts) = (Names::new(set.shards()), Names::new(set.shards()));
        let mut local = Local {
            shards,
            tenants,
            layouts,
            holds: Vec::new(),
            joints: Vec::new(),
            joints_made: 0,
            lists: Vec::new(),
            devices,
            set,
            recoveries,
            options: options.clone(),
            identity: Identity::default(),
        };
        if options.tier_bytes > 0 {
            local.set_tier(options.tier_bytes)?;
        }
        Ok(local)
    }

    /// Returns the current time on the store's clock, which all calls use.
    pub fn now(&self) -> Time {
        self.devices.now()
    }

    /// Returns what the store was formatted as.
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// Returns the store's devices, in the order of the targets.
    pub fn devices(&self) -> &[Device] {
        self.devices.as_slice()
    }

    /// Returns what each shard found when it was opened.
    pub fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// Allocates memory of at least `len` bytes, usable for objects on the first device and on every device reached
    /// through the kernel.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.allocate_on(0, len)
    }

    /// Allocates memory of at least `len` bytes, usable for objects on one device. Other devices can use it if
    /// [`Device::accepts`] says so.
    ///
    /// # Errors
    /// As [`Device::allocate`]; [`Error::Invalid`] if there is no such device.
    pub fn allocate_on(&self, device: u8, len: usize) -> Result<Buffer> {
        let devices = self.devices.as_slice();
        let found = devices.get(usize::from(device)).ok_or_else(|| {
            Error::invalid("device", device, format!("the store has {} devices", devices.len()))
        })?;
        Ok(found.allocate(len)?)
    }

    /// Registers memory of the caller's for requests, as [`super::Store::register`] does. Requests of a [`Local`] need
    /// whole units that the object's device can use.
    ///
    /// # Errors
    /// As [`Device::register`].
    pub fn register(&mut self, memory: HostMemory) -> Result<Buffer> {
        let buffer = self.devices()[0].register(memory)?;
        self.shards.iter_mut().for_each(|shard| shard.register(&buffer));
        Ok(buffer)
    }

    /// Gives the memory tier `bytes` of registered memory, or takes it away, as [`super::Store::set_tier`] does:
    /// fewer if it grows and memory has no room for them now. Gets of a [`Local`] read into the caller's memory, so
    /// that a hit in the tier copies.
    ///
    /// A [`Local`] has no thread that follows memory. If memory may become short, call this from time to time, with
    /// the tier's present bytes and what [`crate::memory::budget`] leaves beside them, less a headroom.
    ///
    /// # Errors
    /// As [`Device::allocate`], with less memory in the tier than there is room for.
    pub fn set_tier(&mut self, bytes: u64) -> Result<u64> {
        let (shards, mut size) = (self.set.shards(), TierSize::default());
        size.limit(bytes, shards);
        let share = tier_share(bytes, shards);
        let Local { shards, devices, .. } = self;
        let left = shards.iter_mut().map(|shard| make_way(shard, share).0).collect();
        size.lend(&devices.as_slice()[0], (left, share), &|| true, |number, memory| {
            shards[usize::from(number)].lend_to_tier(memory);
            Ok(())
        })
    }

    /// Accepts a request, which [`Local::poll`] answers. The number of requests is unlimited; use [`Local::waiting`]
    /// to bound it.
    ///
    /// The calls of [`super::Store`] map to requests as follows:
    ///
    /// | call | request |
    /// |---|---|
    /// | `put_blocks` | [`Action::Put`] of each, together, with [`Local::layout`] in the options, and `after` in the first's |
    /// | `get_layer` | [`Action::Get`] of [`Part::Layer`] of each, together |
    /// | `reserve_blocks` | [`Action::Reserve`] with the layout; each answer has a [`WriterId`] |
    /// | `BlocksWriter::put_layer` | [`Action::Fill`] of [`Part::Layer`] of each writer, together |
    /// | `BlocksWriter::commit` | [`Action::Seal`] of each; [`Local::abandon`] gives one up |
    /// | `delete_if`; `touch`, `persist` | [`Action::DeleteIf`]; [`Action::Touch`] |
    /// | `reader` | [`Action::Get`] of one [`Part::Bytes`] after another, with [`ObjectInfo::piece_bytes`] and a version |
    /// | `put_from` | [`Action::Reserve`], [`Action::Fill`] of one part after another, [`Action::Seal`] |
    /// | `get_range_if`, `get_into_if` | [`Action::Get`] with a version |
    ///
    /// [`Local::submit_many`] takes requests together.
    pub fn submit(&mut self, now: Time, request: Request) {
        match &request.action {
            Action::Commit => self.submit_to_all(now, request, || Action::Commit),
            Action::DeleteWhere(selection) => {
                let selection = selection.clone();
                self.submit_to_all(now, request, || Action::DeleteWhere(selection.clone()));
            }
            _ => {
                let (shard, request) = self.routed(request);
                let shard = &mut self.shards[usize::from(shard)];
                shard.accept(now, Arriving::one(request), |_, _, _| false);
            }
        }
    }

    fn submit_to_all(&mut self, now: Time, request: Request, action: impl Fn() -> Action) {
        let Request { reply, deadline, .. } = request;
        self.joints_made += 1;
        let (number, left) = (self.joints_made, self.shards.len());
        self.joints.push(Joint { number, reply, left, objects: 0, failure: None });
        for shard in &mut self.shards {
            let reply = LocalReply::Part { number };
            shard.submit(now, Request { reply, deadline, action: action() });
        }
    }

    /// Accepts requests that are planned together in each shard. Requests to all shards come last.
    pub fn submit_many(&mut self, now: Time, requests: impl IntoIterator<Item = Request>) {
        let (mut lists, mut joints) = (mem::take(&mut self.lists), Vec::new());
        lists.resize_with(self.shards.len(), Vec::new);
        for request in requests {
            if matches!(request.action, Action::Commit | Action::DeleteWhere(_)) {
                joints.push(request);
                continue;
            }
            let (shard, request) = self.routed(request);
            lists[usize::from(shard)].push(request);
        }
        for (shard, list) in self.shards.iter_mut().zip(&mut lists) {
            shard.accept(now, Arriving::all(list.drain(..)), |_, _, _| false);
        }
        self.lists = lists;
        joints.into_iter().for_each(|joint| self.submit(now, joint));
    }

    /// Translates a request for the shard that it concerns.
    fn routed(&self, request: Request) -> (u16, Hashed<LocalReply>) {
        let Request { reply, deadline, mut action } = request;
        let hash = action.key().map_or(0, |key| self.set.hasher().hash(key.as_bytes()));
        let shard = match &mut action {
            Action::Fill(FillItem { writer, .. }) | Action::Seal(writer) => {
                let (shard, number) = self.writer(*writer);
                *writer = number;
                shard
            }
            _ => KeyHasher::shard(hash, self.set.shards()),
        };
        if let Action::Put(PutItem { options, .. }) | Action::Reserve(ReserveItem { options, .. }) =
            &mut action
            && self.shards.len() > 1
        {
            let tenant = self.tenants.in_shard(shard, options.tenant.0);
            let layout = self.layouts.in_shard(shard, options.layout.0);
            options.undefined = match (tenant, layout) {
                (None, _) => Some("tenant"),
                (_, None) => Some("layout"),
                (Some(_), Some(_)) => None,
            };
            (options.tenant, options.layout) =
                (tenant.unwrap_or_default(), layout.unwrap_or_default());
        }
        let request = Request { reply: LocalReply::Request(reply), deadline, action };
        (shard, Hashed { hash, request })
    }

    fn writer(&self, writer: WriterId) -> (u16, WriterId) {
        let shard = (writer.0 >> WRITER_BITS) as u16;
        // An id that no shard issued goes to shard 0, which reports it as unknown.
        let shard = if shard < self.set.shards() { shard } else { 0 };
        (shard, WriterId(writer.0 & ((1 << WRITER_BITS) - 1)))
    }

    /// Does the pending work without waiting, and passes each answer to `done`.
    pub fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> Turn {
        let Local { shards, joints, .. } = self;
        let mut all = Turn { moved: 0, in_flight: 0, next: Time::NEVER };
        for (shard, number) in shards.iter_mut().zip(0..) {
            let turn = shard.poll(now, &mut |answer| join(joints, number, answer, done));
            all.moved += turn.moved;
            all.in_flight += turn.in_flight;
            all.next = all.next.min(turn.next);
        }
        all
    }

    /// Waits in the kernel until a command of the store's ends, `at_most` at the longest, so that a caller whose last
    /// [`Local::poll`] moved nothing leaves its core to others. Returns false at once where that cannot be waited
    /// for, and polling has to go on: without commands in flight, with some in several queues, and on a controller of
    /// the driver's.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        let mut busy = self.shards.iter_mut().filter(|shard| shard.lanes().in_flight() > 0);
        let (Some(shard), None) = (busy.next(), busy.next()) else { return false };
        shard.wait(at_most)
    }

    /// Returns how many requests have not begun yet, as back-pressure for the caller.
    pub fn waiting(&self) -> usize {
        self.shards.iter().map(Shard::waiting).sum()
    }

    /// Returns whether there is no work, so that [`Local::poll`] need not be called before the next request.
    pub fn is_idle(&self) -> bool {
        self.shards.iter().all(Shard::is_idle)
    }

    /// Returns whether the object exists.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        let (shard, hash) = self.shard(key);
        shard.lookup(now, hash, key).is_some()
    }

    /// Returns what the store knows about an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<ObjectInfo> {
        let (shard, hash) = self.shard(key);
        let id = shard.lookup(now, hash, key)?;
        Some(ObjectInfo::of(shard, shard.info_of(now, id)))
    }

    /// Returns how many of `keys` exist before the first miss. The policy counts a use of each, and learns that they
    /// are a sequence.
    pub fn lookup_prefix(&mut self, now: Time, keys: &[Key]) -> usize {
        if let [only] = self.shards.as_mut_slice() {
            return only.lookup_prefix(now, keys);
        }
        let shares = deal(keys, self.set.shards(), |key| self.set.route(key));
        let misses = shares.iter().map(|(number, share)| {
            let count = self.shards[usize::from(*number)].lookup_prefix(now, &share.items);
            share.first_miss(count, keys.len())
        });
        misses.min().unwrap_or(0)
    }

    /// Returns whether each object exists.
    pub fn exists_many(&self, now: Time, keys: &[Key]) -> Vec<bool> {
        let mut all = vec![false; keys.len()];
        for (number, share) in deal(keys, self.set.shards(), |key| self.set.route(key)) {
            let found = self.shards[usize::from(number)].exists_many(now, &share.items);
            for (position, is_there) in share.positions.into_iter().zip(found) {
                all[position as usize] = is_there;
            }
        }
        all
    }

    /// Returns at most `limit` objects whose keys begin with `prefix` from cursor `from`, and the next cursor while
    /// there are more, as [`super::Store::scan_prefix`] does; all objects if the prefix is empty.
    pub fn scan(
        &self,
        now: Time,
        prefix: &[u8],
        from: u64,
        limit: usize,
    ) -> (Vec<ObjectInfo>, Option<u64>) {
        let Some(cursor) = ScanCursor::of(from, self.set.shards()) else {
            return (Vec::new(), None);
        };
        cursor.scan(&self.shards[usize::from(cursor.shard)], now, prefix, limit)
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
    ) -> Result<(LocalLease, usize), Failure> {
        let prefix = self.lookup_prefix(now, keys);
        let leased = self.lease_shares(
            &keys[..prefix],
            |key| key,
            |shard, share| Ok(((), shard.lease(now, &share.items, until)?.0)),
        );
        leased.map(|(_, lease)| (lease, prefix))
    }

    /// Plans reads of these parts for another executor, and holds the objects until `until` or until
    /// [`Local::release`] of the plan's lease.
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] if too many objects are leased.
    pub fn plan(
        &mut self,
        now: Time,
        asked: &[(Key, Part)],
        until: Time,
    ) -> Result<Transfers<LocalLease>, Failure> {
        let planned = self.lease_shares(
            asked,
            |item| &item.0,
            |shard, share| {
                let planned = shard.plan(now, &share.items, until)?;
                Ok(ShardTransfers::new(share.positions, planned))
            },
        );
        planned.map(|(parts, lease)| Transfers { parts, lease })
    }

    /// Leases objects in each shard that has some of a list. If one fails, the leases of the others end.
    fn lease_shares<K: Clone, P>(
        &mut self,
        list: &[K],
        key: impl Fn(&K) -> &Key,
        mut lease: impl FnMut(
            &mut DeviceShard<LocalReply>,
            ShardItems<K>,
        ) -> Result<(P, LeaseId), Failure>,
    ) -> Result<(Vec<P>, LocalLease), Failure> {
        let mut parts = Vec::new();
        let mut leases = LocalLease { parts: Vec::new(), store: self.identity.clone() };
        for (number, share) in deal(list, self.set.shards(), |item| self.set.route(key(item))) {
            match lease(&mut self.shards[usize::from(number)], share) {
                Ok((part, id)) => {
                    parts.push(part);
                    leases.parts.push((number, id));
                }
                Err(failure) => {
                    self.end(leases);
                    return Err(failure);
                }
            }
        }
        Ok((parts, leases))
    }

    /// Ends a lease. Ignores one that has already expired.
    ///
    /// # Errors
    /// The lease, if it is another store's.
    pub fn release(&mut self, lease: LocalLease) -> Result<(), LocalLease> {
        if lease.store != self.identity {
            return Err(lease);
        }
        self.end(lease);
        Ok(())
    }

    fn end(&mut self, lease: LocalLease) {
        for (shard, id) in lease.parts {
            self.shards[usize::from(shard)].release(id);
        }
    }

    /// Gives up a writer's object and its room.
    pub fn abandon(&mut self, writer: WriterId) {
        let (shard, writer) = self.writer(writer);
        self.shards[usize::from(shard)].abandon(writer);
    }

    /// Returns the tenant of this name, creating it without a quota if it is new.
    ///
    /// # Errors
    /// As [`Shard::tenant`].
    pub fn tenant(&mut self, now: Time, name: &str) -> Result<TenantId, Failure> {
        let ids =
            self.define(|shard| shard.tenant(now, name), |shard, id| shard.tenants().hold(id))?;
        let many = "a handle knows at most 255 tenants: open the store anew";
        self.tenants.name(ids, TenantId).ok_or_else(|| Failure::Tenant(many.into()))
    }

    /// Defines something in each shard. The ids stay with the handle.
    fn define<T: Copy>(
        &mut self,
        define: impl FnMut(&mut DeviceShard<LocalReply>) -> Result<T, Failure>,
        hold: impl Fn(&DeviceShard<LocalReply>, T) -> Hold,
    ) -> Result<Vec<T>, Failure> {
        let ids = self.shards.iter_mut().map(define).collect::<Result<Vec<T>, _>>()?;
        for (shard, id) in self.shards.iter().zip(&ids) {
            let hold = hold(shard, *id);
            if !self.holds.contains(&hold) {
                self.holds.push(hold);
            }
        }
        Ok(ids)
    }

    /// Sets a tenant's quota, or lifts it; as [`super::Store::set_quota`].
    ///
    /// # Errors
    /// [`Failure::Undefined`] if there is no such tenant; [`Failure::Tenant`] for the default one;
    /// [`Failure::Device`] if it cannot be written to the journal.
    pub fn set_quota(
        &mut self,
        now: Time,
        tenant: TenantId,
        quota: Option<Quota>,
    ) -> Result<(), Failure> {
        let is_only = self.shards.len() == 1;
        let id = if is_only { Some(tenant) } else { self.tenants.in_shard(0, tenant.0) };
        self.shards[0].set_quota(now, id.ok_or(Failure::Undefined("tenant"))?, quota)
    }

    /// Returns what each tenant has and did, in the order of their names; the default tenant comes first.
    pub fn tenants(&self) -> Vec<TenantStats> {
        merged(self.shards.iter().flat_map(|shard| shard.tenants().stats()))
    }

    /// Returns the id of this layout, defining it if it is new.
    ///
    /// # Errors
    /// [`Failure::Layout`] if there are 255 already; [`Failure::Device`] if it cannot be written to the journal.
    pub fn layout(&mut self, now: Time, layout: &Layout) -> Result<LayoutId, Failure> {
        let ids =
            self.define(|shard| shard.layout(now, *layout), |shard, id| shard.layouts().hold(id))?;
        let many = "a handle knows at most 255 layouts: open the store anew";
        self.layouts.name(ids, LayoutId).ok_or_else(|| Failure::Layout(many.into()))
    }

    /// Returns the counters, summed over the shards.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.shards.iter().for_each(|shard| sum += shard.stats());
        sum
    }

    /// Brings a failed device back, and with it its objects, which were misses meanwhile. Recovers its controller,
    /// checks that the device still holds this store, and reattaches it to each shard. Other failed devices stay as
    /// they are. Waits for the device; [`Local::poll`] then resumes the work kept for it.
    ///
    /// # Errors
    /// As [`adit_driver::Controller::recover`]; [`Error::Media`] if a different device answers; [`Error::Invalid`] if
    /// there is no such device, or it works, or some of its commands have not ended: poll, then call this again.
    pub fn recover(&mut self, device: u8) -> Result<()> {
        let Local { shards, devices, set, options, .. } = self;
        devices.recover(device, options, set)?;
        let mut any = false;
        for shard in shards.iter_mut().filter(|shard| shard.has_failed(device)) {
            drop(shard.attach(device, devices.lane(device, options)?)?);
            any = true;
        }
        devices::any_attached(device, any)
    }

    /// Finishes the requests already begun, makes acknowledged data durable and closes the devices. Passes the
    /// answers of requests still in progress to `done`.
    ///
    /// # Errors
    /// [`Error::Failed`] if a device could not make data durable; [`Error::Timeout`] if it took longer than the
    /// store's timeout.
    pub fn close(mut self, done: &mut dyn FnMut(Done)) -> Result<()> {
        const COMMIT: u64 = u64::MAX;
        let (begun, deadline) = (self.now(), self.now() + self.options.timeout);
        self.submit(begun, Request { reply: COMMIT, deadline, action: Action::Commit });
        self.shards
            .iter_mut()
            .for_each(|shard| shard.keep_ages(begun, keep_ages_within(self.options.timeout)));
        let mut committed = None;
        loop {
            let now = self.now();
            let turn = self.poll(now, &mut |answer| match answer.result {
                Ok(Outcome::Committed) if answer.reply == COMMIT => committed = Some(Ok(())),
                Err(ref failure) if answer.reply == COMMIT => {
                    committed = Some(Err(failure.clone()))
                }
                _ => done(answer),
            });
            if let Some(result) = committed.take_if(|_| self.is_idle()) {
                result?;
                self.record_stop();
                return Ok(());
            }
            if now >= deadline {
                let waited_for = "requests to end and a commit before the store closes";
                let fix = "see the log for what the devices say";
                return Err(Error::Timeout { waited_for, after: self.options.timeout, fix });
            }
            if turn.moved == 0 {
                let idle = self.options.idle.unwrap_or_default();
                std::thread::sleep(idle.sleep_max.min(Duration::from_micros(50)));
            }
        }
    }

    /// Releases the shards' queues, and records on the media how much of their journals was flushed.
    fn record_stop(self) {
        let Local { shards, devices, set, options, .. } = self;
        let ends: Option<Vec<u64>> = shards.iter().map(Shard::flushed_end).collect();
        drop(shards);
        ends.into_iter().for_each(|ends| devices.record_stop(&options, &set, &ends));
    }

    /// Returns the shard that owns a key, and the key's hash.
    fn shard(&self, key: &Key) -> (&DeviceShard<LocalReply>, u64) {
        let hash = self.set.hasher().hash(key.as_bytes());
        (&self.shards[usize::from(KeyHasher::shard(hash, self.set.shards()))], hash)
    }
}

/// Passes the answer of shard `shard` to `done` as an answer to the caller's request.
fn join(joints: &mut Vec<Joint>, shard: u16, answer: Done<LocalReply>, done: &mut dyn FnMut(Done)) {
    let Done { reply, result, memory, version, unverified } = answer;
    match reply {
        LocalReply::Request(reply) => {
            let result = result.map(|outcome| known_outcome(shard, outcome));
            done(Done { reply, result, memory, version, unverified });
        }
        LocalReply::Part { number } => {
            let at = joints.iter().position(|joint| joint.number == number);
            let at = at.expect("a joint request is in progress until its last part is answered");
            let joint = &mut joints[at];
            joint.left -= 1;
            let outcome = match result {
                Ok(Outcome::Swept { objects }) => {
                    joint.objects += objects;
                    Outcome::Swept { objects: joint.objects }
                }
                Ok(other) => other,
                Err(failure) => {
                    joint.failure.get_or_insert(failure);
                    Outcome::Miss
                }
            };
            if joint.left == 0 {
                let Joint { reply, failure, .. } = joints.swap_remove(at);
                let result = failure.map_or(Ok(outcome), Err);
                done(Done { reply, result, memory, version, unverified });
            }
        }
    }
}

fn known_outcome(shard: u16, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Reserved { writer: WriterId(number), device } => {
            assert!(number < 1 << WRITER_BITS, "a writer's number has 48 bits");
            let writer = WriterId(u64::from(shard) << WRITER_BITS | number);
            Outcome::Reserved { writer, device }
        }
        other => other,
    }
}
