//! The rings as device code sees them: structures and tables in GPU memory, over queues created elsewhere.
//!
//! One allocation holds the kernels' argument (`Uring`), a `Ring` per queue with its words of publication, requests and
//! free identifiers, and the regions' lists for devices that take PRPs. [`Rings::reset`] writes it whole while no
//! kernel runs. The control words (stop, signs of life) lie in pinned memory.
//!
//! On drop, the queues go first: until then devices write to memory that their commands name.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_driver::Controller;
use adit_driver::controller::RingDepths;
use adit_driver::spec::{Cid, Qid, Sqe};
use zerocopy::{FromZeros, IntoBytes};

use crate::commands::layout::{
    AbandonArguments, DEPTH_MAX, Region, Ring, Uring, generation_of, state, state_of,
};
use crate::commands::table::MappingTable;
use crate::cuda::{DeviceMemory, Gpu, PinnedMemory};
use crate::error::{Error, Result};
use crate::reach::queue::Queue;

/// Offsets of the control words in bytes, each in its own pair of cache lines.
const STOP: usize = 0;
const ALIVE: usize = 128;
const ABANDON: usize = 256;
const MARKER: usize = 384;
/// Bytes of a marker kernel's argument, before the word that it stores.
const MARKER_BYTES: usize = 16;
const BLOCKS: usize = 512;
/// Offset of the rings behind their `Uring`.
const RINGS: u64 = 512;
/// Minimum distance of tables, so that warps of different rings share no cache line.
const LINE: u64 = 128;

const _: () = assert!(STOP < ALIVE && ALIVE < ABANDON && ABANDON < BLOCKS);
const _: () = assert!(ABANDON + size_of::<AbandonArguments>() <= MARKER);
const _: () = assert!(MARKER + MARKER_BYTES + size_of::<u32>() <= BLOCKS);
const _: () = assert!(size_of::<Uring>() as u64 <= RINGS && RINGS.is_multiple_of(LINE));

/// Views pinned memory as 64-bit words that CPU and GPU share.
pub(crate) fn quads(memory: &PinnedMemory) -> &[AtomicU64] {
    let words = memory.bytes() as usize / size_of::<AtomicU64>();
    debug_assert!(memory.host().cast::<AtomicU64>().is_aligned(), "it begins at a page");
    // SAFETY: page aligned, initialised, kept by `memory`, and everyone reaches it by atomics.
    unsafe { std::slice::from_raw_parts(memory.host().as_ptr().cast(), words) }
}

#[derive(Debug)]
pub struct Rings {
    /// Locked, since doorbells have one writer at a time; not contended here.
    queues: Mutex<Vec<Queue>>,
    ranges: Vec<Range<u32>>,
    plan: Plan,
    memory: DeviceMemory,
    control: PinnedMemory,
    iocbs: u64,
    iocb_count: u32,
}

/// Offsets of each ring's tables and each device's regions in the memory.
#[derive(Debug)]
struct Plan {
    tables: Vec<Tables>,
    regions: Vec<u64>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tables {
    published: u64,
    requests: u64,
    free_slots: u64,
}

impl Plan {
    fn new(depths: &[RingDepths], regions: impl Iterator<Item = usize>) -> Plan {
        let mut bytes = RINGS + (depths.len() * size_of::<Ring>()) as u64;
        let mut take = |count: u64| {
            let at = bytes;
            assert!(at.is_multiple_of(8), "tables are whole words");
            bytes += count.next_multiple_of(LINE);
            at
        };
        let mut tables = Vec::new();
        for depths in depths {
            let slots = u64::from(slots(*depths));
            let published = take(u64::from(depths.submission) * 4);
            let requests = take(slots * 8);
            tables.push(Tables { published, requests, free_slots: take(slots.div_ceil(32) * 4) });
        }
        let regions = regions.map(|count| take((count * size_of::<Region>()) as u64)).collect();
        assert_eq!(tables.len(), depths.len(), "each ring has tables");
        Plan { tables, regions, bytes }
    }
}

/// Memory of work that shows whether a stream makes progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    /// Of a kernel that stores the word.
    pub(crate) argument: u64,
    pub(crate) word: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub commands: u64,
    pub sq_rings: u64,
    pub cq_rings: u64,
    pub late: u64,
}

impl Rings {
    /// Creates rings over `queues`, given per device in order, for `iocb_count` blocks whose headers lie at `iocbs`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for queues that device code cannot drive; failures to allocate memory.
    pub fn new(
        gpu: &Arc<Gpu>,
        queues: Vec<Vec<Queue>>,
        tables: &[&MappingTable],
        (iocbs, iocb_count): (u64, u32),
    ) -> Result<Rings> {
        assert_eq!(queues.len(), tables.len(), "each device has a table");
        assert!(iocbs.is_multiple_of(8) && iocb_count > 0, "headers are whole words");
        let (mut ranges, mut all) = (Vec::new(), Vec::new());
        for of_device in queues {
            let first = all.len() as u32;
            all.extend(of_device);
            ranges.push(first..all.len() as u32);
        }
        all.iter().try_for_each(check)?;
        let depths = all.iter().map(|queue| queue.depths).collect::<Vec<_>>();
        let plan = Plan::new(&depths, tables.iter().map(|table| table.regions().len()));
        let rings = Rings {
            queues: Mutex::new(all),
            ranges,
            memory: DeviceMemory::allocate(gpu, plan.bytes)?,
            control: PinnedMemory::allocate(gpu, (BLOCKS + 4 * iocb_count as usize) as u64)?,
            plan,
            iocbs,
            iocb_count,
        };
        rings.reset(tables)?;
        Ok(rings)
    }

    /// Returns the address of the kernels' argument.
    pub fn uring(&self) -> u64 {
        self.memory.address()
    }

    /// Returns the first ring of a device and their number.
    pub fn of_device(&self, device: u16) -> (u32, u32) {
        let range = &self.ranges[usize::from(device)];
        assert!(range.end as usize <= self.plan.tables.len(), "a device's rings are among all");
        (range.start, range.len() as u32)
    }

    /// Returns the number of queues: none after a failed recovery.
    pub fn queue_count(&self) -> usize {
        let count = self.lock().len();
        debug_assert!(count == 0 || count == self.plan.tables.len(), "all rings have a queue");
        count
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the queues, to recreate them.
    pub fn delete_queues(&self) {
        self.lock().clear();
    }

    /// Installs queues of the same shape as before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if their number or depth differs, or device code cannot drive them.
    pub fn replace(&mut self, queues: Vec<Vec<Queue>>, tables: &[&MappingTable]) -> Result<()> {
        assert_eq!(queues.len(), tables.len(), "each device has a table");
        let as_before = queues.iter().map(Vec::len).eq(self.ranges.iter().map(|range| range.len()));
        let queues = queues.into_iter().flatten().collect::<Vec<_>>();
        queues.iter().try_for_each(check)?;
        let depths = queues.iter().map(|queue| queue.depths).collect::<Vec<_>>();
        let plan = Plan::new(&depths, tables.iter().map(|table| table.regions().len()));
        if !as_before || plan.bytes != self.plan.bytes {
            return Err(Error::invalid(
                "recover",
                "the queues are not as many or as deep as they were",
            ));
        }
        assert_eq!(queues.len(), plan.tables.len(), "each queue is a ring");
        *self.lock() = queues;
        self.plan = plan;
        // A partial reset names memory of deleted queues, so no kernel may see it.
        self.reset(tables).inspect_err(|_| self.delete_queues())
    }

    /// Writes the initial state. No kernel may run.
    fn reset(&self, tables: &[&MappingTable]) -> Result<()> {
        let queues = self.lock();
        assert_eq!(queues.len(), self.plan.tables.len(), "each ring has a queue");
        assert_eq!(self.ranges.len(), tables.len(), "each device has a table");
        let mut image = vec![0u8; self.plan.bytes as usize];
        let mut put =
            |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(0, self.uring_structure().as_bytes());
        for (device, (range, table)) in self.ranges.iter().zip(tables).enumerate() {
            put(self.plan.regions[device], table.regions().as_bytes());
            for index in range.clone() {
                let (ring, free) =
                    self.ring(&queues[index as usize], index as usize, device, table);
                put(RINGS + u64::from(index) * size_of::<Ring>() as u64, ring.as_bytes());
                put(self.plan.tables[index as usize].free_slots, free.as_bytes());
            }
        }
        self.set_stop(false);
        self.memory.write(0, &image)
    }

    fn uring_structure(&self) -> Uring {
        assert_eq!(self.plan.regions.len(), self.ranges.len(), "each device has its regions");
        Uring {
            rings: self.memory.address() + RINGS,
            iocbs: self.iocbs,
            ring_count: self.plan.tables.len() as u32,
            iocb_count: self.iocb_count,
            stop: self.control.address() + STOP as u64,
            alive: self.control.address() + ALIVE as u64,
            reserved: [0; 11],
        }
    }

    /// Returns an unused ring and its map of free identifiers.
    fn ring(
        &self,
        queue: &Queue,
        index: usize,
        device: usize,
        table: &MappingTable,
    ) -> (Ring, Vec<u32>) {
        let (tables, base) = (self.plan.tables[index], self.memory.address());
        assert!(self.ranges[device].contains(&(index as u32)), "a ring is of its device");
        assert!(base.is_multiple_of(LINE), "tables share no cache line");
        let RingDepths { submission, completion } = queue.depths;
        let slots = slots(queue.depths);
        let ring = Ring {
            sq: queue.sq,
            cq: queue.cq,
            sq_doorbell: queue.sq_doorbell,
            cq_doorbell: queue.cq_doorbell,
            published: base + tables.published,
            requests: base + tables.requests,
            free_slots: base + tables.free_slots,
            reciprocal: reciprocal(submission),
            regions: base + self.plan.regions[device],
            depth: submission,
            qid: u32::from(queue.qid),
            nsid: queue.nsid,
            slot_bits: slot_bits(slots),
            cq_interval: cq_interval(completion),
            lba_shift: queue.lba_shift,
            protection: queue.protection,
            form: table.form() as u32,
            cq_reciprocal: reciprocal(completion),
            cq_depth: completion,
            slots,
            cq_in_host: u32::from(queue.completions_in_host),
            ..Ring::new_zeroed()
        };
        (ring, free_map(slots))
    }

    fn device_of(&self, ring: usize) -> usize {
        let holds = |range: &Range<u32>| range.contains(&(ring as u32));
        assert!(ring < self.plan.tables.len(), "there is such a ring");
        self.ranges.iter().position(holds).expect("every ring is a device's")
    }

    /// Asks the kernels to end, or lets them run.
    pub fn set_stop(&self, stop: bool) {
        self.control.words()[STOP / 4].store(u32::from(stop), Ordering::Release);
    }

    /// Returns a counter that rises while the persistent kernel polls for work.
    pub fn alive(&self) -> u32 {
        self.control.words()[ALIVE / 4].load(Ordering::Relaxed)
    }

    /// Writes the argument of the kernel that abandons `blocks`; their commands end as `ended`.
    pub fn prepare_abandon(&self, blocks: &[u32], ended: u32) -> u64 {
        assert!(blocks.len() <= self.iocb_count as usize, "a block is abandoned once");
        assert!(blocks.iter().all(|block| *block < self.iocb_count), "there is such a block");
        let words = self.control.words();
        for (word, block) in words[BLOCKS / 4..][..self.iocb_count as usize].iter().zip(blocks) {
            word.store(*block, Ordering::Relaxed);
        }
        let list = self.control.address() + BLOCKS as u64;
        let arguments = AbandonArguments {
            uring: self.uring(),
            blocks: list,
            count: blocks.len() as u32,
            ended,
        };
        for (word, bytes) in
            words[ABANDON / 4..].iter().zip(arguments.as_bytes().as_chunks::<4>().0)
        {
            word.store(u32::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.control.address() + ABANDON as u64
    }

    /// Prepares a word for markers, and the argument of a kernel that stores it.
    pub(crate) fn prepare_marker(&self) -> Marker {
        let argument = self.control.address() + MARKER as u64;
        let word = argument + MARKER_BYTES as u64;
        assert!(argument.is_multiple_of(8), "a kernel's argument is an address");
        let words = &self.control.words()[MARKER / 4..BLOCKS / 4];
        for (place, value) in words.iter().zip([word as u32, (word >> 32) as u32, 1, 0]) {
            place.store(value, Ordering::Release);
        }
        Marker { argument, word }
    }

    fn read(&self) -> Result<Vec<Ring>> {
        let mut rings = vec![Ring::new_zeroed(); self.plan.tables.len()];
        self.memory.read(RINGS, rings.as_mut_bytes())?;
        Ok(rings)
    }

    pub fn counters(&self) -> Result<Counters> {
        let mut sum = Counters::default();
        for ring in self.read()? {
            sum.commands += ring.ticket;
            sum.sq_rings += ring.sq_rings;
            sum.cq_rings += ring.cq_rings;
            sum.late += ring.late;
        }
        Ok(sum)
    }

    /// Returns why a ring is out of service, if one is.
    pub fn poison(&self) -> Result<Option<String>> {
        let rings = self.read()?;
        let poisoned = rings.iter().find(|ring| ring.poison != 0);
        Ok(poisoned.map(|ring| {
            let (why, detail) = (poison_name(ring.poison), ring.poison_detail);
            format!(
                "queue {}: {why} (completion dwords 2 and 3: {:#010x} {:#010x})",
                ring.qid,
                detail as u32,
                detail >> 32
            )
        }))
    }

    /// Returns the outstanding commands: their devices, queues and identifiers.
    pub fn outstanding(&self) -> Result<Vec<(usize, Qid, Cid)>> {
        let mut all = Vec::new();
        for (index, queue) in self.lock().iter().enumerate() {
            let slots = slots(queue.depths);
            let mut requests = vec![0u64; slots as usize];
            assert!(slots < 1 << slot_bits(slots), "identifiers hold each slot");
            self.memory.read(self.plan.tables[index].requests, requests.as_mut_bytes())?;
            for (slot, request) in requests.into_iter().enumerate() {
                if state_of(request) != state::FREE {
                    let cid = generation_of(request) << slot_bits(slots) | slot as u16;
                    all.push((self.device_of(index), Qid(queue.qid), Cid(cid)));
                }
            }
        }
        Ok(all)
    }
}

/// Asks a controller to abort a command of a ring.
///
/// # Errors
/// The driver's error: without an answer, the controller goes out of service.
pub(crate) fn abort(controller: &Controller, qid: Qid, cid: Cid) -> Result<()> {
    // SAFETY: Abort transfers nothing, names no memory, and the queue is not one that the driver drives.
    unsafe { controller.admin("Abort", Sqe::abort(qid, cid), None) }?;
    Ok(())
}

fn check(queue: &Queue) -> Result<()> {
    let RingDepths { submission, completion } = queue.depths;
    if (2..=DEPTH_MAX).contains(&submission) {
        assert!(completion >= 2, "no controller takes a ring of one entry");
        return Ok(());
    }
    let what = format!("a queue of {submission} entries");
    Err(Error::invalid(what, format!("rings have 2 to {DEPTH_MAX}; choose another Options::depth")))
}

/// Returns the completions after which the device is told: four times a lap.
fn cq_interval(completion: u32) -> u32 {
    completion.div_ceil(4)
}

/// Returns the identifiers of a ring: an entry each, less one, but no more than the completion ring has room for beside
/// completions that were read and not told of. The device then never finds it full.
fn slots(depths: RingDepths) -> u32 {
    let RingDepths { submission, completion } = depths;
    let slots = (submission - 1).min(completion - cq_interval(completion));
    assert!((1..DEPTH_MAX).contains(&slots), "checked when the rings were made");
    assert!(slots + cq_interval(completion) <= completion, "the controller never finds it full");
    slots
}

/// Returns the bits of a command identifier that hold its slot. One value stays unused, so that no identifier is FFFFh,
/// which the specification reserves (Base 2.0 section 3.3.3.1).
fn slot_bits(slots: u32) -> u32 {
    let bits = u32::BITS - slots.leading_zeros();
    assert!(slots < 1 << bits, "one value stays unused");
    bits
}

fn reciprocal(depth: u32) -> u64 {
    assert!(depth >= 2, "the reciprocal of 1 has 65 bits");
    ((1u128 << 64) / u128::from(depth)) as u64
}

/// Returns a bit map of free identifiers.
fn free_map(slots: u32) -> Vec<u32> {
    let words = 0..slots.div_ceil(32);
    let map: Vec<u32> = words.map(|word| u32::MAX >> (32 - (slots - word * 32).min(32))).collect();
    let free: u32 = map.iter().map(|word| word.count_ones()).sum();
    assert_eq!(free, slots, "all identifiers are free");
    map
}

/// Describes a `Poison` of layout.h.
fn poison_name(poison: u32) -> &'static str {
    match poison {
        1 => "a completion named a command that is not in flight",
        2 => "a completion named another submission queue",
        3 => "a completion gave a submission queue head outside the ring",
        4 => "the host took it out of service",
        _ => "for a reason that device code does not give",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_as_many_as_entries_less_one_and_never_all_ones() {
        for depth in [2, 3, 4, 5, 32, 33, 34, 64, 65, 100, 1000, 1024, 1025, 4096] {
            let slots = slots(RingDepths { submission: depth, completion: 2 * depth });
            assert_eq!(slots, depth - 1);
            let free = free_map(slots);
            let bits = free.iter().map(|word| word.count_ones()).sum::<u32>();
            assert_eq!(bits, slots, "depth {depth}");
            let last = slots - 1;
            assert_eq!(free[last as usize / 32] >> (last % 32), 1, "depth {depth}");
            assert!(last < (1 << slot_bits(slots)) - 1 && slot_bits(slots) <= 12, "depth {depth}");
        }
    }

    #[test]
    fn a_short_completion_ring_has_room_for_all_identifiers_and_what_was_not_told() {
        for (submission, completion, expected) in
            [(2, 2, 1), (3, 3, 2), (5, 5, 3), (256, 256, 192), (4096, 4096, 3072), (200, 256, 192)]
        {
            let depths = RingDepths { submission, completion };
            assert_eq!(slots(depths), expected, "{depths:?}");
            assert!(slots(depths) + cq_interval(completion) <= completion, "{depths:?}");
        }
    }

    #[test]
    fn a_position_is_divided_by_the_depth_with_one_multiplication() {
        for depth in [2u32, 3, 7, 100, 4095, 4096] {
            for position in [0u64, 1, 99, 100, (1 << 32) - 1, 1 << 32, (1 << 48) + 7, u64::MAX] {
                let laps = ((u128::from(position) * u128::from(reciprocal(depth))) >> 64) as u64;
                let exact = position / u64::from(depth);
                assert!(laps == exact || laps + 1 == exact, "{position} / {depth}");
            }
        }
    }

    #[test]
    fn tables_do_not_overlap() {
        let depths =
            [2, 33, 100, 4096].map(|depth| RingDepths { submission: depth, completion: 2 * depth });
        let plan = Plan::new(&depths, [3, 0].into_iter());
        let mut runs = vec![(0, RINGS + 4 * 512)];
        for (tables, depth) in plan.tables.iter().zip(depths) {
            let slots = u64::from(slots(depth));
            runs.push((tables.published, u64::from(depth.submission) * 4));
            runs.push((tables.requests, slots * 8));
            runs.push((tables.free_slots, slots.div_ceil(32) * 4));
        }
        runs.push((plan.regions[0], 3 * 32));
        runs.sort();
        for pair in runs.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0 && pair[1].0 % LINE == 0, "{pair:?}");
        }
        assert!(runs.last().is_some_and(|last| last.0 + last.1 <= plan.bytes));
    }
}
