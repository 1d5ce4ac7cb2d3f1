//! The shard's lanes, one to each device: which are in service, and the commands that are sent to them.
//!
//! One of the devices is the shard's *home*: it has the journal and the checkpoints. Without it nothing becomes
//! durable.

use std::ops::{Index, IndexMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, DeviceQueue, Operation};
use adit_driver::spec::{Status, StatusCodeType};
use adit_driver::transfer::Direction;
use adit_driver::{CommandError, Time};

use super::memory::Memory;
use super::objects::spaces::Spaces;
use super::stats::Stats;
use crate::error::{Error, Failure, Result};
use crate::io::figures::DeviceFigures;
use crate::io::lane::{Command, Fault, Lane, Load, Purpose};
use crate::io::schedule::Class;
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES, units};
use crate::model::plan::{Limits, Run};

/// Bytes of writes that are sent without waiting for the next turn: the device works on them while the checksums of the
/// next ones are computed.
const SEND_BYTES: u64 = 512 << 10;
/// Number of writes that a `durable` store also sends without waiting for the next turn: flushes wait for the last one.
const SENT_WRITES: u64 = 16;
/// Maximum slices of one command: the limit of io_uring.
const SLICES_MAX: u32 = 256;
/// Maximum bytes of a command. A longer one would end as a whole, while shorter ones let one part be summed while the
/// device moves the next; and a command for the memory of several objects cannot use registered memory.
const COMMAND_BYTES_MAX: u64 = 2 << 20;
/// Shorter runs are not worth a discard.
const DISCARD_UNITS_MIN: u64 = 256;
const DISCARD_UNITS_MAX: u64 = 1 << 18;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It was not sent before its deadline.
    Expired,
    /// The device still works but cannot carry out the command: these LBAs are bad.
    Unreadable(Failure),
    /// The device is out of service.
    Gone(Failure),
}

impl Trouble {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Trouble::Expired => Failure::Deadline,
            Trouble::Unreadable(failure) | Trouble::Gone(failure) => failure,
        }
    }
}

/// The lanes to all devices, by the index of the device among the targets.
pub(crate) struct Lanes<Q> {
    all: Vec<Lane<Q>>,
    /// Index of the device with the journal and the checkpoints.
    home: usize,
    has_journal: bool,
    /// Limits of one command, valid on every device.
    limits: Limits,
    /// Bytes of the writes that began since commands were last sent, each counted as `least_bytes` at least.
    unsent_bytes: u64,
    least_bytes: u64,
    stats: Stats,
}

impl<Q> Index<usize> for Lanes<Q> {
    type Output = Lane<Q>;

    fn index(&self, device: usize) -> &Lane<Q> {
        &self.all[device]
    }
}

impl<Q> IndexMut<usize> for Lanes<Q> {
    fn index_mut(&mut self, device: usize) -> &mut Lane<Q> {
        &mut self.all[device]
    }
}

impl Lanes<DeviceQueue<Load>> {
    /// Has the queues raise an eventfd whenever a command ends, if their path can.
    ///
    /// # Errors
    /// As [`DeviceQueue::notify`].
    pub(super) fn notify(&mut self, event: BorrowedFd<'_>) -> adit_driver::Result<()> {
        for lane in &mut self.all {
            lane.notifies = lane.queue.notify(event)?;
        }
        Ok(())
    }
}

impl<Q: CommandQueue<Load>> Lanes<Q> {
    pub(super) fn new(all: Vec<Lane<Q>>, home: u8, durability: Durability) -> Lanes<Q> {
        let splits = all.iter().map(|lane| lane.info.split());
        let command_bytes_max = splits.clone().map(|split| split.command_bytes_max).min();
        let boundary_bytes = splits.map(|split| split.boundary_bytes).fold(0, common_boundary);
        let is_strict = durability == Durability::Durable;
        Lanes {
            all,
            home: usize::from(home),
            has_journal: durability != Durability::Volatile,
            limits: Limits {
                command_bytes_max: command_bytes_max.unwrap_or(UNIT_BYTES).min(COMMAND_BYTES_MAX),
                boundary_bytes,
                slices_max: SLICES_MAX,
            },
            unsent_bytes: 0,
            least_bytes: if is_strict { SEND_BYTES / SENT_WRITES } else { 0 },
            stats: Stats::default(),
        }
    }

    pub(super) fn into_all(self) -> Vec<Lane<Q>> {
        self.all
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane<Q>> {
        self.all.iter()
    }

    /// Returns the lane to a device.
    pub(super) fn of(&self, device: u8) -> &Lane<Q> {
        &self.all[usize::from(device)]
    }

    /// Returns the lane to the device with the journal.
    pub(super) fn home(&self) -> &Lane<Q> {
        &self.all[self.home]
    }

    pub(super) fn home_mut(&mut self) -> &mut Lane<Q> {
        &mut self.all[self.home]
    }

    pub(super) fn is_home(&self, device: usize) -> bool {
        device == self.home
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns what each device did for this shard, and how busy it is.
    pub(crate) fn figures(&self) -> impl Iterator<Item = DeviceFigures> + '_ {
        self.all.iter().map(Lane::figures)
    }

    /// Returns the number of commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.all.iter().map(Lane::in_flight).sum()
    }

    /// Returns whether every command in flight raises the eventfd given to `Shard::notify` once it ends.
    pub(crate) fn notifies(&self) -> bool {
        self.all.iter().all(|lane| lane.notifies)
    }

    /// Returns whether a lane has work for the next turn, whatever the clock.
    pub(super) fn has_news(&self) -> bool {
        self.all.iter().any(Lane::has_news)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.all.iter().all(Lane::is_idle)
    }

    /// Waits in the kernel until a command ends, `at_most` at the longest; returns false where that cannot be waited
    /// for.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let mut busy = self.all.iter_mut().filter(|lane| lane.in_flight() > 0);
        let (Some(lane), None) = (busy.next(), busy.next()) else { return false };
        lane.queue.wait(at_most)
    }

    /// Prepares memory of the caller's on each device that can use it.
    pub(super) fn register(&mut self, memory: &Buffer) {
        for lane in self.all.iter_mut().filter(|lane| (lane.info.accepts)(memory)) {
            lane.queue.register(memory);
        }
    }

    /// Returns whether a device is in service.
    pub(super) fn works(&self, device: u8) -> bool {
        self.of(device).failure().is_none()
    }

    /// Returns a bit for each device in service.
    pub(super) fn working(&self) -> u64 {
        let works =
            |(device, lane): (usize, &Lane<Q>)| u64::from(lane.failure().is_none()) << device;
        self.all.iter().enumerate().map(works).sum()
    }

    /// Returns the devices whose queues can use this memory, which must be large enough for `needs` units.
    pub(super) fn devices_for(&self, memory: &Memory, needs: u64) -> Result<u64, Failure> {
        let (needs, has) = (needs * UNIT_BYTES, memory.bytes());
        if has < needs || !memory.is_whole(UNIT_BYTES) {
            return Err(Failure::Memory { needs, has });
        }
        let accepts = |device: &usize| memory.is_accepted(&self.all[*device].info.accepts);
        let devices =
            (0..self.all.len()).filter(accepts).fold(0, |bits, device| bits | 1 << device);
        if devices == 0 { Err(Failure::Foreign { device: 0 }) } else { Ok(devices) }
    }

    /// Returns the failure to report for a device that is out of service.
    pub(super) fn failure_of(&self, device: usize) -> Failure {
        let why = self.all[device].failure().unwrap_or("it is out of service").to_owned();
        Failure::Device { device: device as u8, why }
    }

    /// Returns whether the journal cannot be written.
    pub(super) fn is_home_lost(&self) -> bool {
        self.all[self.home].failure().is_some() && self.has_journal
    }

    /// Checks that the journal can be written.
    ///
    /// # Errors
    /// [`Failure::Device`] if its device is out of service.
    pub(super) fn check_home(&self) -> Result<(), Failure> {
        if self.is_home_lost() { Err(self.failure_of(self.home)) } else { Ok(()) }
    }

    /// Checks that no failed device has data that it never flushed.
    pub(super) fn check_flushed(&self) -> Result<(), Failure> {
        let is_lost = |lane: &Lane<Q>| lane.failure().is_some() && lane.is_dirty;
        let lost = self.all.iter().position(is_lost).filter(|_| self.has_journal);
        lost.map_or(Ok(()), |device| Err(self.failure_of(device)))
    }

    /// Returns whether a device failed since the last call for it, and counts the failure.
    pub(super) fn note_failure(&mut self, device: usize) -> bool {
        let lane = &mut self.all[device];
        let is_new =
            lane.failure().is_some() && !std::mem::replace(&mut lane.is_failure_noted, true);
        self.stats.device_failures += u64::from(is_new);
        is_new
    }

    /// Returns what the failure of a command means for its items.
    pub(super) fn trouble(&self, device: usize, fault: Fault) -> Trouble {
        let lane = &self.all[device];
        let why = lane.failure().map_or_else(|| fault.to_string(), str::to_owned);
        let failure = Failure::Device { device: device as u8, why };
        match fault {
            Fault::Expired => Trouble::Expired,
            Fault::Command(error) if lane.failure().is_none() && error.is_no_space() => {
                Trouble::Unreadable(Failure::NoSpace { device: lane.info.device.clone() })
            }
            Fault::Command(error) if lane.failure().is_none() && is_of_medium(&error) => {
                Trouble::Unreadable(failure)
            }
            Fault::Command(_) | Fault::Rejected(_) | Fault::Gone => Trouble::Gone(failure),
        }
    }

    /// Sends the commands that wait, as many as the devices take. Returns their number.
    pub(super) fn send(&mut self, now: Time) -> usize {
        self.unsent_bytes = 0;
        self.all.iter_mut().map(|lane| lane.send(now)).sum()
    }

    /// Sends the commands that wait if there are many bytes of writes.
    pub(super) fn send_if_much(&mut self, now: Time) {
        if self.unsent_bytes >= SEND_BYTES {
            self.send(now);
        }
    }

    /// Queues a command of a batch.
    pub(super) fn push_run(
        &mut self,
        (now, deadline): (Time, Time),
        (direction, run): (Direction, &Run),
        purpose: Purpose,
        memory: AnyBuffer,
    ) {
        let (lane, bytes) = (&mut self.all[usize::from(run.place.device)], run.bytes);
        let lba = run.place.lba(lane.info.lba_bytes);
        let (operation, class) = match direction {
            Direction::Read => {
                self.stats.commands_read += 1;
                (Operation::Read(lba), Class::Read)
            }
            Direction::Write => {
                self.stats.commands_write += 1;
                self.stats.bytes_to_device += bytes;
                self.unsent_bytes += bytes.max(self.least_bytes);
                (Operation::Write(lba), Class::Write)
            }
        };
        lane.push(now, Command { purpose, operation, class, memory, bytes, deadline });
    }

    /// Writes the first `bytes` of a home lane buffer to `unit`, in as many commands as that takes.
    pub(super) fn write_home(
        &mut self,
        now: Time,
        (purpose, class): (Purpose, Class),
        unit: u64,
        mut memory: Buffer,
        bytes: usize,
    ) -> u32 {
        let lane = &mut self.all[self.home];
        let split = lane.info.split();
        let mut commands = 0;
        lane.keep(memory.split_off(bytes));
        let mut place = Place { device: self.home as u8, unit };
        while !memory.is_empty() {
            let bytes = split.first(place.unit * UNIT_BYTES, memory.len() as u64);
            let rest = memory.split_off(bytes as usize);
            let operation = Operation::Write(place.lba(lane.info.lba_bytes));
            let (memory_now, deadline) = (AnyBuffer::One(memory), Time::NEVER);
            lane.push(
                now,
                Command { purpose, operation, class, memory: memory_now, bytes, deadline },
            );
            place = place.plus(units(bytes));
            commands += 1;
            memory = rest;
        }
        self.stats.bytes_to_device += bytes as u64;
        commands
    }

    /// Sends flush `number` to the journal's device and every device that was written to since its last flush. Returns
    /// their number.
    pub(super) fn flush(&mut self, now: Time, number: u64) -> u32 {
        let mut devices = 0;
        for (index, lane) in self.all.iter_mut().enumerate() {
            if lane.failure().is_some() || !(lane.is_dirty || index == self.home) {
                continue;
            }
            lane.is_dirty = false;
            devices += 1;
            let (purpose, memory) = (Purpose::Flush { number }, AnyBuffer::None);
            let (operation, class) = (Operation::Flush, Class::Metadata);
            let deadline = Time::NEVER;
            lane.push(now, Command { purpose, operation, class, memory, bytes: 0, deadline });
        }
        self.stats.flushes += u64::from(devices);
        devices
    }

    /// Keeps the memory of a command that ended.
    pub(super) fn keep(&mut self, device: usize, memory: AnyBuffer) {
        let AnyBuffer::One(memory) = memory else { unreachable!("metadata is in one buffer") };
        self.all[device].keep(memory);
    }

    /// Deallocates a long free run in the background, unless one is being deallocated.
    pub(super) fn discard(&mut self, now: Time, spaces: &mut Spaces) {
        let able = || self.all.iter().filter(|lane| lane.info.deallocates);
        if spaces.discarding_units() > 0 || able().any(|lane| lane.memory.is_empty()) {
            return;
        }
        let units = |lane: &Lane<Q>| {
            lane.info.deallocate_lbas_max / (UNIT_BYTES / u64::from(lane.info.lba_bytes))
        };
        let most = able().map(units).min().unwrap_or(0).min(DISCARD_UNITS_MAX);
        if most == 0 {
            return;
        }
        let Some((device, run)) = spaces.next_discard(DISCARD_UNITS_MIN, most) else { return };
        let lane = &mut self.all[usize::from(device)];
        if lane.failure().is_some() || !lane.info.deallocates {
            return spaces.discarded(device, run);
        }
        let memory = lane.memory.pop().expect("each lane has memory");
        let (unit, units) = (run.start, run.end - run.start);
        let per_unit = UNIT_BYTES / u64::from(lane.info.lba_bytes);
        let lba = Place { device, unit }.lba(lane.info.lba_bytes);
        let operation = Operation::Deallocate(lba, (units * per_unit) as u32);
        let (purpose, class) = (Purpose::Discard { unit, units }, Class::Background);
        let (memory, deadline) = (AnyBuffer::One(memory), Time::NEVER);
        self.stats.discards_bytes += units * UNIT_BYTES;
        lane.push(now, Command { purpose, operation, class, memory, bytes: 0, deadline });
    }

    /// Checks that `lane` can replace that of a device which failed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device still works, still has commands in flight, or has a different size.
    pub(super) fn check_attach(&self, device: u8, lane: &Lane<Q>) -> Result<()> {
        let Some(old) = self.all.get(usize::from(device)) else {
            return Err(Error::invalid("device", device, "the store has no such device"));
        };
        if old.failure().is_none() {
            return Err(Error::invalid("device", device, "it works: there is nothing to attach"));
        }
        if !old.is_idle() {
            let fix = "it still has commands in flight: poll until they are over";
            return Err(Error::invalid("device", device, fix));
        }
        if old.units() != lane.units() || old.info.lba_bytes != lane.info.lba_bytes {
            let fix = "it has another size than the device that failed: attach that one";
            return Err(Error::invalid("device", device, fix));
        }
        Ok(())
    }

    /// Replaces the lane of a device and returns the old one.
    pub(super) fn replace(&mut self, device: usize, lane: Lane<Q>) -> Lane<Q> {
        if device == self.home {
            // The flush in progress was dropped, so what it covered must be flushed again.
            let at_work = self.all.iter_mut().filter(|lane| lane.failure().is_none());
            at_work.for_each(|lane| lane.is_dirty = true);
        }
        let here = &mut self.all[device];
        let old = std::mem::replace(here, lane);
        here.attachment = old.attachment + 1;
        // Data written before the failure may not have been flushed.
        here.is_dirty = true;
        old
    }
}

/// Returns the boundary that keeps both, their greatest common divisor; 0 is none.
fn common_boundary(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_boundary(other, one % other) }
}

/// Returns whether an error is about the data on the medium rather than the way to it.
fn is_of_medium(error: &CommandError) -> bool {
    let is_integrity =
        |status: &Status| status.code_type() == StatusCodeType::MediaAndDataIntegrity;
    !error.is_retryable() || matches!(error, CommandError::Status(status) if is_integrity(status))
}
