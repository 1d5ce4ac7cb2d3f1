//! What the reads of one batch take of registered memory, where their values are held all at once.
//!
//! Values of a batch that is taken in order, or as a whole, keep their memory until the last has come: where they need
//! more than there is, the last never comes. Whoever takes them as they come can drop them, and may ask for more than
//! there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What all reads of a batch share.
pub(super) struct Together {
    is_held: AtomicBool,
    /// Bytes that its reads have, or wait for, of each pool.
    bytes: Box<[AtomicU64]>,
}

impl Together {
    /// Nothing yet, of so many pools.
    pub(super) fn new(pools: usize) -> Arc<Together> {
        let bytes = (0..pools).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Together { is_held: AtomicBool::new(false), bytes })
    }

    /// Says that no value is given up before the last has come.
    pub(super) fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }
}

/// One read's part.
pub(super) struct Share {
    together: Arc<Together>,
    /// Which pool it asks, and for how many bytes.
    asked: Option<(usize, u64)>,
}

impl Share {
    /// The part of a read that has asked for nothing yet.
    pub(super) fn new(together: &Arc<Together>) -> Share {
        Share { together: Arc::clone(together), asked: None }
    }

    /// It asks pool number `pool` for so many bytes, and for nothing else any more.
    pub(super) fn ask(&mut self, pool: usize, bytes: u64) {
        self.take_back();
        self.together.bytes[pool].fetch_add(bytes, Ordering::Relaxed);
        self.asked = Some((pool, bytes));
    }

    /// It asks for nothing any more.
    pub(super) fn take_back(&mut self) {
        if let Some((pool, bytes)) = self.asked.take() {
            self.together.bytes[pool].fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// How many bytes the batch needs at once of the pool that this read asks, if those are more than `there_are`.
    pub(super) fn too_many(&self, there_are: u64) -> Option<u64> {
        let (pool, _) = self.asked?;
        let bytes = self.together.bytes[pool].load(Ordering::Relaxed);
        (self.together.is_held.load(Ordering::Relaxed) && bytes > there_are).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_together_is_too_much_where_the_sum_is() {
        let together = Together::new(2);
        let mut shares = [0, 1, 2].map(|_| Share::new(&together));
        shares[0].ask(0, 6);
        shares[1].ask(1, 6);
        shares[2].ask(0, 2);
        assert_eq!(shares[2].too_many(7), None, "each may be dropped before the next");
        together.hold();
        assert_eq!(shares[2].too_many(7), Some(8));
        assert_eq!(shares[2].too_many(8), None);
        assert_eq!(shares[1].too_many(7), None, "another pool");
        shares[2].ask(0, 3);
        assert_eq!(shares[0].too_many(8), Some(9), "the last word counts");
        shares[2].take_back();
        assert_eq!((shares[2].too_many(0), shares[0].too_many(6)), (None, None));
    }
}
