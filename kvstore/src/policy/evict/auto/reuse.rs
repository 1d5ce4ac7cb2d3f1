//! Learns how soon objects of each class are used again, and what an object of a class and age is worth.
//!
//! A *life* begins with each reference to a sampled key and ends with the next one, whether or not the cache has the
//! object, so evicted and declined objects teach as much as stored ones. Lives are counted by class and by the age at
//! which they ended; open lives count up to their present age (an actuarial life table). An object's worth is its
//! Gittins index: the best ratio, over all ages up to which it could be kept, of expected uses to expected time in the
//! cache. A use counts for more if the object's next class is worth keeping too.
//!
//! Ages are in ticks, 64 per turnover (as many references as the cache has objects), for up to 64 turnovers. In a small
//! cache a widely shared prompt may return that late, and is still worth more than blocks that never return.
//!
//! Bounds: at 16,384 lives the sample is halved, to one of 2, 4, 8 ... keys. Counts fade by a thirtieth at each
//! solution, so that worths follow the load.

use crate::catalog::hash::NumberMap;

/// Number of classes.
pub(super) const CLASSES: usize = 9;
/// The first class of used objects; lower classes are of new ones.
pub(super) const USED: usize = 5;
/// Pairs of a predecessor's class and a class that its successors may have ([`super::state`]).
const PARENTS: [(usize, usize); 9] =
    [(1, 0), (3, 2), (4, 2), (USED, 1), (USED, 3), (USED, 4), (6, USED), (7, 6), (8, 7)];
/// Number of age groups: four per doubling; the last holds abandoned lives.
pub(super) const GROUPS: usize = 41;
/// Age at which a life is abandoned, in ticks.
const AGE_MAX: u32 = 4092;
/// Weight of the average over all classes, in lives of one class.
const PRIOR: f32 = 40.0;
/// The share of a count that each solution keeps.
const FADE: f32 = 0.97;
/// Iterations that approximate the worth of the next use.
const ROUNDS: usize = 4;
/// The most lives.
const LIVES_MAX: usize = 16 << 10;

/// Returns whether a key belongs to the sample of one in 2^`bits` keys. Each sample contains all smaller ones.
pub(super) fn is_one_of(hash: u64, bits: u32) -> bool {
    // These bits are independent of those that select a shard or a slot of the index.
    let mixed = hash.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    mixed & ((1 << bits) - 1) == 0
}

/// Returns the group of an age.
fn group(age: u32) -> usize {
    let shifted = age.min(AGE_MAX) + 4;
    let octave = shifted.ilog2() - 2;
    (4 * octave + ((shifted >> octave) & 3)) as usize
}

/// Returns how many ages a group has, unless it is the last.
fn width(group: usize) -> f32 {
    (1u32 << (group / 4)) as f32
}

#[derive(Clone, Copy, Debug)]
struct Life {
    class: u8,
    begun: u32,
}

/// Observed lives, and the worths learned from them.
#[derive(Debug)]
pub(super) struct Reuse {
    lives: NumberMap<u64, Life>,
    /// One of 2^`sample_bits` keys is sampled.
    sample_bits: u32,
    /// Lives that ended with a use, by class and group.
    used: [[f32; GROUPS]; CLASSES],
    /// Abandoned lives, by class.
    unused: [f32; CLASSES],
    worth: [[f32; GROUPS]; CLASSES],
    /// Average worth of recent victims.
    price: f32,
}

impl Reuse {
    pub(super) fn new() -> Reuse {
        Reuse {
            lives: NumberMap::default(),
            sample_bits: 0,
            used: [[0.0; GROUPS]; CLASSES],
            unused: [0.0; CLASSES],
            worth: [[0.0; GROUPS]; CLASSES],
            price: 0.0,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Reuse>() + self.lives.capacity() * (size_of::<(u64, Life)>() + 1)
    }

    pub(super) fn sample_bits(&self) -> u32 {
        self.sample_bits
    }

    pub(super) fn is_sampled(&self, hash: u64) -> bool {
        is_one_of(hash, self.sample_bits)
    }

    /// Returns the expected uses per tick of an object of this class and age.
    pub(super) fn worth(&self, class: usize, age: u32) -> f32 {
        self.worth[class][group(age)]
    }

    /// Averages in the worth of a victim, evicted or only considered.
    pub(super) fn note_price(&mut self, worth: f32, objects: u32) {
        self.price += (worth - self.price) * (8.0 / objects.max(8) as f32);
    }

    /// Records a reference to a sampled key: ends its life and begins one of class `class`.
    pub(super) fn refer(&mut self, hash: u64, class: usize, now: u32) {
        let life = Life { class: class as u8, begun: now };
        if let Some(before) = self.lives.insert(hash, life) {
            self.used[usize::from(before.class)][group(now - before.begun)] += 1.0;
        }
        if self.lives.len() > LIVES_MAX {
            self.sample_fewer();
        }
    }

    fn sample_fewer(&mut self) {
        self.sample_bits += 1;
        let lives = std::mem::take(&mut self.lives);
        self.lives = lives.into_iter().filter(|(hash, _)| self.is_sampled(*hash)).collect();
    }

    /// Computes the worth of each class and age from the lives so far.
    pub(super) fn solve(&mut self, now: u32) {
        let Reuse { lives, unused, .. } = self;
        lives.retain(|_, life| {
            let is_open = now - life.begun < AGE_MAX;
            unused[usize::from(life.class)] += f32::from(u8::from(!is_open));
            is_open
        });
        let chances = self.chances(now);
        let mut renewed = [0.0f32; CLASSES];
        for _ in 0..ROUNDS {
            let before = renewed;
            for (class, chances) in chances.iter().enumerate() {
                renewed[class] = surplus(chances, 1.0 + before[next(class)], self.price);
            }
        }
        for (class, chances) in chances.iter().enumerate() {
            let use_counts = 1.0 + renewed[next(class)];
            for from in 0..GROUPS {
                self.worth[class][from] = best_rate(chances, from, use_counts);
            }
        }
        self.keep_parents();
        self.used.as_flattened_mut().iter_mut().for_each(|count| *count *= FADE);
        self.unused.iter_mut().for_each(|count| *count *= FADE);
    }

    /// Returns, by class and age group, the chance that a life that reaches the group ends there with a use. With few
    /// lives, it is close to the average over the classes of unused objects, or of used ones.
    fn chances(&self, now: u32) -> [[f32; GROUPS]; CLASSES] {
        let mut open = [[0.0f32; GROUPS]; CLASSES];
        for life in self.lives.values() {
            open[usize::from(life.class)][group(now - life.begun)] += 1.0;
        }
        let mut reached = [[0.0f32; GROUPS]; CLASSES];
        let mut all = [[(0.0f32, 0.0f32); GROUPS]; 2];
        for class in 0..CLASSES {
            let mut later = self.unused[class];
            for group in (0..GROUPS).rev() {
                let (used, open) = (self.used[class][group], open[class][group]);
                reached[class][group] = later + used + open / 2.0;
                later += used + open;
                let (all_used, all_reached) = &mut all[usize::from(class >= USED)][group];
                *all_used += used;
                *all_reached += reached[class][group];
            }
        }
        std::array::from_fn(|class| {
            std::array::from_fn(|group| {
                let (all_used, all_reached) = all[usize::from(class >= USED)][group];
                let usual = if all_reached > 0.0 { all_used / all_reached } else { 0.0 };
                (self.used[class][group] + PRIOR * usual) / (reached[class][group] + PRIOR)
            })
        })
    }

    /// Makes each predecessor worth at least as much as its successors of the same age, so that it is not evicted
    /// before them: a used object at least an unused one, a more often used one at least a less used one, and a block
    /// of a run at least the run's last.
    fn keep_parents(&mut self) {
        for (parent, child) in PARENTS {
            for group in 0..GROUPS {
                let least = self.worth[child][group];
                let worth = &mut self.worth[parent][group];
                *worth = worth.max(least);
            }
        }
    }
}

/// Returns the class that follows `class` upon a use.
fn next(class: usize) -> usize {
    if class < USED { USED } else { (class + 1).min(CLASSES - 1) }
}

/// Returns the expected gain of keeping a new object for the best number of ticks, at `price` per tick.
fn surplus(chances: &[f32; GROUPS], use_counts: f32, price: f32) -> f32 {
    let (mut left, mut gain, mut best) = (1.0, 0.0, 0.0f32);
    for (group, chance) in chances.iter().enumerate().take(GROUPS - 1) {
        let ticks = width(group);
        gain += left * (chance * use_counts - price * (1.0 - chance / 2.0) * ticks);
        left *= 1.0 - chance;
        best = best.max(gain);
    }
    best
}

/// Returns the best ratio of uses to ticks for an object in age group `from`.
fn best_rate(chances: &[f32; GROUPS], from: usize, use_counts: f32) -> f32 {
    let (mut left, mut uses, mut spent, mut best) = (1.0, 0.0, 0.0, 0.0f32);
    for (group, chance) in chances.iter().enumerate().take(GROUPS - 1).skip(from) {
        let ticks = width(group);
        uses += left * chance * use_counts;
        spent += left * (1.0 - chance / 2.0) * ticks;
        left *= 1.0 - chance;
        best = best.max(uses / spent);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lowest age of a group.
    fn lowest(group: usize) -> f32 {
        (((4 + (group as u32 & 3)) << (group as u32 / 4)) - 4) as f32
    }

    #[test]
    fn groups_of_ages_are_in_order_and_four_for_each_doubling() {
        for age in 0..2 * AGE_MAX {
            let group = group(age);
            let last = group == GROUPS - 1;
            assert!(lowest(group) as u32 <= age && (last || (age as f32) < lowest(group + 1)));
            assert!(last || lowest(group) + width(group) == lowest(group + 1));
            assert_eq!(last, age >= AGE_MAX);
        }
    }

    /// Keys of class 1 return after 20 ticks; keys of class 3 never do.
    #[test]
    fn what_comes_back_soon_is_worth_most_just_before() {
        let (mut reuse, mut now) = (Reuse::new(), AGE_MAX);
        for round in 0..400 {
            now += 5;
            reuse.refer(round, 1, now);
            reuse.refer(1_000_000 + round, 3, now);
            if round >= 4 {
                reuse.refer(round - 4, USED, now);
            }
            reuse.solve(now);
        }
        assert!(reuse.worth(1, 16) > 2.0 * reuse.worth(1, 0), "it comes nearer");
        assert!(reuse.worth(1, 40) < reuse.worth(1, 0) / 4.0, "it is overdue");
        assert!(reuse.worth(3, 0) < reuse.worth(1, 0) / 2.0, "its class is not used");
    }

    #[test]
    fn a_use_is_worth_more_if_others_follow_and_room_is_cheap() {
        let chances = std::array::from_fn(|group| if group == 8 { 0.5 } else { 0.0 });
        assert!(best_rate(&chances, 0, 2.0) > 1.9 * best_rate(&chances, 0, 1.0));
        assert_eq!(surplus(&chances, 1.0, 1.0), 0.0);
        assert!(surplus(&chances, 1.0, 0.001) > 0.4);
    }

    #[test]
    fn a_parent_is_worth_as_much_as_its_children_whatever_was_seen() {
        let (mut reuse, mut state) = (Reuse::new(), 7u64);
        for round in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let class = (state >> 40) as usize % CLASSES;
            reuse.refer(state >> 54, class, AGE_MAX + round / 8);
        }
        reuse.solve(AGE_MAX + 2500);
        for (parent, child) in PARENTS {
            let is_kept = |age| reuse.worth(parent, age) >= reuse.worth(child, age);
            assert!((0..AGE_MAX).all(is_kept), "{parent} before {child}");
        }
    }

    #[test]
    fn lives_are_bounded_by_sampling_fewer_keys() {
        let mut reuse = Reuse::new();
        for key in 0..100_000u64 {
            let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if reuse.is_sampled(hash) {
                reuse.refer(hash, 1, AGE_MAX);
            }
        }
        assert!(reuse.lives.len() <= LIVES_MAX && reuse.sample_bits() >= 2);
        let sampled = |hash: &u64| reuse.is_sampled(*hash);
        assert!(reuse.lives.keys().all(sampled));
        assert!(reuse.memory_bytes() < 700 << 10);
    }
}
