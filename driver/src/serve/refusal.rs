//! Refusals of clients' requests.

use std::io;

/// An errno for the client and a reason for the log.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) errno: i32,
    pub(super) why: String,
}

impl Refusal {
    pub(super) fn new(errno: i32, why: impl ToString) -> Refusal {
        Refusal { errno, why: why.to_string() }
    }

    pub(super) fn invalid(why: impl ToString) -> Refusal {
        Refusal::new(libc::EINVAL, why)
    }

    /// Refuses a valid but unsupported request.
    pub(super) fn unsupported(why: impl ToString) -> Refusal {
        Refusal::new(libc::EOPNOTSUPP, why)
    }

    /// Refuses a request on which the system failed.
    pub(super) fn system(what: &str, why: &io::Error) -> Refusal {
        Refusal::new(why.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {why}"))
    }
}

pub(super) type ServeResult<T = ()> = Result<T, Refusal>;
