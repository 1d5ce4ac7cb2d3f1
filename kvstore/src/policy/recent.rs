//! A memory of recent keys, by 16 bits of their hashes.
//!
//! Each hash has a bucket of one cache line, selected by its high bits, with the latest 16 marks, newest first: a
//! fingerprint of the hash's low bits and when it was remembered, in ticks. The clock is the number of hashes
//! remembered, so the last *n* of them are known as a queue of length *n* knows them, whatever bucket they share.
//! Buckets have room for 16 marks where 10 are expected, so fewer than one hash in a hundred is forgotten early. That
//! is 6.4 bytes a hash. One hash in about 4,000 that was never remembered is mistaken for one that was.

/// Marks per bucket.
const WAYS: usize = 16;
/// Marks expected in a bucket.
const LOAD: usize = 10;
/// Ticks in which as many hashes as the memory is for are remembered, at most. The clock of a mark has four times as
/// many.
const TICKS: u64 = 1 << 14;

/// A memory of the latest hashes.
#[derive(Debug)]
pub(crate) struct Recent {
    /// Fingerprints in the high halves, ticks in the low ones; 0 is none.
    buckets: Vec<[u32; WAYS]>,
    /// Hashes remembered so far.
    count: u64,
    /// Hashes remembered in a tick.
    tick: u64,
}

impl Recent {
    /// Creates a memory of the latest `hashes`, and of at least 10.
    pub(crate) fn new(hashes: usize) -> Recent {
        let buckets = hashes.div_ceil(LOAD).max(1);
        let tick = (hashes as u64).div_ceil(TICKS).max(1);
        Recent { buckets: vec![[0; WAYS]; buckets], count: 0, tick }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u32; WAYS]>()
    }

    /// Remembers a hash in place of the oldest of its bucket.
    pub(crate) fn remember(&mut self, hash: u64) {
        let mark = fingerprint(hash) << 16 | u32::from(self.now());
        self.count += 1;
        let bucket = self.bucket(hash);
        bucket.rotate_right(1);
        bucket[0] = mark;
    }

    /// Returns whether a hash is among the last `within` that were remembered, and forgets it.
    pub(crate) fn take(&mut self, hash: u64, within: u64) -> bool {
        let (now, tick) = (self.now(), self.tick);
        let bucket = self.bucket(hash);
        let Some(at) = bucket.iter().position(|mark| mark >> 16 == fingerprint(hash)) else {
            return false;
        };
        let ticks = now.wrapping_sub(bucket[at] as u16);
        bucket[at..].rotate_left(1);
        bucket[WAYS - 1] = 0;
        u64::from(ticks) * tick <= within
    }

    fn now(&self) -> u16 {
        (self.count / self.tick) as u16
    }

    fn bucket(&mut self, hash: u64) -> &mut [u32; WAYS] {
        let at = (u128::from(hash) * self.buckets.len() as u128) >> 64;
        &mut self.buckets[at as usize]
    }
}

fn fingerprint(hash: u64) -> u32 {
    u32::from((hash as u16).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn contains(recent: &mut Recent, hash: u64) -> bool {
        recent.bucket(hash).iter().any(|mark| mark >> 16 == fingerprint(hash))
    }

    fn spread(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }

    #[test]
    fn what_is_remembered_is_taken_once() {
        let mut recent = Recent::new(0);
        recent.remember(5);
        assert!(!recent.take(6, 10) && contains(&mut recent, 5));
        assert!(recent.take(5, 10));
        assert!(!recent.take(5, 10) && !contains(&mut recent, 5));
    }

    #[test]
    fn less_far_back_there_is_less() {
        let mut recent = Recent::new(0);
        (1..=12).for_each(|hash| recent.remember(hash));
        assert!(recent.take(12, 1) && !recent.take(11, 1));
        assert!(recent.take(10, 3) && !recent.take(9, 3));
    }

    #[test]
    fn what_never_was_is_seldom_taken_for_what_was() {
        let mut recent = Recent::new(30_000);
        (0..100_000).for_each(|number| recent.remember(spread(number)));
        let mistaken =
            (100_000..200_000).filter(|number| contains(&mut recent, spread(*number))).count();
        assert!(mistaken < 60, "{mistaken} of 100,000");
    }

    /// A memory for bytes in place of hashes had half of them.
    #[test]
    fn it_remembers_as_many_as_it_is_for() {
        for hashes in [100, 1_000, 100_000] {
            let mut recent = Recent::new(hashes);
            let count = hashes as u64 * 5;
            (0..count).for_each(|number| recent.remember(spread(number)));
            let last = count - hashes as u64..count;
            let known = last.filter(|number| contains(&mut recent, spread(*number))).count();
            assert!(known * 1000 >= hashes * 990, "{known} of {hashes}");
            assert!(recent.memory_bytes() <= hashes * 32 / 5 + size_of::<[u32; WAYS]>());
            assert!(!recent.take(spread(count - 1 - hashes as u64 * 101 / 100), hashes as u64));
        }
    }

    proptest! {
        /// One bucket, and distinct fingerprints.
        #[test]
        fn the_last_16_are_remembered(hashes in vec(1_u64..40, 1..200)) {
            let mut recent = Recent::new(0);
            for (at, hash) in hashes.iter().enumerate() {
                let lately = hashes[at.saturating_sub(WAYS)..at].contains(hash);
                prop_assert_eq!(contains(&mut recent, *hash), lately);
                recent.remember(*hash);
            }
        }
    }
}
