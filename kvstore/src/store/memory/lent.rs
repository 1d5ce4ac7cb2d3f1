//! Memory of the caller's that a device cannot use as it is.
//!
//! A device moves whole units of 4 KiB, to and from memory that it knows. Of memory that begins or ends elsewhere, or
//! is registered for another device, only the aligned part goes along; the rest, or all, passes through a pool and is
//! copied, which is counted. Memory that no device of the store knows is left to the shard, which refuses it.
//!
//! Memory that a device can use as it is may still pass through a pool, where that costs less ([`super::copy_mode`]).

use std::sync::Arc;

use adit_driver::memory::{AnyBuffer, IoBuffer};
use adit_driver::{Buffer, Device};

use super::copy_mode::{ModeChooser, TimedTransfer};
use super::pool::{Counts, Pool, PoolBuffer, Pools};
use super::segments::{any, bytes_of, gather, is_whole, joined, list, slice, split};
use crate::model::place::UNIT_BYTES;

const UNIT: usize = UNIT_BYTES as usize;

/// The memory that the devices of a store can use: its pools, and memory of callers.
pub(crate) struct DeviceReach {
    devices: Vec<Device>,
    /// For each device the choosers of reads and of writes, if the size of pages matters to it.
    choosers: Vec<Option<[Arc<ModeChooser>; 2]>>,
    pub(super) pools: Arc<Pools>,
}

impl DeviceReach {
    pub(crate) fn new(devices: &[Device], pools: &Arc<Pools>) -> DeviceReach {
        let choosers = devices.iter().zip(0..);
        let choosers = choosers
            .map(|(device, number)| ModeChooser::pair(device, pools.of_device(number).pages()))
            .collect();
        DeviceReach { devices: devices.to_vec(), choosers, pools: Arc::clone(pools) }
    }

    /// Returns the counters of copied bytes and of others.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.pools.counts
    }

    /// Times a read of `bytes` that its device can do in place, if its mode is open to choice.
    pub(crate) fn begin_read(
        &self,
        device: u8,
        into: &[Buffer],
        bytes: usize,
    ) -> Option<TimedTransfer> {
        let [chooser, _] = self.choosers[usize::from(device)].as_ref()?;
        chooser.is_open(into, bytes as u64).then(|| chooser.begin(bytes as u64))
    }

    /// Times a put that its device can do in place, if its mode is open to choice. A put for any device counts for
    /// the first one that has a choice.
    pub(super) fn begin_put(
        &self,
        memory: &AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Option<TimedTransfer> {
        if bytes_of(memory) < bytes || !self.knows(memory) {
            // The shard refuses it.
            return None;
        }
        let any = || self.choosers.iter().flatten().next();
        let of = |device| self.choosers[usize::from(device)].as_ref();
        let [_, chooser] = device.map_or_else(any, of)?;
        chooser.is_open(slice(memory), bytes).then(|| chooser.begin(bytes))
    }

    /// Returns whether a device can use the memory from its first byte on.
    pub(crate) fn reaches(&self, device: usize, memory: &impl IoBuffer) -> bool {
        let device = &self.devices[device];
        let lba_bytes = device.info().lba_bytes as usize;
        let begins = |index| memory.pointer(index).addr().get().is_multiple_of(lba_bytes);
        device.accepts(memory) && (0..memory.segment_count()).all(begins)
    }

    /// Returns whether a device of the store knows the memory.
    pub(crate) fn knows(&self, memory: &AnyBuffer) -> bool {
        self.devices.iter().any(|device| device.accepts(memory))
    }

    /// Returns whether a device can use all of the memory.
    fn uses(&self, device: usize, memory: &AnyBuffer) -> bool {
        self.reaches(device, memory) && is_whole(memory)
    }

    /// Returns whether each device can use all of the memory and its mode is not open to choice, or no device knows it.
    pub(crate) fn needs_no_copy(&self, memory: &AnyBuffer) -> bool {
        if memory.segment_count() == 0 {
            // An empty object is read by way of a pool.
            return false;
        }
        let reads = self.choosers.iter().flatten().map(|[reads, _]| reads);
        let is_open = |chooser: &Arc<ModeChooser>| chooser.is_open(slice(memory), bytes_of(memory));
        let is_used = (0..self.devices.len()).all(|device| self.uses(device, memory));
        (is_used && !{ reads }.any(is_open)) || !self.knows(memory)
    }

    /// Returns how the memory of a put of `bytes` is split for `device`, or for any; `None` if it goes as it is, or
    /// no device knows it.
    pub(super) fn split(
        &self,
        memory: &AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Option<BounceSplit> {
        if bytes == 0 {
            // One unit of a pool goes to the device, and none of the caller's memory.
            return Some(BounceSplit { head: 0, through: 0, device });
        }
        let devices = device
            .map_or(0..self.devices.len(), |device| usize::from(device)..usize::from(device) + 1);
        let is_short = bytes_of(memory) < bytes;
        if is_short
            || devices.clone().any(|device| self.uses(device, memory))
            || !self.knows(memory)
        {
            return None;
        }
        let reaching = devices.clone().find(|device| self.reaches(*device, memory));
        let head = match (memory, reaching) {
            (AnyBuffer::One(_), Some(_)) => bytes as usize / UNIT * UNIT,
            _ => 0,
        };
        let device = if head > 0 { reaching.map(|device| device as u8) } else { device };
        Some(BounceSplit { head, through: bytes as usize - head, device })
    }
}

/// How much of lent memory goes to a device in place, and how much by copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct BounceSplit {
    /// Bytes that go as they are.
    head: usize,
    /// Bytes behind them that pass through a pool.
    pub(super) through: usize,
    /// The device that the pool's memory is for, or any.
    pub(super) device: Option<u8>,
}

impl BounceSplit {
    /// Splits off nothing of `bytes`: all are copied, though a device can use them as they are.
    pub(super) fn copied(bytes: u64, device: Option<u8>) -> BounceSplit {
        BounceSplit { head: 0, through: bytes as usize, device }
    }

    /// Returns what goes to the device: a part of the memory, and a copy of the rest in `run`, if there is a rest.
    pub(super) fn carry(
        self,
        memory: AnyBuffer,
        run: Option<PoolBuffer>,
        counts: &Counts,
    ) -> (AnyBuffer, Origin) {
        let has = run.as_ref().map_or(0, |run| run.len());
        assert_eq!(has, self.through, "there is room for what is copied");
        let (along, rest) = split(list(memory), self.head);
        counts.count_in_place(self.head);
        let run = run.map(|mut run| {
            gather(&rest, &mut run);
            counts.count_copy(self.through);
            run.into_cleared_parts()
        });
        let (run, pool) = run.unzip();
        (any(along.into_iter().chain(run).collect()), Origin { pool, rest, timed: None })
    }
}

/// Whose memory a request has: its caller's, a pool's, or both.
#[derive(Default)]
pub(crate) struct Origin {
    /// The pool of its last run, unless all is the caller's.
    pool: Option<Arc<Pool>>,
    /// The caller's memory behind the part that went along.
    rest: Vec<Buffer>,
    /// The time that the put takes, if its mode was chosen.
    timed: Option<TimedTransfer>,
}

impl Origin {
    /// Returns the origin of memory that is all of a pool.
    pub(super) fn pooled(pool: Arc<Pool>) -> Origin {
        Origin { pool: Some(pool), rest: Vec::new(), timed: None }
    }

    /// Adds the timing of a put whose mode was chosen.
    pub(super) fn timed(self, timed: Option<TimedTransfer>) -> Origin {
        Origin { timed, ..self }
    }

    /// Notes that a device has all bytes.
    pub(crate) fn done(&mut self) {
        self.timed.iter_mut().for_each(TimedTransfer::done);
    }

    /// Returns the pool if it owns all of the memory.
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref().filter(|_| self.rest.is_empty())
    }

    /// Returns the caller's memory as it was given, and the rest to its pool.
    pub(crate) fn restore(self, memory: AnyBuffer) -> AnyBuffer {
        if self.pool.is_none() && self.rest.is_empty() {
            return memory;
        }
        let mut parts = list(memory);
        if let Some(pool) = self.pool {
            parts.pop().into_iter().for_each(|run| drop(PoolBuffer::of(run, 0, &pool)));
        }
        any(joined(parts, self.rest))
    }
}
