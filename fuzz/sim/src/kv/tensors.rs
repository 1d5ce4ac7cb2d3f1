//! A KV block in memory: its tensors one after another, each padded to whole units.
//!
//! The bytes of a block are those of its tensors without the padding, which is arbitrary.

use std::ops::Range;

use adit_kvstore::UNIT_BYTES;
use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};

use super::content;
use crate::random::Random;

/// The tensors of a KV block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensors {
    /// The number of the layout in the run.
    pub(crate) layout: usize,
    pub(crate) layers: u32,
    per_layer: u32,
    /// Bytes of one tensor, without padding; a multiple of 8.
    tensor_bytes: u64,
}

impl Tensors {
    pub(crate) fn of(number: usize, layout: &Layout) -> Tensors {
        let block = layout.block();
        Tensors {
            layout: number,
            layers: block.layers,
            per_layer: u32::from(block.tensors_per_layer),
            tensor_bytes: layout.tensor_bytes(),
        }
    }

    fn padded_bytes(&self) -> u64 {
        self.tensor_bytes.next_multiple_of(UNIT_BYTES)
    }

    fn numbers(&self, layers: Range<u32>) -> Range<u32> {
        layers.start * self.per_layer..layers.end * self.per_layer
    }

    /// Returns the memory of these layers in bytes, with padding.
    pub(crate) fn memory_bytes(&self, layers: Range<u32>) -> u64 {
        self.numbers(layers).len() as u64 * self.padded_bytes()
    }

    /// Returns the layers whose bytes, with padding, are a range that is cut off at the block's end.
    pub(crate) fn layers_of(&self, range: &Range<u64>) -> Option<Range<u32>> {
        let begins = |layer: &u32| self.memory_bytes(0..*layer);
        let find = |at: u64| (0..=self.layers).find(|layer| begins(layer) == at);
        let end = range.end.min(begins(&self.layers));
        Some(find(range.start)?..find(end)?).filter(|layers| !layers.is_empty())
    }

    /// Returns these layers as they lie in memory, with contents of this seed.
    pub(crate) fn fill(&self, layers: Range<u32>, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; self.memory_bytes(layers.clone()) as usize];
        let tensors = bytes.chunks_mut(self.padded_bytes() as usize);
        for (tensor, number) in tensors.zip(self.numbers(layers)) {
            let offset = u64::from(number) * self.tensor_bytes;
            content::fill(&mut tensor[..self.tensor_bytes as usize], seed, offset);
        }
        bytes
    }

    pub(crate) fn are(&self, bytes: &[u8], layers: Range<u32>, seed: u64) -> bool {
        let is_long = bytes.len() as u64 == self.memory_bytes(layers.clone());
        let tensors = bytes.chunks(self.padded_bytes() as usize).zip(self.numbers(layers));
        let is_right = |(tensor, number): (&[u8], u32)| {
            let offset = u64::from(number) * self.tensor_bytes;
            content::difference(&tensor[..self.tensor_bytes as usize], seed, offset).is_none()
        };
        is_long && tensors.into_iter().all(is_right)
    }
}

/// Draws a layout of small blocks.
pub(crate) fn draw(random: &mut Random) -> Layout {
    let block = BlockShape {
        layers: random.between(1, 6) as u32,
        tensors_per_layer: random.between(1, 2) as u8,
        kv_heads: random.between(1, 2) as u32,
        head_dim: random.pick(&[8, 64, 72]),
        dtype: random.pick(&[Dtype::F16, Dtype::Fp8, Dtype::F32]),
        tokens: random.pick(&[1, 16, 33]),
    };
    let slots = random.pick(&[1, 2, 4, 16]);
    let order = if random.one_in(3) { Order::BlockMajor } else { Order::LayerMajor { slots } };
    Layout::new(block, order).expect("a layout of few small tensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_recognised_and_nothing_else_is() {
        let mut random = Random::new(4);
        for _ in 0..100 {
            let tensors = Tensors::of(0, &draw(&mut random));
            let all = 0..tensors.layers;
            let mut bytes = tensors.fill(all.clone(), 7);
            assert!(tensors.are(&bytes, all.clone(), 7) && !tensors.are(&bytes, all.clone(), 8));
            let layer = tensors.layers - 1..tensors.layers;
            let from = bytes.len() - tensors.memory_bytes(layer.clone()) as usize;
            assert!(tensors.are(&bytes[from..], layer.clone(), 7));
            assert_eq!(tensors.layers_of(&(from as u64..u64::MAX)), Some(layer));
            assert_eq!(tensors.layers_of(&(0..bytes.len() as u64)), Some(all.clone()));
            assert_eq!(tensors.layers_of(&(1..bytes.len() as u64)), None);
            bytes[0] ^= 1;
            assert!(!tensors.are(&bytes, all, 7));
        }
    }
}
