//! Histograms of completion latency over time (`write_hist_log`), in fio's bins.
//!
//! fio has 29 groups of 64 bins. The bins of the first two groups are one nanosecond wide; in each later group
//! they are twice as wide as in the previous one. The last bin also counts everything above it. A coarseness of
//! c merges 2^c neighbours.

use std::time::Duration;

use super::file::LogFile;
use super::{IoSample, nanoseconds};
use crate::failure::Failure;
use crate::way::{PerWay, Way};

/// log2 of the bins per group.
const GROUP_BITS: u32 = 6;
const GROUPS: usize = 29;
pub(super) const BINS: usize = GROUPS << GROUP_BITS;

pub(super) fn bin(latency_ns: u64) -> usize {
    let top_bit = u64::BITS - 1 - (latency_ns | 1).leading_zeros();
    if top_bit <= GROUP_BITS {
        return latency_ns as usize;
    }
    let dropped_bits = top_bit - GROUP_BITS;
    let in_group = (latency_ns >> dropped_bits) as usize & ((1 << GROUP_BITS) - 1);
    (((dropped_bits as usize + 1) << GROUP_BITS) + in_group).min(BINS - 1)
}

/// The log, with the histograms being filled.
#[derive(Debug)]
pub(super) struct HistogramLog {
    file: LogFile,
    every_ns: u64,
    end_ns: u64,
    coarseness: u8,
    epoch_ms: u64,
    ways: PerWay<Counts>,
}

#[derive(Clone, Debug)]
struct Counts {
    bins: Box<[u64]>,
    total: u64,
    /// Length of the last I/O.
    bytes: u64,
}

impl HistogramLog {
    /// Creates a log with a row per way every `every`; `coarseness` is at most 6.
    pub(super) fn new(
        file: LogFile,
        every: Duration,
        coarseness: u8,
        epoch_ms: u64,
    ) -> HistogramLog {
        let every_ns = nanoseconds(every).max(1);
        let empty = Counts { bins: vec![0; BINS].into(), total: 0, bytes: 0 };
        let coarseness = coarseness.min(GROUP_BITS as u8);
        let ways = PerWay::all(empty);
        HistogramLog { file, every_ns, end_ns: every_ns, coarseness, epoch_ms, ways }
    }

    #[inline]
    pub(super) fn record(&mut self, at_ns: u64, way: Way, io: IoSample) {
        if at_ns >= self.end_ns {
            self.tell(self.end_ns);
            self.end_ns = at_ns - at_ns % self.every_ns + self.every_ns;
        }
        let counts = &mut self.ways[way];
        counts.bins[bin(io.clat_ns)] += 1;
        counts.total += 1;
        counts.bytes = io.bytes;
    }

    /// Writes the remaining rows and returns the first failure since the file was opened.
    pub(super) fn finish(mut self, at_ns: u64) -> Option<Failure> {
        self.tell(self.end_ns.min(at_ns));
        self.file.finish()
    }

    fn tell(&mut self, at_ns: u64) {
        for way in Way::ALL {
            let counts = &mut self.ways[way];
            if counts.total == 0 {
                continue;
            }
            let at_ms = self.epoch_ms + at_ns / 1_000_000;
            let row = (at_ms, way, counts.bytes);
            let coarse = counts.bins.chunks(1 << self.coarseness);
            self.file.add_counts(row, coarse.map(|bins| bins.iter().sum()));
            counts.bins.fill(0);
            counts.total = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_exact_at_first_and_then_double() {
        for ns in 0..128 {
            assert_eq!(bin(ns), ns as usize, "{ns} ns");
        }
        assert_eq!((bin(128), bin(129), bin(130)), (128, 128, 129));
        assert_eq!((bin(255), bin(256), bin(259), bin(260)), (191, 192, 192, 193));
    }

    #[test]
    fn bins_never_go_back_and_end_at_the_last() {
        let (mut last, mut ns) = (0, 1_u64);
        while ns < 1 << 60 {
            let now = bin(ns);
            assert!(now == last || now == last + 1 || ns > 1 << 20, "{ns} ns");
            assert!(now >= last && now < BINS, "{ns} ns");
            last = now;
            ns += 1 + ns / 1000;
        }
        assert_eq!((bin(u64::MAX), last), (BINS - 1, BINS - 1));
    }
}
