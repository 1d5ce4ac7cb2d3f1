//! The crate's public error, whose variants say what the caller can do.

use std::time::Duration;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// The memory available to this process is unknown.
    #[error(transparent)]
    Memory(#[from] adit_kvstore::Error),
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
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    Timeout {
        /// The event waited for.
        waited_for: &'static str,
        /// The time that the call waited.
        after: Duration,
        /// The next step for the user.
        fix: &'static str,
    },
    /// A drive, file, GPU or copy thread of the run failed.
    #[error("{device}: {what}: {why}; {fix}")]
    Failed {
        /// The device, or the file.
        device: String,
        /// The operation that failed.
        what: String,
        /// The reason, from the system where it gives one.
        why: String,
        /// The next step for the user.
        fix: &'static str,
    },
}

impl Error {
    pub(crate) fn failed(
        device: impl ToString,
        what: impl ToString,
        why: impl ToString,
        fix: &'static str,
    ) -> Error {
        let (device, what, why) = (device.to_string(), what.to_string(), why.to_string());
        Error::Failed { device, what, why, fix }
    }

    pub(crate) fn invalid(what: &'static str, value: impl ToString, fix: impl ToString) -> Error {
        Error::Invalid { what, value: value.to_string(), fix: fix.to_string() }
    }
}
