//! A run's counts.

use std::time::Duration;

use adit_load::Latency;

/// All counts of a run.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Gets, found or not.
    pub(super) get: DirectionCounts,
    /// Puts.
    pub(super) put: DirectionCounts,
    /// Gets that found no object.
    pub(super) misses: u64,
    /// Puts that the store declined.
    pub(super) declined: u64,
    /// The counts of a trace.
    pub(super) replayed: Option<Replayed>,
    /// The counts of restored layers.
    pub(super) restored: Option<Restored>,
}

/// The counts of one direction.
#[derive(Debug, Default)]
pub(super) struct DirectionCounts {
    /// Bytes of objects.
    pub(super) bytes: u64,
    /// Time from the request to its answer.
    pub(super) latency: Latency,
    /// How long the direction was active, if not all the time.
    pub(super) took: Option<Duration>,
}

/// The counts of a trace.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// Requests of the trace.
    pub(super) requests: u64,
    /// KV blocks they named.
    pub(super) references: u64,
    /// Blocks that existed, up to the first missing one of each request.
    pub(super) prefix_hits: u64,
    /// Time from a request's lookup until its last block was read or put.
    pub(super) latency: Latency,
}

/// The counts of restored layers.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Restored layers of sequences.
    pub(super) layers: u64,
    /// Time from a layer's request until all its tensors were read.
    pub(super) latency: Latency,
}

impl DirectionCounts {
    /// Counts one object.
    #[inline]
    pub(super) fn record(&mut self, bytes: u64, latency: Duration) {
        self.bytes += bytes;
        self.latency.record(latency.as_nanos() as u64);
    }

    /// Counts several objects that took `took` together, without anything else running.
    pub(super) fn record_together(&mut self, count: u64, bytes: u64, took: Duration) {
        (0..count).for_each(|_| self.record(bytes / count, took));
        *self.took.get_or_insert_default() += took;
    }

    /// Returns the number of operations.
    pub(super) fn ops(&self) -> u64 {
        self.latency.count()
    }
}
