//! All shards of a store on the caller's own thread: no mailbox, no other thread, no lock.
//!
//! The calls are those of a [`Shard`], for any number of shards. Requests that concern several are split on the way
//! in and joined on the way out ([`super::cut`]); with one shard they pass through unchanged.

use std::time::Duration;

use adit_driver::{Buffer, Device, Time};

use super::cut::Cuts;
use super::devices::{self, DeviceShard, Devices};
use super::info::ObjectInfo;
use super::open::{Found, OpenOptions};
use super::plans::{self, Transfers};
use super::route;
use crate::error::{Error, Result};
use crate::media::format::Set;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::{LayoutId, TenantId};
use crate::shard::{
    Action, Done, Failure, LeaseId, Outcome, Part, Recovery, Request, Shard, Stats, Turn, WriterId,
};

/// A store that the calling thread drives. Call [`Local::poll`] repeatedly while there is work.
///
/// To the store, dropping this is a crash. [`Local::close`] first makes acknowledged data durable.
pub struct Local {
    shards: Vec<DeviceShard>,
    cuts: Cuts,
    devices: Devices,
    set: Set,
    recoveries: Vec<Recovery>,
    /// Options for new lanes, and timeouts.
    options: OpenOptions,
}

/// A lease of objects across shards.
#[derive(Debug)]
#[must_use = "the objects are leased until it is released or its time is over"]
pub struct LocalLease(Vec<(u16, LeaseId)>);

impl Local {
    pub(super) fn open(options: &OpenOptions) -> Result<Local> {
        let found = Found::look(options)?;
        let (mut shards, mut recoveries) = (Vec::new(), Vec::new());
        for number in 0..found.set.shards() {
            let (shard, recovery) = found.open(number, &[])?;
            shards.push(shard);
            recoveries.push(recovery);
        }
        let Found { devices, set, .. } = found;
        let cuts = Cuts::new(set.clone());
        Ok(Local { shards, cuts, devices, set, recoveries, options: options.clone() })
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

    /// Accepts a request, which [`Local::poll`] answers. The number of requests is unlimited; use [`Local::waiting`]
    /// to bound it.
    ///
    /// The calls of [`super::Store`] map to requests as follows:
    ///
    /// | call | request |
    /// |---|---|
    /// | `put_blocks` | [`Action::PutMany`] with [`Local::layout`] in each item's options, and `after` in the first's |
    /// | `get_layer` | [`Action::GetMany`] of [`Part::Layer`] |
    /// | `reserve_blocks` | [`Action::Reserve`] with the layout; each answer has a [`WriterId`] |
    /// | `BlocksWriter::put_layer` | [`Action::Fill`] of [`Part::Layer`] of each writer |
    /// | `BlocksWriter::commit` | [`Action::Seal`] of each; [`Local::abandon`] gives one up |
    pub fn submit(&mut self, now: Time, request: Request) {
        let Local { shards, cuts, .. } = self;
        match shards.as_mut_slice() {
            [only] => only.submit(now, request),
            several => {
                cuts.cut(request, |shard, part| several[usize::from(shard)].submit(now, part))
            }
        }
    }

    /// Does the pending work without waiting, and passes each answer to `done`.
    pub fn poll(&mut self, now: Time, done: &mut dyn FnMut(Done)) -> Turn {
        let Local { shards, cuts, .. } = self;
        if let [only] = shards.as_mut_slice() {
            return only.poll(now, done);
        }
        let mut all = Turn { moved: 0, in_flight: 0, next: Time::NEVER };
        for (shard, number) in shards.iter_mut().zip(0..) {
            let turn = shard.poll(now, &mut |part| cuts.join(number, part, done));
            all.moved += turn.moved;
            all.in_flight += turn.in_flight;
            all.next = all.next.min(turn.next);
        }
        all
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
        self.shard(key).exists(now, key)
    }

    /// Returns what the store knows about an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<ObjectInfo> {
        let shard = self.shard(key);
        shard.info(now, key).map(|info| ObjectInfo::of(shard, info))
    }

    /// Returns how many of `keys` exist before the first miss.
    pub fn lookup_prefix(&self, now: Time, keys: &[Key]) -> usize {
        if let [only] = self.shards.as_slice() {
            return only.lookup_prefix(now, keys);
        }
        let shares = route::shares(keys, self.set.shards(), |key| self.set.route(key));
        let misses = shares.iter().zip(&self.shards).map(|(share, shard)| {
            share.first_miss(shard.lookup_prefix(now, &share.keys), keys.len())
        });
        misses.min().unwrap_or(0)
    }

    /// Returns at most `limit` objects from cursor `from`, and the next cursor while there are more. Start at 0.
    /// Objects that are added or removed during the scan may or may not appear.
    pub fn scan(&self, now: Time, from: u64, limit: usize) -> (Vec<ObjectInfo>, Option<u64>) {
        let number = (from >> 32) as u16;
        let Some(shard) = self.shards.get(usize::from(number)) else { return (Vec::new(), None) };
        let (found, next) = shard.scan(now, from as u32, limit);
        let next = match next {
            Some(next) => Some(u64::from(number) << 32 | u64::from(next)),
            None if usize::from(number) + 1 < self.shards.len() => {
                Some(u64::from(number + 1) << 32)
            }
            None => None,
        };
        (found.into_iter().map(|info| ObjectInfo::of(shard, info)).collect(), next)
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
        let shares = route::shares(&keys[..prefix], self.set.shards(), |key| self.set.route(key));
        let mut lease = LocalLease(Vec::new());
        for (share, number) in shares.iter().zip(0u16..).filter(|(share, _)| !share.keys.is_empty())
        {
            match self.shards[usize::from(number)].lease(now, &share.keys, until) {
                Ok((id, _)) => lease.0.push((number, id)),
                Err(full) => {
                    self.release(lease);
                    return Err(full);
                }
            }
        }
        Ok((lease, prefix))
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
        let mut transfers = Transfers { parts: Vec::new(), lease: LocalLease(Vec::new()) };
        for (number, share) in plans::deal(asked, self.set.shards(), |key| self.set.route(key)) {
            match self.shards[usize::from(number)].plan(now, &share.asked, until) {
                Ok(planned) => {
                    let (part, lease) = share.planned(planned);
                    transfers.parts.push(part);
                    transfers.lease.0.push((number, lease));
                }
                Err(failure) => {
                    self.release(transfers.lease);
                    return Err(failure);
                }
            }
        }
        Ok(transfers)
    }

    /// Ends a lease. Ignores one that has already expired.
    pub fn release(&mut self, lease: LocalLease) {
        for (shard, id) in lease.0 {
            self.shards[usize::from(shard)].release(id);
        }
    }

    /// Gives up a writer's object and its room.
    pub fn abandon(&mut self, writer: WriterId) {
        let (shard, writer) = self.cuts.writer(writer);
        self.shards[usize::from(shard)].abandon(writer);
    }

    /// Returns the tenant of this name, creating it if it is new. A given quota is set, divided equally among the
    /// shards.
    ///
    /// # Errors
    /// [`Failure::Undefined`] if there are 255 already, or the name is empty or longer than 64 bytes.
    pub fn tenant(
        &mut self,
        now: Time,
        name: &str,
        quota_bytes: Option<u64>,
    ) -> Result<TenantId, Failure> {
        let share = quota_bytes.map(|bytes| bytes.div_ceil(self.shards.len() as u64));
        let of = |shard: &mut DeviceShard| shard.tenant(now, name, share);
        let ids = self.shards.iter_mut().map(of).collect::<Result<Vec<_>, _>>()?;
        self.cuts.tenant(ids)
    }

    /// Returns the id of this layout, defining it if it is new.
    ///
    /// # Errors
    /// [`Failure::Undefined`] if there are 255 already; [`Failure::Device`] if it cannot be written to the journal.
    pub fn layout(&mut self, now: Time, layout: &Layout) -> Result<LayoutId, Failure> {
        let of = |shard: &mut DeviceShard| shard.layout(now, *layout);
        let ids = self.shards.iter_mut().map(of).collect::<Result<Vec<_>, _>>()?;
        self.cuts.layout(ids)
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
        self.submit(begun, Request { tag: COMMIT, deadline, action: Action::Commit });
        let mut committed = None;
        loop {
            let now = self.now();
            let turn = self.poll(now, &mut |answer| match answer.result {
                Ok(Outcome::Committed) if answer.tag == COMMIT => committed = Some(Ok(())),
                Err(ref failure) if answer.tag == COMMIT => committed = Some(Err(failure.clone())),
                _ => done(answer),
            });
            if let Some(result) = committed.take_if(|_| self.is_idle()) {
                return Ok(result?);
            }
            if now >= deadline {
                let waited_for = "requests to end and a commit before the store closes";
                let fix = "see the log for what the devices say";
                return Err(Error::Timeout { waited_for, after: self.options.timeout, fix });
            }
            if turn.moved == 0 {
                std::thread::sleep(self.options.idle.sleep_max.min(Duration::from_micros(50)));
            }
        }
    }

    fn shard(&self, key: &Key) -> &DeviceShard {
        &self.shards[usize::from(self.set.route(key))]
    }
}
