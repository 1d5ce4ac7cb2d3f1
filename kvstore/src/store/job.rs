//! Jobs that callers send to the store's threads, and the waiters for their answers.

use std::ops::Range;
use std::sync::Arc;

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::core::Core;
use super::devices::DeviceShard;
use super::pending::{Answer, Reply, Unfinished};
use super::pool::{Pool, PoolBuffer};
use super::together::Share;
use super::value::{Put, Read, Value};
use super::writer::Writer;
use crate::model::key::Key;
use crate::model::object::piece_bytes;
use crate::shard::{
    Action, Done, Failure, FillItem, GetItem, Info, Outcome, Part, PutItem, ReserveItem,
};

/// Work for one shard.
pub(super) struct Job {
    /// The shard's number in the store.
    pub(super) shard: u16,
    /// When it is too late to begin.
    pub(super) deadline: Time,
    pub(super) work: Work,
}

pub(super) enum Work {
    One(Item),
    /// Several items of one kind, whose commands are planned together.
    Many(Vec<Item>),
    /// A call that runs at once on the thread.
    Ask(Ask),
}

/// A callback that receives the shard, or the failure if it never reached the shard.
pub(super) type Ask = Box<dyn FnOnce(Result<(&mut DeviceShard, Time), Failure>) + Send>;

/// A request and the destination of its answer.
pub(super) enum Item {
    Put(PutItem, PutReply),
    /// A read into the store's own memory. Its length is known only when it begins.
    Fetch(Fetch),
    Get(GetItem, Reply<Read>),
    Reserve(ReserveItem, WriterReply),
    Fill(FillItem, FillReply),
    Seal(SealReply),
    Delete(Key, Reply<bool>),
    Commit(CommitReply),
}

/// The destination of a put's answer, and the pool that its memory returns to.
pub(super) struct PutReply {
    pub(super) reply: Reply<Put>,
    pub(super) home: Option<Arc<Pool>>,
}

/// The destination of the answer to a written part, and the pool that its memory returns to.
pub(super) struct FillReply {
    pub(super) reply: Reply<AnyBuffer>,
    pub(super) home: Option<Arc<Pool>>,
}

/// The destination of a new writer, and the values it is built from.
pub(super) struct WriterReply {
    pub(super) reply: Reply<Writer>,
    pub(super) core: Arc<Core>,
    pub(super) shard: u16,
    pub(super) bytes: u64,
}

/// The destination of a sealed writer's answer. If sealing fails, dropping the writer gives its room back.
pub(super) struct SealReply {
    pub(super) reply: Reply<Outcome>,
    pub(super) writer: Writer,
}

/// One shard's part of a commit.
pub(super) struct CommitReply(pub(super) Box<dyn FnOnce(Answer<()>) + Send>);

/// A read into the store's own memory.
pub(super) struct Fetch {
    pub(super) key: Key,
    /// The byte range; all bytes if `None`.
    pub(super) range: Option<Range<u64>>,
    pub(super) reply: Reply<Option<Value>>,
    /// When it is too late to begin.
    pub(super) deadline: Time,
    /// How often it was begun; it begins again if the object was replaced by a longer one meanwhile.
    pub(super) attempts: u8,
    /// Its share of a batch's memory.
    pub(super) share: Option<Share>,
}

/// Limit for how often a fetch is begun.
const ATTEMPTS_MAX: u8 = 8;

pub(super) struct Fetching {
    fetch: Fetch,
    pool: Option<Arc<Pool>>,
    aim: Aim,
}

/// The part of an object that a fetch reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Aim {
    pub(super) part: Part,
    /// The part's length in bytes.
    pub(super) len: usize,
    /// The wanted bytes within the part.
    wanted: Range<usize>,
    object_bytes: u64,
}

impl Aim {
    /// Selects the whole pieces around `range`; for a KV block, whose pieces differ, all of its `block_bytes`,
    /// padding included.
    ///
    /// # Errors
    /// [`Failure::Part`] if the range begins beyond the object's end.
    pub(super) fn of(
        info: &Info,
        range: Option<&Range<u64>>,
        block_bytes: Option<u64>,
    ) -> Result<Aim, Failure> {
        let object_bytes = block_bytes.unwrap_or(info.bytes);
        let range = range.cloned().unwrap_or(0..object_bytes);
        if range.start >= object_bytes || range.is_empty() {
            return Err(Failure::Part("the range is empty, or begins behind the object's end"));
        }
        let wanted = range.start..range.end.min(object_bytes);
        let piece = piece_bytes(object_bytes);
        let pieces =
            wanted.start / piece * piece..wanted.end.next_multiple_of(piece).min(object_bytes);
        let (part, read) = if block_bytes.is_none() && pieces != (0..object_bytes) {
            (Part::Bytes(pieces.clone()), pieces)
        } else {
            (Part::All, 0..object_bytes)
        };
        let at = |byte: u64| (byte - read.start) as usize;
        let (len, wanted) = (at(read.end), at(wanted.start)..at(wanted.end));
        Ok(Aim { part, len, wanted, object_bytes })
    }
}

pub(super) enum Waiter {
    Put(PutReply),
    Fetching(Fetching),
    Get(Reply<Read>),
    Reserve(WriterReply),
    Fill(FillReply),
    Seal(SealReply),
    Delete(Reply<bool>),
    Commit(CommitReply),
}

impl Work {
    /// Returns whether the work is reads into the store's own memory.
    pub(super) fn is_fetch(&self) -> bool {
        match self {
            Work::One(item) => matches!(item, Item::Fetch(_)),
            Work::Many(items) => matches!(items.first(), Some(Item::Fetch(_))),
            Work::Ask(_) => false,
        }
    }

    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: &Failure) {
        match self {
            Work::One(item) => item.refuse(failure.clone()),
            Work::Many(items) => items.into_iter().for_each(|item| item.refuse(failure.clone())),
            Work::Ask(ask) => ask(Err(failure.clone())),
        }
    }
}

impl Item {
    /// Returns whether the answer is still wanted.
    pub(super) fn is_wanted(&self) -> bool {
        match self {
            Item::Put(_, to) => to.reply.is_wanted(),
            Item::Fetch(fetch) => fetch.reply.is_wanted(),
            Item::Get(_, reply) => reply.is_wanted(),
            Item::Reserve(_, to) => to.reply.is_wanted(),
            Item::Fill(_, to) => to.reply.is_wanted(),
            Item::Seal(to) => to.reply.is_wanted(),
            Item::Delete(_, reply) => reply.is_wanted(),
            Item::Commit(_) => true,
        }
    }

    /// Answers with a failure without having begun.
    pub(super) fn refuse(self, failure: Failure) {
        let (waiter, memory) = match self {
            Item::Put(item, to) => (Waiter::Put(to), item.data),
            Item::Fetch(fetch) => return fetch.reply.send(Err(Unfinished::new(failure))),
            Item::Get(item, reply) => (Waiter::Get(reply), item.into),
            Item::Reserve(_, to) => (Waiter::Reserve(to), AnyBuffer::None),
            Item::Fill(item, to) => (Waiter::Fill(to), item.data),
            Item::Seal(to) => (Waiter::Seal(to), AnyBuffer::None),
            Item::Delete(_, reply) => (Waiter::Delete(reply), AnyBuffer::None),
            Item::Commit(to) => (Waiter::Commit(to), AnyBuffer::None),
        };
        let _ = waiter.answer(Done { tag: 0, item: 0, result: Err(failure), memory });
    }
}

impl Fetch {
    /// Builds the command and its waiter, with memory for `aim`.
    pub(super) fn begin(mut self, aim: Aim, buffer: PoolBuffer) -> (GetItem, Waiter) {
        let (run, pool) = buffer.into_parts();
        self.attempts += 1;
        let item =
            GetItem { key: self.key.clone(), part: aim.part.clone(), into: AnyBuffer::One(run) };
        (item, Waiter::Fetching(Fetching { fetch: self, pool: Some(pool), aim }))
    }

    /// Builds the command for a missing object, which the shard counts as a miss.
    pub(super) fn begin_miss(mut self) -> (GetItem, Waiter) {
        self.attempts += 1;
        let item = GetItem { key: self.key.clone(), part: Part::All, into: AnyBuffer::None };
        let aim = Aim { part: Part::All, len: 0, wanted: 0..0, object_bytes: 0 };
        (item, Waiter::Fetching(Fetching { fetch: self, pool: None, aim }))
    }
}

impl Fetching {
    /// Delivers the bytes to the waiter, or returns the fetch if it must begin again.
    fn answer(self, done: Done) -> Option<Fetch> {
        let Fetching { fetch, pool, aim } = self;
        let buffer = pooled(done.memory, aim.len, pool.as_ref());
        let answer = match (done.result, buffer) {
            (Ok(Outcome::Hit { bytes }), Some(buffer)) if bytes == aim.len as u64 => {
                Ok(Some(Value::new(buffer, aim.wanted, aim.object_bytes)))
            }
            (Ok(Outcome::Miss), _) => Ok(None),
            // The object was replaced after the memory was taken.
            (Ok(_) | Err(Failure::Memory { .. } | Failure::Part(_)), _)
                if fetch.attempts < ATTEMPTS_MAX =>
            {
                return Some(fetch);
            }
            (Ok(_), _) => Err(Unfinished::new(Failure::Deadline)),
            (Err(failure), _) => Err(Unfinished::new(failure)),
        };
        fetch.reply.send(answer);
        None
    }
}

/// Rebuilds the pool buffer from memory lent to a command.
fn pooled(memory: AnyBuffer, len: usize, pool: Option<&Arc<Pool>>) -> Option<PoolBuffer> {
    match (memory, pool) {
        (AnyBuffer::One(run), Some(pool)) => Some(PoolBuffer::of(run, len, pool)),
        _ => None,
    }
}

/// Returns the caller's memory; memory of a pool goes back to the pool.
fn callers(memory: AnyBuffer, home: Option<Arc<Pool>>) -> AnyBuffer {
    match home {
        Some(pool) => {
            drop(pooled(memory, 0, Some(&pool)));
            AnyBuffer::None
        }
        None => memory,
    }
}

fn failed(failure: Failure, memory: AnyBuffer) -> Unfinished {
    Unfinished { memory, ..Unfinished::new(failure) }
}

impl Waiter {
    /// Delivers the answer to the waiter. Returns a fetch that must begin again.
    pub(super) fn answer(self, done: Done) -> Option<Fetch> {
        match self {
            Waiter::Fetching(fetching) => return fetching.answer(done),
            Waiter::Put(PutReply { reply, home }) => {
                let memory = callers(done.memory, home);
                reply.send(match done.result {
                    Ok(outcome) => Ok(Put { outcome, memory }),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Waiter::Get(reply) => reply.send(match done.result {
                Ok(Outcome::Hit { bytes }) => Ok(Read { bytes: Some(bytes), memory: done.memory }),
                Ok(_) => Ok(Read { bytes: None, memory: done.memory }),
                Err(failure) => Err(failed(failure, done.memory)),
            }),
            Waiter::Fill(FillReply { reply, home }) => {
                let memory = callers(done.memory, home);
                reply.send(match done.result {
                    Ok(_) => Ok(memory),
                    Err(failure) => Err(failed(failure, memory)),
                });
            }
            Waiter::Reserve(to) => to.answer(done.result),
            Waiter::Seal(to) => to.answer(done.result),
            Waiter::Delete(reply) => {
                let deleted = done.result.map(|outcome| outcome == Outcome::Deleted);
                reply.send(deleted.map_err(Unfinished::new));
            }
            Waiter::Commit(CommitReply(send)) => {
                send(done.result.map(|_| ()).map_err(Unfinished::new));
            }
        }
        None
    }
}

impl WriterReply {
    fn answer(self, result: Result<Outcome, Failure>) {
        let WriterReply { reply, core, shard, bytes } = self;
        reply.send(match result {
            Ok(Outcome::Reserved(id)) => Ok(Writer::new(core, shard, id, bytes)),
            Ok(Outcome::Declined(why)) => Err(Unfinished::new(Failure::Declined(why))),
            Ok(other) => unreachable!("a reservation ends with a writer, not {other:?}"),
            Err(failure) => Err(Unfinished::new(failure)),
        });
    }
}

impl SealReply {
    fn answer(self, result: Result<Outcome, Failure>) {
        let SealReply { reply, writer } = self;
        match result {
            Ok(_) => writer.sealed(),
            Err(_) => drop(writer),
        }
        reply.send(result.map_err(Unfinished::new));
    }
}

/// Builds the shard request for `items`, which are all of one kind, and the waiter of each.
pub(super) fn begin(items: Vec<Item>) -> (Action, Vec<Waiter>) {
    let mut waiters = Vec::with_capacity(items.len());
    let mut parts = Lists::default();
    for item in items {
        waiters.push(match item {
            Item::Put(item, to) => {
                parts.puts.push(item);
                Waiter::Put(to)
            }
            Item::Get(item, reply) => {
                parts.gets.push(item);
                Waiter::Get(reply)
            }
            Item::Reserve(item, to) => {
                parts.reserves.push(item);
                Waiter::Reserve(to)
            }
            Item::Fill(item, to) => {
                parts.fills.push(item);
                Waiter::Fill(to)
            }
            _ => unreachable!("these are never sent as lists"),
        });
    }
    (parts.action(), waiters)
}

/// The items of a list; only one of the vectors is filled.
#[derive(Default)]
struct Lists {
    puts: Vec<PutItem>,
    gets: Vec<GetItem>,
    reserves: Vec<ReserveItem>,
    fills: Vec<FillItem>,
}

impl Lists {
    fn action(self) -> Action {
        let Lists { puts, gets, reserves, fills } = self;
        match (puts.is_empty(), gets.is_empty(), reserves.is_empty(), fills.is_empty()) {
            (false, true, true, true) => Action::PutMany(puts),
            (true, false, true, true) => Action::GetMany(gets),
            (true, true, false, true) => Action::Reserve(reserves),
            (true, true, true, false) => Action::Fill(fills),
            _ => unreachable!("a list has items, of one kind"),
        }
    }
}

pub(super) fn begin_one(item: Item) -> (Action, Waiter) {
    match item {
        Item::Put(item, to) => (Action::Put(item), Waiter::Put(to)),
        Item::Get(item, reply) => (Action::Get(item), Waiter::Get(reply)),
        Item::Reserve(item, to) => (Action::Reserve(vec![item]), Waiter::Reserve(to)),
        Item::Fill(item, to) => (Action::Fill(vec![item]), Waiter::Fill(to)),
        Item::Seal(to) => (Action::Seal(to.writer.id()), Waiter::Seal(to)),
        Item::Delete(key, reply) => (Action::Delete(key), Waiter::Delete(reply)),
        Item::Commit(to) => (Action::Commit, Waiter::Commit(to)),
        Item::Fetch(_) => unreachable!("a fetch is begun with its memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::object::{LayoutId, TenantId};
    use proptest::prelude::*;

    fn info(bytes: u64, layout: LayoutId) -> Info {
        let key = Key::from(1u64);
        Info { key, bytes, layout, tenant: TenantId(0), ttl_s: None, device: 0 }
    }

    proptest! {
        #[test]
        fn an_aim_is_whole_pieces_with_the_wanted_bytes_inside(
            bytes in 1u64..(200 << 20),
            start in 0u64..(210 << 20),
            len in 0u64..(1 << 21),
        ) {
            let range = start..start + len;
            match Aim::of(&info(bytes, LayoutId::PLAIN), Some(&range), None) {
                Err(_) => prop_assert!(start >= bytes || len == 0),
                Ok(aim) => {
                    let read = match &aim.part {
                        Part::Bytes(read) => read.clone(),
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
        let block = info((1 << 20) - 5, LayoutId(1));
        let aim = Aim::of(&block, Some(&(5..6)), Some(1 << 20)).expect("inside");
        assert_eq!((aim.part, aim.len, aim.wanted), (Part::All, 1 << 20, 5..6));
    }
}
