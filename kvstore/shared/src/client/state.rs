//! A client's requests: those that wait for room, those that the server has, and their answers.
//!
//! Requests go to the server in the order of their calls. One that has no room in the ring, or no memory of the pool,
//! waits in line, and those behind it wait with it. All of this is behind the client's lock. What must not happen there
//! is left for afterwards: dropping memory, calling wakers, ringing the server's doorbell.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use adit_kvstore::shard::{Condition, Digest, Part};
use adit_kvstore::{Key, UNIT_BYTES, Version, units};

use crate::memory::Span;
use crate::pieces::Pieces;
use crate::ring::{Answered, Asking, Broken, Rings};
use crate::wire::{Ask, Code, Done, Entry, Run};

/// Memory for the first get of an unknown length; later ones go by the last object.
const FIRST_GUESS: usize = 128 << 10;

/// How an object is put.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// The number of its layout, or 0.
    pub(super) layout: u32,
    /// Seconds until it expires, or 0.
    pub(super) ttl_s: u32,
    /// The put before it is of the same call.
    pub(super) joins: bool,
    /// What must hold of the key.
    pub(super) condition: Condition,
}

/// A read.
#[derive(Clone)]
pub(super) struct Get {
    pub(super) key: Key,
    pub(super) part: Part,
    /// The version that it must have.
    pub(super) version: Option<Version>,
    /// The server verifies it.
    is_checked: bool,
}

impl Get {
    pub(super) fn new(key: Key, part: Part, version: Option<Version>) -> Get {
        Get { key, part, version, is_checked: false }
    }
}

/// A request as it was called.
pub(super) enum Wish {
    /// Stores the first `bytes` of the caller's or the pool's memory.
    Put { key: Key, bytes: u64, how: How },
    /// Stores bytes that wait for memory of the pool.
    PutBytes { key: Key, data: Vec<u8>, how: How },
    /// Reads into the caller's memory.
    Get(Get),
    /// Reads into memory of the pool; a part into as much as it takes.
    Fetch { get: Get, room: usize },
    /// Writes the first `bytes` of the caller's memory as a part of a writer's object.
    Fill { writer: u64, offset: u64, bytes: u64 },
    /// Reads a page of a list, of what has keys with a prefix, into memory of the pool.
    List { prefix: Box<[u8]>, what: Listed, room: usize },
    /// Anything without memory. The keys before the last are sent one by one.
    Plain { ask: Ask, keys: Vec<Key>, sent: usize },
}

impl Wish {
    /// Returns whether this can be its answer: only a read ends unverified, once, and with a digest.
    fn may_end_with(&self, done: &Done) -> bool {
        let is_unchecked =
            matches!(self, Wish::Get(get) | Wish::Fetch { get, .. } if !get.is_checked);
        Code::of(done.code) != Code::Unverified || (is_unchecked && done.digest().is_some())
    }
}

/// What a list has, and where its next page begins.
#[derive(Clone, Copy)]
pub(super) enum Listed {
    Objects(u64),
    Removals(Option<u64>),
}

/// A request's memory.
pub(super) enum Memory {
    None,
    Lent(Span),
    Pooled(Span),
}

/// The answer to a request.
pub(super) struct Ended {
    pub(super) done: Done,
    pub(super) memory: Memory,
    /// No answer came, and none will: the text says why.
    pub(super) is_lost: bool,
    /// The digest and the request of bytes that are not verified yet.
    unverified: Option<Unverified>,
}

/// What the bytes of an answer have to match, and the request for them.
struct Unverified {
    digest: Digest,
    wish: Wish,
}

impl Ended {
    fn new(done: Done, memory: Memory) -> Ended {
        Ended { done, memory, is_lost: false, unverified: None }
    }

    /// Verifies what was read, if the server has not, and returns whether it is what was put; otherwise ask again. Call it
    /// on the thread that uses the bytes, without the lock.
    pub(super) fn verify(&mut self) -> bool {
        let Some(Unverified { digest, .. }) = &self.unverified else { return true };
        let is_intact = match &self.memory {
            Memory::Lent(span) | Memory::Pooled(span) => digest.is_of(span.bytes()),
            Memory::None => false,
        };
        if is_intact {
            (self.done.code, self.unverified) = (Code::Done as u16, None);
        }
        is_intact
    }
}

enum Slot {
    Free,
    /// In line.
    Waiting {
        wish: Wish,
        memory: Memory,
        caller: Caller,
    },
    /// The server has it.
    Asked {
        wish: Wish,
        memory: Memory,
        caller: Caller,
    },
    Ended(Box<Ended>),
}

/// Who waits for an answer.
struct Caller {
    is_there: bool,
    waker: Option<Waker>,
}

/// What is left to do without the lock.
#[derive(Default)]
pub(super) struct Afterwards {
    trash: Vec<Span>,
    wakers: Vec<Waker>,
    /// There are requests for the server that it was not told of.
    pub(super) has_asked: bool,
    /// Requests that ended.
    pub(super) ended: usize,
    /// The server was lost.
    pub(super) is_lost: bool,
}

impl Afterwards {
    /// Drops memory and calls wakers.
    pub(super) fn finish(self) {
        drop(self.trash);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

pub(super) struct State {
    asking: Asking,
    answered: Answered,
    depth: u64,
    /// Requests that the server has.
    outstanding: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    line: VecDeque<u32>,
    pool: Option<Pieces<Span>>,
    /// Bytes that the next get of an unknown length takes.
    guess: usize,
    lost: Option<String>,
    /// Memory that a device of a lost server may still write.
    stuck: Vec<Memory>,
    afterwards: Afterwards,
}

impl State {
    pub(super) fn new(rings: &Rings, depth: u64) -> State {
        State {
            asking: Asking::new(rings),
            answered: Answered::new(rings),
            depth,
            outstanding: 0,
            slots: Vec::new(),
            free: Vec::new(),
            line: VecDeque::new(),
            pool: None,
            guess: FIRST_GUESS,
            lost: None,
            stuck: Vec::new(),
            afterwards: Afterwards::default(),
        }
    }

    /// Takes what is left to do without the lock.
    pub(super) fn afterwards(&mut self) -> Afterwards {
        mem::take(&mut self.afterwards)
    }

    pub(super) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Takes over memory as the pool, unless there is one.
    pub(super) fn set_pool(&mut self, memory: Span) {
        match self.pool {
            None => self.pool = Some(Pieces::new(memory)),
            Some(_) => self.afterwards.trash.push(memory),
        }
    }

    /// Takes memory of the pool for a put, if nothing waits in line for some.
    pub(super) fn take_pooled(&mut self, bytes: usize) -> Option<Span> {
        if !self.line.is_empty() {
            return None;
        }
        Some(self.pool.as_mut()?.take_any(whole(bytes))?.1)
    }

    /// Gives memory of the pool back.
    pub(super) fn give_pooled(&mut self, span: Span) {
        let pool = self.pool.as_mut().expect("its memory is of the pool");
        pool.give(span.offset(), span);
    }

    /// Adds a request to the line, which [`State::turn`] moves on, and returns its slot.
    pub(super) fn add(&mut self, wish: Wish, memory: Memory) -> u32 {
        let caller = Caller { is_there: true, waker: None };
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u32 - 1
        });
        assert!(matches!(self.slots[number as usize], Slot::Free), "a free slot is empty");
        self.slots[number as usize] = Slot::Waiting { wish, memory, caller };
        self.line.push_back(number);
        number
    }

    /// Asks once more for what is not what was put, now verified by the server, and returns the slot. It has its memory, so
    /// that it goes before those that may wait for some.
    pub(super) fn ask_again(&mut self, ended: Ended) -> u32 {
        let Ended { memory, unverified, .. } = ended;
        let Unverified { mut wish, .. } = unverified.expect("it was not verified");
        match (&mut wish, &memory) {
            // What is not needed of the memory went back to the pool.
            (Wish::Fetch { get, room }, Memory::Pooled(span)) => {
                (get.is_checked, *room) = (true, span.len());
            }
            (Wish::Get(get), _) => get.is_checked = true,
            _ => unreachable!("only a read ends unverified"),
        }
        let number = self.add(wish, memory);
        self.line.rotate_right(1);
        number
    }

    /// Takes answers and sends what waits in line.
    pub(super) fn turn(&mut self) {
        if self.lost.is_some() {
            return self.end_all();
        }
        loop {
            match self.answered.take() {
                Ok(Some(done)) => self.end(&done),
                Ok(None) => break,
                Err(Broken) => return self.lose("a counter of its rings cannot be right"),
            }
        }
        while let Some(&number) = self.line.front() {
            match self.send(number) {
                Ok(true) => drop(self.line.pop_front()),
                Ok(false) => break,
                Err(Broken) => return self.lose("a counter of its rings cannot be right"),
            }
        }
        if self.afterwards.has_asked {
            self.asking.publish();
        }
    }

    /// Returns whether an answer waits to be taken.
    pub(super) fn has_news(&self) -> bool {
        self.answered.has_news()
    }

    /// Returns whether a request waits for what is not signalled: room in the ring, or memory of the pool.
    pub(super) fn waits_for_room(&self) -> bool {
        !self.line.is_empty() && self.outstanding < self.depth
    }

    /// Returns whether requests wait in line.
    pub(super) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns whether the request in a slot has ended.
    pub(super) fn has_ended(&self, number: u32) -> bool {
        matches!(self.slots[number as usize], Slot::Ended(_))
    }

    /// Sends a request of the line if there is room for it. A request whose caller is gone ends instead.
    fn send(&mut self, number: u32) -> Result<bool, Broken> {
        let slot = mem::replace(&mut self.slots[number as usize], Slot::Free);
        let Slot::Waiting { mut wish, mut memory, caller } = slot else {
            unreachable!("what waits in line has not been sent")
        };
        let is_due = matches!(wish, Wish::Plain { sent: 1.., .. })
            || matches!(wish, Wish::Plain { ask: Ask::Release(_) | Ask::Abandon(_), .. });
        if !caller.is_there && !is_due {
            self.free.push(number);
            self.discard(memory);
            return Ok(true);
        }
        let is_sent = if self.outstanding < self.depth && self.find_memory(&mut wish, &mut memory) {
            self.push(number, &mut wish, &memory)?
        } else {
            false
        };
        self.slots[number as usize] = match is_sent {
            true => Slot::Asked { wish, memory, caller },
            false => Slot::Waiting { wish, memory, caller },
        };
        self.outstanding += u64::from(is_sent);
        Ok(is_sent)
    }

    /// Takes memory of the pool for a request that needs some; returns whether it has all that it needs.
    fn find_memory(&mut self, wish: &mut Wish, memory: &mut Memory) -> bool {
        let room = match (&*wish, &*memory) {
            (Wish::PutBytes { data, .. }, Memory::None) => data.len(),
            (Wish::Fetch { get, room }, Memory::None) if get.part == Part::All => {
                self.guess.max(*room)
            }
            (Wish::Fetch { room, .. }, Memory::None) => *room,
            (Wish::List { room, .. }, Memory::None) => *room,
            _ => return true,
        };
        let Some(pool) = &mut self.pool else { return false };
        let room = whole(room).min(pool.bytes());
        let Some((_, mut span)) = pool.take_any(room) else { return false };
        if let Wish::PutBytes { data, how, key } = wish {
            span.write(0, data);
            *wish = Wish::Put { key: key.clone(), bytes: data.len() as u64, how: *how };
        }
        *memory = Memory::Pooled(span);
        true
    }

    /// Writes a request to the ring; returns false if there is no room for all of it now.
    fn push(&mut self, number: u32, wish: &mut Wish, memory: &Memory) -> Result<bool, Broken> {
        let mut room = self.asking.room()?;
        let tag = u64::from(number);
        if let Wish::Plain { keys, sent, .. } = wish {
            while *sent < keys.len() && room > 0 {
                self.asking.push(&Entry::of(&Ask::Key(keys[*sent].clone()), tag));
                self.afterwards.has_asked = true;
                *sent += 1;
                room -= 1;
            }
        }
        if room == 0 {
            return Ok(false);
        }
        self.asking.push(&Entry::of(&ask(wish, memory), tag));
        self.afterwards.has_asked = true;
        Ok(true)
    }

    /// Ends the request that an answer is for.
    fn end(&mut self, done: &Done) {
        let slot = usize::try_from(done.tag).ok().and_then(|slot| self.slots.get_mut(slot));
        let is_due = |slot: &&mut Slot| match slot {
            Slot::Asked { wish, .. } => wish.may_end_with(done),
            _ => false,
        };
        let Some(slot) = slot.filter(is_due) else {
            return self.lose("it answered what was not asked");
        };
        let Slot::Asked { wish, memory, caller } = mem::replace(slot, Slot::Free) else {
            unreachable!("looked at above")
        };
        self.outstanding -= 1;
        let number = done.tag as u32;
        let digest = done.digest();
        let memory = self.settle(&wish, memory, done);
        if let Some(room) = self.lacks(&wish, done)
            && caller.is_there
        {
            let Wish::Fetch { get, .. } = wish else {
                unreachable!("only such a one can lack memory")
            };
            let wish = Wish::Fetch { get, room };
            self.slots[number as usize] = Slot::Waiting { wish, memory, caller };
            return self.line.push_back(number);
        }
        if !caller.is_there && Code::of(done.code) == Code::Done {
            match &wish {
                Wish::Plain { ask: Ask::Lease { .. }, .. } => {
                    self.give_up(Ask::Release(done.value))
                }
                Wish::Plain { ask: Ask::Reserve { .. }, .. } => {
                    self.give_up(Ask::Abandon(done.value));
                }
                _ => {}
            }
        }
        let mut ended = Ended::new(*done, memory);
        ended.unverified = digest.map(|digest| Unverified { digest, wish });
        self.finish(number, ended, caller);
    }

    /// Ends a lease or a writer, for which no caller waits.
    pub(super) fn give_up(&mut self, ask: Ask) {
        let slot = self.add(Wish::Plain { ask, keys: Vec::new(), sent: 0 }, Memory::None);
        self.abandon(slot);
    }

    /// Gives back what of a request's memory its answer does not need.
    fn settle(&mut self, wish: &Wish, memory: Memory, done: &Done) -> Memory {
        match (wish, memory) {
            (Wish::Fetch { get, .. }, Memory::Pooled(mut span)) if is_read(done) => {
                let bytes = usize::try_from(done.value).unwrap_or(usize::MAX).min(span.len());
                if get.part == Part::All {
                    self.guess = whole(bytes);
                }
                if whole(bytes) < span.len() {
                    let rest = span.split_off(whole(bytes));
                    self.give_pooled(rest);
                }
                Memory::Pooled(span)
            }
            (Wish::List { .. }, Memory::Pooled(span)) if Code::of(done.code) == Code::Done => {
                Memory::Pooled(span)
            }
            (_, Memory::Pooled(span)) => {
                self.give_pooled(span);
                Memory::None
            }
            (_, memory) => memory,
        }
    }

    /// Returns how much memory a get needs that had too little, if the pool has so much.
    fn lacks(&self, wish: &Wish, done: &Done) -> Option<usize> {
        let Wish::Fetch { room, .. } = wish else { return None };
        let needs = usize::try_from(done.value).ok()?;
        let is_short = Code::of(done.code) == Code::Memory && needs > *room;
        let pool = self.pool.as_ref().filter(|pool| is_short && needs <= pool.bytes());
        pool.map(|_| needs)
    }

    fn finish(&mut self, number: u32, ended: Ended, caller: Caller) {
        self.afterwards.ended += 1;
        if caller.is_there {
            self.slots[number as usize] = Slot::Ended(Box::new(ended));
            self.afterwards.wakers.extend(caller.waker);
        } else {
            self.discard(ended.memory);
            self.free.push(number);
        }
    }

    /// Takes the answer of a request that has ended.
    pub(super) fn take_ended(&mut self, number: u32) -> Option<Ended> {
        let slot = &mut self.slots[number as usize];
        if !matches!(slot, Slot::Ended(_)) {
            return None;
        }
        let Slot::Ended(ended) = mem::replace(slot, Slot::Free) else {
            unreachable!("looked at above")
        };
        self.free.push(number);
        Some(*ended)
    }

    /// Has a waker called once the request in a slot ends.
    pub(super) fn set_waker(&mut self, number: u32, new: &Waker) {
        if let Slot::Waiting { caller, .. } | Slot::Asked { caller, .. } =
            &mut self.slots[number as usize]
        {
            caller.waker = Some(new.clone());
        }
    }

    /// Gives up the request in a slot: it does not begin, or its answer is dropped.
    pub(super) fn abandon(&mut self, number: u32) {
        match &mut self.slots[number as usize] {
            Slot::Waiting { caller, .. } | Slot::Asked { caller, .. } => caller.is_there = false,
            Slot::Free | Slot::Ended(_) => {
                if let Some(ended) = self.take_ended(number) {
                    self.discard(ended.memory);
                }
            }
        }
    }

    fn discard(&mut self, memory: Memory) {
        match memory {
            Memory::None => {}
            Memory::Lent(span) => self.afterwards.trash.push(span),
            Memory::Pooled(span) => self.give_pooled(span),
        }
    }

    /// Ends all requests because the server is lost. Memory of those that it had stays where it is: a device may still
    /// write it.
    pub(super) fn lose(&mut self, why: &str) {
        if self.lost.is_none() {
            self.lost = Some(why.to_owned());
            self.afterwards.is_lost = true;
            self.end_all();
        }
    }

    /// Returns why the server is lost, if it is.
    pub(super) fn why_lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn end_all(&mut self) {
        let why = self.lost.clone().unwrap_or_default();
        self.line.clear();
        for number in 0..self.slots.len() as u32 {
            let slot = mem::replace(&mut self.slots[number as usize], Slot::Free);
            let (memory, caller) = match slot {
                Slot::Waiting { memory: Memory::Pooled(span), caller, .. } => {
                    self.give_pooled(span);
                    (Memory::None, caller)
                }
                Slot::Waiting { memory, caller, .. } => (memory, caller),
                Slot::Asked { memory, caller, .. } => {
                    self.stuck.push(memory);
                    (Memory::None, caller)
                }
                other => {
                    self.slots[number as usize] = other;
                    continue;
                }
            };
            let done = Done::new(u64::from(number), Code::Closed, 0, 0).with_text(&why);
            self.finish(number, Ended { is_lost: true, ..Ended::new(done, memory) }, caller);
        }
        self.outstanding = 0;
    }
}

/// Returns whether an answer comes with bytes.
fn is_read(done: &Done) -> bool {
    matches!(Code::of(done.code), Code::Done | Code::Unverified)
}

/// Returns the request on the wire.
fn ask(wish: &Wish, memory: &Memory) -> Ask {
    let run = match memory {
        Memory::Lent(span) | Memory::Pooled(span) => {
            Run { region: span.number(), offset: span.offset() as u64, bytes: span.len() as u64 }
        }
        Memory::None => Run { region: 0, offset: 0, bytes: 0 },
    };
    match wish {
        Wish::Put { key, bytes, how } => {
            let How { layout, ttl_s, joins, condition } = *how;
            let (key, bytes) = (key.clone(), *bytes);
            Ask::Put { key, memory: run, bytes, layout, ttl_s, joins, condition }
        }
        Wish::Get(get) | Wish::Fetch { get, .. } => {
            let Get { key, part, version, is_checked } = get.clone();
            Ask::Get { key, part, memory: run, version, is_checked }
        }
        Wish::Fill { writer, offset, bytes } => {
            Ask::Fill { writer: *writer, offset: *offset, bytes: *bytes, memory: run }
        }
        Wish::List { prefix, what: Listed::Objects(from), .. } => {
            Ask::Scan { prefix: prefix.clone(), from: *from, memory: run }
        }
        Wish::List { prefix, what: Listed::Removals(from), .. } => {
            Ask::Removals { prefix: prefix.clone(), from: *from, memory: run }
        }
        Wish::Plain { ask, .. } => ask.clone(),
        Wish::PutBytes { .. } => unreachable!("its bytes were copied to memory of the pool"),
    }
}

/// Returns the bytes of whole units that hold `bytes`.
pub(super) fn whole(bytes: usize) -> usize {
    (units(bytes.max(1) as u64) * UNIT_BYTES) as usize
}
