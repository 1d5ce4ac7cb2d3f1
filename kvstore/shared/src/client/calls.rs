//! The calls of a store, as requests to its server.

use std::io::Read as Source;
use std::time::Duration;

use adit_kvstore::layout::Layout;
use adit_kvstore::shard::{Failure, Outcome, Part};
use adit_kvstore::store::{DefinedLayout, Lease, ObjectInfo, PutWith, Removed};
use adit_kvstore::{Error, KEY_BYTES_MAX, Key, KvStore, Result, ScanPage, Version};

use super::data::Data;
use super::handle::{Client, Made};
use super::kept::Value;
use super::meaning;
use super::pending::Pending;
use super::requests::{Memory, Needs, Wish};
use super::{Put, Read, Unfinished};
use crate::memory::Span;
use crate::wire::{Ask, KEYS_MAX, Matter, MemoryRun, Message, layout_numbers};

/// Memory for a page of a list.
const PAGE_BYTES: usize = 64 << 10;

/// The calls of [`adit_kvstore::Store`]. Those of many items go to the server together. Objects belong to the tenant of
/// [`ClientOptions`](super::ClientOptions), so [`PutWith::tenant`] fails as undefined, and [`PutWith::after`] is
/// refused.
impl KvStore for Client {
    type Memory = Span;
    type Lent = Option<Span>;
    type Data<'a> = Data<'a>;
    type Value = Value;
    type Pending<T: Send + 'static> = Pending<T>;
    type Batch<T: Send + 'static> = Vec<Pending<T>>;

    /// Makes shared memory of at least `len` bytes, which the server registers with the store until all spans of it are
    /// dropped. Waits for the registration: make one span for all of an engine's pool and split it. From 2 MiB on, the
    /// length is rounded up to 2 MiB and the memory lies on pages of that size as far as the system has some, with
    /// which a drive is faster.
    ///
    /// # Errors
    /// [`Error::Refused`] if that is more than a client may share; [`Error::System`] if there is no memory.
    fn allocate(&self, len: usize) -> Result<Span> {
        self.make_memory(len)
    }

    fn lent<'a>(memory: Span, bytes: u64) -> Data<'a> {
        Data::Span(memory, bytes)
    }

    fn put_with<'a>(&self, key: Key, data: impl Into<Data<'a>>, with: &PutWith) -> Pending<Put> {
        self.submit(self.make_put(key, data.into(), with, false), meaning::put)
    }

    fn put_many<'a, D: Into<Data<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Vec<Pending<Put>> {
        let make =
            |(at, (key, data)): (usize, (Key, D))| self.make_put(key, data.into(), with, at > 0);
        let made = items.into_iter().enumerate().map(make);
        self.submit_all(made.collect(), meaning::put)
    }

    /// Stores what can be read through some MiB of shared memory of its own.
    fn put_from(
        &self,
        key: Key,
        bytes: Option<u64>,
        from: impl Source,
        with: &PutWith,
    ) -> Result<Outcome> {
        self.supply(key, bytes, from, with)
    }

    fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.submit(self.make_fetch(key), meaning::value)
    }

    fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<Option<Value>>> {
        let made = keys.into_iter().map(|key| self.make_fetch(key));
        self.submit_all(made.collect(), meaning::value)
    }

    fn get_into(&self, key: Key, part: Part, into: Span) -> Pending<Read> {
        self.submit(self.make_get(key, part, into, None), meaning::read)
    }

    fn get_into_if(&self, key: Key, part: Part, into: Span, version: Version) -> Pending<Read> {
        self.submit(self.make_get(key, part, into, Some(version)), meaning::read)
    }

    fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, Span)>,
    ) -> Vec<Pending<Read>> {
        let make = |(key, part, into)| self.make_get(key, part, into, None);
        self.submit_all(items.into_iter().map(make).collect(), meaning::read)
    }

    fn exists(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Exists(key)), meaning::yes)
    }

    fn exists_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        self.ask_each(keys, Ask::Exists)
    }

    fn refresh_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        self.ask_each(keys, Ask::Refresh)
    }

    fn info(&self, key: Key) -> Pending<Option<ObjectInfo>> {
        self.submit(plain(Ask::Info(key)), meaning::info)
    }

    /// Takes 64 KiB of the pool meanwhile, which bounds a page as `limit` does.
    fn scan_prefix(&self, prefix: &[u8], from: u64, limit: usize) -> Pending<ScanPage> {
        if prefix.len() > KEY_BYTES_MAX {
            return Pending::made(&self.shared, Ok((Vec::new(), None)));
        }
        let (prefix, limit) = (prefix.into(), limit as u64);
        let ask = Ask::Scan { prefix, from, limit, memory: MemoryRun::NONE };
        self.submit(self.make_list(ask), meaning::page)
    }

    /// A position from before a restart of the server counts as one that missed some. Takes 64 KiB of the pool
    /// meanwhile, which bounds an answer as `limit` does.
    fn removals(&self, prefix: &[u8], from: Option<u64>, limit: usize) -> Pending<Removed> {
        if prefix.len() > KEY_BYTES_MAX {
            let removed = Removed { keys: Vec::new(), next: from.unwrap_or(0), missed_some: false };
            return Pending::made(&self.shared, Ok(removed));
        }
        let (prefix, limit) = (prefix.into(), limit as u64);
        let ask = Ask::Removals { prefix, from, limit, memory: MemoryRun::NONE };
        self.submit(self.make_list(ask), meaning::removed)
    }

    fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        if keys.is_empty() {
            return Pending::made(&self.shared, Ok(0));
        }
        self.submit(several(keys, Ask::LookupPrefix), meaning::count)
    }

    /// The server shortens a lease to its longest; a lease also ends with this process.
    fn lease(&self, keys: &[Key], time: Duration) -> Pending<Lease> {
        if keys.is_empty() {
            return Pending::made(&self.shared, Ok(Lease::served((), 0, 0)));
        }
        self.submit(several(keys, |key| Ask::Lease { key, time }), meaning::lease)
    }

    fn delete(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Delete { key, version: None }), meaning::yes)
    }

    fn delete_if(&self, key: Key, version: Version) -> Pending<bool> {
        self.submit(plain(Ask::Delete { key, version: Some(version) }), meaning::yes)
    }

    fn delete_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        self.ask_each(keys, |key| Ask::Delete { key, version: None })
    }

    fn delete_prefix(&self, prefix: Key) -> Pending<u64> {
        self.submit(plain(Ask::DeletePrefix(prefix)), meaning::objects)
    }

    fn touch(&self, key: Key, ttl: Duration) -> Pending<bool> {
        self.submit(plain(Ask::Touch { key, ttl_s: Some(whole_seconds(ttl)) }), meaning::yes)
    }

    fn touch_many(&self, keys: impl IntoIterator<Item = Key>, ttl: Duration) -> Vec<Pending<bool>> {
        let ttl_s = Some(whole_seconds(ttl));
        self.ask_each(keys, |key| Ask::Touch { key, ttl_s })
    }

    fn persist(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Touch { key, ttl_s: None }), meaning::yes)
    }

    fn define_layout(&self, layout: Layout) -> Result<DefinedLayout> {
        let message = Message::new(Matter::Layout, layout_numbers(&layout));
        let answer = self.ask(&message, &[])?;
        Ok(DefinedLayout::served(layout, self.shared.number, answer.numbers[0] as u32))
    }

    fn commit(&self) -> Pending<()> {
        self.submit(plain(Ask::Commit), meaning::nothing)
    }
}

impl Client {
    /// Asks a yes-or-no question about each key.
    fn ask_each(
        &self,
        keys: impl IntoIterator<Item = Key>,
        ask: impl Fn(Key) -> Ask,
    ) -> Vec<Pending<bool>> {
        let made = keys.into_iter().map(|key| plain(ask(key)));
        self.submit_all(made.collect(), meaning::yes)
    }

    fn make_put(&self, key: Key, data: Data<'_>, with: &PutWith, joins: bool) -> Made {
        let layout = match self.check_with(with) {
            Ok(layout) => layout,
            Err(why) => {
                return Err(Unfinished { memory: data.into_span(), ..Unfinished::new(why) });
            }
        };
        let ask = |bytes| Ask::Put {
            key,
            memory: MemoryRun::NONE,
            bytes,
            layout,
            ttl_s: with.ttl.map_or(0, whole_seconds),
            joins,
            condition: with.condition,
        };
        let from = match data {
            Data::Span(span, bytes) => return Ok((Wish::new(ask(bytes)), self.lend(span)?)),
            Data::Bytes(from) => from,
        };
        self.check_pool(from.len())?;
        let ask = ask(from.len() as u64);
        let Some(mut span) = self.shared.with(|requests| requests.take_pooled(from.len())) else {
            return Ok((Wish { ask, needs: Needs::Copy(from.to_vec()) }, Memory::None));
        };
        span.bytes_mut().slice(0..from.len()).copy_from(from);
        Ok((Wish::new(ask), Memory::Pooled(span)))
    }

    /// Checks the options of a put, and returns the number of its layout, or 0.
    ///
    /// # Errors
    /// [`Failure::Undefined`] for a layout of another connection and for a tenant; [`Error::Invalid`] for a
    /// predecessor, which requests do not carry.
    pub(super) fn check_with(&self, with: &PutWith) -> Result<u32> {
        if with.tenant.is_some() {
            return Err(Failure::Undefined("tenant").into());
        }
        if let Some(after) = &with.after {
            let fix = "leave it out: a client does not choose the places of objects";
            return Err(Error::invalid("the object's predecessor", after, fix));
        }
        let layout = with.layout.as_ref().map(|layout| layout.number_at(self.shared.number));
        Ok(layout.map_or(Some(0), |known| known).ok_or(Failure::Undefined("layout"))?)
    }

    fn make_fetch(&self, key: Key) -> Made {
        self.check_pool(0)?;
        Ok((Wish::with_room(get(key, Part::All, None), 0), Memory::None))
    }

    fn make_get(&self, key: Key, part: Part, into: Span, version: Option<Version>) -> Made {
        Ok((Wish::new(get(key, part, version)), self.lend(into)?))
    }

    fn make_list(&self, ask: Ask) -> Made {
        self.check_pool(PAGE_BYTES)?;
        Ok((Wish::with_room(ask, PAGE_BYTES), Memory::None))
    }

    /// Takes the caller's memory for a request. The number of another connection's region would name other memory here.
    fn lend(&self, span: Span) -> Result<Memory, Unfinished> {
        if span.connection() == self.shared.number {
            return Ok(Memory::Lent(span));
        }
        let fix = "use memory of Client::allocate of this one";
        let error = Error::invalid("the memory", "another connection's", fix);
        Err(Unfinished { memory: Some(span), ..Unfinished::new(error) })
    }
}

/// Returns the request for a part of an object, which the client verifies.
pub(super) fn get(key: Key, part: Part, version: Option<Version>) -> Ask {
    Ask::Get { key, part, memory: MemoryRun::NONE, version, is_checked: false }
}

/// Makes a request without memory.
pub(super) fn plain(ask: Ask) -> Made {
    Ok((Wish::new(ask), Memory::None))
}

/// Makes a request that names several keys, the last of them in `ask`.
fn several(keys: &[Key], ask: impl FnOnce(Key) -> Ask) -> Made {
    let (last, before) = keys.split_last().expect("an empty list was answered before");
    if keys.len() > KEYS_MAX {
        let fix = format!("name at most {KEYS_MAX}");
        return Err(Unfinished::new(Error::invalid("the number of keys", keys.len(), fix)));
    }
    let needs = Needs::Keys(before.to_vec(), 0);
    Ok((Wish { ask: ask(last.clone()), needs }, Memory::None))
}

/// Returns a duration in seconds, rounded up, at most as many as a request can carry.
pub(super) fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
