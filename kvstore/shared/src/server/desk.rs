//! The requests of one client in progress, and their answers.
//!
//! A thread of the store takes requests and begins them; whichever of them ends one calls its waker, which answers at
//! once: it writes the answer to the ring and signals the client, so that a request passes through no other thread. All
//! of that is behind one lock for each client, held for a few instructions.
//!
//! A request is taken only while there is room for its answer, so that a client that never reads its answers stops
//! itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use adit_driver::Buffer;
use adit_driver::memory::AnyBuffer;
use adit_driver::serve::parts::Signaller;
use adit_kvstore::shard::Outcome;
use adit_kvstore::store::{Answer, Lease, ObjectInfo, Pending, Put, Read, Writer};

use super::counts::Counts;
use super::outcome;
use super::page::{self, Page};
use crate::pieces::Pieces;
use crate::ring::{Answering, Broken, Rings, Sleep};
use crate::wire::{Code, Done, Run};

/// The most leases that a client may hold.
const LEASES_MAX: usize = 4096;
/// The most objects that a client may be writing in parts.
const WRITERS_MAX: usize = 256;
/// The most regions that a client may share.
const REGIONS_MAX: usize = 1024;

/// The error of a writer number that the client does not have.
const NO_WRITER: &str = "there is no such writer: it was sealed, given up or never made";

/// A request that the store has.
pub(super) enum Flight {
    Put(Pending<Put>),
    Get(Pending<Read>),
    /// Whether there was an object.
    Yes(Pending<bool>),
    Info(Pending<Option<ObjectInfo>>),
    Outline(Pending<Option<ObjectInfo>>),
    Reserve(Pending<Writer>),
    Fill(Pending<AnyBuffer>),
    Seal(Pending<Outcome>),
    /// A page of a scan, and the memory for it.
    Scan(Pending<Page>, Option<Buffer>),
    LookupPrefix(Pending<usize>),
    Lease(Pending<Lease>),
    Commit(Pending<()>),
    DeletePrefix(Pending<u64>),
}

/// A request in progress.
struct Slot {
    tag: u64,
    flight: Flight,
    /// Where its memory is the client's.
    run: Option<Run>,
}

/// A region of the client's memory.
struct Region {
    pieces: Pieces<Buffer>,
}

struct State {
    answers: Answering,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    regions: Vec<Option<Region>>,
    leases: BTreeMap<u64, Lease>,
    leases_made: u64,
    writers: BTreeMap<u64, Arc<Writer>>,
    writers_made: u64,
    /// The client is gone: what is begun now is dropped.
    is_closed: bool,
}

/// A client's requests in progress.
pub(super) struct Desk {
    state: Mutex<State>,
    wakers: Vec<Waker>,
    sleep: Sleep,
    /// The client's doorbell, which may be rung without waiting for the client.
    signaller: Signaller,
    bell: File,
    counts: Arc<Counts>,
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
        signaller: Signaller,
        bell: File,
        counts: &Arc<Counts>,
    ) -> Arc<Desk> {
        let slots = depth as u32;
        let state = State {
            answers: Answering::new(rings),
            slots: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            regions: Vec::new(),
            leases: BTreeMap::new(),
            leases_made: 0,
            writers: BTreeMap::new(),
            writers_made: 0,
            is_closed: false,
        };
        let (sleep, counts) = (Sleep::of_server(rings), Arc::clone(counts));
        Arc::new_cyclic(|desk| {
            let waker = |slot| Waker::from(Arc::new(SlotWaker { desk: Weak::clone(desk), slot }));
            let wakers = (0..slots).map(waker).collect();
            Desk { state: Mutex::new(state), wakers, sleep, signaller, bell, counts }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many requests may be taken, each of which gets an answer.
    ///
    /// # Errors
    /// [`Broken`] if the client's counter cannot be right.
    pub(super) fn room(&self) -> Result<u64, Broken> {
        let state = self.lock();
        let in_progress = (state.slots.len() - state.free.len()) as u64;
        Ok(state.answers.room()?.saturating_sub(in_progress))
    }

    /// Begins to wait for a request of the store's, for which [`Desk::room`] had room.
    pub(super) fn begin(&self, tag: u64, flight: Flight, run: Option<Run>) {
        let mut state = self.lock();
        if state.is_closed {
            // Dropped without the lock.
            drop(state);
            return drop(flight);
        }
        let slot = state.free.pop().expect("there is a slot for each answer that has room");
        let before = state.slots[slot as usize].replace(Slot { tag, flight, run });
        assert!(before.is_none(), "a free slot is empty");
        self.counts.requests_now.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.attend(slot);
    }

    /// Answers the request in a slot if it has ended, and else waits for it.
    fn attend(&self, number: u32) {
        let mut state = self.lock();
        let Some(slot) = &mut state.slots[number as usize] else { return };
        let context = &mut Context::from_waker(&self.wakers[number as usize]);
        let Some(ended) = slot.flight.poll(slot.tag, context) else { return };
        let slot = state.slots[number as usize].take().expect("it was there");
        state.free.push(number);
        let Ended { mut done, memory, kept } = ended;
        if let (Some(run), AnyBuffer::One(buffer)) = (slot.run, memory) {
            state.give(run, buffer);
        }
        match kept {
            Kept::Nothing => {}
            Kept::Lease(lease) => done = state.keep(done, lease, &self.counts.leases_now),
            Kept::Writer(writer) => done = state.keep_writer(done, writer),
        }
        self.counts.requests_now.fetch_sub(1, Ordering::Relaxed);
        state.answers.push(&done);
        drop(state);
        self.ring(done.tag);
    }

    /// Answers a request that the store does not get.
    pub(super) fn answer(&self, done: &Done) {
        self.lock().answers.push(done);
        self.ring(done.tag);
    }

    /// Rings if the client sleeps until this answer comes.
    fn ring(&self, tag: u64) {
        if self.sleep.must_ring(tag) {
            // What fails here is the client's file; its thread notices a client that is gone.
            if let Err(why) = self.signaller.signal(&self.bell) {
                tracing::warn!("cannot ring a client's doorbell: {why}");
            }
        }
    }

    /// Takes memory of the client's for a request.
    ///
    /// # Errors
    /// Why it cannot have it.
    pub(super) fn take(&self, run: Run) -> Result<Buffer, (Code, &'static str)> {
        let mut state = self.lock();
        let region = state.regions.get_mut(run.region as usize).and_then(Option::as_mut);
        let region = region.ok_or((Code::Malformed, "there is no such region of memory"))?;
        let fit = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (offset, bytes) = (fit(run.offset), fit(run.bytes));
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= region.pieces.bytes());
        if bytes == 0 || !is_inside {
            return Err((Code::Malformed, "the memory is outside its region"));
        }
        let in_use = (Code::InUse, "a request in progress has some of this memory");
        region.pieces.take(offset, bytes).ok_or(in_use)
    }

    /// Adds a region and returns its number; `None` if there are too many.
    pub(super) fn add_region(&self, buffer: Buffer) -> Option<u32> {
        let mut state = self.lock();
        let empty = state.regions.iter().position(Option::is_none);
        let number = empty.unwrap_or(state.regions.len());
        if number == REGIONS_MAX {
            return None;
        }
        if empty.is_none() {
            state.regions.push(None);
        }
        state.regions[number] = Some(Region { pieces: Pieces::new(buffer) });
        Some(number as u32)
    }

    /// Removes a region that no request uses.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) fn remove_region(&self, number: u64) -> Result<(), &'static str> {
        let mut state = self.lock();
        let place = usize::try_from(number).ok().and_then(|number| state.regions.get_mut(number));
        let region = place.filter(|region| region.is_some());
        let region = region.ok_or("there is no such region of memory")?;
        if !region.as_ref().is_some_and(|region| region.pieces.is_whole()) {
            return Err("a request in progress has some of it");
        }
        let removed = region.take();
        // Unmapping may take a while.
        drop(state);
        drop(removed);
        Ok(())
    }

    /// Ends a lease; returns whether there was such a one.
    pub(super) fn release(&self, lease: u64) -> bool {
        let lease = self.lock().leases.remove(&lease);
        let was_there = lease.is_some();
        self.counts.leases_now.fetch_sub(u64::from(was_there), Ordering::Relaxed);
        was_there
    }

    /// Returns a writer of the client's.
    ///
    /// # Errors
    /// That there is none.
    pub(super) fn writer(&self, number: u64) -> Result<Arc<Writer>, (Code, &'static str)> {
        let state = self.lock();
        state.writers.get(&number).cloned().ok_or((Code::Malformed, NO_WRITER))
    }

    /// Takes a writer of the client's away, to be sealed or dropped.
    ///
    /// # Errors
    /// That there is none.
    pub(super) fn take_writer(&self, number: u64) -> Result<Writer, (Code, &'static str)> {
        let writer = self.lock().writers.remove(&number);
        writer.and_then(Arc::into_inner).ok_or((Code::Malformed, NO_WRITER))
    }

    /// Returns the number of requests in progress.
    pub(super) fn in_progress(&self) -> usize {
        let state = self.lock();
        state.slots.len() - state.free.len()
    }

    /// Gives up everything: requests that have not begun are cancelled, leases end, and memory is unmapped as soon as no
    /// request of the store's has it.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let slots: Vec<Slot> = state.slots.iter_mut().filter_map(Option::take).collect();
        let (regions, leases) =
            (std::mem::take(&mut state.regions), std::mem::take(&mut state.leases));
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        self.counts.requests_now.fetch_sub(slots.len() as u64, Ordering::Relaxed);
        self.counts.leases_now.fetch_sub(leases.len() as u64, Ordering::Relaxed);
        drop((slots, regions, leases, writers));
    }
}

impl State {
    fn give(&mut self, run: Run, buffer: Buffer) {
        // A region whose client is gone is dropped before its last request ends.
        if let Some(Some(region)) = self.regions.get_mut(run.region as usize) {
            region.pieces.give(run.offset as usize, buffer);
        }
    }

    /// Keeps a writer for the client and names it in the answer.
    fn keep_writer(&mut self, done: Done, writer: Writer) -> Done {
        if self.writers.len() >= WRITERS_MAX {
            return Done::new(done.tag, Code::Limit, 0, 0)
                .with_text("this client writes too many objects in parts: commit or drop some");
        }
        self.writers_made += 1;
        self.writers.insert(self.writers_made, Arc::new(writer));
        Done::new(done.tag, Code::Done, self.writers_made, 0)
    }

    /// Keeps a lease for the client and names it in the answer.
    fn keep(&mut self, done: Done, lease: Lease, leases_now: &AtomicU64) -> Done {
        if self.leases.len() >= LEASES_MAX {
            return Done::new(done.tag, Code::Limit, 0, 0)
                .with_text("this client holds too many leases: release some");
        }
        self.leases_made += 1;
        leases_now.fetch_add(1, Ordering::Relaxed);
        let count = lease.count() as u64;
        self.leases.insert(self.leases_made, lease);
        Done::new(done.tag, Code::Done, self.leases_made, count)
    }
}

/// What the server keeps for the client.
enum Kept {
    Nothing,
    Lease(Lease),
    Writer(Writer),
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

    fn keeping(tag: u64, kept: Kept) -> Ended {
        Ended { kept, ..number(tag, 0) }
    }

    fn with(done: Done, memory: AnyBuffer) -> Ended {
        Ended { done, memory, kept: Kept::Nothing }
    }
}

impl Flight {
    /// Returns how the request ended, if it has; the context's waker is called once it has.
    fn poll(&mut self, tag: u64, context: &mut Context<'_>) -> Option<Ended> {
        match self {
            Flight::Put(pending) => ended(pending, tag, context, |put| {
                Ended::with(outcome::stored(tag, &put), put.memory)
            }),
            Flight::Get(pending) => ended(pending, tag, context, |read| {
                Ended::with(outcome::read(tag, &read), read.memory)
            }),
            Flight::Yes(pending) => ended(pending, tag, context, |yes| number(tag, u64::from(yes))),
            Flight::Info(pending) => {
                ended(pending, tag, context, |info| Ended::of(outcome::about(tag, info)))
            }
            Flight::Outline(pending) => {
                ended(pending, tag, context, |info| Ended::of(outcome::outline(tag, info)))
            }
            Flight::Reserve(pending) => {
                ended(pending, tag, context, |writer| Ended::keeping(tag, Kept::Writer(writer)))
            }
            Flight::Fill(pending) => ended(pending, tag, context, |memory| {
                Ended::with(Done::new(tag, Code::Done, 0, 0), memory)
            }),
            Flight::Seal(pending) => ended(pending, tag, context, |outcome| {
                Ended::of(Done::new(tag, outcome::ended(outcome), 0, 0))
            }),
            Flight::Scan(pending, buffer) => {
                let ended = ended(pending, tag, context, |page| {
                    Ended::of(page::written(tag, &page, buffer.as_mut()))
                })?;
                let memory = buffer.take().map_or(AnyBuffer::None, AnyBuffer::One);
                Some(Ended { memory, ..ended })
            }
            Flight::LookupPrefix(pending) => {
                ended(pending, tag, context, |count| number(tag, count as u64))
            }
            Flight::Lease(pending) => {
                ended(pending, tag, context, |lease| Ended::keeping(tag, Kept::Lease(lease)))
            }
            Flight::Commit(pending) => ended(pending, tag, context, |()| number(tag, 0)),
            Flight::DeletePrefix(pending) => {
                ended(pending, tag, context, |objects| number(tag, objects))
            }
        }
    }
}

fn number(tag: u64, value: u64) -> Ended {
    Ended::of(Done::new(tag, Code::Done, value, 0))
}

fn ended<T>(
    pending: &mut Pending<T>,
    tag: u64,
    context: &mut Context<'_>,
    of: impl FnOnce(T) -> Ended,
) -> Option<Ended> {
    let Poll::Ready(answer): Poll<Answer<T>> = Pin::new(pending).poll(context) else { return None };
    Some(match answer {
        Ok(answer) => of(answer),
        Err(unfinished) => Ended {
            memory: unfinished.memory,
            ..Ended::of(outcome::failed(tag, &unfinished.error))
        },
    })
}
