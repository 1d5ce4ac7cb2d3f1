//! The store's outcomes and failures as answers.

use adit_kvstore::Error;
use adit_kvstore::shard::{Failure, Outcome};

use crate::wire::{Code, Done};

/// Answers a put.
pub(super) fn stored(tag: u64, outcome: Outcome) -> Done {
    let code = match outcome {
        Outcome::Declined(adit_kvstore::shard::Decline::Admission) => Code::DeclinedByAdmission,
        Outcome::Declined(adit_kvstore::shard::Decline::Budget) => Code::DeclinedByBudget,
        _ => Code::Done,
    };
    Done::new(tag, code, 0, 0)
}

/// Answers a question for bytes: of a part that was read, or of an object.
pub(super) fn found(tag: u64, bytes: Option<u64>) -> Done {
    match bytes {
        Some(bytes) => Done::new(tag, Code::Done, bytes, 0),
        None => Done::new(tag, Code::Miss, 0, 0),
    }
}

/// Answers a request that failed.
pub(super) fn failed(tag: u64, error: &Error) -> Done {
    let (code, value) = match error {
        Error::Failed(failure) => code(failure),
        Error::Timeout { .. } => (Code::Deadline, 0),
        Error::Invalid { .. } | Error::Key { .. } => (Code::Malformed, 0),
        _ => (Code::Failed, 0),
    };
    Done::new(tag, code, value, 0).with_text(&error.to_string())
}

/// Refuses a request that the store does not get.
pub(super) fn refused(tag: u64, (code, why): (Code, &str)) -> Done {
    Done::new(tag, code, 0, 0).with_text(why)
}

fn code(failure: &Failure) -> (Code, u64) {
    match failure {
        Failure::TooLarge { needs, .. } => (Code::TooLarge, *needs),
        Failure::Full => (Code::Full, 0),
        Failure::Quota { .. } => (Code::Quota, 0),
        Failure::Memory { needs, .. } => (Code::Memory, *needs),
        Failure::Part(_) => (Code::Part, 0),
        Failure::Deadline => (Code::Deadline, 0),
        Failure::Device { .. } => (Code::Device, 0),
        Failure::NoSpace { .. } => (Code::NoSpace, 0),
        Failure::Closed => (Code::Closed, 0),
        _ => (Code::Failed, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_text_and_what_it_needs() {
        let failure = Failure::Memory { needs: 8192, has: 4096 };
        let done = failed(7, &Error::Failed(failure.clone()));
        assert_eq!((done.tag, Code::of(done.code), done.value), (7, Code::Memory, 8192));
        assert_eq!(done.text(), failure.to_string());
        let closed = failed(7, &Error::Failed(Failure::Closed));
        assert_eq!(Code::of(closed.code), Code::Closed);
    }
}
