//! I/Os in flight that others must not overlap.

use crate::options::JobOptions;
use crate::way::Way;
use crate::workload::Step;

/// The ranges in flight: file, start and end.
#[derive(Debug)]
pub(super) struct Overlaps {
    spans: Vec<(u32, u64, u64)>,
    /// Whether reads count too, for `serialize_overlap`.
    counts_reads: bool,
}

impl Overlaps {
    /// Returns the overlaps to watch in `job`; `None` if its I/Os never overlap or their order does not matter.
    pub(super) fn of(job: &JobOptions, may_overlap: bool, depth: usize) -> Option<Overlaps> {
        let is_checked = job.verify.is_some() && job.rw.writes && may_overlap;
        let changes = job.rw.writes || job.rw.trims;
        let counts_reads = job.batch.serialize_overlap && changes && depth > 1;
        (is_checked || counts_reads)
            .then(|| Overlaps { spans: Vec::with_capacity(depth), counts_reads })
    }

    #[inline]
    fn counts(&self, step: Step) -> bool {
        self.counts_reads || step.way != Way::Read
    }

    /// Returns whether `step` overlaps I/O in flight.
    #[inline]
    pub(super) fn meets(&self, step: Step) -> bool {
        let (from, to) = (step.offset, step.offset + step.bytes);
        self.spans.iter().any(|(file, start, end)| *file == step.file && from < *end && *start < to)
    }

    /// Adds a posted I/O.
    #[inline]
    pub(super) fn note(&mut self, step: Step) {
        if self.counts(step) {
            self.spans.push((step.file, step.offset, step.offset + step.bytes));
        }
    }

    /// Removes a finished I/O.
    #[inline]
    pub(super) fn forget(&mut self, step: Step) {
        let it = (step.file, step.offset, step.offset + step.bytes);
        if self.counts(step)
            && let Some(at) = self.spans.iter().position(|span| *span == it)
        {
            self.spans.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::sample::{job, workload};

    fn step(way: Way, file: u32, offset: u64) -> Step {
        Step { way, file, offset, bytes: 8192, number: 0 }
    }

    fn overlaps(rw: &str, serialize_overlap: bool, depth: usize) -> Option<Overlaps> {
        let job = JobOptions {
            rw: workload(rw),
            batch: crate::options::BatchOptions { serialize_overlap, ..job().batch },
            ..job()
        };
        Overlaps::of(&job, true, depth)
    }

    #[test]
    fn an_io_waits_for_what_it_touches_on_its_own_file() {
        let mut overlaps = overlaps("randrw", true, 8).expect("watched");
        let read = step(Way::Read, 1, 8192);
        overlaps.note(read);
        assert!(overlaps.meets(step(Way::Write, 1, 4096)) && overlaps.meets(read));
        assert!(!overlaps.meets(step(Way::Write, 0, 8192)));
        assert!(
            !overlaps.meets(step(Way::Write, 1, 0)) && !overlaps.meets(step(Way::Write, 1, 16384))
        );
        overlaps.forget(read);
        assert!(!overlaps.meets(read));
    }

    #[test]
    fn nothing_is_watched_that_cannot_matter() {
        assert!(overlaps("randread", true, 8).is_none());
        assert!(overlaps("randwrite", true, 1).is_none());
        assert!(overlaps("randwrite", false, 8).is_none());
        assert!(overlaps("randtrim", true, 8).is_some());
    }
}
