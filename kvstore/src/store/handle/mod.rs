//! The handle of a store, for any thread. No other folder of the store imports it.
//!
//! | file | holds |
//! |---|---|
//! | `keys` | calls on conditions, for many keys, about expiries, scans and removals |
//! | `blocks` | calls for KV blocks and their layers |
//! | `reader`, `supply` | objects of any length, in pieces: read, and put from a reader |
//! | `moving` | exports and imports |
//! | `writer` | objects that are written in parts |
//! | `resources` | memory of the caller's, feeds, and the tier |
//! | `refused` | requests that would have to wait, given back |
//! | `prometheus` | figures as text |

mod blocks;
mod keys;
mod moving;
mod prometheus;
mod reader;
mod refused;
mod resources;
mod supply;
mod writer;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Device};

pub use self::blocks::{BlocksWriter, ReservedBlocks};
pub use self::moving::{Import, ImportWith, Imported};
use self::prometheus::Sample;
pub use self::reader::{Pieces, Reader, StorePieces, step_bytes};
use self::refused::refused_put;
pub use self::refused::{RefuseReason, Refused};
pub use self::resources::Attached;
pub use self::supply::{measured, unreadable};
use self::writer::Reserving;
pub use self::writer::Writer;
use super::answer::{
    Answer, Batch, ObjectInfo, Pending, Put, Read, Reply, ShardTransfers, Transfers, Value, merged,
    ready,
};
use super::core::{Core, Lease, Made, ShardLease, deal};
use super::devices::{self, ChangeStore, FormatStore, Formatted, OpenOptions};
use super::local::Local;
use super::memory::{Data, Payload, PoolBuffer, RegisteredData};
use super::request::{
    Asked, BouncedRead, Caller, DefinedLayout, PutWith, ReadCaller, Tenant, Unequipped, put_options,
};
use super::threads::{self, Threads};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::media::change::Changed;
use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::Version;
use crate::model::options::Quota;
use crate::shard::{
    Action, Failure, GetItem, Part, PutItem, Recovery, ReserveItem, Selection, Stats, TenantStats,
};

/// The minimum time to wait for the end of a sweep.
const SWEEP_PATIENCE: Duration = Duration::from_secs(600);

/// A handle to a store, usable from any thread. Clones refer to the same store.
///
/// No call that takes keys or data waits: a request begins at once, or waits in the store for memory or for room
/// until its [`Pending`] is dropped or its deadline passes, which counts from the call. `docs/operate/kv.md` says how
/// servers use that. [`Store::try_put`] and [`Store::try_get`] refuse a request that would wait. The calls that block
/// the thread are [`Store::format`], [`Store::open`], [`Store::open_local`] and [`Store::recover`], which wait for
/// devices, and those named `wait`.
///
/// Dropping the last handle closes the store without waiting for it. A process that is about to end awaits
/// [`Store::close`]: otherwise the store's end is that of a crash.
#[derive(Clone)]
pub struct Store {
    pub(crate) core: Arc<Core>,
    pub(crate) threads: Arc<Threads>,
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
        self.core.send(self.put_request(key, data.into(), with, &mut false))
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
        let registered = match self.core.reach.register_unless(data, None, false) {
            Ok(registered) => registered,
            Err((data, why)) => {
                let why = why.map_or(RefuseReason::Busy, RefuseReason::Never);
                return Err(Refused { key, data: data.into_payload(), why });
            }
        };
        let request = self.registered_put(hash, key, Data::Registered(registered), with);
        self.core.try_send(request).map_err(|(work, why)| refused_put(work, why))
    }

    /// Stores several objects, planned together: the objects of one shard are placed next to each other where there
    /// is room. Takes all items at once; plain bytes beyond the free memory stay on the heap until their turn.
    pub fn put_many<'a, D: Into<Payload<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Batch<Put> {
        let mut is_short = false;
        let put = |(key, data): (Key, D)| self.put_request(key, data.into(), with, &mut is_short);
        self.core.send_all(items.into_iter().map(put))
    }

    /// Reads an object into the store's own memory, once it is found and there is some.
    pub fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.core.send(self.core.fetch(key, None, None))
    }

    /// Reads a byte range of an object, cut off at its end. The device reads whole pieces around the range, because
    /// only pieces have checksums.
    pub fn get_range(&self, key: Key, range: Range<u64>) -> Pending<Option<Value>> {
        self.core.send(self.core.fetch(key, Some(range), None))
    }

    /// Reads an object if the request can be sent without waiting.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn try_get(&self, key: Key) -> Result<Pending<Option<Value>>, RefuseReason> {
        let (request, pending) = self.core.fetch(key, None, None);
        if let Some((shard, _)) = request
            && self.core.mailbox(shard).is_busy_for_reads()
        {
            return Err(RefuseReason::Busy);
        }
        self.core.try_send((request, pending)).map_err(|(_, why)| why.into())
    }

    /// Reads several objects, planned together. Values hold the store's memory: if a batch is larger than
    /// [`OpenOptions::pool_bytes`], take values as they arrive ([`Batch::next`]) and drop them, or the store allocates
    /// more.
    pub fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<Option<Value>> {
        self.core.send_all(keys.into_iter().map(|key| self.core.fetch(key, None, None)))
    }

    /// Reads a part of an object into the caller's registered memory ([`Store::register`], [`Store::allocate`]),
    /// which comes back with the answer. What a device cannot use, because it does not begin at a multiple of an LBA
    /// or end at one of 4 KiB, passes through the store's memory, for which the read may wait.
    pub fn get_into(&self, key: Key, part: Part, into: impl Into<AnyBuffer>) -> Pending<Read> {
        self.core.send(self.get_request(key, part, into.into(), None))
    }

    /// Like [`Store::get_into`] for parts of several objects, planned together, such as one layer of many KV blocks.
    pub fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, AnyBuffer)>,
    ) -> Batch<Read> {
        let get = |(key, part, into)| self.get_request(key, part, into, None);
        self.core.send_all(items.into_iter().map(get))
    }

    /// Reserves room for an object of `bytes`, to be written in parts. Fails with [`Failure::Declined`] if admission
    /// or the write budget rejects it.
    pub fn reserve(&self, key: Key, bytes: u64, with: &PutWith) -> Pending<Writer> {
        self.core.send(self.reserve_request(key, bytes, with))
    }

    /// Removes an object; returns false if there is none.
    pub fn delete(&self, key: Key) -> Pending<bool> {
        self.core.send(self.change_request(Action::Delete(key)))
    }

    /// Removes all objects of a tenant or with a prefix, and returns their number. Works in the background, beside
    /// other requests; an object that is put meanwhile goes or stays. Waits for the answer for ten minutes at least.
    pub fn delete_where(&self, selection: &Selection) -> Pending<u64> {
        let patience = self.core.patience.max(SWEEP_PATIENCE);
        let action = || Action::DeleteWhere(selection.clone());
        self.core.request_each(patience, action, |objects| objects.into_iter().sum())
    }

    /// Completes when everything acknowledged before survives a power cut. With `restart` durability this excludes
    /// data that a failed device had not flushed: after [`Store::recover`] those objects may be misses.
    pub fn commit(&self) -> Pending<()> {
        self.core.request_each(self.core.patience, || Action::Commit, |_| ())
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

    /// Returns at most `limit` objects from cursor `from`, and the next cursor while there are more: fewer objects,
    /// or none, do not mean that it is the end. Start at 0. The order means nothing. Every object that exists for the
    /// whole scan appears once; objects that are added, replaced or removed meanwhile may or may not appear.
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
        let shares = deal(asked, self.core.shards, |item| self.core.route(&item.0));
        let (reply, pending) = self.core.pair();
        let core = Arc::clone(&self.core);
        self.core.ask_shares(
            shares,
            move |number, share, shard, now| {
                let planned = shard.plan(now, &share.items, now + time)?;
                let (part, lease) = ShardTransfers::new(share.positions, planned);
                let bytes = shard.leased_bytes(lease);
                Ok((part, ShardLease::new(Arc::clone(&core), number, lease, bytes)))
            },
            |parts: Answer<Vec<(ShardTransfers, ShardLease)>>| {
                reply.send(parts.map(|parts| {
                    let (parts, leases): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
                    let count = parts.iter().map(ShardTransfers::count).sum();
                    Transfers { parts, lease: Lease::new(leases, count) }
                }));
            },
        );
        pending
    }

    /// Returns the tenant of this name, creating it without a quota if it is new. Fails with [`Failure::Tenant`] if
    /// there are 255 already that have objects or a quota or are in use, or the name is longer than 64 bytes.
    pub fn tenant(&self, name: &str) -> Pending<Tenant> {
        let name = name.to_owned();
        let identity = self.core.identity.clone();
        self.core.ask_each(
            move |shard, now| {
                let id = shard.tenant(now, &name)?;
                Ok((id, shard.tenants().hold(id)))
            },
            |ids| Tenant::new(ids, identity),
        )
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
        self.core.ask_each(
            |shard, _| Ok(shard.tenants().stats()),
            |parts| merged(parts.into_iter().flatten()),
        )
    }

    /// Returns how many layouts have objects or are in use, of the 255 that can; none if this is one of them.
    pub fn layouts_beside(&self, layout: Layout) -> Pending<usize> {
        self.core.ask_each(
            move |shard, _| Ok(shard.layouts().used_beside(layout)),
            |parts| parts.into_iter().max().unwrap_or_default(),
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
            move |ids| DefinedLayout::new(ids, layout, identity),
        )
    }

    /// Returns the store's counters, summed over its shards.
    pub fn stats(&self) -> Pending<Stats> {
        let pools = Arc::clone(&self.core.pools);
        self.core.ask_each(
            |shard, _| Ok(shard.stats()),
            move |parts| {
                let mut sum = Stats::default();
                parts.into_iter().for_each(|part| sum += part);
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
            |shard, _| Ok(Sample::of_shard(shard)),
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
        &self.threads.recoveries
    }

    /// Fails once a thread of the store has died: a server ends then, as [`Failure::Closed`] answers all requests to
    /// that thread's shards. Takes a lock and asks no thread, so it may be called often.
    ///
    /// # Errors
    /// [`Error::Died`] with the thread and its panic; once the store is closed, why that failed.
    pub fn check(&self) -> Result<()> {
        self.threads.exit.failure().map_or(Ok(()), Err)
    }

    /// Finishes the requests in progress, makes acknowledged data durable, ends the threads and returns the counters.
    /// Also takes checkpoints, for the order of eviction, if they take less than 5 s and half the store's timeout.
    /// Requests that wait for memory or room fail with [`Failure::Closed`] at once, and so do calls on other clones.
    /// The store closes whether the answer is awaited or not.
    ///
    /// Fails with [`Error::Failed`] if a device could not make data durable; with [`Error::Timeout`] if requests in
    /// progress, or the commit after them, took longer than the store's timeout; with [`Error::Died`] if a thread
    /// panicked; with [`Failure::Closed`] if another clone has closed the store.
    pub fn close(self) -> Pending<Stats> {
        self.threads.close()
    }

    /// Makes the request of a put of one of several objects in order: once the data of one wait for memory
    /// (`is_short`), so do those of the others.
    fn put_request(
        &self,
        key: Key,
        data: Payload<'_>,
        with: &PutWith,
        is_short: &mut bool,
    ) -> Made<Put> {
        match self.core.reach.register(data, None, is_short) {
            Ok(data) => self.registered_put(self.core.hash(&key), key, data, with),
            Err(unfinished) => (None, ready(Err(unfinished))),
        }
    }

    /// Makes the request of a put, given its key's hash.
    fn registered_put(&self, hash: u64, key: Key, data: Data, with: &PutWith) -> Made<Put> {
        let shard = self.core.shard(hash);
        let (reply, pending) = self.core.pair();
        let options = put_options(&self.core.identity, shard, with);
        let asked = match data {
            Data::Registered(RegisteredData { memory: data, bytes, origin }) => {
                let action = Action::Put(PutItem { key, bytes, data, options });
                Asked::Ready(self.core.request(hash, action, Caller::Put { reply, origin }))
            }
            Data::Unregistered(waiting) => {
                let (bytes, data) = (waiting.bytes(), AnyBuffer::None);
                let item = PutItem { key, bytes, data, options };
                let times = self.core.times();
                Asked::Unequipped(Unequipped::put(hash, times, (reply, item), waiting))
            }
        };
        (Some((shard, asked)), pending)
    }

    /// Makes the request of a reservation.
    fn reserve_request(&self, key: Key, bytes: u64, with: &PutWith) -> Made<Writer> {
        let hash = self.core.hash(&key);
        let shard = self.core.shard(hash);
        let (reply, pending) = self.core.pair();
        let options = put_options(&self.core.identity, shard, with);
        let item = ReserveItem { key, bytes, options };
        let caller = Reserving { reply, core: Arc::clone(&self.core), shard, hash, bytes };
        let caller = Caller::Writer(Box::new(caller));
        self.core.made((hash, Action::Reserve(item)), (caller, pending))
    }

    /// Makes the request of a read into the caller's memory; none if the object is in memory.
    fn get_request(
        &self,
        key: Key,
        part: Part,
        into: AnyBuffer,
        version: Option<Version>,
    ) -> Made<Read> {
        let hash = self.core.hash(&key);
        let into = match self.core.hot_read(hash, &key, (&part, version), into) {
            Ok(read) => return (None, ready(Ok(read))),
            Err(into) => into,
        };
        let (reply, pending) = self.core.pair();
        let (into, caller) = if self.core.reach.needs_no_copy(&into) {
            (into, ReadCaller::InPlace(reply, Arc::clone(self.core.reach.counts())))
        } else {
            let bounced = BouncedRead::new(reply, &self.core.reach, into);
            (AnyBuffer::None, ReadCaller::Bounced(Box::new(bounced)))
        };
        let action = Action::Get(GetItem { key, part, into, version });
        self.core.made((hash, action), (Caller::Read(caller), pending))
    }
}

/// Leases the objects of `keys` in each shard and answers `reply`. On an error, dropping the parts ends them.
fn lease(core: &Arc<Core>, keys: &[Key], time: Duration, reply: Reply<Lease>) {
    let (all, owner) = (keys.len(), Arc::clone(core));
    core.ask_shares(
        core.deal(keys),
        move |number, share, shard, now| {
            let (id, leased) = shard.lease(now, &share.items, now + time)?;
            let lease = ShardLease::new(Arc::clone(&owner), number, id, shard.leased_bytes(id));
            Ok((lease, share.first_miss(leased, all)))
        },
        move |parts: Answer<Vec<(ShardLease, usize)>>| {
            reply.send(parts.map(|parts| {
                let (leases, misses): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
                // An object may have gone since the lookup.
                Lease::new(leases, misses.into_iter().min().unwrap_or(all))
            }));
        },
    );
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<&str> =
            self.devices().iter().map(|device| device.info().device.as_str()).collect();
        f.debug_struct("Store").field("devices", &devices).finish_non_exhaustive()
    }
}
