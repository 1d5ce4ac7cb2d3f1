//! The only error type of these commands: a sentence and an exit code.

use std::fmt;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// The result of fallible functions.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a failure of a correct request: exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Creates a failure for an impossible request: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// Creates the failure for Ctrl-C: exit code 130, as shells report it.
    pub(crate) fn interrupted() -> Self {
        Self { code: 130, message: "interrupted".into() }
    }

    /// Returns the process's exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// Adds the subject of an I/O error.
pub(crate) trait Context<T> {
    /// Converts the error to a [`Failure`] that reads `what: why`.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|why| Failure::new(format!("{what}: {why}")))
    }
}
