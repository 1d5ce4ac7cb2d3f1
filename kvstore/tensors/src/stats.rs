//! Statistics of a run: latencies, hits, and the sequentiality of its commands.

use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::plan::Group;

/// A histogram of latencies, exact to one percent.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    counts: Histogram<u32>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        let counts = Histogram::new(2).expect("two digits are supported");
        Latency { counts, sum_ns: 0, max_ns: 0 }
    }
}

impl Latency {
    /// Counts one latency.
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts.record(ns).expect("it grows to any number of nanoseconds");
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the number of latencies counted.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the average; 0 if none was counted.
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// Returns the sum of all latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns the longest latency; 0 if none was counted.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the latency that a `share` of all does not exceed, for example 0.99; 0 if none was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(share).min(self.max_ns))
    }
}

/// Costs of direct transfers. The difference of two sums covers the transfers between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Commands posted.
    pub commands: u64,
    /// Commands that start where the last one of their stream ended. A stream is the reads, or the writes, of one copy
    /// thread on one device.
    pub sequential: u64,
    /// Time of transfers.
    pub active: Duration,
    /// The part of `active` with at least one command in flight.
    pub busy: Duration,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Cost) {
        self.commands += more.commands;
        self.sequential += more.sequential;
        self.active += more.active;
        self.busy += more.busy;
    }
}

/// The copy threads' figures for one kind of operation on one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Time of each tensor's transfer between pinned memory and storage, without the copy to or from the GPU. A decode
    /// write ends when its bytes are in the page cache or handed to the drive, which includes waiting for earlier
    /// writes; later operations on the tensor wait for the drive.
    pub latency: Latency,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes that the drive delivered for reads.
    pub missed_bytes: u64,
    /// Missed bytes that had been in the page cache: they were evicted between two reads.
    pub refault_bytes: u64,
    /// Bytes read through the page cache whose source the kernel did not report.
    pub unmeasured_bytes: u64,
    /// The direct transfers.
    pub cost: Cost,
}

impl Figures {
    /// Returns the share of commands that were sequential, if there were any.
    pub fn sequentiality(&self) -> Option<f64> {
        share(self.cost.sequential, self.cost.commands)
    }

    /// Returns the share of the time of direct transfers in which the device had a command.
    pub fn busy_share(&self) -> Option<f64> {
        let seconds = self.cost.active.as_secs_f64();
        (seconds > 0.0).then(|| self.cost.busy.as_secs_f64() / seconds)
    }

    /// Adds one operation.
    pub(crate) fn add(&mut self, moved: &Moved) {
        assert!(moved.cost.sequential <= moved.cost.commands, "sequential commands are commands");
        self.latency.record(moved.took);
        self.bytes += moved.bytes;
        self.missed_bytes += moved.missed_bytes.unwrap_or(0);
        self.unmeasured_bytes += if moved.missed_bytes.is_none() { moved.bytes } else { 0 };
        self.refault_bytes += if moved.is_refault { moved.missed_bytes.unwrap_or(0) } else { 0 };
        self.cost += moved.cost;
    }
}

/// The figures of one operation on a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    /// Bytes from the drive; `None` if unknown.
    pub(crate) missed_bytes: Option<u64>,
    pub(crate) is_refault: bool,
    pub(crate) cost: Cost,
}

/// The figures of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupStats {
    /// Writes of prefill.
    pub prefill_write: Figures,
    /// Reads of decode.
    pub decode_read: Figures,
    /// Writes of decode.
    pub decode_write: Figures,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// Cached layers.
    pub cached: GroupStats,
    /// Direct layers.
    pub direct: GroupStats,
    /// Iterations ended; the first is prefill.
    pub iterations: u32,
    /// Layers that left the page cache because memory shrank. Their bytes did not move.
    pub demoted_layers: u64,
    /// Layers that entered the page cache because memory grew.
    pub promoted_layers: u64,
    /// Bytes written to the files for promoted layers.
    pub moved_bytes: u64,
    /// Evaluations of the budget.
    pub budget_evaluations: u64,
    /// Bytes of cached layers that idle copy threads read through the page cache, up to the last ended operation.
    pub filled_bytes: u64,
}

impl RunStats {
    /// Returns the figures of a group.
    pub(crate) fn group_mut(&mut self, group: Group) -> &mut GroupStats {
        match group {
            Group::Cached => &mut self.cached,
            Group::Direct => &mut self.direct,
        }
    }

    /// Returns the share of bytes read in decode that came from memory; `None` if nothing was read or the kernel does
    /// not report it (`/proc/thread-self/io` has no `read_bytes`).
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = [&self.cached.decode_read, &self.direct.decode_read];
        if reads.iter().any(|read| read.unmeasured_bytes > 0) {
            return None;
        }
        let bytes = reads.iter().map(|read| read.bytes).sum();
        // Read-ahead may fetch more than was asked for.
        let missed = reads.iter().map(|read| read.missed_bytes).sum::<u64>().min(bytes);
        share(bytes - missed, bytes)
    }

    /// Returns the share of bytes read of cached layers that had been evicted from the page cache.
    pub fn refault_ratio(&self) -> Option<f64> {
        let read = &self.cached.decode_read;
        // Read-ahead may fetch more than was asked for.
        let refaults = read.refault_bytes.min(read.bytes);
        if read.unmeasured_bytes > 0 { None } else { share(refaults, read.bytes) }
    }
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_exact_to_one_percent(ns in prop::collection::vec(0u64..1 << 50, 1..200), share in 0.0f64..1.0) {
            let mut latency = Latency::default();
            ns.iter().for_each(|ns| latency.record(Duration::from_nanos(*ns)));
            let mut sorted = ns.clone();
            sorted.sort_unstable();
            let rank = ((ns.len() as f64 * share).ceil() as usize).max(1) - 1;
            let (exact, told) = (sorted[rank], latency.quantile(share).as_nanos() as u64);
            prop_assert!(told >= exact && told <= exact + exact / 100 + 1, "{} for {}", told, exact);
            prop_assert_eq!(latency.max().as_nanos() as u64, sorted[sorted.len() - 1]);
        }
    }

    #[test]
    fn ratios() {
        let mut stats = RunStats::default();
        assert_eq!((stats.hit_ratio(), stats.refault_ratio()), (None, None));
        let hit = Moved { bytes: 300, missed_bytes: Some(0), ..Moved::default() };
        stats.cached.decode_read.add(&hit);
        let evicted = Moved { bytes: 100, missed_bytes: Some(20), is_refault: true, ..hit };
        stats.cached.decode_read.add(&evicted);
        let cost = Cost { commands: 4, sequential: 3, ..Cost::default() };
        let direct = Moved { bytes: 100, missed_bytes: Some(100), cost, ..hit };
        stats.direct.decode_read.add(&direct);
        assert_eq!(stats.hit_ratio(), Some(380.0 / 500.0));
        assert_eq!(stats.refault_ratio(), Some(20.0 / 400.0));
        assert_eq!(stats.direct.decode_read.sequentiality(), Some(0.75));
        assert_eq!(stats.direct.decode_read.busy_share(), None);
        let ahead = Moved { bytes: 100, missed_bytes: Some(9000), is_refault: true, ..hit };
        stats.cached.decode_read.add(&ahead);
        assert_eq!(
            (stats.hit_ratio(), stats.refault_ratio()),
            (Some(0.0), Some(1.0)),
            "read-ahead"
        );
        stats.cached.decode_read.add(&Moved { missed_bytes: None, ..hit });
        assert_eq!(
            (stats.hit_ratio(), stats.refault_ratio()),
            (None, None),
            "the kernel did not say"
        );
    }
}
