//! The calls of a store, wherever it is: in this process ([`Store`]), or served by another one
//! (`adit_kvshare::Client`).
//!
//! Both take and return the same types ([`Key`], [`PutWith`], [`Put`], [`Read`], [`ObjectInfo`], [`Lease`],
//! [`DefinedLayout`], [`Failure`](crate::shard::Failure)). What differs is memory: a store of this process lends
//! buffers that its devices know, a client spans that it shares with its server. So memory, and what carries it, are
//! associated types of [`KvStore`].
//!
//! | | [`Store`] | `adit_kvshare::Client` |
//! |---|---|---|
//! | [`KvStore::Memory`] | [`Buffer`] | `Span` |
//! | [`KvStore::Lent`], as answers return it | [`AnyBuffer`] | `Option<Span>` |
//! | [`KvStore::Data`] | [`Payload`] | `Data` |
//! | [`KvStore::Value`] | [`Value`] in the pool or the memory tier | `Value` in the client's pool |
//! | [`KvStore::Pending`] | [`Pending`] | `Pending`, a place in the rings |
//! | [`KvStore::Batch`] | [`Batch`] | `Vec<Pending>` |
//!
//! ```
//! use adit_kvstore::{Key, KvStore, PendingAnswer, Result, StoredBytes};
//!
//! /// Copies an object from any store to any other.
//! fn copy(from: &impl KvStore, to: &impl KvStore, key: &Key) -> Result<bool> {
//!     let Some(value) = from.get(key.clone()).wait()? else { return Ok(false) };
//!     Ok(to.put(key.clone(), value.bytes()).wait()?.is_stored())
//! }
//! ```
//!
//! A call that only one of them has is a method of its type: quotas, plans and writing by layers of [`Store`], the
//! event loop of a client.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_driver::sys::SharedBytes;

use crate::error::Result;
use crate::model::key::Key;
use crate::model::layout::Layout;
use crate::model::object::Version;
use crate::shard::{Outcome, Part, Removed, Selection};
use crate::store::{
    Answer, Batch, DefinedLayout, Lease, ObjectInfo, Payload, Pending, Put, PutWith, Read, Store,
    Value,
};

/// Some of the objects of a store, and where the next of them begin.
pub type ScanPage = (Vec<ObjectInfo>, Option<u64>);

/// A request that was made, of any store: a future for any runtime, or a blocking [`PendingAnswer::wait`].
///
/// Dropping it cancels the request if it has not begun. Otherwise the request is carried out and its answer discarded;
/// its memory stays in place until then.
pub trait PendingAnswer: Future + Unpin + Sized {
    /// Returns how much longer [`PendingAnswer::wait`] waits.
    fn patience(&self) -> Duration;

    /// Blocks until the answer arrives, which is [`Error::Timeout`](crate::Error::Timeout) once the patience has
    /// passed.
    fn wait(self) -> Self::Output;

    /// Blocks for at most `at_most`.
    ///
    /// # Errors
    /// Itself, to be waited for again, if the answer has not arrived by then.
    fn wait_timeout(self, at_most: Duration) -> Result<Self::Output, Self>;

    /// Returns the answer if it has arrived, without waiting.
    ///
    /// # Errors
    /// Itself if the answer has not arrived.
    fn try_wait(self) -> Result<Self::Output, Self>;
}

/// An object's bytes, which were verified against their checksums. Their memory returns to the store with the drop.
pub trait StoredBytes {
    /// Returns the bytes. Others may be able to write them, so they are only copied.
    fn bytes(&self) -> SharedBytes<'_>;

    /// Returns the object's version.
    fn version(&self) -> Version;
}

/// Memory that can be split and joined: a [`Buffer`] of a store, or a span of a client.
pub trait Divide: Sized {
    /// Returns its length in bytes.
    fn bytes(&self) -> usize;

    /// Splits off the bytes from `at` on and keeps those before. `at` is at most its length.
    fn split_off(&mut self, at: usize) -> Self;

    /// Undoes [`Divide::split_off`].
    ///
    /// # Errors
    /// `tail`, if it does not lie directly behind.
    fn join(&mut self, tail: Self) -> Result<(), Self>;
}

/// A store of objects, in this process or served by another.
///
/// No call that returns a [`KvStore::Pending`] waits: the request goes on whether that is polled or not. Every request
/// ends exactly once, and returns the memory that was lent to it.
pub trait KvStore: Clone + Send + Sync + 'static {
    /// Memory that requests read and write in place, from [`KvStore::allocate`].
    type Memory: Divide + Send + 'static;
    /// Memory as an answer returns it: none if none was lent, or if a device may still write it.
    type Lent: From<Self::Memory> + Default + fmt::Debug + Send + 'static;
    /// The data of an object: bytes to copy, or memory that is lent.
    type Data<'a>: From<&'a [u8]> + From<SharedBytes<'a>>;
    /// The value that a get returns.
    type Value: StoredBytes + Send + 'static;
    /// A request in progress.
    type Pending<T: Send + 'static>: PendingAnswer<Output = Answer<T, Self::Lent>> + Send + 'static;
    /// The requests of one call, in the order of its items.
    type Batch<T: Send + 'static>: IntoIterator<Item = Self::Pending<T>>;

    /// Allocates memory of at least `len` bytes that devices read and write in place. Waits for the system.
    ///
    /// # Errors
    /// The system's or the server's reason.
    fn allocate(&self, len: usize) -> Result<Self::Memory>;

    /// Lends the first `bytes` bytes of memory to a put. Up to 4095 bytes behind the object's end may be zeroed.
    fn lent<'a>(memory: Self::Memory, bytes: u64) -> Self::Data<'a>;

    /// Stores an object, replacing one with the same key.
    fn put<'a>(&self, key: Key, data: impl Into<Self::Data<'a>>) -> Self::Pending<Put<Self::Lent>> {
        self.put_with(key, data, &PutWith::default())
    }

    /// Like [`KvStore::put`], with options.
    fn put_with<'a>(
        &self,
        key: Key,
        data: impl Into<Self::Data<'a>>,
        with: &PutWith,
    ) -> Self::Pending<Put<Self::Lent>>;

    /// Stores several objects, planned together.
    fn put_many<'a, D: Into<Self::Data<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Self::Batch<Put<Self::Lent>>;

    /// Stores the next `bytes` bytes of `from` as an object, or all that it gives if `bytes` is `None`, in bounded
    /// memory. The object appears whole or not at all. Blocks the thread.
    ///
    /// # Errors
    /// [`Error::Source`](crate::Error::Source) if `from` cannot be read or ends too soon; the store's.
    fn put_from(
        &self,
        key: Key,
        bytes: Option<u64>,
        from: impl io::Read,
        with: &PutWith,
    ) -> Result<Outcome>;

    /// Reads an object into memory of the store or of the client.
    fn get(&self, key: Key) -> Self::Pending<Option<Self::Value>>;

    /// Reads several objects, planned together. Values hold memory: take no more at a time than its pool has.
    fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Self::Batch<Option<Self::Value>>;

    /// Reads a part of an object into the caller's memory, which comes back with the answer.
    fn get_into(&self, key: Key, part: Part, into: Self::Memory)
    -> Self::Pending<Read<Self::Lent>>;

    /// Like [`KvStore::get_into`], if the object has this version. With another version it fails with
    /// [`Failure::Conflict`](crate::shard::Failure::Conflict), so ranges that are read one after another are never of
    /// different versions.
    fn get_into_if(
        &self,
        key: Key,
        part: Part,
        into: Self::Memory,
        version: Version,
    ) -> Self::Pending<Read<Self::Lent>>;

    /// Like [`KvStore::get_into`] for parts of several objects, planned together, such as one layer of many KV blocks.
    fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, Self::Memory)>,
    ) -> Self::Batch<Read<Self::Lent>>;

    /// Returns whether the object exists.
    fn exists(&self, key: Key) -> Self::Pending<bool>;

    /// Returns for each key whether its object exists.
    fn exists_many(&self, keys: impl IntoIterator<Item = Key>) -> Self::Batch<bool>;

    /// Like [`KvStore::exists_many`], and counts as a use of each object ([`Store::refresh_many`]).
    fn refresh_many(&self, keys: impl IntoIterator<Item = Key>) -> Self::Batch<bool>;

    /// Returns what the store knows about an object.
    fn info(&self, key: Key) -> Self::Pending<Option<ObjectInfo>>;

    /// Returns at most `limit` of the objects whose keys begin with `prefix` from cursor `from`, and the next cursor
    /// while there are more ([`Store::scan_prefix`]). Start at 0. A page may be empty while there are more.
    fn scan_prefix(&self, prefix: &[u8], from: u64, limit: usize) -> Self::Pending<ScanPage>;

    /// Tells which objects went after position `from`: at most `limit` of those whose keys begin with `prefix`
    /// ([`Store::removals`]).
    fn removals(&self, prefix: &[u8], from: Option<u64>, limit: usize) -> Self::Pending<Removed>;

    /// Returns how many of `keys` exist before the first miss.
    fn lookup_prefix(&self, keys: &[Key]) -> Self::Pending<usize>;

    /// Keeps the objects of `keys` before the first miss readable for `time`, or until the lease is dropped.
    fn lease(&self, keys: &[Key], time: Duration) -> Self::Pending<Lease>;

    /// Removes an object; returns false if there is none.
    fn delete(&self, key: Key) -> Self::Pending<bool>;

    /// Removes an object if it has this version; returns true then. Without an object or with another version it fails
    /// with [`Failure::Conflict`](crate::shard::Failure::Conflict).
    fn delete_if(&self, key: Key, version: Version) -> Self::Pending<bool>;

    /// Removes several objects, planned together. Each answer says whether there was an object.
    fn delete_many(&self, keys: impl IntoIterator<Item = Key>) -> Self::Batch<bool>;

    /// Removes all objects whose keys begin with `prefix`, and returns their number.
    fn delete_prefix(&self, prefix: Key) -> Self::Pending<u64>;

    /// Lets an object expire after `ttl` from now, rounded up to whole seconds ([`Store::touch`]). Returns false if
    /// there is no object.
    fn touch(&self, key: Key, ttl: Duration) -> Self::Pending<bool>;

    /// Like [`KvStore::touch`] for several objects.
    fn touch_many(&self, keys: impl IntoIterator<Item = Key>, ttl: Duration) -> Self::Batch<bool>;

    /// Lets an object never expire. Returns false if there is no object.
    fn persist(&self, key: Key) -> Self::Pending<bool>;

    /// Defines a model's layout of KV blocks for [`PutWith::layout`], or finds it, and waits for that.
    ///
    /// # Errors
    /// [`Failure::Layout`](crate::shard::Failure::Layout) if the store has no room for another.
    fn define_layout(&self, layout: Layout) -> Result<DefinedLayout>;

    /// Completes when everything acknowledged before survives a power cut.
    fn commit(&self) -> Self::Pending<()>;
}

impl Divide for Buffer {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn split_off(&mut self, at: usize) -> Buffer {
        Buffer::split_off(self, at)
    }

    fn join(&mut self, tail: Buffer) -> Result<(), Buffer> {
        Buffer::join(self, tail)
    }
}

impl StoredBytes for Value {
    fn bytes(&self) -> SharedBytes<'_> {
        (&self[..]).into()
    }

    fn version(&self) -> Version {
        Value::version(self)
    }
}

impl<T> PendingAnswer for Pending<T> {
    fn patience(&self) -> Duration {
        Pending::patience(self)
    }

    fn wait(self) -> Answer<T> {
        Pending::wait(self)
    }

    fn wait_timeout(self, at_most: Duration) -> Result<Answer<T>, Pending<T>> {
        Pending::wait_timeout(self, at_most)
    }

    fn try_wait(self) -> Result<Answer<T>, Pending<T>> {
        Pending::try_wait(self)
    }
}

/// The calls of [`Store`] of the same names, where these say more.
impl KvStore for Store {
    type Memory = Buffer;
    type Lent = AnyBuffer;
    type Data<'a> = Payload<'a>;
    type Value = Value;
    type Pending<T: Send + 'static> = Pending<T>;
    type Batch<T: Send + 'static> = Batch<T>;

    fn allocate(&self, len: usize) -> Result<Buffer> {
        Store::allocate(self, len)
    }

    fn lent<'a>(memory: Buffer, bytes: u64) -> Payload<'a> {
        Payload::lent(memory, bytes)
    }

    fn put_with<'a>(&self, key: Key, data: impl Into<Payload<'a>>, with: &PutWith) -> Pending<Put> {
        Store::put_with(self, key, data, with)
    }

    fn put_many<'a, D: Into<Payload<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Batch<Put> {
        Store::put_many(self, items, with)
    }

    fn put_from(
        &self,
        key: Key,
        bytes: Option<u64>,
        from: impl io::Read,
        with: &PutWith,
    ) -> Result<Outcome> {
        Store::put_from(self, key, bytes, from, with)
    }

    fn get(&self, key: Key) -> Pending<Option<Value>> {
        Store::get(self, key)
    }

    fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<Option<Value>> {
        Store::get_many(self, keys)
    }

    fn get_into(&self, key: Key, part: Part, into: Buffer) -> Pending<Read> {
        Store::get_into(self, key, part, into)
    }

    fn get_into_if(&self, key: Key, part: Part, into: Buffer, version: Version) -> Pending<Read> {
        Store::get_into_if(self, key, part, into, version)
    }

    fn get_many_into(&self, items: impl IntoIterator<Item = (Key, Part, Buffer)>) -> Batch<Read> {
        let items = items.into_iter().map(|(key, part, into)| (key, part, AnyBuffer::One(into)));
        Store::get_many_into(self, items)
    }

    fn exists(&self, key: Key) -> Pending<bool> {
        Store::exists(self, key)
    }

    fn exists_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        Store::exists_many(self, keys)
    }

    fn refresh_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        Store::refresh_many(self, keys)
    }

    fn info(&self, key: Key) -> Pending<Option<ObjectInfo>> {
        Store::info(self, key)
    }

    fn scan_prefix(&self, prefix: &[u8], from: u64, limit: usize) -> Pending<ScanPage> {
        Store::scan_prefix(self, prefix, from, limit)
    }

    fn removals(&self, prefix: &[u8], from: Option<u64>, limit: usize) -> Pending<Removed> {
        Store::removals(self, prefix, from, limit)
    }

    fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        Store::lookup_prefix(self, keys)
    }

    fn lease(&self, keys: &[Key], time: Duration) -> Pending<Lease> {
        Store::lease(self, keys, time)
    }

    fn delete(&self, key: Key) -> Pending<bool> {
        Store::delete(self, key)
    }

    fn delete_if(&self, key: Key, version: Version) -> Pending<bool> {
        Store::delete_if(self, key, version)
    }

    fn delete_many(&self, keys: impl IntoIterator<Item = Key>) -> Batch<bool> {
        Store::delete_many(self, keys)
    }

    fn delete_prefix(&self, prefix: Key) -> Pending<u64> {
        self.delete_where(&Selection::Prefix(prefix.as_bytes().into()))
    }

    fn touch(&self, key: Key, ttl: Duration) -> Pending<bool> {
        Store::touch(self, key, ttl)
    }

    fn touch_many(&self, keys: impl IntoIterator<Item = Key>, ttl: Duration) -> Batch<bool> {
        Store::touch_many(self, keys, ttl)
    }

    fn persist(&self, key: Key) -> Pending<bool> {
        Store::persist(self, key)
    }

    fn define_layout(&self, layout: Layout) -> Result<DefinedLayout> {
        Ok(Store::layout(self, layout).wait()?)
    }

    fn commit(&self) -> Pending<()> {
        Store::commit(self)
    }
}
