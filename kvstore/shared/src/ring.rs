//! The rings of one client: requests one way, answers the other, in memory that both sides map.
//!
//! Each ring has one producer and one consumer. Its counters only grow; entry `n` is at `n` modulo the depth. The
//! producer writes an entry, then publishes its tail with Release; the consumer loads that with Acquire, copies the
//! entry once, and validates the copy. The other side may write any word at any time: a counter further away than the
//! ring's depth ends the connection ([`Broken`]).
//!
//! **A side announces its sleep, and what ends it.** It stores [`ANYTHING`] or the tag of one answer in its word,
//! executes a SeqCst fence and checks for work once more; the other side publishes, executes a SeqCst fence and reads
//! the word. At least one of them sees the other's store, so that no wake-up is lost, and no doorbell is rung for a
//! side that is awake or waits for another answer.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use adit_shared::Atomics;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::wire::{
    DEPTH_MAX, DONE_HEAD_WORDS, DONE_WORDS, Done, ENTRY_WORDS, HEAD_WORDS, RequestEntry,
};

const PAGE: usize = 4096;
// Words of the first page, each in a cache line of its own.
/// The number of requests written.
const REQUESTS_TAIL: usize = 0;
/// The number of requests taken.
const REQUESTS_HEAD: usize = 8;
/// The number of answers written.
const ANSWERS_TAIL: usize = 16;
/// The number of answers taken.
const ANSWERS_HEAD: usize = 24;
/// The server's sleep, as [`Sleep`] announces it.
const SERVER_SLEEPS: usize = 32;
/// The client's sleep.
const CLIENT_SLEEPS: usize = 40;

/// The word of a side whose sleep any entry ends.
pub(crate) const ANYTHING: u64 = u64::MAX;

/// The other side's counter is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The memory of both rings.
#[derive(Clone, Debug)]
pub(crate) struct Rings {
    memory: Atomics,
    depth: u64,
}

/// Returns whether rings may have this depth.
pub(crate) fn is_depth(depth: u64) -> bool {
    depth.is_power_of_two() && (2..=DEPTH_MAX).contains(&depth)
}

/// Returns the bytes that rings of this depth take, in whole pages.
pub(crate) fn bytes(depth: u64) -> usize {
    assert!(is_depth(depth), "the depth was checked");
    let entries = depth as usize * 8 * (ENTRY_WORDS + DONE_WORDS);
    PAGE + entries.next_multiple_of(PAGE)
}

impl Rings {
    /// Views `memory` as rings.
    ///
    /// # Panics
    /// If it is too short, which is our own bug.
    pub(crate) fn new(memory: Atomics, depth: u64) -> Rings {
        assert!(memory.len() >= bytes(depth), "the rings fit in their memory");
        Rings { memory, depth }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    /// Returns the place of an entry.
    fn place<E: RingEntry>(&self, number: u64) -> &[AtomicU64] {
        let at = PAGE / 8 + E::start(self.depth) + (number % self.depth) as usize * E::WORDS;
        &self.memory.words()[at..at + E::WORDS]
    }
}

/// An entry of one of the rings: words, of which the first give the number of others in use.
pub(crate) trait RingEntry: FromBytes + IntoBytes + Immutable {
    /// The word that counts the entries written.
    const TAIL: usize;
    /// The word that counts the entries taken.
    const HEAD: usize;
    /// Words of an entry.
    const WORDS: usize;
    /// The first words, which are always sent and give the number of others.
    const HEAD_WORDS: usize;

    /// Returns the first word of the ring's entries, counted from the end of the first page.
    fn start(depth: u64) -> usize;

    /// Returns how many of its words are in use.
    fn words(&self) -> usize;
}

impl RingEntry for RequestEntry {
    const TAIL: usize = REQUESTS_TAIL;
    const HEAD: usize = REQUESTS_HEAD;
    const WORDS: usize = ENTRY_WORDS;
    const HEAD_WORDS: usize = HEAD_WORDS;

    fn start(_: u64) -> usize {
        0
    }

    fn words(&self) -> usize {
        RequestEntry::words(self)
    }
}

impl RingEntry for Done {
    const TAIL: usize = ANSWERS_TAIL;
    const HEAD: usize = ANSWERS_HEAD;
    const WORDS: usize = DONE_WORDS;
    const HEAD_WORDS: usize = DONE_HEAD_WORDS;

    fn start(depth: u64) -> usize {
        depth as usize * ENTRY_WORDS
    }

    fn words(&self) -> usize {
        Done::words(self)
    }
}

/// One side's sleep: the word that it writes, and the word of the other side.
#[derive(Clone, Debug)]
pub(crate) struct Sleep {
    rings: Rings,
    own: usize,
    other: usize,
}

impl Sleep {
    pub(crate) fn of_server(rings: &Rings) -> Sleep {
        Sleep { rings: rings.clone(), own: SERVER_SLEEPS, other: CLIENT_SLEEPS }
    }

    pub(crate) fn of_client(rings: &Rings) -> Sleep {
        Sleep { rings: rings.clone(), own: CLIENT_SLEEPS, other: SERVER_SLEEPS }
    }

    /// Announces that this side sleeps until the answer with this tag, or any entry for [`ANYTHING`]. Check for work
    /// once more afterwards.
    pub(crate) fn announce(&self, until: u64) {
        let word = if until == ANYTHING { ANYTHING } else { until + 1 };
        self.rings.word(self.own).store(word, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Lets any entry end this side's sleep. Check for work once more afterwards.
    pub(crate) fn widen(&self) {
        let own = self.rings.word(self.own);
        let widened = |word| (word != 0).then_some(ANYTHING);
        let _ = own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, widened);
        fence(Ordering::SeqCst);
    }

    /// Announces that this side is awake.
    pub(crate) fn end(&self) {
        self.rings.word(self.own).store(0, Ordering::Relaxed);
    }

    /// Returns whether the other side has announced its sleep.
    #[cfg(test)]
    pub(crate) fn other_sleeps(&self) -> bool {
        self.rings.word(self.other).load(Ordering::Relaxed) != 0
    }

    /// Returns whether the other side has to be woken for the published request, or answer with this tag. Returns true
    /// to exactly one concurrent caller.
    pub(crate) fn must_ring(&self, tag: u64) -> bool {
        fence(Ordering::SeqCst);
        let other = self.rings.word(self.other);
        let until = other.load(Ordering::Relaxed);
        let is_due = until == ANYTHING || until == tag.wrapping_add(1);
        until != 0 && is_due && other.swap(0, Ordering::Relaxed) != 0
    }
}

/// The end of a ring that writes entries.
#[derive(Debug)]
pub(crate) struct Producer<E> {
    rings: Rings,
    tail: u64,
    entries: PhantomData<E>,
}

/// The client's end of the requests.
pub(crate) type Asking = Producer<RequestEntry>;
/// The server's end of the answers.
pub(crate) type Answering = Producer<Done>;

impl<E: RingEntry> Producer<E> {
    pub(crate) fn new(rings: &Rings) -> Producer<E> {
        Producer { rings: rings.clone(), tail: 0, entries: PhantomData }
    }

    /// Returns how many entries there is room for.
    ///
    /// # Errors
    /// [`Broken`] if the other side's counter is out of range.
    pub(crate) fn room(&self) -> Result<u64, Broken> {
        let head = self.rings.word(E::HEAD).load(Ordering::Acquire);
        self.rings.depth.checked_sub(self.tail.wrapping_sub(head)).ok_or(Broken)
    }

    /// Writes an entry, which [`Producer::publish`] publishes. There is room for it.
    pub(crate) fn push(&mut self, entry: &E) {
        let words = <[u64]>::ref_from_bytes(entry.as_bytes()).expect(WHOLE);
        let place = self.rings.place::<E>(self.tail);
        for (to, word) in place.iter().zip(&words[..entry.words()]) {
            to.store(*word, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the entries written, so that the other side takes the requests of one call together.
    pub(crate) fn publish(&self) {
        self.rings.word(E::TAIL).store(self.tail, Ordering::Release);
    }
}

/// The end of a ring that takes entries.
#[derive(Debug)]
pub(crate) struct Consumer<E> {
    rings: Rings,
    head: u64,
    entries: PhantomData<E>,
}

/// The server's end of the requests.
pub(crate) type Asked = Consumer<RequestEntry>;
/// The client's end of the answers.
pub(crate) type Answered = Consumer<Done>;

impl<E: RingEntry> Consumer<E> {
    pub(crate) fn new(rings: &Rings) -> Consumer<E> {
        Consumer { rings: rings.clone(), head: 0, entries: PhantomData }
    }

    /// Returns how many entries wait to be taken.
    ///
    /// # Errors
    /// [`Broken`] if the other side's counter is out of range.
    pub(crate) fn count(&self) -> Result<u64, Broken> {
        let tail = self.rings.word(E::TAIL).load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.head);
        if count <= self.rings.depth { Ok(count) } else { Err(Broken) }
    }

    /// Copies the next entry, which must be present. Its place is free again after [`Consumer::publish`].
    pub(crate) fn take(&mut self) -> E {
        let place = self.rings.place::<E>(self.head);
        let mut entry = E::new_zeroed();
        read(place, &mut entry, 0..E::HEAD_WORDS);
        let count = entry.words();
        read(place, &mut entry, E::HEAD_WORDS..count);
        self.head = self.head.wrapping_add(1);
        entry
    }

    /// Publishes the number of entries taken, whose places are then free.
    pub(crate) fn publish(&self) {
        self.rings.word(E::HEAD).store(self.head, Ordering::Release);
    }
}

const WHOLE: &str = "an entry is whole words, aligned as such";

fn read<E: RingEntry>(from: &[AtomicU64], entry: &mut E, words: Range<usize>) {
    let entry = <[u64]>::mut_from_bytes(entry.as_mut_bytes()).expect(WHOLE);
    for (word, from) in entry[words.clone()].iter_mut().zip(&from[words]) {
        *word = from.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
