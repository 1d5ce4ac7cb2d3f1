//! Runs: disjoint ranges of units, indexed by position and by length.
//!
//! Invariants: no run is empty, no two overlap, no two touch (they are joined), and both maps hold the same runs.
//! Every operation is O(log n). The caller decides what the ranges mean, and how to treat a double insertion.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Disjoint runs that never touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    /// The end of each run by its start.
    ends: BTreeMap<u64, u64>,
    /// The length and the start of each run.
    sizes: BTreeSet<(u64, u64)>,
    units: u64,
}

impl Runs {
    /// Creates runs that are already in order, disjoint and apart.
    pub(crate) fn from_sorted(runs: Vec<Range<u64>>) -> Runs {
        debug_assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "in order and apart");
        let units = runs.iter().map(|run| run.end - run.start).sum();
        let sizes = runs.iter().map(|run| (run.end - run.start, run.start)).collect();
        Runs { ends: runs.into_iter().map(|run| (run.start, run.end)).collect(), sizes, units }
    }

    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the longest run, the last of equals.
    pub(crate) fn longest(&self) -> Option<Range<u64>> {
        self.sizes.last().map(|&(units, start)| start..start + units)
    }

    /// Returns the shortest run, the first of equals.
    pub(crate) fn shortest(&self) -> Option<Range<u64>> {
        self.sizes.first().map(|&(units, start)| start..start + units)
    }

    /// Returns the shortest run of at least `units`, the first of equals.
    pub(crate) fn best_fit(&self, units: u64) -> Option<Range<u64>> {
        let fit = self.sizes.range((units, 0)..).next();
        fit.map(|&(units, start)| start..start + units)
    }

    /// Returns the run that contains `unit`.
    pub(crate) fn around(&self, unit: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ends.range(..=unit).next_back()?;
        (unit < end).then_some(start..end)
    }

    /// Returns the last run that shares a unit with `range`.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let (&start, &end) = self.ends.range(..range.end).next_back()?;
        (end > range.start && !range.is_empty()).then_some(start..end)
    }

    /// Returns whether a run holds all of a range.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        self.around(range.start).is_some_and(|run| range.end <= run.end)
    }

    /// Iterates over the runs that share a unit with `range`, last first.
    pub(crate) fn all_overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.ends.range(..range.end).rev();
        before.map(|(&start, &end)| start..end).take_while(move |run| run.end > range.start)
    }

    /// Iterates over the runs in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Adds a range, joining it with the runs that it touches. Returns false and changes nothing if it is empty or
    /// overlaps a run.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() || self.overlapping(&range).is_some() {
            return false;
        }
        let mut joined = range.clone();
        if let Some(before) = range.start.checked_sub(1).and_then(|unit| self.around(unit)) {
            joined.start = before.start;
            self.drop_run(&before);
        }
        if let Some(after) = self.around(range.end) {
            joined.end = after.end;
            self.drop_run(&after);
        }
        self.add_run(joined);
        true
    }

    /// Removes a range from the run that contains it. Returns false and changes nothing if there is none.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> bool {
        let Some(run) = self.around(range.start) else { return false };
        if range.is_empty() || run.end < range.end {
            return false;
        }
        self.drop_run(&run);
        self.add_run(run.start..range.start);
        self.add_run(range.end..run.end);
        true
    }

    fn add_run(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        self.units += run.end - run.start;
        self.ends.insert(run.start, run.end);
        self.sizes.insert((run.end - run.start, run.start));
    }

    fn drop_run(&mut self, run: &Range<u64>) {
        self.units -= run.end - run.start;
        let end = self.ends.remove(&run.start);
        let sized = self.sizes.remove(&(run.end - run.start, run.start));
        assert!(end == Some(run.end) && sized, "both maps hold the same runs");
    }
}
