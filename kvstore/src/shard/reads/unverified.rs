//! Reads that their callers verify, on their own threads: there the bytes are used next, so summing them brings them
//! into the right cache, and the shard's thread goes on with its devices meanwhile.
//!
//! With [`ShardOptions::callers_verify`](crate::shard::ShardOptions) a read ends with an [`Unverified`]. Its caller
//! verifies the memory before anything else looks at it, and hands the [`Verdict`] to
//! [`Shard::judge`](crate::shard::Shard::judge), which counts a hit or a miss and drops an object whose bytes are not
//! what was put. Each read gets one verdict, also if its answer is thrown away.

use std::ops::Range;

use adit_driver::memory::AnyBuffer;

use super::digest::Digest;
use super::reading::Reading;
use crate::shard::memory::Memory;
use crate::shard::tier::Filling;

/// The digest that memory read from a device has to match. Until it is verified its bytes may be anything.
#[derive(Debug)]
#[must_use = "bytes that were not verified may be anything"]
pub struct Unverified {
    pub(crate) reading: Box<Reading>,
    /// The memory tier takes a copy.
    pub(crate) tier: Option<Filling>,
}

/// The result of a verification, for [`Shard::judge`](crate::shard::Shard::judge) of its shard.
#[derive(Debug)]
#[must_use = "its shard counts it, and drops an object that is damaged"]
pub struct Verdict {
    reading: Box<Reading>,
    is_intact: bool,
}

impl Unverified {
    /// Verifies what was read into `memory`, which comes back, and gives the memory tier its copy.
    pub fn verify(self, memory: AnyBuffer) -> (AnyBuffer, Verdict) {
        let Unverified { reading, tier } = self;
        let memory = Memory::of(memory);
        let is_intact = reading.is_intact(&memory);
        if let (Some(tier), true) = (tier, is_intact) {
            tier.fill(&reading, |into| memory.copy_to(into), memory.is_shared());
        }
        (memory.into_any(), Verdict { reading, is_intact })
    }

    /// Like [`Unverified::verify`], of `bytes` that nothing else can write to. Passes each run of them to `then` once
    /// it is verified.
    pub(crate) fn verify_bytes(self, bytes: &[u8], then: impl FnMut(Range<usize>)) -> Verdict {
        let Unverified { reading, tier } = self;
        let pieces = &reading.extract.pieces;
        let is_intact = pieces.each_intact(bytes, reading.checksums.iter().copied(), then);
        if let (Some(tier), true) = (tier, is_intact) {
            tier.fill(&reading, |into| into[..bytes.len()].copy_from_slice(bytes), false);
        }
        Verdict { reading, is_intact }
    }

    /// Leaves verifying to the process that `memory` is shared with, by the digest. Counts as read; the memory tier
    /// gets a copy that is intact.
    pub(crate) fn hand_over(self, memory: AnyBuffer) -> (AnyBuffer, Digest, Verdict) {
        let Unverified { reading, tier } = self;
        let (memory, digest) = (Memory::of(memory), Digest::of(&reading));
        if let Some(tier) = tier {
            tier.fill(&reading, |into| memory.copy_to(into), true);
        }
        (memory.into_any(), digest, Verdict { reading, is_intact: true })
    }

    /// Gives up verifying: the bytes are thrown away, and count as read.
    pub fn unread(self) -> Verdict {
        Verdict { reading: self.reading, is_intact: true }
    }
}

impl Verdict {
    /// Returns the read, and whether its bytes are what was put.
    pub(crate) fn into_parts(self) -> (Box<Reading>, bool) {
        (self.reading, self.is_intact)
    }

    /// Returns whether the bytes are what was put; otherwise the read is a miss.
    pub fn is_intact(&self) -> bool {
        self.is_intact
    }
}
