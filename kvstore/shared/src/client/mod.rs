//! A client of a store that another process has.
//!
//! The calls are those of [`adit_kvstore::Store`]. None waits: a request goes to the server at once, or waits in the
//! client for room in the ring or for memory of the pool, until [`Pending::wait`] or any other call finds some.
//!
//! **Memory.** [`Client::allocate`] makes memory that the server registers with the store; [`Span`]s of it go to the
//! drive and come back without a copy. Plain bytes pass through a pool of such memory, one copy in this process; values
//! of [`Client::get`] lie in the pool until they are dropped.
//!
//! **Verifying.** This process verifies bytes that were read, on the thread that takes the answer, before a caller sees any of
//! it. Where it is not what was put, the client asks again, and the server looks whether the object is damaged: then it is a
//! miss, and dropped.
//!
//! **Waiting.** Any number of threads may wait for requests. An event loop watches the client's one descriptor
//! ([`AsFd`]) and calls [`Client::reap`] when it is readable, and once after it has made requests; then it looks at its
//! requests ([`Pending::try_wait`]) or has been woken as their future. While an event loop does so, threads that wait
//! look again every 100 microseconds. A thread of one's own can serve futures without that: it takes answers
//! ([`Client::take_answers`]), which wakes them, and sleeps until more come ([`Client::watch`]).
//!
//! **A lost server.** A client whose server is lost stays lost: its requests fail with [`Error::Lost`], those in flight
//! too. [`Client::when_lost`] says when; connect anew, and again until a server listens. Layouts, leases, readers and what
//! was not stored yet are of the old connection, and end with it: another refuses its layouts. So are its spans, whose
//! memory stays mapped while there are some, and which no other server can map: allocate anew. Spans of requests that the
//! old one had do not come back, because its devices may still write them.
//!
//! A process that forks must not use the client in the child.

mod connection;
mod kept;
mod meaning;
mod pending;
mod shared;
mod state;
mod streams;

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_kvstore::layout::Layout;
use adit_kvstore::shard::{Condition, Part};
use adit_kvstore::store::Removed;
use adit_kvstore::{KEY_BYTES_MAX, Key, Version};
use adit_shared::SharedBytesMut;
use nix::sys::eventfd::{EfdFlags, EventFd};

pub use kept::{Lease, Value};
pub use pending::{Answer, Pending};
pub use streams::{ClientPieces, Piece};

use crate::error::{Error, Result, Unfinished};
use crate::mapping::{LARGE, Mapping, PAGE};
use crate::memory::{self, Region, Span};
use crate::ring::{self, Rings, Sleep};
use crate::wire::{Ask, Matter, Message, VERSION, layout_numbers};
use pending::Meaning;
use shared::{Control, Registration, Shared};
use state::{Get, How, Listed, Memory, State, Wish};

/// Memory for a page of a list.
const PAGE_BYTES: usize = 64 << 10;
/// How long the server may take to answer a message.
const MESSAGE_MAX: Duration = Duration::from_secs(60);

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The tenant that owns the objects that it puts. Default none.
    pub tenant: Option<String>,
    /// Requests that the server has at a time: a power of two from 2 to 4096. Others wait in line. Default 256.
    pub depth: u64,
    /// Bytes of the pool for plain bytes and values, made when it is first needed. Default 64 MiB.
    pub pool_bytes: usize,
    /// How long [`Pending::wait`] waits. Default 60 s.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        let timeout = Duration::from_secs(60);
        ClientOptions { tenant: None, depth: 256, pool_bytes: 64 << 20, timeout }
    }
}

/// Options for storing an object.
#[derive(Clone, Debug, Default)]
pub struct PutWith {
    /// Its maximum lifetime, rounded up to whole seconds.
    pub ttl: Option<Duration>,
    /// Its layout, if it is a KV block.
    pub layout: Option<SharedLayout>,
    /// What must hold of the key, or the put fails with [`Code::Conflict`](crate::wire::Code::Conflict).
    pub condition: Condition,
}

/// A layout of KV blocks that a client has defined, for [`PutWith`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLayout {
    /// The connection, and the layout's number there.
    place: (u64, u32),
    layout: Layout,
}

impl SharedLayout {
    /// Returns the layout itself.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// The data of an object.
pub enum Data<'a> {
    /// Bytes to copy to the pool.
    Bytes(&'a [u8]),
    /// So many bytes that a function copies to the pool, for bytes to which there can be no reference because others
    /// may write them.
    Copied(usize, &'a dyn Fn(SharedBytesMut<'_>)),
    /// The first bytes of shared memory, which comes back with the answer. Up to 4095 bytes of it are zeroed behind the
    /// object's end.
    Span(Span, u64),
}

impl Data<'_> {
    /// Returns the shared memory, if it is such.
    fn into_span(self) -> Option<Span> {
        if let Data::Span(span, _) = self { Some(span) } else { None }
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Data::Copied(bytes, _) => write!(f, "Copied({bytes})"),
            Data::Span(span, bytes) => write!(f, "Span({span:?}, {bytes})"),
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Data<'a> {
    fn from(bytes: &'a T) -> Data<'a> {
        Data::Bytes(bytes.as_ref())
    }
}

impl From<Span> for Data<'_> {
    fn from(span: Span) -> Self {
        let bytes = span.len() as u64;
        Data::Span(span, bytes)
    }
}

/// The result of a put.
#[derive(Debug)]
pub struct Put {
    /// Whether the object was stored; otherwise admission or the write budget rejected it.
    pub is_stored: bool,
    /// The memory that was lent.
    pub memory: Option<Span>,
    /// The version that the object got, if it was stored.
    pub version: Option<Version>,
}

/// What the store knows about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its version, which says when it was stored.
    pub version: Version,
    /// Seconds until it expires, if it does; at most 2^32 - 2.
    pub ttl_s: Option<u64>,
    /// The name of its tenant; empty for the default tenant.
    pub tenant: String,
}

/// An object of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Its key.
    pub key: Key,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its version.
    pub version: Version,
}

/// The result of a read into the caller's memory.
#[derive(Debug)]
pub struct Read {
    /// Bytes of the part; `None` if there is no such object.
    pub bytes: Option<u64>,
    /// The caller's memory.
    pub memory: Span,
    /// The object's version, if there is one.
    pub version: Option<Version>,
}

/// A connection to the server of a store, usable from any thread. Clones refer to the same connection, which ends with
/// the last of them and of their requests, spans, values and leases.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// Bytes that the server lets a client share.
    bytes_max: u64,
}

impl Client {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`Error::System`] if no server listens there; [`Error::Refused`] if it does not take this client;
    /// [`Error::Invalid`] for an invalid option.
    pub fn connect(path: &Path, options: &ClientOptions) -> Result<Client> {
        if !ring::is_depth(options.depth) {
            let fix = "use a power of two from 2 to 4096";
            return Err(Error::Invalid { what: format!("depth {}", options.depth), fix });
        }
        let connect = |why| Error::system(format!("connect to {}", path.display()), why);
        let bytes = ring::bytes(options.depth);
        let make = |why| Error::system("make the rings", why);
        let file = memory::make(c"adit-rings", bytes as u64).map_err(make)?;
        let rings = Rings::new(memory::own_rings(&file, bytes).map_err(make)?, options.depth);
        let (bell, bell_file) = doorbell()?;
        let (server_bell, server_bell_file) = doorbell()?;
        let process = std::process::id().into();
        let greeting = Message::new(Matter::Greet, [VERSION, options.depth, process, 0])
            .with_body(options.tenant.as_deref().unwrap_or_default().as_bytes());
        // After all is ready: a connection that says nothing makes room for others.
        let stream = UnixStream::connect(path).map_err(connect)?;
        stream.set_read_timeout(Some(MESSAGE_MAX)).map_err(connect)?;
        stream.set_write_timeout(Some(MESSAGE_MAX)).map_err(connect)?;
        let watched = stream.try_clone().map_err(connect)?;
        let control = Control::new(stream);
        let answer = control.ask(&greeting, &[&file, &server_bell_file, &bell_file]);
        let answer = answer.map_err(|error| match error {
            Error::Lost { why } => Error::Lost {
                why: format!(
                    "{why}, before it answered: it may have too many connections; try again"
                ),
            },
            error => error,
        })?;
        let bytes_max = answer.numbers[1];
        let state = State::new(&rings, options.depth);
        let (sleep, bells) = (Sleep::of_client(&rings), (bell, server_bell));
        let shared = Shared::new(state, (control, watched), sleep, bells, options.clone());
        Ok(Client { shared, bytes_max })
    }

    /// Makes shared memory of at least `len` bytes, which the server registers with the store until all spans of it are
    /// dropped. Waits for that: make one piece for all of an engine's pool and split it. From 2 MiB on it is rounded up to
    /// 2 MiB and lies on pages of that size, as far as the system has some: a drive does more with those.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::Limit`](crate::wire::Code::Limit) if that is more than a client may share; [`Error::System`] if there is no
    /// memory.
    pub fn allocate(&self, len: usize) -> Result<Span> {
        let page = if len < LARGE { PAGE } else { LARGE as u64 };
        let bytes = (len.max(1) as u64).next_multiple_of(page);
        let make = |why| Error::system(format!("make {bytes} bytes of shared memory"), why);
        self.check_lost()?;
        let file = memory::make(c"adit-pool", bytes).map_err(make)?;
        // The server takes no page that is not there, and seals the file against later mappings. It pins the pages, which
        // then stay as they are. None are made if it is going to refuse them.
        let map = || Mapping::new(&file, bytes as usize).map_err(make);
        let mapping = (bytes <= self.bytes_max).then(map).transpose()?;
        if let Some(mapping) = &mapping {
            mapping.enlarge();
            mapping.populate().map_err(make)?;
        }
        let answer = self.ask(&Message::new(Matter::Share, [bytes, 0, 0, 0]), &[&file])?;
        let (control, number) = (Arc::clone(&self.shared.control), answer.numbers[0]);
        let registration = Box::new(Registration { control, number });
        let mapping = mapping.map_or_else(map, Ok)?;
        Ok(Region::span(mapping, (self.shared.number, number as u32), registration))
    }

    /// Stores an object, replacing one with the same key.
    pub fn put<'a>(&self, key: Key, data: impl Into<Data<'a>>) -> Pending<Put> {
        self.put_with(key, data, &PutWith::default())
    }

    /// Like [`Client::put`], with options.
    pub fn put_with<'a>(
        &self,
        key: Key,
        data: impl Into<Data<'a>>,
        with: &PutWith,
    ) -> Pending<Put> {
        let made = self.make_put(key, data.into(), with, false);
        self.submit(made, meaning::put)
    }

    /// Stores several objects, which go to the server together and are laid out in their order.
    pub fn put_many<'a, D: Into<Data<'a>>>(
        &self,
        items: impl IntoIterator<Item = (Key, D)>,
        with: &PutWith,
    ) -> Vec<Pending<Put>> {
        let make =
            |(at, (key, data)): (usize, (Key, D))| self.make_put(key, data.into(), with, at > 0);
        let made = items.into_iter().enumerate().map(make);
        self.submit_all(made.collect(), meaning::put)
    }

    fn make_put(&self, key: Key, data: Data<'_>, with: &PutWith, joins: bool) -> Made {
        let layout = match self.layout_number(with) {
            Ok(number) => number,
            Err(error) => {
                return Err(Unfinished { memory: data.into_span(), ..Unfinished::new(error) });
            }
        };
        let ttl_s = with.ttl.map_or(0, whole_seconds);
        let how = How { layout, ttl_s, joins, condition: with.condition };
        match data {
            Data::Span(span, bytes) => Ok((Wish::Put { key, bytes, how }, self.lend(span)?)),
            Data::Bytes(bytes) => {
                let copy = |mut into: SharedBytesMut<'_>| into.write(0, bytes);
                self.make_copied(key, bytes.len(), &copy, how)
            }
            Data::Copied(bytes, copy) => self.make_copied(key, bytes, copy, how),
        }
    }

    /// Makes a put of bytes in the pool, or of bytes that wait for room in it.
    fn make_copied(
        &self,
        key: Key,
        bytes: usize,
        copy: &dyn Fn(SharedBytesMut<'_>),
        how: How,
    ) -> Made {
        self.check_pool(bytes)?;
        let Some(span) = self.shared.with(|state| state.take_pooled(bytes)) else {
            let mut data = vec![0; bytes];
            copy(data.as_mut_slice().into());
            return Ok((Wish::PutBytes { key, data, how }, Memory::None));
        };
        let mut lent = Lent { shared: &self.shared, span: Some(span) };
        lent.span.iter_mut().for_each(|span| copy(span.bytes_mut().slice(0..bytes)));
        let span = lent.span.take().expect("it is not given back yet");
        Ok((Wish::Put { key, bytes: bytes as u64, how }, Memory::Pooled(span)))
    }

    /// Reads an object into memory of the pool.
    pub fn get(&self, key: Key) -> Pending<Option<Value>> {
        self.submit(self.make_fetch(key), meaning::value)
    }

    /// Reads several objects, which are asked for together. Values hold memory of the pool: take no more at a time than
    /// fit in it.
    pub fn get_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<Option<Value>>> {
        let made = keys.into_iter().map(|key| self.make_fetch(key));
        self.submit_all(made.collect(), meaning::value)
    }

    fn make_fetch(&self, key: Key) -> Made {
        self.check_pool(0)?;
        let get = Get::new(key, Part::All, None);
        Ok((Wish::Fetch { get, room: 0 }, Memory::None))
    }

    /// Reads a part of an object into shared memory, which comes back with the answer.
    pub fn get_into(&self, key: Key, part: Part, into: Span) -> Pending<Read> {
        let wish = Wish::Get(Get::new(key, part, None));
        self.submit(self.lend(into).map(|memory| (wish, memory)), meaning::read)
    }

    /// Like [`Client::get_into`], if the object has this version; otherwise fails with [`Code::Conflict`](crate::wire::Code::Conflict), so that ranges
    /// that are read one after another are never of different versions.
    pub fn get_into_if(&self, key: Key, part: Part, into: Span, version: Version) -> Pending<Read> {
        let wish = Wish::Get(Get::new(key, part, Some(version)));
        self.submit(self.lend(into).map(|memory| (wish, memory)), meaning::read)
    }

    /// Like [`Client::get_into`] for parts of several objects, which are asked for together, such as one layer of many KV
    /// blocks.
    pub fn get_many_into(
        &self,
        items: impl IntoIterator<Item = (Key, Part, Span)>,
    ) -> Vec<Pending<Read>> {
        let made = items.into_iter();
        let made = made
            .map(|(key, part, into)| Ok((Wish::Get(Get::new(key, part, None)), self.lend(into)?)));
        self.submit_all(made.collect(), meaning::read)
    }

    /// Returns whether the object exists.
    pub fn exists(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Exists(key)), meaning::yes)
    }

    /// Returns for each key whether the object exists.
    pub fn exists_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        let made = keys.into_iter().map(|key| plain(Ask::Exists(key)));
        self.submit_all(made.collect(), meaning::yes)
    }

    /// Like [`Client::exists_many`], and counts as a use of each object ([`adit_kvstore::Store::refresh_many`]).
    pub fn refresh_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        let made = keys.into_iter().map(|key| plain(Ask::Refresh(key)));
        self.submit_all(made.collect(), meaning::yes)
    }

    /// Returns an object's length in bytes.
    pub fn length(&self, key: Key) -> Pending<Option<u64>> {
        self.submit(plain(Ask::Info(key)), meaning::length)
    }

    /// Returns what the store knows about an object.
    pub fn info(&self, key: Key) -> Pending<Option<Info>> {
        self.submit(plain(Ask::Info(key)), meaning::info)
    }

    /// Removes an object; returns false if there is none.
    pub fn delete(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Delete { key, version: None }), meaning::yes)
    }

    /// Removes an object if it has this version; otherwise fails with [`Code::Conflict`](crate::wire::Code::Conflict).
    pub fn delete_if(&self, key: Key, version: Version) -> Pending<bool> {
        self.submit(plain(Ask::Delete { key, version: Some(version) }), meaning::yes)
    }

    /// Removes several objects, which go to the server together. Each answer says whether there was an object.
    pub fn delete_many(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Pending<bool>> {
        let made = keys.into_iter().map(|key| plain(Ask::Delete { key, version: None }));
        self.submit_all(made.collect(), meaning::yes)
    }

    /// Lets an object expire after `ttl` from now, rounded up to whole seconds, and writes no data
    /// ([`adit_kvstore::Store::touch`]). Returns false if there is no object.
    pub fn touch(&self, key: Key, ttl: Duration) -> Pending<bool> {
        self.submit(plain(Ask::Touch { key, ttl_s: Some(whole_seconds(ttl)) }), meaning::yes)
    }

    /// Like [`Client::touch`] for several objects, which go to the server together.
    pub fn touch_many(
        &self,
        keys: impl IntoIterator<Item = Key>,
        ttl: Duration,
    ) -> Vec<Pending<bool>> {
        let ttl_s = Some(whole_seconds(ttl));
        let made = keys.into_iter().map(|key| plain(Ask::Touch { key, ttl_s }));
        self.submit_all(made.collect(), meaning::yes)
    }

    /// Lets an object never expire. Returns false if there is no object.
    pub fn persist(&self, key: Key) -> Pending<bool> {
        self.submit(plain(Ask::Touch { key, ttl_s: None }), meaning::yes)
    }

    /// Returns some of the objects whose keys begin with `prefix` from cursor `from`, and the next cursor while there are
    /// more, as [`adit_kvstore::Store::scan_prefix`] does: a page may be empty. Takes 64 KiB of the pool meanwhile.
    pub fn scan(&self, prefix: &[u8], from: u64) -> Pending<(Vec<Scanned>, Option<u64>)> {
        if prefix.len() > KEY_BYTES_MAX {
            return Pending::made(&self.shared, Ok((Vec::new(), None)));
        }
        self.submit(self.make_list(prefix, Listed::Objects(from)), meaning::page)
    }

    /// Tells which objects went after position `from`, of those whose keys begin with `prefix`, as
    /// [`adit_kvstore::Store::removals`] does. A position from before the server was started again is one whose reader
    /// missed some. Takes 64 KiB of the pool meanwhile.
    pub fn removals(&self, prefix: &[u8], from: Option<u64>) -> Pending<Removed> {
        if prefix.len() > KEY_BYTES_MAX {
            let removed = Removed { keys: Vec::new(), next: from.unwrap_or(0), missed_some: false };
            return Pending::made(&self.shared, Ok(removed));
        }
        self.submit(self.make_list(prefix, Listed::Removals(from)), meaning::removed)
    }

    fn make_list(&self, prefix: &[u8], what: Listed) -> Made {
        let wish = Wish::List { prefix: prefix.into(), what, room: PAGE_BYTES };
        self.check_pool(PAGE_BYTES).map(|()| (wish, Memory::None))
    }

    /// Returns how many of `keys` exist before the first miss.
    pub fn lookup_prefix(&self, keys: &[Key]) -> Pending<usize> {
        if keys.is_empty() {
            return Pending::made(&self.shared, Ok(0));
        }
        let made = several(keys, Ask::LookupPrefix);
        self.submit(made, meaning::count)
    }

    /// Keeps the objects of `keys` before the first miss readable for `time`, at most a day, or until the lease is
    /// dropped or this process ends.
    pub fn lease(&self, keys: &[Key], time: Duration) -> Pending<Lease> {
        if keys.is_empty() {
            let lease = Lease { shared: Arc::clone(&self.shared), number: 0, count: 0 };
            return Pending::made(&self.shared, Ok(lease));
        }
        let made = several(keys, |key| Ask::Lease { key, time });
        self.submit(made, meaning::lease)
    }

    /// Removes all objects whose keys begin with `prefix`, and returns their number.
    pub fn delete_prefix(&self, prefix: Key) -> Pending<u64> {
        self.submit(plain(Ask::DeletePrefix(prefix)), meaning::objects)
    }

    /// Completes when everything acknowledged before survives a power cut.
    pub fn commit(&self) -> Pending<()> {
        self.submit(plain(Ask::Commit), meaning::nothing)
    }

    /// Defines a model's layout of KV blocks, and waits for that.
    ///
    /// # Errors
    /// [`Error::Refused`] if the store has no room for another.
    pub fn layout(&self, layout: Layout) -> Result<SharedLayout> {
        let message = Message::new(Matter::Layout, layout_numbers(&layout));
        let answer = self.ask(&message, &[])?;
        Ok(SharedLayout { place: (self.shared.number, answer.numbers[0] as u32), layout })
    }

    /// Takes the answers that have arrived, for an event loop; see the module's documentation. Wakes their futures.
    pub fn reap(&self) {
        self.shared.reap();
    }

    /// Takes the answers that have arrived and wakes their futures, for a thread that serves them.
    pub fn take_answers(&self) {
        self.shared.take();
    }

    /// Sleeps until an answer arrives, [`Client::rouse`] is called, or `at_most` has passed. It may return before: call it
    /// again.
    pub fn watch(&self, at_most: Duration) {
        self.shared.watch(at_most);
    }

    /// Has [`Client::watch`] of another thread return, or the next call of it.
    pub fn rouse(&self) {
        self.shared.rouse();
    }

    /// Makes the pool if there is none and waits for that, so that no later request does.
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub fn make_pool(&self) -> Result<()> {
        if !self.has_pool() {
            let memory = self.allocate(self.shared.options().pool_bytes)?;
            self.shared.with(|state| state.set_pool(memory));
        }
        Ok(())
    }

    /// Returns whether the pool was made.
    pub fn has_pool(&self) -> bool {
        self.shared.with(|state| state.has_pool())
    }

    /// Makes the pool if there is none, and checks that it can hold `bytes`.
    fn check_pool(&self, bytes: usize) -> Result<(), Unfinished> {
        let pool_bytes = self.shared.options().pool_bytes;
        if bytes > pool_bytes {
            let what = format!("an object of {bytes} bytes, with a pool of {pool_bytes}");
            let fix = "put it in pieces (Client::put_from) or from shared memory (Client::allocate), or raise pool_bytes";
            return Err(Unfinished::new(Error::Invalid { what, fix }));
        }
        self.make_pool().map_err(Unfinished::new)
    }

    fn submit<T>(&self, made: Made, meaning: Meaning<T>) -> Pending<T> {
        self.submit_all(vec![made], meaning).pop().expect("one request, one answer")
    }

    /// Makes requests that go to the server together.
    fn submit_all<T>(&self, made: Vec<Made>, meaning: Meaning<T>) -> Vec<Pending<T>> {
        let slots = self.shared.with(|state| {
            let add = |made: Made| made.map(|(wish, memory)| state.add(wish, memory));
            let slots: Vec<Result<u32, Unfinished>> = made.into_iter().map(add).collect();
            state.turn();
            slots
        });
        let pending = |slot| match slot {
            Ok(slot) => Pending::new(&self.shared, slot, meaning),
            Err(why) => Pending::made(&self.shared, Err(why)),
        };
        slots.into_iter().map(pending).collect()
    }
}

/// Memory of the pool while a caller's function fills it, which goes back if that panics.
struct Lent<'a> {
    shared: &'a Shared,
    span: Option<Span>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.shared.with(|state| state.give_pooled(span));
        }
    }
}

/// Returns a duration in seconds, rounded up; at most what a request can tell.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// A request to make, or why there is none.
type Made = Result<(Wish, Memory), Unfinished>;

fn plain(ask: Ask) -> Made {
    Ok((Wish::Plain { ask, keys: Vec::new(), sent: 0 }, Memory::None))
}

/// Makes a request that names several keys, the last of them in `ask`.
fn several(keys: &[Key], ask: impl FnOnce(Key) -> Ask) -> Made {
    let (last, before) = keys.split_last().expect("an empty list was answered before");
    if keys.len() > crate::wire::KEYS_MAX {
        let (what, fix) = (format!("a list of {} keys", keys.len()), "name at most 16384");
        return Err(Unfinished::new(Error::Invalid { what, fix }));
    }
    let (ask, keys) = (ask(last.clone()), before.to_vec());
    Ok((Wish::Plain { ask, keys, sent: 0 }, Memory::None))
}

/// Makes an eventfd and a second descriptor of it.
fn doorbell() -> Result<(EventFd, File)> {
    let make = |why| Error::system("make a doorbell", why);
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    let bell = EventFd::from_flags(flags).map_err(|why| make(why.into()))?;
    let file = bell.as_fd().try_clone_to_owned().map_err(make)?;
    Ok((bell, File::from(file)))
}

/// A descriptor that becomes readable when answers arrive after [`Client::reap`].
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell().as_fd()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", self.shared.options()).finish_non_exhaustive()
    }
}
