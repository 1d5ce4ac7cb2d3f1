//! The crate's error.

use std::fmt;

/// Shorthand for the crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a controller cannot be made, or does not do what its owner asks. The host gets a status
/// instead.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    message: String,
    is_usage: bool,
}

impl Error {
    /// Builds the error of a machine that refuses: no memory, or a file that cannot be used.
    pub(crate) fn refused(
        device: impl fmt::Display,
        what: impl fmt::Display,
        why: impl fmt::Display,
        fix: impl fmt::Display,
    ) -> Error {
        Error { message: format!("{device}: {what}: {why}; {fix}"), is_usage: false }
    }

    /// Builds the error of options that contradict each other, or of a request that the storage does not allow.
    pub(crate) fn invalid(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error { message: format!("{what}: {why}"), is_usage: true }
    }

    /// Builds the error of options that do not parse.
    pub(crate) fn target(target: impl fmt::Display, reason: impl fmt::Display) -> Error {
        Error { message: format!("'{target}' is not a target: {reason}"), is_usage: true }
    }

    /// Returns whether the caller's options or request are at fault, not the machine.
    pub fn is_usage(&self) -> bool {
        self.is_usage
    }
}
