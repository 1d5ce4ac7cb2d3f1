//! What a thread of the store does: it takes jobs from its mailbox and drives its shards.
//!
//! Reads into the store's own memory wait here, in order, for that memory; a read that is cancelled or too late
//! meanwhile never reaches a shard. The thread takes no more jobs while as many requests wait in a shard as its queue
//! is deep, so that waiting requests can be cancelled, and the mailbox fills up and pushes back.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::runtime::{self, Alarm, Round};
use adit_driver::{Device, Time};

use super::inbox::Inbox;
use super::pending::Answer;
use super::pool::Pools;
use super::request::{Job, ThreadShard, Waiter, Work};
use crate::error::{Error, Result};
use crate::shard::{Action, Arriving, Done, Failure, Hashed, Request, Shard, Stats, Turn};

/// The parts of a thread.
pub(super) struct Worker {
    pub(super) mailbox: Arc<Inbox>,
    /// Its shards are numbers `first`, `first + step`, and so on, of the store.
    pub(super) shards: Vec<ThreadShard>,
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
    asked: Hashed<Waiter>,
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
    /// How many the shards have.
    open: usize,
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
        let due = first.map_or(turn.next, |first| turn.next.min(first.asked.request.deadline));
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
        let desk = Desk { open: 0, waiting: VecDeque::new() };
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
        for shard in &mut worker.shards {
            let turn = shard.poll(now, &mut |done| desk.answer(done));
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

    fn begin(&mut self, now: Time, Job { shard, work }: Job) {
        let shard = self.worker.index(shard);
        match work {
            Work::Ask(deadline, ask) if now > deadline => ask(Err(Failure::Deadline)),
            Work::Ask(_, ask) => ask(Ok((&mut self.worker.shards[shard], now))),
            Work::Requests(requests) => {
                let has_turn = self.desk.waiting.is_empty();
                let wanted = requests.into_iter().filter_map(|asked| {
                    let Request { reply, deadline, .. } = &asked.request;
                    if reply.is_wanted() && now <= *deadline {
                        return Some(asked);
                    }
                    asked.refuse(Failure::Deadline);
                    None
                });
                self.submit(now, shard, wanted, has_turn);
            }
        }
    }

    /// Gives requests to a shard. Reads into the store's own memory wait for it if there is none, or if it is not their
    /// turn.
    fn submit(
        &mut self,
        now: Time,
        shard: usize,
        requests: impl Iterator<Item = Hashed<Waiter>>,
        mut has_turn: bool,
    ) {
        let Rounds { worker: Worker { shards, pools, .. }, desk, waker, .. } = self;
        let (mut begun, mut kept) = (0, 0);
        shards[shard].accept(
            now,
            Arriving::all(requests.inspect(|_| begun += 1)),
            |next, found| {
                let Some(Hashed { request: Request { reply, action, .. }, .. }) = next else {
                    return;
                };
                let (Waiter::Fetch(fetch), Action::Get(item)) = (reply, action) else { return };
                let taken = if has_turn { fetch.take(found, pools, waker) } else { Ok(None) };
                if let Ok(Some((part, run))) = taken {
                    (item.part, item.into) = (part, AnyBuffer::One(run));
                    return;
                }
                kept += 1;
                let Some(asked) = next.take() else { return };
                match taken {
                    Ok(_) => {
                        has_turn = false;
                        desk.waiting.push_back(Waiting { shard, asked });
                    }
                    Err(error) => asked.refuse_with(error),
                }
            },
        );
        desk.open += begun - kept;
    }

    /// Begins reads that waited for memory, in order, while there is some.
    fn begin_waiting(&mut self, now: Time) -> usize {
        let mut begun = 0;
        while let Some(Waiting { shard, asked }) = self.desk.waiting.pop_front() {
            let Request { reply, deadline, .. } = &asked.request;
            if now > *deadline {
                asked.refuse_with(memory_timeout(self.worker.timeout));
            } else if reply.is_wanted() {
                let behind = self.desk.waiting.len();
                self.submit(now, shard, iter::once(asked), true);
                if self.desk.waiting.len() > behind {
                    // There is still no memory: it keeps its place.
                    self.desk.waiting.rotate_right(1);
                    break;
                }
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
        for Waiting { asked, .. } in self.desk.waiting.drain(..) {
            asked.refuse(Failure::Closed);
        }
        let is_late = !self.worker.mailbox.is_empty() || !self.desk.is_empty();
        let failure = is_late.then(|| self.too_late());
        let until = now + self.worker.drain_timeout;
        let (sender, answers) = std::sync::mpsc::channel();
        let left = self.worker.shards.len();
        for shard in 0..left {
            let sender = sender.clone();
            let reply = Waiter::Commit(Box::new(move |answer| {
                // The receiver is gone if the thread gave up.
                let _ = sender.send(answer);
            }));
            let request = Request { reply, deadline: until, action: Action::Commit };
            self.submit(now, shard, iter::once(Hashed { hash: 0, request }), true);
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
    /// Delivers an answer.
    fn answer(&mut self, done: Done<Waiter>) {
        self.open -= 1;
        done.reply.answer(done.result, done.memory);
    }

    fn is_empty(&self) -> bool {
        self.open == 0 && self.waiting.is_empty()
    }
}

fn memory_timeout(after: Duration) -> Error {
    Error::Timeout {
        waited_for: "registered memory to read into",
        after,
        fix: "drop values sooner, or raise pool_bytes",
    }
}
