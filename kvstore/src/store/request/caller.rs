//! The callers that wait for answers of a shard.

use std::sync::Arc;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::bounced::BouncedRead;
use super::fetch::Fetch;
use crate::error::Result;
use crate::model::object::Version;
use crate::shard::{Failure, Found, GetItem, Outcome, Resident};
use crate::store::answer::{Answer, Put, Read, ReadCheck, Reply};
use crate::store::devices::DeviceShard;
use crate::store::memory::{Counts, Origin, Pools, Unfinished};

/// A shard on one of the store's threads.
pub(crate) type ThreadShard = DeviceShard<Waiter>;

/// The caller that waits for an answer, and since when.
pub(crate) struct Waiter {
    pub(crate) since: Time,
    pub(crate) caller: Caller,
}

/// A caller, with the parts of its answer.
pub(crate) enum Caller {
    Read(ReadCaller),
    Put {
        reply: Reply<Put>,
        origin: Origin,
    },
    Fill {
        reply: Reply<AnyBuffer>,
        origin: Origin,
    },
    Writer(Box<dyn WriterCaller>),
    Delete(Reply<bool>),
    /// A change of an expiry.
    Touch(Reply<bool>),
    /// One shard's part of a commit or a sweep. Receives the number of objects that were removed.
    EachShard(Box<dyn FnOnce(Answer<u64>) + Send>),
}

/// The caller of a read.
pub(crate) enum ReadCaller {
    /// Reads into the store's own memory.
    Fetch(Fetch),
    /// Reads into memory of the caller's that its device can use.
    InPlace(Reply<Read>, Arc<Counts>),
    /// Reads into memory of the caller's of which its device may not be able to use all.
    Bounced(Box<BouncedRead>),
}

/// A caller that waits for a writer, or for its end.
pub(crate) trait WriterCaller: Send {
    /// Returns whether the answer is still wanted.
    fn is_wanted(&self) -> bool;

    /// Delivers the answer.
    fn answer(self: Box<Self>, result: Result<Outcome, Failure>);
}

impl Caller {
    /// Returns whether the answer is still wanted.
    pub(crate) fn is_wanted(&self) -> bool {
        match self {
            Caller::Read(ReadCaller::Fetch(fetch)) => fetch.reply.is_wanted(),
            Caller::Read(ReadCaller::InPlace(reply, _)) => reply.is_wanted(),
            Caller::Read(ReadCaller::Bounced(bounced)) => bounced.reply.is_wanted(),
            Caller::Put { reply, .. } => reply.is_wanted(),
            Caller::Fill { reply, .. } => reply.is_wanted(),
            Caller::Writer(caller) => caller.is_wanted(),
            Caller::Delete(reply) | Caller::Touch(reply) => reply.is_wanted(),
            Caller::EachShard(_) => true,
        }
    }

    /// Delivers the answer.
    pub(crate) fn answer(
        self,
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) {
        match self {
            Caller::Read(read) => read.answer(result, memory, version),
            Caller::Put { reply, mut origin } => {
                if matches!(result, Ok(Outcome::Stored)) {
                    origin.done();
                }
                let memory = origin.restore(memory);
                reply.send(match result {
                    Ok(outcome) => Ok(Put { outcome, memory, version }),
                    Err(failure) => Err(Unfinished::with(failure, memory)),
                });
            }
            Caller::Fill { reply, mut origin } => {
                if result.is_ok() {
                    origin.done();
                }
                let memory = origin.restore(memory);
                reply.send(match result {
                    Ok(_) => Ok(memory),
                    Err(failure) => Err(Unfinished::with(failure, memory)),
                });
            }
            Caller::Writer(caller) => caller.answer(result),
            Caller::Delete(reply) | Caller::Touch(reply) => {
                let changed = result.map(|outcome| outcome != Outcome::Miss);
                reply.send(changed.map_err(Unfinished::new));
            }
            Caller::EachShard(send) => {
                let objects = |outcome| match outcome {
                    Outcome::Swept { objects } => objects,
                    _ => 0,
                };
                send(result.map(objects).map_err(Unfinished::new));
            }
        }
    }
}

impl ReadCaller {
    /// Chooses the memory for the object that was found. Returns how many bytes the read lacks if there are none now.
    ///
    /// # Errors
    /// As [`Fetch::take`] and [`BouncedRead::take`].
    pub(crate) fn take(
        &mut self,
        found: Found,
        item: &mut GetItem,
        pools: &Pools,
        resident: Option<&Resident>,
    ) -> Result<Option<usize>> {
        match self {
            ReadCaller::Fetch(fetch) => fetch.take(found, item, pools, resident),
            ReadCaller::Bounced(bounced) => bounced.take(found, item, pools),
            ReadCaller::InPlace(..) => Ok(None),
        }
    }

    /// Returns whether it shares the object in memory.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, ReadCaller::Fetch(fetch) if fetch.is_shared())
    }

    /// Delivers `bytes` that were read and that `check` verifies.
    pub(crate) fn answer_unverified(
        self,
        bytes: u64,
        (memory, version): (AnyBuffer, Option<Version>),
        check: ReadCheck,
    ) {
        match self {
            ReadCaller::Fetch(fetch) => fetch.answer_unverified((memory, version), check),
            ReadCaller::Bounced(read) => read.answer_unverified(bytes, (memory, version), check),
            ReadCaller::InPlace(reply, counts) => {
                counts.count_in_place(bytes as usize);
                let read = Read { bytes: Some(bytes), memory, version };
                reply.send_unverified(read, check, Read::verified);
            }
        }
    }

    fn answer(self, result: Result<Outcome, Failure>, memory: AnyBuffer, version: Option<Version>) {
        match self {
            ReadCaller::Fetch(fetch) => fetch.answer(result, memory, version),
            ReadCaller::Bounced(bounced) => bounced.answer(result, memory, version),
            ReadCaller::InPlace(reply, counts) => {
                if let Ok(Outcome::Hit { bytes }) = result {
                    counts.count_in_place(bytes as usize);
                }
                reply.send(Read::of(result, memory, version));
            }
        }
    }
}
