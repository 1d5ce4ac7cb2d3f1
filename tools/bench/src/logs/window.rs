//! Time windows in which values are summed up (`log_avg_msec`).

use std::time::Duration;

use super::{IoSample, nanoseconds};
use crate::way::{PerWay, Way};

/// The window being filled, on a grid that starts with the run.
#[derive(Debug)]
pub(super) struct Windows {
    every_ns: u64,
    start_ns: u64,
    end_ns: u64,
    sums: PerWay<Sums>,
}

/// The sums of one way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    ios: u64,
    bytes: u64,
    /// slat, clat and lat.
    sum_ns: [u64; 3],
    pub(super) max_ns: [u64; 3],
}

impl Windows {
    /// Creates windows of length `every`.
    pub(super) fn new(every: Duration) -> Windows {
        let every_ns = nanoseconds(every).max(1);
        let sums = PerWay::all(Sums::default());
        Windows { every_ns, start_ns: 0, end_ns: every_ns, sums }
    }

    /// Returns whether the window has ended by that time.
    #[inline]
    pub(super) fn is_over(&self, at_ns: u64) -> bool {
        at_ns >= self.end_ns
    }

    /// Starts the window that contains a time, skipping empty ones.
    pub(super) fn begin(&mut self, at_ns: u64) {
        self.start_ns = at_ns - at_ns % self.every_ns;
        self.end_ns = self.start_ns + self.every_ns;
        self.sums = PerWay::all(Sums::default());
    }

    /// Ends the window at that time if it is still open then.
    pub(super) fn end(&mut self, at_ns: u64) {
        self.end_ns = self.end_ns.min(at_ns).max(self.start_ns + 1);
    }

    #[inline]
    pub(super) fn add(&mut self, way: Way, io: IoSample) {
        let sums = &mut self.sums[way];
        sums.ios += 1;
        sums.bytes += io.bytes;
        for (index, ns) in [io.slat_ns, io.clat_ns, io.lat_ns].into_iter().enumerate() {
            sums.sum_ns[index] += ns;
            sums.max_ns[index] = sums.max_ns[index].max(ns);
        }
    }

    /// Returns the window's end in milliseconds from the start.
    pub(super) fn end_ms(&self) -> u64 {
        self.end_ns / 1_000_000
    }

    /// Returns a way's sums; `None` without I/Os.
    pub(super) fn sums(&self, way: Way) -> Option<&Sums> {
        Some(&self.sums[way]).filter(|sums| sums.ios > 0)
    }

    /// Returns KiB and I/Os per second.
    pub(super) fn rates(&self, sums: &Sums) -> [u64; 2] {
        [self.per_second(sums.bytes) / 1024, self.per_second(sums.ios)]
    }

    fn per_second(&self, count: u64) -> u64 {
        let ns = u128::from(self.end_ns - self.start_ns);
        (u128::from(count) * 1_000_000_000 / ns) as u64
    }
}

impl Sums {
    /// Returns mean slat, clat and lat in nanoseconds.
    pub(super) fn means_ns(&self) -> [u64; 3] {
        self.sum_ns.map(|sum| sum / self.ios)
    }
}
