//! The one error type of these commands: a sentence for a person and the exit code that goes with it.

use std::fmt;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// What every fallible function here returns.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Something that was asked for correctly did not work: exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The command line asks for something impossible: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// The person pressed Ctrl-C: exit code 130, as shells report it.
    pub(crate) fn interrupted() -> Self {
        Self { code: 130, message: "interrupted".into() }
    }

    /// The exit code for the process.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// Names the thing that an I/O error happened to.
pub(crate) trait Context<T> {
    /// Turns the error into a [`Failure`] that reads `what: why`.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|why| Failure::new(format!("{what}: {why}")))
    }
}
