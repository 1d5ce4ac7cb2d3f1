//! The directions of I/O, as fio counts them.

use std::ops::{Index, IndexMut};

/// The direction of an I/O (fio's data direction).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Way {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Deallocates.
    Trim = 2,
}

impl Way {
    /// All ways, in fio's order.
    pub(crate) const ALL: [Way; 3] = [Way::Read, Way::Write, Way::Trim];

    /// Returns its name in reports.
    pub(crate) fn name(self) -> &'static str {
        ["read", "write", "trim"][self as usize]
    }
}

/// A value for each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerWay<T>(pub(crate) [T; 3]);

impl<T: Clone> PerWay<T> {
    /// Returns the same value for all ways.
    pub(crate) fn all(value: T) -> PerWay<T> {
        PerWay([value.clone(), value.clone(), value])
    }
}

impl<T> PerWay<T> {
    /// Returns each value with its way.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Way, &T)> {
        Way::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<Way> for PerWay<T> {
    type Output = T;

    #[inline]
    fn index(&self, way: Way) -> &T {
        &self.0[way as usize]
    }
}

impl<T> IndexMut<Way> for PerWay<T> {
    #[inline]
    fn index_mut(&mut self, way: Way) -> &mut T {
        &mut self.0[way as usize]
    }
}
