//! A memory of recent keys, by 16 bits of their hashes.
//!
//! Buckets of one cache line, selected by a hash's high bits, each a ring of 31 fingerprints of its low bits; about
//! two bytes per remembered key. The false positive rate is about one in 2,000.

/// Fingerprints per bucket.
const WAYS: usize = 31;
/// Words of a bucket: the position of its next fingerprint, then the fingerprints; 0 is none.
const BUCKET: usize = 1 + WAYS;

/// A memory of the latest hashes.
#[derive(Debug)]
pub(crate) struct Recent {
    words: Vec<u16>,
}

impl Recent {
    /// Creates a memory of as many hashes as fit in `bytes`, and of at least 31.
    pub(crate) fn new(bytes: usize) -> Recent {
        let buckets = (bytes / (BUCKET * size_of::<u16>())).max(1);
        Recent { words: vec![0; buckets * BUCKET] }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u16>()
    }

    /// Remembers a hash in place of the oldest of its bucket.
    pub(crate) fn remember(&mut self, hash: u64) {
        let bucket = self.bucket(hash);
        let next = bucket[0];
        bucket[1 + usize::from(next)] = fingerprint(hash);
        bucket[0] = (next + 1) % WAYS as u16;
    }

    /// Returns whether a hash is among the latest of its bucket (the given thousandths of them, at least one), and
    /// forgets it.
    pub(crate) fn take(&mut self, hash: u64, thousandths: u32) -> bool {
        let ways = (WAYS * thousandths as usize / 1000 + 1).min(WAYS);
        let bucket = self.bucket(hash);
        let next = usize::from(bucket[0]);
        let mut latest = (1..=ways).map(|age| 1 + (next + WAYS - age) % WAYS);
        let found = latest.find(|at| bucket[*at] == fingerprint(hash));
        found.map(|at| bucket[at] = 0).is_some()
    }

    fn bucket(&mut self, hash: u64) -> &mut [u16; BUCKET] {
        let (buckets, _) = self.words.as_chunks_mut();
        let at = (u128::from(hash) * buckets.len() as u128) >> 64;
        &mut buckets[at as usize]
    }
}

fn fingerprint(hash: u64) -> u16 {
    (hash as u16).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn contains(recent: &mut Recent, hash: u64) -> bool {
        recent.bucket(hash)[1..].contains(&fingerprint(hash))
    }

    #[test]
    fn what_is_remembered_is_taken_once() {
        let mut recent = Recent::new(0);
        recent.remember(5);
        assert!(!recent.take(6, 1000) && contains(&mut recent, 5));
        assert!(recent.take(5, 1000));
        assert!(!recent.take(5, 1000) && !contains(&mut recent, 5));
    }

    #[test]
    fn less_far_back_there_is_less() {
        let mut recent = Recent::new(0);
        (1..=20).for_each(|hash| recent.remember(hash));
        assert!(recent.take(20, 0) && !recent.take(19, 0));
        assert!(recent.take(19, 500));
    }

    #[test]
    fn what_never_was_is_seldom_taken_for_what_was() {
        let mut recent = Recent::new(64 << 10);
        let hash = |n: u64| (n ^ n << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        (0..100_000).for_each(|number| recent.remember(hash(number)));
        let mistaken =
            (100_000..200_000).filter(|number| contains(&mut recent, hash(*number))).count();
        assert!(mistaken < 200, "{mistaken} of 100,000");
    }

    proptest! {
        /// One bucket, and distinct fingerprints.
        #[test]
        fn the_last_31_are_remembered(hashes in vec(1_u64..60, 1..200)) {
            let mut recent = Recent::new(0);
            for (at, hash) in hashes.iter().enumerate() {
                let lately = hashes[at.saturating_sub(WAYS)..at].contains(hash);
                prop_assert_eq!(contains(&mut recent, *hash), lately);
                recent.remember(*hash);
            }
        }
    }
}
