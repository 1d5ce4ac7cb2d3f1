//! What cannot be had of a software controller.

/// Shorthand for the crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no such controller, or why it does not do what its owner asks. The host gets a status instead.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Options that are misspelt; the caller's typo.
    #[error("'{target}' is not a target: {reason}")]
    Target {
        /// The options as they were given, after `soft:`.
        target: String,
        /// What is wrong with them and what would be right.
        reason: String,
    },
    /// Options that do not fit each other, or a request that the controller's storage does not allow.
    #[error("{what}: {why}")]
    Invalid {
        /// The option or the request.
        what: String,
        /// What about it is invalid, and the limit it exceeds.
        why: String,
    },
    /// The machine does not let us: no memory, or a file that cannot be used.
    #[error("{device}: {what}: {why}; {fix}")]
    Refused {
        /// The storage, or what else refused.
        device: String,
        /// What was attempted.
        what: String,
        /// The reason, from the system where it gave one.
        why: String,
        /// What to do next.
        fix: String,
    },
}

impl Error {
    /// An [`Error::Refused`] from anything printable.
    pub(crate) fn refused(
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

    /// An [`Error::Invalid`] from anything printable.
    pub(crate) fn invalid(what: impl ToString, why: impl ToString) -> Error {
        Error::Invalid { what: what.to_string(), why: why.to_string() }
    }

    /// An [`Error::Target`] from anything printable.
    pub(crate) fn target(target: impl ToString, reason: impl ToString) -> Error {
        Error::Target { target: target.to_string(), reason: reason.to_string() }
    }
}
