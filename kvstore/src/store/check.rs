//! Verifying what was read, on the thread that takes the answer.

use std::sync::Arc;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::inbox::Inbox;
use super::lent::Passage;
use crate::shard::{Digest, Unverified, Verdict};

/// What is left to do with an answer that holds bytes as they were read. The verdict goes to the shard, also if the answer
/// is thrown away unverified.
pub(super) struct Check {
    /// `None` once it was verified.
    unverified: Option<Unverified>,
    /// Where the bytes are and where they go, of a read into the caller's memory.
    passage: Option<Box<Passage>>,
    home: Home,
}

/// Where a verdict goes.
struct Home {
    inbox: Arc<Inbox>,
    shard: u16,
    /// When the request was made and answered.
    times: (Time, Time),
}

/// A verdict on its way to its shard.
pub(super) struct Judged {
    pub(super) shard: u16,
    /// When the request was made and answered.
    pub(super) times: (Time, Time),
    pub(super) verdict: Verdict,
}

impl Check {
    pub(super) fn new(
        unverified: Unverified,
        (inbox, shard): (&Arc<Inbox>, u16),
        times: (Time, Time),
    ) -> Check {
        let home = Home { inbox: Arc::clone(inbox), shard, times };
        Check { unverified: Some(unverified), passage: None, home }
    }

    /// Lets the bytes pass on to the caller's memory as they are verified.
    pub(super) fn through(mut self, passage: Passage) -> Check {
        self.passage = Some(Box::new(passage));
        self
    }

    /// Verifies what is in `memory`, which comes back. Returns whether it is what was put.
    pub(super) fn verify(mut self, memory: AnyBuffer) -> (AnyBuffer, bool) {
        let (unverified, passage) = (self.take(), self.passage.take());
        let (memory, verdict) = match passage {
            Some(passage) => passage.verify(unverified, memory),
            None => unverified.verify(memory),
        };
        (memory, self.home.tell(verdict))
    }

    /// Like [`Check::verify`], of `bytes` that nothing else can write to.
    pub(super) fn verify_bytes(mut self, bytes: &[u8]) -> bool {
        let verdict = self.take().verify_bytes(bytes, |_| ());
        self.home.tell(verdict)
    }

    /// Returns whether some of the bytes are still to be copied to the caller's memory, which verifying does.
    pub(super) fn has_copy(&self) -> bool {
        self.passage.as_ref().is_some_and(|passage| passage.is_copied())
    }

    /// Leaves verifying to the process that `memory` is shared with, by the digest. Not of what [has a copy](Self::has_copy).
    pub(super) fn hand_over(mut self, memory: AnyBuffer) -> (AnyBuffer, Digest) {
        let (unverified, passage) = (self.take(), self.passage.take());
        let memory = match passage {
            Some(passage) => passage.end_in_place(memory),
            None => memory,
        };
        let (memory, digest, verdict) = unverified.hand_over(memory);
        self.home.tell(verdict);
        (memory, digest)
    }

    fn take(&mut self) -> Unverified {
        self.unverified.take().expect("it is verified once")
    }
}

impl Home {
    /// Sends a verdict, and returns whether the bytes are what was put.
    fn tell(&self, verdict: Verdict) -> bool {
        let is_intact = verdict.is_intact();
        self.inbox.verdicts.push(Judged { shard: self.shard, times: self.times, verdict });
        if !is_intact {
            self.inbox.rouse(self.shard);
        }
        is_intact
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        if let Some(unverified) = self.unverified.take() {
            self.home.tell(unverified.unread());
        }
    }
}
