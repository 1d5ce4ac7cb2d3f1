//! A queue that completes at once and keeps metadata only, to measure a store by itself.
//!
//! Requests complete at the first poll after the ring. Writes outside the objects' range are kept and read back.
//! Objects' data stays in the caller's memory, so that a read finds there what was written if all memory holds the
//! same bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::paths::{CommandQueue, Operation, Request};
use adit_driver::queue_pair::{Completion, Rejected, Stats};
use adit_driver::{Device, DeviceOptions, Time};
use adit_kvstore::internals::format::{self, FormatOptions, Set};
use adit_kvstore::shard::{LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Recovery, Shard, ShardOptions};
use adit_kvstore::{Result, UNIT_BYTES};

pub(crate) type Units = HashMap<u64, Box<[u8]>>;

/// The storage behind the queues.
#[derive(Clone)]
pub(crate) struct Shelf {
    memory: Device,
    /// Units written outside the objects' range.
    pub(crate) units: Arc<Mutex<Units>>,
    /// Its size.
    pub(crate) bytes: u64,
    objects: Range<u64>,
}

pub(crate) struct ShelfQueue {
    units: Arc<Mutex<Units>>,
    /// The units of objects.
    objects: Range<u64>,
    posted: Vec<Load>,
    rung: Vec<Load>,
}

impl Shelf {
    pub(crate) fn new(bytes: u64) -> adit_driver::Result<Shelf> {
        let memory = Device::open(&"null:".parse()?, &DeviceOptions::default())?;
        Ok(Shelf { memory, units: Arc::default(), bytes, objects: 0..0 })
    }

    /// Allocates memory for requests.
    pub(crate) fn allocate(&self, bytes: usize) -> adit_driver::Result<Buffer> {
        self.memory.allocate(bytes)
    }

    fn lanes(&self) -> Result<Vec<Lane<ShelfQueue>>> {
        let queue = ShelfQueue {
            units: Arc::clone(&self.units),
            objects: self.objects.clone(),
            posted: Vec::with_capacity(256),
            rung: Vec::with_capacity(256),
        };
        let info = LaneInfo {
            device: "shelf".to_owned(),
            bytes: self.bytes,
            lba_bytes: 4096,
            command_bytes_max: 1 << 20,
            boundary_bytes: 0,
            depth: 130,
            deallocates: false,
            deallocate_lbas_max: 0,
            may_lack_space: false,
            protection: None,
            accepts: Box::new(|_| true),
        };
        Ok(vec![Lane::new(queue, info, self.memory.allocate(LANE_MEMORY_BYTES)?)])
    }

    /// Formats it as a store.
    ///
    /// # Errors
    /// As [`format::format`].
    pub(crate) fn format(&mut self, objects_max: u32) -> Result<Set> {
        let options = FormatOptions {
            shards: 1,
            objects_max,
            key_bytes: 64,
            journal_bytes: None,
            label: String::new(),
            store_id: [1; 16],
            overwrite: true,
        };
        let clock = &mut || Time::ZERO;
        self.objects = 0..0;
        format::format(&mut self.lanes()?, &options, clock)?;
        let set = self.read_set()?;
        self.objects = set.geometry().data(0, 0).remove(0);
        Ok(set)
    }

    /// Opens the store.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub(crate) fn open(&self, set: &Set, options: ShardOptions) -> Result<Shard<ShelfQueue>> {
        Ok(self.recover(set, options)?.0)
    }

    /// Opens the store and returns what recovery found.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub(crate) fn recover(
        &self,
        set: &Set,
        options: ShardOptions,
    ) -> Result<(Shard<ShelfQueue>, Recovery)> {
        Shard::open(0, self.lanes()?, set, options, &mut || Time::ZERO)
    }

    /// Reads its superblocks.
    ///
    /// # Errors
    /// As [`format::read_set`].
    pub(crate) fn read_set(&self) -> Result<Set> {
        format::read_set(&mut self.lanes()?, &mut || Time::ZERO)
    }
}

impl ShelfQueue {
    fn carry_out(&mut self, operation: Operation, memory: &mut AnyBuffer) {
        let (first, is_write) = match operation {
            Operation::Read(lba) => (lba.0, false),
            Operation::Write(lba) => (lba.0, true),
            Operation::Flush | Operation::Deallocate(..) => return,
        };
        let AnyBuffer::One(memory) = memory else { return };
        if self.objects.contains(&first) {
            return;
        }
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        for (unit, bytes) in (first..).zip(memory.chunks_mut(UNIT_BYTES as usize)) {
            match (is_write, units.get(&unit)) {
                (true, _) => drop(units.insert(unit, (&*bytes).into())),
                (false, Some(kept)) => bytes.copy_from_slice(kept),
                (false, None) => bytes.fill(0),
            }
        }
    }
}

impl CommandQueue<Load> for ShelfQueue {
    #[inline]
    fn post(
        &mut self,
        _now: Time,
        request: Request<Load>,
    ) -> std::result::Result<(), Rejected<Load>> {
        let Request { operation, mut buffer } = request;
        self.carry_out(operation, &mut buffer.0);
        self.posted.push(buffer);
        Ok(())
    }

    fn post_again(
        &mut self,
        now: Time,
        request: Request<Load>,
    ) -> std::result::Result<(), Rejected<Load>> {
        self.post(now, request)
    }

    #[inline]
    fn ring(&mut self) {
        self.rung.append(&mut self.posted);
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<Load>)) -> usize {
        let count = self.rung.len();
        self.rung.drain(..).for_each(|buffer| done(Completion { buffer, result: Ok(0) }));
        count
    }

    fn check(&self) -> adit_driver::Result<()> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}
