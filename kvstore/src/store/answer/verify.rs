//! The verification of reads, on the thread that takes the answer.

use std::sync::Arc;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Alarm;
use crossbeam_queue::SegQueue;

use crate::shard::{Digest, Unverified, Verdict};
use crate::store::memory::CopyOut;

/// The verification of an answer that holds bytes as they were read. The verdict goes to the shard, also if the
/// answer is thrown away unverified.
pub(crate) struct ReadCheck {
    /// `None` once it was verified.
    unverified: Option<Unverified>,
    /// Copies the bytes to the caller's memory, if they were not read there.
    copy_out: Option<Box<CopyOut>>,
    verdicts: Arc<Verdicts>,
    shard: u16,
    /// When the request was made and answered.
    times: (Time, Time),
}

/// Verdicts on their way to a thread of the store.
pub(crate) struct Verdicts {
    queue: SegQueue<Judged>,
    thread: Arc<Alarm>,
}

/// A verdict on its way to its shard.
pub(crate) struct Judged {
    pub(crate) shard: u16,
    /// When the request was made and answered.
    pub(crate) times: (Time, Time),
    pub(crate) verdict: Verdict,
}

impl Verdicts {
    /// Creates an empty queue to the thread that `thread` wakes.
    pub(crate) fn new(thread: Arc<Alarm>) -> Verdicts {
        Verdicts { queue: SegQueue::new(), thread }
    }

    /// Takes the next verdict.
    pub(crate) fn take(&self) -> Option<Judged> {
        self.queue.pop()
    }
}

impl ReadCheck {
    pub(crate) fn new(
        unverified: Unverified,
        (verdicts, shard): (&Arc<Verdicts>, u16),
        times: (Time, Time),
    ) -> ReadCheck {
        let verdicts = Arc::clone(verdicts);
        ReadCheck { unverified: Some(unverified), copy_out: None, verdicts, shard, times }
    }

    /// Copies the bytes to the caller's memory as they are verified.
    pub(crate) fn through(mut self, copy_out: CopyOut) -> ReadCheck {
        self.copy_out = Some(Box::new(copy_out));
        self
    }

    /// Verifies the bytes in `memory`, which comes back. Returns whether they are what was put.
    pub(crate) fn verify(mut self, memory: AnyBuffer) -> (AnyBuffer, bool) {
        let (unverified, copy_out) = (self.take(), self.copy_out.take());
        let (memory, verdict) = match copy_out {
            Some(copy_out) => copy_out.verify(unverified, memory),
            None => unverified.verify(memory),
        };
        (memory, self.tell(verdict))
    }

    /// Like [`ReadCheck::verify`], for `bytes` that nothing else can write to.
    pub(crate) fn verify_bytes(mut self, bytes: &[u8]) -> bool {
        let verdict = self.take().verify_bytes(bytes, |_| ());
        self.tell(verdict)
    }

    /// Returns whether some of the bytes are still to be copied to the caller's memory, which verifying does.
    pub(crate) fn has_copy(&self) -> bool {
        self.copy_out.as_ref().is_some_and(|copy_out| copy_out.is_copied())
    }

    /// Leaves verifying to the process that `memory` is shared with, by the digest. Not for bytes that are
    /// [still to be copied](Self::has_copy).
    pub(crate) fn hand_over(mut self, memory: AnyBuffer) -> (AnyBuffer, Digest) {
        let (unverified, copy_out) = (self.take(), self.copy_out.take());
        let memory = match copy_out {
            Some(copy_out) => copy_out.end_in_place(memory),
            None => memory,
        };
        let (memory, digest, verdict) = unverified.hand_over(memory);
        self.tell(verdict);
        (memory, digest)
    }

    fn take(&mut self) -> Unverified {
        self.unverified.take().expect("it is verified once")
    }

    /// Sends a verdict, and returns whether the bytes are what was put. If not, wakes the thread, which removes the
    /// object.
    fn tell(&self, verdict: Verdict) -> bool {
        let is_intact = verdict.is_intact();
        self.verdicts.queue.push(Judged { shard: self.shard, times: self.times, verdict });
        if !is_intact {
            self.verdicts.thread.tell();
        }
        is_intact
    }
}

impl Drop for ReadCheck {
    fn drop(&mut self) {
        if let Some(unverified) = self.unverified.take() {
            self.tell(unverified.unread());
        }
    }
}
