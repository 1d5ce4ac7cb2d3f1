//! Bounds the memory that callers pin: the regions in which they hold values, on any thread.
//!
//! A region counts from its first value to its last. A thread adds the region's bytes to the sum *before* it adds the
//! first value, and subtracts them *after* it removed the last: the sum never misses a region that has a value, and may
//! briefly count one twice.

use super::sync::{Arc, AtomicU64, Ordering};

/// The sum of the regions in which callers hold values, and its bound.
#[derive(Debug, Default)]
pub(crate) struct PinnedBytes {
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

impl PinnedBytes {
    /// Returns the sum.
    pub(crate) fn get(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the bound for future values.
    pub(crate) fn set_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) -> bool {
        let max = self.bytes_max.load(Ordering::Relaxed);
        let fits = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= max);
        self.bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    fn remove(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "what is taken off was added");
    }
}

/// The values that callers hold in one region.
#[derive(Debug)]
pub(crate) struct Pins {
    values: AtomicU64,
    region_bytes: u64,
    sum: Arc<PinnedBytes>,
}

impl Pins {
    /// Creates a count of no values.
    pub(crate) fn new(region_bytes: u64, sum: &Arc<PinnedBytes>) -> Pins {
        Pins { values: AtomicU64::new(0), region_bytes, sum: Arc::clone(sum) }
    }

    /// Adds a value. Returns false if it would be the region's first and the sum would exceed its bound.
    pub(crate) fn add(&self) -> bool {
        let mut values = self.values.load(Ordering::Relaxed);
        loop {
            let is_first = values == 0;
            if is_first && !self.sum.add(self.region_bytes) {
                return false;
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.values.compare_exchange(values, values + 1, success, failure) {
                Ok(_) => return true,
                Err(now) => values = now,
            }
            if is_first {
                self.sum.remove(self.region_bytes);
            }
        }
    }

    /// Removes a value.
    pub(crate) fn remove(&self) {
        let before = self.values.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a value is removed once");
        if before == 1 {
            self.sum.remove(self.region_bytes);
        }
    }
}
