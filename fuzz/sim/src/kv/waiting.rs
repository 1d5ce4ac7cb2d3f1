//! Changes that wait before they reach their shard: for memory, for room, or for an earlier change of their key.
//!
//! The order is the store's own ([`Arrivals`]). Memory is simulated: a number of units, which puts take when they begin
//! and give back with their answers, and which callers hold for a while. Puts without memory wait in one line; some are
//! given up, and some are late.

use std::collections::VecDeque;
use std::iter;

use adit_driver::Time;
use adit_kvstore::internals::{Arrival, Arrivals, Changes};
use adit_kvstore::shard::{Action, Done, Failure, Request};
use adit_kvstore::units;

use super::canary::StoreCanary;
use super::counts::Sum;
use super::world::{Item, RequestTag, StoreWorld};

/// Changes that wait for room in a shard, at most, before others wait for them.
const DEPTH: usize = 4;

/// A change on its way to a shard.
#[derive(Debug)]
pub(crate) struct Change {
    /// The number of its key, in place of a hash.
    key: Option<u64>,
    request: Request<RequestTag>,
}

impl Change {
    /// Returns the units of memory that it needs to begin.
    fn needs(&self) -> u64 {
        if let Action::Put(put) = &self.request.action { units(put.bytes).max(1) } else { 0 }
    }
}

impl Arrival for Change {
    fn key_hash(&self) -> Option<u64> {
        self.key
    }

    fn is_wanted(&self) -> bool {
        true
    }
}

/// The memory of a life of the store, and the changes that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Units of memory; 0 for a run in which nothing waits for memory.
    units: u64,
    /// Of them, those that callers hold.
    held: u64,
    /// Of them, those of puts that have begun.
    taken: u64,
    /// Puts that wait for memory, with their shards, in order.
    line: VecDeque<(u16, Change)>,
    /// By shard.
    arrivals: Vec<Arrivals<Change>>,
}

impl Waiting {
    pub(crate) fn new(units: u64, shards: usize) -> Waiting {
        let arrivals = iter::repeat_with(Arrivals::default).take(shards).collect();
        Waiting { units, arrivals, ..Waiting::default() }
    }

    fn free(&self) -> u64 {
        self.units - self.held - self.taken
    }

    /// Takes back the memory of a put that was answered.
    pub(crate) fn give(&mut self, item: &Item) {
        if let (Item::Put { asked, .. }, true) = (item, self.units > 0) {
            self.taken -= asked;
        }
    }
}

impl StoreWorld {
    /// Submits requests to a shard, or lets them wait.
    pub(crate) fn arrive(&mut self, shard: u16, requests: Vec<Request<RequestTag>>) {
        let is_change = !matches!(
            requests.first().map(|first| &first.action),
            Some(Action::Get(_) | Action::Fill(_) | Action::Commit) | None
        );
        let index = usize::from(shard);
        if self.waiting.units == 0 || !is_change {
            return self.shards[index].submit_many(self.now, requests);
        }
        let changes: Changes<Change> =
            requests.into_iter().map(|request| self.change(request)).collect();
        let arrivals = &mut self.waiting.arrivals[index];
        if arrivals.has_no_queue() && self.shards[index].waiting() < DEPTH {
            self.begin_changes(shard, changes);
        } else {
            arrivals.push(changes);
        }
    }

    fn change(&self, request: Request<RequestTag>) -> Change {
        let RequestTag { tag, item } = request.reply;
        let key = match self.pending[&tag].items[item as usize] {
            Some(
                Item::Put { key, .. }
                | Item::Seal { key, .. }
                | Item::Delete { key, .. }
                | Item::Touch { key, .. },
            ) => Some(key as u64),
            _ => None,
        };
        Change { key, request }
    }

    /// Gives changes to their shard, except those that have to wait.
    fn begin_changes(&mut self, shard: u16, changes: Changes<Change>) {
        let is_ordered = self.canary != Some(StoreCanary::JumpedQueue);
        let Waiting { units, held, taken, line, arrivals } = &mut self.waiting;
        let arrivals = &mut arrivals[usize::from(shard)];
        let mut begun = Vec::new();
        for change in changes {
            let may_begin = if is_ordered { arrivals.follow(change) } else { Some(change) };
            let Some(change) = may_begin else {
                self.counts.count(Sum::Followed, 1);
                continue;
            };
            let needs = change.needs();
            if needs > 0 && (!line.is_empty() || *held + *taken + needs > *units) {
                if let (Some(key), true) = (change.key, is_ordered) {
                    arrivals.hold(key);
                }
                self.counts.count(Sum::Waited, 1);
                line.push_back((shard, change));
                continue;
            }
            *taken += needs;
            begun.push(change.request);
        }
        self.shards[usize::from(shard)].submit_many(self.now, begun);
    }

    /// Goes on with what waits. Callers take and give back memory; they give it back in any case if `is_idle`. Returns how
    /// many changes it went on with.
    pub(crate) fn go_on_waiting(&mut self, is_idle: bool) -> usize {
        if self.waiting.units == 0 {
            return 0;
        }
        let mut moved = 0;
        if is_idle || self.random.one_in(16) {
            moved += usize::from(self.waiting.held > 0);
            self.waiting.held = 0;
        } else if self.waiting.held == 0 && self.random.one_in(2) {
            // Mostly nearly all, so that short puts find some and long ones wait.
            let (free, part) = (self.waiting.free(), self.random.pick(&[1, 16, 64]));
            self.waiting.held = free - self.random.below(free / part + 1);
        }
        for shard in 0..self.shards.len() {
            while self.shards[shard].waiting() < DEPTH
                && let Some(changes) = self.waiting.arrivals[shard].pop()
            {
                self.begin_changes(shard as u16, changes);
                moved += 1;
            }
        }
        while let Some((_, first)) = self.waiting.line.front() {
            let is_late = first.request.deadline <= self.now;
            let is_given_up = self.random.one_in(40);
            if !is_late && !is_given_up && first.needs() > self.waiting.free() {
                break;
            }
            let (shard, change) = self.waiting.line.pop_front().expect("it was there");
            self.end_wait(shard, change, is_late || is_given_up);
            moved += 1;
        }
        moved
    }

    /// Begins a put that waited for memory, or refuses it.
    fn end_wait(&mut self, shard: u16, change: Change, is_refused: bool) {
        self.waiting.taken += change.needs();
        let Change { key, request } = change;
        if is_refused {
            let Request { reply, action, .. } = request;
            self.pending.get_mut(&reply.tag).expect("it is not answered").has_deadline = true;
            let Action::Put(put) = action else { unreachable!("only puts wait for memory") };
            let (result, memory) = (Err(Failure::Deadline), put.data);
            self.answer(Done { reply, result, memory, version: None, unverified: None });
        } else {
            self.shards[usize::from(shard)].submit(self.now, request);
        }
        if let (Some(key), false) = (key, self.canary == Some(StoreCanary::JumpedQueue)) {
            self.waiting.arrivals[usize::from(shard)].release(key);
        }
    }

    /// Returns the key of the last put that waits for memory.
    pub(crate) fn waiting_key(&self) -> Option<usize> {
        self.waiting.line.back().and_then(|(_, change)| change.key).map(|key| key as usize)
    }

    /// Returns when a put that waits is late.
    pub(crate) fn next_late(&self) -> Time {
        self.waiting.line.front().map_or(Time::NEVER, |(_, change)| change.request.deadline)
    }
}
