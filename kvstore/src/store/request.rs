//! Requests on their way to a shard, and the callers that wait for their answers.
//!
//! A handle makes a request once: a [`Hashed`] request whose reply is a [`Waiter`]. It owns key, memory and reply until
//! the shard has it; the shard returns the waiter with the answer.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Time};
use smallvec::SmallVec;

use super::batch::Share;
use super::devices::DeviceShard;
use super::pending::{Answer, Reply, Unfinished};
use super::pool::{self, Pool, PoolBuffer, Pools};
use super::value::{Put, Read, Value};
use crate::error::{Error, Result};
use crate::model::object::piece_bytes;
use crate::shard::{Failure, Found, Hashed, Outcome, Part};

/// A shard on one of the store's threads.
pub(super) type ThreadShard = DeviceShard<Waiter>;

/// Work for one shard.
pub(super) struct Job {
    /// The shard's number in the store.
    pub(super) shard: u16,
    pub(super) work: Work,
}

#[allow(clippy::large_enum_variant, reason = "most work is one request")]
pub(super) enum Work {
    Requests(Requests),
    /// A call that runs on the thread, unless it is later than the deadline.
    Ask(Time, Ask),
}

/// Requests that are planned together; of one kind, if several.
pub(super) type Requests = SmallVec<[Hashed<Waiter>; 1]>;

/// A callback that receives the shard, or the failure if it never reached the shard.
pub(super) type Ask = Box<dyn FnOnce(Result<(&mut ThreadShard, Time), Failure>) + Send>;

impl Work {
    /// Returns whether the work is reads into the store's own memory.
    pub(super) fn is_fetch(&self) -> bool {
        let Work::Requests(requests) = self else { return false };
        requests.first().is_some_and(|first| matches!(first.request.reply, Waiter::Fetch(_)))
    }

    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: &Failure) {
        match self {
            Work::Requests(all) => all.into_iter().for_each(|one| one.refuse(failure.clone())),
            Work::Ask(_, ask) => ask(Err(failure.clone())),
        }
    }
}

impl Hashed<Waiter> {
    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: Failure) {
        self.request.reply.answer(Err(failure), self.request.action.into_memory());
    }

    /// Answers a read into the store's own memory with an error without having begun.
    pub(super) fn refuse_with(self, error: Error) {
        if let Waiter::Fetch(fetch) = self.request.reply {
            fetch.refuse(error);
        }
    }
}

/// A caller that waits for a writer, or for its end.
pub(super) trait WriterCaller: Send {
    /// Returns whether the answer is still wanted.
    fn is_wanted(&self) -> bool;

    /// Delivers the answer.
    fn answer(self: Box<Self>, result: Result<Outcome, Failure>);
}

/// The caller that waits for an answer, with what the answer is made of.
pub(super) enum Waiter {
    /// The put's memory returns to the pool `home`, if it is the store's.
    Put {
        reply: Reply<Put>,
        home: Option<Arc<Pool>>,
    },
    /// A read into the store's own memory.
    Fetch(Fetch),
    Get(Reply<Read>),
    Fill {
        reply: Reply<AnyBuffer>,
        home: Option<Arc<Pool>>,
    },
    Writer(Box<dyn WriterCaller>),
    Delete(Reply<bool>),
    /// One shard's part of a commit.
    Commit(Box<dyn FnOnce(Answer<()>) + Send>),
}

impl Waiter {
    /// Returns whether the answer is still wanted.
    pub(super) fn is_wanted(&self) -> bool {
        match self {
            Waiter::Put { reply, .. } => reply.is_wanted(),
            Waiter::Fetch(fetch) => fetch.reply.is_wanted(),
            Waiter::Get(reply) => reply.is_wanted(),
            Waiter::Fill { reply, .. } => reply.is_wanted(),
            Waiter::Writer(caller) => caller.is_wanted(),
            Waiter::Delete(reply) => reply.is_wanted(),
            Waiter::Commit(_) => true,
        }
    }

    /// Delivers the answer.
    pub(super) fn answer(self, result: Result<Outcome, Failure>, memory: AnyBuffer) {
        match self {
            Waiter::Put { reply, home } => {
                let memory = callers(memory, home);
                reply.send(match result {
                    Ok(outcome) => Ok(Put { outcome, memory }),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Waiter::Fetch(fetch) => fetch.answer(result, memory),
            Waiter::Get(reply) => reply.send(match result {
                Ok(Outcome::Hit { bytes }) => Ok(Read { bytes: Some(bytes), memory }),
                Ok(_) => Ok(Read { bytes: None, memory }),
                Err(failure) => Err(failed(failure, memory)),
            }),
            Waiter::Fill { reply, home } => {
                let memory = callers(memory, home);
                reply.send(match result {
                    Ok(_) => Ok(memory),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Waiter::Writer(caller) => caller.answer(result),
            Waiter::Delete(reply) => {
                let deleted = result.map(|outcome| outcome == Outcome::Deleted);
                reply.send(deleted.map_err(Unfinished::new));
            }
            Waiter::Commit(send) => send(result.map(|_| ()).map_err(Unfinished::new)),
        }
    }
}

/// A read into the store's own memory, which is taken once the object is found.
pub(super) struct Fetch {
    reply: Reply<Option<Value>>,
    /// The byte range; all bytes if `None`.
    range: Option<Range<u64>>,
    /// Its share of a batch's memory.
    share: Option<Share>,
    /// What it reads, and the pool of the memory that it has.
    taken: Option<(Aim, Arc<Pool>)>,
}

impl Fetch {
    pub(super) fn new(
        reply: Reply<Option<Value>>,
        range: Option<Range<u64>>,
        share: Option<Share>,
    ) -> Fetch {
        Fetch { reply, range, share, taken: None }
    }

    /// Chooses the part to read and takes memory for it. Returns `None` if there is none now; `waker` is then called
    /// once there may be some.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end; [`Error::Invalid`] if there never will be enough
    /// memory.
    pub(super) fn take(
        &mut self,
        found: Found,
        pools: &Pools,
        waker: &Waker,
    ) -> Result<Option<(Part, Buffer)>> {
        let (part, aim) = Aim::of(found, self.range.as_ref())?;
        pools.check(aim.len as u64)?;
        let pool = pools.of_device(found.device);
        if let Some(share) = &mut self.share {
            share.ask(pools.number(found.device), pool::whole_units(aim.len) as u64);
        }
        let taken = pool.take(aim.len).or_else(|| {
            pool.want(waker);
            pool.take(aim.len)
        });
        let Some(buffer) = taken else {
            let there_are = pool.bytes() as u64;
            let too_many = self.share.as_ref().and_then(|share| share.too_many(there_are));
            return too_many.map_or(Ok(None), |bytes| Err(never_together(bytes, there_are)));
        };
        let (run, pool) = buffer.into_parts();
        self.taken = Some((aim, pool));
        Ok(Some((part, run)))
    }

    fn refuse(mut self, error: Error) {
        if let Some(share) = &mut self.share {
            share.take_back();
        }
        self.reply.send(Err(Unfinished::new(error)));
    }

    fn answer(self, result: Result<Outcome, Failure>, memory: AnyBuffer) {
        let taken = self.taken.map(|(aim, pool)| (pooled(memory, aim.len, &pool), aim));
        self.reply.send(match (result, taken) {
            (Ok(Outcome::Hit { bytes }), Some((Some(buffer), aim))) => {
                assert_eq!(bytes, aim.len as u64, "what was aimed at is read");
                Ok(Some(Value::new(buffer, aim.wanted, aim.object_bytes)))
            }
            (Ok(Outcome::Miss), _) => Ok(None),
            (Ok(other), _) => unreachable!("a read ends with its memory or a miss, not {other:?}"),
            (Err(failure), _) => Err(Unfinished::new(failure)),
        });
    }
}

fn never_together(bytes: u64, there_are: u64) -> Error {
    let fix = format!(
        "its values are held together, in memory of {there_are} bytes: take them as they come (Batch::next) and drop \
         them, ask for fewer at once, or raise pool_bytes"
    );
    Error::invalid("the bytes of a batch", bytes, fix)
}

/// What a fetch reads of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Aim {
    /// The length in bytes of the part that is read.
    len: usize,
    /// The wanted bytes within the part.
    wanted: Range<usize>,
    object_bytes: u64,
}

impl Aim {
    /// Selects the whole pieces around `range`; for a KV block, whose pieces differ, all of it, padding included.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end.
    fn of(found: Found, range: Option<&Range<u64>>) -> Result<(Part, Aim), Failure> {
        let Found { bytes: object_bytes, is_block, .. } = found;
        let range = range.cloned().unwrap_or(0..object_bytes);
        if range.start >= object_bytes || range.is_empty() {
            return Err(Failure::Part("the range is empty, or begins behind the object's end"));
        }
        let wanted = range.start..range.end.min(object_bytes);
        let piece = piece_bytes(object_bytes);
        let pieces =
            wanted.start / piece * piece..wanted.end.next_multiple_of(piece).min(object_bytes);
        let (part, read) = if !is_block && pieces != (0..object_bytes) {
            (Part::Bytes(pieces.clone()), pieces)
        } else {
            (Part::All, 0..object_bytes)
        };
        let at = |byte: u64| (byte - read.start) as usize;
        let (len, wanted) = (at(read.end), at(wanted.start)..at(wanted.end));
        Ok((part, Aim { len, wanted, object_bytes }))
    }
}

/// Rebuilds the pool buffer from memory lent to a command.
fn pooled(memory: AnyBuffer, len: usize, pool: &Arc<Pool>) -> Option<PoolBuffer> {
    match memory {
        AnyBuffer::One(run) => Some(PoolBuffer::of(run, len, pool)),
        _ => None,
    }
}

/// Returns the caller's memory; memory of a pool goes back to the pool.
fn callers(memory: AnyBuffer, home: Option<Arc<Pool>>) -> AnyBuffer {
    match home {
        Some(pool) => {
            drop(pooled(memory, 0, &pool));
            AnyBuffer::None
        }
        None => memory,
    }
}

fn failed(failure: Failure, memory: AnyBuffer) -> Unfinished {
    Unfinished { memory, ..Unfinished::new(failure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_aim_is_whole_pieces_with_the_wanted_bytes_inside(
            bytes in 1u64..(200 << 20),
            start in 0u64..(210 << 20),
            len in 0u64..(1 << 21),
        ) {
            let range = start..start + len;
            match Aim::of(Found { device: 0, bytes, is_block: false }, Some(&range)) {
                Err(_) => prop_assert!(start >= bytes || len == 0),
                Ok((part, aim)) => {
                    let read = match part {
                        Part::Bytes(read) => read,
                        _ => 0..bytes,
                    };
                    prop_assert_eq!(aim.len as u64, read.end - read.start);
                    let piece = piece_bytes(bytes);
                    prop_assert!(read.start.is_multiple_of(piece));
                    prop_assert!(read.end == bytes || read.end.is_multiple_of(piece));
                    prop_assert_eq!(read.start + aim.wanted.start as u64, start);
                    prop_assert_eq!(read.start + aim.wanted.end as u64, range.end.min(bytes));
                    prop_assert!(aim.wanted.end <= aim.len);
                }
            }
        }
    }

    #[test]
    fn a_block_is_read_whole_with_its_padding() {
        let block = Found { device: 0, bytes: 1 << 20, is_block: true };
        let (part, aim) = Aim::of(block, Some(&(5..6))).expect("inside");
        assert_eq!((part, aim.len, aim.wanted), (Part::All, 1 << 20, 5..6));
    }
}
