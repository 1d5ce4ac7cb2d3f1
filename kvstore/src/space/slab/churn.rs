//! The effect of churn on neighbours in slabs.
//!
//! Sequences of KV blocks start, are read, grow turn by turn and go, least recently used first and block by block
//! from their ends. A block has runs of 160 KiB; a slab has 32. Slots are kept 97 % full. The test counts the
//! commands of 1 MiB that a layer of a whole sequence takes.

use super::*;
use crate::UNIT_BYTES;
use crate::model::place::Place;
use crate::model::plan::{Limits, Part, Plan};
use std::collections::VecDeque;

const SHAPE: SlabShape = SlabShape { runs: 4, run_units: 40, slots: 32 };
const LAYOUT: LayoutId = LayoutId(1);
const SLABS: u64 = 64;
const FULL_SLOTS: u64 = SLABS * SHAPE.slots as u64 * 97 / 100;
const LIMITS: Limits = Limits { command_bytes_max: 1 << 20, boundary_bytes: 0, slices_max: 256 };

/// A mixing generator (Knuth's MMIX).
struct Mix(u64);

impl Mix {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct Churn {
    extents: Extents,
    slabs: Slabs,
    /// Slots of each sequence, least recently used first.
    sequences: VecDeque<Vec<u64>>,
    commands: u64,
    /// Whether the blocks that follow are known.
    is_known: bool,
    /// Commands that the bytes alone would need.
    least: u64,
}

impl Churn {
    fn turn(&mut self, mix: &mut Mix) {
        let recent = self.sequences.len().min(16) as u64;
        let (mut sequence, blocks) = if recent > 0 && mix.below(10) < 6 {
            let at = self.sequences.len() - 1 - mix.below(recent) as usize;
            (self.sequences.remove(at).expect("it is there"), 1 + mix.below(8))
        } else {
            (Vec::new(), 1 + mix.below(64))
        };
        self.read(&sequence);
        for block in 0..blocks {
            while self.slabs.slots(LAYOUT).used >= FULL_SLOTS {
                self.evict();
            }
            let near = sequence.last().copied();
            let ahead = if self.is_known { (blocks - block) as u32 } else { 4 };
            let slot = self.slabs.allocate(&mut self.extents, LAYOUT, SHAPE, near, ahead);
            sequence.push(slot.expect("a slot is free"));
        }
        self.sequences.push_back(sequence);
    }

    fn evict(&mut self) {
        let oldest = self.sequences.front_mut().expect("something is in use");
        if let Some(slot) = oldest.pop() {
            self.slabs.free(&mut self.extents, slot);
        }
        if oldest.is_empty() {
            self.sequences.pop_front();
        }
    }

    fn read(&mut self, sequence: &[u64]) {
        let bytes = u64::from(SHAPE.run_units) * UNIT_BYTES;
        let part = |(item, &unit): (usize, &u64)| Part {
            place: Place { device: 0, unit },
            item: item as u32,
            offset: 0,
            bytes,
        };
        let mut parts: Vec<Part> = sequence.iter().enumerate().map(part).collect();
        self.commands += Plan::of(&mut parts, &LIMITS).runs().len() as u64;
        self.least += (bytes * sequence.len() as u64).div_ceil(LIMITS.command_bytes_max);
    }

    /// Returns the commands relative to those that the bytes alone would need.
    fn run(is_known: bool) -> f64 {
        let extents = Extents::new(0..SLABS * SHAPE.units());
        let (slabs, sequences) = (Slabs::new(), VecDeque::new());
        let mut churn = Churn { extents, slabs, sequences, commands: 0, is_known, least: 0 };
        let mut mix = Mix(1);
        (0..10_000).for_each(|_| churn.turn(&mut mix));
        (churn.commands as f64 / churn.least as f64 * 100.0).round() / 100.0
    }
}

#[test]
fn churn_leaves_a_layer_hit_near_what_its_bytes_need() {
    assert_eq!((Churn::run(true), Churn::run(false)), (1.49, 2.83));
}
