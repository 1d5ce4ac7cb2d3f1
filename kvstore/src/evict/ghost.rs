//! Which keys were evicted of late, by 16 bits of their hashes.
//!
//! Buckets of one cache line, chosen by the hash's high bits, each a ring of 31 fingerprints of its low ones: a byte
//! for each object of the capacity, half as many fingerprints as that. A key that was never here is taken for one
//! that was about once in 2,000; it costs a place in the main queue, nothing else.
//!
//! How far a bucket looks back follows the objects that there are, not the capacity: a store that holds few large
//! objects would otherwise remember many times what it holds.

/// Fingerprints of a bucket.
const WAYS: u32 = 31;
/// Words of a bucket: where its next fingerprint goes, and the fingerprints; 0 is none.
const BUCKET: usize = 1 + WAYS as usize;
/// Objects of the capacity for each bucket.
const OBJECTS: u32 = 2 * BUCKET as u32;

/// The memory of evictions.
#[derive(Debug)]
pub(super) struct Ghost {
    words: Vec<u16>,
    objects_max: u32,
}

impl Ghost {
    pub(super) fn new(objects_max: u32) -> Ghost {
        let buckets = objects_max.div_ceil(OBJECTS) as usize;
        Ghost { words: vec![0; buckets * BUCKET], objects_max }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u16>()
    }

    /// Remembers the hash of a key.
    pub(super) fn remember(&mut self, hash: u64) {
        let bucket = self.bucket(hash);
        let next = bucket[0];
        bucket[1 + usize::from(next)] = fingerprint(hash);
        bucket[0] = (next + 1) % WAYS as u16;
    }

    /// Whether a hash is remembered by a store that holds `objects` now; forgets it.
    pub(super) fn take(&mut self, hash: u64, objects: u32) -> bool {
        let share = u64::from(WAYS) * u64::from(objects) / u64::from(self.objects_max);
        let ways = (share as u32 + 1).min(WAYS);
        let bucket = self.bucket(hash);
        let next = u32::from(bucket[0]);
        let mut latest = (1..=ways).map(|age| 1 + ((next + WAYS - age) % WAYS) as usize);
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
    use super::*;

    #[test]
    fn what_is_remembered_is_taken_once() {
        let mut ghost = Ghost::new(64);
        ghost.remember(5);
        assert!(!ghost.take(6, 64));
        assert!(ghost.take(5, 64));
        assert!(!ghost.take(5, 64));
    }

    #[test]
    fn the_oldest_of_a_bucket_is_forgotten_first() {
        let mut ghost = Ghost::new(64);
        (1..=32).for_each(|hash| ghost.remember(hash));
        assert!(!ghost.take(1, 64) && ghost.take(2, 64) && ghost.take(32, 64));
    }

    #[test]
    fn a_store_of_few_objects_looks_back_less() {
        let mut ghost = Ghost::new(64);
        (1..=20).for_each(|hash| ghost.remember(hash));
        assert!(ghost.take(20, 1) && !ghost.take(19, 1));
        assert!(ghost.take(19, 32));
    }
}
