//! The store's outcomes and failures as answers.

use adit_kvstore::shard::{Decline, Digest, Failure, Outcome};
use adit_kvstore::store::{ObjectInfo, Put, Read};
use adit_kvstore::{Error, units};

use crate::wire::{Code, Done, NEVER_S};

/// Answers a put.
pub(super) fn stored(tag: u64, put: &Put) -> Done {
    Done::new(tag, ended(put.outcome), 0, put.version.unwrap_or_default().0)
}

/// Returns how something was stored.
pub(super) fn ended(outcome: Outcome) -> Code {
    match outcome {
        Outcome::Declined(why) => declined(why),
        _ => Code::Done,
    }
}

fn declined(why: Decline) -> Code {
    match why {
        Decline::Admission => Code::DeclinedByAdmission,
        Decline::Budget => Code::DeclinedByBudget,
    }
}

/// Answers a read. With a digest, the client is to verify it.
pub(super) fn read(tag: u64, read: &Read, digest: Option<&Digest>) -> Done {
    let Some(bytes) = read.bytes else { return Done::new(tag, Code::Miss, 0, 0) };
    let version = read.version.unwrap_or_default().0;
    match digest {
        Some(digest) => Done::new(tag, Code::Unverified, bytes, version).with_digest(digest),
        None => Done::new(tag, Code::Done, bytes, version),
    }
}

/// Answers a question about an object.
pub(super) fn about(tag: u64, info: Option<ObjectInfo>) -> Done {
    let Some(info) = info else { return Done::new(tag, Code::Miss, 0, 0) };
    // Longer lifetimes than any u32 are told as the longest.
    let left_s = |ttl_s: u64| u32::try_from(ttl_s).unwrap_or(NEVER_S).min(NEVER_S - 1);
    let ttl_s = info.ttl_s.map_or(NEVER_S, left_s);
    let done = Done::new(tag, Code::Done, info.bytes, info.version.0);
    Done { ttl_s, ..done.with_text(&info.tenant) }
}

/// Answers a question about how an object is read.
pub(super) fn outline(tag: u64, info: Option<ObjectInfo>) -> Done {
    let Some(info) = info else { return Done::new(tag, Code::Miss, 0, 0) };
    // Pieces have at most a 256th of the longest object, so their units are far below 2^32.
    let piece_units = u32::try_from(units(info.piece_bytes())).unwrap_or(u32::MAX);
    Done { ttl_s: piece_units, ..Done::new(tag, Code::Done, info.read_bytes(), info.version.0) }
}

/// Answers a request that failed.
pub(super) fn failed(tag: u64, error: &Error) -> Done {
    if let Error::Failed(Failure::Conflict { found }) = error {
        let (value, extra) = (found.unwrap_or_default().0, u64::from(found.is_some()));
        return Done::new(tag, Code::Conflict, value, extra).with_text(&error.to_string());
    }
    let (code, value) = match error {
        Error::Failed(failure) => code(failure),
        Error::Timeout { .. } => (Code::Deadline, 0),
        Error::Invalid { .. } | Error::Key { .. } => (Code::Malformed, 0),
        _ => (Code::Failed, 0),
    };
    Done::new(tag, code, value, 0).with_text(&error.to_string())
}

/// Returns how a message over the socket is refused that the store failed. A client is to learn that a store has ended.
pub(super) fn refusal(error: &Error) -> (Code, String) {
    let code = match error {
        Error::Failed(Failure::Closed) | Error::Died { .. } => Code::Closed,
        _ => Code::Failed,
    };
    (code, error.to_string())
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
        Failure::Declined(why) => (declined(*why), 0),
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
        assert_eq!(refusal(&Error::Failed(Failure::Closed)).0, Code::Closed);
        assert_eq!(refusal(&Error::Failed(failure.clone())), (Code::Failed, failure.to_string()));
    }
}
