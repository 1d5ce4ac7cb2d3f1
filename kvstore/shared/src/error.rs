//! Why a call of a client or of the server failed.

use adit_kvstore::Version;

use crate::Span;
use crate::wire::Code;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's store failed the request, or the server refused it.
    #[error("{text}")]
    Refused {
        /// The kind of failure.
        code: Code,
        /// The reason, in the server's words.
        text: String,
        /// Bytes that are needed, for [`Code::Memory`].
        value: u64,
        /// The version of the object that is there, for [`Code::Conflict`]; `None` if there is none.
        found: Option<Version>,
    },
    /// The server is gone or does not answer, and the connection with it.
    #[error("the server of the store is lost ({why}): connect again once 'adit kv serve' runs")]
    Lost {
        /// How that showed.
        why: String,
    },
    /// The system refused.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// An invalid argument.
    #[error("{what}: {fix}")]
    Invalid {
        /// What is invalid.
        what: String,
        /// How to correct it.
        fix: &'static str,
    },
    /// No answer came in time. The request may still be carried out.
    #[error("waited {ms} ms for the server's answer; see its log for what its devices say")]
    Timeout {
        /// How long the call waited.
        ms: u128,
    },
    /// The store's own error.
    #[error(transparent)]
    Store(#[from] adit_kvstore::Error),
    /// The driver's own error.
    #[error(transparent)]
    Driver(#[from] adit_driver::Error),
}

impl Error {
    pub(crate) fn system(what: impl ToString, why: impl Into<std::io::Error>) -> Error {
        Error::System { what: what.to_string(), why: why.into() }
    }

    /// Returns the kind of failure, if the server named one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Why a request failed, with the memory that the caller lent.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    /// The reason.
    pub error: Box<Error>,
    /// The memory; `None` if none was lent, or if a device may still write it.
    pub memory: Option<Span>,
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        *unfinished.error
    }
}

impl Unfinished {
    pub(crate) fn new(error: Error) -> Unfinished {
        Unfinished { error: Box::new(error), memory: None }
    }
}
