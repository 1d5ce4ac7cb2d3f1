//! Allocates device addresses.
//!
//! An [`IovaSpace`] allocates inside the ranges that the IOMMU (or a vfio-user server) accepts. Allocations
//! never overlap, never leave the ranges, and never contain address zero (a forgotten pointer must fault) or
//! the last page of the space (an end address must not wrap). It maps nothing; the buses do.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::{Error, Result};

/// The free part of a device's address space.
#[derive(Debug)]
pub struct IovaSpace {
    /// Start -> end (exclusive) of each free run; runs are not empty and do not touch.
    free: BTreeMap<u64, u64>,
    granule: u64,
}

impl IovaSpace {
    /// Creates the space of `ranges`, in units of `granule` bytes (a power of two). Ranges may come in any
    /// order; overlaps are merged.
    pub fn new(ranges: &[RangeInclusive<u64>], granule: u64) -> IovaSpace {
        assert!(granule.is_power_of_two(), "a page size is a power of two");
        let mut runs: Vec<(u64, u64)> =
            ranges.iter().filter_map(|range| whole_granules(range, granule)).collect();
        runs.sort_unstable();
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for (start, end) in runs {
            match free.last_entry() {
                Some(mut last) if *last.get() >= start => *last.get_mut() = end.max(*last.get()),
                _ => drop(free.insert(start, end)),
            }
        }
        if let Some((start, end)) = free.pop_last()
            && end - start > granule
        {
            free.insert(start, end - granule);
        }
        IovaSpace { free, granule }
    }

    /// Takes `len` bytes (rounded up to the granule) at the lowest fitting multiple of `align`, a power of
    /// two. Returns `None` if nothing fits.
    pub fn alloc(&mut self, len: u64, align: u64) -> Option<u64> {
        let len = self.rounded(len)?;
        let align = align.max(self.granule);
        let (run, end, at) = self.free.iter().find_map(|(&run, &end)| {
            let at = run.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= end).then_some((run, end, at))
        })?;
        self.free.remove(&run);
        self.insert_run(run, at);
        self.insert_run(at + len, end);
        Some(at)
    }

    /// Allocates as [`IovaSpace::alloc`], for `device`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no room.
    pub(super) fn place(&mut self, device: &str, len: u64, align: u64) -> Result<u64> {
        self.alloc(len, align).ok_or_else(|| {
            Error::refused(
                device,
                format!("cannot place {len} bytes in the device's address space"),
                format!("{} bytes are free, in pieces", self.free_bytes()),
                "unmap other memory first, or map less at once",
            )
        })
    }

    /// Frees what [`IovaSpace::alloc`] returned for `len` bytes.
    ///
    /// # Panics
    /// If part of it is free already: a bug of this crate, and the next allocation would overlap.
    pub fn free(&mut self, iova: u64, len: u64) {
        let len = self.rounded(len).expect("only allocated lengths come back");
        let (mut start, mut end) = (iova, iova + len);
        if let Some((&before, &before_end)) = self.free.range(..=start).next_back() {
            assert!(before_end <= start, "device address {iova:#x} freed twice");
            if before_end == start {
                self.free.remove(&before);
                start = before;
            }
        }
        if let Some((&after, &after_end)) = self.free.range(start..).next() {
            assert!(after >= end, "device address {iova:#x} freed twice");
            if after == end {
                self.free.remove(&after);
                end = after_end;
            }
        }
        self.free.insert(start, end);
    }

    /// Returns the number of free bytes, in pieces or not.
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(start, end)| end - start).sum()
    }

    fn insert_run(&mut self, start: u64, end: u64) {
        if start < end {
            self.free.insert(start, end);
        }
    }

    fn rounded(&self, len: u64) -> Option<u64> {
        len.max(1).checked_next_multiple_of(self.granule)
    }
}

/// Returns the whole granules of a range without address zero, end exclusive.
fn whole_granules(range: &RangeInclusive<u64>, granule: u64) -> Option<(u64, u64)> {
    let start = (*range.start()).max(1).checked_next_multiple_of(granule)?;
    // The top granule of the 64-bit space has no exclusive end, and is never allocated anyway.
    let end = range.end().saturating_add(1) / granule * granule;
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    #[test]
    fn address_zero_and_the_last_page_are_never_given() {
        let mut space = IovaSpace::new(&[0..=4 * PAGE - 1], PAGE);
        assert_eq!(space.alloc(PAGE, PAGE), Some(PAGE));
        assert_eq!(space.alloc(1, 1), Some(2 * PAGE));
        assert_eq!(space.alloc(PAGE, PAGE), None);
    }

    #[test]
    fn ranges_are_merged_trimmed_to_granules_and_not_crossed() {
        let ranges = [0x10_0000..=0x1f_ffff, 0x1000..=0x2fff, 0x2800..=0x4fff];
        let mut space = IovaSpace::new(&ranges, PAGE);
        assert_eq!(space.alloc(0x4000, PAGE), Some(0x1000));
        assert_eq!(space.alloc(0x10_0000, PAGE), None);
        assert_eq!(space.alloc(0x8_0000, 0x8_0000), Some(0x10_0000));
    }

    #[test]
    fn the_whole_64_bit_space_does_not_wrap() {
        let mut space = IovaSpace::new(&[0..=u64::MAX], PAGE);
        let at = space.alloc(1 << 62, 1 << 62).expect("a quarter of the space");
        assert_eq!(at, 1 << 62);
        assert_eq!(space.alloc(u64::MAX, PAGE), None);
    }

    #[test]
    fn freed_neighbours_become_one_run_again() {
        let mut space = IovaSpace::new(&[PAGE..=10 * PAGE - 1], PAGE);
        let whole = space.free_bytes();
        let [a, b, c] = [(); 3].map(|()| space.alloc(2 * PAGE, PAGE).expect("room"));
        for at in [a, c, b] {
            space.free(at, 2 * PAGE);
        }
        assert_eq!(space.free_bytes(), whole);
        assert_eq!(space.alloc(whole, PAGE), Some(PAGE));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_our_bug() {
        let mut space = IovaSpace::new(&[0..=0xf_ffff], PAGE);
        let at = space.alloc(PAGE, PAGE).expect("room");
        space.free(at, PAGE);
        space.free(at, PAGE);
    }

    /// The naive model: one flag per page.
    struct Model(Vec<bool>);

    impl Model {
        fn new(ranges: &[RangeInclusive<u64>], pages: usize) -> Model {
            let inside = |page: u64| {
                let (first, last) = (page * PAGE, page * PAGE + PAGE - 1);
                (first..=last)
                    .step_by(PAGE as usize / 2)
                    .chain([last])
                    .all(|byte| ranges.iter().any(|range| range.contains(&byte)))
            };
            let mut free: Vec<bool> =
                (0..pages as u64).map(|page| page != 0 && inside(page)).collect();
            if let Some(last) = free.iter().rposition(|free| *free) {
                free[last] = false;
            }
            Model(free)
        }

        fn lowest(&self, count: usize, align: usize) -> Option<usize> {
            (0..self.0.len()).step_by(align).find(|&at| {
                self.0.get(at..at + count).is_some_and(|run| run.iter().all(|free| *free))
            })
        }

        fn set(&mut self, at: usize, count: usize, free: bool) {
            for page in &mut self.0[at..at + count] {
                assert_ne!(*page, free, "page taken or freed twice");
                *page = free;
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_one_flag_per_page(
            spans in proptest::collection::vec((0u64..200, 1u64..60), 1..5),
            steps in proptest::collection::vec((any::<bool>(), 1u64..12, 0u32..4), 1..80),
        ) {
            let ranges: Vec<_> =
                spans.iter().map(|(at, len)| at * PAGE..=(at + len) * PAGE - 1).collect();
            let mut space = IovaSpace::new(&ranges, PAGE);
            let mut model = Model::new(&ranges, 300);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (allocate, count, shift) in steps {
                if allocate || held.is_empty() {
                    let got = space.alloc(count * PAGE, PAGE << shift);
                    let expected = model.lowest(count as usize, 1 << shift);
                    prop_assert_eq!(got.map(|at| (at / PAGE) as usize), expected);
                    if let Some(at) = got {
                        model.set((at / PAGE) as usize, count as usize, false);
                        held.push((at, count));
                    }
                } else {
                    let (at, count) = held.swap_remove(count as usize % held.len());
                    space.free(at, count * PAGE);
                    model.set((at / PAGE) as usize, count as usize, true);
                }
                let free = model.0.iter().filter(|free| **free).count() as u64 * PAGE;
                prop_assert_eq!(space.free_bytes(), free);
            }
        }
    }
}
