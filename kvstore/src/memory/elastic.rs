//! Decides the size of a cache that can shrink at any time.
//!
//! The cache's own memory counts as free, because it could be freed. The cache leaves a headroom for allocations of
//! others before the next evaluation. It shrinks at once, as far as the headroom demands, and grows in steps after
//! several evaluations with room for more and for half of another headroom, so that a budget that wavers by less moves
//! nothing.

use super::{Memory, Strain};

/// Evaluations with room in a row before it grows, and between two steps.
const CALM_COUNT: u32 = 3;
/// It grows at a time by at most its maximum divided by this, or by a step.
const GROWTH_PARTS: u64 = 8;
const HEADROOM_BYTES_MIN: u64 = 64 << 20;
/// The headroom has in addition the memory of the cache and others divided by this.
const HEADROOM_PARTS: u64 = 32;

/// Decides the size of a cache as memory comes and goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elastic {
    bytes_max: u64,
    step_bytes: u64,
    calm: u32,
}

impl Elastic {
    /// Creates the decision for a cache of at most `bytes_max`, whose other sizes are multiples of `step_bytes`.
    pub(crate) fn new(bytes_max: u64, step_bytes: u64) -> Elastic {
        assert!(step_bytes > 0, "a cache changes by some bytes");
        Elastic { bytes_max, step_bytes, calm: 0 }
    }

    /// Returns the largest size of the cache, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns whether there is room for `more` bytes in a cache that has `bytes`.
    pub(crate) fn has_room(bytes: u64, more: u64, memory: &Memory) -> bool {
        let (fits, _) = fits(bytes, memory);
        fits >= bytes.saturating_add(more)
    }

    /// Returns the bytes to which a cache that has `bytes` may grow at once, as when it is set up; `bytes` if it may not.
    pub(crate) fn filled(&self, bytes: u64, memory: &Memory) -> u64 {
        let (fits, headroom) = fits(bytes, memory);
        bytes.max(self.whole(fits.saturating_sub(headroom / 2)))
    }

    /// Returns the size in bytes for a cache that has `bytes` now.
    pub(crate) fn evaluate(&mut self, bytes: u64, memory: &Memory, strain: Strain) -> u64 {
        let (fits, _) = fits(bytes, memory);
        let fits = fits.min(self.bytes_max);
        let yields = strain == Strain::Yield;
        if fits < bytes || yields {
            self.calm = 0;
            let given = if yields { self.step_bytes } else { 0 };
            return self.whole(fits.min(bytes.saturating_sub(given)));
        }
        let most = bytes + self.step_bytes.max(self.bytes_max / GROWTH_PARTS);
        let grown = self.filled(bytes, memory).min(bytes.max(self.whole(most)));
        let is_calm = grown > bytes && strain == Strain::None;
        self.calm = if is_calm { self.calm + 1 } else { 0 };
        if self.calm < CALM_COUNT {
            return bytes;
        }
        self.calm = 0;
        assert!(grown <= fits, "{grown} bytes of {fits}");
        grown
    }

    /// Returns the largest size of the cache within `bytes`.
    fn whole(&self, bytes: u64) -> u64 {
        if bytes >= self.bytes_max {
            return self.bytes_max;
        }
        bytes / self.step_bytes * self.step_bytes
    }
}

/// Returns the bytes that memory leaves to a cache that has `bytes` of it, and the headroom beside them.
fn fits(bytes: u64, memory: &Memory) -> (u64, u64) {
    let room = memory.room(bytes);
    let headroom = HEADROOM_BYTES_MIN + room / HEADROOM_PARTS;
    (room.saturating_sub(headroom), headroom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::memory::GroupMemory;

    const STEP: u64 = 64 << 20;
    const MAX: u64 = 40 * STEP + (5 << 20);
    /// Evaluations in which any cache here grows to its maximum.
    const SETTLED: u32 = 9 * CALM_COUNT;

    /// Memory of which others leave `left` bytes to a cache that has `bytes`.
    fn memory(left: u64, bytes: u64) -> Memory {
        let (limit_bytes, anon_shmem_bytes) = (Some(7 * STEP + left), 7 * STEP + bytes);
        let group = GroupMemory { limit_bytes, anon_shmem_bytes, ..Default::default() };
        Memory { available_bytes: 900 * STEP, groups: vec![group], ..Memory::default() }
    }

    fn settle(elastic: &mut Elastic, mut bytes: u64, left: u64) -> u64 {
        for _ in 0..SETTLED {
            let next = elastic.evaluate(bytes, &memory(left, bytes), Strain::None);
            assert!(next >= bytes, "nothing takes memory away meanwhile");
            bytes = next;
        }
        bytes
    }

    #[test]
    fn it_shrinks_at_once_and_grows_in_eighths_once_memory_was_there_for_a_while() {
        let mut elastic = Elastic::new(MAX, STEP);
        let evaluate = |elastic: &mut Elastic, bytes, left| {
            elastic.evaluate(bytes, &memory(left, bytes), Strain::None)
        };
        assert_eq!(evaluate(&mut elastic, MAX, 100 * STEP), MAX);
        assert_eq!(evaluate(&mut elastic, MAX, 11 * STEP), 9 * STEP, "the headroom stays free");
        let mut sizes = vec![0];
        for _ in 0..2 * CALM_COUNT {
            let bytes = sizes[sizes.len() - 1];
            sizes.push(evaluate(&mut elastic, bytes, 100 * STEP));
        }
        assert_eq!(sizes, [0, 0, 0, 5, 5, 5, 10].map(|steps| steps * STEP));
        assert_eq!(settle(&mut elastic, 10 * STEP, 100 * STEP), MAX);
        assert_eq!(evaluate(&mut elastic, MAX, 0), 0);
    }

    #[test]
    fn available_memory_below_the_headroom_takes_the_difference() {
        let memory = Memory { available_bytes: STEP, ..Memory::default() };
        let mut elastic = Elastic::new(MAX, STEP);
        assert_eq!(elastic.evaluate(30 * STEP, &memory, Strain::None), 29 * STEP);
        assert_eq!(elastic.evaluate(STEP, &Memory::default(), Strain::None), 0);
    }

    #[test]
    fn under_pressure_it_does_not_grow_and_then_gives_way() {
        let mut elastic = Elastic::new(MAX, STEP);
        let plenty = memory(100 * STEP, 0);
        let mut of = |bytes, strain| elastic.evaluate(bytes, &plenty, strain);
        assert!((0..20).all(|_| of(4 * STEP, Strain::Hold) == 4 * STEP));
        assert_eq!(of(4 * STEP, Strain::Yield), 3 * STEP);
        assert_eq!(of(MAX, Strain::Yield), 39 * STEP);
        assert_eq!(of(0, Strain::Yield), 0);
    }

    #[test]
    fn a_cache_smaller_than_a_step_is_there_or_not() {
        let bytes = STEP / 8;
        let mut elastic = Elastic::new(bytes, STEP);
        assert_eq!(elastic.filled(0, &memory(STEP, 0)), 0);
        assert_eq!(elastic.filled(0, &memory(4 * STEP, 0)), bytes);
        assert_eq!(settle(&mut elastic, 0, 4 * STEP), bytes);
        assert_eq!(elastic.evaluate(bytes, &memory(STEP, bytes), Strain::None), 0);
    }

    proptest! {
        #[test]
        fn it_stays_within_its_budget_and_takes_what_there_is_in_bounded_time(
            lefts in prop::collection::vec(0u64..60 * STEP, 1..80)
        ) {
            let mut elastic = Elastic::new(MAX, STEP);
            let mut bytes = 0;
            for left in &lefts {
                let memory = memory(*left, bytes);
                bytes = elastic.evaluate(bytes, &memory, Strain::None);
                let headroom = HEADROOM_BYTES_MIN + left / HEADROOM_PARTS;
                prop_assert!(bytes <= MAX && bytes <= left.saturating_sub(headroom));
            }
            let left = lefts[0];
            let next = settle(&mut elastic, 0, left);
            prop_assert_eq!(next, elastic.filled(0, &memory(left, 0)));
            prop_assert_eq!(settle(&mut elastic, next, 60 * STEP), MAX);
        }

        #[test]
        fn a_budget_that_wavers_by_less_than_half_the_headroom_moves_nothing(
            left in 2 * STEP..60 * STEP, wavers in prop::collection::vec(0u64..STEP / 2, 1..80)
        ) {
            let mut elastic = Elastic::new(MAX, STEP);
            let bytes = settle(&mut elastic, 0, left);
            for waver in wavers {
                let memory = memory(left - waver, bytes);
                prop_assert_eq!(elastic.evaluate(bytes, &memory, Strain::None), bytes);
            }
        }
    }
}
