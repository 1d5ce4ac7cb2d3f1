//! The handle of a store, for any thread.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Device, Time};

use super::batch::Batch;
use super::core::{Core, Registered, asking};
use super::devices::{self, DeviceShard};
use super::gather::Gather;
use super::info::ObjectInfo;
use super::job::{CommitReply, Fetch, Item, PutReply, Work, WriterReply};
use super::lease::Lease;
use super::local::Local;
use super::mailbox::Full;
use super::names::{DefinedLayout, Tenant};
use super::open::{FormatStore, OpenOptions};
use super::payload::{Payload, PutWith, RefuseReason, Refused};
use super::pending::Pending;
use super::plans::{self, Transfers};
use super::pool::PoolBuffer;
use super::route;
use super::threads::{self, Threads};
use super::together::{Share, Together};
use super::value::{Put, Read, Value};
use super::writer::Writer;
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::shard::{
    Failure, GetItem, LeaseId, Part, PutItem, PutOptions, Recovery, ReserveItem, Stats,
};

/// A store, from any thread. Clones are the same store; with the last the store closes, and whoever drops that waits
/// for it: [`Store::close`] says what came of it.
///
/// Calls that take keys or data wait for room where the store is busy, at most for its timeout: as many requests as
/// [`OpenOptions::mailbox_depth`] wait, or all registered memory is in use. [`Store::try_put`] and
/// [`Store::try_get`] never wait.
#[derive(Clone)]
pub struct Store {
    pub(super) core: Arc<Core>,
    threads: Arc<Threads>,
}

impl Store {
    /// Makes a store of the devices. What was on them is gone.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Invalid`] for what cannot be; [`Error::Media`] where there is something on a
    /// device and it may not be overwritten, or a device is too small.
    pub fn format(options: &FormatStore) -> Result<()> {
        options.run()
    }

    /// Opens a store and starts its threads.
    ///
    /// # Errors
    /// As [`Device::open`], which refuses a device that another process or handle has open; [`Error::Invalid`] for what
    /// cannot be; [`Error::Media`] where there is no store on the devices, or not one that can be opened.
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

    /// Stores an object. One of that key is replaced. Plain bytes are copied before this returns.
    pub fn put<'a>(&self, key: Key, data: impl Into<Payload<'a>>) -> Pending<Put> {
        self.put_with(key, data, &PutWith::default())
    }

    /// The same, with options.
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
        let shard = self.core.route(&key);
        let (item, pending) = self.put_item(shard, key, registered, with);
        self.core.send_by(until, shard, Work::One(item));
        pending
    }

    /// Stores an object if that can be begun without waiting.
    ///
    /// # Errors
    /// The request back, with the reason.
    #[allow(clippy::result_large_err, reason = "what is not taken comes back as it was")]
    pub fn try_put<'a>(
        &self,
        key: Key,
        data: impl Into<Payload<'a>>,
        with: &PutWith,
    ) -> Result<Pending<Put>, Refused<'a>> {
        let data = data.into();
        let mailbox = self.core.mailbox(self.core.route(&key));
        // Before anything is copied. Somebody may be quicker: then its memory says what became of it.
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
        let shard = self.core.route(&key);
        let (item, pending) = self.put_item(shard, key, registered, with);
        match self.core.try_send(shard, Work::One(item)) {
            Ok(()) => Ok(pending),
            Err((work, why)) => Err(refused_put(work, why)),
        }
    }

    /// Stores several objects, planned together: those of one shard lie one after another where there is room.
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
                // Once nothing comes back any more, the others are not waited for as long again, each.
                Err(error) => {
                    pendings.push(self.core.refused(error));
                    continue;
                }
            };
            let shard = self.core.route(&key);
            let (item, pending) = self.put_item(shard, key, registered, with);
            lists[usize::from(shard)].push(item);
            pendings.push(pending);
        }
        self.core.send_lists(until, &mut lists);
        Batch::new(pendings)
    }

    /// Reads an object into the store's own memory, once there is some.
    pub fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.fetch(key, None)
    }

    /// Reads these bytes of an object, as many of them as there are. What is read from the device are the pieces around
    /// them, for only pieces have checksums.
    pub fn get_range(&self, key: Key, range: Range<u64>) -> Pending<Option<Value>> {
        self.fetch(key, Some(range))
    }

    fn fetch(&self, key: Key, range: Option<Range<u64>>) -> Pending<Option<Value>> {
        let shard = self.core.route(&key);
        let (item, pending) = self.fetch_item(key, range, None);
        self.core.send(shard, Work::One(item));
        pending
    }

    /// Reads an object if the request can be left without waiting.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn try_get(&self, key: Key) -> Result<Pending<Option<Value>>, RefuseReason> {
        let shard = self.core.route(&key);
        let (item, pending) = self.fetch_item(key, None, None);
        match self.core.try_send(shard, Work::One(item)) {
            Ok(()) => Ok(pending),
            Err((_, why)) => Err(why.into()),
        }
    }

    /// Reads several objects, planned together. Values hold the store's memory: of a batch that is larger than
    /// [`OpenOptions::pool_bytes`], take them as they come ([`Batch::next`]), and drop them. Taken otherwise, those that
    /// do not fit fail at once with [`Error::Invalid`].
    pub fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<Option<Value>> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        let together = Together::new(self.core.pools.count());
        for key in keys {
            let shard = self.core.route(&key);
            let (item, pending) = self.fetch_item(key, None, Some(Share::new(&together)));
            lists[usize::from(shard)].push(item);
            pendings.push(pending);
        }
        self.core.send_lists(self.core.until(), &mut lists);
        Batch::of_reads(pendings, together)
    }

    /// Reads a part of an object into the caller's registered memory, which comes back with the answer.
    pub fn get_into(&self, key: Key, part: Part, into: AnyBuffer) -> Pending<Read> {
        let shard = self.core.route(&key);
        let (reply, pending) = self.core.pair();
        self.core.send(shard, Work::One(Item::Get(GetItem { key, part, into }, reply)));
        pending
    }

    /// The same for a part of several objects, planned together, as a layer of many KV blocks.
    pub fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, AnyBuffer)>,
    ) -> Batch<Read> {
        let mut lists = self.core.lists();
        let mut pendings = Vec::new();
        for (key, part, into) in items {
            let (reply, pending) = self.core.pair();
            let list = &mut lists[usize::from(self.core.route(&key))];
            list.push(Item::Get(GetItem { key, part, into }, reply));
            pendings.push(pending);
        }
        self.core.send_lists(self.core.until(), &mut lists);
        Batch::new(pendings)
    }

    /// Makes room for an object of `bytes`, to be written in parts. Where admission or the write budget is against it, it
    /// fails with [`Failure::Declined`].
    pub fn reserve(&self, key: Key, bytes: u64, with: &PutWith) -> Pending<Writer> {
        let shard = self.core.route(&key);
        let (reply, pending) = self.core.pair();
        let item = ReserveItem { key, bytes, options: options(shard, with) };
        let to = WriterReply { reply, core: Arc::clone(&self.core), shard, bytes };
        self.core.send(shard, Work::One(Item::Reserve(item, to)));
        pending
    }

    /// Removes an object; false where there is none.
    pub fn delete(&self, key: Key) -> Pending<bool> {
        let shard = self.core.route(&key);
        let (reply, pending) = self.core.pair();
        self.core.send(shard, Work::One(Item::Delete(key, reply)));
        pending
    }

    /// Done when everything that was acknowledged before survives a power cut. In `restart` that leaves out what a device
    /// that failed had not flushed when it did: it may be a miss after [`Store::recover`].
    pub fn commit(&self) -> Pending<()> {
        let (reply, pending) = self.core.pair();
        let shards = self.core.set.shards();
        let gather = Gather::new(usize::from(shards), reply, |_: Vec<(u16, ())>| ());
        let until = self.core.until();
        for shard in 0..shards {
            let gather = Arc::clone(&gather);
            let to = CommitReply(Box::new(move |answer| gather.add(shard, answer)));
            self.core.send_by(until, shard, Work::One(Item::Commit(to)));
        }
        pending
    }

    /// Whether there is such an object.
    pub fn exists(&self, key: Key) -> Pending<bool> {
        self.core.ask(self.core.route(&key), move |shard, now| Ok(shard.exists(now, &key)))
    }

    /// What is known of an object.
    pub fn info(&self, key: Key) -> Pending<Option<ObjectInfo>> {
        self.core.ask(self.core.route(&key), move |shard, now| {
            Ok(shard.info(now, &key).map(|info| ObjectInfo::of(shard, info)))
        })
    }

    /// At most `limit` objects from a cursor on, and the next cursor while there are more. Starts at 0. Objects that
    /// come or go meanwhile are seen or not.
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

    /// How many of `keys` there are before the first that is missing.
    pub fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        let end = keys.len();
        let shares = route::shares(keys, self.core.set.shards(), |key| self.core.route(key));
        let asked: Vec<_> = (0u16..).zip(shares).filter(|(_, s)| !s.keys.is_empty()).collect();
        let (reply, pending) = self.core.pair();
        let gather = Gather::new(asked.len(), reply, move |misses: Vec<(u16, usize)>| {
            misses.into_iter().map(|(_, miss)| miss).min().unwrap_or(0)
        });
        let until = self.core.until();
        for (number, share) in asked {
            self.gather(until, number, &gather, move |shard, now| {
                Ok(share.first_miss(shard.lookup_prefix(now, &share.keys), end))
            });
        }
        pending
    }

    /// Keeps the objects of `keys` before the first that is missing readable for so long, or until the lease is dropped.
    ///
    /// # Errors
    /// [`Failure::Full`] when too many objects are leased.
    pub fn lease(&self, keys: &[Key], time: Duration) -> Result<Lease> {
        let prefix = self.lookup_prefix(keys).wait()?;
        let keys = &keys[..prefix];
        let shares = route::shares(keys, self.core.set.shards(), |key| self.core.route(key));
        let mut parts: Vec<(u16, LeaseId)> = Vec::new();
        let mut count = prefix;
        for (number, share) in (0u16..).zip(shares).filter(|(_, share)| !share.keys.is_empty()) {
            let leased = self.core.ask(number, move |shard, now| {
                let (id, leased) = shard.lease(now, &share.keys, now + time)?;
                Ok((id, share.first_miss(leased, prefix)))
            });
            match leased.wait() {
                Ok((id, miss)) => {
                    parts.push((number, id));
                    // One may have gone since it was looked up.
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

    /// Plans reads of these parts for somebody else to carry out, and holds the objects for so long, or until the plan's
    /// lease is dropped.
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] when too many objects are leased.
    pub fn plan(&self, asked: &[(Key, Part)], time: Duration) -> Result<Transfers<Lease>> {
        let dealt = plans::deal(asked, self.core.set.shards(), |key| self.core.route(key));
        let ask = |(number, share): (u16, plans::Share)| {
            self.core.ask(number, move |shard, now| {
                let planned = shard.plan(now, &share.asked, now + time)?;
                Ok((number, share.planned(planned)))
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

    /// The tenant of this name, made if it is new; its quota is set where one is given, in equal parts for the shards.
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

    /// A model's layout of KV blocks, defined if it is new, for [`PutWith::layout`].
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

    /// What the store counted, in sum over its shards.
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

    /// What the store counted as Prometheus' text.
    ///
    /// # Errors
    /// As [`Pending::wait`] of [`Store::stats`].
    pub fn prometheus(&self) -> Result<String> {
        Ok(crate::store::prometheus::text(&self.stats().wait()?))
    }

    /// The store's registered memory of `len` bytes, to be filled and put without a copy. Waits for it.
    ///
    /// # Errors
    /// [`Error::Timeout`] where none came back in time; [`Error::Invalid`] where there is never so much.
    pub fn buffer(&self, len: usize) -> Result<PoolBuffer> {
        self.core.buffer(len, None)
    }

    /// The same as a future, for callers that must not block. It has no deadline of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there is never so much.
    pub async fn buffer_async(&self, len: usize) -> Result<PoolBuffer> {
        self.core.pools.check(len as u64)?;
        let pools = &self.core.pools;
        let taken = std::future::poll_fn(|context| {
            let take = || pools.take(len, None);
            let taken = take().or_else(|| {
                pools.want(context.waker());
                take()
            });
            taken.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        });
        Ok(taken.await)
    }

    /// Registered memory of the caller's own, of at least `len` bytes, for objects on the first device and on every
    /// device that is reached through the kernel.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        Ok(self.core.devices.as_slice()[0].allocate(len)?)
    }

    /// Brings a device back that failed, and with it its objects, which were misses meanwhile: recovers its controller,
    /// checks that it is the store's as it was, and has each shard use it again. Others that failed stay as they are.
    ///
    /// # Errors
    /// As [`adit_driver::Controller::recover`]; [`Error::Media`] where another device answers; [`Error::Invalid`]
    /// where there is no such device, or it works.
    pub fn recover(&self, device: u8) -> Result<()> {
        let Core { devices, options, set, .. } = &*self.core;
        devices.recover(device, options, set)?;
        let attached: Vec<Result<bool>> =
            (0..set.shards()).map(|shard| self.attach(shard, device)).collect();
        let any = attached.into_iter().try_fold(false, |any, one| one.map(|one| any | one))?;
        devices::any_attached(device, any)
    }

    /// Has a shard use a device again. False where it never stopped: it did not notice, or an earlier call got so far.
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

    /// What the store was formatted as.
    pub fn set(&self) -> &Set {
        &self.core.set
    }

    /// Its devices, by their position among the targets.
    pub fn devices(&self) -> &[Device] {
        self.core.devices.as_slice()
    }

    /// What each shard found when it was opened.
    pub fn recoveries(&self) -> &[Recovery] {
        self.threads.recoveries()
    }

    /// Finishes what was sent, makes what was acknowledged durable, ends the threads and says what the store counted.
    /// Other clones' calls fail from now on.
    ///
    /// # Errors
    /// [`Error::Failed`] where a device could not make it durable; [`Error::Timeout`] where the
    /// requests, or the commit after them, took longer than the store's timeout; [`Failure::Closed`] where another clone has closed it.
    pub fn close(self) -> Result<Stats> {
        self.threads.close()
    }

    fn gather<P: Send + 'static, T: Send + 'static>(
        &self,
        until: Instant,
        number: u16,
        gather: &Arc<Gather<P, T>>,
        ask: impl FnOnce(&mut DeviceShard, Time) -> Result<P, Failure> + Send + 'static,
    ) {
        let gather = Arc::clone(gather);
        let ask = asking(ask, move |answer| gather.add(number, answer));
        self.core.send_by(until, number, Work::Ask(ask));
    }

    pub(super) fn put_item(
        &self,
        shard: u16,
        key: Key,
        registered: Registered,
        with: &PutWith,
    ) -> (Item, Pending<Put>) {
        let Registered { memory, bytes, home } = registered;
        let (reply, pending) = self.core.pair();
        let item = PutItem { key, bytes, data: memory, options: options(shard, with) };
        (Item::Put(item, PutReply { reply, home }), pending)
    }

    fn fetch_item(
        &self,
        key: Key,
        range: Option<Range<u64>>,
        share: Option<Share>,
    ) -> (Item, Pending<Option<Value>>) {
        let (reply, pending) = self.core.pair();
        let deadline = self.core.deadline();
        (Item::Fetch(Fetch { key, range, reply, deadline, attempts: 0, share }), pending)
    }
}

/// A shard's names for what is meant.
pub(super) fn options(shard: u16, with: &PutWith) -> PutOptions {
    let tenant = with.tenant.as_ref().map(|tenant| tenant.in_shard(shard)).unwrap_or_default();
    let layout = with.layout.as_ref().map(|layout| layout.in_shard(shard)).unwrap_or_default();
    let ttl_s = with.ttl.map(|ttl| ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)));
    PutOptions { tenant, ttl_s, after: with.after.clone(), layout }
}

/// A put that found the mailbox full, as it was before.
fn refused_put<'a>(work: Work, why: Full) -> Refused<'a> {
    let Work::One(Item::Put(item, to)) = work else { unreachable!("a put was sent") };
    let PutItem { key, bytes, data, .. } = item;
    let data = match (data, to.home) {
        (AnyBuffer::One(run), Some(home)) => PoolBuffer::of(run, bytes as usize, &home).into(),
        (memory, _) => Payload::lent(memory, bytes),
    };
    Refused { key, data, why: why.into() }
}

impl From<Full> for RefuseReason {
    fn from(why: Full) -> RefuseReason {
        match why {
            Full::Busy => RefuseReason::Busy,
            Full::Closed => RefuseReason::Never(Error::Failed(Failure::Closed)),
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
