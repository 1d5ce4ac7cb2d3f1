//! Registered memory that is free, lent out in runs.

use std::collections::{BTreeMap, BTreeSet};

use adit_driver::Buffer;

/// Runs at the beginning of a region that [`FreeMemory::take_first`] looks at.
const FIRST_RUNS: usize = 32;

/// The free runs of one region, by address and by length: taking uses the best fit or the first, giving back merges
/// neighbours.
#[derive(Default)]
pub(crate) struct FreeMemory {
    runs: BTreeMap<u64, Buffer>,
    by_len: BTreeSet<(usize, u64)>,
}

impl FreeMemory {
    /// Takes `bytes` from the shortest run that is long enough.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        let (_, at) = *self.by_len.range((bytes, 0)..).next()?;
        Some(self.take_from(at, bytes))
    }

    /// Takes `bytes` from the beginning of the region if there is a run that is long enough, else as [`FreeMemory::take`].
    /// For memory that is held for a short time: the same few runs are used again, and stay in the processor's caches,
    /// where the best fit cycles through all of it.
    pub(crate) fn take_first(&mut self, bytes: usize) -> Option<Buffer> {
        let first = self.runs.iter().take(FIRST_RUNS).find(|(_, run)| run.len() >= bytes);
        match first.map(|(at, _)| *at) {
            Some(at) => Some(self.take_from(at, bytes)),
            None => self.take(bytes),
        }
    }

    /// Takes `bytes` from the beginning of the run at `at`.
    fn take_from(&mut self, at: u64, bytes: usize) -> Buffer {
        let mut run = self.remove(at);
        let rest = run.split_off(bytes);
        if !rest.is_empty() {
            self.insert(rest);
        }
        run
    }

    /// Takes back a run.
    ///
    /// # Panics
    /// If part of it is already free.
    pub(crate) fn give(&mut self, run: Buffer) {
        let at = run.iova().0;
        let before = self.runs.range(..at).next_back().map(|(at, _)| *at);
        let after = self.runs.range(at..).next().map(|(at, _)| *at);
        let end = at + run.len() as u64;
        assert!(after.is_none_or(|after| end <= after), "memory is given back once");
        let joined = match before {
            Some(before) => self.join(before, run),
            None => run,
        };
        let joined = match after {
            Some(after) if after == end => {
                let tail = self.remove(after);
                joined_with(joined, tail)
            }
            _ => joined,
        };
        self.insert(joined);
    }

    /// Removes the run at `before` and joins `run` to it; returns `run` alone if there is a gap.
    fn join(&mut self, before: u64, run: Buffer) -> Buffer {
        let end = before + self.runs[&before].len() as u64;
        assert!(end <= run.iova().0, "memory is given back once");
        if end < run.iova().0 {
            return run;
        }
        let head = self.remove(before);
        joined_with(head, run)
    }

    /// Returns the bytes of the longest run; 0 if nothing is free.
    pub(crate) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Returns the free bytes, contiguous or not. Looks at every run.
    pub(crate) fn free_bytes(&self) -> usize {
        self.runs.values().map(|run| run.len()).sum()
    }

    fn insert(&mut self, run: Buffer) {
        self.by_len.insert((run.len(), run.iova().0));
        self.runs.insert(run.iova().0, run);
    }

    fn remove(&mut self, at: u64) -> Buffer {
        let run = self.runs.remove(&at).expect("both maps have the same runs");
        assert!(self.by_len.remove(&(run.len(), at)), "both maps have the same runs");
        run
    }
}

fn joined_with(mut head: Buffer, tail: Buffer) -> Buffer {
    head.join(tail).expect("neighbours of one region join");
    head
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use adit_driver::{Device, DeviceOptions};
    use proptest::prelude::*;

    const UNIT: usize = 4096;

    fn region(units: usize) -> Buffer {
        let target = "null:".parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("a device");
        let mut region = device.allocate(units * UNIT).expect("memory");
        drop(region.split_off(units * UNIT));
        region
    }

    proptest! {
        /// In any order of taking and giving back, no byte is lent twice, and all memory is one run again at the end.
        #[test]
        fn memory_is_lent_once_at_a_time_and_joins_again(
            steps in proptest::collection::vec((any::<bool>(), 1usize..9, any::<usize>()), 1..200),
        ) {
            let mut runs = FreeMemory::default();
            runs.give(region(32));
            let mut held: Vec<Buffer> = Vec::new();
            for (takes, units, pick) in steps {
                if takes {
                    let taken = match pick % 2 {
                        0 => runs.take(units * UNIT),
                        _ => runs.take_first(units * UNIT),
                    };
                    if let Some(run) = taken {
                        prop_assert_eq!(run.len(), units * UNIT);
                        held.push(run);
                    }
                } else if !held.is_empty() {
                    runs.give(held.swap_remove(pick % held.len()));
                }
                let used: usize = held.iter().map(|run| run.len()).sum();
                prop_assert_eq!(runs.free_bytes() + used, 32 * UNIT);
                prop_assert_eq!(runs.longest(), runs.runs.values().map(|run| run.len()).max().unwrap_or(0));
                held.sort_by_key(|run| run.iova());
                let overlap = held.windows(2).any(|two| two[0].iova().0 + two[0].len() as u64 > two[1].iova().0);
                prop_assert!(!overlap);
            }
            held.into_iter().for_each(|run| runs.give(run));
            prop_assert_eq!(runs.take(32 * UNIT).map(|run| run.len()), Some(32 * UNIT));
        }
    }

    #[test]
    fn memory_that_is_held_for_a_short_time_stays_in_few_runs() {
        let mut runs = FreeMemory::default();
        runs.give(region(256));
        // Two gaps, of which the best fit would use all of the shorter one in turn.
        let mut held: VecDeque<Buffer> = (0..160).map_while(|_| runs.take_first(UNIT)).collect();
        held.drain(40..150).for_each(|run| runs.give(run));
        held.drain(8..).for_each(|run| runs.give(run));
        let mut used = BTreeSet::new();
        for _ in 0..1000 {
            runs.give(held.pop_front().expect("as many are held as before"));
            let next = runs.take_first(UNIT).expect("there is room");
            used.insert(next.iova());
            held.push_back(next);
        }
        assert_eq!(used.len(), 8, "as many as are held");
    }

    #[test]
    fn the_shortest_run_that_fits_is_taken() {
        let mut runs = FreeMemory::default();
        runs.give(region(10));
        let held: Vec<Buffer> = (0..10).map_while(|_| runs.take(UNIT)).collect();
        let mut held: Vec<Option<Buffer>> = held.into_iter().map(Some).collect();
        held.sort_by_key(|run| run.as_ref().map(|run| run.iova()));
        // Free: three units at 0, one at 5, two at 8.
        for at in [0, 1, 2, 5, 8, 9] {
            runs.give(held[at].take().expect("held"));
        }
        let at_5 = held[4].as_ref().map(|run| run.iova().0 + UNIT as u64);
        assert_eq!(runs.take(UNIT).map(|run| run.iova().0), at_5);
        let at_8 = held[7].as_ref().map(|run| run.iova().0 + UNIT as u64);
        assert_eq!(runs.take(2 * UNIT).map(|run| run.iova().0), at_8);
        assert!(runs.take(4 * UNIT).is_none(), "no run is so long");
    }
}
