//! The tier's memory: regions lent to it, and the bytes of objects in them.
//!
//! A run of a region belongs to one immutable [`Resident`], which the tier and any number of readers share. The last of
//! them to drop it returns the run, on any thread. Returning takes a lock; a hit takes none. A region that the tier
//! gives up is freed with its last `Resident`.
//!
//! A value held by a caller keeps its whole region allocated, because given-up memory is freed region by region. So
//! values may pin half of the tier's memory ([`Resident::pin`], on any thread); further values are copies.
//!
//! A region's number is never reused. Numbers ascend in the order in which regions are lent, and regions are given up
//! from the end, so all regions from some number on are gone.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use adit_driver::Buffer;
use adit_driver::runtime::lock;

use super::pins::{PinnedBytes, Pins};
use crate::io::memory::FreeMemory;

/// Values may pin one part in this many of a tier's memory.
const PINNED_PARTS: u64 = 2;
/// Bytes that values may always pin, because a small tier has few regions of 64 MiB.
const PINNED_BYTES_MIN: u64 = 256 << 20;

/// The bytes of an object in memory, padding included. Clones share them.
#[derive(Clone)]
pub struct Resident(Arc<Held>);

struct Held {
    /// `None` only while dropping.
    run: Option<Buffer>,
    region: Arc<Ground>,
    /// Where the run returns to; dangling once the tier is dropped.
    home: Weak<Home>,
}

/// Data of a region, kept as long as anything lies in it.
struct Ground {
    number: u64,
    bytes: u64,
    /// Values in the region that callers hold.
    pins: Pins,
    sums: Arc<Sums>,
}

/// Sums over the regions of a tier, including given-up ones that readers still keep.
#[derive(Default)]
struct Sums {
    bytes: AtomicU64,
    /// Bytes of regions in which callers hold values.
    pinned: Arc<PinnedBytes>,
}

impl Ground {
    fn new(number: u64, bytes: u64, sums: &Arc<Sums>) -> Arc<Ground> {
        sums.bytes.fetch_add(bytes, Ordering::Relaxed);
        let pins = Pins::new(bytes, &sums.pinned);
        Arc::new(Ground { number, bytes, pins, sums: Arc::clone(sums) })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.sums.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A value that a caller holds: an object's bytes, whose region it pins.
#[derive(Debug)]
pub struct Pinned(Resident);

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.0.region.pins.remove();
    }
}

impl Resident {
    /// Returns whether a reader holds the object, too.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the object as a value for a caller to hold, or `None` if values would pin too much memory. Further
    /// values in a pinned region are always allowed.
    pub fn pin(&self) -> Option<Pinned> {
        self.0.region.pins.add().then(|| Pinned(self.clone()))
    }

    /// Returns the number of the region.
    pub(super) fn region(&self) -> u64 {
        self.0.region.number
    }
}

impl Deref for Resident {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.run.as_ref().expect("it has its run until it is dropped")
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident({} bytes)", self.len())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(run), Some(home)) = (self.run.take(), self.home.upgrade()) {
            home.take_back(self.region.number, run);
        }
    }
}

/// Collects the runs that readers of a tier return.
#[derive(Default)]
struct Home(Mutex<Returned>);

#[derive(Default)]
struct Returned {
    /// The numbers of the tier's regions, ascending.
    regions: Vec<u64>,
    /// Returned runs, each with the number of its region, which is in `regions`.
    runs: Vec<(u64, Buffer)>,
}

impl Home {
    /// Takes back a run, or frees it if its region is no longer the tier's.
    fn take_back(&self, region: u64, run: Buffer) {
        let mut returned = lock(&self.0);
        if returned.regions.binary_search(&region).is_ok() {
            return returned.runs.push((region, run));
        }
        // If this run is the last of its region, freeing takes long, so the lock is released first.
        drop(returned);
        drop(run);
    }
}

/// Memory for one object, to be filled.
pub(super) struct Unfilled(Held);

impl Unfilled {
    /// Returns the number of the region.
    pub(super) fn region(&self) -> u64 {
        self.0.region.number
    }

    /// Fills all of the memory by `fill` and makes it immutable. Returns `None` if `fill` returns false.
    pub(super) fn filled(mut self, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Resident> {
        let run = self.0.run.as_mut().expect("it has its run until it is dropped");
        fill(run).then(|| Resident(Arc::new(self.0)))
    }
}

struct LentRegion {
    number: u64,
    bytes: u64,
    free: FreeMemory,
    /// Declared last, so that it is dropped after the memory.
    ground: Arc<Ground>,
}

/// Regions that a tier has given up, with the objects in them. Dropping this frees all memory that no reader holds,
/// which takes long if the memory is pinned.
#[derive(Default)]
#[must_use = "dropping it takes long; do so where that may be"]
pub struct GivenUp {
    regions: Vec<LentRegion>,
    residents: Vec<Resident>,
}

impl GivenUp {
    /// Returns the lowest number of the regions; all regions from this number on are given up.
    pub(super) fn first(&self) -> Option<u64> {
        self.regions.first().map(|region| region.number)
    }

    /// Adds an object that lay in one of the regions.
    pub(super) fn add(&mut self, resident: Resident) {
        assert!(self.first() <= Some(resident.region()), "it lay in a region that went");
        self.residents.push(resident);
    }
}

impl fmt::Debug for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GivenUp({} regions, {} objects)", self.regions.len(), self.residents.len())
    }
}

/// All regions of a tier.
#[derive(Default)]
pub(super) struct LentMemory {
    /// By number.
    all: Vec<LentRegion>,
    /// For each region, the bytes of its longest free run and its index in `all`.
    longest: BTreeSet<(usize, usize)>,
    numbers: u64,
    sums: Arc<Sums>,
    home: Arc<Home>,
    /// Runs on their way from `home` to their regions; empty between calls.
    returned: Vec<(u64, Buffer)>,
}

impl LentMemory {
    pub(super) fn add(&mut self, memory: Buffer) {
        assert!(!memory.is_empty(), "a region has bytes");
        let (number, bytes) = (self.numbers, memory.len());
        self.numbers += 1;
        let mut free = FreeMemory::default();
        free.give(memory);
        self.longest.insert((bytes, self.all.len()));
        let ground = Ground::new(number, bytes as u64, &self.sums);
        self.all.push(LentRegion { number, bytes: bytes as u64, free, ground });
        lock(&self.home.0).regions.push(number);
        self.limit_pins(self.bytes());
    }

    /// Bounds pinned memory by a part of `bytes`. Values beyond that bound stay valid.
    fn limit_pins(&self, bytes: u64) {
        self.set_pinned_bytes_max((bytes / PINNED_PARTS).max(PINNED_BYTES_MIN));
    }

    pub(super) fn set_pinned_bytes_max(&self, bytes: u64) {
        self.sums.pinned.set_max(bytes);
    }

    /// Returns the bytes of the regions in which callers hold values, including given-up ones.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.sums.pinned.get()
    }

    /// Returns the bytes of given-up regions that are not yet freed.
    pub(super) fn given_up_bytes(&self) -> u64 {
        self.sums.bytes.load(Ordering::Relaxed).saturating_sub(self.bytes())
    }

    /// Returns the bytes of all regions. Visits each.
    pub(super) fn bytes(&self) -> u64 {
        self.all.iter().map(|region| region.bytes).sum()
    }

    /// Returns the bytes of the largest region. Visits each.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.all.iter().map(|region| region.bytes).max().unwrap_or(0)
    }

    /// Takes one run of `bytes` bytes, if any region has one.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Unfilled> {
        std::mem::swap(&mut self.returned, &mut lock(&self.home.0).runs);
        self.put_back();
        let (_, at) = *self.longest.range((bytes, 0)..).next()?;
        let run = self.change(at, |free| free.take(bytes));
        let (region, home) = (Arc::clone(&self.all[at].ground), Arc::downgrade(&self.home));
        Some(Unfilled(Held { run: Some(run.expect("a run is long enough")), region, home }))
    }

    /// Frees the returned runs in their regions.
    fn put_back(&mut self) {
        while let Some((number, run)) = self.returned.pop() {
            let at = self.all.binary_search_by_key(&number, |region| region.number);
            self.change(at.expect("a run comes back to its region"), |free| free.give(run));
        }
    }

    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut FreeMemory) -> T) -> T {
        let free = &mut self.all[at].free;
        let before = free.longest();
        let changed = change(free);
        let after = free.longest();
        if before != after {
            let is_known = self.longest.remove(&(before, at));
            assert!(is_known && self.longest.insert((after, at)), "each region has one entry");
        }
        changed
    }

    /// Gives up regions, the last ones first, until at most `bytes` bytes are left. The caller must add the objects in
    /// them to the result.
    pub(super) fn give_up_beyond(&mut self, bytes: u64) -> GivenUp {
        let mut sum = 0;
        let fits = |region: &&LentRegion| {
            sum += region.bytes;
            sum <= bytes
        };
        let keep = self.all.iter().take_while(fits).count();
        {
            let mut returned = lock(&self.home.0);
            returned.regions.truncate(keep);
            std::mem::swap(&mut self.returned, &mut returned.runs);
        }
        self.put_back();
        for (at, region) in self.all.iter().enumerate().skip(keep) {
            let is_known = self.longest.remove(&(region.free.longest(), at));
            assert!(is_known, "each region has one entry");
        }
        let regions = self.all.split_off(keep);
        self.limit_pins(self.bytes());
        GivenUp { regions, residents: Vec::new() }
    }

    /// Returns the bytes of memory of the tables.
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<LentRegion>()
            + self.longest.len() * size_of::<(usize, usize)>()
            + self.returned.capacity() * size_of::<(u64, Buffer)>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::device::memory;
    use super::*;

    fn resident(regions: &mut LentMemory, byte: u8) -> Option<Resident> {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(byte);
            true
        };
        regions.take(4096)?.filled(fill)
    }

    #[test]
    fn memory_is_used_again_when_its_last_reader_is_gone() {
        let mut regions = LentMemory::default();
        regions.add(memory(8192));
        let (first, second) = (resident(&mut regions, 1), resident(&mut regions, 2));
        let first = first.expect("room");
        let reader = first.clone();
        assert!(first.is_shared() && resident(&mut regions, 3).is_none(), "all is taken");
        drop(first);
        assert!(resident(&mut regions, 3).is_none() && reader.iter().all(|byte| *byte == 1));
        std::thread::spawn(move || drop(reader)).join().expect("it ends");
        let third = resident(&mut regions, 3).expect("room again");
        assert!(third.iter().all(|byte| *byte == 3) && !third.is_shared());
        assert!(second.expect("room").iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_region_that_is_given_up_lasts_as_long_as_its_readers() {
        let mut regions = LentMemory::default();
        regions.add(memory(4096));
        regions.add(memory(8192));
        let all: Vec<Resident> = (0..3).map_while(|byte| resident(&mut regions, byte)).collect();
        assert_eq!((all.len(), regions.bytes(), regions.largest_bytes()), (3, 12_288, 8192));
        let none = regions.give_up_beyond(12_288);
        assert_eq!(none.first(), None, "it has no more than that");
        let gone = regions.give_up_beyond(12_287);
        assert_eq!((gone.regions.len(), regions.bytes()), (1, 4096));
        let is_gone = |at: usize| gone.first().is_some_and(|first| all[at].region() >= first);
        assert_eq!([0, 1, 2].map(is_gone), [false, true, true]);
        drop(gone);
        // A region lent now is not confused with the one given up.
        regions.add(memory(4096));
        for (resident, byte) in all.iter().zip(0u8..) {
            assert!(resident.iter().all(|each| *each == byte), "readers of {byte} keep it");
        }
        drop(all);
        assert!(regions.take(8192).is_none(), "what is given up does not come back");
        let rooms = [4096, 4096].map(|bytes| regions.take(bytes));
        assert!(rooms.iter().all(Option::is_some) && regions.take(4096).is_none());
        assert_eq!((regions.give_up_beyond(0).regions.len(), regions.bytes()), (2, 0));
        drop(rooms);
        assert!(regions.take(4096).is_none(), "nor does room that was not filled");
    }

    #[test]
    fn values_pin_regions_up_to_a_bound_and_count_those_that_were_given_up() {
        let mut regions = LentMemory::default();
        (0..4).for_each(|_| regions.add(memory(8192)));
        regions.set_pinned_bytes_max(2 * 8192);
        let all: Vec<Resident> = (0..8).map_while(|byte| resident(&mut regions, byte)).collect();
        let of = |region| all.iter().filter(move |resident| resident.region() == region);
        let pin = |region: u64, at: usize| of(region).nth(at).expect("two in each").pin();
        let [first, second, third] = [pin(3, 0), pin(0, 0), pin(3, 1)];
        assert!(first.is_some() && second.is_some() && third.is_some(), "two regions");
        assert!(pin(1, 0).is_none() && pin(2, 1).is_none(), "a third one");
        assert_eq!((regions.pinned_bytes(), regions.given_up_bytes()), (2 * 8192, 0));
        drop(first);
        assert!(pin(1, 0).is_none(), "one of its values is still there");
        drop(second);
        let fourth = pin(1, 0).expect("a region is pinned no more");
        // Two regions are given up, one of them pinned.
        let mut gone = regions.give_up_beyond(2 * 8192);
        let first = gone.first();
        all.into_iter().filter(|one| Some(one.region()) >= first).for_each(|one| gone.add(one));
        drop(gone);
        assert_eq!((regions.pinned_bytes(), regions.given_up_bytes()), (2 * 8192, 8192));
        assert!(third.as_deref().is_some_and(|bytes| bytes.iter().all(|byte| *byte == bytes[0])));
        std::thread::spawn(move || drop(third)).join().expect("it ends");
        assert_eq!((regions.pinned_bytes(), regions.given_up_bytes()), (8192, 0));
        drop(fourth);
        assert_eq!(regions.pinned_bytes(), 0);
    }

    #[test]
    fn room_comes_from_the_shortest_run_of_any_region() {
        let mut regions = LentMemory::default();
        [3, 1, 2].into_iter().for_each(|units| regions.add(memory(units * 4096)));
        let mut held = Vec::new();
        for (units, region) in [(1, 1), (1, 2), (1, 2), (2, 0), (1, 0)] {
            held.extend(regions.take(units * 4096));
            assert_eq!(held.last().map(|room| room.0.region.number), Some(region));
        }
        assert!(regions.take(4096).is_none());
        drop(held.remove(3));
        assert!(regions.take(3 * 4096).is_none() && regions.take(2 * 4096).is_some());
    }
}
