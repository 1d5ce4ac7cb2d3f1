//! Splits callers' memory into the part that a device uses in place and the part that is copied.
//!
//! A device moves whole units of 4 KiB, to and from memory registered for it. Of unaligned memory only the aligned part
//! goes in place; the rest, and memory registered for another device, is copied through a pool, which is counted. The
//! shard refuses memory that no device of the store knows.
//!
//! Memory that a device can use in place may still pass through a pool, where that costs less ([`super::copy_mode`]).

use std::sync::Arc;

use adit_driver::memory::{AnyBuffer, IoBuffer};
use adit_driver::{Buffer, Device};

use super::copy_mode::{ModeChooser, TimedTransfer};
use super::pool::{Counts, Pool, PoolBuffer, Pools};
use super::segments::{any, bytes_of, gather, is_whole, joined, list, slice, split};
use crate::model::place::UNIT_BYTES;

const UNIT: usize = UNIT_BYTES as usize;

/// Decides which memory the devices of a store can use: its pools, and callers' memory.
pub(crate) struct DeviceReach {
    devices: Vec<Device>,
    /// For each device, the choosers of reads and of writes, if page size matters to it.
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

    /// Returns the counters of copies and of memory beyond the pools.
    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.pools.counts
    }

    /// Begins timing a read of `bytes` that its device can do in place, if its mode is open to choice.
    pub(crate) fn begin_read(
        &self,
        device: u8,
        into: &[Buffer],
        bytes: usize,
    ) -> Option<TimedTransfer> {
        let [chooser, _] = self.choosers[usize::from(device)].as_ref()?;
        chooser.is_open(into, bytes as u64).then(|| chooser.begin(bytes as u64))
    }

    /// Begins timing a put that its device can do in place, if its mode is open to choice. A put for any device counts
    /// for the first device that has a choice.
    pub(super) fn begin_put(
        &self,
        memory: &AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Option<TimedTransfer> {
        if bytes_of(memory) < bytes || !self.knows(memory) {
            // The shard refuses such memory.
            return None;
        }
        let any = || self.choosers.iter().flatten().next();
        let of = |device| self.choosers[usize::from(device)].as_ref();
        let [_, chooser] = device.map_or_else(any, of)?;
        chooser.is_open(slice(memory), bytes).then(|| chooser.begin(bytes))
    }

    /// Returns whether a device can use the memory from the first byte on.
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
            // An empty object is read through a pool.
            return false;
        }
        let reads = self.choosers.iter().flatten().map(|[reads, _]| reads);
        let is_open = |chooser: &Arc<ModeChooser>| chooser.is_open(slice(memory), bytes_of(memory));
        let is_used = (0..self.devices.len()).all(|device| self.uses(device, memory));
        (is_used && !{ reads }.any(is_open)) || !self.knows(memory)
    }

    /// Returns how the memory of a put of `bytes` is split for `device`, or for any; `None` if all of it goes in place,
    /// or if no device knows it.
    pub(super) fn split(
        &self,
        memory: &AnyBuffer,
        bytes: u64,
        device: Option<u8>,
    ) -> Option<BounceSplit> {
        if bytes == 0 {
            // One unit of pool memory goes to the device, and none of the caller's.
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

/// A split of lent memory: how much a device uses in place, and how much is copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct BounceSplit {
    /// Bytes used in place.
    head: usize,
    /// Bytes behind `head` that are copied through a pool.
    pub(super) through: usize,
    /// The device that the pool memory is for; `None` for any.
    pub(super) device: Option<u8>,
}

impl BounceSplit {
    /// Returns a split that copies all of `bytes`, although a device could use them in place.
    pub(super) fn copied(bytes: u64, device: Option<u8>) -> BounceSplit {
        BounceSplit { head: 0, through: bytes as usize, device }
    }

    /// Returns the memory for the device: a part of the caller's, and a copy of the rest in `run`, if there is a rest.
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

/// The owners of a request's memory: its caller, a pool, or both.
#[derive(Default)]
pub(crate) struct Origin {
    /// The pool of the last run, unless all memory is the caller's.
    pool: Option<Arc<Pool>>,
    /// The caller's memory behind the part used in place.
    rest: Vec<Buffer>,
    /// The timing of the put, if its mode was chosen.
    timed: Option<TimedTransfer>,
}

impl Origin {
    /// Returns the origin of memory that belongs entirely to a pool.
    pub(super) fn pooled(pool: Arc<Pool>) -> Origin {
        Origin { pool: Some(pool), rest: Vec::new(), timed: None }
    }

    /// Adds the timing of a put whose mode was chosen.
    pub(super) fn timed(self, timed: Option<TimedTransfer>) -> Origin {
        Origin { timed, ..self }
    }

    /// Records that the device has all bytes.
    pub(crate) fn done(&mut self) {
        self.timed.iter_mut().for_each(TimedTransfer::done);
    }

    /// Returns the pool if it owns all of the memory.
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref().filter(|_| self.rest.is_empty())
    }

    /// Returns the caller's memory as it was lent, and returns the rest to its pool.
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
