//! The rings of one client: requests one way, answers the other, in memory that both sides map.
//!
//! Each ring has one producer and one consumer. Its counters only grow; entry `n` is at `n` modulo the depth. The
//! producer writes an entry, then publishes its tail with Release; the consumer loads that with Acquire, copies the
//! entry once, and only then believes or refuses what it says. The other side may write any word at any time: a counter
//! that is further away than the ring is deep ends the connection ([`Broken`]).
//!
//! **A side that sleeps says so, and for what.** It stores [`ANYTHING`] or the tag of one answer in its word, passes a
//! SeqCst fence and looks once more; the other side publishes, passes a SeqCst fence and looks at the word. At least
//! one of them sees the other, so that no wake-up is lost, and nothing is rung for a side that is awake or waits for
//! something else.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use adit_shared::Atomics;
use zerocopy::transmute;

use crate::wire::{
    DEPTH_MAX, DONE_HEAD_WORDS, DONE_WORDS, Done, ENTRY_WORDS, HEAD_WORDS, RequestEntry,
};

const PAGE: usize = 4096;
/// Words of the first page, each in a cache line of its own: the next request to be written,
const REQUESTS_TAIL: usize = 0;
/// the next to be taken,
const REQUESTS_HEAD: usize = 8;
/// the next answer to be written,
const ANSWERS_TAIL: usize = 16;
/// the next to be taken,
const ANSWERS_HEAD: usize = 24;
/// whether the server sleeps,
const SERVER_SLEEPS: usize = 32;
/// and whether the client does.
const CLIENT_SLEEPS: usize = 40;

/// Sleeping until anything comes.
pub(crate) const ANYTHING: u64 = u64::MAX;

/// The other side's counter cannot be right.
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
    /// If it is too short: our own bug.
    pub(crate) fn new(memory: Atomics, depth: u64) -> Rings {
        assert!(memory.len() >= bytes(depth), "the rings fit in their memory");
        Rings { memory, depth }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    fn request(&self, number: u64) -> &[AtomicU64] {
        let at = PAGE / 8 + (number % self.depth) as usize * ENTRY_WORDS;
        &self.memory.words()[at..at + ENTRY_WORDS]
    }

    fn answer(&self, number: u64) -> &[AtomicU64] {
        let requests = PAGE / 8 + self.depth as usize * ENTRY_WORDS;
        let at = requests + (number % self.depth) as usize * DONE_WORDS;
        &self.memory.words()[at..at + DONE_WORDS]
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

    /// Says that this side is about to sleep, until [`ANYTHING`] comes or the answer with this tag. Look for work once
    /// more afterwards.
    pub(crate) fn announce(&self, until: u64) {
        let word = if until == ANYTHING { ANYTHING } else { until + 1 };
        self.rings.word(self.own).store(word, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Makes anything end a sleep of this side. Look for work once more afterwards.
    pub(crate) fn widen(&self) {
        let own = self.rings.word(self.own);
        let widened = |word| (word != 0).then_some(ANYTHING);
        let _ = own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, widened);
        fence(Ordering::SeqCst);
    }

    /// Says that this side is awake.
    pub(crate) fn end(&self) {
        self.rings.word(self.own).store(0, Ordering::Relaxed);
    }

    /// Returns whether the other side says that it sleeps.
    #[cfg(test)]
    pub(crate) fn other_sleeps(&self) -> bool {
        self.rings.word(self.other).load(Ordering::Relaxed) != 0
    }

    /// Returns whether the other side has to be woken, after the request or the answer with this tag was published.
    /// Returns true to exactly one concurrent caller.
    pub(crate) fn must_ring(&self, tag: u64) -> bool {
        fence(Ordering::SeqCst);
        let other = self.rings.word(self.other);
        let until = other.load(Ordering::Relaxed);
        let is_due = until == ANYTHING || until == tag.wrapping_add(1);
        until != 0 && is_due && other.swap(0, Ordering::Relaxed) != 0
    }
}

/// The client's end of the requests.
#[derive(Debug)]
pub(crate) struct Asking {
    rings: Rings,
    tail: u64,
}

impl Asking {
    pub(crate) fn new(rings: &Rings) -> Asking {
        Asking { rings: rings.clone(), tail: 0 }
    }

    /// Returns how many entries there is room for.
    ///
    /// # Errors
    /// [`Broken`] if the server cannot have taken so many.
    pub(crate) fn room(&self) -> Result<u64, Broken> {
        let head = self.rings.word(REQUESTS_HEAD).load(Ordering::Acquire);
        self.rings.depth.checked_sub(self.tail.wrapping_sub(head)).ok_or(Broken)
    }

    /// Writes an entry, which [`Asking::publish`] publishes. There is room for it.
    pub(crate) fn push(&mut self, entry: &RequestEntry) {
        let count = entry.words();
        let words: [u64; ENTRY_WORDS] = transmute!(*entry);
        write(self.rings.request(self.tail), &words[..count]);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the server what was written, so that it takes the requests of one call together.
    pub(crate) fn publish(&self) {
        self.rings.word(REQUESTS_TAIL).store(self.tail, Ordering::Release);
    }
}

/// The server's end of the requests.
#[derive(Debug)]
pub(crate) struct Asked {
    rings: Rings,
    head: u64,
}

impl Asked {
    pub(crate) fn new(rings: &Rings) -> Asked {
        Asked { rings: rings.clone(), head: 0 }
    }

    /// Returns how many entries wait to be taken.
    ///
    /// # Errors
    /// [`Broken`] if there cannot be so many.
    pub(crate) fn count(&self) -> Result<u64, Broken> {
        let tail = self.rings.word(REQUESTS_TAIL).load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.head);
        if count <= self.rings.depth { Ok(count) } else { Err(Broken) }
    }

    /// Copies the next entry, which is there. Its place is free again after [`Asked::publish`].
    pub(crate) fn take(&mut self) -> RequestEntry {
        let place = self.rings.request(self.head);
        let mut words = [0; ENTRY_WORDS];
        read(place, &mut words[..HEAD_WORDS]);
        let entry: RequestEntry = transmute!(words);
        let count = entry.words();
        read(&place[HEAD_WORDS..], &mut words[HEAD_WORDS..count]);
        self.head = self.head.wrapping_add(1);
        transmute!(words)
    }

    /// Tells the client what was taken.
    pub(crate) fn publish(&self) {
        self.rings.word(REQUESTS_HEAD).store(self.head, Ordering::Release);
    }
}

/// The server's end of the answers.
#[derive(Debug)]
pub(crate) struct Answering {
    rings: Rings,
    tail: u64,
}

impl Answering {
    pub(crate) fn new(rings: &Rings) -> Answering {
        Answering { rings: rings.clone(), tail: 0 }
    }

    /// Returns how many answers there is room for.
    ///
    /// # Errors
    /// [`Broken`] if the client cannot have taken so many.
    pub(crate) fn room(&self) -> Result<u64, Broken> {
        let head = self.rings.word(ANSWERS_HEAD).load(Ordering::Acquire);
        self.rings.depth.checked_sub(self.tail.wrapping_sub(head)).ok_or(Broken)
    }

    /// Writes an answer and publishes it. There was room for it when its request was taken.
    pub(crate) fn push(&mut self, done: &Done) {
        let count = done.words();
        let words: [u64; DONE_WORDS] = transmute!(*done);
        write(self.rings.answer(self.tail), &words[..count]);
        self.tail = self.tail.wrapping_add(1);
        self.rings.word(ANSWERS_TAIL).store(self.tail, Ordering::Release);
    }
}

/// The client's end of the answers.
#[derive(Debug)]
pub(crate) struct Answered {
    rings: Rings,
    head: u64,
}

impl Answered {
    pub(crate) fn new(rings: &Rings) -> Answered {
        Answered { rings: rings.clone(), head: 0 }
    }

    /// Returns whether an answer waits to be taken.
    pub(crate) fn has_news(&self) -> bool {
        self.rings.word(ANSWERS_TAIL).load(Ordering::Acquire) != self.head
    }

    /// Takes the next answer.
    ///
    /// # Errors
    /// [`Broken`] if there cannot be as many as the server says.
    pub(crate) fn take(&mut self) -> Result<Option<Done>, Broken> {
        let tail = self.rings.word(ANSWERS_TAIL).load(Ordering::Acquire);
        match tail.wrapping_sub(self.head) {
            0 => return Ok(None),
            count if count > self.rings.depth => return Err(Broken),
            _ => {}
        }
        let place = self.rings.answer(self.head);
        let mut words = [0; DONE_WORDS];
        read(place, &mut words[..DONE_HEAD_WORDS]);
        let done: Done = transmute!(words);
        let count = done.words();
        read(&place[DONE_HEAD_WORDS..], &mut words[DONE_HEAD_WORDS..count]);
        self.head = self.head.wrapping_add(1);
        self.rings.word(ANSWERS_HEAD).store(self.head, Ordering::Release);
        Ok(Some(transmute!(words)))
    }
}

fn write(to: &[AtomicU64], words: &[u64]) {
    assert!(words.len() <= to.len(), "an entry fits in its place");
    to.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
}

fn read(from: &[AtomicU64], words: &mut [u64]) {
    assert!(words.len() <= from.len(), "an entry fits in its place");
    words.iter_mut().zip(from).for_each(|(word, from)| *word = from.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests;
