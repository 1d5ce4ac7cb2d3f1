//! The crate's public error, whose variants say what the caller can do.

use std::time::Duration;

use crate::model::key::KEY_BYTES_MAX;
use crate::shard::Failure;

/// The result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// A key is empty or too long.
    #[error("a key has {bytes} bytes: use 1 to {KEY_BYTES_MAX}, or a hash of it")]
    Key {
        /// The key's length in bytes.
        bytes: usize,
    },
    /// An invalid setting or argument.
    #[error("{what} is '{value}': {fix}")]
    Invalid {
        /// The name of the setting.
        what: &'static str,
        /// The value given.
        value: String,
        /// How to correct it.
        fix: String,
    },
    /// The store could not complete the request.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    Timeout {
        /// The event waited for.
        waited_for: &'static str,
        /// How long the call waited.
        after: Duration,
        /// What to do.
        fix: &'static str,
    },
    /// A device holds no store, or a store that this version cannot open.
    #[error("{device}: {why}; {fix}")]
    Media {
        /// The device.
        device: String,
        /// What is wrong with its contents.
        why: String,
        /// What to do.
        fix: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: impl ToString, fix: impl ToString) -> Error {
        Error::Invalid { what, value: value.to_string(), fix: fix.to_string() }
    }
}
