//! Gets and puts in flight: submits them, takes the answers, counts and checks them.
//!
//! All memory is allocated at the start and bounds what is in flight. The first failure is kept, and no request
//! is submitted after it.

use adit_driver::memory::AnyBuffer;
use adit_driver::{Buffer, Time};
use adit_kvstore::shard::{Action, GetItem, Outcome, Part, PutItem, PutOptions, Request};
use adit_kvstore::{Error, Key, units};

use super::bed::{Bed, EndedRequest};
use super::counted::Counted;
use super::objects::Objects;
use crate::failure::{Failure, Result};
use adit_load::Contents;
use adit_tools_common::blocks;

/// A request carries the number of its batch, and in these low bits the position of its item.
const ITEM_BITS: u32 = 32;

/// The check of an answer, or a description of what is wrong.
type Judged = std::result::Result<(), String>;

/// An operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Read.
    Get,
    /// Read, then put.
    Modify,
    /// Put.
    Put,
}

/// An item in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    kind: OperationKind,
    object: u64,
    /// The smallest generation that a get may find.
    least: u64,
}

/// A request in flight.
#[derive(Debug, Default)]
struct Batch {
    begun: Time,
    flights: Vec<Flight>,
    left: usize,
}

/// Submits requests to a store and checks its answers.
pub(super) struct Engine<'a, B> {
    bed: &'a mut B,
    object_bytes: u64,
    contents: Contents,
    objects: Objects,
    idle: Vec<Buffer>,
    batches: Vec<Batch>,
    unused: Vec<usize>,
    in_flight: usize,
    /// Room for the answers of a poll.
    answers: Vec<EndedRequest>,
    /// Objects read in order to be put.
    modified: Vec<u64>,
    counted: Counted,
    failure: Option<Failure>,
    /// Requests being made; kept to reuse the memory.
    requests: Vec<Request>,
}

impl<'a, B: Bed> Engine<'a, B> {
    /// Creates an engine with memory for `items` in flight and objects of `object_bytes`; with `is_thorough`,
    /// checks compare every byte.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(super) fn new(
        bed: &'a mut B,
        object_bytes: u64,
        items: usize,
        is_thorough: bool,
        objects: Objects,
    ) -> Result<Engine<'a, B>> {
        let contents = Contents::new(object_bytes as usize, is_thorough);
        let buffer_bytes = (units(object_bytes) * adit_kvstore::UNIT_BYTES) as usize;
        let mut rest = bed.allocate(items * buffer_bytes)?;
        let mut idle = Vec::with_capacity(items);
        for index in (0..items).rev() {
            let mut buffer = rest.split_off(index * buffer_bytes);
            // Memory is allocated in whole pages.
            drop(buffer.split_off(buffer_bytes));
            contents.initial(&mut buffer);
            idle.push(buffer);
        }
        Ok(Engine {
            bed,
            object_bytes,
            contents,
            objects,
            idle,
            batches: Vec::new(),
            unused: Vec::new(),
            in_flight: 0,
            answers: Vec::with_capacity(items),
            modified: Vec::new(),
            counted: Counted::default(),
            failure: None,
            requests: Vec::new(),
        })
    }

    /// Returns the store.
    pub(super) fn bed(&mut self) -> &mut B {
        self.bed
    }

    /// Returns the number of items in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether there was a failure, after which nothing may begin.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns whether a put of the object may begin.
    pub(super) fn may_put(&self, object: u64) -> bool {
        !self.objects.is_busy(object)
    }

    /// Keeps a failure, after which nothing may begin, unless there was one.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// Takes an object that was read in order to be put and can be put now.
    pub(super) fn take_modified(&mut self) -> Option<u64> {
        let at = self.modified.iter().position(|object| self.may_put(*object))?;
        Some(self.modified.swap_remove(at))
    }

    /// Returns the counts, to be added to.
    pub(super) fn counted(&mut self) -> &mut Counted {
        &mut self.counted
    }

    /// Returns the final counts.
    ///
    /// # Panics
    /// If an item is in flight.
    pub(super) fn finish(self) -> (Counted, Option<Failure>) {
        assert_eq!(self.in_flight, 0, "a run ends when everything has been answered");
        (self.counted, self.failure)
    }

    /// Submits one request for all of these objects.
    ///
    /// # Panics
    /// If there is not enough memory for them.
    pub(super) fn begin(&mut self, kind: OperationKind, objects: impl Iterator<Item = u64>) {
        self.begin_after(kind, objects, None);
    }

    /// Submits one request for all of these objects, which are a sequence behind another object.
    ///
    /// # Panics
    /// If there is not enough memory for them.
    pub(super) fn begin_after(
        &mut self,
        kind: OperationKind,
        objects: impl Iterator<Item = u64>,
        before: Option<u64>,
    ) {
        let now = self.bed.now();
        let tag = self.unused.pop().unwrap_or_else(|| {
            self.batches.push(Batch::default());
            self.batches.len() - 1
        });
        let mut flights = std::mem::take(&mut self.batches[tag].flights);
        flights.extend(objects.map(|object| self.flight(kind, object)));
        self.in_flight += flights.len();
        self.requests.clear();
        for (item, flight) in (0u64..).zip(&flights) {
            let action = match kind {
                OperationKind::Put => {
                    let after = before.filter(|_| item == 0).map(blocks::key);
                    Action::Put(self.put_item(flight.object, after))
                }
                OperationKind::Get | OperationKind::Modify => {
                    Action::Get(self.get_item(flight.object))
                }
            };
            let reply = (tag as u64) << ITEM_BITS | item;
            self.requests.push(Request { reply, deadline: Time::NEVER, action });
        }
        self.batches[tag] = Batch { begun: now, left: flights.len(), flights };
        self.bed.submit(now, self.requests.drain(..));
    }

    fn flight(&self, kind: OperationKind, object: u64) -> Flight {
        Flight { kind, object, least: self.objects.least(object) }
    }

    fn put_item(&mut self, object: u64, after: Option<Key>) -> PutItem {
        let mut data = self.buffer();
        let generation = self.objects.begin_put(object);
        self.contents.stamp(&mut data, object, generation);
        PutItem {
            key: blocks::key(object),
            bytes: self.object_bytes,
            data: AnyBuffer::One(data),
            options: PutOptions { after, ..PutOptions::default() },
        }
    }

    fn get_item(&mut self, object: u64) -> GetItem {
        let into = AnyBuffer::One(self.buffer());
        GetItem { key: blocks::key(object), part: Part::All, into, version: None }
    }

    fn buffer(&mut self) -> Buffer {
        self.idle.pop().expect("no more begins than there is memory for")
    }

    /// Handles the answers; returns how many there were.
    pub(super) fn turn(&mut self) -> usize {
        let now = self.bed.now();
        let mut answers = std::mem::take(&mut self.answers);
        let moved = self.bed.poll(now, &mut |ended| answers.push(ended));
        answers.drain(..).for_each(|ended| self.take(now, ended));
        self.answers = answers;
        moved
    }

    /// Handles answers until nothing is in flight.
    pub(super) fn drain(&mut self) {
        while self.in_flight > 0 {
            self.turn();
        }
    }

    fn take(&mut self, now: Time, ended: EndedRequest) {
        let EndedRequest { reply, result, memory: mut buffer } = ended;
        let tag = (reply >> ITEM_BITS) as usize;
        let item = (reply & ((1 << ITEM_BITS) - 1)) as usize;
        let batch = &mut self.batches[tag];
        let (flight, begun) = (batch.flights[item], batch.begun);
        batch.left -= 1;
        if batch.left == 0 {
            batch.flights.clear();
            self.unused.push(tag);
        }
        self.in_flight -= 1;
        let latency = now.since(begun);
        let judged = match flight.kind {
            OperationKind::Put => self.of_put(flight, &result, latency),
            OperationKind::Get | OperationKind::Modify => {
                self.of_get(flight, &result, latency, &buffer)
            }
        };
        if let Err(why) = judged {
            // A failed read may have destroyed the noise.
            self.contents.initial(&mut buffer);
            self.fail(Failure::failed(why));
        }
        self.idle.push(buffer);
    }

    fn of_put(&mut self, flight: Flight, result: &Answer, latency: std::time::Duration) -> Judged {
        self.objects.end_put(flight.object, matches!(result, Ok(Outcome::Stored)));
        match result {
            Ok(Outcome::Stored) => self.counted.put.record(self.object_bytes, latency),
            Ok(Outcome::Declined(_)) => self.counted.declined += 1,
            other => return Err(unexpected("putting", flight.object, other)),
        }
        Ok(())
    }

    fn of_get(
        &mut self,
        flight: Flight,
        result: &Answer,
        latency: std::time::Duration,
        buffer: &[u8],
    ) -> Judged {
        match result {
            Ok(Outcome::Hit { bytes }) if *bytes == self.object_bytes => {
                self.counted.get.record(*bytes, latency);
                self.contents.check(buffer, self.objects.expected(flight.object, flight.least))?;
            }
            Ok(Outcome::Miss) => {
                self.counted.get.record(0, latency);
                self.counted.misses += 1;
            }
            other => return Err(unexpected("getting", flight.object, other)),
        }
        if flight.kind == OperationKind::Modify {
            self.modified.push(flight.object);
        }
        Ok(())
    }
}

/// An answer's result.
type Answer = std::result::Result<Outcome, Error>;

fn unexpected(doing: &str, object: u64, result: &Answer) -> String {
    match result {
        Ok(Outcome::Hit { bytes }) => format!(
            "object {object} has {bytes} bytes; give --object-bytes as the store was filled with"
        ),
        Ok(other) => format!("{doing} object {object} came to {other:?}"),
        Err(why) => format!("{doing} object {object} failed: {why}"),
    }
}
