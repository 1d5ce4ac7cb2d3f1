//! Accounting of registered memory for a batch of reads whose values are held together.
//!
//! If the values of a batch are taken in order or as a whole, they keep their memory until the last arrives; if they
//! need more than the pool has, the last never arrives. Taking values as they arrive allows dropping them, so such a
//! batch may exceed the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State shared by all reads of a batch.
pub(super) struct Together {
    is_held: AtomicBool,
    /// Bytes per pool that the reads have or wait for.
    bytes: Box<[AtomicU64]>,
}

impl Together {
    /// Creates an empty account over `pools` pools.
    pub(super) fn new(pools: usize) -> Arc<Together> {
        let bytes = (0..pools).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Together { is_held: AtomicBool::new(false), bytes })
    }

    /// Records that all values are held until the last one arrives.
    pub(super) fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }
}

pub(super) struct Share {
    together: Arc<Together>,
    /// The pool and the bytes requested from it.
    asked: Option<(usize, u64)>,
}

impl Share {
    /// Creates the share of a read that has requested nothing yet.
    pub(super) fn new(together: &Arc<Together>) -> Share {
        Share { together: Arc::clone(together), asked: None }
    }

    /// Requests `bytes` from pool `pool`, replacing an earlier request.
    pub(super) fn ask(&mut self, pool: usize, bytes: u64) {
        self.take_back();
        self.together.bytes[pool].fetch_add(bytes, Ordering::Relaxed);
        self.asked = Some((pool, bytes));
    }

    /// Withdraws the request.
    pub(super) fn take_back(&mut self) {
        if let Some((pool, bytes)) = self.asked.take() {
            self.together.bytes[pool].fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that the batch needs at once from this read's pool, if values are held and that exceeds
    /// `there_are`.
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
