//! A memory of recently seen keys, in a few bits each.
//!
//! There are two Bloom filters; the younger one takes new keys. When it has taken its number of keys, the older one is
//! cleared and becomes the younger. A key is therefore remembered for at least one filter's number of other keys, and
//! forgotten after twice as many. Keys of a chain that were seen together are forgotten together, which is why this is
//! not a ring of fingerprints: a chain with a hole is useless from there on.
//!
//! A key has four bits in one cache line; the false positive rate is about 3 %. Each line records its generation, and
//! counts as empty in any other, so clearing a filter takes no time.

/// Bits of a filter per key.
const KEY_BITS: usize = 8;
const LINE: usize = 8;
/// Bits of a line for keys; the highest of its last word are the generation.
const LINE_BITS: u64 = 496;
/// Position of the generation in the last word of a line.
const GENERATION_SHIFT: u32 = 48;
/// Bits per key.
const PROBES: u32 = 4;

/// The memory of keys, by hash.
#[derive(Debug)]
pub(crate) struct Doorkeeper {
    /// The filters of even and odd generations.
    filters: [Vec<u64>; 2],
    /// The younger filter's generation; the older filter's is one less.
    generation: u64,
    /// Keys that the younger filter has taken.
    keys: u32,
    keys_max: u32,
}

impl Doorkeeper {
    /// Creates filters for `keys_max` keys each.
    pub(crate) fn new(keys_max: u32) -> Doorkeeper {
        assert!(keys_max > 0, "a filter is for some keys");
        let words = (keys_max as usize * KEY_BITS).div_ceil(64 * LINE) * LINE;
        // Fresh lines are of generation 0 and empty.
        Doorkeeper { filters: [vec![0; words], vec![0; words]], generation: 1, keys: 0, keys_max }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.filters.iter().map(|filter| filter.capacity() * size_of::<u64>()).sum()
    }

    /// Returns whether a key was seen before.
    pub(crate) fn has_seen(&self, hash: u64) -> bool {
        [self.generation, self.generation - 1].iter().any(|of| self.holds(*of, hash))
    }

    /// Remembers a key. A filter is for at most `keys` now, as many as it was created for or fewer.
    pub(crate) fn see(&mut self, hash: u64, keys: u32) {
        if self.holds(self.generation, hash) {
            return;
        }
        self.take(hash);
        self.keys += 1;
        if self.keys >= keys.clamp(1, self.keys_max) {
            self.generation += 1;
            self.keys = 0;
        }
    }

    /// Returns whether the filter of a generation has a key.
    fn holds(&self, generation: u64, hash: u64) -> bool {
        let (lines, _) = self.filters[(generation % 2) as usize].as_chunks::<LINE>();
        let line = &lines[position(lines.len(), hash)];
        is_of(line, generation) && bits(hash).all(|(word, bit)| line[word] & bit != 0)
    }

    /// Adds a key to the younger filter.
    fn take(&mut self, hash: u64) {
        let (lines, _) = self.filters[(self.generation % 2) as usize].as_chunks_mut::<LINE>();
        let line = &mut lines[position(lines.len(), hash)];
        if !is_of(line, self.generation) {
            *line = [0; LINE];
            line[LINE - 1] = self.generation << GENERATION_SHIFT;
        }
        for (word, bit) in bits(hash) {
            line[word] |= bit;
        }
    }
}

/// Returns whether a line is of a generation, whose low 16 bits it stores.
fn is_of(line: &[u64; LINE], generation: u64) -> bool {
    line[LINE - 1] >> GENERATION_SHIFT == generation & 0xffff
}

/// Returns the line of a key, selected by its hash's high bits.
fn position(lines: usize, hash: u64) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Returns the bits of a key in its line, each with its word, from the hash's low bits.
fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let mixed = hash.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 28;
    (0..PROBES).map(move |probe| {
        let bit = (((mixed >> (9 * probe)) & 511) * LINE_BITS) >> 9;
        ((bit >> 6) as usize, 1 << (bit & 63))
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn hash(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    proptest! {
        #[test]
        fn what_was_seen_is_known_for_as_many_keys_as_a_filter_is_for(
            numbers in vec(0_u64..40, 1..200),
        ) {
            let mut doorkeeper = Doorkeeper::new(16);
            for (at, number) in numbers.iter().enumerate() {
                let lately = numbers[at.saturating_sub(16)..at].contains(number);
                prop_assert!(doorkeeper.has_seen(hash(*number)) || !lately);
                doorkeeper.see(hash(*number), u32::MAX);
            }
        }
    }

    #[test]
    fn what_was_not_seen_is_seldom_taken_for_seen() {
        let mut doorkeeper = Doorkeeper::new(1000);
        let mut mistaken = 0;
        for number in 0..100_000 {
            mistaken += u32::from(doorkeeper.has_seen(hash(number)));
            doorkeeper.see(hash(number), 1000);
        }
        assert!(mistaken < 5000, "{mistaken} of 100,000");
    }

    #[test]
    fn what_was_seen_is_forgotten_after_two_filters_of_others() {
        let mut doorkeeper = Doorkeeper::new(1000);
        (0..3200).for_each(|number| doorkeeper.see(hash(number), u32::MAX));
        let known = (0..1000).filter(|number| doorkeeper.has_seen(hash(*number))).count();
        assert!(known < 50, "{known} of 1,000");
        (4000..4250).for_each(|number| doorkeeper.see(hash(number), 100));
        assert!(!doorkeeper.has_seen(hash(4000)) && doorkeeper.has_seen(hash(4249)), "fewer");
    }
}
