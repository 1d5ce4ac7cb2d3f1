//! The handle of a store, for any thread.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Refusal;
use adit_driver::{Buffer, Device};

use super::batch::Batch;
use super::change::ChangeStore;
use super::core::{Core, Registered};
use super::devices;
use super::gather::Gather;
use super::lease::{Lease, ShardLease};
use super::lent::Bounced;
use super::local::Local;
use super::open::{FormatStore, Formatted, OpenOptions};
use super::payload::{DefinedLayout, Identity, Payload, PutWith, RefuseReason, Refused, Tenant};
use super::pending::{Answer, Pending, Reply, pair, ready};
use super::plans::{ShardTransfers, Transfers};
use super::pool::PoolBuffer;
use super::prometheus::{self, Sample, Sampled};
use super::request::{Caller, ThreadShard, Waiter, Work};
use super::route;
use super::threads::{self, Threads};
use super::value::{ObjectInfo, Put, Read, Value, merged};
use super::writer::{Reserving, Writer};
use crate::error::{Error, Result};
use crate::media::change::Changed;
use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::Version;
use crate::model::options::Quota;
use crate::shard::{
    Action, Failure, GetItem, Hashed, Part, PutItem, PutOptions, Recovery, Request, ReserveItem,
    Selection, Stats, TenantStats,
};

/// How long to wait at least for the end of a sweep.
const SWEEP_PATIENCE: Duration = Duration::from_secs(600);

/// A handle to a store, usable from any thread. Clones refer to the same store.
///
/// No call that takes keys or data waits: a request begins at once, or waits in the store for memory or for room until
/// its [`Pending`] is dropped or its deadline passes, which counts from the call. `docs/operate/kv.md` says how servers
/// use that. [`Store::try_put`] and [`Store::try_get`] refuse a request that would wait. The calls that block the thread
/// are [`Store::format`], [`Store::open`], [`Store::open_local`] and [`Store::recover`], which wait for devices, and those
/// named `wait`.
///
/// Dropping the last handle closes the store without waiting for it. A process that is about to end awaits
/// [`Store::close`]: otherwise the store's end is that of a crash.
#[derive(Clone)]
pub struct Store {
    pub(super) core: Arc<Core>,
    pub(super) threads: Arc<Threads>,
}

impl Store {
    /// Formats the devices as a store, and waits for them. Their previous contents are lost. Returns what the store has
    /// room for.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Invalid`] for an invalid option; [`Error::Media`] if a device holds data that
    /// may not be overwritten, or is too small.
    pub fn format(options: &FormatStore) -> Result<Formatted> {
        options.run()
    }

    /// Changes the devices of a store that is not open: adds some, removes one, or takes in what they have grown by.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Invalid`] for an invalid option; [`Error::Media`] if the devices hold no store, if
    /// a new one holds data that may not be overwritten, or if objects or metadata have no room on the other devices.
    pub fn change(options: &ChangeStore) -> Result<Changed> {
        options.run()
    }

    /// Opens a store and starts its threads. Waits for the devices, and while a store of this process that was on them
    /// is being closed.
    ///
    /// # Errors
    /// As [`Device::open`], which refuses a device that another process or handle has open; [`Error::Invalid`] for an
    /// invalid option; [`Error::Media`] if the devices hold no store, or one that cannot be opened.
    pub fn open(options: &OpenOptions) -> Result<Store> {
        let (core, threads) = threads::start(options)?;
        let store = Store { core, threads };
        if options.tier_bytes > 0 {
            store.set_tier(options.tier_bytes)?;
        }
        Ok(store)
    }

    /// Opens a store for the calling thread to drive. Waits for the devices.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_local(options: &OpenOptions) -> Result<Local> {
        Local::open(options)
    }

    /// Stores an object, replacing one with the same key.
    ///
    /// Plain bytes are copied to registered memory before this returns. If there is none, they are kept on the heap (a
    /// vector is taken as it is, a slice is copied) until it is their turn, so that this never waits. A server that
    /// wants to bound what it takes in fills a [`Store::buffer`] instead, which comes when there is memory.
    pub fn put<'a>(&self, key: Key, data: impl Into<Payload<'a>>) -> Pending<Put> {
        self.put_with(key, data, &PutWith::default())
    }

    /// Like [`Store::put`], with options.
    pub fn put_with<'a>(
        &self,
        key: Key,
        data: impl Into<Payload<'a>>,
        with: &PutWith,
    ) -> Pending<Put> {
        let registered = match self.core.register(data.into(), None) {
            Ok(registered) => registered,
            Err(unfinished) => return self.core.failed(unfinished),
        };
        let hash = self.core.hash(&key);
        let (request, pending) = self.put_request(hash, key, registered, with);
        self.core.send(request);
        pending
    }

    /// Stores an object if that can begin without waiting.
    ///
    /// # Errors
    /// The request, with the reason for the refusal.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub fn try_put<'a>(
        &self,
        key: Key,
        data: impl Into<Payload<'a>>,
        with: &PutWith,
    ) -> Result<Pending<Put>, Refused<'a>> {
        let data = data.into();
        let hash = self.core.hash(&key);
        let mailbox = self.core.mailbox(self.core.shard(hash));
        // Check before copying. If another thread takes the room meanwhile, `try_send` below returns the memory.
        if mailbox.is_busy_for_changes() {
            return Err(Refused { key, data, why: RefuseReason::Busy });
        }
        let registered = match self.core.try_register(data, None) {
            Ok(registered) => registered,
            Err((data, None)) => return Err(Refused { key, data, why: RefuseReason::Busy }),
            Err((data, Some(why))) => {
                return Err(Refused { key, data, why: RefuseReason::Never(why) });
            }
        };
        let (request, pending) = self.put_request(hash, key, registered, with);
        match self.core.try_send(request) {
            Ok(()) => Ok(pending),
            Err((work, why)) => Err(refused_put(work, why)),
        }
    }

    /// Stores several objects, planned together: the objects of one shard are placed next to each other where there
    /// is room. Takes all items at once; plain bytes beyond the free memory stay on the heap until their turn.
    pub fn put_many<'a, D: Into<Payload<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Batch<Put> {
        let mut lists = self.core.lists();
        let (mut pendings, mut is_short) = (Vec::new(), false);
        for (key, data) in items {
            let registered = match self.core.register_next(data.into(), &mut is_short) {
                Ok(registered) => registered,
                Err(unfinished) => {
                    pendings.push(self.core.failed(unfinished));
                    continue;
                }
            };
            let hash = self.core.hash(&key);
            let (request, pending) = self.put_request(hash, key, registered, with);
            self.core.add(&mut lists, request);
            pendings.push(pending);
        }
        self.core.send_lists(&mut lists);
        Batch::new(pendings)
    }

    /// Reads an object into the store's own memory, once it is found and there is some.
    pub fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.fetch(key, None)
    }

    /// Reads a byte range of an object, cut off at its end. The device reads whole pieces around the range, because
    /// only pieces have checksums.
    pub fn get_range(&self, key: Key, range: Range<u64>) -> Pending<Option<Value>> {
        self.fetch(key, Some(range))
    }

    fn fetch(&self, key: Key, range: Option<Range<u64>>) -> Pending<Option<Value>> {
        let (request, pending) = self.core.fetch_request(key, range, None);
        self.core.send_some(request);
        pending
    }

    /// Reads an object if the request can be sent without waiting.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn try_get(&self, key: Key) -> Result<Pending<Option<Value>>, RefuseReason> {
        let (request, pending) = self.core.fetch_request(key, None, None);
        let Some(request) = request else { return Ok(pending) };
        if self.core.mailbox(self.core.shard(request.hash)).is_busy_for_reads() {
            return Err(RefuseReason::Busy);
        }
        match self.core.try_send(request) {
            Ok(()) => Ok(pending),
            Err((_, why)) => Err(why.into()),
        }
    }

    /// Reads several objects, planned together. Values hold the store's memory: if a batch is larger than
    /// [`OpenOptions::pool_bytes`], take values as they arrive ([`Batch::next`]) and drop them, or the store allocates
    /// more.
    pub fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<Option<Value>> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        for key in keys {
            let (request, pending) = self.core.fetch_request(key, None, None);
            request.into_iter().for_each(|request| self.core.add(&mut lists, request));
            pendings.push(pending);
        }
        self.core.send_lists(&mut lists);
        Batch::new(pendings)
    }

    /// Reads a part of an object into the caller's registered memory ([`Store::register`], [`Store::allocate`]), which
    /// comes back with the answer. What a device cannot use, because it does not begin at a multiple of an LBA or end at
    /// one of 4 KiB, passes through the store's memory, for which the read may wait.
    pub fn get_into(&self, key: Key, part: Part, into: impl Into<AnyBuffer>) -> Pending<Read> {
        let (request, pending) = self.get_request(key, part, into.into(), None);
        self.core.send_some(request);
        pending
    }

    /// Like [`Store::get_into`] for parts of several objects, planned together, such as one layer of many KV blocks.
    pub fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, AnyBuffer)>,
    ) -> Batch<Read> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        for (key, part, into) in items {
            let (request, pending) = self.get_request(key, part, into, None);
            request.into_iter().for_each(|request| self.core.add(&mut lists, request));
            pendings.push(pending);
        }
        self.core.send_lists(&mut lists);
        Batch::new(pendings)
    }

    /// Reserves room for an object of `bytes`, to be written in parts. Fails with [`Failure::Declined`] if admission
    /// or the write budget rejects it.
    pub fn reserve(&self, key: Key, bytes: u64, with: &PutWith) -> Pending<Writer> {
        let hash = self.core.hash(&key);
        let (request, pending) = self.reserve_request(hash, key, bytes, with);
        self.core.send(request);
        pending
    }

    /// Removes an object; returns false if there is none.
    pub fn delete(&self, key: Key) -> Pending<bool> {
        let (request, pending) = self.change_request(Action::Delete(key));
        self.core.send(request);
        pending
    }

    /// Removes all objects of a tenant or with a prefix, and returns their number. Works in the background, beside
    /// other requests; an object that is put meanwhile goes or stays. Waits for the answer for ten minutes at least.
    pub fn delete_where(&self, selection: &Selection) -> Pending<u64> {
        let (reply, pending) = pair(self.core.patience.max(SWEEP_PATIENCE));
        let shards = self.core.set.shards();
        let gather = Gather::new(usize::from(shards), |parts: Answer<Vec<(u16, u64)>>| {
            reply.send(parts.map(|parts| parts.into_iter().map(|(_, objects)| objects).sum()));
        });
        for shard in 0..shards {
            let gather = Arc::clone(&gather);
            let caller = Caller::Sweep(Box::new(move |answer| gather.add(shard, answer)));
            let action = Action::DeleteWhere(selection.clone());
            self.core.send_to(shard, self.core.request(0, action, caller));
        }
        pending
    }

    /// Completes when everything acknowledged before survives a power cut. With `restart` durability this excludes
    /// data that a failed device had not flushed: after [`Store::recover`] those objects may be misses.
    pub fn commit(&self) -> Pending<()> {
        let (reply, pending) = self.core.pair();
        let shards = self.core.set.shards();
        let gather = Gather::new(usize::from(shards), |parts| reply.send(parts.map(|_| ())));
        for shard in 0..shards {
            let gather = Arc::clone(&gather);
            let waiter = Caller::Commit(Box::new(move |answer| gather.add(shard, answer)));
            self.core.send_to(shard, self.core.request(0, Action::Commit, waiter));
        }
        pending
    }

    /// Returns whether the object exists.
    pub fn exists(&self, key: Key) -> Pending<bool> {
        let hash = self.core.hash(&key);
        self.core.ask(self.core.shard(hash), move |shard, now| {
            Ok(shard.lookup(now, hash, &key).is_some())
        })
    }

    /// Returns what the store knows about an object.
    pub fn info(&self, key: Key) -> Pending<Option<ObjectInfo>> {
        let hash = self.core.hash(&key);
        self.core.ask(self.core.shard(hash), move |shard, now| {
            let id = shard.lookup(now, hash, &key);
            Ok(id.map(|id| ObjectInfo::of(shard, shard.info_of(now, id))))
        })
    }

    /// Returns at most `limit` objects from cursor `from`, and the next cursor while there are more: fewer objects, or
    /// none, do not mean that it is the end. Start at 0. The order means nothing. Every object that exists for the whole
    /// scan appears once; objects that are added, replaced or removed meanwhile may or may not appear.
    pub fn scan(&self, from: u64, limit: usize) -> Pending<(Vec<ObjectInfo>, Option<u64>)> {
        self.scan_prefix(&[], from, limit)
    }

    /// Returns how many of `keys` exist before the first miss.
    pub fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        let (reply, pending) = self.core.pair();
        self.core.find_prefix(keys, |prefix| reply.send(prefix));
        pending
    }

    /// Keeps the objects of `keys` before the first miss readable for `time`, or until the lease is dropped. Fails with
    /// [`Failure::Full`] if too many objects are leased.
    pub fn lease(&self, keys: &[Key], time: Duration) -> Pending<Lease> {
        let (reply, pending) = self.core.pair();
        let (core, mut keys) = (Arc::clone(&self.core), keys.to_vec());
        self.core.find_prefix(&keys.clone(), move |prefix| match prefix {
            Ok(prefix) => {
                keys.truncate(prefix);
                lease(&core, &keys, time, reply);
            }
            Err(unfinished) => reply.send(Err(unfinished)),
        });
        pending
    }

    /// Plans reads of these parts for another executor, and holds the objects for `time` or until the plan's lease is
    /// dropped. Fails with [`Failure::Part`] if an object has no such part; with [`Failure::Full`] if too many objects
    /// are leased.
    pub fn plan(&self, asked: &[(Key, Part)], time: Duration) -> Pending<Transfers<Lease>> {
        let dealt = route::deal(asked, self.core.set.shards(), |item| self.core.route(&item.0));
        let (reply, pending) = self.core.pair();
        let gather = Gather::new(dealt.len(), |parts: Answer<Vec<(u16, _)>>| {
            reply.send(parts.map(|parts| {
                let parts = parts.into_iter().map(|(_, part)| part);
                let (parts, leases): (Vec<ShardTransfers>, Vec<ShardLease>) = parts.unzip();
                let count = parts.iter().flat_map(|part| &part.items).flatten().count();
                Transfers { parts, lease: Lease::new(leases, count) }
            }));
        });
        for (number, share) in dealt {
            let core = Arc::clone(&self.core);
            self.core.gather(number, &gather, move |shard, now| {
                let planned = shard.plan(now, &share.items, now + time)?;
                let (part, lease) = ShardTransfers::new(share.positions, planned);
                let bytes = shard.leased_bytes(lease);
                Ok((part, ShardLease::new(core, number, lease, bytes)))
            });
        }
        pending
    }

    /// Returns the tenant of this name, creating it without a quota if it is new. Fails with [`Failure::Tenant`] if
    /// there are 255 already that have objects or a quota or are in use, or the name is longer than 64 bytes.
    pub fn tenant(&self, name: &str) -> Pending<Tenant> {
        let name = name.to_owned();
        let identity = self.core.identity.clone();
        let define = move |shard: &mut ThreadShard, now| {
            let id = shard.tenant(now, &name)?;
            Ok((id, shard.tenants().hold(id)))
        };
        self.core.ask_each(define, |ids| Tenant::new(ids.collect(), identity))
    }

    /// Sets a tenant's quota, or lifts it. It holds at once, for all of the tenant's objects wherever they lie, and
    /// survives a power cut once a later [`Store::commit`] completes. A tenant that has more keeps it and gets no more,
    /// or loses its least recently used objects, as [`Quota::when_reached`] says.
    pub fn set_quota(&self, tenant: &Tenant, quota: Option<Quota>) -> Pending<()> {
        let held = tenant.in_shard(&self.core.identity, 0);
        self.core.ask(0, move |shard, now| {
            let (id, _hold) = held.ok_or(Failure::Undefined("tenant"))?;
            Ok(shard.set_quota(now, id, quota)?)
        })
    }

    /// Returns what each tenant has and did, in the order of their names; the default tenant comes first.
    pub fn tenants(&self) -> Pending<Vec<TenantStats>> {
        self.core.ask_each(|shard, _| Ok(shard.tenants().stats()), |parts| merged(parts.flatten()))
    }

    /// Returns how many layouts have objects or are in use, of the 255 that can; none if this is one of them.
    pub fn layouts_beside(&self, layout: Layout) -> Pending<usize> {
        self.core.ask_each(
            move |shard, _| Ok(shard.layouts().used_beside(layout)),
            |parts| parts.max().unwrap_or_default(),
        )
    }

    /// Returns a model's layout of KV blocks for [`PutWith::layout`], defining it if it is new. Fails with
    /// [`Failure::Layout`] if there are 255 already that have objects or are in use.
    pub fn layout(&self, layout: Layout) -> Pending<DefinedLayout> {
        let identity = self.core.identity.clone();
        self.core.ask_each(
            move |shard, now| {
                let id = shard.layout(now, layout)?;
                Ok((id, shard.layouts().hold(id)))
            },
            move |ids| DefinedLayout::new(ids.collect(), layout, identity),
        )
    }

    /// Returns the store's counters, summed over its shards.
    pub fn stats(&self) -> Pending<Stats> {
        let pools = Arc::clone(&self.core.pools);
        self.core.ask_each(
            |shard, _| Ok(shard.stats()),
            move |parts| {
                let mut sum = Stats::default();
                parts.for_each(|part| sum += part);
                pools.counts.add_to(&mut sum);
                sum
            },
        )
    }

    /// Returns the bytes that devices have read from callers' registered memory or written to it, in place: a counter
    /// beside [`Stats::copied_bytes`].
    pub fn in_place_bytes(&self) -> u64 {
        self.core.pools.counts.in_place_bytes()
    }

    /// Returns counters, latencies and occupancy in Prometheus' text format; `docs/operate/kv.md` explains each metric.
    pub fn prometheus(&self) -> Pending<String> {
        let core = Arc::clone(&self.core);
        self.core.ask_each(
            |shard, _| Ok(Sampled::of(shard)),
            move |parts| prometheus::text(&Sample::of(&core, parts)),
        )
    }

    /// Lends `len` bytes of the store's registered memory, to be filled and put without a copy, once there are as many.
    /// Memory lent so and values that are held make others wait: with a buffer for each object that a server takes in,
    /// it takes in no more than [`OpenOptions::pool_bytes`] at a time.
    ///
    /// Fails with [`Error::Timeout`] if none became free in time; with [`Error::Invalid`] if there never will be
    /// enough.
    pub fn buffer(&self, len: usize) -> Pending<PoolBuffer> {
        self.core.buffer(len, None)
    }

    /// Allocates registered memory of at least `len` bytes for the caller, usable for objects on the first device and
    /// on every device reached through the kernel.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        Ok(self.core.devices.as_slice()[0].allocate(len)?)
    }

    /// Brings a failed device back, and with it its objects, which were misses meanwhile. Recovers its controller,
    /// checks that the device still holds this store, and reattaches it to each shard. Other failed devices stay as
    /// they are. Waits for the device, for seconds if it has to be reset: in an async server call this on a thread that
    /// may block.
    ///
    /// # Errors
    /// As [`adit_driver::Controller::recover`]; [`Error::Media`] if a different device answers; [`Error::Invalid`] if
    /// there is no such device, or it works.
    pub fn recover(&self, device: u8) -> Result<()> {
        let Core { devices, options, set, .. } = &*self.core;
        devices.recover(device, options, set)?;
        let attached: Vec<Result<bool>> =
            (0..set.shards()).map(|shard| self.attach(shard, device)).collect();
        let any = attached.into_iter().try_fold(false, |any, one| one.map(|one| any | one))?;
        devices::any_attached(device, any)
    }

    /// Reattaches a device to a shard. Returns false if the shard never lost it, or an earlier call reattached it.
    fn attach(&self, shard: u16, device: u8) -> Result<bool> {
        let core = Arc::clone(&self.core);
        let attached = self.core.ask(shard, move |shard, _| {
            if !shard.has_failed(device) {
                return Ok(false);
            }
            let lane = core.devices.lane(device, &core.options)?;
            shard.attach(device, lane).map(|_| true)
        });
        Ok(attached.wait()?)
    }

    /// Returns what the store was formatted as.
    pub fn set(&self) -> &Set {
        &self.core.set
    }

    /// Returns the store's devices, in the order of the targets.
    pub fn devices(&self) -> &[Device] {
        self.core.devices.as_slice()
    }

    /// Returns what each shard found when it was opened.
    pub fn recoveries(&self) -> &[Recovery] {
        self.threads.recoveries()
    }

    /// Fails once a thread of the store has died: a server ends then, as [`Failure::Closed`] answers all requests to that
    /// thread's shards. Takes a lock and asks no thread, so it may be called often.
    ///
    /// # Errors
    /// [`Error::Died`] with the thread and its panic; once the store is closed, why that failed.
    pub fn check(&self) -> Result<()> {
        self.threads.failure().map_or(Ok(()), Err)
    }

    /// Finishes the requests in progress, makes acknowledged data durable, ends the threads and returns the counters.
    /// Also takes checkpoints, for the order of eviction, if they take less than 5 s and half the store's timeout. Requests that wait
    /// for memory or room fail with [`Failure::Closed`] at once, and so do calls on other clones. The store closes
    /// whether the answer is awaited or not.
    ///
    /// Fails with [`Error::Failed`] if a device could not make data durable; with [`Error::Timeout`] if requests in
    /// progress, or the commit after them, took longer than the store's timeout; with [`Error::Died`] if a thread
    /// panicked; with [`Failure::Closed`] if another clone has closed the store.
    pub fn close(self) -> Pending<Stats> {
        self.threads.close()
    }

    /// Makes the request of a put, given its key's hash.
    pub(super) fn put_request(
        &self,
        hash: u64,
        key: Key,
        registered: Registered,
        with: &PutWith,
    ) -> (Hashed<Waiter>, Pending<Put>) {
        let (shard, Registered { memory, bytes, source }) = (self.core.shard(hash), registered);
        let (reply, pending) = self.core.pair();
        let item = PutItem {
            key,
            bytes,
            data: memory,
            options: options(&self.core.identity, shard, with),
        };
        let waiter = Caller::Put { reply, source };
        (self.core.request(hash, Action::Put(item), waiter), pending)
    }

    /// Makes the request of a reservation, given its key's hash.
    pub(super) fn reserve_request(
        &self,
        hash: u64,
        key: Key,
        bytes: u64,
        with: &PutWith,
    ) -> (Hashed<Waiter>, Pending<Writer>) {
        let shard = self.core.shard(hash);
        let (reply, pending) = self.core.pair();
        let options = options(&self.core.identity, shard, with);
        let item = ReserveItem { key, bytes, options };
        let caller = Reserving { reply, core: Arc::clone(&self.core), shard, hash, bytes };
        let waiter = Caller::Writer(Box::new(caller));
        (self.core.request(hash, Action::Reserve(item), waiter), pending)
    }

    /// Reads into the caller's memory; without a request if the object is in memory.
    pub(super) fn get_request(
        &self,
        key: Key,
        part: Part,
        into: AnyBuffer,
        version: Option<Version>,
    ) -> (Option<Hashed<Waiter>>, Pending<Read>) {
        let hash = self.core.hash(&key);
        let into = match self.core.hot_read(hash, &key, (&part, version), into) {
            Ok(read) => return (None, ready(Ok(read))),
            Err(into) => into,
        };
        let (reply, pending) = self.core.pair();
        let (into, waiter) = if self.core.reach.needs_no_copy(&into) {
            (into, Caller::Get(reply, Arc::clone(self.core.reach.counts())))
        } else {
            let bounced = Bounced::new(reply, &self.core.reach, into);
            (AnyBuffer::None, Caller::Bounced(Box::new(bounced)))
        };
        let action = Action::Get(GetItem { key, part, into, version });
        (Some(self.core.request(hash, action, waiter)), pending)
    }
}

/// Leases the objects of `keys` in each shard and answers `reply`. On an error, dropping the parts ends them.
fn lease(core: &Arc<Core>, keys: &[Key], time: Duration, reply: Reply<Lease>) {
    let shares = route::deal(keys, core.set.shards(), |key| core.route(key));
    let all = keys.len();
    let gather = Gather::new(shares.len(), move |parts: Answer<Vec<(u16, _)>>| {
        reply.send(parts.map(|parts| {
            let parts = parts.into_iter().map(|(_, part)| part);
            let (leases, misses): (Vec<ShardLease>, Vec<usize>) = parts.unzip();
            // An object may have gone since the lookup.
            Lease::new(leases, misses.into_iter().min().unwrap_or(all))
        }));
    });
    for (number, share) in shares {
        let owner = Arc::clone(core);
        core.gather(number, &gather, move |shard, now| {
            let (id, leased) = shard.lease(now, &share.items, now + time)?;
            let lease = ShardLease::new(owner, number, id, shard.leased_bytes(id));
            Ok((lease, share.first_miss(leased, all)))
        });
    }
}

/// Returns a duration in seconds, rounded up.
pub(super) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Translates options into a shard's ids.
fn options(store: &Identity, shard: u16, with: &PutWith) -> PutOptions {
    let tenant = with.tenant.as_ref().map(|tenant| tenant.in_shard(store, shard));
    let layout = with.layout.as_ref().map(|layout| layout.in_shard(store, shard));
    let undefined = match (&tenant, &layout) {
        (Some(None), _) => Some("tenant"),
        (_, Some(None)) => Some("layout"),
        _ => None,
    };
    let (tenant, tenant_hold) = tenant.flatten().unzip();
    let (layout, layout_hold) = layout.flatten().unzip();
    PutOptions {
        tenant: tenant.unwrap_or_default(),
        ttl_s: with.ttl.map(whole_seconds),
        after: with.after.clone(),
        layout: layout.unwrap_or_default(),
        condition: with.condition,
        holds: [tenant_hold, layout_hold],
        undefined,
    }
}

/// Restores a put that found the mailbox full to its original form.
fn refused_put<'a>(work: Work, why: Refusal) -> Refused<'a> {
    let request = match work {
        Work::Requests(mut requests) => requests.pop().map(|hashed| hashed.request),
        Work::Ask(..) | Work::Lend(_) | Work::Feed(_) => None,
    };
    let Some(Request {
        action: Action::Put(PutItem { key, bytes, data, .. }),
        reply: Waiter { caller: Caller::Put { source, .. }, .. },
        ..
    }) = request
    else {
        unreachable!("a put was sent")
    };
    let data = match (data, source.pool()) {
        (AnyBuffer::One(run), Some(pool)) => PoolBuffer::of(run, bytes as usize, pool).into(),
        (memory, _) => Payload::lent(source.restore(memory), bytes),
    };
    Refused { key, data, why: why.into() }
}

impl From<Refusal> for RefuseReason {
    fn from(why: Refusal) -> RefuseReason {
        match why {
            Refusal::Full => RefuseReason::Busy,
            Refusal::Closed => RefuseReason::Never(Error::Failed(Failure::Closed)),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<&str> =
            self.devices().iter().map(|device| device.info().device.as_str()).collect();
        f.debug_struct("Store").field("devices", &devices).finish_non_exhaustive()
    }
}
