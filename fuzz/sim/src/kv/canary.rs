//! Rules of the store broken on purpose: each must be caught, otherwise the simulation checks nothing.

use std::str::FromStr;

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCanary {
    /// The devices acknowledge flushes without making anything durable.
    IgnoredFlush,
    /// Flushes cover the store's blocks and not the data that these describe.
    UnflushedData,
    /// Flushes cover data and not the blocks that describe them.
    UnflushedBlocks,
    /// A byte of a read flips after its checksum was verified.
    FlippedByte,
    /// A get is answered with the bytes of another object.
    SwappedObject,
    /// Puts count as acknowledged when they are submitted.
    EarlyAcknowledgement,
    /// Commits count as completed when they are submitted.
    EarlyCommit,
    /// An answer never comes.
    LostAnswer,
    /// The store evicts most objects now and then.
    GreedyEviction,
    /// The memory tier keeps objects that were replaced or removed.
    StaleMemory,
    /// The memory tier forgets objects after their change is acknowledged.
    LateInvalidation,
    /// Callers use bytes that they should have verified.
    SkippedVerification,
    /// Changes begin before an earlier one of their key that waits for memory.
    JumpedQueue,
    /// The store gets conditional puts as unconditional ones.
    IgnoredCondition,
    /// Openings keep what damage to the journal made outdated, though they should not.
    KeptOutdated,
    /// Readers of removals are not told of some.
    UntoldRemoval,
}

impl StoreCanary {
    /// All of them.
    pub const ALL: [StoreCanary; 16] = [
        StoreCanary::IgnoredFlush,
        StoreCanary::UnflushedData,
        StoreCanary::UnflushedBlocks,
        StoreCanary::FlippedByte,
        StoreCanary::SwappedObject,
        StoreCanary::EarlyAcknowledgement,
        StoreCanary::EarlyCommit,
        StoreCanary::LostAnswer,
        StoreCanary::GreedyEviction,
        StoreCanary::StaleMemory,
        StoreCanary::LateInvalidation,
        StoreCanary::SkippedVerification,
        StoreCanary::JumpedQueue,
        StoreCanary::IgnoredCondition,
        StoreCanary::KeptOutdated,
        StoreCanary::UntoldRemoval,
    ];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StoreCanary::IgnoredFlush => "ignored-flush",
            StoreCanary::UnflushedData => "unflushed-data",
            StoreCanary::UnflushedBlocks => "unflushed-blocks",
            StoreCanary::FlippedByte => "flipped-byte",
            StoreCanary::SwappedObject => "swapped-object",
            StoreCanary::EarlyAcknowledgement => "early-acknowledgement",
            StoreCanary::EarlyCommit => "early-commit",
            StoreCanary::LostAnswer => "lost-answer",
            StoreCanary::GreedyEviction => "greedy-eviction",
            StoreCanary::StaleMemory => "stale-memory",
            StoreCanary::LateInvalidation => "late-invalidation",
            StoreCanary::SkippedVerification => "skipped-verification",
            StoreCanary::JumpedQueue => "jumped-queue",
            StoreCanary::IgnoredCondition => "ignored-condition",
            StoreCanary::KeptOutdated => "kept-outdated",
            StoreCanary::UntoldRemoval => "untold-removal",
        }
    }

    /// Returns the law it breaks.
    pub fn law(self) -> u8 {
        match self {
            StoreCanary::LostAnswer => 4,
            StoreCanary::GreedyEviction => 5,
            _ => 1,
        }
    }
}

/// Returns whether bytes that are written are the store's own: a block, a superblock or a header.
pub(crate) fn is_metadata(bytes: &[u8]) -> bool {
    let begins =
        |at: usize, with: &[u8]| bytes.get(at..).is_some_and(|from| from.starts_with(with));
    begins(0, b"ADIT") || begins(8, b"AKV")
}

impl FromStr for StoreCanary {
    type Err = String;

    fn from_str(name: &str) -> Result<StoreCanary, String> {
        let found = StoreCanary::ALL.into_iter().find(|canary| canary.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = StoreCanary::ALL.iter().map(|canary| canary.name()).collect();
            format!(
                "there is no canary '{name}' of the store's; choose one of {}",
                names.join(", ")
            )
        })
    }
}
