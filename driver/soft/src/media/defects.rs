//! Storage ranges that are unreadable until rewritten.

use std::collections::BTreeMap;

/// Disjoint runs of bytes by their start.
#[derive(Debug, Default)]
pub(super) struct Defects(BTreeMap<u64, u64>);

impl Defects {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, offset: u64, len: u64) {
        self.remove(offset, len);
        self.0.insert(offset, offset + len);
    }

    pub(super) fn remove(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        while let Some((start, stop)) = self.overlap(offset, len) {
            self.0.remove(&start);
            if start < offset {
                self.0.insert(start, offset);
            }
            if stop > end {
                self.0.insert(end, stop);
            }
        }
    }

    pub(super) fn overlap(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let (start, stop) = self.0.range(..offset + len).next_back()?;
        (*stop > offset).then_some((*start, *stop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_by_what_is_written() {
        let mut defects = Defects::default();
        defects.add(10, 20);
        defects.add(25, 20);
        assert_eq!((defects.overlap(0, 10), defects.overlap(45, 5)), (None, None));
        assert_eq!(defects.overlap(44, 5), Some((25, 45)));
        defects.remove(15, 15);
        assert_eq!((defects.overlap(0, 15), defects.overlap(15, 15)), (Some((10, 15)), None));
        assert_eq!(defects.overlap(15, 100), Some((30, 45)));
        defects.remove(0, 100);
        assert!(defects.is_empty());
    }
}
