//! In-memory devices under a test's control: what is in flight, what fails, and what a power cut leaves.
//!
//! Commands are carried out when polled, in the order in which they were posted. A power cut loses a write unless a
//! flush was carried out after it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::spec::Status;
use adit_driver::{
    Buffer, CommandError, Completion, Device, DeviceOptions, Error, Rejected, Result, Stats, Time,
};

use crate::model::place::UNIT_BYTES;
use crate::shard::{LANE_MEMORY_BYTES, Lane, LaneInfo, Load};

const LBA_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Deallocate,
}

fn kind(operation: Operation) -> Kind {
    match operation {
        Operation::Read(_) => Kind::Read,
        Operation::Write(_) => Kind::Write,
        Operation::Flush => Kind::Flush,
        Operation::Deallocate(..) => Kind::Deallocate,
    }
}

/// A device's contents, and the faults that a test has chosen.
#[derive(Debug, Default)]
pub(crate) struct Medium {
    pub(crate) bytes: Vec<u8>,
    /// The previous contents of each unflushed write, oldest first.
    unflushed: Vec<(usize, Vec<u8>)>,
    /// Commands of these kinds stay in flight.
    pub(crate) held: Vec<Kind>,
    /// How many commands of each kind will fail, for good.
    pub(crate) failing: Vec<(Kind, u32)>,
    /// Failures are retryable.
    pub(crate) failures_pass: bool,
    /// Their status; by default a write fault.
    pub(crate) failing_with: Option<Status>,
    /// Restricts failing writes to those that begin in these units.
    pub(crate) failing_at: Option<Range<u64>>,
    /// Limit of commands carried out per poll.
    pub(crate) commands_per_poll: Option<usize>,
    /// Number of writes to corrupt by one bit.
    pub(crate) flips_left: u32,
    /// Every command fails.
    pub(crate) is_dead: bool,
    /// The lengths of the memory that was registered.
    pub(crate) registered: Vec<usize>,
    /// The units that were deallocated.
    pub(crate) deallocated: Vec<Range<u64>>,
    /// Changes left until the power is cut, shared with other devices.
    pub(crate) changes_left: Option<Arc<AtomicU64>>,
}

impl Medium {
    /// Returns whether there is power for one more change.
    fn takes_change(&self) -> bool {
        let Some(left) = &self.changes_left else { return true };
        let less = |left: u64| left.checked_sub(1);
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Drops unflushed data, as a device does that loses power for a moment.
    pub(crate) fn lose_cache(&mut self) {
        for (at, before) in self.unflushed.drain(..).rev() {
            self.bytes[at..at + before.len()].copy_from_slice(&before);
        }
    }

    fn carry_out(&mut self, request: &mut Request<Load>) -> std::result::Result<u32, CommandError> {
        let kind = kind(request.operation);
        if let Operation::Deallocate(lba, lbas) = request.operation {
            self.deallocated.push(lba.0..lba.0 + u64::from(lbas));
        }
        let is_there = match (request.operation, &self.failing_at) {
            (Operation::Write(lba), Some(units)) => units.contains(&lba.0),
            _ => true,
        };
        let mut failing = self.failing.iter_mut().filter(|_| is_there);
        let failing = failing.find(|(which, left)| *which == kind && *left > 0);
        if let Some((_, left)) = failing {
            *left -= 1;
            let fault = Status::WRITE_FAULT.with_dnr(!self.failures_pass);
            return Err(CommandError::Status(self.failing_with.unwrap_or(fault)));
        }
        let AnyBuffer::One(only) = &mut request.buffer.0 else {
            match &mut request.buffer.0 {
                AnyBuffer::Many(pieces) => self.scatter(request.operation, pieces),
                _ if self.takes_change() => self.unflushed.clear(),
                _ => {}
            }
            return Ok(0);
        };
        let piece = std::slice::from_mut(only);
        self.scatter(request.operation, piece);
        Ok(0)
    }

    fn scatter(&mut self, operation: Operation, pieces: &mut [Buffer]) {
        let (mut at, writes) = match operation {
            Operation::Read(lba) => ((lba.0 * LBA_BYTES) as usize, false),
            Operation::Write(lba) if self.takes_change() => ((lba.0 * LBA_BYTES) as usize, true),
            _ => return,
        };
        for piece in pieces {
            let there = &mut self.bytes[at..at + piece.len()];
            if writes {
                self.unflushed.push((at, there.to_vec()));
                there.copy_from_slice(piece);
            } else {
                piece.copy_from_slice(there);
            }
            at += piece.len();
        }
        if writes && self.flips_left > 0 {
            self.flips_left -= 1;
            self.bytes[at - 1] ^= 1;
        }
    }
}

/// A device. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    medium: Arc<Mutex<Medium>>,
    name: String,
    pub(crate) depth: u32,
    pub(crate) command_bytes_max: u64,
    pub(crate) boundary_bytes: u64,
    pub(crate) deallocates: bool,
    pub(crate) deallocate_lbas_max: u64,
}

impl TestDevice {
    pub(crate) fn new(name: &str, units: u64) -> TestDevice {
        let bytes = vec![0; (units * UNIT_BYTES) as usize];
        TestDevice {
            medium: Arc::new(Mutex::new(Medium { bytes, ..Medium::default() })),
            name: name.to_owned(),
            depth: 32,
            command_bytes_max: 1 << 20,
            boundary_bytes: 0,
            deallocates: false,
            deallocate_lbas_max: u64::MAX,
        }
    }

    pub(crate) fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().expect("no test thread panicked with it")
    }

    /// Returns another device with what a power cut leaves of this one: all that was written, or only what was
    /// flushed.
    pub(crate) fn after_power_cut(&self, keeps_unflushed: bool) -> TestDevice {
        self.after_loss(|_| !keeps_unflushed)
    }

    /// Returns another device with what a power cut leaves of this one that loses the unflushed writes to some units.
    pub(crate) fn after_loss(&self, mut is_lost: impl FnMut(u64) -> bool) -> TestDevice {
        let medium = self.medium();
        let mut bytes = medium.bytes.clone();
        for (at, before) in medium.unflushed.iter().rev() {
            if is_lost(*at as u64 / UNIT_BYTES) {
                bytes[*at..at + before.len()].copy_from_slice(before);
            }
        }
        let medium = Arc::new(Mutex::new(Medium { bytes, ..Medium::default() }));
        TestDevice { medium, ..self.clone() }
    }

    /// Returns another device of `units`, with the first and last units of this one.
    pub(crate) fn resized(&self, units: u64) -> TestDevice {
        let other = self.after_power_cut(true);
        let mut bytes = std::mem::take(&mut other.medium().bytes);
        let last = bytes.split_off(bytes.len() - UNIT_BYTES as usize);
        bytes.resize(((units - 1) * UNIT_BYTES) as usize, 0);
        bytes.extend(last);
        other.medium().bytes = bytes;
        other
    }

    pub(crate) fn lane(&self) -> Lane<TestQueue> {
        let info = LaneInfo {
            device: self.name.clone(),
            bytes: self.medium().bytes.len() as u64,
            lba_bytes: LBA_BYTES as u32,
            command_bytes_max: self.command_bytes_max,
            boundary_bytes: self.boundary_bytes,
            depth: self.depth,
            deallocates: self.deallocates,
            deallocate_lbas_max: self.deallocate_lbas_max,
            may_lack_space: false,
            protection: None,
            accepts: Box::new(|_| true),
        };
        let queue = TestQueue {
            medium: self.medium.clone(),
            depth: self.depth as usize,
            flights: Vec::new(),
        };
        Lane::new(queue, info, memory(LANE_MEMORY_BYTES))
    }
}

/// Allocates memory of whole units.
pub(crate) fn memory(bytes: usize) -> Buffer {
    let target = "null:".parse().expect("a target");
    let device = Device::open(&target, &DeviceOptions::default()).expect("nothing");
    device.allocate(bytes.next_multiple_of(UNIT_BYTES as usize)).expect("memory")
}

#[derive(Debug)]
pub(crate) struct TestQueue {
    medium: Arc<Mutex<Medium>>,
    depth: usize,
    flights: Vec<Request<Load>>,
}

impl CommandQueue<Load> for TestQueue {
    fn post(&mut self, _: Time, request: Request<Load>) -> std::result::Result<(), Rejected<Load>> {
        assert!(self.flights.len() < self.depth, "a lane knows how much its queue takes");
        self.flights.push(request);
        Ok(())
    }

    fn post_again(
        &mut self,
        now: Time,
        request: Request<Load>,
    ) -> std::result::Result<(), Rejected<Load>> {
        self.post(now, request)
    }

    fn ring(&mut self) {}

    fn poll(&mut self, _: Time, mut done: impl FnMut(Completion<Load>)) -> usize {
        let mut medium = self.medium.lock().expect("no test thread panicked with it");
        let (mut count, mut kept) = (0, Vec::new());
        for mut request in self.flights.drain(..) {
            let result = if medium.is_dead {
                Err(CommandError::Reset { may_have_written: false })
            } else if medium.commands_per_poll.is_some_and(|most| count >= most)
                || medium.held.contains(&kind(request.operation))
            {
                kept.push(request);
                continue;
            } else {
                medium.carry_out(&mut request)
            };
            count += 1;
            done(Completion { buffer: request.buffer, result });
        }
        self.flights = kept;
        count
    }

    fn register(&mut self, memory: &Buffer) -> bool {
        self.medium.lock().expect("no test thread panicked with it").registered.push(memory.len());
        true
    }

    fn check(&self) -> Result<()> {
        if !self.medium.lock().expect("no test thread panicked with it").is_dead {
            return Ok(());
        }
        let invalid = |text: &str| text.to_owned();
        Err(Error::Invalid { what: invalid("the device"), why: invalid("it is gone") })
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}
