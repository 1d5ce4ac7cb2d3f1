//! Changes on their way into a shard, and the order in which they begin.
//!
//! Changes of one key begin in the order in which they came, whatever one of them waits for; from there on the shard
//! keeps that order (`shard/key_order`). Two things make a change wait here. While others wait for room in the shard, it
//! is last in their [line](Arrivals::push). While an earlier change of its key waits for memory, it
//! [follows](Arrivals::follow) that one. Once that one has begun, or has ended without, its followers are first in the
//! line. Changes of other keys overtake it.
//!
//! Keys are told apart by their hash: two with one hash only wait for each other.

use std::collections::VecDeque;

use smallvec::{SmallVec, smallvec};

use crate::catalog::hash::NumberMap;

/// Lists of changes that are kept before the first look for some that were given up.
const SWEEP_MIN: usize = 1024;

/// A change on its way.
pub trait Arrival {
    /// Returns the hash of the key whose changes are in order. `None` for a change that nothing has to wait for.
    fn key_hash(&self) -> Option<u64>;

    /// Returns whether its caller still waits.
    fn is_wanted(&self) -> bool;
}

/// Changes that begin together.
pub type Changes<T> = SmallVec<[T; 1]>;

/// The changes on their way into one shard.
#[derive(Debug)]
pub struct Arrivals<T> {
    line: VecDeque<Changes<T>>,
    /// By hash of a key with a change that waits for memory: the later ones, in order.
    followers: NumberMap<u64, VecDeque<T>>,
    follower_count: usize,
    /// At this many, those that were given up are removed.
    sweep_at: usize,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Arrivals<T> {
        let (line, followers) = Default::default();
        Arrivals { line, followers, follower_count: 0, sweep_at: SWEEP_MIN }
    }
}

impl<T: Arrival> Arrivals<T> {
    /// Returns whether no change waits for others: a new one may begin if the shard has room.
    pub fn has_no_line(&self) -> bool {
        self.line.is_empty()
    }

    /// Returns whether nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty() && self.follower_count == 0
    }

    /// Returns whether an earlier change of its key waits for memory.
    pub fn is_behind(&self, change: &T) -> bool {
        let is_held = |hash| self.followers.contains_key(&hash);
        !self.followers.is_empty() && change.key_hash().is_some_and(is_held)
    }

    /// Lets changes wait in line.
    pub fn push(&mut self, changes: Changes<T>) {
        self.line.push_back(changes);
    }

    /// Returns the changes at the head of the line.
    pub fn front(&self) -> Option<&Changes<T>> {
        self.line.front()
    }

    /// Takes the changes at the head of the line, which begin next.
    pub fn pop(&mut self) -> Option<Changes<T>> {
        self.line.pop_front()
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

    /// Makes later changes of this key follow: one that may begin waits for memory.
    pub fn hold(&mut self, hash: u64) {
        let earlier = self.followers.insert(hash, VecDeque::new());
        assert!(earlier.is_none(), "of a key's changes one may begin at a time");
    }

    /// Moves the changes of this key to the head of the line, in order: that which they follow has begun, or ended.
    pub fn release(&mut self, hash: u64) {
        let followers = self.followers.remove(&hash).expect("it was held");
        self.follower_count -= followers.len();
        for change in followers.into_iter().rev() {
            self.line.push_front(smallvec![change]);
        }
    }

    /// Returns the changes that follow others.
    pub fn followers(&self) -> impl Iterator<Item = &T> {
        self.followers.values().flatten()
    }

    /// Takes out all changes. What waits for memory waits for none of them any more.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.follower_count = 0;
        let followers = std::mem::take(&mut self.followers).into_values().flatten();
        std::mem::take(&mut self.line).into_iter().flatten().chain(followers)
    }

    fn len(&self) -> usize {
        self.line.len() + self.follower_count
    }

    /// Takes out changes that were given up once there are many, so that there are never many more than callers wait for.
    pub fn sweep(&mut self) -> Vec<T> {
        let mut unwanted = Vec::new();
        if self.len() < self.sweep_at {
            return unwanted;
        }
        for changes in std::mem::take(&mut self.line) {
            match changes.iter().any(T::is_wanted) {
                true => self.line.push_back(changes),
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

    fn line(arrivals: &mut Arrivals<Change>) -> Vec<u64> {
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
        assert!(arrivals.has_no_line() && !arrivals.is_empty());
        arrivals.push(smallvec![Change(Some(7), 5), Change(Some(9), 6)]);
        arrivals.release(7);
        assert_eq!(line(&mut arrivals), [1, 4, 5, 6]);
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
        let kept = line(&mut arrivals);
        let wanted = kept.iter().copied().filter(|number| number % 100 == 0);
        assert!(wanted.eq((0..20_000).step_by(100)), "in order");
    }
}
