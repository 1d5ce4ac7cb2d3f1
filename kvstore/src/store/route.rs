//! Divides keys among shards and combines the answers.

use crate::model::key::Key;

/// The keys of a list that one shard owns.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Their positions in the list, ascending.
    pub(super) items: Vec<u32>,
    pub(super) keys: Vec<Key>,
}

/// Divides `keys` among `shards` shards.
pub(super) fn shares(keys: &[Key], shards: u16, route: impl Fn(&Key) -> u16) -> Vec<Share> {
    let mut shares: Vec<Share> = (0..shards).map(|_| Share::default()).collect();
    for (item, key) in keys.iter().enumerate() {
        let share = &mut shares[usize::from(route(key))];
        share.items.push(u32::try_from(item).expect("a list has fewer than 2^32 keys"));
        share.keys.push(key.clone());
    }
    shares
}

impl Share {
    /// Returns the list position of this shard's first miss, if it has the first `count` keys of its share; `end` if
    /// it has all.
    pub(super) fn first_miss(&self, count: usize, end: usize) -> usize {
        self.items.get(count).map_or(end, |item| *item as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_miss_of_all_is_the_least_of_the_shards(
            there in proptest::collection::vec(any::<bool>(), 0..40),
            shards in 1u16..5,
        ) {
            let keys: Vec<Key> = (0..there.len() as u64).map(Key::from).collect();
            let number = |key: &Key| *key.as_bytes().last().expect("eight bytes");
            let shares = shares(&keys, shards, |key| u16::from(number(key)) % shards);
            let has = |key: &&Key| there[usize::from(number(key))];
            let misses = shares.iter().map(|share| {
                share.first_miss(share.keys.iter().take_while(has).count(), keys.len())
            });
            let prefix = there.iter().take_while(|there| **there).count();
            prop_assert_eq!(misses.min(), Some(prefix));
        }
    }
}
