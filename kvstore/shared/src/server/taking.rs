//! Takes a client's requests from its ring and passes them to the store.
//!
//! A thread of the store does this in each of its rounds ([`Feed`]), so that a request wakes no other thread. It
//! announces in the ring when it goes to sleep and when it is awake again, and the client rings the doorbell of a
//! sleeping one. It reports a broken ring to the client's own thread.
//!
//! Consecutive gets go to the store together, so that they share commands, and so do the puts of one call, which the
//! store places one behind the other. Other puts go one by one, and the store places each where it fits best. Requests
//! keep the client's order.

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
use super::page;
use crate::ring::{ANYTHING, Asked, Broken, Rings, Sleep};
use crate::wire::{Ask, Code, Done, KEYS_MAX, MemoryRun, Reason, RequestEntry};

/// The most requests that are given to the store together.
const TOGETHER_MAX: u64 = 256;

/// Requests of one kind that go to the store together, and for each its tag and its memory.
#[derive(Default)]
struct Together {
    items: Items,
    tags: Vec<(u64, Option<MemoryRun>)>,
}

#[derive(Default)]
enum Items {
    #[default]
    None,
    Gets(Vec<(Key, Part, AnyBuffer)>),
    /// Puts with the same options.
    Puts(PutTerms, Vec<(Key, Payload<'static>)>),
    /// Requests of one kind about keys alone.
    Keys(ByKey, Vec<Key>),
}

/// The terms of a put: its layout, the seconds until it expires, and its condition.
type PutTerms = (u32, u32, Condition);

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

    /// Begins the waiting requests and returns their number.
    ///
    /// # Errors
    /// The fault of the ring, in words.
    fn begin_all(&mut self) -> Result<u64, String> {
        let count = self.takes()?;
        if count == 0 {
            return Ok(0);
        }
        self.counts.requests.fetch_add(count, Ordering::Relaxed);
        let mut together = Together::default();
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
        let asked = Ask::of(entry).map_err(Reason::malformed);
        if let Err(why) = asked.and_then(|ask| self.start(tag, ask, together)) {
            // Answers come in any order, but a refusal needs no room of its own: its request had room.
            self.desk.answer(&Done::failed(&why).with_tag(tag));
        }
        if self.keys.len() > KEYS_MAX {
            return Err(format!("it names more than {KEYS_MAX} keys in one request"));
        }
        Ok(())
    }

    fn start(&mut self, tag: u64, ask: Ask, together: &mut Together) -> Result<(), Reason> {
        match ask {
            Ask::Get { key, part, memory, version: None, is_checked: false } => {
                let item = (key, part, AnyBuffer::One(self.desk.take(memory)?));
                match &mut together.items {
                    Items::Gets(gets) => gets.push(item),
                    _ => self.regroup(together, Items::Gets(vec![item])),
                }
                together.tags.push((tag, Some(memory)));
            }
            Ask::Put { key, memory, bytes, layout, ttl_s, joins, condition } => {
                if bytes > memory.bytes {
                    return Err(Reason::malformed("an object has all of its bytes in its memory"));
                }
                self.check_layout(layout)?;
                let item = (key, Payload::lent(self.desk.take(memory)?, bytes));
                let with = (layout, ttl_s, condition);
                match &mut together.items {
                    Items::Puts(has, puts) if joins && *has == with => puts.push(item),
                    _ => self.regroup(together, Items::Puts(with, vec![item])),
                }
                together.tags.push((tag, Some(memory)));
            }
            Ask::Key(key) => self.keys.push(key),
            Ask::Exists(key) => self.by_key(together, ByKey::Exists, (tag, key)),
            Ask::Delete { key, version: None } => {
                self.by_key(together, ByKey::Delete, (tag, key));
            }
            Ask::Touch { key, ttl_s: Some(ttl_s) } => {
                self.by_key(together, ByKey::Touch(ttl_s), (tag, key));
            }
            Ask::Refresh(key) => self.by_key(together, ByKey::Refresh, (tag, key)),
            other => {
                self.send(std::mem::take(together));
                self.start_alone(tag, other)?;
            }
        }
        Ok(())
    }

    /// Adds a request about a key to those of its kind.
    fn by_key(&self, together: &mut Together, kind: ByKey, (tag, key): (u64, Key)) {
        match &mut together.items {
            Items::Keys(has, keys) if *has == kind => keys.push(key),
            _ => self.regroup(together, Items::Keys(kind, vec![key])),
        }
        together.tags.push((tag, None));
    }

    /// Passes the collected requests to the store and begins a new collection.
    fn regroup(&self, together: &mut Together, items: Items) {
        self.send(std::mem::replace(together, Together { items, tags: Vec::new() }));
    }

    /// Begins a request that goes to the store by itself.
    fn start_alone(&mut self, tag: u64, ask: Ask) -> Result<(), Reason> {
        let mut run = None;
        let flight = match ask {
            Ask::Get { key, part, memory, version, is_checked } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                self.get((key, part, version), buffer, is_checked)
            }
            Ask::Scan { prefix, from, limit, memory } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                let most = page::objects_max(&buffer, limit);
                Flight::Scan(self.store.scan_prefix(&prefix, from, most), Some(buffer))
            }
            Ask::Removals { prefix, from, limit, memory } => {
                let buffer = self.desk.take(*run.insert(memory))?;
                let most = page::removals_max(&buffer, limit);
                Flight::Removals(self.store.removals(&prefix, from, most), Some(buffer))
            }
            Ask::Info(key) => Flight::Info(self.store.info(key)),
            Ask::Reserve { key, bytes, layout, ttl_s, condition } => {
                self.check_layout(layout)?;
                let with = self.with((layout, ttl_s, condition));
                let held = self.desk.hold(bytes)?;
                Flight::Reserve(self.store.reserve(key, bytes, &with), held)
            }
            Ask::Fill { writer, offset, bytes, memory } => {
                if bytes > memory.bytes {
                    return Err(Reason::malformed("a part has all of its bytes in its memory"));
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
        match version {
            Some(version) if !is_checked => {
                Flight::Get(self.store.get_into_if(key, part, into, version))
            }
            version => Flight::CheckedGet(self.store.get_checked_into(key, part, into, version)),
        }
    }

    /// Answers at once.
    fn say(&self, tag: u64, is_so: bool) -> Result<(), Reason> {
        self.desk.answer(&Done::new(Code::Done, u64::from(is_so), 0).with_tag(tag));
        Ok(())
    }

    fn layouts(&self) -> MutexGuard<'_, Vec<DefinedLayout>> {
        self.link.layouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_layout(&self, layout: u32) -> Result<(), Reason> {
        match layout {
            0 => Ok(()),
            number if number as usize <= self.layouts().len() => Ok(()),
            _ => Err(Reason::malformed("there is no such layout: define it first")),
        }
    }

    /// Returns the options of a put, whose layout is defined or 0.
    fn with(&self, (layout, ttl_s, condition): PutTerms) -> PutWith {
        PutWith {
            condition,
            ttl: (ttl_s > 0).then(|| Duration::from_secs(ttl_s.into())),
            layout: layout.checked_sub(1).map(|at| self.layouts()[at as usize].clone()),
            ..self.with.clone()
        }
    }

    /// Passes requests to the store.
    fn send(&self, Together { items, tags }: Together) {
        let store = &self.store;
        let mut tags = tags.into_iter();
        let mut begin = |flight| {
            let (tag, run) = tags.next().expect("each request has a tag");
            self.desk.begin(tag, flight, run);
        };
        match items {
            Items::None => {}
            Items::Gets(gets) if gets.len() == 1 => {
                for (key, part, into) in gets {
                    begin(Flight::Get(store.get_into(key, part, into)));
                }
            }
            Items::Gets(gets) => {
                store.get_many_into(gets).into_iter().for_each(|get| begin(Flight::Get(get)));
            }
            Items::Puts(with, puts) if puts.len() == 1 => {
                let with = self.with(with);
                for (key, data) in puts {
                    begin(Flight::Put(store.put_with(key, data, &with)));
                }
            }
            Items::Puts(with, puts) => {
                let puts = store.put_many(puts, &self.with(with));
                puts.into_iter().for_each(|put| begin(Flight::Put(put)));
            }
            Items::Keys(kind, keys) => {
                let asked = match kind {
                    ByKey::Exists => store.exists_many(keys),
                    ByKey::Refresh => store.refresh_many(keys),
                    ByKey::Delete => store.delete_many(keys),
                    ByKey::Touch(ttl_s) => {
                        store.touch_many(keys, Duration::from_secs(ttl_s.into()))
                    }
                };
                asked.into_iter().for_each(|answer| begin(Flight::Yes(answer)));
            }
        }
    }
}

impl Drop for Taking {
    /// Informs the client's thread if the store's threads no longer take its requests.
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
