//! Compares the policy with plain LRU, by the hits of a small LRU cache of sampled keys.
//!
//! The shadow cache holds as many keys as the store has objects of sampled keys, so it hits when LRU would. If the
//! policy hits significantly less than LRU, LRU takes over for some windows, twice as many each time, until the policy
//! wins again. This bounds the loss on a load that does not suit the policy.

use super::reuse::is_one_of;
use crate::catalog::hash::NumberMap;
use crate::model::object::ObjectId;
use crate::policy::evict::lru::Lru;
use crate::policy::evict::policy::Policy;

/// Maximum number of keys in the shadow cache.
const KEYS_MAX: u32 = 512;
/// References in a window.
const WINDOW: u32 = 1024;
/// Windows of LRU's first takeover.
const HOLD_MIN: u32 = 4;
const HOLD_MAX: u32 = 256;

/// The shadow cache and its counts.
#[derive(Debug)]
pub(super) struct Shadow {
    order: Lru,
    ids: NumberMap<u64, ObjectId>,
    free: Vec<ObjectId>,
    /// The hash of each id.
    hashes: Vec<u64>,
    /// One of 2^`bits` keys is counted.
    bits: u32,
    references: u32,
    /// LRU's hits in this window; half of them carry over to the next, as with `our_hits`.
    lru_hits: u32,
    our_hits: u32,
    /// Remaining windows of LRU.
    left: u32,
    hold: u32,
}

impl Shadow {
    pub(super) fn new() -> Shadow {
        Shadow {
            order: Lru::new(KEYS_MAX),
            ids: NumberMap::default(),
            free: (0..KEYS_MAX).map(ObjectId).collect(),
            hashes: vec![0; KEYS_MAX as usize],
            bits: 0,
            references: 0,
            lru_hits: 0,
            our_hits: 0,
            left: 0,
            hold: HOLD_MIN,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        // A hash map has one extra byte per pair.
        self.ids.capacity() * (size_of::<(u64, ObjectId)>() + 1)
            + self.hashes.capacity() * size_of::<u64>()
            + self.free.capacity() * size_of::<ObjectId>()
            + self.order.memory_bytes()
    }

    /// Returns whether LRU has taken over.
    pub(super) fn is_lru_better(&self) -> bool {
        self.left > 0
    }

    /// Counts a reference to a key of the sample of one in 2^`bits`; `is_hit` says whether the store of `objects`
    /// objects hit it. Skips keys outside the shadow cache's own, possibly smaller sample.
    pub(super) fn refer(&mut self, hash: u64, is_hit: bool, (objects, bits): (u32, u32)) {
        self.sample(objects, bits);
        if !is_one_of(hash, self.bits) {
            return;
        }
        let objects = objects >> self.bits;
        self.our_hits += u32::from(is_hit);
        if let Some(id) = self.ids.get(&hash) {
            self.lru_hits += 1;
            self.order.touched(*id);
        } else {
            self.put(hash, objects.clamp(1, KEYS_MAX));
        }
        self.references += 1;
        if self.references == WINDOW {
            self.decide();
        }
    }

    /// Samples fewer keys if the store has more objects of sampled keys than the shadow cache can hold.
    fn sample(&mut self, objects: u32, bits: u32) {
        let needed = (objects / KEYS_MAX).checked_ilog2().map_or(0, |log| log + 1).max(bits);
        if needed <= self.bits {
            return;
        }
        self.bits = needed;
        let Shadow { order, ids, free, .. } = self;
        ids.retain(|hash, id| {
            let stays = is_one_of(*hash, needed);
            if !stays {
                order.removed(*id);
                free.push(*id);
            }
            stays
        });
    }

    fn put(&mut self, hash: u64, keys_max: u32) {
        while self.ids.len() >= keys_max as usize {
            let victim = self.order.victim(&mut |_| false).expect("nothing is leased here");
            let gone = self.hashes[victim.0 as usize];
            self.order.evicted(victim, gone);
            self.ids.remove(&gone);
            self.free.push(victim);
        }
        let id = self.free.pop().expect("an id for each key");
        self.hashes[id.0 as usize] = hash;
        self.ids.insert(hash, id);
        self.order.inserted(id, hash);
    }

    fn decide(&mut self) {
        self.references = 0;
        // Three standard deviations of a count, because blocks of a sequence come together, plus one percent.
        let chance = 3 * self.lru_hits.isqrt() + self.lru_hits / 100;
        if self.left > 0 {
            self.left -= 1;
        } else if self.our_hits + chance < self.lru_hits {
            self.left = self.hold;
            self.hold = (2 * self.hold).min(HOLD_MAX);
            (self.our_hits, self.lru_hits) = (0, 0);
        } else if self.our_hits > self.lru_hits {
            self.hold = (self.hold - 1).max(HOLD_MIN);
        }
        self.our_hits /= 2;
        self.lru_hits /= 2;
        if self.left > 0 {
            // While LRU is in charge, hits do not measure the policy.
            (self.our_hits, self.lru_hits) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refers to each of `keys` in turn for a number of windows; all hit if `is_hit`.
    fn run(shadow: &mut Shadow, keys: u64, windows: u32, is_hit: bool) -> u32 {
        let mut with_lru = 0;
        for number in 0..u64::from(windows * WINDOW) {
            shadow.refer(number % keys, is_hit, (100, 0));
            with_lru += u32::from(shadow.is_lru_better());
        }
        with_lru / WINDOW
    }

    #[test]
    fn lru_takes_over_where_it_hits_more_for_longer_each_time() {
        let mut shadow = Shadow::new();
        let with_lru = run(&mut shadow, 90, 60, false);
        assert!(with_lru > 50, "{with_lru} of 60");
        let with_lru = run(&mut shadow, 90, 200, true);
        assert!(with_lru < 70 && !shadow.is_lru_better(), "the policy gets its chance: {with_lru}");
        assert_eq!(shadow.hold, 64);
    }

    #[test]
    fn it_is_as_much_smaller_than_the_store_as_the_sample_than_all_keys() {
        let (mut shadow, mut state) = (Shadow::new(), 1u64);
        for (objects, bits, kept) in [(300, 0, 300), (5000, 0, 312), (5000, 6, 78)] {
            for _ in 0..200_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                shadow.refer(state, false, (objects, bits));
            }
            assert_eq!(shadow.ids.len(), kept, "{objects} objects, {bits} bits");
            assert!(shadow.ids.keys().all(|hash| is_one_of(*hash, shadow.bits)));
        }
    }

    #[test]
    fn lru_never_takes_over_where_it_hits_less() {
        let mut shadow = Shadow::new();
        assert_eq!(run(&mut shadow, 110, 50, false), 0, "neither hits");
        assert!(shadow.ids.len() <= 100);
        assert!(shadow.memory_bytes() < 64 << 10);
    }
}
