//! What can go wrong, each with what to do about it.

use std::time::Duration;

use crate::model::key::KEY_BYTES_MAX;
use crate::shard::Failure;

/// The result of a call of the store's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's error.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// A key is empty or too long.
    #[error("a key has {bytes} bytes: use 1 to {KEY_BYTES_MAX}, or a hash of it")]
    Key {
        /// How many it has.
        bytes: usize,
    },
    /// A setting that cannot be.
    #[error("{what} is '{value}': {fix}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// What was given.
        value: String,
        /// What to give.
        fix: String,
    },
    /// What was asked for did not come about.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    Timeout {
        /// What should have happened.
        waited_for: &'static str,
        /// How long it was given.
        after: Duration,
        /// What to do.
        fix: &'static str,
    },
    /// What is on a device is no store of ours, or not one this version can open.
    #[error("{device}: {why}; {fix}")]
    Media {
        /// The device.
        device: String,
        /// What was found there.
        why: String,
        /// What to do.
        fix: String,
    },
}

impl Error {
    /// A setting that cannot be.
    pub(crate) fn invalid(what: &'static str, value: impl ToString, fix: impl ToString) -> Error {
        Error::Invalid { what, value: value.to_string(), fix: fix.to_string() }
    }
}
