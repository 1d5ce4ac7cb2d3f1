//! Waiting requests, in lists by class that share one block of memory.
//!
//! Invariants: an entry is in exactly one list, or free; no more wait than the initial capacity. A ticket's
//! generation is never reused, so a stale ticket matches nothing.

use super::{CLASSES, Class, Ticket};
use adit_driver::Time;

const NONE: u32 = u32::MAX;

/// A waiting request.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) class: Class,
    pub(super) bytes: u64,
    pub(super) pushed: Time,
    pub(super) payload: T,
}

#[derive(Debug)]
struct Node<T> {
    entry: Option<Entry<T>>,
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

#[derive(Debug)]
pub(super) struct Lists<T> {
    nodes: Vec<Node<T>>,
    lists: [List; CLASSES],
    /// The first free node below `nodes.len()`.
    free: u32,
    entries_max: u32,
    generation: u64,
}

impl<T> Lists<T> {
    pub(super) fn new(entries_max: u32) -> Lists<T> {
        let nodes = Vec::with_capacity(entries_max as usize);
        Lists { nodes, lists: [EMPTY; CLASSES], free: NONE, entries_max, generation: 0 }
    }

    /// Appends an entry to its class. Returns the payload if there is no room.
    pub(super) fn push(&mut self, entry: Entry<T>) -> Result<Ticket, T> {
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

    pub(super) fn first(&self, class: Class) -> Option<&Entry<T>> {
        let first = self.lists[class as usize].first;
        self.nodes.get(first as usize).and_then(|node| node.entry.as_ref())
    }

    /// Removes the first of a class.
    pub(super) fn pop(&mut self, class: Class) -> Option<Entry<T>> {
        let entry = self.lists[class as usize].first;
        let generation = self.nodes.get(entry as usize)?.generation;
        self.take(Ticket { entry, generation })
    }

    /// Removes an entry, if it still waits.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Entry<T>> {
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

    pub(super) fn waits(&self, ticket: Ticket) -> bool {
        let node = self.nodes.get(ticket.entry as usize);
        node.is_some_and(|node| node.generation == ticket.generation && node.entry.is_some())
    }

    pub(super) fn waiting(&self, class: Class) -> u32 {
        self.lists[class as usize].count
    }

    /// Returns the number of entries of all classes.
    pub(super) fn len(&self) -> u32 {
        self.lists.iter().map(|list| list.count).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
