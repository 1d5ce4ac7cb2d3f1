//! The requests of one client in progress, and their answers.
//!
//! A thread of the store takes requests and begins them. The thread that ends one calls its waker, which answers at
//! once: it writes the answer to the ring and signals the client, so that a request passes through no other thread. All
//! of that is behind one lock for each client, held for a few instructions.
//!
//! A request is taken only while there is room for its answer, so that a client that never reads its answers stalls
//! only itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_driver::serve::parts::Signaller;
use adit_kvstore::ScanPage;
use adit_kvstore::shard::Outcome;
use adit_kvstore::store::{
    Answer, Lease, ObjectInfo, Pending, Put, Read, Removed, Unfinished, Writer,
};

use super::counts::{Counts, add};
use super::options::Options;
use super::outcome;
use super::page;
use crate::pieces::Pieces;
use crate::ring::{Answering, Broken, Rings, Sleep};
use crate::wire::{Code, Done, MemoryRun, Reason};

/// The most leases that a client may hold.
const LEASES_MAX: usize = 4096;
/// The most objects that a client may be writing in parts.
const WRITERS_MAX: usize = 256;
/// The most regions that a client may share.
const REGIONS_MAX: usize = 1024;

/// Returns the error of a writer number that the client does not have.
fn no_writer() -> Reason {
    Reason::malformed("there is no such writer: it was sealed, given up or never made")
}

/// A request that the store has.
pub(super) enum Flight {
    Put(Pending<Put>),
    /// The client verifies it.
    Get(Pending<Read>),
    /// The store has verified it.
    CheckedGet(Pending<Read>),
    /// Says whether there was an object.
    Yes(Pending<bool>),
    Info(Pending<Option<ObjectInfo>>),
    /// Holds also the bytes of the object.
    Reserve(Pending<Writer>, u64),
    Fill(Pending<AnyBuffer>),
    Seal(Pending<Outcome>),
    /// A page of a scan, and the memory for it.
    Scan(Pending<ScanPage>, Option<Buffer>),
    /// Removals, and the memory for them.
    Removals(Pending<Removed>, Option<Buffer>),
    LookupPrefix(Pending<usize>),
    /// Holds also how long the lease lasts.
    Lease(Pending<Lease>, Duration),
    Commit(Pending<()>),
    DeletePrefix(Pending<u64>),
}

/// A request in progress.
struct Slot {
    tag: u64,
    flight: Flight,
    /// The place of its memory, if that is the client's.
    run: Option<MemoryRun>,
}

/// The bytes of the store that clients may hold by leases and by objects being written in parts.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    capacity_bytes: u64,
    /// Bytes of one client,
    client_bytes_max: u64,
    /// and of all together.
    all_bytes_max: u64,
}

impl Shares {
    /// Returns the shares of a store of `capacity_bytes`.
    pub(super) fn new(capacity_bytes: u64, options: &Options) -> Shares {
        let of = |percent: u64| capacity_bytes / 100 * percent.min(100);
        let percent = options.client_hold_percent;
        let all_bytes_max = of(percent.saturating_mul(2));
        Shares { capacity_bytes, client_bytes_max: of(percent), all_bytes_max }
    }
}

/// An object that is being written in parts, and its bytes.
struct Writing {
    writer: Arc<Writer>,
    bytes: u64,
}

/// A lease, and when it ends by itself.
struct Held {
    lease: Lease,
    until: Instant,
}

/// The books of a client, behind the lock of its desk.
struct Books {
    counts: Arc<Counts>,
    answers: Answering,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// The client's regions of memory.
    regions: Vec<Option<Pieces<Buffer>>>,
    leases: BTreeMap<u64, Held>,
    leases_made: u64,
    shares: Shares,
    /// Bytes of the objects that it leases or writes in parts.
    held_bytes: u64,
    writers: BTreeMap<u64, Writing>,
    writers_made: u64,
    /// The client is gone: requests that begin now are dropped.
    is_closed: bool,
}

/// A client's requests in progress.
pub(super) struct Desk {
    books: Mutex<Books>,
    wakers: Vec<Waker>,
    sleep: Sleep,
    /// The client's doorbell, which may be rung without waiting for the client.
    signaller: Signaller,
    bell: File,
}

/// Answers the request in a slot once the store has ended it.
struct SlotWaker {
    desk: Weak<Desk>,
    slot: u32,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        if let Some(desk) = self.desk.upgrade() {
            desk.attend(self.slot);
        }
    }
}

impl Desk {
    pub(super) fn new(
        rings: &Rings,
        depth: u64,
        shares: Shares,
        (signaller, bell): (Signaller, File),
        counts: &Arc<Counts>,
    ) -> Arc<Desk> {
        let slots = depth as u32;
        let books = Books {
            counts: Arc::clone(counts),
            answers: Answering::new(rings),
            slots: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            regions: Vec::new(),
            leases: BTreeMap::new(),
            leases_made: 0,
            shares,
            held_bytes: 0,
            writers: BTreeMap::new(),
            writers_made: 0,
            is_closed: false,
        };
        let sleep = Sleep::of_server(rings);
        Arc::new_cyclic(|desk| {
            let waker = |slot| Waker::from(Arc::new(SlotWaker { desk: Weak::clone(desk), slot }));
            let wakers = (0..slots).map(waker).collect();
            Desk { books: Mutex::new(books), wakers, sleep, signaller, bell }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many requests may be taken, each of which gets an answer.
    ///
    /// # Errors
    /// [`Broken`] if the client's counter cannot be right.
    pub(super) fn room(&self) -> Result<u64, Broken> {
        let books = self.lock();
        let in_progress = (books.slots.len() - books.free.len()) as u64;
        Ok(books.answers.room()?.saturating_sub(in_progress))
    }

    /// Begins to wait for a request to the store, for which [`Desk::room`] had room.
    pub(super) fn begin(&self, tag: u64, flight: Flight, run: Option<MemoryRun>) {
        let mut books = self.lock();
        if books.is_closed {
            // Dropped without the lock.
            drop(books);
            return drop(flight);
        }
        let slot = books.free.pop().expect("there is a slot for each answer that has room");
        let before = books.slots[slot as usize].replace(Slot { tag, flight, run });
        assert!(before.is_none(), "a free slot is empty");
        books.counts.requests_now.fetch_add(1, Ordering::Relaxed);
        drop(books);
        self.attend(slot);
    }

    /// Answers the request in a slot if it has ended, and else waits for it.
    fn attend(&self, number: u32) {
        let mut books = self.lock();
        let Some(slot) = &mut books.slots[number as usize] else { return };
        let context = &mut Context::from_waker(&self.wakers[number as usize]);
        let Some(ended) = slot.flight.poll(context) else { return };
        let slot = books.slots[number as usize].take().expect("it was there");
        books.free.push(number);
        let Ended { mut done, memory, kept } = ended;
        if let (Some(run), AnyBuffer::One(buffer)) = (slot.run, memory) {
            books.give(run, buffer);
        }
        match kept {
            Kept::Nothing => {
                if let Flight::Reserve(_, bytes) = slot.flight {
                    books.let_go(bytes);
                }
            }
            Kept::Lease(lease) => done = books.keep(lease),
            Kept::Writer(writing) => done = books.keep_writer(writing),
        }
        books.counts.requests_now.fetch_sub(1, Ordering::Relaxed);
        books.answer(&done.with_tag(slot.tag));
        drop(books);
        self.ring(slot.tag);
    }

    /// Answers a request that the store does not get.
    pub(super) fn answer(&self, done: &Done) {
        self.lock().answer(done);
        self.ring(done.tag);
    }

    /// Rings if the client sleeps until this answer comes.
    fn ring(&self, tag: u64) {
        if self.sleep.must_ring(tag) {
            // The client's file failed; the client's thread notices a client that is gone.
            if let Err(why) = self.signaller.signal(&self.bell) {
                tracing::warn!("cannot ring a client's doorbell: {why}");
            }
        }
    }

    /// Takes memory of the client's for a request.
    ///
    /// # Errors
    /// Why the request cannot have it.
    pub(super) fn take(&self, run: MemoryRun) -> Result<Buffer, Reason> {
        let mut books = self.lock();
        let region = books.regions.get_mut(run.region as usize).and_then(Option::as_mut);
        let region =
            region.ok_or_else(|| Reason::malformed("there is no such region of memory"))?;
        let fit = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (offset, bytes) = (fit(run.offset), fit(run.bytes));
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= region.bytes());
        if bytes == 0 || !is_inside {
            return Err(Reason::malformed("the memory is outside its region"));
        }
        let in_use = || Reason::new(Code::InUse, "a request in progress has some of this memory");
        region.take(offset, bytes).ok_or_else(in_use)
    }

    /// Adds a region and returns its number; `None` if there are too many.
    pub(super) fn add_region(&self, buffer: Buffer) -> Option<u32> {
        let mut books = self.lock();
        let empty = books.regions.iter().position(Option::is_none);
        let number = empty.unwrap_or(books.regions.len());
        if number == REGIONS_MAX {
            return None;
        }
        if empty.is_none() {
            books.regions.push(None);
        }
        books.regions[number] = Some(Pieces::new(buffer));
        Some(number as u32)
    }

    /// Removes a region that no request uses.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) fn remove_region(&self, number: u64) -> Result<(), &'static str> {
        let mut books = self.lock();
        let place = usize::try_from(number).ok().and_then(|number| books.regions.get_mut(number));
        let region = place.filter(|region| region.is_some());
        let region = region.ok_or("there is no such region of memory")?;
        if !region.as_ref().is_some_and(Pieces::is_whole) {
            return Err("a request in progress has some of it");
        }
        let removed = region.take();
        // Unmapping may take a while.
        drop(books);
        drop(removed);
        Ok(())
    }

    /// Ends a lease; returns whether there was one with this number.
    pub(super) fn release(&self, lease: u64) -> bool {
        // Dropped without the lock.
        let held = self.lock().remove_lease(lease);
        held.is_some()
    }

    /// Counts an object that is about to be written in parts, and returns the bytes that it holds: none if the store is
    /// certain to refuse it.
    ///
    /// # Errors
    /// If the client would hold too much of the store.
    pub(super) fn hold(&self, bytes: u64) -> Result<u64, Reason> {
        let mut books = self.lock();
        let bytes = if bytes > books.shares.capacity_bytes { 0 } else { bytes };
        books.hold(bytes)?;
        Ok(bytes)
    }

    /// Returns one of the client's writers.
    ///
    /// # Errors
    /// If there is no such writer.
    pub(super) fn writer(&self, number: u64) -> Result<Arc<Writer>, Reason> {
        let books = self.lock();
        let writing = books.writers.get(&number).ok_or_else(no_writer)?;
        Ok(Arc::clone(&writing.writer))
    }

    /// Removes one of the client's writers, to be sealed or dropped.
    ///
    /// # Errors
    /// If there is no such writer.
    pub(super) fn take_writer(&self, number: u64) -> Result<Writer, Reason> {
        let mut books = self.lock();
        let Writing { writer, bytes } = books.writers.remove(&number).ok_or_else(no_writer)?;
        books.let_go(bytes);
        drop(books);
        Arc::into_inner(writer).ok_or_else(no_writer)
    }

    /// Returns the number of requests in progress.
    pub(super) fn in_progress(&self) -> usize {
        let books = self.lock();
        books.slots.len() - books.free.len()
    }

    /// Cancels requests that have not begun, ends leases, and unmaps memory as soon as no request of the store's has
    /// it.
    pub(super) fn close(&self) {
        let mut books = self.lock();
        books.is_closed = true;
        let slots: Vec<Slot> = books.slots.iter_mut().filter_map(Option::take).collect();
        let regions = std::mem::take(&mut books.regions);
        let leases = std::mem::take(&mut books.leases);
        let writers = std::mem::take(&mut books.writers);
        // Bytes of the leases, of the writers and of reservations in progress.
        let held_bytes = books.held_bytes;
        books.let_go(held_bytes);
        books.counts.leases_now.fetch_sub(leases.len() as u64, Ordering::Relaxed);
        books.counts.requests_now.fetch_sub(slots.len() as u64, Ordering::Relaxed);
        drop(books);
        drop((slots, regions, leases, writers));
    }
}

impl Books {
    fn answer(&mut self, done: &Done) {
        self.answers.push(done);
        self.answers.publish();
    }

    fn give(&mut self, run: MemoryRun, buffer: Buffer) {
        // A region whose client is gone is dropped before its last request ends.
        if let Some(Some(region)) = self.regions.get_mut(run.region as usize) {
            region.give(run.offset as usize, buffer);
        }
    }

    /// Keeps a writer for the client and names it in the answer.
    fn keep_writer(&mut self, writing: Writing) -> Done {
        if self.writers.len() >= WRITERS_MAX {
            self.let_go(writing.bytes);
            let many = "this client writes too many objects in parts: commit or drop some";
            return Done::failed(&Reason::limit(many));
        }
        self.writers_made += 1;
        self.writers.insert(self.writers_made, writing);
        Done::new(Code::Done, self.writers_made, 0)
    }

    /// Keeps a lease for the client and names it in the answer.
    fn keep(&mut self, held: Held) -> Done {
        if self.leases.len() >= LEASES_MAX {
            self.drop_expired();
        }
        if self.leases.len() >= LEASES_MAX {
            let many = "this client holds too many leases: release some";
            return Done::failed(&Reason::limit(many));
        }
        let bytes = held.lease.bytes();
        if let Err(why) = self.hold(bytes) {
            return Done::failed(&why);
        }
        self.leases_made += 1;
        self.counts.leases_now.fetch_add(1, Ordering::Relaxed);
        let done = Done::new(Code::Done, self.leases_made, held.lease.count() as u64);
        self.leases.insert(self.leases_made, held);
        done.with_told(&bytes.to_ne_bytes())
    }

    /// Counts bytes that the client holds, within the limits.
    ///
    /// # Errors
    /// The limit that is exceeded.
    fn hold(&mut self, bytes: u64) -> Result<(), Reason> {
        if self.is_closed {
            return Err(Reason::limit("the client is gone"));
        }
        let most = self.shares.client_bytes_max;
        let fits =
            |books: &Books| books.held_bytes.checked_add(bytes).is_some_and(|all| all <= most);
        if !fits(self) {
            self.drop_expired();
        }
        if !fits(self) {
            return Err(Reason::limit(
                "this client would hold too much of the store by leases and objects in parts: release or commit some, \
                 or raise the server's --hold-share",
            ));
        }
        if add(&self.counts.held_bytes_now, bytes, self.shares.all_bytes_max).is_err() {
            return Err(Reason::limit(
                "all clients together would hold too much of the store by leases and objects in parts: try again, or \
                 raise the server's --hold-share",
            ));
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Undoes [`Books::hold`].
    fn let_go(&mut self, bytes: u64) {
        self.held_bytes -= bytes;
        self.counts.held_bytes_now.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Drops expired leases that the client has not released.
    fn drop_expired(&mut self) {
        let now = Instant::now();
        let over = |(number, held): (&u64, &Held)| (held.until <= now).then_some(*number);
        let over: Vec<u64> = self.leases.iter().filter_map(over).collect();
        over.into_iter().for_each(|number| drop(self.remove_lease(number)));
    }

    fn remove_lease(&mut self, number: u64) -> Option<Held> {
        let held = self.leases.remove(&number)?;
        self.let_go(held.lease.bytes());
        self.counts.leases_now.fetch_sub(1, Ordering::Relaxed);
        Some(held)
    }
}

/// A value that the server keeps for the client.
enum Kept {
    Nothing,
    Lease(Held),
    Writer(Writing),
}

/// A request that has ended.
struct Ended {
    done: Done,
    memory: AnyBuffer,
    kept: Kept,
}

impl Ended {
    fn of(done: Done) -> Ended {
        Ended::with(done, AnyBuffer::None)
    }

    fn number(value: u64) -> Ended {
        Ended::of(Done::new(Code::Done, value, 0))
    }

    fn keeping(kept: Kept) -> Ended {
        Ended { kept, ..Ended::number(0) }
    }

    fn with(done: Done, memory: AnyBuffer) -> Ended {
        Ended { done, memory, kept: Kept::Nothing }
    }
}

impl Flight {
    /// Returns how the request ended, if it has; the context's waker is called once it has. The answer lacks its tag.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Ended> {
        match self {
            Flight::Put(pending) => {
                ended(pending, context, |put| Ended::with(outcome::stored(&put), put.memory))
            }
            Flight::Get(pending) => {
                of_answer(pending.poll_unverified(context), |(read, digest)| {
                    Ended::with(outcome::read(&read, digest.as_ref()), read.memory)
                })
            }
            Flight::CheckedGet(pending) => {
                ended(pending, context, |read| Ended::with(outcome::read(&read, None), read.memory))
            }
            Flight::Yes(pending) => ended(pending, context, |yes| Ended::number(u64::from(yes))),
            Flight::Info(pending) => {
                ended(pending, context, |info| Ended::of(outcome::about(info)))
            }
            Flight::Reserve(pending, bytes) => ended(pending, context, |writer| {
                let (writer, bytes) = (Arc::new(writer), *bytes);
                Ended::keeping(Kept::Writer(Writing { writer, bytes }))
            }),
            Flight::Fill(pending) => {
                ended(pending, context, |memory| Ended { memory, ..Ended::number(0) })
            }
            Flight::Seal(pending) => ended(pending, context, |outcome| {
                Ended::of(Done::new(outcome::ended(outcome), 0, 0))
            }),
            Flight::Scan(pending, memory) => listed(pending, memory, context, page::written),
            Flight::Removals(pending, memory) => listed(pending, memory, context, page::removed),
            Flight::LookupPrefix(pending) => {
                ended(pending, context, |count| Ended::number(count as u64))
            }
            Flight::Lease(pending, time) => ended(pending, context, |lease| {
                let until = Instant::now() + *time;
                Ended::keeping(Kept::Lease(Held { lease, until }))
            }),
            Flight::Commit(pending) => ended(pending, context, |()| Ended::number(0)),
            Flight::DeletePrefix(pending) => ended(pending, context, Ended::number),
        }
    }
}

/// Returns how a request for a list ended, which `write` writes to the client's memory.
fn listed<T>(
    pending: &mut Pending<T>,
    memory: &mut Option<Buffer>,
    context: &mut Context<'_>,
    write: fn(&T, &mut Buffer) -> Done,
) -> Option<Ended> {
    let written = |list| Ended::of(write(&list, memory.as_mut().expect("there until the end")));
    let ended = ended(pending, context, written)?;
    Some(Ended { memory: memory.take().map_or(AnyBuffer::None, AnyBuffer::One), ..ended })
}

fn ended<T>(
    pending: &mut Pending<T>,
    context: &mut Context<'_>,
    of: impl FnOnce(T) -> Ended,
) -> Option<Ended> {
    of_answer(Pin::new(pending).poll(context), of)
}

fn of_answer<T>(polled: Poll<Answer<T>>, of: impl FnOnce(T) -> Ended) -> Option<Ended> {
    let Poll::Ready(answer) = polled else { return None };
    Some(answer.map_or_else(
        |Unfinished { error, memory }| Ended::with(Done::failed(&Reason::of(&error)), memory),
        of,
    ))
}
