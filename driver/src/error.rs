//! The driver's one error type.
//!
//! A variant says what the caller can do about it: mend the request
//! ([`Error::Target`], [`Error::Invalid`]), mend the machine
//! ([`Error::Refused`]), look at the device ([`Error::Status`],
//! [`Error::Timeout`], [`Error::Device`]) or recover it ([`Error::Failed`]).
//! What a queue cannot take is not an error but comes back to the caller with
//! its buffers: see [`crate::queue_pair::Rejected`].

use std::time::Duration;

use crate::soft;
use crate::spec::Status;

/// Shorthand for the driver's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the driver.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A target string that names nothing; the caller's typo.
    #[error("'{target}' is not a target: {reason}")]
    Target {
        /// The string as it was given.
        target: String,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// A request that no device could carry out, found before one was asked.
    #[error("{what}: {why}")]
    Invalid {
        /// The request.
        what: String,
        /// What about it is invalid, and the limit it exceeds.
        why: String,
    },
    /// The machine does not let us: permissions, limits, drivers, other users.
    #[error("{device}: {what}: {why}; {fix}")]
    Refused {
        /// The target or the file that refused.
        device: String,
        /// What was attempted.
        what: String,
        /// The reason, from the system where it gave one.
        why: String,
        /// What to do next.
        fix: String,
    },
    /// The device is not one this driver can work with, or breaks its specification.
    #[error("{device}: {what}; {fix}")]
    Device {
        /// The target.
        device: String,
        /// What the device reports or did.
        what: String,
        /// What to do next.
        fix: String,
    },
    /// A command completed with a status other than success.
    #[error("{device}: {command} failed: {status}")]
    Status {
        /// The target.
        device: String,
        /// The command by its name in the specification.
        command: &'static str,
        /// The status as the device gave it.
        status: Status,
    },
    /// A deadline passed.
    #[error("{device}: waited {} ms for {waited_for}; {registers}", .after.as_millis())]
    Timeout {
        /// The target.
        device: String,
        /// What should have happened.
        waited_for: String,
        /// How long it was given.
        after: Duration,
        /// Register values at the end, for the log.
        registers: String,
    },
    /// The controller was taken out of service after an earlier failure; [`crate::Controller::recover`]
    /// it, or open it anew.
    #[error(
        "{device}: the controller is out of service: {reason}; recover it, or close it and open it again"
    )]
    Failed {
        /// The target.
        device: String,
        /// The failure that led to it.
        reason: String,
    },
}

impl Error {
    /// An [`Error::Refused`] from anything printable.
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

    /// An [`Error::Device`] from anything printable.
    pub fn device(device: impl ToString, what: impl ToString, fix: impl ToString) -> Error {
        Error::Device { device: device.to_string(), what: what.to_string(), fix: fix.to_string() }
    }

    /// An [`Error::Invalid`] from anything printable.
    pub fn invalid(what: impl ToString, why: impl ToString) -> Error {
        Error::Invalid { what: what.to_string(), why: why.to_string() }
    }

    /// An [`Error::Target`] from anything printable.
    pub fn target(target: impl ToString, reason: impl ToString) -> Error {
        Error::Target { target: target.to_string(), reason: reason.to_string() }
    }

    /// Whether the caller's words are at fault, not a machine or device.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Target { .. } | Error::Invalid { .. })
    }
}

impl From<soft::Error> for Error {
    fn from(error: soft::Error) -> Error {
        match error {
            soft::Error::Target { target, reason } => Error::Target { target, reason },
            soft::Error::Invalid { what, why } => Error::Invalid { what, why },
            soft::Error::Refused { device, what, why, fix } => {
                Error::Refused { device, what, why, fix }
            }
        }
    }
}
