//! How many layers are in the page cache as its budget ([`crate::memory::budget`]) changes at run time.

use crate::memory::Strain;

/// Calm evaluations before group 1 grows, and between two layers by which it grows.
const CALM_COUNT: u32 = 3;

/// Decides how many layers are in group 1 as memory comes and goes.
///
/// It shrinks at once, by as many layers as the budget demands. It grows by one layer at a time, after some
/// evaluations in which the budget had room for that layer and half of another, so that a budget that wavers around a
/// multiple of a layer moves nothing.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    pair_bytes: u64,
    layers: u32,
    calm: u32,
}

impl Governor {
    /// Creates the governor of a run with `layers` layers of `pair_bytes` each.
    pub(crate) fn new(pair_bytes: u64, layers: u32) -> Governor {
        assert!(pair_bytes > 0 && layers > 0, "a run has layers with bytes");
        Governor { pair_bytes, layers, calm: 0 }
    }

    /// Returns the number of layers for group 1, which has `cached` now.
    pub(crate) fn evaluate(&mut self, cached: u32, x: u64, strain: Strain) -> u32 {
        assert!(cached <= self.layers, "group 1 has {cached} of {} layers", self.layers);
        let fit = crate::tensors::cached_layers(x, self.pair_bytes.div_ceil(2), self.layers);
        let yields = strain == Strain::Yield;
        if fit < cached || yields {
            self.calm = 0;
            return fit.min(cached.saturating_sub(u32::from(yields)));
        }
        let needs = (u64::from(cached) + 1).saturating_mul(self.pair_bytes);
        let has_room = x.saturating_sub(self.pair_bytes / 2) >= needs;
        let grows = has_room && strain == Strain::None && cached < self.layers;
        self.calm = if grows { self.calm + 1 } else { 0 };
        if self.calm < CALM_COUNT {
            return cached;
        }
        self.calm = 0;
        cached + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAIR: u64 = 272 << 20;

    #[test]
    fn it_shrinks_at_once_and_grows_one_layer_at_a_time() {
        let mut governor = Governor::new(PAIR, 32);
        assert_eq!(governor.evaluate(20, 7 * PAIR + 1, Strain::None), 7);
        let mut cached = 7;
        let mut evaluations = 0;
        while cached < 12 {
            let next = governor.evaluate(cached, 40 * PAIR, Strain::None);
            assert!(next <= cached + 1);
            (cached, evaluations) = (next, evaluations + 1);
        }
        assert_eq!(evaluations, 5 * CALM_COUNT);
    }

    #[test]
    fn pressure_stops_growth_and_takes_layers() {
        let mut governor = Governor::new(PAIR, 32);
        assert!((0..20).all(|_| governor.evaluate(4, 40 * PAIR, Strain::Hold) == 4));
        assert_eq!(governor.evaluate(4, 40 * PAIR, Strain::Yield), 3);
        assert_eq!(governor.evaluate(0, 40 * PAIR, Strain::Yield), 0);
    }

    #[test]
    fn a_budget_that_wavers_around_a_layer_moves_nothing() {
        let mut governor = Governor::new(PAIR, 32);
        for round in 0u64..100 {
            let x = 8 * PAIR + (round % 2) * PAIR + PAIR / 3;
            assert_eq!(governor.evaluate(8, x, Strain::None), 8);
        }
    }

    proptest! {
        #[test]
        fn group_1_never_exceeds_the_budget_and_settles_within_a_layer_of_it(
            steps in prop::collection::vec(0u64..40 * PAIR, 1..60)
        ) {
            let mut governor = Governor::new(PAIR, 32);
            let mut cached = 0;
            for x in &steps {
                cached = governor.evaluate(cached, *x, Strain::None);
                prop_assert!(u64::from(cached) * PAIR <= *x);
            }
            let x = steps[0];
            for _ in 0..33 * CALM_COUNT {
                cached = governor.evaluate(cached, x, Strain::None);
            }
            let fit = crate::tensors::cached_layers(x, PAIR / 2, 32);
            prop_assert!(cached <= fit && fit - cached <= 1, "{} of {}", cached, fit);
        }
    }
}
