//! The store's outcomes as answers.

use adit_kvstore::shard::{Digest, Outcome};
use adit_kvstore::store::{ObjectInfo, Put, Read};

use crate::wire::{Code, Done, object_bytes};

/// Answers a put.
pub(super) fn stored(put: &Put) -> Done {
    Done::new(ended(put.outcome), 0, put.version.unwrap_or_default().0)
}

/// Returns how something was stored.
pub(super) fn ended(outcome: Outcome) -> Code {
    match outcome {
        Outcome::Declined(why) => Code::of_decline(why),
        _ => Code::Done,
    }
}

/// Answers a read. With a digest, the client is to verify it.
pub(super) fn read(read: &Read, digest: Option<&Digest>) -> Done {
    let Some(bytes) = read.bytes else { return Done::new(Code::Miss, 0, 0) };
    let version = read.version.unwrap_or_default().0;
    match digest {
        Some(digest) => Done::new(Code::Unverified, bytes, version).with_digest(digest),
        None => Done::new(Code::Done, bytes, version),
    }
}

/// Answers a question about an object.
pub(super) fn about(info: Option<ObjectInfo>) -> Done {
    match info {
        Some(info) => Done::new(Code::Done, 0, 0).with_told(&object_bytes(&info, false)),
        None => Done::new(Code::Miss, 0, 0),
    }
}
