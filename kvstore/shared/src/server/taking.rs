//! Takes a client's requests from its ring and gives them to the store.
//!
//! A thread of the store does so in its rounds ([`Feed`]), so that a request wakes no other thread. Before it sleeps it
//! says so in the ring, and the client rings its doorbell; once awake it says that, too. When something is wrong with
//! the ring, it tells the client's own thread.
//!
//! Neighbouring gets go to the store together, so that they share commands. So do puts of one call of the client's,
//! which the store lays out one behind the other, but no others: it lays out single puts where they fit best. The order
//! is the client's.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_kvstore::shard::{Condition, Part};
use adit_kvstore::store::{DefinedLayout, Feed, Payload, PutWith, Selection};
use adit_kvstore::{Key, Store, Version};

use super::counts::Counts;
use super::desk::{Desk, Flight};
use super::link::{End, Link};
use super::outcome;
use crate::ring::{ANYTHING, Asked, Broken, Rings, Sleep};
use crate::wire::{Ask, Code, Done, KEYS_MAX, MemoryRun, RequestEntry};

/// The most requests that are given to the store together.
const TOGETHER_MAX: u64 = 256;

/// Puts that go to the store together.
struct Puts {
    layout: u32,
    ttl_s: u32,
    condition: Condition,
    items: Vec<(u64, Key, MemoryRun, u64, Buffer)>,
}

/// Requests of one kind that go to the store together.
enum Together {
    None,
    Gets(Vec<(u64, Key, Part, MemoryRun, Buffer)>),
    Puts(Puts),
    /// Requests of one kind about keys alone.
    Keys(ByKey, Vec<(u64, Key)>),
}

/// A question about a key that is answered with yes or no.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByKey {
    Exists,
    Delete,
    Touch(u32),
    Refresh,
}

/// A client's requests on their way to the store.
pub(super) struct Taking {
    store: Store,
    link: Arc<Link>,
    sleep: Sleep,
    /// The client's doorbell for the server.
    bell: File,
    asked: Asked,
    desk: Arc<Desk>,
    with: PutWith,
    /// The longest lease; a client renews one that it needs for longer.
    lease_max: Duration,
    /// Keys for the next request that takes several.
    keys: Vec<Key>,
    counts: Arc<Counts>,
}

impl Taking {
    pub(super) fn new(
        (store, link): (Store, Arc<Link>),
        (rings, bell): (&Rings, File),
        desk: &Arc<Desk>,
        (with, lease_max): (PutWith, Duration),
        counts: &Arc<Counts>,
    ) -> Taking {
        let (asked, sleep) = (Asked::new(rings), Sleep::of_server(rings));
        let (desk, counts) = (Arc::clone(desk), Arc::clone(counts));
        let keys = Vec::new();
        Taking { store, link, sleep, bell, asked, desk, with, lease_max, keys, counts }
    }

    fn takes(&self) -> Result<u64, String> {
        let broken = |Broken| "a counter of its rings cannot be right".to_owned();
        let waiting = self.asked.count().map_err(broken)?;
        let room = self.desk.room().map_err(broken)?;
        if waiting > 0 && room == 0 {
            return Err("it asks for more than it has room for answers".to_owned());
        }
        Ok(waiting.min(room).min(TOGETHER_MAX))
    }

    /// Begins the requests that wait, and returns their number.
    ///
    /// # Errors
    /// The fault of the ring, in words.
    fn begin_all(&mut self) -> Result<u64, String> {
        let count = self.takes()?;
        if count == 0 {
            return Ok(0);
        }
        self.counts.requests.fetch_add(count, Ordering::Relaxed);
        let mut together = Together::None;
        for _ in 0..count {
            let entry = self.asked.take();
            self.begin(&entry, &mut together)?;
        }
        self.asked.publish();
        self.send(together);
        Ok(count)
    }

    fn begin(&mut self, entry: &RequestEntry, together: &mut Together) -> Result<(), String> {
        let tag = entry.head.tag;
        let asked = Ask::of(entry).map_err(|why| (Code::Malformed, why));
        let begun = asked.and_then(|ask| match ask {
            Ask::Key(key) => self.add_key(key),
            ask => self.start(tag, ask, together),
        });
        if let Err(why) = begun {
            // Answers come in any order, but a refusal needs no room of its own: its request had room.
            self.desk.answer(&outcome::refused(tag, why));
        }
        if self.keys.len() > KEYS_MAX {
            return Err(format!("it names more than {KEYS_MAX} keys in one request"));
        }
        Ok(())
    }

    fn add_key(&mut self, key: Key) -> Result<(), (Code, &'static str)> {
        self.keys.push(key);
        Ok(())
    }

    fn start(
        &mut self,
        tag: u64,
        ask: Ask,
        together: &mut Together,
    ) -> Result<(), (Code, &'static str)> {
        let ask = match ask {
            Ask::Get { key, part, memory, version: None, is_checked: false } => {
                let buffer = self.desk.take(memory)?;
                let gets = self.gets(together);
                gets.push((tag, key, part, memory, buffer));
                return Ok(());
            }
            Ask::Put { key, memory, bytes, layout, ttl_s, joins, condition } => {
                self.check_put(memory, bytes, layout)?;
                let buffer = self.desk.take(memory)?;
                let puts = self.puts(together, (layout, ttl_s, condition), joins);
                puts.push((tag, key, memory, bytes, buffer));
                return Ok(());
            }
            Ask::Exists(key) => return self.by_key(together, ByKey::Exists, (tag, key)),
            Ask::Delete { key, version: None } => {
                return self.by_key(together, ByKey::Delete, (tag, key));
            }
            Ask::Touch { key, ttl_s: Some(ttl_s) } => {
                return self.by_key(together, ByKey::Touch(ttl_s), (tag, key));
            }
            Ask::Refresh(key) => return self.by_key(together, ByKey::Refresh, (tag, key)),
            other => other,
        };
        self.send(std::mem::replace(together, Together::None));
        self.start_alone(tag, ask)
    }

    /// Begins a request that goes to the store by itself.
    fn start_alone(&mut self, tag: u64, ask: Ask) -> Result<(), (Code, &'static str)> {
        let mut run = None;
        let flight = match ask {
            Ask::Get { key, part, memory, version, is_checked } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                self.get((key, part, version), buffer, is_checked)
            }
            Ask::Scan { prefix, from, limit, memory } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                Flight::scan(&self.store, (&prefix, from, limit), buffer)
            }
            Ask::Removals { prefix, from, limit, memory } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                Flight::removals(&self.store, (&prefix, from, limit), buffer)
            }
            Ask::Info(key) => Flight::Info(self.store.info(key)),
            Ask::Reserve { key, bytes, layout, ttl_s, condition } => {
                self.check_layout(layout)?;
                let with = self.with(layout, ttl_s, condition);
                let held = self.desk.hold(bytes)?;
                Flight::Reserve(self.store.reserve(key, bytes, &with), held)
            }
            Ask::Fill { writer, offset, bytes, memory } => {
                if bytes > memory.bytes {
                    return Err((Code::Malformed, "a part has all of its bytes in its memory"));
                }
                let writer = self.desk.writer(writer)?;
                let buffer = self.desk.take(*run.insert(memory))?;
                Flight::Fill(writer.fill(offset, Payload::lent(buffer, bytes)))
            }
            Ask::Seal(writer) => Flight::Seal(self.desk.take_writer(writer)?.commit()),
            Ask::Abandon(writer) => {
                let was_there = self.desk.take_writer(writer).map(drop).is_ok();
                return self.say(tag, was_there);
            }
            Ask::Delete { key, version: Some(version) } => {
                Flight::Yes(self.store.delete_if(key, version))
            }
            Ask::Touch { key, ttl_s: None } => Flight::Yes(self.store.persist(key)),
            Ask::LookupPrefix(key) => {
                self.keys.push(key);
                Flight::LookupPrefix(self.store.lookup_prefix(&std::mem::take(&mut self.keys)))
            }
            Ask::Lease { key, time } => {
                self.keys.push(key);
                let keys = std::mem::take(&mut self.keys);
                let time = time.min(self.lease_max);
                Flight::Lease(self.store.lease(&keys, time), time)
            }
            Ask::Commit => Flight::Commit(self.store.commit()),
            Ask::DeletePrefix(key) => {
                let selection = Selection::Prefix(key.as_bytes().into());
                Flight::DeletePrefix(self.store.delete_where(&selection))
            }
            Ask::Release(lease) => {
                let was_there = self.desk.release(lease);
                return self.say(tag, was_there);
            }
            Ask::Put { .. }
            | Ask::Key(_)
            | Ask::Exists(_)
            | Ask::Refresh(_)
            | Ask::Delete { .. }
            | Ask::Touch { .. } => unreachable!("begun with others of its kind"),
        };
        self.desk.begin(tag, flight, run);
        Ok(())
    }

    /// Begins a get that goes to the store by itself.
    fn get(
        &self,
        (key, part, version): (Key, Part, Option<Version>),
        into: Buffer,
        is_checked: bool,
    ) -> Flight {
        match (is_checked, version) {
            (true, version) => {
                Flight::CheckedGet(self.store.get_checked_into(key, part, into, version))
            }
            (false, Some(version)) => Flight::Get(self.store.get_into_if(key, part, into, version)),
            (false, None) => Flight::Get(self.store.get_into(key, part, into)),
        }
    }

    /// Answers at once.
    fn say(&mut self, tag: u64, is_so: bool) -> Result<(), (Code, &'static str)> {
        self.desk.answer(&Done::new(tag, Code::Done, u64::from(is_so), 0));
        Ok(())
    }

    fn layouts(&self) -> MutexGuard<'_, Vec<DefinedLayout>> {
        self.link.layouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_put(
        &self,
        memory: MemoryRun,
        bytes: u64,
        layout: u32,
    ) -> Result<(), (Code, &'static str)> {
        if bytes > memory.bytes {
            return Err((Code::Malformed, "an object has all of its bytes in its memory"));
        }
        self.check_layout(layout)
    }

    fn check_layout(&self, layout: u32) -> Result<(), (Code, &'static str)> {
        match layout {
            0 => Ok(()),
            number if number as usize <= self.layouts().len() => Ok(()),
            _ => Err((Code::Malformed, "there is no such layout: define it first")),
        }
    }

    /// Returns the list that the next get goes to.
    fn gets<'a>(
        &mut self,
        together: &'a mut Together,
    ) -> &'a mut Vec<(u64, Key, Part, MemoryRun, Buffer)> {
        if !matches!(together, Together::Gets(_)) {
            self.send(std::mem::replace(together, Together::Gets(Vec::new())));
        }
        let Together::Gets(items) = together else { unreachable!("made above") };
        items
    }

    /// Returns the list that the next put with these options goes to. `joins`: it is of the call of the put before it.
    fn puts<'a>(
        &mut self,
        together: &'a mut Together,
        with: (u32, u32, Condition),
        joins: bool,
    ) -> &'a mut Vec<(u64, Key, MemoryRun, u64, Buffer)> {
        let fits = joins
            && matches!(together, Together::Puts(puts) if (puts.layout, puts.ttl_s, puts.condition) == with);
        if !fits {
            let (layout, ttl_s, condition) = with;
            let empty = Puts { layout, ttl_s, condition, items: Vec::new() };
            self.send(std::mem::replace(together, Together::Puts(empty)));
        }
        let Together::Puts(Puts { items, .. }) = together else { unreachable!("made above") };
        items
    }

    /// Adds a request about a key to the list of its kind.
    fn by_key(
        &self,
        together: &mut Together,
        kind: ByKey,
        item: (u64, Key),
    ) -> Result<(), (Code, &'static str)> {
        match together {
            Together::Keys(of, items) if *of == kind => items.push(item),
            _ => self.send(std::mem::replace(together, Together::Keys(kind, vec![item]))),
        }
        Ok(())
    }

    fn send_keys(&self, kind: ByKey, items: Vec<(u64, Key)>) {
        let (tags, keys): (Vec<u64>, Vec<Key>) = items.into_iter().unzip();
        let batch = match kind {
            ByKey::Exists => self.store.exists_many(keys),
            ByKey::Refresh => self.store.refresh_many(keys),
            ByKey::Delete => self.store.delete_many(keys),
            ByKey::Touch(ttl_s) => self.store.touch_many(keys, Duration::from_secs(ttl_s.into())),
        };
        for (tag, pending) in tags.into_iter().zip(batch) {
            self.desk.begin(tag, Flight::Yes(pending), None);
        }
    }

    /// Returns the options of what is put with a layout that there is, or 0.
    fn with(&self, layout: u32, ttl_s: u32, condition: Condition) -> PutWith {
        PutWith {
            condition,
            ttl: (ttl_s > 0).then(|| Duration::from_secs(ttl_s.into())),
            layout: layout.checked_sub(1).map(|at| self.layouts()[at as usize].clone()),
            ..self.with.clone()
        }
    }

    /// Gives requests to the store.
    fn send(&self, together: Together) {
        match together {
            Together::None => {}
            Together::Gets(mut items) if items.len() == 1 => {
                let (tag, key, part, run, buffer) = items.remove(0);
                let pending = self.store.get_into(key, part, buffer);
                self.desk.begin(tag, Flight::Get(pending), Some(run));
            }
            Together::Gets(items) => {
                let mut tags = Vec::with_capacity(items.len());
                let gets = items.into_iter().map(|(tag, key, part, run, buffer)| {
                    tags.push((tag, run));
                    (key, part, AnyBuffer::One(buffer))
                });
                let batch = self.store.get_many_into(gets);
                for ((tag, run), pending) in tags.into_iter().zip(batch) {
                    self.desk.begin(tag, Flight::Get(pending), Some(run));
                }
            }
            Together::Keys(kind, items) => self.send_keys(kind, items),
            Together::Puts(Puts { layout, ttl_s, condition, mut items }) => {
                let with = self.with(layout, ttl_s, condition);
                if items.len() == 1 {
                    let (tag, key, run, bytes, buffer) = items.remove(0);
                    let pending = self.store.put_with(key, Payload::lent(buffer, bytes), &with);
                    return self.desk.begin(tag, Flight::Put(pending), Some(run));
                }
                let mut tags = Vec::with_capacity(items.len());
                let puts = items.into_iter().map(|(tag, key, run, bytes, buffer)| {
                    tags.push((tag, run));
                    (key, Payload::lent(buffer, bytes))
                });
                let batch = self.store.put_many(puts, &with);
                for ((tag, run), pending) in tags.into_iter().zip(batch) {
                    self.desk.begin(tag, Flight::Put(pending), Some(run));
                }
            }
        }
    }
}

impl Drop for Taking {
    /// Tells the client's thread if no thread of the store takes its requests any more.
    fn drop(&mut self) {
        if !self.link.is_over.load(Ordering::Acquire) {
            self.link.end_with(End::Left("the store has ended".to_owned()));
        }
    }
}

impl Feed for Taking {
    fn turn(&mut self) -> Option<usize> {
        if self.link.is_over.load(Ordering::Acquire) {
            return None;
        }
        match self.begin_all() {
            Ok(count) => Some(count as usize),
            Err(fault) => {
                self.link.end_with(End::Expelled(fault));
                None
            }
        }
    }

    fn announce(&mut self) -> bool {
        self.sleep.announce(ANYTHING);
        // The next turn finds a fault of the ring.
        !matches!(self.takes(), Ok(0))
    }

    fn resume(&mut self) {
        self.sleep.end();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
