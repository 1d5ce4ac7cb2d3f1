//! Which keys were seen of late, in a few bits each.
//!
//! Two Bloom filters: the younger one takes what is seen, and when it has taken as many keys as it is for, the older
//! one is emptied and becomes the younger. So what was seen is known for at least as many other keys as one is for,
//! and forgotten after twice as many. A key that was not seen is taken for one that was about once in ten.

/// Bits of a filter for each key that it is for.
const BITS: usize = 4;

/// The memory of keys, by their hashes.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    /// The younger filter and the older one.
    filters: [Vec<u64>; 2],
    /// Keys that the younger one has taken.
    keys: u32,
    keys_max: u32,
}

impl Doorkeeper {
    /// Filters for `keys_max` keys each.
    pub(super) fn new(keys_max: u32) -> Doorkeeper {
        assert!(keys_max > 0, "a filter is for some keys");
        let words = (keys_max as usize * BITS).div_ceil(64);
        Doorkeeper { filters: [vec![0; words], vec![0; words]], keys: 0, keys_max }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.filters.iter().map(|filter| filter.capacity() * size_of::<u64>()).sum()
    }

    /// Whether a key was seen before; it is from now on.
    pub(super) fn see(&mut self, hash: u64) -> bool {
        let words = self.filters[0].len();
        let word = ((u128::from(hash) * words as u128) >> 64) as usize;
        let bits = 1 << (hash & 63) | 1 << (hash >> 6 & 63);
        let [younger, older] =
            [0, 1].map(|filter: usize| self.filters[filter][word] & bits == bits);
        if !younger {
            self.filters[0][word] |= bits;
            self.keys += 1;
            if self.keys == self.keys_max {
                self.age();
            }
        }
        younger || older
    }

    fn age(&mut self) {
        self.filters.swap(0, 1);
        self.filters[0].fill(0);
        self.keys = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_seen_is_known_for_as_many_keys_as_a_filter_is_for(
            hashes in vec(0_u64..40, 1..200),
        ) {
            let hashes: Vec<_> = hashes.iter().map(|h| h.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let mut doorkeeper = Doorkeeper::new(16);
            for (at, hash) in hashes.iter().enumerate() {
                let lately = hashes[at.saturating_sub(16)..at].contains(hash);
                prop_assert!(doorkeeper.see(*hash) || !lately);
            }
        }
    }

    #[test]
    fn what_was_not_seen_is_seldom_taken_for_seen() {
        let mut doorkeeper = Doorkeeper::new(1000);
        let hashes = (1..100_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mistaken = hashes.filter(|hash| doorkeeper.see(hash ^ hash >> 29)).count();
        assert!(mistaken < 20_000, "{mistaken} of 100,000");
    }
}
