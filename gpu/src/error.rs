//! The crate's one error type.
//!
//! Each variant tells the caller what to do: take another path ([`Error::Unavailable`]), fix the request
//! ([`Error::Invalid`]), fix the machine ([`Error::Refused`]), examine the GPU ([`Error::Cuda`]) or the device
//! ([`Error::Driver`]), stop waiting ([`Error::TimedOut`]), or recreate the rings ([`Error::OutOfService`]).

use std::time::Duration;

/// Shorthand for the crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every error of the crate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine lacks it: no GPU, no driver, no compiler, no such mechanism.
    #[error("{what} is unavailable: {why}; {fix}")]
    Unavailable {
        /// What was requested.
        what: String,
        /// What is missing.
        why: String,
        /// What to do next.
        fix: String,
    },
    /// A request that is invalid on every machine, detected before any action.
    #[error("{what}: {why}")]
    Invalid {
        /// The request.
        what: String,
        /// What about it is invalid, and the limit it exceeds.
        why: String,
    },
    /// The machine has it but refuses it: permissions, limits, settings.
    #[error("{what}: {why}; {fix}")]
    Refused {
        /// What was attempted.
        what: String,
        /// The reason, from the system if it gave one.
        why: String,
        /// What to do next: the capability, the module option, the limit.
        fix: String,
    },
    /// A CUDA call failed.
    #[error("{what}: {call} failed: {name} ({code}); {fix}")]
    Cuda {
        /// What was attempted.
        what: String,
        /// The function of the CUDA driver API or of NVRTC.
        call: &'static str,
        /// Name of its result, such as `CUDA_ERROR_OUT_OF_MEMORY`; for NVRTC, with the compiler's output.
        name: String,
        /// Code of its result.
        code: u32,
        /// What to do next.
        fix: String,
    },
    /// The NVMe driver's error.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
    /// A deadline passed.
    #[error("waited {} ms for {waited_for}; {fix}", .after.as_millis())]
    TimedOut {
        /// What should have happened.
        waited_for: String,
        /// The time limit.
        after: Duration,
        /// What to do next.
        fix: String,
    },
    /// An earlier failure took the rings out of service; recover or recreate them.
    #[error(
        "{device}: the GPU's rings are out of service: {reason}; recover them, or close and open them again"
    )]
    OutOfService {
        /// The target.
        device: String,
        /// The failure that led to it.
        reason: String,
    },
}

impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Error {
        *error
    }
}

/// Formats a foreign error with its causes, which `Display` often omits.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

impl Error {
    /// Creates an [`Error::Unavailable`] from anything printable.
    pub fn unavailable(what: impl ToString, why: impl ToString, fix: impl ToString) -> Error {
        Error::Unavailable { what: what.to_string(), why: why.to_string(), fix: fix.to_string() }
    }

    /// Creates an [`Error::Invalid`] from anything printable.
    pub fn invalid(what: impl ToString, why: impl ToString) -> Error {
        Error::Invalid { what: what.to_string(), why: why.to_string() }
    }

    /// Creates an [`Error::Refused`] from anything printable.
    pub fn refused(what: impl ToString, why: impl ToString, fix: impl ToString) -> Error {
        Error::Refused { what: what.to_string(), why: why.to_string(), fix: fix.to_string() }
    }

    /// Creates an [`Error::TimedOut`] from anything printable.
    pub fn timed_out(waited_for: impl ToString, after: Duration, fix: impl ToString) -> Error {
        Error::TimedOut { waited_for: waited_for.to_string(), after, fix: fix.to_string() }
    }

    /// Returns whether the machine lacks what was requested, so that another path is needed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// Returns whether the caller's input is at fault, not a machine or device.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Invalid { .. } => true,
            Error::Driver(error) => error.is_usage(),
            _ => false,
        }
    }
}
