//! Verifies bytes read for a caller, and copies those that passed through a pool to the caller's memory.
use std::ops::Range;
use std::sync::Arc;

use adit_driver::Buffer;
use adit_driver::memory::{AnyBuffer, IoBuffer};

use super::copy_mode::TimedTransfer;
use super::pool::{Counts, PoolBuffer};
use super::segments::{any, copy_at, joined, list};
use crate::shard::{Unverified, Verdict};

/// Bytes that were read, on their way to the caller's memory.
pub(crate) struct CopyOut {
    /// The bytes in pool memory; they follow those read in place.
    pub(crate) run: Option<PoolBuffer>,
    /// The caller's memory for these bytes.
    pub(crate) into: Vec<Buffer>,
    /// The number of bytes read in place.
    pub(crate) in_place: usize,
    /// The timing of the read, if its mode was chosen.
    pub(crate) timed: Option<TimedTransfer>,
    pub(crate) counts: Arc<Counts>,
}

impl CopyOut {
    /// Verifies the bytes, of which `along` were read in place, and copies the rest. Returns the caller's memory.
    pub(crate) fn verify(self, unverified: Unverified, along: AnyBuffer) -> (AnyBuffer, Verdict) {
        let CopyOut { run, mut into, in_place, timed, counts } = self;
        let through = run.as_ref().map_or(0, |run| run.len());
        let work = || match run {
            None => unverified.verify(along),
            Some(run) if along.segment_count() == 0 => {
                let pass = |range: Range<usize>| copy_at(range.start, &run[range], &mut into);
                let verdict = unverified.verify_bytes(&run, pass);
                (AnyBuffer::None, verdict)
            }
            Some(run) => {
                let (run, pool) = run.into_parts();
                let (memory, verdict) = unverified.verify(any(joined(list(along), vec![run])));
                let mut parts = list(memory);
                let run = parts.pop().expect("the run comes back behind the caller's memory");
                let run = PoolBuffer::of(run, through, &pool);
                if verdict.is_intact() {
                    copy_at(0, &run, &mut into);
                }
                (any(parts), verdict)
            }
        };
        let (along, verdict) = match &timed {
            Some(timed) => timed.spend(work),
            None => work(),
        };
        counts.count_copy(through);
        counts.count_in_place(in_place);
        (any(joined(list(along), into)), verdict)
    }

    /// Returns whether some of the bytes are in pool memory. They must be verified before they leave it: if a device
    /// lies, the pool may hold another caller's bytes.
    pub(crate) fn is_copied(&self) -> bool {
        self.run.is_some()
    }

    /// Ends an unverified read that went entirely in place (`along`). Returns the caller's memory.
    pub(crate) fn end_in_place(self, along: AnyBuffer) -> AnyBuffer {
        debug_assert!(self.run.is_none(), "nothing is to be copied");
        self.counts.count_in_place(self.in_place);
        any(joined(list(along), self.into))
    }
}
