//! Requests on their way to a shard, and the callers that wait for their answers.
//!
//! A handle makes a request once: a [`Hashed`] request whose reply is a [`Waiter`]. It owns key, memory and reply until
//! the shard has it; the shard returns the waiter with the answer.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;
use bytes::Bytes;

use super::arrivals::{Arrival, Changes};
use super::check::Check;
use super::devices::DeviceShard;
use super::feed::Feed;
use super::lent::{Bounced, Origin, Way};
use super::pending::{Answer, Reply, Unfinished};
use super::pool::{Counts, Pool, PoolBuffer, Pools};
use super::value::{Put, Read, Value};
use crate::error::{Error, Result};
use crate::model::object::Version;
use crate::shard::{
    Action, Failure, FillItem, Found, GetItem, Hashed, Outcome, Part, Pinned, PutItem, Request,
    Resident,
};

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
    /// A caller that waits for memory to fill.
    Lend(Lend),
    /// A feed to look at.
    Feed(Box<dyn Feed>),
}

/// A caller's request for memory of the pools.
pub(super) struct Lend {
    pub(super) len: usize,
    /// The device that it is for, or any.
    pub(super) device: Option<u8>,
    pub(super) deadline: Time,
    pub(super) reply: Reply<PoolBuffer>,
}

/// Requests that are planned together; of one kind, if several.
pub(super) type Requests = Changes<Hashed<Waiter>>;

/// A callback that receives the shard, or the failure if it never reached the shard.
pub(super) type Ask = Box<dyn FnOnce(Result<(&mut ThreadShard, Time), Failure>) + Send>;

impl Lend {
    pub(super) fn refuse(self, error: impl Into<Error>) {
        self.reply.send(Err(Unfinished::new(error)));
    }
}

impl Work {
    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: &Failure) {
        match self {
            Work::Requests(all) => all.into_iter().for_each(|one| one.refuse(failure.clone())),
            Work::Ask(_, ask) => ask(Err(failure.clone())),
            Work::Lend(lend) => lend.refuse(failure.clone()),
            Work::Feed(feed) => drop(feed),
        }
    }
}

impl Hashed<Waiter> {
    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: Failure) {
        let Request { reply, action, .. } = self.request;
        reply.caller.answer(Err(failure), action.into_memory(), None);
    }

    /// Like [`Hashed::refuse`], with any error, for a request that waits for memory.
    pub(super) fn refuse_with(self, error: impl Into<Error>) {
        let unfinished = Unfinished::new(error);
        match self.request.reply.caller {
            Caller::Fetch(fetch) => fetch.reply.send(Err(unfinished)),
            Caller::Bounced(bounced) => bounced.refuse(unfinished),
            Caller::Put { reply, source } => {
                let memory = source.restore(AnyBuffer::None);
                reply.send(Err(Unfinished { memory, ..unfinished }));
            }
            Caller::Fill { reply, source } => {
                let memory = source.restore(AnyBuffer::None);
                reply.send(Err(Unfinished { memory, ..unfinished }));
            }
            _ => unreachable!("only reads and copies wait for memory"),
        }
    }

    /// Returns whether it may begin: its caller still waits, and it is not late.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.is_wanted() && now <= self.request.deadline
    }

    /// Returns the bytes of `pool` that its data take.
    pub(super) fn pooled_bytes(&self, pool: &Arc<Pool>) -> usize {
        let (Caller::Put { source, .. }, Action::Put(PutItem { data, .. })) =
            (&self.request.reply.caller, &self.request.action)
        else {
            return 0;
        };
        match data {
            AnyBuffer::One(run) if source.pool().is_some_and(|its| Arc::ptr_eq(its, pool)) => {
                run.len()
            }
            _ => 0,
        }
    }

    /// Returns whether it changes which objects there are, and so may have to wait for room in its shard.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self.request.action, Action::Get(_) | Action::Fill(_) | Action::Commit)
    }

    /// Returns the bytes that it lacks, and for which device, if its data wait for memory.
    pub(super) fn lacks(&self) -> Option<(usize, Option<u8>)> {
        match &self.request.reply.caller {
            Caller::Put { source: Source::Waiting(heap), .. }
            | Caller::Fill { source: Source::Waiting(heap), .. } => Some(heap.lacks()),
            _ => None,
        }
    }

    /// Gives it the memory that it waited for.
    pub(super) fn equip(&mut self, buffer: PoolBuffer, pools: &Pools) {
        let (source, data) = match (&mut self.request.reply.caller, &mut self.request.action) {
            (Caller::Fetch(fetch), _) => {
                fetch.holds = Holds::Granted(buffer);
                return;
            }
            (Caller::Bounced(bounced), _) => return bounced.grant(buffer),
            (Caller::Put { source, .. }, Action::Put(PutItem { data, .. }))
            | (Caller::Fill { source, .. }, Action::Fill(FillItem { data, .. })) => (source, data),
            _ => unreachable!("only reads and copies wait for memory"),
        };
        let waited = std::mem::replace(source, Source::Registered(Origin::default()));
        let Source::Waiting(heap) = waited else { unreachable!("it is copied once") };
        let (memory, origin) = heap.copied(buffer, pools);
        (*source, *data) = (Source::Registered(origin), memory);
    }

    /// Calls `waker` if its caller gives it up.
    pub(super) fn when_unwanted(&self, waker: Waker) {
        match &self.request.reply.caller {
            Caller::Fetch(fetch) => fetch.reply.when_unwanted(waker),
            Caller::Bounced(bounced) => bounced.when_unwanted(waker),
            Caller::Put { reply, .. } => reply.when_unwanted(waker),
            Caller::Fill { reply, .. } => reply.when_unwanted(waker),
            _ => unreachable!("only reads and copies wait for memory"),
        }
    }
}

impl Arrival for Hashed<Waiter> {
    fn key_hash(&self) -> Option<u64> {
        let is_ordered = match &self.request.action {
            Action::Put(_)
            | Action::Delete(_)
            | Action::DeleteIf(..)
            | Action::Touch(_)
            | Action::Seal(_) => true,
            Action::Get(_)
            | Action::Reserve(_)
            | Action::Fill(_)
            | Action::DeleteWhere(_)
            | Action::Commit => false,
        };
        is_ordered.then_some(self.hash)
    }

    fn is_wanted(&self) -> bool {
        self.request.reply.caller.is_wanted()
    }
}

/// Where the data of a put come from.
pub(super) enum Source {
    /// Registered memory, which is its owner's again with the answer.
    Registered(Origin),
    /// Data that are copied once there is memory.
    Waiting(Box<Heap>),
}

impl Source {
    /// Returns the pool if all of the memory is its.
    pub(super) fn pool(&self) -> Option<&Arc<Pool>> {
        match self {
            Source::Registered(origin) => origin.pool(),
            Source::Waiting(_) => None,
        }
    }

    /// Notes that a device has all of its bytes.
    fn done(&mut self) {
        if let Source::Registered(origin) = self {
            origin.done();
        }
    }

    /// Returns the caller's memory as it was given; memory of a pool goes back to the pool.
    pub(super) fn restore(self, memory: AnyBuffer) -> AnyBuffer {
        match self {
            Source::Registered(origin) => origin.restore(memory),
            Source::Waiting(heap) => match heap.kept {
                Kept::Bytes(_) => memory,
                Kept::Lent(lent, _) => lent,
            },
        }
    }
}

/// Data that wait for registered memory.
pub(super) struct Heap {
    pub(super) kept: Kept,
    /// The device that the memory is for, or any.
    pub(super) device: Option<u8>,
}

/// What waits.
pub(super) enum Kept {
    Bytes(Bytes),
    /// The caller's memory, of which a part is copied.
    Lent(AnyBuffer, Way),
}

impl Heap {
    fn lacks(&self) -> (usize, Option<u8>) {
        match &self.kept {
            Kept::Bytes(bytes) => (bytes.len(), self.device),
            Kept::Lent(_, way) => (way.through, way.device),
        }
    }

    /// Copies what has to be copied to `buffer`.
    fn copied(self, mut buffer: PoolBuffer, pools: &Pools) -> (AnyBuffer, Origin) {
        match self.kept {
            Kept::Bytes(bytes) => {
                buffer.copy_from_slice(&bytes);
                pools.counts.count_copy(bytes.len());
                let (run, pool) = buffer.into_cleared_parts();
                (AnyBuffer::One(run), Origin::pooled(pool))
            }
            Kept::Lent(memory, way) => way.carry(memory, Some(buffer), &pools.counts),
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

/// The caller that waits for an answer, and since when.
pub(super) struct Waiter {
    pub(super) since: Time,
    pub(super) caller: Caller,
}

/// A caller, with what its answer is made of.
pub(super) enum Caller {
    Put {
        reply: Reply<Put>,
        source: Source,
    },
    /// A read into the store's own memory.
    Fetch(Fetch),
    /// A read into memory of the caller's that its device can use.
    Get(Reply<Read>, Arc<Counts>),
    /// A read into memory of the caller's of which its device may not be able to use all.
    Bounced(Box<Bounced>),
    Fill {
        reply: Reply<AnyBuffer>,
        source: Source,
    },
    Writer(Box<dyn WriterCaller>),
    Delete(Reply<bool>),
    /// Another expiry.
    Touch(Reply<bool>),
    /// One shard's part of a commit.
    Commit(Box<dyn FnOnce(Answer<()>) + Send>),
    /// One shard's part of a sweep.
    Sweep(Box<dyn FnOnce(Answer<u64>) + Send>),
}

impl Caller {
    /// Returns whether the answer is still wanted.
    pub(super) fn is_wanted(&self) -> bool {
        match self {
            Caller::Put { reply, .. } => reply.is_wanted(),
            Caller::Fetch(fetch) => fetch.reply.is_wanted(),
            Caller::Bounced(bounced) => bounced.is_wanted(),
            Caller::Get(reply, _) => reply.is_wanted(),
            Caller::Fill { reply, .. } => reply.is_wanted(),
            Caller::Writer(caller) => caller.is_wanted(),
            Caller::Delete(reply) | Caller::Touch(reply) => reply.is_wanted(),
            Caller::Commit(_) | Caller::Sweep(_) => true,
        }
    }

    /// Delivers `bytes` that were read and that `check` verifies.
    pub(super) fn answer_unverified(
        self,
        bytes: u64,
        (memory, version): (AnyBuffer, Option<Version>),
        check: Check,
    ) {
        match self {
            Caller::Fetch(fetch) => fetch.answer_unverified((memory, version), check),
            Caller::Bounced(bounced) => bounced.answer_unverified(bytes, (memory, version), check),
            Caller::Get(reply, counts) => {
                counts.count_in_place(bytes as usize);
                reply.send_unverified(
                    Read { bytes: Some(bytes), memory, version },
                    check,
                    verified,
                );
            }
            _ => unreachable!("only reads are verified"),
        }
    }

    /// Delivers the answer.
    pub(super) fn answer(
        self,
        result: Result<Outcome, Failure>,
        memory: AnyBuffer,
        version: Option<Version>,
    ) {
        match self {
            Caller::Put { reply, mut source } => {
                if matches!(result, Ok(Outcome::Stored)) {
                    source.done();
                }
                let memory = source.restore(memory);
                reply.send(match result {
                    Ok(outcome) => Ok(Put { outcome, memory, version }),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Caller::Fetch(fetch) => fetch.answer(result, memory, version),
            Caller::Bounced(bounced) => bounced.answer(result, memory, version),
            Caller::Get(reply, counts) => reply.send(match result {
                Ok(Outcome::Hit { bytes }) => {
                    counts.count_in_place(bytes as usize);
                    Ok(Read { bytes: Some(bytes), memory, version })
                }
                Ok(_) => Ok(Read { bytes: None, memory, version: None }),
                Err(failure) => Err(failed(failure, memory)),
            }),
            Caller::Fill { reply, mut source } => {
                if result.is_ok() {
                    source.done();
                }
                let memory = source.restore(memory);
                reply.send(match result {
                    Ok(_) => Ok(memory),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Caller::Writer(caller) => caller.answer(result),
            Caller::Delete(reply) | Caller::Touch(reply) => {
                let changed = result.map(|outcome| outcome != Outcome::Miss);
                reply.send(changed.map_err(Unfinished::new));
            }
            Caller::Commit(send) => send(result.map(|_| ()).map_err(Unfinished::new)),
            Caller::Sweep(send) => {
                let objects = |outcome| match outcome {
                    Outcome::Swept { objects } => objects,
                    other => unreachable!("a sweep ends with a number, not {other:?}"),
                };
                send(result.map(objects).map_err(Unfinished::new));
            }
        }
    }
}

/// A read into the store's own memory, which is taken once the object is found.
pub(super) struct Fetch {
    reply: Reply<Option<Value>>,
    /// The byte range; all bytes if `None`.
    range: Option<Range<u64>>,
    holds: Holds,
}

/// The memory of a fetch.
enum Holds {
    Nothing,
    /// Memory that it waited for; the object may have changed since.
    Granted(PoolBuffer),
    /// The range that it reads, and the pool of the memory that it reads into.
    Taken(Aim, Arc<Pool>),
    /// The range that it asks for, within the bytes of the whole object in memory, which it shares.
    Shared(Aim, Pinned),
}

impl Fetch {
    pub(super) fn new(reply: Reply<Option<Value>>, range: Option<Range<u64>>) -> Fetch {
        Fetch { reply, range, holds: Holds::Nothing }
    }

    /// Chooses the part to read and takes memory for it, which `item` gets, unless it may hold the object in memory. Returns how
    /// many bytes it lacks if there are none now.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end; [`Error::Invalid`] if there never will be enough
    /// memory.
    pub(super) fn take(
        &mut self,
        found: Found,
        item: &mut GetItem,
        pools: &Pools,
        resident: Option<&Resident>,
    ) -> Result<Option<usize>> {
        let (part, aim) = Aim::of(found, self.range.as_ref())?;
        if let Some(pinned) = resident.and_then(Resident::pin) {
            self.holds = Holds::Shared(aim.within_object(&part), pinned);
            item.part = part;
            return Ok(None);
        }
        pools.check_read(aim.len as u64, self.range.is_some())?;
        let pool = pools.of_device(found.device);
        let taken = match std::mem::replace(&mut self.holds, Holds::Nothing) {
            Holds::Granted(buffer) if buffer.is_for(aim.len, pool) => Some(buffer),
            _ => pool.take(aim.len),
        };
        let Some(buffer) = taken else { return Ok(Some(aim.len)) };
        let (run, pool) = buffer.into_parts();
        self.holds = Holds::Taken(aim, pool);
        (item.part, item.into) = (part, AnyBuffer::One(run));
        Ok(None)
    }

    /// Returns whether it holds the object in memory.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.holds, Holds::Shared(..))
    }

    fn answer_unverified(self, (memory, version): (AnyBuffer, Option<Version>), check: Check) {
        let Holds::Taken(aim, pool) = self.holds else { unreachable!("it was read into memory") };
        let version = version.expect("what was read has a version");
        let buffer = pooled(memory, aim.len, &pool).expect("a run of the pool comes back as one");
        let value = Value::new(buffer, aim.wanted, aim.object_bytes, version);
        self.reply.send_unverified(Some(value), check, |value, check| {
            value.filter(|value| check.verify_bytes(value.read_bytes()))
        });
    }

    fn answer(self, result: Result<Outcome, Failure>, memory: AnyBuffer, version: Option<Version>) {
        let version = version.unwrap_or_default();
        let hit = matches!(result, Ok(Outcome::Hit { .. }));
        let taken = match self.holds {
            Holds::Taken(aim, pool) => pooled(memory, aim.len, &pool)
                .filter(|_| hit)
                .map(|buffer| (aim.len, Value::new(buffer, aim.wanted, aim.object_bytes, version))),
            Holds::Shared(aim, pinned) => {
                Some((aim.len, Value::shared(pinned, aim.wanted, aim.object_bytes, version)))
            }
            Holds::Nothing | Holds::Granted(_) => None,
        };
        self.reply.send(match (result, taken) {
            (Ok(Outcome::Hit { bytes }), Some((len, value))) => {
                assert_eq!(bytes, len as u64, "what was aimed at is read");
                Ok(Some(value))
            }
            (Ok(Outcome::Miss), _) => Ok(None),
            (Ok(other), _) => unreachable!("a read ends with its memory or a miss, not {other:?}"),
            (Err(failure), _) => Err(Unfinished::new(failure)),
        });
    }
}

/// Returns a read as its caller may see it: a miss, if its bytes are not what was put.
pub(super) fn verified(read: Read, check: Check) -> Read {
    let Read { bytes, memory, version } = read;
    let (memory, is_intact) = check.verify(memory);
    let (bytes, version) = if is_intact { (bytes, version) } else { (None, None) };
    Read { bytes, memory, version }
}

/// What a fetch reads of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Aim {
    /// The length in bytes of the part that is read.
    pub(super) len: usize,
    /// The wanted bytes within the part.
    wanted: Range<usize>,
    object_bytes: u64,
}

impl Aim {
    /// Selects the whole pieces around `range`; of a KV block whole layers, padding included.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end.
    pub(super) fn of(found: Found, range: Option<&Range<u64>>) -> Result<(Part, Aim), Failure> {
        let Found { bytes: object_bytes, piece_bytes: piece, .. } = found;
        let range = range.cloned().unwrap_or(0..object_bytes);
        let reads_nothing = object_bytes == 0 && range.start == 0;
        if (range.start >= object_bytes || range.is_empty()) && !reads_nothing {
            return Err(Failure::Part("the range is empty, or begins behind the object's end"));
        }
        let wanted = range.start..range.end.min(object_bytes);
        let read =
            wanted.start / piece * piece..wanted.end.next_multiple_of(piece).min(object_bytes);
        let part = if read == (0..object_bytes) { Part::All } else { Part::Bytes(read.clone()) };
        let at = |byte: u64| (byte - read.start) as usize;
        let (len, wanted) = (at(read.end), at(wanted.start)..at(wanted.end));
        Ok((part, Aim { len, wanted, object_bytes }))
    }

    /// Returns the value of `part` that shares the bytes of the whole object.
    pub(super) fn shared(self, part: &Part, object: Pinned, version: Version) -> Value {
        let Aim { wanted, object_bytes, .. } = self.within_object(part);
        Value::shared(object, wanted, object_bytes, version)
    }

    /// Returns it with the wanted bytes within the object instead of `part`.
    fn within_object(self, part: &Part) -> Aim {
        let from = if let Part::Bytes(range) = part { range.start as usize } else { 0 };
        let wanted = from + self.wanted.start..from + self.wanted.end;
        Aim { wanted, ..self }
    }
}

/// Rebuilds the pool buffer from memory lent to a command.
fn pooled(memory: AnyBuffer, len: usize, pool: &Arc<Pool>) -> Option<PoolBuffer> {
    match memory {
        AnyBuffer::One(run) => Some(PoolBuffer::of(run, len, pool)),
        _ => None,
    }
}

fn failed(failure: Failure, memory: AnyBuffer) -> Unfinished {
    Unfinished { memory, ..Unfinished::new(failure) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::object::piece_bytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_aim_is_whole_pieces_with_the_wanted_bytes_inside(
            bytes in 1u64..(200 << 20),
            start in 0u64..(210 << 20),
            len in 0u64..(1 << 21),
        ) {
            let range = start..start + len;
            let piece = piece_bytes(bytes);
            match Aim::of(Found { device: 0, bytes, piece_bytes: piece }, Some(&range)) {
                Err(_) => prop_assert!(start >= bytes || len == 0),
                Ok((part, aim)) => {
                    let read = match &part {
                        Part::Bytes(read) => read.clone(),
                        _ => 0..bytes,
                    };
                    prop_assert_eq!(aim.len as u64, read.end - read.start);
                    prop_assert!(read.start.is_multiple_of(piece));
                    prop_assert!(read.end == bytes || read.end.is_multiple_of(piece));
                    prop_assert_eq!(read.start + aim.wanted.start as u64, start);
                    prop_assert_eq!(read.start + aim.wanted.end as u64, range.end.min(bytes));
                    prop_assert!(aim.wanted.end <= aim.len);
                    let within = aim.within_object(&part).wanted;
                    prop_assert_eq!(within, start as usize..range.end.min(bytes) as usize);
                }
            }
        }
    }

    #[test]
    fn a_block_is_read_by_layers_with_their_padding() {
        let (bytes, piece_bytes) = (60 << 12, 20 << 12);
        let block = Found { device: 0, bytes, piece_bytes };
        let aim = |range| Aim::of(block, Some(&range)).expect("inside");
        let (part, Aim { len, wanted, .. }) = aim(piece_bytes + 5..piece_bytes + 6);
        assert_eq!((part, len, wanted), (Part::Bytes(20 << 12..40 << 12), 20 << 12, 5..6));
        let (part, Aim { len, wanted, .. }) = aim(5..bytes);
        assert_eq!((part, len, wanted), (Part::All, 60 << 12, 5..60 << 12));
    }
}
