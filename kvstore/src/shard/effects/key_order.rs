//! The order of changes to one key: they take effect in the order in which they began, although their data are written
//! in any order. Otherwise a put that nothing waits for any more could replace a newer one that was acknowledged.
//!
//! A change takes a turn of its key when it begins and uses it when it takes effect or fails. If an earlier turn is not
//! used yet, the change waits here; it waits only for data in flight, never for the journal, because it may hold room
//! in the journal. Turns are counted by the key's hash: two keys with one hash only wait for each other.
//!
//! A put of a `durable` store is *hidden* from when it is recorded until it is durable. That is counted by hash, too:
//! two keys with one hash only take the slower way.

use std::collections::BTreeMap;

use crate::catalog::hash::NumberMap;
use crate::shard::answer::Done;
use crate::shard::change::{Altering, NewObject};

/// A change whose turn it may be to take effect.
#[derive(Debug)]
pub(crate) enum Ready<R> {
    /// An object whose data is written.
    Put(Box<NewObject>, Done<R>),
    /// An alteration, with room reserved for its record.
    Alter(Altering<R>),
    /// A put that failed.
    Nothing,
}

/// The turns of one key.
#[derive(Debug)]
struct Turns {
    /// The first that is not used.
    first: u32,
    /// The next to be taken.
    next: u32,
}

/// The keys with changes that began and have not taken effect.
#[derive(Debug)]
pub(crate) struct KeyOrder<R> {
    keys: NumberMap<u64, Turns>,
    /// Changes that wait for their turn, by hash and turn.
    waiting: BTreeMap<(u64, u32), Ready<R>>,
    /// How many puts of a key are hidden, if any.
    hidden: NumberMap<u64, u32>,
    /// How many puts of a key passed their checks and have not begun, if any.
    expected: NumberMap<u64, u32>,
}

impl<R> Default for KeyOrder<R> {
    fn default() -> KeyOrder<R> {
        KeyOrder {
            keys: NumberMap::default(),
            waiting: BTreeMap::new(),
            hidden: NumberMap::default(),
            expected: NumberMap::default(),
        }
    }
}

impl<R> KeyOrder<R> {
    /// Takes the next turn of the key with this hash.
    pub(crate) fn take_turn(&mut self, hash: u64) -> u32 {
        let turns = self.keys.entry(hash).or_insert(Turns { first: 0, next: 0 });
        let turn = turns.next;
        turns.next = turn.wrapping_add(1);
        assert_ne!(turns.next, turns.first, "fewer changes are under way than there are turns");
        turn
    }

    /// Returns whether no change of the key with this hash comes before the one with this turn.
    pub(crate) fn is_first(&self, hash: u64, turn: u32) -> bool {
        self.keys[&hash].first == turn
    }

    /// Returns whether a change of the key with this hash has not taken effect.
    pub(crate) fn is_busy(&self, hash: u64) -> bool {
        self.keys.contains_key(&hash)
    }

    /// Returns whether a put of the key with this hash is recorded, or waits for that, and is not visible.
    pub(crate) fn is_hidden(&self, hash: u64) -> bool {
        self.hidden.contains_key(&hash)
    }

    /// Returns whether a change of the key with this hash has not taken effect, or is not visible.
    pub(crate) fn is_unsettled(&self, hash: u64) -> bool {
        self.is_busy(hash) || self.is_hidden(hash)
    }

    /// Counts a put that is not visible yet.
    pub(crate) fn hide(&mut self, hash: u64) {
        increment(&mut self.hidden, hash);
    }

    /// Records that a hidden put became visible, or never will.
    pub(crate) fn unhide(&mut self, hash: u64) {
        decrement(&mut self.hidden, hash);
    }

    /// Returns whether a put of the key with this hash is under way: another one replaces its object, or a hidden one.
    pub(crate) fn is_under_way(&self, hash: u64) -> bool {
        self.is_unsettled(hash) || self.expected.contains_key(&hash)
    }

    /// Counts a put that passed its checks.
    pub(crate) fn expect(&mut self, hash: u64) {
        increment(&mut self.expected, hash);
    }

    /// Records that such a put began, or never will.
    pub(crate) fn expect_no_more(&mut self, hash: u64) {
        decrement(&mut self.expected, hash);
    }

    /// Returns the change if it is its turn, which [`KeyOrder::use_turn`] then ends. Otherwise keeps it.
    pub(crate) fn arrive(&mut self, hash: u64, turn: u32, ready: Ready<R>) -> Option<Ready<R>> {
        if self.keys[&hash].first == turn {
            return Some(ready);
        }
        let earlier = self.waiting.insert((hash, turn), ready);
        assert!(earlier.is_none(), "a turn is used once");
        None
    }

    /// Ends the current turn, and returns the change whose turn is next if it waits.
    pub(crate) fn use_turn(&mut self, hash: u64) -> Option<Ready<R>> {
        let turns = self.keys.get_mut(&hash).expect("a turn was taken");
        turns.first = turns.first.wrapping_add(1);
        if turns.first == turns.next {
            self.keys.remove(&hash);
            return None;
        }
        self.waiting.remove(&(hash, turns.first))
    }
}

fn increment(counts: &mut NumberMap<u64, u32>, hash: u64) {
    *counts.entry(hash).or_insert(0) += 1;
}

fn decrement(counts: &mut NumberMap<u64, u32>, hash: u64) {
    let count = counts.get_mut(&hash).expect("it was counted");
    *count -= 1;
    if *count == 0 {
        counts.remove(&hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the turns of one key in the order given, and returns that in which they took effect.
    fn effects(order: &mut KeyOrder<u64>, hash: u64, arriving: &[u32]) -> usize {
        let mut effects = 0;
        for turn in arriving {
            let mut ready = order.arrive(hash, *turn, Ready::Nothing);
            while ready.is_some() {
                effects += 1;
                ready = order.use_turn(hash);
            }
        }
        effects
    }

    #[test]
    fn what_is_ready_first_waits_for_what_began_first() {
        let mut order = KeyOrder::<u64>::default();
        let turns = [7, 7, 8, 7].map(|hash| order.take_turn(hash));
        assert_eq!(turns, [0, 1, 0, 2]);
        assert_eq!(effects(&mut order, 7, &[2]), 0);
        assert_eq!(effects(&mut order, 8, &[0]), 1, "another key waits for nothing");
        assert_eq!(effects(&mut order, 7, &[0]), 1, "the second is not ready");
        assert!(order.is_busy(7) && !order.is_busy(8));
        assert_eq!(effects(&mut order, 7, &[1]), 2);
        assert!(order.keys.is_empty() && order.waiting.is_empty(), "nothing is kept");
    }

    #[test]
    fn a_key_is_hidden_until_none_of_its_puts_is() {
        let mut order = KeyOrder::<u64>::default();
        [7, 7, 8].into_iter().for_each(|hash| order.hide(hash));
        order.unhide(7);
        assert!(order.is_hidden(7) && order.is_hidden(8) && !order.is_hidden(9));
        order.unhide(7);
        assert!(!order.is_hidden(7) && order.is_hidden(8));
        order.unhide(8);
        assert!(order.hidden.is_empty(), "nothing is kept");
    }

    #[test]
    fn turns_go_around_the_end_of_their_numbers() {
        let mut order = KeyOrder::<u64>::default();
        order.keys.insert(1, Turns { first: u32::MAX, next: u32::MAX });
        let turns = [order.take_turn(1), order.take_turn(1)];
        assert_eq!(turns, [u32::MAX, 0]);
        assert_eq!(effects(&mut order, 1, &[0, u32::MAX]), 2);
    }
}
