//! Admission: store every object, or only those seen before.
//!
//! Most KV blocks are never read again, and each one written pushes out another. If space is short, writing a key
//! only on its second put keeps more hits and spares the device; if space is ample, it only turns first repeats into
//! misses. Which of the two holds is measured on a sample of the keys, by two caches of hashes: one admits
//! everything, the other what was seen before. The policy with more hits applies.
//!
//! - **A reference** is a hit, or the put that follows a miss; each is reported once. A miss without a put says
//!   nothing, because no cache could have had the key.
//! - **Bounds.** Four bytes per object that the store holds when full, and up to 200 KiB; O(1) per reference.
//! - **Deterministic**: the same references lead to the same decisions.
//!
//! Admission does not apply to a put that replaces an object.

mod doorkeeper;
mod shadow;

use doorkeeper::Doorkeeper;
use shadow::Shadow;

/// Remembered keys per object that the store holds when full: at least this many, at most twice.
const SEEN_SHARE: u32 = 2;
/// Maximum hashes of a shadow cache; for larger stores, keys are sampled.
const SHADOW_MAX: u32 = 2048;
/// Sampled references between decisions.
const WINDOW: u32 = 2048;
/// One `MARGIN`th more hits changes the decision; less is chance, and each change costs hits.
const MARGIN: u32 = 20;

/// The gate of a shard.
#[derive(Debug)]
pub(crate) struct Admission {
    seen: Doorkeeper,
    /// A cache that admits everything.
    open: Shadow,
    /// A cache that admits only what was seen.
    guarded: Shadow,
    /// One of 2 to the power of this many keys is sampled.
    sample_bits: u32,
    references: u32,
    /// Hits of the shadow caches; three quarters carry over into the next window.
    open_hits: u32,
    guarded_hits: u32,
    guards: bool,
}

impl Admission {
    /// Creates a gate for a store that holds about `objects` when full. It begins open.
    ///
    /// # Panics
    /// If `objects` is 0 or more than [`crate::catalog::index::Index::OBJECTS_MAX`].
    pub(crate) fn new(objects: u32) -> Admission {
        assert!(
            (1..=crate::catalog::index::Index::OBJECTS_MAX).contains(&objects),
            "a store holds objects"
        );
        let sample_bits = objects.div_ceil(SHADOW_MAX).next_power_of_two().ilog2();
        let sampled = (objects >> sample_bits).max(1);
        Admission {
            seen: Doorkeeper::new(objects * SEEN_SHARE),
            open: Shadow::new(sampled),
            guarded: Shadow::new(sampled),
            sample_bits,
            references: 0,
            open_hits: 0,
            guarded_hits: 0,
            guards: false,
        }
    }

    /// Reports a hit; `key_hash` is [`crate::catalog::index::Index::hash`] of the key.
    pub(crate) fn touched(&mut self, key_hash: u64) {
        self.refer(key_hash);
    }

    /// Returns whether to admit a new object.
    #[must_use]
    pub(crate) fn admit(&mut self, key_hash: u64) -> bool {
        let seen = self.refer(key_hash);
        seen || !self.guards
    }

    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        self.seen.memory_bytes() + self.open.memory_bytes() + self.guarded.memory_bytes()
    }

    /// Counts a reference, and returns whether its key was seen before.
    fn refer(&mut self, hash: u64) -> bool {
        let seen = self.seen.see(hash);
        if self.is_sampled(hash) {
            self.sample(hash, seen);
        }
        seen
    }

    fn is_sampled(&self, hash: u64) -> bool {
        // Other bits than those that select a line of the doorkeeper.
        let mixed = hash.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        mixed & ((1 << self.sample_bits) - 1) == 0
    }

    fn sample(&mut self, hash: u64, seen: bool) {
        if self.open.hit(hash) {
            self.open_hits += 1;
        } else {
            self.open.put(hash);
        }
        if self.guarded.hit(hash) {
            self.guarded_hits += 1;
        } else if seen {
            self.guarded.put(hash);
        }
        self.references += 1;
        if self.references == WINDOW {
            self.decide();
        }
    }

    /// Changes the decision if the other policy has more hits by a margin.
    fn decide(&mut self) {
        let (doing, other) = if self.guards {
            (self.guarded_hits, self.open_hits)
        } else {
            (self.open_hits, self.guarded_hits)
        };
        if other > doing + doing / MARGIN {
            self.guards = !self.guards;
        }
        self.references = 0;
        self.open_hits -= self.open_hits / 4;
        self.guarded_hits -= self.guarded_hits / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// A policy for missing keys.
    #[derive(Clone, Copy)]
    enum Gate {
        Open,
        Guarded,
        Adaptive,
    }

    /// Returns the hits of a cache of `objects` behind a gate, once it is full and has learnt.
    fn hits(keys: impl Iterator<Item = u64>, objects: u32, gate: Gate) -> u32 {
        let mut cache = Shadow::new(objects);
        let mut admission = Admission::new(objects);
        let mut hits = 0;
        for (at, key) in keys.map(hash).enumerate() {
            if cache.hit(key) {
                admission.touched(key);
                hits += u32::from(at >= 100_000);
                continue;
            }
            admission.guards = match gate {
                Gate::Open => false,
                Gate::Guarded => true,
                Gate::Adaptive => admission.guards,
            };
            if admission.admit(key) {
                cache.put(key);
            }
        }
        hits
    }

    /// A hot set that fits, among many keys that never repeat.
    fn flood(objects: u64) -> impl Iterator<Item = u64> {
        let step = move |n: u64| if n.is_multiple_of(4) { hash(n) % objects } else { n + objects };
        (0..200_000).map(step)
    }

    /// Each key comes twice, with fewer other keys in between than fit.
    fn pairs(objects: u64) -> impl Iterator<Item = u64> {
        let lag = objects / 2;
        (0..200_000).map(move |n| (n / lag / 2) * lag + n % lag)
    }

    #[test]
    fn the_gate_does_as_well_as_the_better_of_open_and_guarded() {
        for objects in [500, 5000] {
            let run = |gate| {
                let size = u64::from(objects);
                [hits(flood(size), objects, gate), hits(pairs(size), objects, gate)]
            };
            let (open, guarded) = (run(Gate::Open), run(Gate::Guarded));
            let adaptive = run(Gate::Adaptive);
            assert!(guarded[0] > open[0] && open[1] > guarded[1], "{open:?} {guarded:?}");
            for (workload, hits) in adaptive.into_iter().enumerate() {
                let better = open[workload].max(guarded[workload]);
                assert!(hits >= better / 20 * 19, "{objects}: {adaptive:?} {open:?} {guarded:?}");
            }
        }
    }

    #[test]
    fn a_gate_follows_a_change_of_workload() {
        let objects = 500;
        let mut admission = Admission::new(objects);
        for key in flood(u64::from(objects)) {
            let _ = admission.admit(hash(key));
        }
        assert!(admission.guards);
        for key in pairs(u64::from(objects)) {
            let _ = admission.admit(hash(key));
        }
        assert!(!admission.guards);
    }

    #[test]
    fn a_gate_takes_four_bytes_an_object_and_little_more() {
        for objects in [1, 2048, 2049, 1 << 20] {
            let admission = Admission::new(objects);
            let bytes = admission.memory_bytes();
            assert!(bytes <= 4 * objects as usize + (200 << 10), "{objects}: {bytes} bytes");
        }
    }
}
