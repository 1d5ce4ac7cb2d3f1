//! Why a command ends without success: one sentence and an exit code.
//!
//! A message is one line, whatever the text in it that a drive or another user chose; only lists of several have more.

use std::fmt;

use crate::human::printable;

/// Exit code: the command line is at fault.
pub const USAGE: u8 = 2;
/// Exit code: anything else is.
pub const FAILED: u8 = 1;
/// Exit code: this machine lacks what the command is about, as a GPU.
pub const UNAVAILABLE: u8 = 3;
/// Exit code: the user ended it, as shells report SIGINT.
pub const INTERRUPTED: u8 = 130;

/// The end of a command that did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

/// Shorthand for what commands return.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The command line asks for what cannot be.
    pub fn usage(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: USAGE }
    }

    /// The machine, the device or its data is not as it should be.
    pub fn failed(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: FAILED }
    }

    /// The machine lacks what the command is about.
    pub fn unavailable(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: UNAVAILABLE }
    }

    /// The user ended it.
    pub fn interrupted() -> Failure {
        Failure {
            message: "interrupted; the results are those so far".to_owned(),
            code: INTERRUPTED,
        }
    }

    /// The user ended it; `message` says what became of it.
    pub fn stopped(message: impl ToString) -> Failure {
        Failure { message: printable(&message.to_string()), code: INTERRUPTED }
    }

    /// The same, with more to say about it.
    pub fn and(self, more: impl fmt::Display) -> Failure {
        Failure { message: format!("{}; {more}", self.message), ..self }
    }

    /// Several as one; that the user ended it stands out. None where there are none.
    pub fn all(failures: Vec<Failure>) -> Option<Failure> {
        let code = failures.iter().map(|failure| failure.code).max()?;
        let messages: Vec<&str> = failures.iter().map(|failure| &*failure.message).collect();
        let message = match *messages {
            [message] => message.to_owned(),
            _ => listed(&format!("{} things failed:", messages.len()), &messages),
        };
        Some(Failure { message, code })
    }

    /// The machine is not as it should be, for all of `reasons`, one to a line.
    pub fn list(heading: &str, reasons: &[String]) -> Failure {
        let reasons: Vec<String> = reasons.iter().map(|reason| printable(reason)).collect();
        Failure { message: listed(heading, &reasons), code: FAILED }
    }

    /// The process's exit code.
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
