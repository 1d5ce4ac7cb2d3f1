//! Assigns layers to groups by algorithm 1 of Dual-Blade, which calls cached layers group 1 and direct ones group 2.
//!
//! A layer's two tensors are in the same group. As many layers are cached as fit into `X` bytes, in the order of a
//! [`Ranker`]. All tensors of a run are equally hot, so the time of a run is linear in the number of cached layers:
//! either none or as many as fit is best; `governor` decides which.

use crate::error::{Error, Result};

/// The way in which a layer is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Through the page cache, where it stays.
    Cached,
    /// Past the page cache.
    Direct,
}

/// Orders layers by priority for caching.
pub trait Ranker: Send {
    /// Returns each layer below `layers` once, in the order in which they are cached.
    fn rank(&self, layers: u32) -> Vec<u32>;
}

/// The paper's order: caches layers from the first on.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstLayers;

impl Ranker for FirstLayers {
    fn rank(&self, layers: u32) -> Vec<u32> {
        (0..layers).collect()
    }
}

/// Spreads the cached layers evenly over all, whatever their number, so that layers from memory and from the drive
/// alternate: an engine that reads ahead then keeps the drive busy while layers come from memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread;

impl Ranker for Spread {
    fn rank(&self, layers: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..layers).collect();
        // Any prefix of the numbers ordered by reversed bits is spread evenly.
        order.sort_by_key(|layer| layer.reverse_bits());
        order
    }
}

/// Returns how many layers fit into `x` bytes: `min(floor(X / 2S), L)`, where `tensor_bytes` is the final size S.
pub(crate) fn layers_that_fit(x: u64, tensor_bytes: u64, layers: u32) -> u32 {
    assert!(tensor_bytes > 0, "a tensor has bytes");
    let fit = x / tensor_bytes.saturating_mul(2);
    u32::try_from(fit).unwrap_or(u32::MAX).min(layers)
}

/// The group of every layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All layers by rank.
    order: Vec<u32>,
    /// The rank of each layer.
    ranks: Vec<u32>,
    /// Number of cached layers.
    cached: u32,
}

impl Plan {
    /// Plans `layers` layers, of which `cached` are cached.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the ranker does not name each layer once.
    pub fn new(ranker: &dyn Ranker, layers: u32, cached: u32) -> Result<Plan> {
        assert!(cached <= layers, "{cached} of {layers} layers are cached");
        let order = ranker.rank(layers);
        let mut ranks = vec![u32::MAX; layers as usize];
        for (rank, layer) in order.iter().enumerate() {
            if let Some(slot) = ranks.get_mut(*layer as usize) {
                *slot = rank as u32;
            }
        }
        if order.len() != layers as usize || ranks.contains(&u32::MAX) {
            let fix = format!("name each of the {layers} layers once");
            return Err(Error::invalid("the ranker's order", format!("{order:?}"), fix));
        }
        Ok(Plan { order, ranks, cached })
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> u32 {
        self.order.len() as u32
    }

    /// Returns the number of cached layers: n1.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Returns whether a layer is cached: x_i.
    pub fn is_cached(&self, layer: u32) -> bool {
        self.rank(layer) < self.cached
    }

    /// Returns a layer's rank: the number of layers cached before it.
    pub(crate) fn rank(&self, layer: u32) -> u32 {
        self.ranks[layer as usize]
    }

    /// Returns the cached layers, by rank.
    pub fn cached_layers(&self) -> &[u32] {
        &self.order[..self.cached as usize]
    }

    /// Returns the direct layers, by rank.
    pub fn direct_layers(&self) -> &[u32] {
        &self.order[self.cached as usize..]
    }

    /// Changes the number of cached layers. Returns the layers that change their group, in the order in which they
    /// move: the last to enter leaves first.
    pub fn resize(&mut self, cached: u32) -> Vec<u32> {
        let cached = cached.min(self.layers());
        let (from, to) = (self.cached as usize, cached as usize);
        self.cached = cached;
        match to >= from {
            true => self.order[from..to].to_vec(),
            false => self.order[to..from].iter().rev().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Shape};
    use proptest::prelude::*;

    /// Orders layers by their number times three, which is not the identity for 7 layers.
    struct Strided;

    impl Ranker for Strided {
        fn rank(&self, layers: u32) -> Vec<u32> {
            (0..layers).map(|layer| layer * 3 % layers).collect()
        }
    }

    /// Counts the layers that fit by filling memory one tensor at a time.
    fn filled(mut x: u64, tensor: u64, layers: u32) -> u32 {
        let mut count = 0;
        while count < layers && x >= tensor && x - tensor >= tensor {
            x -= 2 * tensor;
            count += 1;
        }
        count
    }

    #[test]
    fn the_plan_is_the_formula_for_every_model_over_a_grid() {
        for model in Model::ALL {
            for (batch, prompt, generated) in
                [(2, 64, 4), (8, 512, 32), (32, 512, 32), (32, 744, 3)]
            {
                let shape = Shape::new(model, batch, prompt, generated).expect("a shape");
                for percent in 0..=120 {
                    let x = shape.set_bytes() * percent / 100;
                    let cached = layers_that_fit(x, shape.tensor_bytes(), model.layers);
                    assert_eq!(cached, filled(x, shape.tensor_bytes(), model.layers));
                    let plan = Plan::new(&FirstLayers, model.layers, cached).expect("a plan");
                    for layer in 0..model.layers {
                        assert_eq!(
                            plan.is_cached(layer),
                            layer < cached,
                            "layers enter from the first"
                        );
                    }
                    assert!(
                        u64::from(cached) * shape.pair_bytes() <= x,
                        "the cached layers fit into X"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_change_moves_only_the_layers_between(from in 0u32..=7, to in 0u32..=9) {
            let mut plan = Plan::new(&Strided, 7, from).expect("a plan");
            let before: Vec<bool> = (0..7).map(|layer| plan.is_cached(layer)).collect();
            let moved = plan.resize(to);
            prop_assert_eq!(moved.len() as u32, from.abs_diff(to.min(7)));
            for layer in 0..7 {
                let changed = before[layer as usize] != plan.is_cached(layer);
                prop_assert_eq!(changed, moved.contains(&layer));
            }
            prop_assert_eq!(plan.cached_layers().len() + plan.direct_layers().len(), 7);
        }
    }

    #[test]
    fn cached_layers_are_spread_evenly() {
        for layers in [24, 32, 40] {
            let order = Spread.rank(layers);
            for cached in 1..=layers {
                let plan = Plan::new(&Spread, layers, cached).expect("a plan");
                let half = (0..layers / 2).filter(|layer| plan.is_cached(*layer)).count();
                let other = cached as usize - half;
                assert!(half.abs_diff(other) <= 8, "{half} and {other} of {layers}: {order:?}");
            }
        }
        assert_eq!(Spread.rank(8), [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    #[test]
    fn unknown_rates_and_bad_rankers() {
        struct Twice;
        impl Ranker for Twice {
            fn rank(&self, layers: u32) -> Vec<u32> {
                vec![0; layers as usize]
            }
        }
        assert!(Plan::new(&Twice, 3, 0).is_err());
    }
}
