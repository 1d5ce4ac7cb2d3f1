//! The counters of a thread of the store, and the latencies of its requests.
//!
//! Handles read them at any time. Only the thread writes, so that it counts with plain loads and stores; reads that
//! callers answer from memory have counters of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_driver::Time;

use crate::io::latency::{BUCKETS, Latencies, bucket};
use crate::shard::{Failure, Outcome};
use crate::store::request::Caller;

/// The kinds of requests whose latency is counted, by name.
pub(crate) const KINDS: [&str; 5] = ["get_hit", "get_miss", "put", "delete", "commit"];

/// The figures of one thread.
#[derive(Default)]
pub(crate) struct Figures {
    /// From the call to the answer, for each of [`KINDS`].
    latencies: [Counts; KINDS.len()],
    /// Hits in memory, which any thread counts.
    in_memory: Counts,
    failures: AtomicU64,
    waiting_for_memory: AtomicU64,
}

/// A histogram that one thread fills and others read.
#[derive(Default)]
struct Counts {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Counts {
    fn record(&self, since: Time, now: Time) {
        let ns = now.as_ns().saturating_sub(since.as_ns());
        add(&self.counts[bucket(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// Like [`Counts::record`], for several threads.
    fn record_shared(&self, since: Time, now: Time) {
        let ns = now.as_ns().saturating_sub(since.as_ns());
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn load(&self) -> Latencies {
        let counts = std::array::from_fn(|index| load(&self.counts[index]));
        Latencies::of(counts, load(&self.sum_ns))
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(load(counter).wrapping_add(more), Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Figures {
    /// Counts an answer for which `caller` has waited since `since`. Sweeps, changes of expiries, writers and their
    /// parts have no histogram.
    pub(crate) fn answered(
        &self,
        (since, now): (Time, Time),
        caller: &Caller,
        result: &Result<Outcome, Failure>,
    ) {
        let kind = match (caller, result) {
            (_, Err(_)) => return add(&self.failures, 1),
            (Caller::Read(_), Ok(outcome)) => usize::from(!matches!(outcome, Outcome::Hit { .. })),
            (Caller::Put { .. }, Ok(_)) => 2,
            (Caller::Delete(_), Ok(_)) => 3,
            (Caller::EachShard(_), Ok(Outcome::Committed)) => 4,
            (Caller::Fill { .. } | Caller::Writer(_) | Caller::Touch(_), Ok(_)) => return,
            (Caller::EachShard(_), Ok(_)) => return,
        };
        self.latencies[kind].record(since, now);
    }

    /// Counts a read that its caller has verified.
    pub(crate) fn verified(&self, (since, now): (Time, Time), is_intact: bool) {
        self.latencies[usize::from(!is_intact)].record(since, now);
    }

    /// Counts a read that its caller found in memory; on any thread.
    pub(crate) fn found_in_memory(&self, (since, now): (Time, Time)) {
        self.in_memory.record_shared(since, now);
    }

    /// Notes how many reads wait for memory now.
    pub(crate) fn note_waiting(&self, count: usize) {
        self.waiting_for_memory.store(count as u64, Ordering::Relaxed);
    }

    /// Returns the latencies of each of [`KINDS`].
    pub(crate) fn latencies(&self) -> [Latencies; KINDS.len()] {
        let mut latencies = std::array::from_fn(|kind| self.latencies[kind].load());
        latencies[0] += self.in_memory.load();
        latencies
    }

    /// Returns how many requests failed.
    pub(crate) fn failures(&self) -> u64 {
        load(&self.failures)
    }

    /// Returns how many reads wait for memory.
    pub(crate) fn waiting_for_memory(&self) -> u64 {
        load(&self.waiting_for_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::answer::pair;
    use crate::store::request::ReadCaller;
    use std::time::Duration;

    #[test]
    fn answers_count_by_their_kind_and_failures_apart() {
        let figures = Figures::default();
        let (reply, _pending) = pair(Duration::ZERO);
        let get = Caller::Read(ReadCaller::InPlace(reply, std::sync::Arc::default()));
        let (since, now) = (Time::from_ns(1000), Time::from_ns(6000));
        figures.answered((since, now), &get, &Ok(Outcome::Hit { bytes: 1 }));
        figures.answered((since, now), &get, &Ok(Outcome::Miss));
        figures.answered((since, now), &get, &Ok(Outcome::Miss));
        figures.answered((since, now), &get, &Err(Failure::Deadline));
        let latencies = figures.latencies();
        assert_eq!(latencies.map(|kind| kind.count()), [1, 2, 0, 0, 0]);
        assert_eq!(latencies[1].sum(), Duration::from_micros(10));
        assert_eq!(figures.failures(), 1);
    }
}
