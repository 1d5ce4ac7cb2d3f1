//! What a run counts.

use std::time::Duration;

use adit_bench::Latency;

/// Everything that was counted.
#[derive(Debug)]
pub(super) struct Counted {
    /// Objects that were read, or not found.
    pub(super) get: Way,
    /// Objects that were put.
    pub(super) put: Way,
    /// Gets that found nothing.
    pub(super) misses: u64,
    /// Puts that the store did not take.
    pub(super) declined: u64,
    /// What a trace came to.
    pub(super) replayed: Option<Replayed>,
    /// What restoring layers came to.
    pub(super) restored: Option<Restored>,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Way {
    /// Bytes of objects.
    pub(super) bytes: u64,
    /// From the request to its answer.
    pub(super) latency: Latency,
    /// How long it took, where it was not done all the time.
    pub(super) took: Option<Duration>,
}

/// What a trace came to.
#[derive(Debug)]
pub(super) struct Replayed {
    /// Requests of the trace.
    pub(super) requests: u64,
    /// KV blocks that they named.
    pub(super) references: u64,
    /// Those that were there, before the first of a request that was not.
    pub(super) prefix_hits: u64,
    /// From a request's lookup until its last block was read or put.
    pub(super) latency: Latency,
}

/// What restoring layers came to.
#[derive(Debug)]
pub(super) struct Restored {
    /// Layers of sequences that were restored.
    pub(super) layers: u64,
    /// From a layer's request until all its tensors were there.
    pub(super) latency: Latency,
}

impl Counted {
    /// Nothing yet.
    pub(super) fn new() -> Counted {
        Counted {
            get: Way::new(),
            put: Way::new(),
            misses: 0,
            declined: 0,
            replayed: None,
            restored: None,
        }
    }
}

impl Way {
    fn new() -> Way {
        Way { bytes: 0, latency: Latency::new(), took: None }
    }

    /// Counts one.
    #[inline]
    pub(super) fn record(&mut self, bytes: u64, latency: Duration) {
        self.bytes += bytes;
        self.latency.record(latency.as_nanos() as u64);
    }

    /// Counts several that took a time together in which there was nothing else.
    pub(super) fn record_together(&mut self, count: u64, bytes: u64, took: Duration) {
        (0..count).for_each(|_| self.record(bytes / count, took));
        *self.took.get_or_insert_default() += took;
    }

    /// How many there were.
    pub(super) fn ops(&self) -> u64 {
        self.latency.count()
    }
}

impl Replayed {
    /// Nothing yet.
    pub(super) fn new() -> Replayed {
        Replayed { requests: 0, references: 0, prefix_hits: 0, latency: Latency::new() }
    }
}

impl Restored {
    /// Nothing yet.
    pub(super) fn new() -> Restored {
        Restored { layers: 0, latency: Latency::new() }
    }
}
