//! Why a client does not get what it asked for.

use std::io;

/// An errno for the client and a reason for our log.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) errno: i32,
    pub(super) why: String,
}

impl Refusal {
    pub(super) fn new(errno: i32, why: impl ToString) -> Refusal {
        Refusal { errno, why: why.to_string() }
    }

    /// The request makes no sense.
    pub(super) fn invalid(why: impl ToString) -> Refusal {
        Refusal::new(libc::EINVAL, why)
    }

    /// The request makes sense, but this server does not do that.
    pub(super) fn unsupported(why: impl ToString) -> Refusal {
        Refusal::new(libc::EOPNOTSUPP, why)
    }

    /// What the system said.
    pub(super) fn system(what: &str, why: &io::Error) -> Refusal {
        Refusal::new(why.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {why}"))
    }
}

/// What a request leads to.
pub(super) type Outcome<T = ()> = Result<T, Refusal>;
