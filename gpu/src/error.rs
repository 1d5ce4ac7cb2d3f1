//! The crate's one error type.
//!
//! A variant says what the caller can do: take another way ([`Error::Unavailable`]), mend the request
//! ([`Error::Invalid`]), mend the machine ([`Error::Refused`]), look at the GPU ([`Error::Cuda`]) or the device
//! ([`Error::Driver`]), stop waiting ([`Error::TimedOut`]), or make the rings anew ([`Error::OutOfService`]).

use std::time::Duration;

/// Shorthand for the crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the crate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine has no such thing as was asked for: no GPU, no driver, no compiler, no such mechanism.
    #[error("{what} is unavailable: {why}; {fix}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// What is missing.
        why: String,
        /// What to do next.
        fix: String,
    },
    /// A request that could not be carried out on any machine, found before anything was asked.
    #[error("{what}: {why}")]
    Invalid {
        /// The request.
        what: String,
        /// What about it is invalid, and the limit it exceeds.
        why: String,
    },
    /// The machine has it and does not let us: permissions, limits, settings.
    #[error("{what}: {why}; {fix}")]
    Refused {
        /// What was attempted.
        what: String,
        /// The reason, from the system where it gave one.
        why: String,
        /// What to do next: the capability, the module option, the limit.
        fix: String,
    },
    /// A call of CUDA failed.
    #[error("{what}: {call} failed: {name} ({code}); {fix}")]
    Cuda {
        /// What was attempted.
        what: String,
        /// The function of the CUDA driver API or of NVRTC.
        call: &'static str,
        /// Its result's name, such as `CUDA_ERROR_OUT_OF_MEMORY`; of NVRTC also what the compiler says.
        name: String,
        /// Its result.
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
        /// How long it was given.
        after: Duration,
        /// What to do next.
        fix: String,
    },
    /// The rings were taken out of service after an earlier failure; recover them, or make them anew.
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

/// An error of another's with its causes, which many leave to whoever asks for them.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

impl Error {
    /// An [`Error::Unavailable`] from anything printable.
    pub fn unavailable(what: impl ToString, why: impl ToString, fix: impl ToString) -> Error {
        Error::Unavailable { what: what.to_string(), why: why.to_string(), fix: fix.to_string() }
    }

    /// An [`Error::Invalid`] from anything printable.
    pub fn invalid(what: impl ToString, why: impl ToString) -> Error {
        Error::Invalid { what: what.to_string(), why: why.to_string() }
    }

    /// An [`Error::Refused`] from anything printable.
    pub fn refused(what: impl ToString, why: impl ToString, fix: impl ToString) -> Error {
        Error::Refused { what: what.to_string(), why: why.to_string(), fix: fix.to_string() }
    }

    /// Whether the machine lacks what was asked for, so that another way has to be taken.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// Whether the caller's words are at fault, not a machine or device.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Invalid { .. } => true,
            Error::Driver(error) => error.is_usage(),
            _ => false,
        }
    }
}
