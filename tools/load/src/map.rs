//! Tracks which blocks of the region a pass has taken: one bit per block, like fio's random map.
//!
//! Above the bits lie levels of summaries, each with a bit per full word of the level below. So the next free block
//! is found in a few steps, however little is free.

use std::collections::TryReserveError;

/// The free blocks of a region.
#[derive(Clone, Debug)]
pub struct RandomMap {
    blocks: u64,
    /// The taken blocks, then the full words of each level below; bits beyond the last one are set.
    levels: Vec<Vec<u64>>,
}

impl RandomMap {
    /// Creates a map of `blocks` free blocks, at least one.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(blocks: u64) -> Result<RandomMap, TryReserveError> {
        assert!(blocks > 0, "there is something to take");
        let mut levels = Vec::new();
        let mut words = blocks;
        while levels.is_empty() || words > 1 {
            words = words.div_ceil(64);
            let mut level = Vec::new();
            level.try_reserve_exact(words as usize)?;
            level.resize(words as usize, 0);
            levels.push(level);
        }
        let mut map = RandomMap { blocks, levels };
        map.clear();
        Ok(map)
    }

    /// Returns the number of blocks, free or not.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Frees all blocks.
    pub fn clear(&mut self) {
        let mut bits = self.blocks;
        for level in &mut self.levels {
            level.fill(0);
            if !bits.is_multiple_of(64) {
                level[(bits / 64) as usize] = u64::MAX << (bits % 64);
            }
            bits = level.len() as u64;
        }
    }

    /// Returns the first free block at or after `from`, wrapping around; `None` if all are taken.
    #[inline]
    pub fn next_free(&self, from: u64) -> Option<u64> {
        self.first_free(from).or_else(|| self.first_free(0))
    }

    /// Climbs to the first level that has a clear bit at or after `from`, and descends from there.
    #[inline]
    fn first_free(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = at / 64;
            let free = !level.get(word as usize)? & (u64::MAX << (at % 64));
            if free != 0 {
                let found = word * 64 + u64::from(free.trailing_zeros());
                let down = |at: u64, level: &Vec<u64>| {
                    at * 64 + u64::from(level[at as usize].trailing_ones())
                };
                return Some(self.levels[..height].iter().rev().fold(found, down));
            }
            at = word + 1;
        }
        None
    }

    /// Takes consecutive free blocks from `from`, at most `want`, and returns how many.
    #[inline]
    pub fn take(&mut self, from: u64, want: u64) -> u64 {
        let mut count = 0;
        while count < want {
            let (block, bit) = (from + count, (from + count) % 64);
            let Some(word) = self.levels[0].get_mut((block / 64) as usize) else { break };
            let run = u64::from((*word >> bit).trailing_zeros()).min(64 - bit).min(want - count);
            if run == 0 {
                break;
            }
            *word |= (u64::MAX >> (64 - run)) << bit;
            if *word == u64::MAX {
                self.note_full(block / 64);
            }
            count += run;
        }
        count
    }

    /// Records in the summaries that this word of the lowest level is full.
    fn note_full(&mut self, mut word: u64) {
        for level in &mut self.levels[1..] {
            let summary = &mut level[(word / 64) as usize];
            *summary |= 1 << (word % 64);
            if *summary != u64::MAX {
                return;
            }
            word /= 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_map_is_what_a_row_of_flags_is(
            blocks in prop_oneof![1u64..300, 4000u64..4200, Just(64), Just(64 * 64)],
            takes in proptest::collection::vec((0u64..4200, prop_oneof![1u64..200, Just(5000)]), 0..40),
        ) {
            let mut map = RandomMap::new(blocks).expect("memory");
            let mut free = vec![true; blocks as usize];
            for (from, want) in takes {
                let from = from % blocks;
                let places: Vec<usize> = (from..blocks.min(from + want))
                    .map(|block| block as usize)
                    .take_while(|block| free[*block])
                    .collect();
                prop_assert_eq!(map.take(from, want), places.len() as u64);
                places.into_iter().for_each(|block| free[block] = false);
                for from in [0, from, blocks - 1, blocks] {
                    let cycle = (from..blocks).chain(0..from.min(blocks));
                    prop_assert_eq!(map.next_free(from), { cycle }.find(|block| free[*block as usize]));
                }
            }
            map.clear();
            prop_assert!((0..blocks).all(|block| map.next_free(block) == Some(block)));
        }
    }
}
