//! The tier's memory: regions that are lent to it, and the bytes of objects in them.
//!
//! A run of a region belongs to one [`Resident`], which the tier and any number of readers share, and none changes. The
//! last of them to drop it gives the run back, on any thread. That takes a lock, which a hit does not. A region that the
//! tier gives up is freed with the last `Resident` in it.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use adit_driver::Buffer;

use crate::io::memory::FreeMemory;

/// The bytes of an object in memory, padding included. Clones share them.
#[derive(Clone)]
pub struct Resident(Arc<Held>);

struct Held {
    /// There until it is dropped.
    run: Option<Buffer>,
    /// Gone with its region.
    home: Weak<Home>,
}

impl Resident {
    /// Returns whether a reader holds it beside the tier.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns whether its bytes lie in one of these runs of addresses.
    pub(super) fn is_in(&self, runs: &[Range<u64>]) -> bool {
        let run = self.0.run.as_ref().expect("it has its run until it is dropped");
        runs.iter().any(|addresses| addresses.contains(&run.iova().0))
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
            home.lock().push(run);
        }
    }
}

/// Runs that were dropped.
#[derive(Default)]
struct Home(Mutex<Vec<Buffer>>);

impl Home {
    fn lock(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory for one object, to be filled.
pub(super) struct Room(Held);

impl Room {
    /// Fills all of it by `fill`, after which it does not change. `None` if that returns false.
    pub(super) fn filled(mut self, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Resident> {
        let run = self.0.run.as_mut().expect("it has its run until it is dropped");
        fill(run).then(|| Resident(Arc::new(self.0)))
    }
}

struct Region {
    addresses: Range<u64>,
    free: FreeMemory,
    home: Arc<Home>,
}

impl Region {
    fn new(memory: Buffer) -> Region {
        let at = memory.iova().0;
        let addresses = at..at + memory.len() as u64;
        let mut free = FreeMemory::default();
        free.give(memory);
        Region { addresses, free, home: Arc::default() }
    }

    fn bytes(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }

    fn take(&mut self, bytes: usize) -> Option<Room> {
        for run in self.home.lock().drain(..) {
            assert!(self.addresses.contains(&run.iova().0), "a run comes back to its region");
            self.free.give(run);
        }
        let run = self.free.take(bytes)?;
        Some(Room(Held { run: Some(run), home: Arc::downgrade(&self.home) }))
    }
}

/// All regions of a tier.
#[derive(Default)]
pub(super) struct Regions(Vec<Region>);

impl Regions {
    pub(super) fn add(&mut self, memory: Buffer) {
        assert!(!memory.is_empty(), "a region has bytes");
        self.0.push(Region::new(memory));
    }

    /// Returns their bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(Region::bytes).sum()
    }

    /// Returns the bytes of the largest.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.0.iter().map(Region::bytes).max().unwrap_or(0)
    }

    /// Takes `bytes` in one run, if any region has such a run.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Room> {
        self.0.iter_mut().find_map(|region| region.take(bytes))
    }

    /// Gives up regions, the last ones first, until those left have `bytes` at most. Returns where they were.
    pub(super) fn give_up_beyond(&mut self, bytes: u64) -> Vec<Range<u64>> {
        let mut gone = Vec::new();
        while self.bytes() > bytes {
            gone.extend(self.0.pop().map(|region| region.addresses));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::device::memory;
    use super::*;

    fn resident(regions: &mut Regions, byte: u8) -> Option<Resident> {
        let fill = |bytes: &mut [u8]| {
            bytes.fill(byte);
            true
        };
        regions.take(4096)?.filled(fill)
    }

    #[test]
    fn memory_is_used_again_when_its_last_reader_is_gone() {
        let mut regions = Regions::default();
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
        let mut regions = Regions::default();
        regions.add(memory(4096));
        regions.add(memory(8192));
        let all: Vec<Resident> = (0..3).map_while(|byte| resident(&mut regions, byte)).collect();
        assert_eq!((all.len(), regions.bytes(), regions.largest_bytes()), (3, 12_288, 8192));
        assert!(regions.give_up_beyond(12_288).is_empty(), "it has no more than that");
        let gone = regions.give_up_beyond(12_287);
        assert_eq!((gone.len(), regions.bytes()), (1, 4096));
        assert_eq!([0, 1, 2].map(|at: usize| all[at].is_in(&gone)), [false, true, true]);
        for (resident, byte) in all.iter().zip(0u8..) {
            assert!(resident.iter().all(|each| *each == byte), "readers of {byte} keep it");
        }
        drop(all);
        assert!(regions.take(8192).is_none(), "what is given up does not come back");
        assert!(regions.take(4096).is_some());
        assert_eq!((regions.give_up_beyond(0).len(), regions.bytes()), (1, 0));
    }
}
