//! Reads that their callers verify, on their own threads: there the bytes are used next, so summing them brings them into
//! the right cache, and the shard's thread goes on with its devices meanwhile.
//!
//! With [`ShardOptions::callers_verify`](super::ShardOptions) a read ends with an [`Unverified`]. Its caller verifies the
//! memory before anything else looks at it, and hands the [`Verdict`] to [`Shard::judge`], which counts a hit or a miss and
//! drops an object whose bytes are not what was put. Each read gets one verdict, also if its answer is thrown away.

use std::ops::Range;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use adit_driver::paths::CommandQueue;

use super::Shard;
use super::batch::Reading;
use super::digest::Digest;
use super::parts::Memory;
use super::request::Outcome;
use super::tier::Filling;
use crate::io::lane::Load;

/// What memory that was read has to match. Until then its bytes may be anything.
#[derive(Debug)]
#[must_use = "bytes that were not verified may be anything"]
pub struct Unverified {
    pub(super) reading: Box<Reading>,
    /// The memory tier takes a copy.
    pub(super) tier: Option<Filling>,
}

/// What became of a read: for [`Shard::judge`] of its shard.
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

    /// Like [`Unverified::verify`], of `bytes` that nothing else can write to. Passes each run of them to `then` once it is
    /// verified.
    pub(crate) fn verify_bytes(self, bytes: &[u8], then: impl FnMut(Range<usize>)) -> Verdict {
        let Unverified { reading, tier } = self;
        let pieces = &reading.extract.pieces;
        let is_intact = pieces.each_intact(bytes, reading.checksums.iter().copied(), then);
        if let (Some(tier), true) = (tier, is_intact) {
            tier.fill(&reading, |into| into[..bytes.len()].copy_from_slice(bytes), false);
        }
        Verdict { reading, is_intact }
    }

    /// Leaves verifying to the process that `memory` is shared with, by the digest. Counts as read; the memory tier gets a
    /// copy that is intact.
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
    /// Returns whether the bytes are what was put; otherwise the read is a miss.
    pub fn is_intact(&self) -> bool {
        self.is_intact
    }
}

impl Reading {
    /// Returns whether memory that it was read into holds what was put.
    pub(super) fn is_intact(&self, memory: &Memory) -> bool {
        memory.is_intact(&self.extract.pieces, self.checksums.iter().copied())
    }
}

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Counts a read that its caller has verified. Drops the object if its bytes are not what was put.
    pub fn judge(&mut self, now: Time, verdict: Verdict) {
        let Verdict { reading, is_intact } = verdict;
        if is_intact {
            self.count_hit(&reading);
        } else {
            self.lose(now, &reading);
        }
        self.scratch.readings.keep(reading);
    }

    /// Counts a read that found its bytes as they were put.
    pub(super) fn count_hit(&mut self, reading: &Reading) -> Outcome {
        self.stats.hits += 1;
        self.tenants.counters(reading.tenant).hits += 1;
        self.stats.bytes_read += reading.extract.bytes;
        Outcome::Hit { bytes: reading.extract.bytes }
    }
}
