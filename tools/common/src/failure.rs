//! Why a command fails: one sentence and an exit code.
//!
//! A message is a single line, even if it contains text from a drive or another user; only lists have several
//! lines.

use std::fmt;

use crate::human::printable;

/// Exit code: an error in the command line.
pub const USAGE: u8 = 2;
/// Exit code: any other error.
pub const FAILED: u8 = 1;
/// Exit code: this machine lacks what the command needs, such as a GPU.
pub const UNAVAILABLE: u8 = 3;
/// Exit code: interrupted by the user, as shells report SIGINT.
pub const INTERRUPTED: u8 = 130;

/// The failure of a command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

/// The result of commands.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates a failure for an error in the command line.
    pub fn usage(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: USAGE }
    }

    /// Creates a failure of the machine, the device or its data.
    pub fn failed(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: FAILED }
    }

    /// Creates a failure for a machine that lacks what the command needs.
    pub fn unavailable(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: UNAVAILABLE }
    }

    /// Creates the failure of an interrupted measurement.
    pub fn interrupted() -> Failure {
        Failure {
            message: "interrupted; the results are those so far".to_owned(),
            code: INTERRUPTED,
        }
    }

    /// Creates a failure for an interrupt by the user; `message` describes the result.
    pub fn stopped(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: INTERRUPTED }
    }

    /// Appends more text.
    pub fn and(self, more: impl fmt::Display) -> Failure {
        Failure { message: format!("{}; {more}", self.message), ..self }
    }

    /// Combines several failures; an interrupt determines the exit code. `None` if there are none.
    pub fn all(failures: Vec<Failure>) -> Option<Failure> {
        let code = failures.iter().map(|failure| failure.code).max()?;
        let messages: Vec<&str> = failures.iter().map(|failure| &*failure.message).collect();
        let message = match *messages {
            [message] => message.to_owned(),
            _ => listed(&format!("{} things failed:", messages.len()), &messages),
        };
        Some(Failure { message, code })
    }

    /// Creates a failure with `reasons`, one per line.
    pub fn list(heading: &str, reasons: &[String]) -> Failure {
        let reasons: Vec<String> = reasons.iter().map(|reason| printable(reason)).collect();
        Failure { message: listed(heading, &reasons), code: FAILED }
    }

    /// Creates a failure for an error in the command line, with `reasons`, one per line, and what to do about them.
    pub fn refusal(heading: &str, reasons: &[String], remedy: &str) -> Failure {
        let Failure { message, .. } = Failure::list(&printable(heading), reasons);
        Failure { message: format!("{message}\n{}", printable(remedy)), code: USAGE }
    }

    /// Returns the process's exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<adit_driver::Error> for Failure {
    fn from(error: adit_driver::Error) -> Failure {
        let code = if error.is_usage() { USAGE } else { FAILED };
        Failure { message: printable(&error.to_string()), code }
    }
}

#[cfg(feature = "kvstore")]
impl From<adit_kvstore::Error> for Failure {
    fn from(error: adit_kvstore::Error) -> Failure {
        match error {
            adit_kvstore::Error::Driver(error) => error.into(),
            adit_kvstore::Error::Key { .. } | adit_kvstore::Error::Invalid { .. } => {
                Failure::usage(error)
            }
            _ => Failure::failed(error),
        }
    }
}

/// A request's memory goes back to the store.
#[cfg(feature = "kvstore")]
impl<M> From<adit_kvstore::store::Unfinished<M>> for Failure {
    fn from(unfinished: adit_kvstore::store::Unfinished<M>) -> Failure {
        adit_kvstore::Error::from(unfinished).into()
    }
}

#[cfg(feature = "gpu")]
impl From<adit_gpu::Error> for Failure {
    fn from(error: adit_gpu::Error) -> Failure {
        match error {
            adit_gpu::Error::Driver(error) => error.into(),
            error if error.is_unavailable() => Failure::unavailable(error),
            error if error.is_usage() => Failure::usage(error),
            error => Failure::failed(error),
        }
    }
}

fn listed<S: AsRef<str>>(heading: &str, items: &[S]) -> String {
    items.iter().fold(heading.to_owned(), |text, item| text + "\n  " + item.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_chose_makes_no_line_of_its_own() {
        let model = "Disk\nadit: all is well\u{1b}[1A";
        let one = || Failure::failed(format!("{model} is broken"));
        assert_eq!(one().to_string(), "Disk?adit: all is well?[1A is broken");
        let all = Failure::all(vec![one(), one()]).expect("two").to_string();
        assert_eq!(all.lines().count(), 3, "{all}");
        let list = Failure::list("not changed:", &[model.to_owned()]).to_string();
        assert_eq!(list, "not changed:\n  Disk?adit: all is well?[1A");
    }
}
