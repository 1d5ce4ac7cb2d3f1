//! The handle of a store, for any thread.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Refusal;
use adit_driver::{Buffer, Device, Time};

use super::batch::{self, Batch, Together};
use super::core::{Core, Registered, asking};
use super::devices;
use super::gather::Gather;
use super::lease::Lease;
use super::local::Local;
use super::open::{FormatStore, OpenOptions};
use super::payload::{DefinedLayout, Payload, PutWith, RefuseReason, Refused, Tenant};
use super::pending::Pending;
use super::plans::{ShardTransfers, Transfers};
use super::pool::PoolBuffer;
use super::request::{Fetch, ThreadShard, Waiter, Work};
use super::route::{self, Share};
use super::threads::{self, Threads};
use super::value::{ObjectInfo, Put, Read, Value};
use super::writer::{Reserving, Writer};
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::shard::{
    Action, Failure, GetItem, Hashed, LeaseId, Part, PutItem, PutOptions, Recovery, Request,
    ReserveItem, Stats,
};

/// A handle to a store, usable from any thread. Clones refer to the same store. Dropping the last one closes the
/// store and blocks until it is closed; [`Store::close`] also returns the result.
///
/// Calls that take keys or data wait for room while the store is busy, at most for its timeout. It is busy when
/// [`OpenOptions::mailbox_depth`] requests wait or all registered memory is in use. [`Store::try_put`] and
/// [`Store::try_get`] never wait.
#[derive(Clone)]
pub struct Store {
    pub(super) core: Arc<Core>,
    threads: Arc<Threads>,
}

impl Store {
    /// Formats the devices as a store. Their previous contents are lost.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Invalid`] for an invalid option; [`Error::Media`] if a device holds data that
    /// may not be overwritten, or is too small.
    pub fn format(options: &FormatStore) -> Result<()> {
        options.run()
    }

    /// Opens a store and starts its threads.
    ///
    /// # Errors
    /// As [`Device::open`], which refuses a device that another process or handle has open; [`Error::Invalid`] for an
    /// invalid option; [`Error::Media`] if the devices hold no store, or one that cannot be opened.
    pub fn open(options: &OpenOptions) -> Result<Store> {
        let (core, threads) = threads::start(options)?;
        Ok(Store { core, threads })
    }

    /// Opens a store for the calling thread to drive.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_local(options: &OpenOptions) -> Result<Local> {
        Local::open(options)
    }

    /// Stores an object, replacing one with the same key. Plain bytes are copied before this returns.
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
        let until = self.core.until();
        let registered = match self.core.register(until, data.into(), None) {
            Ok(registered) => registered,
            Err(error) => return self.core.refused(error),
        };
        let hash = self.core.hash(&key);
        let (request, pending) = self.put_request(hash, key, registered, with);
        self.core.send_by(until, self.core.shard(hash), request);
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
        if mailbox.is_full() {
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
    /// is room.
    pub fn put_many<'a, D: Into<Payload<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Batch<Put> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        let mut until = self.core.until();
        for (key, data) in items {
            let registered = match self.core.register_for(until, &mut lists, data.into(), None) {
                Ok(registered) => {
                    until = self.core.until();
                    registered
                }
                // If no memory comes back in time, later items do not each wait for another timeout.
                Err(error) => {
                    pendings.push(self.core.refused(error));
                    continue;
                }
            };
            let hash = self.core.hash(&key);
            let (request, pending) = self.put_request(hash, key, registered, with);
            self.core.add(&mut lists, request);
            pendings.push(pending);
        }
        self.core.send_lists(until, &mut lists);
        Batch::new(pendings)
    }

    /// Reads an object into the store's own memory, waiting for some to become free.
    pub fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.fetch(key, None)
    }

    /// Reads a byte range of an object, cut off at its end. The device reads whole pieces around the range, because
    /// only pieces have checksums.
    pub fn get_range(&self, key: Key, range: Range<u64>) -> Pending<Option<Value>> {
        self.fetch(key, Some(range))
    }

    fn fetch(&self, key: Key, range: Option<Range<u64>>) -> Pending<Option<Value>> {
        let (request, pending) = self.fetch_request(key, range, None);
        self.core.send(request);
        pending
    }

    /// Reads an object if the request can be sent without waiting.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn try_get(&self, key: Key) -> Result<Pending<Option<Value>>, RefuseReason> {
        let (request, pending) = self.fetch_request(key, None, None);
        match self.core.try_send(request) {
            Ok(()) => Ok(pending),
            Err((_, why)) => Err(why.into()),
        }
    }

    /// Reads several objects, planned together. Values hold the store's memory: if a batch is larger than
    /// [`OpenOptions::pool_bytes`], take values as they arrive ([`Batch::next`]) and drop them. Otherwise those that
    /// do not fit fail at once with [`Error::Invalid`].
    pub fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<Option<Value>> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        let together = Together::new(self.core.pools.count());
        for key in keys {
            let share = Some(batch::Share::new(&together));
            let (request, pending) = self.fetch_request(key, None, share);
            self.core.add(&mut lists, request);
            pendings.push(pending);
        }
        self.core.send_lists(self.core.until(), &mut lists);
        Batch::of_reads(pendings, together)
    }

    /// Reads a part of an object into the caller's registered memory, which comes back with the answer.
    pub fn get_into(&self, key: Key, part: Part, into: AnyBuffer) -> Pending<Read> {
        let (request, pending) = self.get_request(key, part, into);
        self.core.send(request);
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
            let (request, pending) = self.get_request(key, part, into);
            self.core.add(&mut lists, request);
            pendings.push(pending);
        }
        self.core.send_lists(self.core.until(), &mut lists);
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
        let hash = self.core.hash(&key);
        let (reply, pending) = self.core.pair();
        let request = self.core.request(hash, Action::Delete(key), Waiter::Delete(reply));
        self.core.send(request);
        pending
    }

    /// Completes when everything acknowledged before survives a power cut. With `restart` durability this excludes
    /// data that a failed device had not flushed: after [`Store::recover`] those objects may be misses.
    pub fn commit(&self) -> Pending<()> {
        let (reply, pending) = self.core.pair();
        let shards = self.core.set.shards();
        let gather = Gather::new(usize::from(shards), reply, |_: Vec<(u16, ())>| ());
        let until = self.core.until();
        for shard in 0..shards {
            let gather = Arc::clone(&gather);
            let waiter = Waiter::Commit(Box::new(move |answer| gather.add(shard, answer)));
            self.core.send_by(until, shard, self.core.request(0, Action::Commit, waiter));
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

    /// Returns at most `limit` objects from cursor `from`, and the next cursor while there are more. Start at 0.
    /// Objects that are added or removed during the scan may or may not appear.
    pub fn scan(&self, from: u64, limit: usize) -> Pending<(Vec<ObjectInfo>, Option<u64>)> {
        let (number, shards) = (from >> 32, u64::from(self.core.set.shards()));
        if number >= shards {
            let (reply, pending) = self.core.pair();
            reply.send(Ok((Vec::new(), None)));
            return pending;
        }
        self.core.ask(number as u16, move |shard, now| {
            let (found, next) = shard.scan(now, from as u32, limit);
            let in_shard = next.map(|next| number << 32 | u64::from(next));
            let next_shard = (number + 1 < shards).then_some((number + 1) << 32);
            let found = found.into_iter().map(|info| ObjectInfo::of(shard, info)).collect();
            Ok((found, in_shard.or(next_shard)))
        })
    }

    /// Returns how many of `keys` exist before the first miss.
    pub fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        let end = keys.len();
        let asked = route::deal(keys, self.core.set.shards(), |key| self.core.route(key));
        let (reply, pending) = self.core.pair();
        let gather = Gather::new(asked.len(), reply, move |misses: Vec<(u16, usize)>| {
            misses.into_iter().map(|(_, miss)| miss).min().unwrap_or(0)
        });
        let until = self.core.until();
        for (number, share) in asked {
            self.gather(until, number, &gather, move |shard, now| {
                Ok(share.first_miss(shard.lookup_prefix(now, &share.items), end))
            });
        }
        pending
    }

    /// Keeps the objects of `keys` before the first miss readable for `time`, or until the lease is dropped.
    ///
    /// # Errors
    /// [`Failure::Full`] if too many objects are leased.
    pub fn lease(&self, keys: &[Key], time: Duration) -> Result<Lease> {
        let prefix = self.lookup_prefix(keys).wait()?;
        let keys = &keys[..prefix];
        let shares = route::deal(keys, self.core.set.shards(), |key| self.core.route(key));
        let mut parts: Vec<(u16, LeaseId)> = Vec::new();
        let mut count = prefix;
        for (number, share) in shares {
            let leased = self.core.ask(number, move |shard, now| {
                let (id, leased) = shard.lease(now, &share.items, now + time)?;
                Ok((id, share.first_miss(leased, prefix)))
            });
            match leased.wait() {
                Ok((id, miss)) => {
                    parts.push((number, id));
                    // An object may have gone since the lookup.
                    count = count.min(miss);
                }
                Err(unfinished) => {
                    drop(Lease::new(Arc::clone(&self.core), parts, 0));
                    return Err(unfinished.into());
                }
            }
        }
        Ok(Lease::new(Arc::clone(&self.core), parts, count))
    }

    /// Plans reads of these parts for another executor, and holds the objects for `time` or until the plan's lease is
    /// dropped.
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] if too many objects are leased.
    pub fn plan(&self, asked: &[(Key, Part)], time: Duration) -> Result<Transfers<Lease>> {
        let dealt = route::deal(asked, self.core.set.shards(), |item| self.core.route(&item.0));
        let ask = |(number, share): (u16, Share<(Key, Part)>)| {
            self.core.ask(number, move |shard, now| {
                let planned = shard.plan(now, &share.items, now + time)?;
                Ok((number, ShardTransfers::new(share.positions, planned)))
            })
        };
        let asked: Vec<_> = dealt.into_iter().map(ask).collect();
        let (mut parts, mut leases, mut failed, mut count) = (Vec::new(), Vec::new(), None, 0);
        for answer in asked.into_iter().map(Pending::wait) {
            match answer {
                Ok((number, (part, lease))) => {
                    count += part.items.iter().flatten().count();
                    parts.push(part);
                    leases.push((number, lease));
                }
                Err(unfinished) => failed = failed.or(Some(unfinished)),
            }
        }
        let lease = Lease::new(Arc::clone(&self.core), leases, count);
        failed.map_or(Ok(Transfers { parts, lease }), |unfinished| Err(unfinished.into()))
    }

    /// Returns the tenant of this name, creating it if it is new. A given quota is set, divided equally among the
    /// shards.
    pub fn tenant(&self, name: &str, quota_bytes: Option<u64>) -> Pending<Tenant> {
        let shards = self.core.set.shards();
        let share = quota_bytes.map(|bytes| bytes.div_ceil(u64::from(shards)));
        let (reply, pending) = self.core.pair();
        let gather = Gather::new(usize::from(shards), reply, |ids: Vec<(u16, _)>| {
            Tenant::new(ids.into_iter().map(|(_, id)| id).collect())
        });
        let until = self.core.until();
        for number in 0..shards {
            let name = name.to_owned();
            self.gather(until, number, &gather, move |shard, now| shard.tenant(now, &name, share));
        }
        pending
    }

    /// Returns a model's layout of KV blocks for [`PutWith::layout`], defining it if it is new.
    pub fn layout(&self, layout: Layout) -> Pending<DefinedLayout> {
        let shards = self.core.set.shards();
        let (reply, pending) = self.core.pair();
        let gather = Gather::new(usize::from(shards), reply, move |ids: Vec<(u16, _)>| {
            DefinedLayout::new(ids.into_iter().map(|(_, id)| id).collect(), layout)
        });
        let until = self.core.until();
        for number in 0..shards {
            self.gather(until, number, &gather, move |shard, now| shard.layout(now, layout));
        }
        pending
    }

    /// Returns the store's counters, summed over its shards.
    pub fn stats(&self) -> Pending<Stats> {
        let shards = self.core.set.shards();
        let (reply, pending) = self.core.pair();
        let core = Arc::clone(&self.core);
        let gather = Gather::new(usize::from(shards), reply, move |parts: Vec<(u16, Stats)>| {
            let mut sum = Stats::default();
            parts.into_iter().for_each(|(_, part)| sum += part);
            sum.copied_bytes += core.copied_bytes.load(std::sync::atomic::Ordering::Relaxed);
            sum
        });
        let until = self.core.until();
        for number in 0..shards {
            self.gather(until, number, &gather, |shard, _| Ok(shard.stats()));
        }
        pending
    }

    /// Returns the store's counters in Prometheus' text format.
    ///
    /// # Errors
    /// As [`Pending::wait`] of [`Store::stats`].
    pub fn prometheus(&self) -> Result<String> {
        Ok(crate::store::prometheus::text(&self.stats().wait()?))
    }

    /// Returns `len` bytes of the store's registered memory, to be filled and put without a copy. Blocks until some
    /// is free.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none became free in time; [`Error::Invalid`] if there never will be enough.
    pub fn buffer(&self, len: usize) -> Result<PoolBuffer> {
        self.core.buffer(len, None)
    }

    /// Async form of [`Store::buffer`], without a deadline.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there never will be enough.
    pub async fn buffer_async(&self, len: usize) -> Result<PoolBuffer> {
        self.core.pools.check(len as u64)?;
        let pools = &self.core.pools;
        Ok(std::future::poll_fn(|context| pools.poll_take(context, len, None)).await)
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
    /// they are.
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

    /// Finishes the requests already sent, makes acknowledged data durable, ends the threads and returns the
    /// counters. Calls on other clones fail from now on.
    ///
    /// # Errors
    /// [`Error::Failed`] if a device could not make data durable; [`Error::Timeout`] if the requests, or the commit
    /// after them, took longer than the store's timeout; [`Failure::Closed`] if another clone has closed the store.
    pub fn close(self) -> Result<Stats> {
        self.threads.close()
    }

    fn gather<P: Send + 'static, T: Send + 'static>(
        &self,
        until: Instant,
        number: u16,
        gather: &Arc<Gather<P, T>>,
        ask: impl FnOnce(&mut ThreadShard, Time) -> Result<P, Failure> + Send + 'static,
    ) {
        let gather = Arc::clone(gather);
        let ask = asking(ask, move |answer| gather.add(number, answer));
        self.core.ask_by(until, number, ask);
    }

    /// Makes the request of a put, given its key's hash.
    pub(super) fn put_request(
        &self,
        hash: u64,
        key: Key,
        registered: Registered,
        with: &PutWith,
    ) -> (Hashed<Waiter>, Pending<Put>) {
        let (shard, Registered { memory, bytes, home }) = (self.core.shard(hash), registered);
        let (reply, pending) = self.core.pair();
        let item = PutItem { key, bytes, data: memory, options: options(shard, with) };
        let waiter = Waiter::Put { reply, home };
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
        let item = ReserveItem { key, bytes, options: options(shard, with) };
        let caller = Reserving { reply, core: Arc::clone(&self.core), shard, bytes };
        let waiter = Waiter::Writer(Box::new(caller));
        (self.core.request(hash, Action::Reserve(item), waiter), pending)
    }

    /// Makes the request of a read into the caller's memory.
    fn get_request(
        &self,
        key: Key,
        part: Part,
        into: AnyBuffer,
    ) -> (Hashed<Waiter>, Pending<Read>) {
        let hash = self.core.hash(&key);
        let (reply, pending) = self.core.pair();
        let action = Action::Get(GetItem { key, part, into });
        (self.core.request(hash, action, Waiter::Get(reply)), pending)
    }

    /// Makes the request of a read into the store's memory, which it gets when the object is found.
    fn fetch_request(
        &self,
        key: Key,
        range: Option<Range<u64>>,
        share: Option<batch::Share>,
    ) -> (Hashed<Waiter>, Pending<Option<Value>>) {
        let hash = self.core.hash(&key);
        let (reply, pending) = self.core.pair();
        let action = Action::Get(GetItem { key, part: Part::All, into: AnyBuffer::None });
        let waiter = Waiter::Fetch(Fetch::new(reply, range, share));
        (self.core.request(hash, action, waiter), pending)
    }
}

/// Translates options into a shard's ids.
fn options(shard: u16, with: &PutWith) -> PutOptions {
    let tenant = with.tenant.as_ref().map(|tenant| tenant.in_shard(shard)).unwrap_or_default();
    let layout = with.layout.as_ref().map(|layout| layout.in_shard(shard)).unwrap_or_default();
    let ttl_s = with.ttl.map(|ttl| ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)));
    PutOptions { tenant, ttl_s, after: with.after.clone(), layout }
}

/// Restores a put that found the mailbox full to its original form.
fn refused_put<'a>(work: Work, why: Refusal) -> Refused<'a> {
    let request = match work {
        Work::Requests(mut requests) => requests.pop().map(|hashed| hashed.request),
        Work::Ask(..) => None,
    };
    let Some(Request {
        action: Action::Put(PutItem { key, bytes, data, .. }),
        reply: Waiter::Put { home, .. },
        ..
    }) = request
    else {
        unreachable!("a put was sent")
    };
    let data = match (data, home) {
        (AnyBuffer::One(run), Some(home)) => PoolBuffer::of(run, bytes as usize, &home).into(),
        (memory, _) => Payload::lent(memory, bytes),
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
