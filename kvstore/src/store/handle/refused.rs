//! Requests that would have to wait, and so are given back.

use std::fmt;

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::Refusal;

use crate::error::{Error, Failure};
use crate::model::key::Key;
use crate::shard::{Action, Hashed, PutItem, Request};
use crate::store::memory::{Payload, PoolBuffer};
use crate::store::request::{Caller, Requests, Waiter};
use crate::store::thread::ShardWork;

/// A refused request with its data.
#[derive(Debug)]
pub struct Refused<'a> {
    /// The key.
    pub key: Key,
    /// The data.
    pub data: Payload<'a>,
    /// The reason.
    pub why: RefuseReason,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum RefuseReason {
    /// All memory for copies is in use, or the mailbox is full.
    #[error("the store is busy: wait for requests to end, or drop what they gave")]
    Busy,
    /// The request can never succeed, or the store is closed.
    #[error(transparent)]
    Never(Error),
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl std::error::Error for Refused<'_> {}

/// Restores a put that found the mailbox full to its original form.
pub(super) fn refused_put<'a>(work: ShardWork, why: Refusal) -> Refused<'a> {
    let request = match work {
        ShardWork::Requests(Requests::Ready(mut requests)) => requests.pop(),
        _ => None,
    };
    let Some(Hashed {
        request:
            Request {
                action: Action::Put(PutItem { key, bytes, data, .. }),
                reply: Waiter { caller: Caller::Put { origin, .. }, .. },
                ..
            },
        ..
    }) = request
    else {
        unreachable!("a put was sent")
    };
    let data = match (data, origin.pool()) {
        (AnyBuffer::One(run), Some(pool)) => PoolBuffer::of(run, bytes as usize, pool).into(),
        (memory, _) => Payload::lent(origin.restore(memory), bytes),
    };
    Refused { key, data, why: why.into() }
}

impl From<Refusal> for RefuseReason {
    fn from(why: Refusal) -> RefuseReason {
        match why {
            Refusal::Full => RefuseReason::Busy,
            Refusal::Closed => RefuseReason::Never(Error::Failed(Failure::Closed)),
        }
    }
}
