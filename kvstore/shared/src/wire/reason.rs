//! The store's errors on the wire.
//!
//! A [`Failure`] comes back as it was, with its numbers and names, so that a client matches the same variants as a
//! caller in the server's process. Other errors come back as their text ([`Error::Refused`]).

use std::time::Duration;

use adit_kvstore::shard::{Decline, Failure};
use adit_kvstore::{Error, RefusalKind, Version};

use super::Code;

/// The answer to a request or message that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The kind of failure.
    pub code: Code,
    /// By code.
    pub value: u64,
    /// By code.
    pub extra: u64,
    /// A name, or the reason in words.
    pub text: String,
}

impl Reason {
    /// Creates the reason of a server that refuses a request by itself.
    pub fn new(code: Code, why: impl ToString) -> Reason {
        Reason { code, value: 0, extra: 0, text: why.to_string() }
    }

    /// Creates the reason of a request that is invalid, or names an unknown region, layout or lease.
    pub fn malformed(why: impl ToString) -> Reason {
        Reason::new(Code::Malformed, why)
    }

    /// Creates the reason of a request beyond a limit of the server's.
    pub fn limit(why: impl ToString) -> Reason {
        Reason::new(Code::Limit, why)
    }

    /// Encodes an error of the server's store.
    pub fn of(error: &Error) -> Reason {
        match error {
            Error::Failed(failure) => Reason::of_failure(failure),
            Error::Timeout { after, .. } => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                Reason { value: ms, ..Reason::new(Code::Timeout, "") }
            }
            Error::Died { .. } => Reason::new(Code::Closed, error),
            Error::Invalid { .. } | Error::Key { .. } => Reason::malformed(error),
            _ => Reason::new(Code::Failed, error),
        }
    }

    fn of_failure(failure: &Failure) -> Reason {
        let (code, value, extra, text) = match failure {
            Failure::TooLarge { needs, has } => (Code::TooLarge, *needs, *has, ""),
            Failure::Full => (Code::Full, 0, 0, ""),
            Failure::Quota { tenant, quota_bytes } => (Code::Quota, *quota_bytes, 0, &**tenant),
            Failure::Tenant(why) => (Code::Tenant, 0, 0, &**why),
            Failure::Layout(why) => (Code::Layout, 0, 0, &**why),
            Failure::Memory { needs, has } => (Code::Memory, *needs, *has, ""),
            Failure::Foreign { device } => (Code::Foreign, u64::from(*device), 0, ""),
            Failure::Conflict { found: Some(version) } => (Code::Conflict, version.0, 1, ""),
            Failure::Conflict { found: None } => (Code::Conflict, 0, 0, ""),
            Failure::Part(why) => (Code::Part, 0, 0, &**why),
            Failure::Writer => (Code::Writer, 0, 0, ""),
            Failure::Unfilled { missing_bytes } => (Code::Unfilled, *missing_bytes, 0, ""),
            Failure::Declined(why) => (Code::of_decline(*why), 0, 0, ""),
            Failure::Undefined(what) => (Code::Undefined, 0, 0, *what),
            Failure::Deadline => (Code::Deadline, 0, 0, ""),
            Failure::Device { device, why } => (Code::Device, u64::from(*device), 0, &**why),
            Failure::NoSpace { device } => (Code::NoSpace, 0, 0, &**device),
            Failure::Closed => return Reason::new(Code::Closed, failure),
        };
        Reason { code, value, extra, text: text.to_owned() }
    }

    /// Decodes the error. The end of its store ends a server, too: then it is lost.
    pub fn error(self) -> Error {
        let Reason { code, value, extra, text } = self;
        let device = u8::try_from(value).unwrap_or(u8::MAX);
        let refused = |kind| Error::Refused { kind, why: text.clone() };
        Error::Failed(match code {
            Code::TooLarge => Failure::TooLarge { needs: value, has: extra },
            Code::Full => Failure::Full,
            Code::Quota => Failure::Quota { tenant: text.into(), quota_bytes: value },
            Code::Tenant => Failure::Tenant(text.into()),
            Code::Layout => Failure::Layout(text.into()),
            Code::Memory => Failure::Memory { needs: value, has: extra },
            Code::Foreign => Failure::Foreign { device },
            Code::Conflict => Failure::Conflict { found: (extra == 1).then_some(Version(value)) },
            Code::Part => Failure::Part(text.into()),
            Code::Writer => Failure::Writer,
            Code::Unfilled => Failure::Unfilled { missing_bytes: value },
            Code::DeclinedByAdmission => Failure::Declined(Decline::Admission),
            Code::DeclinedByBudget => Failure::Declined(Decline::Budget),
            Code::Undefined if text == "tenant" => Failure::Undefined("tenant"),
            Code::Undefined => Failure::Undefined("layout"),
            Code::Deadline => Failure::Deadline,
            Code::Device => Failure::Device { device, why: text },
            Code::NoSpace => Failure::NoSpace { device: text },
            Code::Closed => return Error::Lost { why: text },
            Code::Timeout => {
                return Error::Timeout {
                    waited_for: "the store's answer to its server",
                    after: Duration::from_millis(value),
                    fix: "see the server's log for what its devices say",
                };
            }
            Code::Malformed => return refused(RefusalKind::Malformed),
            Code::InUse => return refused(RefusalKind::InUse),
            Code::Limit => return refused(RefusalKind::Limit),
            Code::Done | Code::Miss | Code::Unverified | Code::Failed => {
                return refused(RefusalKind::Failed);
            }
        })
    }
}
