//! Extents: the free space of one device's ranges for one shard.
//!
//! A shard has one range on a device, or several after the store's devices were changed.
//!
//! Invariants: free runs are disjoint, each lies in a range, and they never touch (they are joined). Every operation except
//! rebuilding after a restart is O(log n) in the number of free runs.
//!
//! An extent goes right behind its predecessor in the sequence if there is room; otherwise into the shortest run with
//! room for all that is known to follow, or into the longest. Percent of the space in use and of contiguous
//! neighbours, under churn that keeps 2^17 units 97 % full (see `churn`):
//!
//! | an extent without its neighbour goes into | in use | contiguous |
//! |---|---|---|
//! | the shortest run that holds it | 92.9 | 30.0 |
//! | the first run that holds it | 92.2 | 37.2 |
//! | the longest run | 92.1 | 50.1 |
//! | the shortest with room for four | 92.6 | 47.9 |
//! | the shortest with room for what follows: chosen | 93.8 | 65.2 |
//!
//! This module does not know the contents of extents, and does not discard: see `discard`.

use std::ops::Range;

use smallvec::SmallVec;

use crate::space::runs::Runs;

/// The free space of ranges of units.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    /// In order; they are disjoint and do not touch.
    ranges: SmallVec<[Range<u64>; 1]>,
    free: Runs,
}

impl Extents {
    /// Creates extents with all units of one range free.
    pub(crate) fn new(range: Range<u64>) -> Extents {
        Extents::over(&[range])
    }

    /// Creates extents with all units of `ranges` free.
    ///
    /// # Panics
    /// If the ranges are out of order, or overlap or touch.
    pub(crate) fn over(ranges: &[Range<u64>]) -> Extents {
        let there = ranges.iter().filter(|range| !range.is_empty());
        let ranges: SmallVec<[Range<u64>; 1]> = there.cloned().collect();
        assert!(ranges.windows(2).all(|two| two[0].end < two[1].start), "ranges are in order");
        let extents = Extents { free: Runs::from_sorted(ranges.to_vec()), ranges };
        extents.assert_inside();
        extents
    }

    /// Asserts that the free space is a part of the ranges.
    fn assert_inside(&self) {
        assert!(
            self.free.units() <= self.ranges.iter().map(|range| range.end - range.start).sum(),
            "no more is free than the ranges have"
        );
        debug_assert!(
            self.gaps().all(|gap| self.free.overlapping(&gap).is_none()),
            "every free run lies in a range"
        );
    }

    /// Iterates over the units that are in no range.
    fn gaps(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = [0].into_iter().chain(self.ranges.iter().map(|range| range.end));
        let ends = self.ranges.iter().map(|range| range.start).chain([u64::MAX]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// Rebuilds the free space around the extents in `used`. Also returns the positions of extents that were refused:
    /// those that are empty, lie in no range, or overlap an earlier accepted one.
    ///
    /// While running, it needs one bit of memory per unit of the ranges: 32 MiB per TiB.
    pub(crate) fn from_used(
        ranges: &[Range<u64>],
        used: impl Iterator<Item = Range<u64>>,
    ) -> (Extents, Vec<usize>) {
        let mut extents = Extents::over(ranges);
        let mut maps: Vec<Map> =
            extents.ranges.iter().map(|range| Map::new(range.end - range.start)).collect();
        assert_eq!(maps.len(), extents.ranges.len(), "a map for each range");
        let (mut refused, mut used_units) = (Vec::new(), 0);
        for (position, extent) in used.enumerate() {
            let taken = extents.range_of(&extent).is_some_and(|at| {
                let base = extents.ranges[at].start;
                maps[at].take(extent.start - base..extent.end - base)
            });
            if taken {
                used_units += extent.end - extent.start;
            } else {
                refused.push(position);
            }
        }
        let units = extents.free.units();
        let each = extents.ranges.iter().zip(&maps);
        let free = each.flat_map(|(range, map)| map.free_runs(range.start));
        extents.free = Runs::from_sorted(free.collect());
        assert_eq!(extents.free.units() + used_units, units, "a unit is either free or used");
        extents.assert_inside();
        (extents, refused)
    }

    /// Returns the position of the range that an extent lies in.
    fn range_of(&self, extent: &Range<u64>) -> Option<usize> {
        let at = self.ranges.partition_point(|range| range.start <= extent.start).checked_sub(1)?;
        let is_inside = extent.start < extent.end && extent.end <= self.ranges[at].end;
        debug_assert!(
            self.ranges[at + 1..].iter().all(|later| extent.start < later.start),
            "no later range holds it"
        );
        is_inside.then_some(at)
    }

    /// Returns the first unit of a new extent, or `None` if no free run holds it.
    ///
    /// `near` is the unit right behind its predecessor in the sequence, if any. `ahead` is how many such extents the
    /// sequence will get, this one included: 1 outside a sequence, 4 if unknown.
    ///
    /// # Panics
    /// If `units` or `ahead` is 0.
    pub(crate) fn allocate(&mut self, units: u64, near: Option<u64>, ahead: u32) -> Option<u64> {
        assert!(units > 0 && ahead > 0, "an extent has units, and is one itself");
        if let Some(unit) = near
            && unit.checked_add(units).is_some_and(|end| self.take(unit..end))
        {
            return Some(unit);
        }
        let start = self.fit(units.saturating_mul(u64::from(ahead)))?;
        let taken = self.take(start..start + units).then_some(start);
        assert!(
            taken.is_some() || self.largest() < units,
            "an extent is refused only if no free run holds it"
        );
        taken
    }

    /// Returns the start of the shortest free run of at least `units`, or else of the longest.
    pub(crate) fn fit(&self, units: u64) -> Option<u64> {
        let start = self.free.best_fit(units).or_else(|| self.free.longest()).map(|run| run.start);
        assert!(
            start.is_none_or(|start| self.range_of(&(start..start + 1)).is_some()),
            "a free run is in a range"
        );
        start
    }

    /// Takes exactly this extent. Returns false and changes nothing unless all of it is free.
    ///
    /// The shard takes a run while its device deallocates it, so that nothing is written to it.
    pub(crate) fn take(&mut self, extent: Range<u64>) -> bool {
        let before = self.free.units();
        let inside = self.range_of(&extent).is_some();
        let units = extent.end.saturating_sub(extent.start);
        let taken = self.free.remove(extent);
        assert!(!taken || inside, "only units of the ranges are free");
        let gone = if taken { units } else { 0 };
        assert_eq!(self.free.units() + gone, before, "an extent is taken whole or not at all");
        taken
    }

    /// Frees an extent: a whole allocated one, part of one, or several in a row.
    ///
    /// # Panics
    /// If it is empty, lies in no range, or is partly free already: a double free is a bug of the store.
    pub(crate) fn free(&mut self, extent: Range<u64>) {
        assert!(self.range_of(&extent).is_some(), "{extent:?} is not in {:?}", self.ranges);
        assert!(self.free.insert(extent.clone()), "extent {extent:?} is free already");
        self.assert_inside();
    }

    /// Returns the length of the longest range, which an extent cannot exceed.
    pub(crate) fn longest_range(&self) -> u64 {
        let longest = self.ranges.iter().map(|range| range.end - range.start).max().unwrap_or(0);
        assert_eq!(longest == 0, self.ranges.is_empty(), "a range has a unit");
        debug_assert!(self.largest() <= longest, "a free run lies in a range");
        longest
    }

    /// Returns the ranges, in order.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns the free runs.
    pub(crate) fn free_runs(&self) -> &Runs {
        &self.free
    }

    pub(crate) fn is_free(&self, unit: u64) -> bool {
        let is_free = self.free.around(unit).is_some();
        debug_assert!(
            !is_free || self.range_of(&(unit..unit + 1)).is_some(),
            "only units of the ranges are free"
        );
        is_free
    }

    pub(crate) fn free_units(&self) -> u64 {
        self.free.units()
    }

    /// Returns the length of the longest free run in units; 0 if nothing is free.
    pub(crate) fn largest(&self) -> u64 {
        let largest = self.free.longest().map_or(0, |run| run.end - run.start);
        assert!(largest <= self.free.units(), "a free run is a part of the free space");
        assert_eq!(largest == 0, self.free.units() == 0, "a free unit lies in a run");
        largest
    }

    /// Returns the longest free run, the last of equals.
    #[cfg(test)]
    pub(crate) fn largest_run(&self) -> Option<Range<u64>> {
        self.free.longest()
    }

    pub(crate) fn run_count(&self) -> usize {
        let count = self.free.count();
        assert!(count as u64 <= self.free.units(), "each free run has a unit");
        count
    }

    /// Iterates over the free runs in order.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.free.iter()
    }
}

/// A bit for each unit, set if taken.
struct Map {
    words: Vec<u64>,
    units: u64,
}

impl Map {
    fn new(units: u64) -> Map {
        let words = usize::try_from(units.div_ceil(64)).expect("a device's map fits in memory");
        Map { words: vec![0; words], units }
    }

    /// Takes the units. Returns false and changes nothing if there are none or one is taken.
    fn take(&mut self, units: Range<u64>) -> bool {
        if units.is_empty() {
            return false;
        }
        assert!(units.end <= self.units, "the map has a bit for each unit");
        let words = (units.start / 64) as usize..units.end.div_ceil(64) as usize;
        if let [word] = &mut self.words[words] {
            let mask = u64::MAX >> (64 - (units.end - units.start)) << (units.start % 64);
            let free = *word & mask == 0;
            *word |= if free { mask } else { 0 };
            return free;
        }
        if Map::masks(&units).any(|(at, mask)| self.words[at] & mask != 0) {
            return false;
        }
        for (at, mask) in Map::masks(&units) {
            self.words[at] |= mask;
        }
        true
    }

    /// Iterates over the words that hold the units, with the units' bits in each.
    fn masks(units: &Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        let Range { start, end } = *units;
        debug_assert!(start < end, "there are units to mask");
        (start / 64..end.div_ceil(64)).map(move |word| {
            let first = start.max(word * 64) - word * 64;
            let last = end.min(word * 64 + 64) - 1 - word * 64;
            debug_assert!(first <= last && last < 64, "each of the words holds some of the units");
            (word as usize, u64::MAX >> (63 - (last - first)) << first)
        })
    }

    /// Returns the free runs in order, offset by `base`.
    fn free_runs(&self, base: u64) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        let mut at = self.next(0, false);
        while at < self.units {
            let end = self.next(at, true).min(self.units);
            debug_assert!(at < end, "a free run has a unit");
            runs.push(base + at..base + end);
            at = self.next(end, false);
        }
        runs
    }

    /// Returns the first unit from `unit` that is taken (or free, if not `taken`); at or past the end if there is
    /// none.
    fn next(&self, unit: u64, taken: bool) -> u64 {
        let flip = if taken { 0 } else { u64::MAX };
        let mut word = (unit / 64) as usize;
        let mut skip = u64::MAX << (unit % 64);
        while word < self.words.len() {
            let found = (self.words[word] ^ flip) & skip;
            if found != 0 {
                let at = word as u64 * 64 + u64::from(found.trailing_zeros());
                debug_assert!(unit <= at, "the search goes forward");
                return at;
            }
            word += 1;
            skip = u64::MAX;
        }
        self.units
    }
}

#[cfg(test)]
mod churn;
#[cfg(test)]
mod tests;
