//! What callers send to a thread of the store's, and who waits for each answer.

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

/// Something for one shard to do.
pub(super) struct Job {
    /// Which, by its number in the store.
    pub(super) shard: u16,
    /// When it is too late to begin it.
    pub(super) deadline: Time,
    pub(super) work: Work,
}

pub(super) enum Work {
    One(Item),
    /// Several of one kind, whose commands are planned together.
    Many(Vec<Item>),
    /// An immediate call.
    Ask(Ask),
}

/// What to do with the shard, or with the reason why it never came there.
pub(super) type Ask = Box<dyn FnOnce(Result<(&mut DeviceShard, Time), Failure>) + Send>;

/// A request, and where its answer goes.
pub(super) enum Item {
    Put(PutItem, PutReply),
    /// A read into the store's own memory, whose length shows when it is begun.
    Fetch(Fetch),
    Get(GetItem, Reply<Read>),
    Reserve(ReserveItem, WriterReply),
    Fill(FillItem, FillReply),
    Seal(SealReply),
    Delete(Key, Reply<bool>),
    Commit(CommitReply),
}

/// Where the answer to a put goes, and its memory if that is a pool's.
pub(super) struct PutReply {
    pub(super) reply: Reply<Put>,
    pub(super) home: Option<Arc<Pool>>,
}

/// The same of a part of an object.
pub(super) struct FillReply {
    pub(super) reply: Reply<AnyBuffer>,
    pub(super) home: Option<Arc<Pool>>,
}

/// Where a writer goes, and what it is made of.
pub(super) struct WriterReply {
    pub(super) reply: Reply<Writer>,
    pub(super) core: Arc<Core>,
    pub(super) shard: u16,
    pub(super) bytes: u64,
}

/// Where the answer goes of a writer that is sealed, which gives its room back where it was not.
pub(super) struct SealReply {
    pub(super) reply: Reply<Outcome>,
    pub(super) writer: Writer,
}

/// One shard's part of a commit.
pub(super) struct CommitReply(pub(super) Box<dyn FnOnce(Answer<()>) + Send>);

/// A read into the store's own memory.
pub(super) struct Fetch {
    pub(super) key: Key,
    /// Which bytes; all where not given.
    pub(super) range: Option<Range<u64>>,
    pub(super) reply: Reply<Option<Value>>,
    /// When it is too late to begin it.
    pub(super) deadline: Time,
    /// Times it was begun: the object may be replaced by a longer one in between.
    pub(super) attempts: u8,
    /// Its part in the memory of a batch.
    pub(super) share: Option<Share>,
}

/// Most times that a fetch is begun.
const ATTEMPTS_MAX: u8 = 8;

/// A fetch on its way.
pub(super) struct Fetching {
    fetch: Fetch,
    pool: Option<Arc<Pool>>,
    aim: Aim,
}

/// What of an object a fetch reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Aim {
    pub(super) part: Part,
    /// Bytes of the part.
    pub(super) len: usize,
    /// Where the wanted bytes are in it.
    wanted: Range<usize>,
    object_bytes: u64,
}

impl Aim {
    /// Whole pieces around `range`. Of a KV block, whose pieces are others, all its `block_bytes`, padding included.
    ///
    /// # Errors
    /// [`Failure::Part`] where the range begins behind the object's end.
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

/// Who waits for an answer.
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
    /// Whether it is reads into the store's own memory.
    pub(super) fn is_fetch(&self) -> bool {
        match self {
            Work::One(item) => matches!(item, Item::Fetch(_)),
            Work::Many(items) => matches!(items.first(), Some(Item::Fetch(_))),
            Work::Ask(_) => false,
        }
    }

    /// Answers it with a failure, without having begun it.
    pub(super) fn refuse(self, failure: &Failure) {
        match self {
            Work::One(item) => item.refuse(failure.clone()),
            Work::Many(items) => items.into_iter().for_each(|item| item.refuse(failure.clone())),
            Work::Ask(ask) => ask(Err(failure.clone())),
        }
    }
}

impl Item {
    /// Whether somebody still waits for the answer.
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

    /// Answers it with a failure, without having begun it.
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
    /// The command that it becomes, with memory for its aim.
    pub(super) fn begin(mut self, aim: Aim, buffer: PoolBuffer) -> (GetItem, Waiter) {
        let (run, pool) = buffer.into_parts();
        self.attempts += 1;
        let item =
            GetItem { key: self.key.clone(), part: aim.part.clone(), into: AnyBuffer::One(run) };
        (item, Waiter::Fetching(Fetching { fetch: self, pool: Some(pool), aim }))
    }

    /// The command for an object that is not there: it is counted as a miss.
    pub(super) fn begin_miss(mut self) -> (GetItem, Waiter) {
        self.attempts += 1;
        let item = GetItem { key: self.key.clone(), part: Part::All, into: AnyBuffer::None };
        let aim = Aim { part: Part::All, len: 0, wanted: 0..0, object_bytes: 0 };
        (item, Waiter::Fetching(Fetching { fetch: self, pool: None, aim }))
    }
}

impl Fetching {
    /// Gives the bytes to whoever waits. The fetch back where it has to be begun again.
    fn answer(self, done: Done) -> Option<Fetch> {
        let Fetching { fetch, pool, aim } = self;
        let buffer = pooled(done.memory, aim.len, pool.as_ref());
        let answer = match (done.result, buffer) {
            (Ok(Outcome::Hit { bytes }), Some(buffer)) if bytes == aim.len as u64 => {
                Ok(Some(Value::new(buffer, aim.wanted, aim.object_bytes)))
            }
            (Ok(Outcome::Miss), _) => Ok(None),
            // The object is another than when the memory was taken.
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

/// The store's own memory, as it was lent.
fn pooled(memory: AnyBuffer, len: usize, pool: Option<&Arc<Pool>>) -> Option<PoolBuffer> {
    match (memory, pool) {
        (AnyBuffer::One(run), Some(pool)) => Some(PoolBuffer::of(run, len, pool)),
        _ => None,
    }
}

/// Memory that is the caller's; a pool's goes home.
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
    /// Gives the answer to whoever waits. A fetch comes back where it has to be begun again.
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

/// The request for the shard that `items` are, all of one kind, and who waits for each.
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

/// The items of a list, of which one kind is there.
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

/// The request that one item is, and who waits for it.
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
