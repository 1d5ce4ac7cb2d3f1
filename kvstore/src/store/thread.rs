//! What a thread of the store does: it takes jobs from its mailbox and drives its shards.
//!
//! Reads into the store's own memory wait here, in order, for that memory; a read that is cancelled or too late
//! meanwhile never reaches a shard. The thread takes no more jobs while as many requests wait in a shard as its queue
//! is deep, so that waiting requests can be cancelled, and the mailbox fills up and pushes back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use adit_driver::runtime::{self, Alarm, Round};
use adit_driver::{Device, Time};

use super::devices::DeviceShard;
use super::flights::Flights;
use super::inbox::Inbox;
use super::job::{self, Aim, CommitReply, Fetch, Item, Job, Waiter, Work};
use super::pending::{Answer, Unfinished};
use super::pool::{self, Pool, PoolBuffer, Pools};
use crate::error::{Error, Result};
use crate::model::place::UNIT_BYTES;
use crate::shard::{Action, Done, Failure, GetItem, Request, Shard, Stats, Turn};

/// The parts of a thread.
pub(super) struct Worker {
    pub(super) mailbox: Arc<Inbox>,
    /// Its shards are numbers `first`, `first + step`, and so on, of the store.
    pub(super) shards: Vec<DeviceShard>,
    pub(super) first: u16,
    pub(super) step: u16,
    pub(super) pools: Arc<Pools>,
    /// The device whose clock all shards use.
    pub(super) clock: Device,
    /// Requests that may wait in a shard.
    pub(super) depth: usize,
    /// How long a call may wait to begin, for messages.
    pub(super) timeout: Duration,
    /// How long draining, and then the commit, may take.
    pub(super) drain_timeout: Duration,
}

/// A read waiting for memory.
struct Waiting {
    shard: usize,
    fetch: Fetch,
}

/// What the thread does. It ends with the counters of its shards, or [`Error::Timeout`] if it could not finish;
/// [`Error::Failed`] if a device could not make acknowledged data durable.
pub(super) struct Rounds {
    worker: Worker,
    desk: Desk,
    waker: Waker,
    ending: Ending,
}

/// The requests in progress.
struct Desk {
    flights: Flights,
    waiting: VecDeque<Waiting>,
}

/// How far the thread has got with ending.
enum Ending {
    /// Not ending.
    No,
    /// Carrying out the requests already sent.
    Draining { until: Time },
    /// Making acknowledged data durable.
    Committing {
        until: Time,
        answers: std::sync::mpsc::Receiver<Answer<()>>,
        left: usize,
        /// The first failure: a shard could not commit, or requests did not end in time.
        failure: Option<Error>,
    },
}

impl runtime::Worker for Rounds {
    type End = Result<Stats>;

    fn round(&mut self) -> Round {
        let now = self.worker.clock.now();
        let turn = self.turn(now);
        let first = self.desk.waiting.front();
        let due = first.map_or(turn.next, |first| turn.next.min(first.fetch.deadline));
        // Neither a completion nor a cancelled read at the head of the queue wakes the thread.
        let naps = turn.in_flight > 0 || first.is_some();
        Round { moved: turn.moved, due_in: due.since(now), naps }
    }

    fn end(&mut self) -> Option<Result<Stats>> {
        self.go_on_ending(self.worker.clock.now())
    }
}

impl Drop for Rounds {
    /// Also refuses jobs sent meanwhile, before the queues go.
    fn drop(&mut self) {
        self.worker.mailbox.close();
    }
}

impl Rounds {
    /// Begins on the thread that `alarm` wakes.
    pub(super) fn new(worker: Worker, alarm: Arc<Alarm>) -> Rounds {
        let desk = Desk { flights: Flights::default(), waiting: VecDeque::new() };
        Rounds { worker, desk, waker: Waker::from(alarm), ending: Ending::No }
    }

    /// Does one turn of all work.
    fn turn(&mut self, now: Time) -> Turn {
        let mut all = Turn { moved: 0, in_flight: 0, next: Time::NEVER };
        all.moved += self.take_jobs(now);
        if all.moved > 0 {
            self.worker.mailbox.made_room();
        }
        all.moved += self.begin_waiting(now);
        self.worker.mailbox.hold_fetches(self.desk.waiting.len() >= self.worker.depth);
        let Rounds { worker, desk, .. } = self;
        for (shard, number) in worker.shards.iter_mut().zip(0..) {
            let turn = shard.poll(now, &mut |done| desk.answer(number, done));
            all.moved += turn.moved;
            all.in_flight += turn.in_flight;
            all.next = all.next.min(turn.next);
        }
        all
    }

    /// Takes jobs while the shards have room.
    fn take_jobs(&mut self, now: Time) -> usize {
        let mut taken = 0;
        // Never hold these up: waiting requests may need what they free.
        while let Some(ending) = self.worker.mailbox.take_urgent() {
            self.begin(now, ending);
            taken += 1;
        }
        while taken < self.worker.depth && self.worker.has_room() {
            let Some(job) = self.worker.mailbox.take() else { break };
            self.begin(now, job);
            taken += 1;
        }
        taken
    }

    fn begin(&mut self, now: Time, job: Job) {
        let Rounds { worker, desk, waker, .. } = self;
        let shard = worker.index(job.shard);
        let mut begin = Begin { worker, desk, waker, now, shard, deadline: job.deadline };
        match job.work {
            Work::One(item) if !item.is_wanted() => item.refuse(Failure::Deadline),
            work if now > job.deadline => work.refuse(&Failure::Deadline),
            Work::Ask(ask) => ask(Ok((&mut begin.worker.shards[shard], now))),
            Work::One(Item::Fetch(fetch)) => begin.fetch(fetch),
            Work::One(item) => begin.one(item),
            Work::Many(items) => begin.many(items),
        }
    }

    /// Begins reads that waited for memory, in order, while there is some.
    fn begin_waiting(&mut self, now: Time) -> usize {
        let mut begun = 0;
        while let Some(first) = self.desk.waiting.pop_front() {
            let Waiting { shard, fetch } = first;
            if !fetch.reply.is_wanted() {
                begun += 1;
                continue;
            }
            let deadline = fetch.deadline;
            if now > deadline {
                let after = self.worker.timeout;
                fetch.reply.send(Err(Unfinished::new(memory_timeout(after))));
                begun += 1;
                continue;
            }
            let Rounds { worker, desk, waker, .. } = self;
            let mut begin = Begin { worker, desk, waker, now, shard, deadline };
            if let Err(fetch) = begin.fetch_now(fetch) {
                self.desk.waiting.push_front(Waiting { shard, fetch });
                break;
            }
            begun += 1;
        }
        begun
    }

    /// Continues the ending. Returns the answer once it is complete.
    fn go_on_ending(&mut self, now: Time) -> Option<Result<Stats>> {
        match &mut self.ending {
            Ending::No => {
                self.ending = Ending::Draining { until: now + self.worker.drain_timeout };
                None
            }
            Ending::Draining { until } => {
                let is_late = now >= *until;
                if is_late || (self.worker.mailbox.is_empty() && self.desk.is_empty()) {
                    self.ending = self.commit(now);
                }
                None
            }
            Ending::Committing { until, .. } if now >= *until => Some(Err(self.too_late())),
            Ending::Committing { answers, left, failure, .. } => {
                while let Ok(answer) = answers.try_recv() {
                    *left -= 1;
                    // The other shards still have to commit.
                    *failure = failure.take().or(answer.err().map(Error::from));
                }
                if *left > 0 {
                    return None;
                }
                if let Some(failure) = failure.take() {
                    return Some(Err(failure));
                }
                let is_over = self.worker.shards.iter().all(Shard::is_idle);
                is_over.then(|| Ok(self.worker.stats()))
            }
        }
    }

    fn too_late(&self) -> Error {
        Error::Timeout {
            waited_for: "requests to end and a commit before the store closes",
            after: self.worker.drain_timeout,
            fix: "see the log for what its devices say",
        }
    }

    /// Begins the commit, with a timeout of its own, because requests may have used up theirs. Gives up reads that
    /// still wait for memory; leaves requests that devices did not end in time.
    fn commit(&mut self, now: Time) -> Ending {
        for Waiting { fetch, .. } in self.desk.waiting.drain(..) {
            fetch.reply.send(Err(Unfinished::new(Failure::Closed)));
        }
        let is_late = !self.worker.mailbox.is_empty() || !self.desk.is_empty();
        let failure = is_late.then(|| self.too_late());
        let until = now + self.worker.drain_timeout;
        let (sender, answers) = std::sync::mpsc::channel();
        let left = self.worker.shards.len();
        for shard in 0..left {
            let sender = sender.clone();
            let to = CommitReply(Box::new(move |answer| {
                // The receiver is gone if the thread gave up.
                let _ = sender.send(answer);
            }));
            let Rounds { worker, desk, waker, .. } = self;
            let mut begin = Begin { worker, desk, waker, now, shard, deadline: until };
            begin.one(Item::Commit(to));
        }
        Ending::Committing { until, answers, left, failure }
    }
}

impl Worker {
    fn index(&self, shard: u16) -> usize {
        usize::from((shard - self.first) / self.step)
    }

    fn has_room(&self) -> bool {
        self.shards.iter().all(|shard| shard.waiting() < self.depth)
    }

    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.shards.iter().for_each(|shard| sum += shard.stats());
        sum
    }
}

impl Desk {
    /// Delivers an answer of shard `shard` to its waiter.
    fn answer(&mut self, shard: usize, done: Done) {
        let waiter = self.flights.leave(done.tag, done.item);
        if let Some(fetch) = waiter.answer(done) {
            // It keeps its place: its turn had come already.
            self.waiting.push_front(Waiting { shard, fetch });
        }
    }

    fn is_empty(&self) -> bool {
        self.flights.is_empty() && self.waiting.is_empty()
    }
}

/// A job being begun.
struct Begin<'a> {
    worker: &'a mut Worker,
    desk: &'a mut Desk,
    waker: &'a Waker,
    now: Time,
    shard: usize,
    deadline: Time,
}

impl Begin<'_> {
    fn one(&mut self, item: Item) {
        let (action, waiter) = job::begin_one(item);
        let tag = self.desk.flights.enter_one(waiter);
        self.submit(tag, action);
    }

    fn submit(&mut self, tag: u64, action: Action) {
        let request = Request { tag, deadline: self.deadline, action };
        self.worker.shards[self.shard].submit(self.now, request);
    }

    /// Begins the items of a list that are still wanted.
    fn many(&mut self, items: Vec<Item>) {
        let (wanted, rest): (Vec<_>, Vec<_>) = items.into_iter().partition(Item::is_wanted);
        rest.into_iter().for_each(|item| item.refuse(Failure::Deadline));
        if matches!(wanted.first(), Some(Item::Fetch(_))) {
            return self.fetch_many(wanted);
        }
        if !wanted.is_empty() {
            let (action, waiters) = job::begin(wanted);
            let tag = self.desk.flights.enter_many(waiters);
            self.submit(tag, action);
        }
    }

    fn fetch(&mut self, fetch: Fetch) {
        let fetch = if self.desk.waiting.is_empty() { self.fetch_now(fetch) } else { Err(fetch) };
        if let Err(fetch) = fetch {
            self.queue(fetch);
        }
    }

    fn queue(&mut self, fetch: Fetch) {
        self.desk.waiting.push_back(Waiting { shard: self.shard, fetch });
    }

    /// Begins as many reads together as there is memory for; the others wait.
    fn fetch_many(&mut self, items: Vec<Item>) {
        let (mut gets, mut waiters) = (Vec::new(), Vec::new());
        for item in items {
            let Item::Fetch(fetch) = item else { unreachable!("a list is of one kind") };
            if !self.desk.waiting.is_empty() {
                self.queue(fetch);
                continue;
            }
            match self.prepare(fetch) {
                Prepared::Ready(get, waiter) => {
                    gets.push(get);
                    waiters.push(waiter);
                }
                Prepared::Wait(fetch) => self.queue(fetch),
                Prepared::Over => {}
            }
        }
        if !gets.is_empty() {
            let tag = self.desk.flights.enter_many(waiters);
            self.submit(tag, Action::GetMany(gets));
        }
    }

    /// Begins a read if there is memory for it.
    fn fetch_now(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        match self.prepare(fetch) {
            Prepared::Ready(get, waiter) => {
                let tag = self.desk.flights.enter_one(waiter);
                self.submit(tag, Action::Get(get));
                Ok(())
            }
            Prepared::Wait(fetch) => Err(fetch),
            Prepared::Over => Ok(()),
        }
    }

    /// Looks up the object's length and takes memory for it.
    fn prepare(&mut self, mut fetch: Fetch) -> Prepared {
        let Some(info) = self.worker.shards[self.shard].info(self.now, &fetch.key) else {
            let (get, waiter) = fetch.begin_miss();
            return Prepared::Ready(get, waiter);
        };
        let refuse = |mut fetch: Fetch, error: Error| {
            if let Some(share) = &mut fetch.share {
                share.take_back();
            }
            fetch.reply.send(Err(Unfinished::new(error)));
            Prepared::Over
        };
        let layout = self.worker.shards[self.shard].layout_of(info.layout);
        let block_bytes = layout.map(|layout| layout.block_units() * UNIT_BYTES);
        let aim = match Aim::of(&info, fetch.range.as_ref(), block_bytes) {
            Ok(aim) => aim,
            Err(failure) => return refuse(fetch, failure.into()),
        };
        if let Err(error) = self.worker.pools.check(aim.len as u64) {
            return refuse(fetch, error);
        }
        let pools = &self.worker.pools;
        let pool = pools.of_device(info.device);
        if let Some(share) = &mut fetch.share {
            share.ask(pools.number(info.device), pool::whole_units(aim.len) as u64);
        }
        if let Some(buffer) = take(pool, aim.len, self.waker) {
            let (get, waiter) = fetch.begin(aim, buffer);
            return Prepared::Ready(get, waiter);
        }
        let there_are = pool.bytes() as u64;
        match fetch.share.as_ref().and_then(|share| share.too_many(there_are)) {
            Some(bytes) => refuse(fetch, never_together(bytes, there_are)),
            None => Prepared::Wait(fetch),
        }
    }
}

/// Takes memory, or registers the waker to be called once there may be some.
fn take(pool: &Arc<Pool>, len: usize, waker: &Waker) -> Option<PoolBuffer> {
    pool.take(len).or_else(|| {
        pool.want(waker);
        pool.take(len)
    })
}

/// The state of a fetch after looking up its object.
enum Prepared {
    Ready(GetItem, Waiter),
    /// No memory is free now.
    Wait(Fetch),
    /// The fetch was answered.
    Over,
}

fn never_together(bytes: u64, there_are: u64) -> Error {
    let fix = format!(
        "its values are held together, in memory of {there_are} bytes: take them as they come (Batch::next) and drop \
         them, ask for fewer at once, or raise pool_bytes"
    );
    Error::invalid("the bytes of a batch", bytes, fix)
}

fn memory_timeout(after: Duration) -> Error {
    Error::Timeout {
        waited_for: "registered memory to read into",
        after,
        fix: "drop values sooner, or raise pool_bytes",
    }
}
