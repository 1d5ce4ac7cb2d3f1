//! The store's errors on the wire.
//!
//! A [`Failure`] comes back as it was, with its numbers and names, so that a client matches the variants that a caller
//! in the server's process would. Other errors come back as their text ([`Error::Refused`]).

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
        Reason::with(code, 0, 0, why)
    }

    fn with(code: Code, value: u64, extra: u64, text: impl ToString) -> Reason {
        Reason { code, value, extra, text: text.to_string() }
    }

    /// Encodes an error of the server's store.
    pub fn of(error: &Error) -> Reason {
        match error {
            Error::Failed(failure) => Reason::of_failure(failure),
            Error::Timeout { after, .. } => {
                let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                Reason::with(Code::Timeout, ms, 0, "")
            }
            Error::Died { .. } => Reason::new(Code::Closed, error),
            Error::Invalid { .. } | Error::Key { .. } => Reason::new(Code::Malformed, error),
            _ => Reason::new(Code::Failed, error),
        }
    }

    fn of_failure(failure: &Failure) -> Reason {
        match failure {
            Failure::TooLarge { needs, has } => Reason::with(Code::TooLarge, *needs, *has, ""),
            Failure::Full => Reason::with(Code::Full, 0, 0, ""),
            Failure::Quota { tenant, quota_bytes } => {
                Reason::with(Code::Quota, *quota_bytes, 0, tenant)
            }
            Failure::Tenant(why) => Reason::new(Code::Tenant, why),
            Failure::Layout(why) => Reason::new(Code::Layout, why),
            Failure::Memory { needs, has } => Reason::with(Code::Memory, *needs, *has, ""),
            Failure::Foreign { device } => Reason::with(Code::Foreign, u64::from(*device), 0, ""),
            Failure::Conflict { found } => Reason::with(
                Code::Conflict,
                found.unwrap_or_default().0,
                u64::from(found.is_some()),
                "",
            ),
            Failure::Part(why) => Reason::new(Code::Part, why),
            Failure::Writer => Reason::with(Code::Writer, 0, 0, ""),
            Failure::Unfilled { missing_bytes } => {
                Reason::with(Code::Unfilled, *missing_bytes, 0, "")
            }
            Failure::Declined(why) => Reason::with(Code::of_decline(*why), 0, 0, ""),
            Failure::Undefined(what) => Reason::new(Code::Undefined, what),
            Failure::Deadline => Reason::with(Code::Deadline, 0, 0, ""),
            Failure::Device { device, why } => {
                Reason::with(Code::Device, u64::from(*device), 0, why)
            }
            Failure::NoSpace { device } => Reason::new(Code::NoSpace, device),
            Failure::Closed => Reason::new(Code::Closed, failure),
        }
    }

    /// Decodes the error. A server whose store has ended ends, too: then it is lost.
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
