//! The error of a request, with the memory that its caller lent.

use adit_driver::memory::AnyBuffer;

use crate::error::{Error, Failure};

/// Why a request failed, with any memory that the caller lent.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    /// The reason.
    pub error: Box<Error>,
    /// The memory lent with the request.
    pub memory: AnyBuffer,
}

impl Unfinished {
    /// Creates an error without memory.
    pub(crate) fn new(error: impl Into<Error>) -> Unfinished {
        Unfinished::with(error, AnyBuffer::None)
    }

    /// Creates an error with the caller's memory.
    pub(crate) fn with(error: impl Into<Error>, memory: AnyBuffer) -> Unfinished {
        Unfinished { error: Box::new(error.into()), memory }
    }

    /// Returns the store's failure, if that is the reason.
    pub fn failure(&self) -> Option<&Failure> {
        match &*self.error {
            Error::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        *unfinished.error
    }
}
