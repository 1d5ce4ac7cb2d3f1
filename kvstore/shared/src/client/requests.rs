//! A client's requests: those that wait for room, those that the server has, and their answers.
//!
//! Requests go to the server in the order of their calls. One that has no room in the ring, or no memory of the pool,
//! waits in line, and those behind it wait with it. All of this is behind the client's lock. Work that
//! must not happen there is left for afterwards: dropping memory, calling wakers, ringing the server's doorbell.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::task::Waker;

use adit_kvstore::shard::{Digest, Part};
use adit_kvstore::{Key, UNIT_BYTES, units};

use crate::memory::Span;
use crate::pieces::Pieces;
use crate::ring::{Answered, Asking, Broken, Rings};
use crate::wire::{Ask, Code, Done, MemoryRun, RequestEntry};

/// Memory for the first get of an unknown length; later ones take the last object's length.
const FIRST_GUESS: usize = 128 << 10;

/// A request as it was called.
pub(super) struct Wish {
    /// The request. Its memory is set when it goes to the server.
    pub(super) ask: Ask,
    pub(super) needs: Needs,
}

/// A request's needs before it can go to the server, beside the memory that its caller lent.
pub(super) enum Needs {
    Nothing,
    /// Memory of the pool for bytes to put.
    Copy(Vec<u8>),
    /// Memory of the pool to read into, this much at least; `wanted` of what is read is the value.
    Room {
        bytes: usize,
        wanted: Range<usize>,
    },
    /// The keys before the last, which go first, and how many were sent.
    Keys(Vec<Key>, usize),
}

impl Wish {
    /// Creates a request without needs.
    pub(super) fn new(ask: Ask) -> Wish {
        Wish { ask, needs: Needs::Nothing }
    }

    /// Creates a request that reads into at least `bytes` bytes of the pool.
    pub(super) fn with_room(ask: Ask, bytes: usize) -> Wish {
        Wish { ask, needs: Needs::Room { bytes, wanted: 0..usize::MAX } }
    }

    /// Returns whether this can be its answer: only a read ends unverified, once, and with a digest.
    fn may_end_with(&self, done: &Done) -> bool {
        let is_unchecked = matches!(self.ask, Ask::Get { is_checked: false, .. });
        Code::of(done.code) != Code::Unverified || (is_unchecked && done.digest().is_some())
    }

    /// Returns whether it goes to the server even without its caller: it was begun, or ends something there.
    fn is_due(&self) -> bool {
        matches!(self.needs, Needs::Keys(_, 1..))
            || matches!(self.ask, Ask::Release(_) | Ask::Abandon(_))
    }

    /// Returns whether it reads an object of unknown length.
    fn reads_all(&self) -> bool {
        matches!(self.ask, Ask::Get { part: Part::All, .. })
    }
}

/// A request's memory.
pub(super) enum Memory {
    None,
    Lent(Span),
    Pooled(Span),
}

/// The answer to a request.
pub(super) struct Ended {
    pub(super) wish: Wish,
    pub(super) done: Done,
    pub(super) memory: Memory,
    /// The digest that the bytes have to match, if they are not verified yet.
    digest: Option<Digest>,
}

impl Ended {
    fn new(wish: Wish, done: Done, memory: Memory) -> Ended {
        Ended { wish, done, memory, digest: done.digest() }
    }

    /// Verifies what was read, if the server has not, and returns whether it is what was put; otherwise ask again. Call
    /// it on the thread that uses the bytes, without the lock.
    pub(super) fn verify(&mut self) -> bool {
        let Some(digest) = &self.digest else { return true };
        let is_intact = match &self.memory {
            Memory::Lent(span) | Memory::Pooled(span) => digest.is_of(span.bytes()),
            Memory::None => false,
        };
        if is_intact {
            (self.done.code, self.digest) = (Code::Done as u16, None);
        }
        is_intact
    }
}

enum Slot {
    Free,
    Open(Request),
    Ended(Box<Ended>),
}

impl Slot {
    /// Takes a request that has no answer, if this is one and `is_due`.
    fn take_open(&mut self, is_due: impl FnOnce(&Request) -> bool) -> Option<Request> {
        match mem::replace(self, Slot::Free) {
            Slot::Open(request) if is_due(&request) => Some(request),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// A request that has no answer.
struct Request {
    wish: Wish,
    memory: Memory,
    caller: Caller,
    /// The server has it; otherwise it is in line.
    is_sent: bool,
}

impl Request {
    /// Takes memory of the pool if it needs some; returns whether it has all that it needs.
    fn find_memory(&mut self, pool: &mut Option<Pieces<Span>>, guess: usize) -> bool {
        let bytes = match (&self.wish.needs, &self.memory) {
            (Needs::Copy(data), Memory::None) => data.len(),
            (Needs::Room { bytes, .. }, Memory::None) if self.wish.reads_all() => guess.max(*bytes),
            (Needs::Room { bytes, .. }, Memory::None) => *bytes,
            _ => return true,
        };
        let Some(pool) = pool else { return false };
        let bytes = whole(bytes).min(pool.bytes());
        let Some((_, mut span)) = pool.take_any(bytes) else { return false };
        if let Needs::Copy(data) = &self.wish.needs {
            span.write(0, data);
            self.wish.needs = Needs::Nothing;
        }
        self.memory = Memory::Pooled(span);
        true
    }

    /// Writes it to the ring as far as there is room, and returns how many entries that were and whether it was all.
    fn push(&mut self, tag: u64, asking: &mut Asking) -> Result<(u64, bool), Broken> {
        let (has, mut pushed) = (asking.room()?, 0);
        if let Needs::Keys(keys, sent) = &mut self.wish.needs {
            while *sent < keys.len() && pushed < has {
                asking.push(&RequestEntry::of(&Ask::Key(keys[*sent].clone()), tag));
                *sent += 1;
                pushed += 1;
            }
        }
        if pushed == has {
            return Ok((pushed, false));
        }
        if let (Some(run), Memory::Lent(span) | Memory::Pooled(span)) =
            (self.wish.ask.memory_mut(), &self.memory)
        {
            let (offset, bytes) = (span.offset() as u64, span.len() as u64);
            *run = MemoryRun { region: span.number(), offset, bytes };
        }
        asking.push(&RequestEntry::of(&self.wish.ask, tag));
        Ok((pushed + 1, true))
    }
}

/// The caller that waits for an answer.
struct Caller {
    is_there: bool,
    waker: Option<Waker>,
}

/// Work that is left to do without the lock.
#[derive(Default)]
pub(super) struct Afterwards {
    trash: Vec<Span>,
    wakers: Vec<Waker>,
    /// The ring has requests for which the server's doorbell was not rung.
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

/// The requests of a client, and the rings that they go through.
pub(super) struct Requests {
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

impl Requests {
    pub(super) fn new(rings: &Rings, depth: u64) -> Requests {
        Requests {
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

    /// Adds a request to the line, which [`Requests::turn`] moves on, and returns its slot.
    pub(super) fn add(&mut self, wish: Wish, memory: Memory) -> u32 {
        let caller = Caller { is_there: true, waker: None };
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u32 - 1
        });
        assert!(matches!(self.slots[number as usize], Slot::Free), "a free slot is empty");
        self.slots[number as usize] = Slot::Open(Request { wish, memory, caller, is_sent: false });
        self.line.push_back(number);
        number
    }

    /// Repeats a read whose bytes are not those that were put, now verified by the server, and returns the slot. The
    /// request has its memory, so that it goes before those that may wait for some.
    pub(super) fn ask_again(&mut self, ended: Ended) -> u32 {
        let Ended { mut wish, memory, .. } = ended;
        let Ask::Get { is_checked, .. } = &mut wish.ask else {
            unreachable!("only a read ends unverified")
        };
        *is_checked = true;
        if let (Needs::Room { bytes, .. }, Memory::Pooled(span)) = (&mut wish.needs, &memory) {
            // The rest of its memory is back in the pool.
            *bytes = span.len();
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
            match self.answered.count() {
                Ok(0) => break,
                Ok(_) => {
                    let done = self.answered.take();
                    self.answered.publish();
                    self.end(&done);
                }
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

    /// As [`Requests::turn`], then takes the answer of the request in a slot if it has ended.
    pub(super) fn turn_for(&mut self, number: u32) -> Option<Ended> {
        self.turn();
        self.take_ended(number)
    }

    /// Returns whether an answer waits to be taken.
    pub(super) fn has_news(&self) -> bool {
        self.answered.count() != Ok(0)
    }

    /// Returns whether a request waits for room in the ring or memory of the pool, which are not signalled.
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
        let Slot::Open(request) = &mut self.slots[number as usize] else {
            unreachable!("what waits in line has no answer")
        };
        if !request.caller.is_there && !request.wish.is_due() {
            let memory = mem::replace(&mut request.memory, Memory::None);
            self.slots[number as usize] = Slot::Free;
            self.free.push(number);
            self.discard(memory);
            return Ok(true);
        }
        if self.outstanding >= self.depth || !request.find_memory(&mut self.pool, self.guess) {
            return Ok(false);
        }
        let (pushed, is_sent) = request.push(u64::from(number), &mut self.asking)?;
        request.is_sent = is_sent;
        self.afterwards.has_asked |= pushed > 0;
        self.outstanding += u64::from(is_sent);
        Ok(is_sent)
    }

    /// Ends the request that an answer is for.
    fn end(&mut self, done: &Done) {
        let slot = usize::try_from(done.tag).ok().and_then(|slot| self.slots.get_mut(slot));
        let is_due = |request: &Request| request.is_sent && request.wish.may_end_with(done);
        let Some(request) = slot.and_then(|slot| slot.take_open(is_due)) else {
            return self.lose("it answered what was not asked");
        };
        let Request { mut wish, memory, caller, .. } = request;
        self.outstanding -= 1;
        let number = done.tag as u32;
        let memory = self.settle(&wish, memory, done);
        if caller.is_there && self.lacks(&mut wish, done) {
            self.slots[number as usize] =
                Slot::Open(Request { wish, memory, caller, is_sent: false });
            return self.line.push_back(number);
        }
        if !caller.is_there && Code::of(done.code) == Code::Done {
            match &wish.ask {
                Ask::Lease { .. } => self.give_up(Ask::Release(done.value)),
                Ask::Reserve { .. } => self.give_up(Ask::Abandon(done.value)),
                _ => {}
            }
        }
        self.finish(number, Ended::new(wish, *done, memory), caller);
    }

    /// Ends a lease or a writer, for which no caller waits.
    pub(super) fn give_up(&mut self, ask: Ask) {
        let slot = self.add(Wish::new(ask), Memory::None);
        self.abandon(slot);
    }

    /// Gives back the part of a request's memory that its answer does not need.
    fn settle(&mut self, wish: &Wish, memory: Memory, done: &Done) -> Memory {
        let is_read = matches!(Code::of(done.code), Code::Done | Code::Unverified);
        match (&wish.ask, memory) {
            (Ask::Get { .. }, Memory::Pooled(mut span)) if is_read => {
                let bytes = usize::try_from(done.value).unwrap_or(usize::MAX).min(span.len());
                if wish.reads_all() {
                    self.guess = whole(bytes);
                }
                if whole(bytes) < span.len() {
                    let rest = span.split_off(whole(bytes));
                    self.give_pooled(rest);
                }
                Memory::Pooled(span)
            }
            (Ask::Scan { .. } | Ask::Removals { .. }, Memory::Pooled(span)) if is_read => {
                Memory::Pooled(span)
            }
            (_, Memory::Pooled(span)) => {
                self.give_pooled(span);
                Memory::None
            }
            (_, memory) => memory,
        }
    }

    /// Returns whether a get failed for a short buffer and the pool is large enough; raises its need to the object's
    /// length.
    fn lacks(&self, wish: &mut Wish, done: &Done) -> bool {
        let Needs::Room { bytes, .. } = &mut wish.needs else { return false };
        let (Ok(needs), Some(pool)) = (usize::try_from(done.value), &self.pool) else {
            return false;
        };
        let is_short = Code::of(done.code) == Code::Memory && needs > *bytes;
        let is_lacking = is_short && needs <= pool.bytes();
        if is_lacking {
            *bytes = needs;
        }
        is_lacking
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
    fn take_ended(&mut self, number: u32) -> Option<Ended> {
        if !self.has_ended(number) {
            return None;
        }
        let Slot::Ended(ended) = mem::replace(&mut self.slots[number as usize], Slot::Free) else {
            unreachable!("looked at above")
        };
        self.free.push(number);
        Some(*ended)
    }

    /// Registers a waker to call once the request in a slot ends.
    pub(super) fn set_waker(&mut self, number: u32, new: &Waker) {
        if let Slot::Open(request) = &mut self.slots[number as usize] {
            request.caller.waker = Some(new.clone());
        }
    }

    /// Abandons the request in a slot: it does not begin, or its answer is dropped.
    pub(super) fn abandon(&mut self, number: u32) {
        if let Slot::Open(request) = &mut self.slots[number as usize] {
            request.caller.is_there = false;
        } else if let Some(ended) = self.take_ended(number) {
            self.discard(ended.memory);
        }
    }

    fn discard(&mut self, memory: Memory) {
        match memory {
            Memory::None => {}
            Memory::Lent(span) => self.afterwards.trash.push(span),
            Memory::Pooled(span) => self.give_pooled(span),
        }
    }

    /// Ends all requests because the server is lost. Memory of those in flight is kept: a device may still write it.
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
            let open = self.slots[number as usize].take_open(|_| true);
            let Some(Request { wish, memory, caller, is_sent }) = open else { continue };
            let memory = match memory {
                memory if is_sent => {
                    self.stuck.push(memory);
                    Memory::None
                }
                Memory::Pooled(span) => {
                    self.give_pooled(span);
                    Memory::None
                }
                memory => memory,
            };
            let done = Done::new(Code::Closed, 0, 0).with_tag(u64::from(number)).with_text(&why);
            self.finish(number, Ended::new(wish, done, memory), caller);
        }
        self.outstanding = 0;
    }
}

/// Returns the bytes of whole units that hold `bytes`.
pub(super) fn whole(bytes: usize) -> usize {
    (units(bytes.max(1) as u64) * UNIT_BYTES) as usize
}
