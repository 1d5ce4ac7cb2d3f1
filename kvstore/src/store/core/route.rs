//! Lists, divided among shards.

/// The items of a list that one shard owns.
#[derive(Debug)]
pub(crate) struct ShardItems<T> {
    /// Their positions in the list, ascending.
    pub(crate) positions: Vec<u32>,
    pub(crate) items: Vec<T>,
}

/// Divides a list among `shards` shards, leaving out those that get nothing.
pub(crate) fn deal<T: Clone>(
    list: &[T],
    shards: u16,
    shard_of: impl Fn(&T) -> u16,
) -> Vec<(u16, ShardItems<T>)> {
    let empty = |_| ShardItems { positions: Vec::new(), items: Vec::new() };
    let mut shares: Vec<ShardItems<T>> = (0..shards).map(empty).collect();
    for (position, item) in list.iter().enumerate() {
        let share = &mut shares[usize::from(shard_of(item))];
        share.positions.push(u32::try_from(position).expect("a list has fewer than 2^32 items"));
        share.items.push(item.clone());
    }
    (0..).zip(shares).filter(|(_, share)| !share.items.is_empty()).collect()
}

impl<T> ShardItems<T> {
    /// Returns the list position of the shard's first miss, given that the first `count` of its items exist; `end` if
    /// all do.
    pub(crate) fn first_miss(&self, count: usize, end: usize) -> usize {
        self.positions.get(count).map_or(end, |position| *position as usize)
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
            let numbers: Vec<u16> = (0..there.len() as u16).collect();
            let shares = deal(&numbers, shards, |number| number % shards);
            let has = |number: &&u16| there[usize::from(**number)];
            let misses = shares.iter().map(|(_, share)| {
                share.first_miss(share.items.iter().take_while(has).count(), numbers.len())
            });
            let prefix = there.iter().take_while(|there| **there).count();
            prop_assert_eq!(misses.min().unwrap_or(0), prefix);
        }
    }
}
