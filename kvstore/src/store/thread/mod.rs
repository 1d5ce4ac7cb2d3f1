//! The work of a thread of the store: it takes jobs from its mailbox and drives its shards.
//!
//! Requests wait here, not in the mailbox, so that none holds up others that could begin. Requests that lack memory
//! wait in
//! [`MemoryWaits`]. Changes wait in [`Arrivals`]: while twice as many others as a queue is deep wait for room in their
//! shard, and behind an earlier change of their key that waits for memory. A read is looked up before it waits for
//! memory, so a miss never waits.
//!
//! Once the thread must end, a request that would have to wait is refused.
//!
//! | file | holds |
//! |---|---|
//! | `feed` | sources of requests that the thread polls |
//! | `inbox` | its mailbox |
//! | `figures` | its counters |
//! | `memory_waits` | requests that wait for memory |
//! | `exit` | the end of all threads of a store |

mod exit;
mod feed;
mod figures;
mod inbox;
mod memory_waits;

use std::iter;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use adit_driver::runtime::{self, Alarm, Round};
use adit_driver::{Device, Time};

use self::exit::ThreadEnd;
pub(crate) use self::exit::{Exit, ThreadExit};
pub use self::feed::Feed;
use self::feed::Feeds;
pub(crate) use self::figures::{Figures, KINDS};
pub(crate) use self::inbox::{Ask, Inbox, ShardJob, ShardWork};
use self::memory_waits::{MemoryWaiter, MemoryWaits};
use super::answer::{Answer, Judged, ReadCheck, Verdicts};
use super::devices::keep_ages_within;
use super::memory::{Pool, PoolBuffer, Pools};
use super::request::{
    Arrival, Arrivals, Asked, Caller, Changes, Lend, Requests, ThreadShard, Unequipped, Waiter,
};
use crate::error::{Error, Result};
use crate::shard::{Action, Arriving, Done, Failure, Hashed, Outcome, Request, Shard, Stats, Turn};

/// The longest sleep with commands in flight, though their completions end it.
const IN_FLIGHT_SLEEP_MAX: Duration = Duration::from_millis(50);

/// The parts of a thread.
pub(crate) struct Worker {
    pub(crate) mailbox: Arc<Inbox>,
    pub(crate) figures: Arc<Figures>,
    /// Its shards are numbers `first`, `first + step`, and so on, of the store.
    pub(crate) shards: Vec<ThreadShard>,
    pub(crate) first: u16,
    pub(crate) step: u16,
    pub(crate) pools: Arc<Pools>,
    /// The store's devices; all shards use the first one's clock.
    pub(crate) devices: Vec<Device>,
    /// Number of changes that may wait for room in a shard.
    pub(crate) depth: usize,
    /// How long a call may wait to begin; also how long draining, and then the last commit, may take.
    pub(crate) timeout: Duration,
}

/// The thread's work. It ends with the counters of its shards; with [`Error::Timeout`] if it could not finish; with
/// [`Error::Failed`] if a device could not make acknowledged data durable.
pub(crate) struct Rounds {
    worker: Worker,
    backlog: Backlog,
    feeds: Feeds,
    waker: Waker,
    ending: Ending,
    /// The last field, because it reports the end: the devices are released before.
    exit: ThreadExit,
}

/// The requests in progress.
struct Backlog {
    /// The number of requests that the shards have.
    open: usize,
    memory_waits: MemoryWaits,
    /// For each shard: changes that wait for others.
    arrivals: Vec<Arrivals<Asked>>,
}

/// How far the thread's ending has got.
enum Ending {
    /// Not ending.
    No,
    /// Carrying out the requests already sent.
    Draining { until: Time },
    /// Making acknowledged data durable.
    Committing {
        until: Time,
        answers: std::sync::mpsc::Receiver<Answer<u64>>,
        left: usize,
        /// The first failure: a shard could not commit, or requests did not end in time.
        failure: Option<Error>,
    },
}

impl runtime::Worker for Rounds {
    type End = ();

    fn round(&mut self) -> Round {
        let now = self.worker.now();
        let turn = self.turn(now);
        let due = turn.next.min(self.backlog.next_due(now));
        // The completions of some paths do not wake the thread.
        let is_silent = || !self.worker.shards.iter().all(|shard| shard.lanes().notifies());
        let naps = turn.in_flight > 0 && is_silent();
        let longest = if turn.in_flight > 0 { IN_FLIGHT_SLEEP_MAX } else { Duration::MAX };
        Round { moved: turn.moved, due_in: due.since(now).min(longest), naps }
    }

    fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
        self.feeds.interrupts()
    }

    fn before_sleep(&mut self) -> bool {
        self.feeds.announce()
    }

    fn after_sleep(&mut self, is_interrupted: bool) {
        self.feeds.resume(is_interrupted);
    }

    fn end(&mut self) -> Option<()> {
        let end = self.go_on_ending(self.worker.now())?;
        self.exit.with(end.map(|stats| ThreadEnd { stats, ends: self.worker.ends() }));
        Some(())
    }

    fn died(&mut self, why: &str) {
        self.exit.died(why);
        // Before the shards, which take a while to let go of their devices.
        self.feeds = Feeds::default();
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
    pub(crate) fn new(worker: Worker, alarm: Arc<Alarm>, exit: ThreadExit) -> Rounds {
        let arrivals = worker.shards.iter().map(|_| Arrivals::default()).collect();
        let backlog = Backlog { open: 0, memory_waits: MemoryWaits::new(&worker.pools), arrivals };
        let (feeds, waker) = (Feeds::default(), Waker::from(alarm));
        Rounds { worker, backlog, feeds, waker, ending: Ending::No, exit }
    }

    /// Does one turn of all work.
    fn turn(&mut self, now: Time) -> Turn {
        let mut all = Turn { moved: 0, in_flight: 0, next: Time::NEVER };
        self.judge(now);
        all.moved += self.feeds.turn();
        all.moved += self.take_jobs(now);
        if self.backlog.has_queue() {
            all.moved += self.begin_arrived(now);
        }
        if !self.backlog.memory_waits.is_empty() {
            all.moved += self.begin_equipped(now);
        }
        self.backlog.sweep();
        let Rounds { worker, backlog, .. } = self;
        let Worker { mailbox, shards, figures, depth, first, step, .. } = worker;
        let Inbox { lacks_memory, lacks_room, verdicts, .. } = &**mailbox;
        lacks_memory.store(backlog.memory_waits.len() >= *depth, Ordering::Relaxed);
        lacks_room.store(backlog.has_queue(), Ordering::Relaxed);
        figures.note_waiting(backlog.memory_waits.len());
        for (shard, number) in shards.iter_mut().zip((*first..).step_by(usize::from(*step))) {
            let home = (verdicts, number);
            let turn = shard.poll(now, &mut |done| backlog.answer(now, (figures, home), done));
            all.moved += turn.moved;
            all.in_flight += turn.in_flight;
            all.next = all.next.min(turn.next);
        }
        all
    }

    /// Passes the verdicts of callers on their reads to the shards.
    fn judge(&mut self, now: Time) {
        while let Some(Judged { shard, times, verdict }) = self.worker.mailbox.verdicts.take() {
            self.worker.figures.verified(times, verdict.is_intact());
            let shard = self.worker.index(shard);
            self.worker.shards[shard].judge(now, verdict);
        }
    }

    /// Takes jobs, at most `depth` in a turn.
    fn take_jobs(&mut self, now: Time) -> usize {
        let mut taken = 0;
        while taken < self.worker.depth
            && let Some(job) = self.worker.mailbox.take()
        {
            self.begin(now, job);
            taken += 1;
        }
        taken
    }

    fn begin(&mut self, now: Time, ShardJob { shard, work }: ShardJob) {
        let shard = self.worker.index(shard);
        match work {
            ShardWork::Ask(deadline, ask) if now > deadline => ask(Err(Failure::Deadline)),
            ShardWork::Ask(_, ask) => {
                // It may count what its caller has read.
                self.judge(now);
                let shard = &mut self.worker.shards[shard];
                shard.note_hits();
                ask(Ok((shard, now)));
            }
            ShardWork::Lend(lend) => self.lend(now, lend),
            ShardWork::Feed(feed) => self.feeds.add(feed),
            ShardWork::Requests(requests) => {
                if requests.are_changes() && !self.has_room(shard) {
                    self.backlog.arrivals[shard].push(requests.into_asked());
                } else {
                    self.begin_requests(now, shard, requests);
                }
            }
        }
    }

    /// Returns whether a shard takes another change.
    fn has_room(&self, shard: usize) -> bool {
        self.backlog.arrivals[shard].has_no_queue()
            && self.worker.shards[shard].waiting() < self.worker.depth
    }

    /// Lends memory to a caller, or lets it wait.
    fn lend(&mut self, now: Time, lend: Lend) {
        if !lend.reply.is_wanted() || now > lend.deadline {
            return lend.refuse(Failure::Deadline);
        }
        let Rounds { worker: Worker { pools, .. }, backlog, .. } = self;
        match pools.take(lend.len, lend.device) {
            Some(memory) => lend.reply.send(Ok(memory)),
            None => backlog.memory_waits.push(now, pools, MemoryWaiter::Lend(lend)),
        }
    }

    /// Gives requests to a shard. Those that lack memory, or follow an earlier change that does, wait.
    fn begin_requests(&mut self, now: Time, shard: usize, requests: Requests) {
        let arrivals = &self.backlog.arrivals[shard];
        let begins =
            |asked: &Hashed<Waiter>| asked.is_due(now) && !arrivals.is_behind(asked.key_hash());
        match requests {
            Requests::Ready(all) if all.iter().all(begins) => {
                self.submit(now, shard, all.into_iter());
            }
            requests => self.begin_each(now, shard, requests.into_asked()),
        }
    }

    /// Like [`Rounds::begin_requests`], looking at each request by itself.
    fn begin_each(&mut self, now: Time, shard: usize, requests: Changes<Asked>) {
        let equipped = |asked| self.equipped(now, shard, asked);
        let ready: Changes<Hashed<Waiter>> = requests.into_iter().filter_map(equipped).collect();
        self.submit(now, shard, ready.into_iter());
    }

    /// Gives a request its memory if it lacks some. Returns `None` if it waits, or was refused.
    fn equipped(&mut self, now: Time, shard: usize, asked: Asked) -> Option<Hashed<Waiter>> {
        if !asked.is_wanted() || now > asked.deadline() {
            asked.refuse(Failure::Deadline);
            return None;
        }
        let Rounds { worker: Worker { pools, .. }, backlog, .. } = self;
        let asked = match backlog.arrivals[shard].follow(asked)? {
            Asked::Ready(asked) => return Some(asked),
            Asked::Unequipped(asked) => asked,
        };
        let (len, device) = asked.lacks();
        let Some(memory) = pools.take(len, device) else {
            asked.key_hash().into_iter().for_each(|hash| backlog.arrivals[shard].hold(hash));
            backlog.memory_waits.push(now, pools, MemoryWaiter::Request { shard, asked });
            return None;
        };
        Some(asked.equip(memory, &pools.counts))
    }

    /// Gives requests to a shard. Reads into the store's own memory wait for it if there is none.
    fn submit(&mut self, now: Time, shard: usize, requests: impl Iterator<Item = Hashed<Waiter>>) {
        let Rounds { worker: Worker { shards, pools, .. }, backlog, .. } = self;
        let (mut begun, mut kept) = (0, 0);
        shards[shard].accept(
            now,
            Arriving::all(requests.inspect(|_| begun += 1)),
            |next, found, resident| {
                let Some(Hashed { request: Request { reply, action, .. }, .. }) = next else {
                    return false;
                };
                let (Caller::Read(read), Action::Get(item)) = (&mut reply.caller, action) else {
                    return false;
                };
                let lacks = match read.take(found, item, pools, resident) {
                    Ok(None) => return read.is_shared(),
                    Ok(Some(len)) => Ok(len),
                    Err(error) => Err(error),
                };
                kept += backlog.keep(now, pools, (next, shard), (lacks, found.device));
                false
            },
        );
        backlog.open += begun - kept;
    }

    /// Begins changes that waited for others, in order, and refuses those past their deadlines.
    fn begin_arrived(&mut self, now: Time) -> usize {
        let mut begun = 0;
        for shard in 0..self.worker.shards.len() {
            while let Some(front) = self.backlog.arrivals[shard].front() {
                let is_late = front.iter().all(|asked| asked.deadline() < now);
                if !is_late && self.worker.shards[shard].waiting() >= self.worker.depth {
                    break;
                }
                let requests = self.backlog.arrivals[shard].pop().expect("it was there");
                self.begin_each(now, shard, requests);
                begun += 1;
            }
        }
        begun
    }

    /// Begins requests whose memory is there, and ends those that are past their deadlines or were abandoned.
    fn begin_equipped(&mut self, now: Time) -> usize {
        let mut begun = 0;
        while let Some((waiter, memory)) = self.backlog.memory_waits.granted(&self.waker) {
            self.end_wait(now, waiter, memory.ok_or(Error::from(Failure::Deadline)));
            begun += 1;
        }
        while let Some(waiter) = self.backlog.memory_waits.overdue(now) {
            self.end_wait(now, waiter, Err(memory_timeout(self.worker.timeout)));
            begun += 1;
        }
        let Rounds {
            worker: Worker { pools, devices, .. },
            backlog: Backlog { memory_waits, arrivals, .. },
            ..
        } = self;
        // Changes that follow one which waits for memory hold theirs until that one has begun.
        let stuck = |pool: &Arc<Pool>| {
            let followers = arrivals.iter().flat_map(Arrivals::followers);
            followers.map(|asked| asked.pooled_bytes(pool)).sum()
        };
        for (waiter, memory) in memory_waits.spill(now, pools, devices, &stuck) {
            self.end_wait(now, waiter, Ok(memory));
            begun += 1;
        }
        begun
    }

    /// Begins a request that waited for memory, or refuses it. The changes that follow it are next.
    fn end_wait(&mut self, now: Time, waiter: MemoryWaiter, memory: Result<PoolBuffer>) {
        let is_due = waiter.reply().is_wanted() && now <= waiter.deadline();
        match (waiter, memory) {
            (MemoryWaiter::Lend(lend), Ok(memory)) => lend.reply.send(Ok(memory)),
            (MemoryWaiter::Lend(lend), Err(error)) => lend.refuse(error),
            (MemoryWaiter::Request { shard, asked }, memory) => {
                let key_hash = asked.key_hash();
                match memory {
                    Ok(memory) if is_due => {
                        let asked = asked.equip(memory, &self.worker.pools.counts);
                        self.submit(now, shard, iter::once(asked));
                    }
                    Ok(_) => asked.refuse(Failure::Deadline),
                    Err(error) => asked.refuse(error),
                }
                key_hash.into_iter().for_each(|hash| self.backlog.arrivals[shard].release(hash));
            }
        }
    }

    /// Continues the ending. Returns the answer once it is complete.
    fn go_on_ending(&mut self, now: Time) -> Option<Result<Stats>> {
        self.refuse_waiting();
        self.judge(now);
        match &mut self.ending {
            Ending::No => {
                self.ending = Ending::Draining { until: now + self.worker.timeout };
                None
            }
            Ending::Draining { until } => {
                let is_late = now >= *until;
                if is_late || (self.worker.mailbox.is_empty() && self.backlog.is_empty()) {
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

    /// Refuses requests that wait for memory or for room. Requests in progress end as usual.
    fn refuse_waiting(&mut self) {
        while let Some(waiter) = self.backlog.memory_waits.pop() {
            waiter.refuse(Failure::Closed);
        }
        for asked in self.backlog.arrivals.iter_mut().flat_map(Arrivals::drain) {
            asked.refuse(Failure::Closed);
        }
        self.worker.shards.iter_mut().for_each(Shard::refuse_stalled);
    }

    fn too_late(&self) -> Error {
        Error::Timeout {
            waited_for: "requests to end and a commit before the store closes",
            after: self.worker.timeout,
            fix: "see the log for what its devices say",
        }
    }

    /// Begins the commit, with a timeout of its own, because requests may have used up theirs. Abandons requests that
    /// devices did not end in time.
    fn commit(&mut self, now: Time) -> Ending {
        let is_late = !self.worker.mailbox.is_empty() || !self.backlog.is_empty();
        let failure = is_late.then(|| self.too_late());
        let until = now + self.worker.timeout;
        let (sender, answers) = std::sync::mpsc::channel();
        let left = self.worker.shards.len();
        for shard in 0..left {
            let sender = sender.clone();
            let caller = Caller::EachShard(Box::new(move |answer| {
                // The receiver is gone if the thread gave up.
                let _ = sender.send(answer);
            }));
            let reply = Waiter { since: now, caller };
            let request = Request { reply, deadline: until, action: Action::Commit };
            self.submit(now, shard, iter::once(Hashed { hash: 0, request }));
            self.worker.shards[shard].keep_ages(now, keep_ages_within(self.worker.timeout));
        }
        Ending::Committing { until, answers, left, failure }
    }
}

impl Worker {
    fn index(&self, shard: u16) -> usize {
        usize::from((shard - self.first) / self.step)
    }

    /// Returns the number in the store of shard `index` of this thread.
    fn number(&self, index: usize) -> u16 {
        self.first + index as u16 * self.step
    }

    fn now(&self) -> Time {
        self.devices[0].now()
    }

    /// Returns below which sequence the journal of each shard was flushed; nothing for shards without one.
    fn ends(&self) -> Vec<(u16, u64)> {
        let end = |(index, shard): (usize, &ThreadShard)| {
            Some((self.number(index), shard.flushed_end()?))
        };
        self.shards.iter().enumerate().filter_map(end).collect()
    }

    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.shards.iter().for_each(|shard| sum += shard.stats());
        sum
    }
}

impl Backlog {
    /// Takes a read back from its shard: it waits for the memory that it lacks, or fails. Returns how many were taken
    /// back.
    #[cold]
    fn keep(
        &mut self,
        now: Time,
        pools: &Pools,
        (next, shard): (&mut Option<Hashed<Waiter>>, usize),
        (lacks, device): (Result<usize>, u8),
    ) -> usize {
        let Some(asked) = next.take() else { return 0 };
        let len = *lacks.as_ref().unwrap_or(&0);
        match (Unequipped::read(asked, (len, Some(device))), lacks) {
            (Ok(asked), Ok(_)) => {
                self.memory_waits.push(now, pools, MemoryWaiter::Request { shard, asked });
                1
            }
            (Ok(asked), Err(error)) => {
                asked.refuse(error);
                1
            }
            (Err(asked), _) => {
                *next = Some(asked);
                0
            }
        }
    }

    /// Counts and delivers an answer.
    fn answer(
        &mut self,
        now: Time,
        (figures, home): (&Figures, (&Arc<Verdicts>, u16)),
        done: Done<Waiter>,
    ) {
        self.open -= 1;
        let Done { reply: Waiter { since, caller }, result, memory, version, unverified } = done;
        let times = (since, now);
        match (caller, unverified, result) {
            (Caller::Read(read), Some(unverified), Ok(Outcome::Hit { bytes })) => {
                let check = ReadCheck::new(unverified, home, times);
                read.answer_unverified(bytes, (memory, version), check);
            }
            (caller, _, result) => {
                figures.answered(times, &caller, &result);
                caller.answer(result, memory, version);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.open == 0
            && self.memory_waits.is_empty()
            && self.arrivals.iter().all(Arrivals::is_empty)
    }

    /// Returns whether changes wait for room in a shard.
    fn has_queue(&self) -> bool {
        !self.arrivals.iter().all(Arrivals::has_no_queue)
    }

    /// Returns when to look at the requests that wait.
    fn next_due(&self, now: Time) -> Time {
        let fronts = self.arrivals.iter().filter_map(|arrivals| arrivals.front()?.first());
        let deadlines = fronts.map(Asked::deadline);
        deadlines.fold(self.memory_waits.next_due(now), Time::min)
    }

    /// Ends abandoned changes, once there are many.
    fn sweep(&mut self) {
        for asked in self.arrivals.iter_mut().flat_map(Arrivals::sweep) {
            asked.refuse(Failure::Deadline);
        }
    }
}

fn memory_timeout(after: Duration) -> Error {
    Error::Timeout {
        waited_for: "registered memory to read into",
        after,
        fix: "drop values sooner, or raise pool_bytes",
    }
}
