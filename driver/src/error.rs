//! The driver's one error type.
//!
//! Each variant implies a remedy: correct the request ([`Error::Target`], [`Error::Invalid`]), fix the
//! machine's setup ([`Error::Refused`]), inspect the device ([`Error::Status`], [`Error::Timeout`],
//! [`Error::Device`]) or recover it ([`Error::Failed`]). A command that a queue cannot take is not an error:
//! it returns to the caller with its buffers, see [`crate::queue_pair::Rejected`].

use std::time::Duration;

use crate::soft;
use crate::spec::Status;

/// Shorthand for the driver's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any failure of the driver.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A target string that does not parse.
    #[error("'{target}' is not a target: {reason}")]
    Target {
        /// The string as given.
        target: String,
        /// The mistake, and what to write instead.
        reason: String,
    },
    /// A request that no device could carry out, refused before it is sent.
    #[error("{what}: {why}")]
    Invalid {
        /// The request.
        what: String,
        /// Why it is invalid, and which limit it exceeds.
        why: String,
    },
    /// The machine refuses: permissions, limits, drivers, other users.
    #[error("{device}: {what}: {why}; {fix}")]
    Refused {
        /// The target or file that refused.
        device: String,
        /// The attempted operation.
        what: String,
        /// The reason, from the system where it gives one.
        why: String,
        /// The next step for the user.
        fix: String,
    },
    /// The device is unsupported or violates the specification.
    #[error("{device}: {what}; {fix}")]
    Device {
        /// The target.
        device: String,
        /// The device's report or misbehaviour.
        what: String,
        /// The next step for the user.
        fix: String,
    },
    /// A command completed with a status other than success.
    #[error("{device}: {command} failed: {status}")]
    Status {
        /// The target.
        device: String,
        /// The command's name in the specification.
        command: &'static str,
        /// The status the device returned.
        status: Status,
    },
    /// A deadline passed.
    #[error("{device}: waited {} ms for {waited_for}; {registers}", .after.as_millis())]
    Timeout {
        /// The target.
        device: String,
        /// The awaited event.
        waited_for: String,
        /// The time waited.
        after: Duration,
        /// Register values at the end, for the log.
        registers: String,
    },
    /// The controller is out of service after an earlier failure; call [`crate::Controller::recover`] or
    /// reopen it.
    #[error(
        "{device}: the controller is out of service: {reason}; recover it, or close it and open it again"
    )]
    Failed {
        /// The target.
        device: String,
        /// The failure that caused it.
        reason: String,
    },
    /// The software controller cannot be made as asked, or refuses.
    #[error(transparent)]
    Soft(#[from] soft::Error),
}

impl Error {
    /// Builds an [`Error::Refused`] from printable values.
    pub fn refused(
        device: impl ToString,
        what: impl ToString,
        why: impl ToString,
        fix: impl ToString,
    ) -> Error {
        Error::Refused {
            device: device.to_string(),
            what: what.to_string(),
            why: why.to_string(),
            fix: fix.to_string(),
        }
    }

    /// Builds an [`Error::Device`] from printable values.
    pub fn device(device: impl ToString, what: impl ToString, fix: impl ToString) -> Error {
        Error::Device { device: device.to_string(), what: what.to_string(), fix: fix.to_string() }
    }

    /// Builds an [`Error::Invalid`] from printable values.
    pub fn invalid(what: impl ToString, why: impl ToString) -> Error {
        Error::Invalid { what: what.to_string(), why: why.to_string() }
    }

    /// Builds an [`Error::Target`] from printable values.
    pub fn target(target: impl ToString, reason: impl ToString) -> Error {
        Error::Target { target: target.to_string(), reason: reason.to_string() }
    }

    /// Returns whether the caller's input is at fault, not a machine or device.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Target { .. } | Error::Invalid { .. } => true,
            Error::Soft(error) => error.is_usage(),
            _ => false,
        }
    }
}
