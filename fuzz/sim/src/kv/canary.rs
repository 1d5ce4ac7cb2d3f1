//! Rules of the store's broken on purpose: each must be caught, or the simulation watches nothing.

use std::str::FromStr;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCanary {
    /// The devices acknowledge flushes and keep nothing safe.
    IgnoredFlush,
    /// A byte of what was read turns after it was held against its checksum.
    FlippedByte,
    /// An object is answered with the bytes of another.
    SwappedObject,
    /// Puts count as acknowledged when they are handed in.
    EarlyAcknowledgement,
    /// Commits count as completed when they are handed in.
    EarlyCommit,
    /// An answer never comes.
    LostAnswer,
}

impl StoreCanary {
    /// All of them.
    pub const ALL: [StoreCanary; 6] = [
        StoreCanary::IgnoredFlush,
        StoreCanary::FlippedByte,
        StoreCanary::SwappedObject,
        StoreCanary::EarlyAcknowledgement,
        StoreCanary::EarlyCommit,
        StoreCanary::LostAnswer,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StoreCanary::IgnoredFlush => "ignored-flush",
            StoreCanary::FlippedByte => "flipped-byte",
            StoreCanary::SwappedObject => "swapped-object",
            StoreCanary::EarlyAcknowledgement => "early-acknowledgement",
            StoreCanary::EarlyCommit => "early-commit",
            StoreCanary::LostAnswer => "lost-answer",
        }
    }

    /// The law it breaks.
    pub fn law(self) -> u8 {
        if self == StoreCanary::LostAnswer { 4 } else { 1 }
    }
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
