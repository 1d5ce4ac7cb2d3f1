//! All shards of a store on the caller's own thread: no mailbox, no other thread, no lock.
//!
//! The calls are a [`Shard`]'s, for any number of shards: what concerns several is cut up on the way in and
//! put together on the way out ([`super::cut`]). With one shard requests pass as they are.

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

/// A store that the calling thread drives. Call [`Local::poll`] over and over while anything is to be done.
///
/// Dropping it is a crash to the store; [`Local::close`] makes what is acknowledged durable first.
pub struct Local {
    shards: Vec<DeviceShard>,
    cuts: Cuts,
    devices: Devices,
    set: Set,
    recoveries: Vec<Recovery>,
    /// How lanes are made, and how long it waits.
    options: OpenOptions,
}

/// A lease of objects in any shards.
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

    /// The present on the store's clock, which all calls go by.
    pub fn now(&self) -> Time {
        self.devices.now()
    }

    /// What the store was formatted as.
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// Its devices, by their position among the targets.
    pub fn devices(&self) -> &[Device] {
        self.devices.as_slice()
    }

    /// What each shard found when it was opened.
    pub fn recoveries(&self) -> &[Recovery] {
        &self.recoveries
    }

    /// Memory of at least `len` bytes for requests to objects on the first device, and on every device that is reached
    /// through the kernel.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.allocate_on(0, len)
    }

    /// Memory of at least `len` bytes for requests to objects on one device. It serves others where
    /// [`Device::accepts`] says so.
    ///
    /// # Errors
    /// As [`Device::allocate`]; [`Error::Invalid`] where there is no such device.
    pub fn allocate_on(&self, device: u8, len: usize) -> Result<Buffer> {
        let devices = self.devices.as_slice();
        let found = devices.get(usize::from(device)).ok_or_else(|| {
            Error::invalid("device", device, format!("the store has {} devices", devices.len()))
        })?;
        Ok(found.allocate(len)?)
    }

    /// Takes a request; it is answered by [`Local::poll`]. There is no limit but the caller's: see
    /// [`Local::waiting`].
    ///
    /// What [`super::Store`] has calls of its own for, requests say:
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

    /// Does what there is to do, without waiting, and gives each answer to `done`.
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

    /// Requests that were not begun yet: back-pressure for whoever hands them in.
    pub fn waiting(&self) -> usize {
        self.shards.iter().map(Shard::waiting).sum()
    }

    /// Whether nothing is going on, so that without another request [`Local::poll`] need not be called.
    pub fn is_idle(&self) -> bool {
        self.shards.iter().all(Shard::is_idle)
    }

    /// Whether there is such an object.
    pub fn exists(&self, now: Time, key: &Key) -> bool {
        self.shard(key).exists(now, key)
    }

    /// What is known of an object.
    pub fn info(&self, now: Time, key: &Key) -> Option<ObjectInfo> {
        let shard = self.shard(key);
        shard.info(now, key).map(|info| ObjectInfo::of(shard, info))
    }

    /// How many of `keys` there are before the first that is missing.
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

    /// At most `limit` objects from a cursor on, and the next cursor while there are more. Starts at 0. Objects that
    /// come or go meanwhile are seen or not.
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

    /// Plans reads of these parts for somebody else to carry out, and holds the objects until `until` or
    /// [`Local::release`] of the plan's lease.
    ///
    /// # Errors
    /// [`Failure::Part`] if an object has no such part; [`Failure::Full`] when too many objects are leased.
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

    /// Ends a lease. One that is over already is ignored.
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

    /// The tenant of this name, made if it is new; its quota is set where one is given, in equal parts for the shards.
    ///
    /// # Errors
    /// [`Failure::Undefined`] when there are 255 already, or the name is empty or longer than 64 bytes.
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

    /// The number of this layout, which is defined if it is new.
    ///
    /// # Errors
    /// [`Failure::Undefined`] when there are 255 already; [`Failure::Device`] when it cannot be told to the journal.
    pub fn layout(&mut self, now: Time, layout: &Layout) -> Result<LayoutId, Failure> {
        let of = |shard: &mut DeviceShard| shard.layout(now, *layout);
        let ids = self.shards.iter_mut().map(of).collect::<Result<Vec<_>, _>>()?;
        self.cuts.layout(ids)
    }

    /// What the shards counted, in sum.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.shards.iter().for_each(|shard| sum += shard.stats());
        sum
    }

    /// Brings a device back that failed, and with it its objects, which were misses meanwhile: recovers its controller,
    /// checks that it is the store's as it was, and has each shard use it again. Others that failed stay as they are.
    /// Waits for the device; [`Local::poll`] goes on afterwards with what was kept for it.
    ///
    /// # Errors
    /// As [`adit_driver::Controller::recover`]; [`Error::Media`] where another device answers; [`Error::Invalid`]
    /// where there is no such device, or it works, or its commands are not over: poll, and call it again.
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

    /// Finishes what was begun, makes what was acknowledged durable and lets the devices go. The answers of requests
    /// that were still on their way go to `done`.
    ///
    /// # Errors
    /// [`Error::Failed`] where a device could not make it durable; [`Error::Timeout`] where it took longer than the
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
