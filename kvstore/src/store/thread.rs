//! What a thread of the store does: it takes jobs from its mailbox and drives its shards.
//!
//! Requests wait here, not in the mailbox, so that none holds up others that could begin: those that need memory wait
//! for it ([`super::short`]); changes wait while as many others wait for room in their shard as its queue is deep, and
//! behind an earlier change of their key that waits for memory ([`super::arrivals`]). A read is looked up before it waits
//! for memory, so a miss never waits.
//!
//! Once the thread must end, a request that would have to wait is refused.

use std::iter;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use adit_driver::runtime::{self, Alarm, Round};
use adit_driver::{Device, Time};

use super::arrivals::{Arrival, Arrivals};
use super::check::{Check, Judged};
use super::exit::{End, Leaving, keep_ages_within};
use super::feed::Feeds;
use super::figures::Figures;
use super::inbox::Inbox;
use super::pending::Answer;
use super::pool::{Pool, PoolBuffer, Pools};
use super::request::{Caller, Job, Lend, Requests, ThreadShard, Waiter, Work};
use super::short::{Short, Wanting};
use crate::error::{Error, Result};
use crate::shard::{Action, Arriving, Done, Failure, Hashed, Outcome, Request, Shard, Stats, Turn};

/// The longest sleep with commands in flight, though their completions end it.
const IN_FLIGHT_SLEEP_MAX: Duration = Duration::from_millis(50);

/// The parts of a thread.
pub(super) struct Worker {
    pub(super) mailbox: Arc<Inbox>,
    pub(super) figures: Arc<Figures>,
    /// Its shards are numbers `first`, `first + step`, and so on, of the store.
    pub(super) shards: Vec<ThreadShard>,
    pub(super) first: u16,
    pub(super) step: u16,
    pub(super) pools: Arc<Pools>,
    /// The store's devices; all shards use the first one's clock.
    pub(super) devices: Vec<Device>,
    /// Changes that may wait for room in a shard.
    pub(super) depth: usize,
    /// How long a call may wait to begin, for messages.
    pub(super) timeout: Duration,
    /// How long draining, and then the commit, may take.
    pub(super) drain_timeout: Duration,
}

/// What the thread does. It ends with the counters of its shards, or [`Error::Timeout`] if it could not finish;
/// [`Error::Failed`] if a device could not make acknowledged data durable.
pub(super) struct Rounds {
    worker: Worker,
    desk: Desk,
    feeds: Feeds,
    waker: Waker,
    ending: Ending,
    /// The last field: it reports the end when the devices are released.
    leaving: Leaving,
}

/// The requests in progress.
struct Desk {
    /// How many the shards have.
    open: usize,
    short: Short,
    /// By shard: changes that wait for others.
    arrivals: Vec<Arrivals<Hashed<Waiter>>>,
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
    type End = ();

    fn round(&mut self) -> Round {
        let now = self.worker.now();
        let turn = self.turn(now);
        let due = turn.next.min(self.desk.next_due(now));
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
        self.leaving.with(end.map(|stats| End { stats, ends: self.worker.ends() }));
        Some(())
    }

    fn died(&mut self, why: &str) {
        self.leaving.died(why);
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
    pub(super) fn new(worker: Worker, alarm: Arc<Alarm>, leaving: Leaving) -> Rounds {
        let arrivals = worker.shards.iter().map(|_| Arrivals::default()).collect();
        let desk = Desk { open: 0, short: Short::new(&worker.pools), arrivals };
        let (feeds, waker) = (Feeds::default(), Waker::from(alarm));
        Rounds { worker, desk, feeds, waker, ending: Ending::No, leaving }
    }

    /// Does one turn of all work.
    fn turn(&mut self, now: Time) -> Turn {
        let mut all = Turn { moved: 0, in_flight: 0, next: Time::NEVER };
        self.judge(now);
        all.moved += self.feeds.turn();
        all.moved += self.take_jobs(now);
        if self.desk.has_line() {
            all.moved += self.begin_arrived(now);
        }
        if !self.desk.short.is_empty() {
            all.moved += self.begin_short(now);
        }
        self.desk.sweep();
        let Rounds { worker, desk, .. } = self;
        let Worker { mailbox, shards, figures, depth, first, step, .. } = worker;
        let Inbox { lacks_memory, lacks_room, .. } = &**mailbox;
        lacks_memory.store(desk.short.len() >= *depth, Ordering::Relaxed);
        lacks_room.store(desk.has_line(), Ordering::Relaxed);
        figures.note_waiting(desk.short.len());
        for (shard, number) in shards.iter_mut().zip((*first..).step_by(usize::from(*step))) {
            let home = (&*mailbox, number);
            let turn = shard.poll(now, &mut |done| desk.answer(now, (figures, home), done));
            all.moved += turn.moved;
            all.in_flight += turn.in_flight;
            all.next = all.next.min(turn.next);
        }
        all
    }

    /// Passes on what callers found when they verified their reads.
    fn judge(&mut self, now: Time) {
        while let Some(Judged { shard, times, verdict }) = self.worker.mailbox.verdicts.pop() {
            self.worker.figures.verified(times, verdict.is_intact());
            let shard = self.worker.index(shard);
            self.worker.shards[shard].judge(now, verdict);
        }
    }

    /// Takes jobs, as many as a turn does.
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

    fn begin(&mut self, now: Time, Job { shard, work }: Job) {
        let shard = self.worker.index(shard);
        match work {
            Work::Ask(deadline, ask) if now > deadline => ask(Err(Failure::Deadline)),
            Work::Ask(_, ask) => {
                // It may count what its caller has read.
                self.judge(now);
                let shard = &mut self.worker.shards[shard];
                shard.note_hits();
                ask(Ok((shard, now)));
            }
            Work::Lend(lend) => self.lend(now, lend),
            Work::Feed(feed) => self.feeds.add(feed),
            Work::Requests(requests) => {
                let is_change = requests.first().is_some_and(Hashed::is_change);
                if is_change && !self.has_room(shard) {
                    self.desk.arrivals[shard].push(requests);
                } else {
                    self.begin_requests(now, shard, requests);
                }
            }
        }
    }

    /// Returns whether a shard takes another change.
    fn has_room(&self, shard: usize) -> bool {
        self.desk.arrivals[shard].has_no_line()
            && self.worker.shards[shard].waiting() < self.worker.depth
    }

    /// Lends memory to a caller, or lets it wait.
    fn lend(&mut self, now: Time, lend: Lend) {
        if !lend.reply.is_wanted() || now > lend.deadline {
            return lend.refuse(Failure::Deadline);
        }
        let Rounds { worker: Worker { pools, .. }, desk, .. } = self;
        let wanted = (lend.len, lend.device);
        match pools.take(lend.len, lend.device) {
            Some(memory) => lend.reply.send(Ok(memory)),
            None => desk.short.push(now, pools, Wanting::Lend(lend), wanted),
        }
    }

    /// Gives requests to a shard, except those that have to wait: for memory, or for an earlier change that does.
    fn begin_requests(&mut self, now: Time, shard: usize, requests: Requests) {
        let arrivals = &self.desk.arrivals[shard];
        let begins = |asked: &Hashed<Waiter>| {
            asked.is_due(now) && asked.lacks().is_none() && !arrivals.is_behind(asked)
        };
        if requests.iter().all(begins) {
            return self.submit(now, shard, requests.into_iter());
        }
        let equipped = |asked| self.equipped(now, shard, asked);
        let requests: Requests = requests.into_iter().filter_map(equipped).collect();
        self.submit(now, shard, requests.into_iter());
    }

    /// Gives a request its memory if it lacks some. Returns `None` if it waits, or was refused.
    fn equipped(
        &mut self,
        now: Time,
        shard: usize,
        asked: Hashed<Waiter>,
    ) -> Option<Hashed<Waiter>> {
        if !asked.is_due(now) {
            asked.refuse(Failure::Deadline);
            return None;
        }
        let Rounds { worker: Worker { pools, .. }, desk, .. } = self;
        let mut asked = desk.arrivals[shard].follow(asked)?;
        let Some((len, device)) = asked.lacks() else { return Some(asked) };
        let Some(memory) = pools.take(len, device) else {
            asked.key_hash().into_iter().for_each(|hash| desk.arrivals[shard].hold(hash));
            desk.short.push(now, pools, Wanting::Request { shard, asked }, (len, device));
            return None;
        };
        asked.equip(memory, pools);
        Some(asked)
    }

    /// Gives requests to a shard. Reads into the store's own memory wait for it if there is none.
    fn submit(&mut self, now: Time, shard: usize, requests: impl Iterator<Item = Hashed<Waiter>>) {
        let Rounds { worker: Worker { shards, pools, .. }, desk, .. } = self;
        let (mut begun, mut kept) = (0, 0);
        shards[shard].accept(
            now,
            Arriving::all(requests.inspect(|_| begun += 1)),
            |next, found, resident| {
                let Some(Hashed { request: Request { reply, action, .. }, .. }) = next else {
                    return false;
                };
                let Action::Get(item) = action else { return false };
                let (taken, shares) = match &mut reply.caller {
                    Caller::Fetch(fetch) => {
                        let taken = fetch.take(found, item, pools, resident);
                        (taken, fetch.is_shared())
                    }
                    Caller::Bounced(bounced) => (bounced.take(found, item, pools), false),
                    _ => return false,
                };
                if let Ok(None) = taken {
                    return shares;
                }
                kept += 1;
                let Some(asked) = next.take() else { return false };
                match taken {
                    Ok(Some(len)) => {
                        let wanting = Wanting::Request { shard, asked };
                        desk.short.push(now, pools, wanting, (len, Some(found.device)));
                    }
                    Ok(None) => unreachable!("it has begun"),
                    Err(error) => asked.refuse_with(error),
                }
                false
            },
        );
        desk.open += begun - kept;
    }

    /// Begins changes that waited for others, in order, and refuses those whose time is over.
    fn begin_arrived(&mut self, now: Time) -> usize {
        let mut begun = 0;
        for shard in 0..self.worker.shards.len() {
            while let Some(front) = self.desk.arrivals[shard].front() {
                let is_late = front.iter().all(|asked| asked.request.deadline < now);
                if !is_late && self.worker.shards[shard].waiting() >= self.worker.depth {
                    break;
                }
                let requests = self.desk.arrivals[shard].pop().expect("it was there");
                self.begin_requests(now, shard, requests);
                begun += 1;
            }
        }
        begun
    }

    /// Begins requests whose memory is there, and ends those whose time is over or that were given up.
    fn begin_short(&mut self, now: Time) -> usize {
        let mut begun = 0;
        while let Some((wanting, memory)) = self.desk.short.granted(&self.waker) {
            self.end_wait(now, wanting, memory.ok_or(Error::from(Failure::Deadline)));
            begun += 1;
        }
        while let Some(wanting) = self.desk.short.overdue(now) {
            self.end_wait(now, wanting, Err(memory_timeout(self.worker.timeout)));
            begun += 1;
        }
        let Rounds {
            worker: Worker { pools, devices, .. },
            desk: Desk { short, arrivals, .. },
            ..
        } = self;
        // Memory of changes that wait for those which wait for memory comes back with none of them.
        let stuck = |pool: &Arc<Pool>| {
            let followers = arrivals.iter().flat_map(Arrivals::followers);
            followers.map(|asked| asked.pooled_bytes(pool)).sum()
        };
        for (wanting, memory) in short.spill(now, pools, devices, &stuck) {
            self.end_wait(now, wanting, Ok(memory));
            begun += 1;
        }
        begun
    }

    /// Begins a request that waited for memory, or refuses it. Changes of its key that wait for it are next.
    fn end_wait(&mut self, now: Time, wanting: Wanting, memory: Result<PoolBuffer>) {
        let (shard, mut asked) = match wanting {
            Wanting::Lend(lend) => {
                return match memory {
                    Ok(memory) => lend.reply.send(Ok(memory)),
                    Err(error) => lend.refuse(error),
                };
            }
            Wanting::Request { shard, asked } => (shard, asked),
        };
        let key_hash = asked.key_hash();
        match memory {
            Ok(memory) if asked.is_due(now) => {
                asked.equip(memory, &self.worker.pools);
                self.submit(now, shard, iter::once(asked));
            }
            Ok(_) => asked.refuse_with(Failure::Deadline),
            Err(error) => asked.refuse_with(error),
        }
        key_hash.into_iter().for_each(|hash| self.desk.arrivals[shard].release(hash));
    }

    /// Continues the ending. Returns the answer once it is complete.
    fn go_on_ending(&mut self, now: Time) -> Option<Result<Stats>> {
        self.refuse_waiting();
        self.judge(now);
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

    /// Refuses requests that wait, for memory or for room: only those in progress end.
    fn refuse_waiting(&mut self) {
        while let Some(wanting) = self.desk.short.pop() {
            wanting.refuse(Failure::Closed);
        }
        for asked in self.desk.arrivals.iter_mut().flat_map(Arrivals::drain) {
            asked.refuse(Failure::Closed);
        }
        self.worker.shards.iter_mut().for_each(Shard::refuse_stalled);
    }

    fn too_late(&self) -> Error {
        Error::Timeout {
            waited_for: "requests to end and a commit before the store closes",
            after: self.worker.drain_timeout,
            fix: "see the log for what its devices say",
        }
    }

    /// Begins the commit, with a timeout of its own, because requests may have used up theirs. Leaves requests that
    /// devices did not end in time.
    fn commit(&mut self, now: Time) -> Ending {
        let is_late = !self.worker.mailbox.is_empty() || !self.desk.is_empty();
        let failure = is_late.then(|| self.too_late());
        let until = now + self.worker.drain_timeout;
        let (sender, answers) = std::sync::mpsc::channel();
        let left = self.worker.shards.len();
        for shard in 0..left {
            let sender = sender.clone();
            let caller = Caller::Commit(Box::new(move |answer| {
                // The receiver is gone if the thread gave up.
                let _ = sender.send(answer);
            }));
            let reply = Waiter { since: now, caller };
            let request = Request { reply, deadline: until, action: Action::Commit };
            self.submit(now, shard, iter::once(Hashed { hash: 0, request }));
            self.worker.shards[shard].keep_ages(now, keep_ages_within(self.worker.drain_timeout));
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

impl Desk {
    /// Counts and delivers an answer.
    fn answer(
        &mut self,
        now: Time,
        (figures, home): (&Figures, (&Arc<Inbox>, u16)),
        done: Done<Waiter>,
    ) {
        self.open -= 1;
        let Done { reply: Waiter { since, caller }, result, memory, version, unverified } = done;
        let times = (since, now);
        match (unverified, result) {
            (Some(unverified), Ok(Outcome::Hit { bytes })) => {
                let check = Check::new(unverified, home, times);
                caller.answer_unverified(bytes, (memory, version), check);
            }
            (_, result) => {
                figures.answered(times, &caller, &result);
                caller.answer(result, memory, version);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.open == 0 && self.short.is_empty() && self.arrivals.iter().all(Arrivals::is_empty)
    }

    /// Returns whether changes wait for room in a shard.
    fn has_line(&self) -> bool {
        !self.arrivals.iter().all(Arrivals::has_no_line)
    }

    /// Returns when a request that waits has to be looked at.
    fn next_due(&self, now: Time) -> Time {
        let fronts = self.arrivals.iter().filter_map(|arrivals| arrivals.front()?.first());
        let deadlines = fronts.map(|asked| asked.request.deadline);
        deadlines.fold(self.short.next_due(now), Time::min)
    }

    /// Ends changes that were given up, once there are many.
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
