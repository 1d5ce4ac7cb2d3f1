//! An I/O queue pair and its single owner.
//!
//! ```text
//! post(now, command)   writes the command into the ring; it owns its buffer now
//! ring()               one doorbell for everything posted since the last
//! poll(now, done)      takes completions, returns each buffer, checks deadlines
//! ```
//!
//! A queue pair can be sent to another thread but not shared: the path of an I/O has no lock, no allocation
//! and no system call. `poll` handles failures:
//!
//! | step | when | what |
//! |---|---|---|
//! | 1 | a command is overdue | Abort; on success it ends with [`CommandError::TimedOut`] |
//! | 2 | it outlives that by [`QueuePairOptions::abort_timeout`] | the queue is deleted and recreated; its commands in flight end with [`CommandError::Reset`] |
//! | 3 | that fails, or no command completed since the last time | the controller is taken out of service: disabled, or reset by ever stronger means |
//!
//! Registers that read as all ones, CSTS.CFS and a completion that breaks the protocol lead to step 3 at
//! once. Every command then ends with [`CommandError::Reset`] once the device can no longer access its
//! memory. After [`crate::Controller::recover`], the next poll recreates the queue and sends commands that
//! were posted but never rung.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::life::{Life, LifeState};
use super::queues::{Placement, RawQueuePair};
use super::registers::describe;
use super::shared::Shared;
use crate::Time;
use crate::error::{Error, Result};
use crate::memory::{DomainId, IoBuffer, Mapping};
use crate::queue_pair::core::{Core, Parts};
use crate::queue_pair::{Command, CommandError, Completion, PagePool, Rejected, Stats};
use crate::spec::{Cid, Iova, Qid};
use crate::transfer::{LIST_PAGES_PER_COMMAND, PAGE_BYTES};

/// Options for creating a queue pair.
#[derive(Debug)]
pub struct QueuePairOptions {
    /// Entries of each ring, 2 to CAP.MQES + 1; one less can be in flight. Default 256.
    pub depth: u32,
    /// Time limit of a command before it is aborted. Default 10 s.
    pub timeout: Duration,
    /// Time limit of an aborted command before its queue is recreated. Default 2 s.
    pub abort_timeout: Duration,
    /// Location of the rings. Default host memory.
    pub placement: Placement,
    /// 4 KiB pages for PRP lists and SGLs of scattered transfers. Default 8, which is also the most that one
    /// command uses.
    pub list_pages: usize,
    /// 4 KiB pages for data that neither PRPs nor SGLs can express. Default 4.
    pub bounce_pages: usize,
    /// Whether to record command latencies, for [`Stats::latencies_ns`]. Default false.
    pub latencies: bool,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        QueuePairOptions {
            depth: 256,
            timeout: Duration::from_secs(10),
            abort_timeout: Duration::from_secs(2),
            placement: Placement::Host,
            list_pages: LIST_PAGES_PER_COMMAND,
            bounce_pages: 4,
            latencies: false,
        }
    }
}

/// A queue pair driven by one thread of this process.
///
/// `post` and `ring` submit commands; `poll` takes completions and handles overdue commands.
pub struct QueuePair<B: IoBuffer> {
    core: Core<B>,
    shared: Arc<Shared>,
    abort_timeout: Duration,
    /// Commands that had ended when the queue was last recreated.
    recreated_at: Option<u64>,
    /// Scratch for overdue slots; keeps its capacity.
    overdue: Vec<usize>,
    // Dropped last: they hold the core's rings and pages.
    raw: RawQueuePair,
    pages: Option<Mapping>,
}

impl<B: IoBuffer> QueuePair<B> {
    pub(crate) fn new(mut raw: RawQueuePair, options: &QueuePairOptions) -> Result<QueuePair<B>> {
        let shared = Arc::clone(raw.shared());
        let (list_bytes, bounce_bytes) = pool_bytes(options)?;
        let pages = Mapping::allocate(shared.bus(), list_bytes + bounce_bytes)?;
        let (sq, cq) = raw.take_rings();
        let slots = raw.depths().submission as usize - 1;
        let mut core = Core::new(Parts {
            qid: raw.qid(),
            domain: DomainId::of(shared.bus()),
            sq,
            cq,
            slots,
            lists: PagePool::new(pages.atomics().slice(0, list_bytes), pages.iova()),
            bounces: PagePool::new(
                pages.atomics().slice(list_bytes, bounce_bytes),
                Iova(pages.iova().0 + list_bytes as u64),
            ),
            timeout: options.timeout,
            latencies: options.latencies,
        });
        if raw.interrupt().is_none() {
            core.lag();
        }
        Ok(QueuePair {
            core,
            shared,
            abort_timeout: options.abort_timeout,
            recreated_at: None,
            overdue: Vec::with_capacity(slots),
            raw,
            pages: Some(pages),
        })
    }

    /// Writes a command into the ring without ringing the doorbell; see [`QueuePair::ring`]. `now` starts its
    /// deadline.
    ///
    /// # Errors
    /// [`Rejected`] returns the buffer and the reason, usually [`crate::RejectReason::Full`].
    #[inline(always)]
    pub fn post(&mut self, now: Time, command: Command<'_, B>) -> Result<Cid, Rejected<B>> {
        self.core.post(now, command)
    }

    /// Announces every command posted since the last ring with one doorbell. Does nothing while the
    /// controller does not know the queue: after a reset, the next poll rings.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.shared.is_in(self.raw.life()) {
            self.core.ring();
        }
    }

    /// Calls [`QueuePair::post`] and [`QueuePair::ring`].
    ///
    /// # Errors
    /// As [`QueuePair::post`].
    #[inline]
    pub fn submit(&mut self, now: Time, command: Command<'_, B>) -> Result<Cid, Rejected<B>> {
        let posted = self.core.post(now, command)?;
        self.ring();
        Ok(posted)
    }

    /// Submits a request that failed before, counted in [`Stats::retries`].
    /// [`crate::Controller::retry_delay`] tells whether and when to do so.
    ///
    /// # Errors
    /// As [`QueuePair::post`].
    pub fn resubmit(&mut self, now: Time, command: Command<'_, B>) -> Result<Cid, Rejected<B>> {
        let posted = self.submit(now, command)?;
        self.core.count_retry();
        Ok(posted)
    }

    /// Takes all new completions, hands each finished request to `done`, and checks deadlines. Returns the
    /// number of finished requests.
    ///
    /// Processes at most one lap of the ring. Takes longer only after a missed deadline, up to the
    /// controller's time to reset.
    #[inline(always)]
    pub fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize {
        if self.core.has_news() || self.core.may_be_overdue(now) || self.is_out_of_date() {
            return self.poll_news(now, done);
        }
        0
    }

    /// Returns whether the controller's life changed since the queue was created.
    #[inline(always)]
    fn is_out_of_date(&self) -> bool {
        !self.shared.is_in(self.raw.life())
    }

    /// Out of line, so that an empty poll saves no registers for it.
    #[inline(never)]
    fn poll_news(&mut self, now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let mut finished = 0;
        // After a reset, the ring's memory is no longer written by the device.
        if !self.is_out_of_date() {
            finished = self.core.reap(now, &mut done);
        }
        if self.core.may_be_overdue(now) || self.is_out_of_date() {
            return finished + self.attend(now, &mut done);
        }
        finished
    }

    /// Handles violations, overdue commands and changes of the controller's life.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, now: Time, done: &mut impl FnMut(Completion<B>)) -> usize {
        let mut ended = 0;
        if !self.is_out_of_date() {
            ended += self.attend_violation_or_overdue(now, done);
        }
        let life = self.shared.life();
        match life.state() {
            LifeState::Running if life != self.raw.life() => {
                ended + self.create_again(now, life, done)
            }
            LifeState::Quiesced => ended + self.core.end_all(done),
            LifeState::Running | LifeState::Failing | LifeState::Stuck | LifeState::Recovering => {
                ended
            }
        }
    }

    fn attend_violation_or_overdue(
        &mut self,
        now: Time,
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        if let Some(violation) = self.core.take_violation() {
            self.fail(&format!("on I/O queue {}, {violation}", self.qid()));
            return 0;
        }
        let mut overdue = std::mem::take(&mut self.overdue);
        self.core.take_overdue(now, &mut overdue);
        let ended = if overdue.is_empty() { 0 } else { self.attend_overdue(now, &overdue, done) };
        overdue.clear();
        self.overdue = overdue;
        ended
    }

    fn attend_overdue(
        &mut self,
        now: Time,
        overdue: &[usize],
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        if let Some(cause) = self.shared.cause_of_death() {
            self.fail(&cause);
            return 0;
        }
        let pause = self.shared.paused_until(now);
        let mut outlived = false;
        for &index in overdue {
            if let Some(until) = pause
                && self.core.wait_for_pause(index, now, until, self.shared.activation())
            {
                continue;
            }
            match self.core.begin_abort(index, now, now + self.abort_timeout) {
                Some(cid) => self.abort(now, index, cid),
                None => outlived = true,
            }
        }
        // Skipped if the controller was taken out of service meanwhile.
        if outlived && !self.is_out_of_date() { self.create_anew(now, done) } else { 0 }
    }

    fn abort(&mut self, now: Time, index: usize, cid: Cid) {
        probe::probe!(adit, abort, self.qid().0, cid.0);
        // The controller's limit (ACL) may leave no room now.
        let sent = self.shared.try_abort(self.raw.life(), now, self.qid(), cid);
        if sent {
            let bus = self.shared.bus();
            tracing::warn!(
                "{}: command {cid} on I/O queue {} is overdue; abort sent; {}",
                bus.device(),
                self.qid(),
                describe(&**bus)
            );
        }
        self.core.abort_tried(index, now, sent);
    }

    /// Deletes and recreates the queue after a command outlived its abort; other queues keep running. If
    /// nothing completed since the last time, the controller itself is at fault and is taken out of service.
    fn create_anew(&mut self, now: Time, done: &mut impl FnMut(Completion<B>)) -> usize {
        let (qid, bus) = (self.qid(), Arc::clone(self.shared.bus()));
        let what = format!("a command on I/O queue {qid} outlived its abort");
        if self.recreated_at == Some(self.core.stats().completed) {
            self.fail(&format!("{what}, though the queue had just been recreated"));
            return 0;
        }
        tracing::warn!("{}: {what}; deleting the queue; {}", bus.device(), describe(&*bus));
        self.core.begin_deletion();
        if let Err(error) = self.raw.delete_submission() {
            self.fail(&format!("{what}: {error}"));
            return 0;
        }
        // Completions before the deletion count.
        let finished = self.core.reap(now, done);
        let broken = self.core.take_violation().map(|violation| violation.to_string());
        let deleted = self.raw.delete_completion().map_err(|error| error.to_string());
        if let Some(why) = broken.or(deleted.err()) {
            self.fail(&format!("{what}: {why}"));
            return finished;
        }
        self.core.count_recreation();
        probe::probe!(adit, recreate, qid.0);
        finished + self.create_again(now, self.raw.life(), done)
    }

    /// Recreates the queue for the controller's `life`. Ends the commands announced to the deleted queue and
    /// those already overdue.
    fn create_again(
        &mut self,
        now: Time,
        life: Life,
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        let unsent = self.core.unsent_in_time(now);
        let ended = self.core.end_others(&unsent, done);
        self.recreated_at = Some(self.core.stats().completed);
        let created = self.raw.create_again(life);
        // The ring was cleared: restore the commands that were never sent.
        self.core.restart(&unsent);
        match created {
            Ok(()) => self.core.ring(),
            Err(error) => {
                let reason = format!("I/O queue {} could not be created: {error}", self.qid());
                self.fail(&reason);
            }
        }
        ended
    }

    fn fail(&self, reason: &str) {
        self.shared.fail(self.raw.life(), reason);
    }

    /// Runs one command and waits for its end.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue rejects the command or has others in flight, whose completions would
    /// be lost here; [`Error::Status`], [`Error::Device`] or [`Error::Failed`] if it fails.
    pub fn execute(&mut self, command: Command<'_, B>) -> Result<(B, u32)> {
        let bus = Arc::clone(self.shared.bus());
        let device = || bus.device().to_owned();
        self.shared.check()?;
        if self.in_flight() > 0 {
            return Err(Error::invalid(
                device(),
                "execute is for an idle queue: poll it until nothing is in flight",
            ));
        }
        // Recreates the queue first, if that is due.
        self.poll(bus.now(), |_| unreachable!("nothing is in flight"));
        self.submit(bus.now(), command)
            .map_err(|rejected| Error::invalid(device(), rejected.reason))?;
        let mut finished = None;
        loop {
            self.poll(bus.now(), |completion| finished = Some(completion));
            match finished.take() {
                Some(Completion { buffer, result: Ok(dw0) }) => return Ok((buffer, dw0)),
                Some(Completion { result: Err(CommandError::Status(status)), .. }) => {
                    return Err(Error::Status {
                        device: device(),
                        command: "the I/O command",
                        status,
                    });
                }
                Some(Completion { result: Err(error), .. }) => {
                    self.shared.check()?;
                    return Err(Error::device(device(), error, "send it again"));
                }
                None if self.shared.life().state() == LifeState::Stuck => self.shared.check()?,
                None => bus.pause(Duration::from_micros(5)),
            }
        }
    }

    /// Checks that the controller is in service. Buffers of a controller that could not even be reset are
    /// never returned.
    ///
    /// # Errors
    /// [`Error::Failed`] with the first failure's reason.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Returns the commands in flight; a split request counts each.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Returns the most commands that can be in flight.
    pub fn capacity(&self) -> usize {
        self.raw.depths().submission as usize - 1
    }

    /// Returns the queue's identifier.
    pub fn qid(&self) -> Qid {
        self.core.qid()
    }

    /// Returns the queue's counters.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Returns a time before which no command is overdue, to poll again if there is nothing else to do;
    /// [`Time::NEVER`] with nothing in flight.
    pub fn next_deadline(&self) -> Time {
        self.core.next_deadline()
    }

    /// Returns whether the controller is in service; cheaper than [`QueuePair::check`].
    pub(crate) fn is_in_service(&self) -> bool {
        self.shared.life().is_running()
    }

    /// Returns whether the controller could not be stopped: buffers in flight are withheld.
    pub(crate) fn is_stuck(&self) -> bool {
        self.shared.life().state() == LifeState::Stuck
    }

    /// Returns the eventfd that counts this queue's interrupts, if the controller was opened with interrupts.
    pub fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.raw.interrupt()
    }
}

impl<B: IoBuffer> Drop for QueuePair<B> {
    fn drop(&mut self) {
        if !self.raw.close() {
            self.core.leak_all();
            std::mem::forget(self.pages.take());
        }
    }
}

impl<B: IoBuffer> fmt::Debug for QueuePair<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let qid = self.qid();
        f.debug_struct("QueuePair")
            .field("qid", &qid)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Returns the bytes of the list pool and the bounce pool.
fn pool_bytes(options: &QueuePairOptions) -> Result<(usize, usize)> {
    let page = PAGE_BYTES as usize;
    let (lists, bounces) = (options.list_pages, options.bounce_pages);
    if !(LIST_PAGES_PER_COMMAND..=4096).contains(&lists) || !(1..=4096).contains(&bounces) {
        return Err(Error::invalid(
            format!("a queue pair with {lists} list pages and {bounces} bounce pages"),
            format!(
                "a queue pair takes {LIST_PAGES_PER_COMMAND} to 4096 list pages and 1 to 4096 bounce pages"
            ),
        ));
    }
    Ok((lists * page, bounces * page))
}
