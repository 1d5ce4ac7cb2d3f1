//! Which block is read or written next.
//!
//! A pass touches each block of the region once, in order or in an order chosen by the
//! seed; the next pass has another order. The whole sequence follows from the seed, so what a pass wrote
//! can be listed again for verification without having been recorded.

use super::permutation::{Permutation, mix};

/// How blocks are chosen, and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// In random order; else from the first to the last.
    pub(crate) random: bool,
    /// Share of reads in percent: 100 reads only, 0 writes only.
    pub(crate) read_percent: u8,
}

/// One block to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Index of the block in the region.
    pub(crate) block: u64,
    /// Written; else read.
    pub(crate) write: bool,
}

/// The steps of one pass after another.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    pattern: Pattern,
    block_count: u64,
    seed: u64,
    pass: u64,
    order: Permutation,
    position: u64,
}

impl Generator {
    /// The first pass over `block_count` blocks, which are not none.
    pub(crate) fn new(pattern: Pattern, block_count: u64, seed: u64) -> Generator {
        let order = order_of(block_count, seed, 0);
        Generator { pattern, block_count, seed, pass: 0, order, position: 0 }
    }

    /// The next step of this pass; `None` at its end.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        if self.position == self.block_count {
            return None;
        }
        let step = self.step_at(self.position);
        self.position += 1;
        Some(step)
    }

    /// Starts the next pass.
    pub(crate) fn next_pass(&mut self) {
        self.pass += 1;
        self.position = 0;
        self.order = order_of(self.block_count, self.seed, self.pass);
    }

    /// The number of this pass, from zero.
    pub(crate) fn pass(&self) -> u64 {
        self.pass
    }

    /// What this pass wrote so far, in the same order.
    pub(crate) fn written(&self) -> Written {
        Written { generator: self.clone(), position: 0 }
    }

    #[inline]
    fn step_at(&self, position: u64) -> Step {
        let block = if self.pattern.random { self.order.apply(position) } else { position };
        Step { block, write: !self.is_read(position) }
    }

    fn is_read(&self, position: u64) -> bool {
        match self.pattern.read_percent {
            0 => false,
            100 => true,
            percent => mix(self.seed ^ mix(self.pass) ^ position) % 100 < u64::from(percent),
        }
    }
}

fn order_of(block_count: u64, seed: u64, pass: u64) -> Permutation {
    Permutation::new(block_count, seed.wrapping_add(mix(pass)))
}

/// The blocks that a pass wrote.
#[derive(Debug)]
pub(crate) struct Written {
    generator: Generator,
    position: u64,
}

impl Iterator for Written {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.position < self.generator.position {
            let step = self.generator.step_at(self.position);
            self.position += 1;
            if step.write {
                return Some(step.block);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(generator: &mut Generator) -> Vec<Step> {
        std::iter::from_fn(|| generator.next_step()).collect()
    }

    proptest! {
        #[test]
        fn a_pass_touches_each_block_once(count in 1u64..500, seed: u64, random: bool, read_percent in 0u8..=100) {
            let mut generator = Generator::new(Pattern { random, read_percent }, count, seed);
            for _ in 0..2 {
                let mut blocks: Vec<u64> = steps(&mut generator).iter().map(|step| step.block).collect();
                blocks.sort_unstable();
                prop_assert_eq!(blocks, (0..count).collect::<Vec<_>>());
                generator.next_pass();
            }
        }

        #[test]
        fn what_was_written_is_listed_again(count in 1u64..500, seed: u64, done in 0usize..500) {
            let mut generator = Generator::new(Pattern { random: true, read_percent: 30 }, count, seed);
            let steps: Vec<Step> = std::iter::from_fn(|| generator.next_step()).take(done).collect();
            let written: Vec<u64> = steps.iter().filter(|step| step.write).map(|step| step.block).collect();
            prop_assert_eq!(generator.written().collect::<Vec<_>>(), written);
        }
    }

    #[test]
    fn the_mix_is_near_its_percentage() {
        let mut generator = Generator::new(Pattern { random: true, read_percent: 70 }, 100_000, 1);
        let reads = steps(&mut generator).iter().filter(|step| !step.write).count();
        assert!((69_000..71_000).contains(&reads), "{reads}");
    }

    #[test]
    fn passes_differ_in_order() {
        let mut generator = Generator::new(Pattern { random: true, read_percent: 100 }, 1000, 1);
        let first = steps(&mut generator);
        generator.next_pass();
        assert_ne!(first, steps(&mut generator));
    }
}
