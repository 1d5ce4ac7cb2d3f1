//! Changes on their way into a shard, and the order in which they begin.
//!
//! Changes of one key begin in the order in which they came, even if one of them waits; from there on the shard keeps
//! that order (`shard/key_order`). A change waits here for two reasons. While others wait for room in the shard, it
//! is last in their [queue](Arrivals::push). While an earlier change of its key waits for memory, it
//! [follows](Arrivals::follow) that one. Once that one has begun, or has ended without, its followers are first in
//! the queue. Changes of other keys overtake it.
//!
//! Keys are compared by their hash: changes of two keys with one hash wait for each other needlessly.

use std::collections::VecDeque;

use smallvec::{SmallVec, smallvec};

use crate::catalog::hash::NumberMap;

/// Number of waiting changes before the first search for abandoned ones.
const SWEEP_MIN: usize = 1024;

/// A change on its way to a shard.
pub trait Arrival {
    /// Returns the hash of the key whose changes are ordered; `None` for a change that no other has to wait for.
    fn key_hash(&self) -> Option<u64>;

    /// Returns whether its caller still waits.
    fn is_wanted(&self) -> bool;
}

/// Changes that begin together.
pub type Changes<T> = SmallVec<[T; 1]>;

/// The changes on their way into one shard.
#[derive(Debug)]
pub struct Arrivals<T> {
    queue: VecDeque<Changes<T>>,
    /// For each key hash with a change that waits for memory: the later changes, in order.
    followers: NumberMap<u64, VecDeque<T>>,
    follower_count: usize,
    /// Number of waiting changes at which abandoned ones are removed.
    sweep_at: usize,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Arrivals<T> {
        let (queue, followers) = Default::default();
        Arrivals { queue, followers, follower_count: 0, sweep_at: SWEEP_MIN }
    }
}

impl<T: Arrival> Arrivals<T> {
    /// Returns whether the queue is empty: a new change may begin if the shard has room.
    pub fn has_no_queue(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether no change waits here.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.follower_count == 0
    }

    /// Returns whether an earlier change of the key with this hash waits for memory.
    pub fn is_behind(&self, key_hash: Option<u64>) -> bool {
        let is_held = |hash| self.followers.contains_key(&hash);
        !self.followers.is_empty() && key_hash.is_some_and(is_held)
    }

    /// Adds changes to the end of the queue.
    pub fn push(&mut self, changes: Changes<T>) {
        self.queue.push_back(changes);
    }

    /// Returns the changes at the head of the queue.
    pub fn front(&self) -> Option<&Changes<T>> {
        self.queue.front()
    }

    /// Takes the changes at the head of the queue, which begin next.
    pub fn pop(&mut self) -> Option<Changes<T>> {
        self.queue.pop_front()
    }

    /// Returns the change if it may begin. Keeps it if it [is behind](Arrivals::is_behind) another.
    pub fn follow(&mut self, change: T) -> Option<T> {
        if self.followers.is_empty() {
            return Some(change);
        }
        let Some(behind) = change.key_hash().and_then(|hash| self.followers.get_mut(&hash)) else {
            return Some(change);
        };
        behind.push_back(change);
        self.follower_count += 1;
        None
    }

    /// Makes later changes of this key follow one that waits for memory.
    pub fn hold(&mut self, hash: u64) {
        let earlier = self.followers.insert(hash, VecDeque::new());
        assert!(earlier.is_none(), "of a key's changes one may begin at a time");
    }

    /// Moves the followers of this key to the head of the queue, in order, once the change that they follow has begun
    /// or ended.
    pub fn release(&mut self, hash: u64) {
        let followers = self.followers.remove(&hash).expect("it was held");
        self.follower_count -= followers.len();
        for change in followers.into_iter().rev() {
            self.queue.push_front(smallvec![change]);
        }
    }

    /// Returns the changes that follow others.
    pub fn followers(&self) -> impl Iterator<Item = &T> {
        self.followers.values().flatten()
    }

    /// Takes out all changes; changes that wait for memory no longer have followers.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.follower_count = 0;
        let followers = std::mem::take(&mut self.followers).into_values().flatten();
        std::mem::take(&mut self.queue).into_iter().flatten().chain(followers)
    }

    fn len(&self) -> usize {
        self.queue.len() + self.follower_count
    }

    /// Takes out abandoned changes once there are many, so that their number stays proportional to that of waiting
    /// callers.
    pub fn sweep(&mut self) -> Vec<T> {
        let mut unwanted = Vec::new();
        if self.len() < self.sweep_at {
            return unwanted;
        }
        for changes in std::mem::take(&mut self.queue) {
            match changes.iter().any(T::is_wanted) {
                true => self.queue.push_back(changes),
                false => unwanted.extend(changes),
            }
        }
        for followers in self.followers.values_mut() {
            for change in std::mem::take(followers) {
                match change.is_wanted() {
                    true => followers.push_back(change),
                    false => unwanted.push(change),
                }
            }
        }
        self.follower_count = self.followers.values().map(VecDeque::len).sum();
        self.sweep_at = SWEEP_MIN.max(2 * self.len());
        unwanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of a key, if it has one, by number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Change(Option<u64>, u64);

    impl Arrival for Change {
        fn key_hash(&self) -> Option<u64> {
            self.0
        }

        fn is_wanted(&self) -> bool {
            self.1.is_multiple_of(100)
        }
    }

    fn order(arrivals: &mut Arrivals<Change>) -> Vec<u64> {
        std::iter::from_fn(|| arrivals.pop()).flatten().map(|change| change.1).collect()
    }

    #[test]
    fn changes_of_a_key_follow_the_one_that_waits_for_memory() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.follow(Change(Some(7), 0)).is_some(), "nothing waits");
        arrivals.hold(7);
        let begins = [(Some(7), 1), (Some(8), 2), (None, 3), (Some(7), 4)]
            .map(|(key, number)| arrivals.follow(Change(key, number)).is_some());
        assert_eq!(begins, [false, true, true, false]);
        assert!(arrivals.has_no_queue() && !arrivals.is_empty());
        arrivals.push(smallvec![Change(Some(7), 5), Change(Some(9), 6)]);
        arrivals.release(7);
        assert_eq!(order(&mut arrivals), [1, 4, 5, 6]);
        assert!(arrivals.is_empty());
    }

    #[test]
    fn changes_that_were_given_up_do_not_pile_up() {
        let (mut arrivals, mut swept) = (Arrivals::default(), 0);
        arrivals.hold(1);
        for number in 0..20_000 {
            let key = if number % 2 == 0 { 1 } else { 2 };
            if let Some(change) = arrivals.follow(Change(Some(key), number)) {
                arrivals.push(smallvec![change]);
            }
            swept += arrivals.sweep().len();
            assert!(arrivals.len() <= SWEEP_MIN, "{} at {number}", arrivals.len());
        }
        assert_eq!(swept + arrivals.len(), 20_000, "none is lost");
        arrivals.release(1);
        let kept = order(&mut arrivals);
        let wanted = kept.iter().copied().filter(|number| number % 100 == 0);
        assert!(wanted.eq((0..20_000).step_by(100)), "in order");
    }
}
