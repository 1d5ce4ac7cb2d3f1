//! The error of a request, with the memory that its caller lent.

use adit_driver::memory::AnyBuffer;

use crate::error::{Error, Failure};

/// The error of a request, with any memory that the caller lent; `M` is the store's type of lent memory.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished<M = AnyBuffer> {
    /// The reason.
    pub error: Box<Error>,
    /// The memory lent with the request; none if a device may still write it.
    pub memory: M,
}

impl<M: Default> Unfinished<M> {
    /// Creates an error without memory.
    pub fn new(error: impl Into<Error>) -> Unfinished<M> {
        Unfinished::with(error, M::default())
    }
}

impl<M> Unfinished<M> {
    /// Creates an error with the caller's memory.
    pub fn with(error: impl Into<Error>, memory: M) -> Unfinished<M> {
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

impl<M> From<Unfinished<M>> for Error {
    fn from(unfinished: Unfinished<M>) -> Error {
        *unfinished.error
    }
}
