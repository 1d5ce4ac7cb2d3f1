//! What a run did: latencies, hits, and how sequential its commands were.

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

    /// Returns how many were counted.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the average; 0 of none.
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// Returns their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns the longest; 0 of none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the latency that this share of all does not exceed, as 0.99; 0 of none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(share).min(self.max_ns))
    }
}

/// Direct transfers. The difference of two sums is that of the transfers between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Commands posted.
    pub commands: u64,
    /// Those that start where the last one of their stream ended. A stream is the reads, or the writes, of one copy thread
    /// on one device.
    pub sequential: u64,
    /// Time of transfers.
    pub active: Duration,
    /// The part of it with at least one command in flight.
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

/// What the copy threads did for one kind of operation on one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Time of each tensor between pinned memory and its home, without the copy to or from the GPU. A decode write ends
    /// when its bytes are in the page cache or handed to the drive, which includes waiting for writes before it; later
    /// operations on the tensor wait for the drive.
    pub latency: Latency,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes that the drive delivered for reads.
    pub missed_bytes: u64,
    /// Those of them that had been in the page cache before: they were evicted between two reads.
    pub refault_bytes: u64,
    /// Bytes of reads through the page cache of which the kernel did not say where they came from.
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

/// What one operation on a tensor did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) took: Duration,
    pub(crate) bytes: u64,
    /// Bytes from the drive; `None` if unknown.
    pub(crate) missed_bytes: Option<u64>,
    pub(crate) is_refault: bool,
    pub(crate) cost: Cost,
}

/// What was done for one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupStats {
    /// Writes of prefill.
    pub prefill_write: Figures,
    /// Reads of decode.
    pub decode_read: Figures,
    /// Writes of decode.
    pub decode_write: Figures,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// Cached layers.
    pub cached: GroupStats,
    /// Direct layers.
    pub direct: GroupStats,
    /// Iterations ended; the first is prefill.
    pub iterations: u32,
    /// Layers that left the page cache because memory shrank. Their bytes stay where they are.
    pub demoted_layers: u64,
    /// Layers that were cached because memory grew.
    pub promoted_layers: u64,
    /// Bytes written to the files for these layers.
    pub moved_bytes: u64,
    /// Evaluations of the budget.
    pub budget_evaluations: u64,
    /// Bytes of cached layers that idle copy threads read through the page cache, as of the last operation that ended.
    pub filled_bytes: u64,
}

impl RunStats {
    /// Returns what was done for a group.
    pub(crate) fn group_mut(&mut self, group: Group) -> &mut GroupStats {
        match group {
            Group::Cached => &mut self.cached,
            Group::Direct => &mut self.direct,
        }
    }

    /// Returns the share of all bytes read in decode that came from memory; `None` if nothing was read or the kernel did
    /// not say (`/proc/thread-self/io` has no `read_bytes`).
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

    /// Returns the share of the bytes read of cached layers that had been in the page cache and were evicted.
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
