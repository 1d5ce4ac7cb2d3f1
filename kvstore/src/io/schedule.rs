//! The schedule of one device: a queue of requests in four classes, and the requests in flight.
//!
//! 1. Metadata (the journal) goes before all else and has its own slots, so it never waits for data. It is bounded only
//!    because a journal has few writes in flight, and a checkpoint that everything waits for has eight.
//! 2. Reads go before writes.
//! 3. Large reads and large writes are not mixed: a drive that reads 29 GB/s and writes 12 GB/s alone does 12 GB/s of
//!    both together. While reads wait or are in flight, at most [`Limits::write_bytes_max`] of writes are in flight,
//!    or one write if that is larger.
//!    At most [`Limits::read_bytes_max`] of reads are in flight, or one read.
//! 4. Nothing starves. A write that has waited for [`Limits::write_wait_max`] goes before the next read, within that
//!    budget; so does background work after [`Limits::background_wait_max`]. At most every other data request jumps
//!    the queue like this, so reads continue too.
//! 5. Background work goes when nothing else waits, at most [`Limits::background_max`] requests at a time.
//!
//! Invariants: at most [`Limits::depth`] requests are in flight and [`Limits::queued_max`] wait; requests of a class
//! leave in order; a ticket identifies one request forever. Pushing and popping are O(1), except for deadlines,
//! which are O(log n) amortised. Nothing is allocated after construction.
//!
//! The schedule sends nothing and reads no clock: the lane pops what it sends, and reports what has finished.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use adit_driver::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Latency-critical reads.
    Read,
    /// Data of an object.
    Write,
    /// The journal, and other writes that acknowledgements wait for.
    Metadata,
    /// Discards, which are never urgent.
    Background,
}

const CLASSES: usize = 4;
/// Slots of the depth reserved for metadata.
const METADATA_DEPTH: u32 = 2;

/// Limit of stale deadlines kept before a sweep.
const SPARE_DEADLINES: usize = 64;

/// The limits of requests to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum requests in flight, at least 4; the last two slots are for metadata.
    pub depth: u32,
    /// Maximum requests that wait.
    pub queued_max: u32,
    /// Maximum bytes of reads in flight, or one read if that is longer: no drive is busier with more, and finished reads are
    /// verified while it reads the rest. Some drives finish all reads at the same time.
    pub read_bytes_max: u64,
    /// Maximum bytes of writes in flight while reads wait or are in flight.
    pub write_bytes_max: u64,
    /// Time limit of a write that waits behind reads.
    pub write_wait_max: Duration,
    /// Maximum background requests in flight, at least 1.
    pub background_max: u32,
    /// Time limit of background work that waits behind everything else.
    pub background_wait_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            depth: 128,
            queued_max: 4096,
            read_bytes_max: 8 << 20,
            write_bytes_max: 1 << 20,
            write_wait_max: Duration::from_millis(20),
            background_max: 2,
            background_wait_max: Duration::from_millis(200),
        }
    }
}

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    entry: u32,
    generation: u64,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start<T> {
    /// Its class, for [`Schedule::finished`].
    pub class: Class,
    /// Its bytes, for [`Schedule::finished`].
    pub bytes: u64,
    /// The payload that was pushed.
    pub payload: T,
}

/// The requests of a class in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flight {
    requests: u32,
    bytes: u64,
}

/// The queue of one device.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    limits: Limits,
    lists: Lists<T>,
    /// Deadlines of waiting requests, and of some that no longer wait.
    deadlines: BinaryHeap<Reverse<(Time, Ticket)>>,
    flight: [Flight; CLASSES],
    /// Whether the last data request jumped the queue; the next one must not.
    jumped: bool,
}

impl<T> Schedule<T> {
    /// Creates an empty queue.
    ///
    /// # Panics
    /// If the depth is below 4, or `queued_max` or `background_max` is 0.
    pub(crate) fn new(limits: Limits) -> Schedule<T> {
        assert!(limits.depth >= 2 * METADATA_DEPTH, "metadata and data both have places");
        assert!(limits.queued_max > 0 && limits.background_max > 0, "something can wait and go");
        Schedule {
            limits,
            lists: Lists::new(limits.queued_max),
            deadlines: BinaryHeap::with_capacity(
                2 * limits.queued_max as usize + SPARE_DEADLINES + 1,
            ),
            flight: [Flight::default(); CLASSES],
            jumped: false,
        }
    }

    /// Adds a request that expires at `deadline` ([`Time::NEVER`] for none).
    ///
    /// # Errors
    /// The payload, if [`Limits::queued_max`] wait.
    pub(crate) fn push(
        &mut self,
        now: Time,
        class: Class,
        bytes: u64,
        deadline: Time,
        payload: T,
    ) -> Result<(), T> {
        let ticket = self.lists.push(Queued { class, bytes, pushed: now, payload })?;
        if deadline < Time::NEVER {
            self.sweep();
            self.deadlines.push(Reverse((deadline, ticket)));
        }
        Ok(())
    }

    /// Pops the next request to send, which is in flight from now on. Returns `None` if no waiting request may go.
    pub(crate) fn pop(&mut self, now: Time) -> Option<Start<T>> {
        let class = self.next(now)?;
        let entry = self.lists.pop(class).expect("the class was chosen because one waits");
        let flight = &mut self.flight[class as usize];
        flight.requests += 1;
        flight.bytes += entry.bytes;
        Some(Start { class, bytes: entry.bytes, payload: entry.payload })
    }

    /// Records that a popped request is no longer in flight, successfully or not.
    ///
    /// # Panics
    /// If no such request is in flight: a bug of the caller.
    pub(crate) fn finished(&mut self, class: Class, bytes: u64) {
        let flight = &mut self.flight[class as usize];
        let known = flight.requests > 0 && flight.bytes >= bytes;
        assert!(known, "no request of class {class:?} with {bytes} bytes is in flight");
        flight.requests -= 1;
        flight.bytes -= bytes;
    }

    /// Removes a waiting request whose deadline has passed, the most overdue first. Call this until it returns
    /// `None`.
    pub(crate) fn expired(&mut self, now: Time) -> Option<T> {
        while let Some(&Reverse((deadline, ticket))) = self.deadlines.peek() {
            if deadline > now {
                return None;
            }
            self.deadlines.pop();
            if let Some(entry) = self.lists.take(ticket) {
                return Some(entry.payload);
            }
        }
        None
    }

    pub(crate) fn waiting(&self, class: Class) -> u32 {
        self.lists.waiting(class)
    }

    pub(crate) fn in_flight(&self, class: Class) -> u32 {
        self.flight[class as usize].requests
    }

    /// Returns whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Returns whether nothing waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.lists.is_empty() && self.depth() == 0
    }

    /// Returns how many requests are in flight.
    fn depth(&self) -> u32 {
        self.flight.iter().map(|flight| flight.requests).sum()
    }

    /// Returns the class whose first request goes next.
    fn next(&mut self, now: Time) -> Option<Class> {
        let depth = self.depth();
        if depth >= self.limits.depth {
            return None;
        }
        if self.waiting(Class::Metadata) > 0 {
            return Some(Class::Metadata);
        }
        if depth - self.in_flight(Class::Metadata) >= self.limits.depth - METADATA_DEPTH {
            return None;
        }
        let overdue = if self.jumped { None } else { self.overdue(now) };
        let class = overdue.or_else(|| self.in_turn())?;
        self.jumped = overdue.is_some();
        Some(class)
    }

    /// Returns the class that jumps the queue: the one whose first request has been due the longest.
    fn overdue(&self, now: Time) -> Option<Class> {
        let due = |class, wait_max| {
            let due = self.lists.first(class).map(|entry| entry.pushed + wait_max);
            due.filter(|due| *due <= now).map(|due| (due, class))
        };
        let write = due(Class::Write, self.limits.write_wait_max).filter(|_| self.write_fits());
        let background = due(Class::Background, self.limits.background_wait_max)
            .filter(|_| self.background_fits());
        let first = write.into_iter().chain(background).min_by_key(|(due, _)| *due);
        first.map(|(_, class)| class)
    }

    /// Returns the class whose turn it is.
    fn in_turn(&self) -> Option<Class> {
        let waits = |class| self.waiting(class) > 0;
        if waits(Class::Read) {
            return self.read_fits().then_some(Class::Read);
        }
        if waits(Class::Write) {
            return self.write_fits().then_some(Class::Write);
        }
        (waits(Class::Background) && self.background_fits()).then_some(Class::Background)
    }

    /// Returns whether the first read may join what is in flight.
    fn read_fits(&self) -> bool {
        let Some(read) = self.lists.first(Class::Read) else { return false };
        let flight = self.flight[Class::Read as usize];
        let fits = flight.bytes.saturating_add(read.bytes) <= self.limits.read_bytes_max;
        flight.requests == 0 || fits
    }

    /// Returns whether the first write may join what is in flight.
    fn write_fits(&self) -> bool {
        let Some(write) = self.lists.first(Class::Write) else { return false };
        let reads = self.waiting(Class::Read) + self.in_flight(Class::Read);
        let flight = self.flight[Class::Write as usize];
        let fits = flight.bytes.saturating_add(write.bytes) <= self.limits.write_bytes_max;
        reads == 0 || flight.requests == 0 || fits
    }

    fn background_fits(&self) -> bool {
        self.in_flight(Class::Background) < self.limits.background_max
    }

    /// Drops stale deadlines, once they are more than half of all.
    fn sweep(&mut self) {
        let waiting = self.lists.len() as usize;
        if self.deadlines.len() > 2 * waiting + SPARE_DEADLINES {
            let lists = &self.lists;
            self.deadlines.retain(|Reverse((_, ticket))| lists.waits(*ticket));
        }
    }
}

const NONE: u32 = u32::MAX;

/// A waiting request.
#[derive(Debug)]
struct Queued<T> {
    class: Class,
    bytes: u64,
    pushed: Time,
    payload: T,
}

#[derive(Debug)]
struct Node<T> {
    entry: Option<Queued<T>>,
    generation: u64,
    before: u32,
    /// The next in its list, or in the free list.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    count: u32,
}

const EMPTY: List = List { first: NONE, last: NONE, count: 0 };

/// Waiting requests, in lists by class that share one block of memory.
///
/// Invariants: an entry is in exactly one list, or free; no more wait than the initial capacity. A ticket's generation
/// is never reused, so a stale ticket matches nothing.
#[derive(Debug)]
struct Lists<T> {
    nodes: Vec<Node<T>>,
    lists: [List; CLASSES],
    /// The first free node below `nodes.len()`.
    free: u32,
    entries_max: u32,
    generation: u64,
}

impl<T> Lists<T> {
    fn new(entries_max: u32) -> Lists<T> {
        let nodes = Vec::with_capacity(entries_max as usize);
        Lists { nodes, lists: [EMPTY; CLASSES], free: NONE, entries_max, generation: 0 }
    }

    /// Appends an entry to its class. Returns the payload if there is no room.
    fn push(&mut self, entry: Queued<T>) -> Result<Ticket, T> {
        if self.len() == self.entries_max {
            return Err(entry.payload);
        }
        self.generation += 1;
        let list = &mut self.lists[entry.class as usize];
        let last = list.last;
        let node =
            Node { entry: Some(entry), generation: self.generation, before: last, next: NONE };
        let at = self.free;
        let at = if at == NONE {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        } else {
            self.free = self.nodes[at as usize].next;
            self.nodes[at as usize] = node;
            at
        };
        list.last = at;
        list.count += 1;
        match last {
            NONE => list.first = at,
            before => self.nodes[before as usize].next = at,
        }
        Ok(Ticket { entry: at, generation: self.generation })
    }

    fn first(&self, class: Class) -> Option<&Queued<T>> {
        let first = self.lists[class as usize].first;
        self.nodes.get(first as usize).and_then(|node| node.entry.as_ref())
    }

    /// Removes the first of a class.
    fn pop(&mut self, class: Class) -> Option<Queued<T>> {
        let entry = self.lists[class as usize].first;
        let generation = self.nodes.get(entry as usize)?.generation;
        self.take(Ticket { entry, generation })
    }

    /// Removes an entry, if it still waits.
    fn take(&mut self, ticket: Ticket) -> Option<Queued<T>> {
        let node = self.nodes.get_mut(ticket.entry as usize);
        let node = node.filter(|node| node.generation == ticket.generation)?;
        let entry = node.entry.take()?;
        let (before, next) = (node.before, node.next);
        node.next = self.free;
        self.free = ticket.entry;
        let list = &mut self.lists[entry.class as usize];
        list.count -= 1;
        match before {
            NONE => list.first = next,
            before => self.nodes[before as usize].next = next,
        }
        match next {
            NONE => list.last = before,
            next => self.nodes[next as usize].before = before,
        }
        Some(entry)
    }

    fn waits(&self, ticket: Ticket) -> bool {
        let node = self.nodes.get(ticket.entry as usize);
        node.is_some_and(|node| node.generation == ticket.generation && node.entry.is_some())
    }

    fn waiting(&self, class: Class) -> u32 {
        self.lists[class as usize].count
    }

    /// Returns the number of entries of all classes.
    fn len(&self) -> u32 {
        self.lists.iter().map(|list| list.count).sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
