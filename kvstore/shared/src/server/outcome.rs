//! The store's outcomes as answers.

use adit_kvstore::shard::{Digest, Outcome};
use adit_kvstore::store::{ObjectInfo, Put, Read};

use crate::wire::{Code, Done, object_bytes};

/// Answers a put.
pub(super) fn stored(tag: u64, put: &Put) -> Done {
    Done::new(tag, ended(put.outcome), 0, put.version.unwrap_or_default().0)
}

/// Returns how something was stored.
pub(super) fn ended(outcome: Outcome) -> Code {
    match outcome {
        Outcome::Declined(why) => Code::of_decline(why),
        _ => Code::Done,
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
    match info {
        Some(info) => Done::new(tag, Code::Done, 0, 0).with_told(&object_bytes(&info, false)),
        None => Done::new(tag, Code::Miss, 0, 0),
    }
}

/// Refuses a request that the store does not get.
pub(super) fn refused(tag: u64, (code, why): (Code, &str)) -> Done {
    Done::new(tag, code, 0, 0).with_text(why)
}
