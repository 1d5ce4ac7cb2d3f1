//! One queue pair's engine: rings, slots and pages, without a controller.
//!
//! The whole per-I/O path is in this file; splitting, lists, bouncing and faults are in [`super::slow`].

use std::time::Duration;

use super::command::{Body, Command, LbaCommand, Pointer};
use super::lists::PagePool;
use super::outcome::{CommandError, Completion, RejectReason, Rejected};
use super::ring::{Arrival, CompletionRing, Reports, Shadow, SubmissionRing};
use super::slots::Slots;
use super::slow::Extra;
use crate::Time;
use crate::memory::{DomainId, IoBuffer};
use crate::namespace::Namespace;
use crate::spec::{Cid, Cqe, Iova, Qid, Sqe};
use crate::transfer::{PAGE_BYTES, Segment};

/// A queue's counters since its creation. They only grow.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Commands posted.
    pub submitted: u64,
    /// Commands that ended in any way; the difference to [`Stats::submitted`] is in flight.
    pub completed: u64,
    /// Data bytes of the commands posted.
    pub bytes: u64,
    /// Requests sent again with [`crate::QueuePair::resubmit`].
    pub retries: u64,
    /// Commands that used SGLs.
    pub sgl_commands: u64,
    /// Uses of PRP lists built when their region was registered.
    pub prebuilt_lists: u64,
    /// Commands that needed a newly built PRP list or SGL.
    pub built_lists: u64,
    /// Commands that used a bounce buffer.
    pub bounced_commands: u64,
    /// Bytes copied to or from bounce buffers.
    pub bounced_bytes: u64,
    /// Times the submission queue's tail was published.
    pub submission_rings: u64,
    /// Times the completion queue's head was published.
    pub completion_rings: u64,
    /// Completions with an unknown, stale or duplicate command identifier.
    pub unknown_cids: u64,
    /// Completions that named another submission queue.
    pub wrong_sqids: u64,
    /// Completions with a submission queue head outside the ring.
    pub bad_sqheads: u64,
    /// Completions with a submission queue head inside the ring but implausible.
    pub stale_sqheads: u64,
    /// Commands that missed their deadline and were aborted.
    pub aborts: u64,
    /// Times the queue was recreated because an abort failed.
    pub recreations: u64,
    /// Commands in flight when their queue was recreated or the controller reset.
    pub resets: u64,
    /// Nanoseconds from post to poll of the commands that completed in time, if
    /// [`crate::QueuePairOptions::latencies`] is set.
    pub latencies_ns: Option<Latencies>,
}

/// A histogram of nanoseconds, exact to 2 significant digits, up to an hour.
pub type Latencies = hdrhistogram::Histogram<u64>;

/// One hour: the cap for recorded latencies.
const LATENCY_MAX_NS: u64 = 3600 * 1_000_000_000;

impl Stats {
    /// Counts completions that break the protocol. Any of them takes the controller out of service.
    pub fn violations(&self) -> u64 {
        self.unknown_cids + self.wrong_sqids + self.bad_sqheads
    }
}

/// A completion's violation of the protocol (NVMe Base 2.0 section 3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("a completion named command {0}, which is not in flight")]
    UnknownCid(Cid),
    #[error("a completion named submission queue {0}")]
    WrongSqid(Qid),
    #[error("a completion gave entry {0} as the submission queue's head, which has fewer entries")]
    BadSqhd(u16),
}

/// A hundred years: deadlines on any clock that starts near zero cannot overflow.
const TIMEOUT_MAX_NS: u64 = 100 * 365 * 86_400 * 1_000_000_000;

pub(crate) struct Parts {
    pub(crate) qid: Qid,
    pub(crate) domain: DomainId,
    pub(crate) sq: SubmissionRing,
    pub(crate) cq: CompletionRing,
    /// The most commands in flight: one less than the submission ring's entries.
    pub(crate) slots: usize,
    pub(crate) lists: PagePool,
    pub(crate) bounces: PagePool,
    pub(crate) timeout: Duration,
    pub(crate) latencies: bool,
}

/// The engine of one queue pair.
pub(crate) struct Core<B> {
    pub(super) sq: SubmissionRing,
    pub(super) cq: CompletionRing,
    pub(super) slots: Slots<B>,
    pub(super) extras: Box<[Extra]>,
    /// Lower bound of all deadlines in flight.
    next_deadline: Time,
    timeout_ns: u64,
    domain: DomainId,
    qid: Qid,
    pub(super) stats: Stats,
    /// The first violation not yet reported.
    violation: Option<Violation>,
    pub(super) lists: PagePool,
    pub(super) bounces: PagePool,
}

impl<B: IoBuffer> Core<B> {
    pub(crate) fn new(parts: Parts) -> Core<B> {
        let Parts { qid, domain, sq, cq, slots, lists, bounces, timeout, latencies } = parts;
        assert!(slots < sq.depth() as usize, "a free slot has a free entry");
        assert!(slots < cq.depth() as usize, "every command's completion has an entry");
        let extras = vec![Extra::default(); slots].into_boxed_slice();
        let slots = Slots::new(slots);
        assert_eq!(slots.free(), extras.len(), "every slot has its extras");
        let latencies_ns = latencies.then(|| {
            Latencies::new_with_bounds(1, LATENCY_MAX_NS, 2).expect("bounds that go together")
        });
        let (next_deadline, stats) = (Time::NEVER, Stats { latencies_ns, ..Stats::default() });
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).min(TIMEOUT_MAX_NS);
        Core {
            sq,
            cq,
            slots,
            extras,
            next_deadline,
            timeout_ns,
            domain,
            qid,
            stats,
            violation: None,
            lists,
            bounces,
        }
    }

    /// Writes a command into the ring without ringing the doorbell.
    #[inline(always)]
    pub(crate) fn post(&mut self, now: Time, command: Command<'_, B>) -> Result<Cid, Rejected<B>> {
        let Command { body, buffer } = command;
        let deadline = Time::from_ns(now.as_ns().wrapping_add(self.timeout_ns));
        debug_assert!(deadline >= now, "a deadline lies ahead");
        match body {
            Body::Transfer(transfer) => self.post_transfer(deadline, transfer, buffer),
            Body::Raw { sqe, bounds } => self.post_raw(deadline, sqe, bounds, buffer),
            Body::Refused(reason) => Err(Rejected { buffer, reason }),
        }
    }

    /// Must not panic before the buffer is in its slot: the compiler would keep the buffer in memory for
    /// unwinding, and loading it from there waits for the stores to the last entries, whose lines the device
    /// is reading.
    #[inline(always)]
    fn post_transfer(
        &mut self,
        deadline: Time,
        transfer: LbaCommand<'_>,
        buffer: B,
    ) -> Result<Cid, Rejected<B>> {
        let Some(vacant) = self.slots.vacant() else {
            return Err(Rejected { buffer, reason: RejectReason::Full });
        };
        match in_one(self.domain, &mut self.stats, &transfer, &buffer) {
            Some(command) => {
                let cid = vacant.occupy(Some(buffer), deadline, transfer.opcode.0, false);
                self.push(command, cid, deadline);
                debug_assert!(self.slots.find(cid).is_some(), "the command is in flight");
                Ok(cid)
            }
            None => self.post_pieces(deadline, transfer, buffer),
        }
    }

    /// Posts a command with nothing attached but its buffer.
    pub(super) fn launch(&mut self, sqe: Sqe, buffer: B, deadline: Time) -> Cid {
        let (_, cid) = self.slots.occupy(Some(buffer), deadline, sqe.opcode(), false);
        self.push(sqe.with_cid(Cid(0)).to_qwords(), cid, deadline);
        assert!(self.slots.find(cid).is_some(), "the command is in flight");
        cid
    }

    /// Writes an encoded command into the ring and adds its identifier.
    #[inline(always)]
    pub(super) fn push(&mut self, mut command: [u64; 8], cid: Cid, deadline: Time) {
        if deadline < self.next_deadline {
            self.next_deadline = deadline;
        }
        debug_assert!(command[0] & 0xffff_0000 == 0, "a command has one identifier");
        command[0] |= u64::from(cid.0) << 16;
        self.sq.push(command);
        debug_assert!(self.next_deadline <= deadline, "no deadline is missed");
    }

    /// Announces every command posted since the last ring.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        self.make_room();
        self.stats.submission_rings += u64::from(self.sq.ring());
        probe::probe!(adit, ring, self.qid.0, self.sq.tail());
    }

    /// Tells the device of completions taken if it would otherwise lack entries for the commands in flight:
    /// controllers may rely on every completion's having one.
    #[inline(always)]
    fn make_room(&mut self) {
        if self.in_flight() as u32 + self.cq.untold() >= self.cq.depth() {
            self.cq.ring();
            self.stats.completion_rings += 1;
        }
        let untold = self.cq.untold() as usize;
        debug_assert!(self.in_flight() + untold < self.cq.depth() as usize, "room for each");
    }

    /// Tells the device of completions only now and then, from now on: for a queue without interrupts, which a
    /// controller may raise until it is told.
    pub(crate) fn lag(&mut self) {
        assert!(self.in_flight() == 0 && self.cq.untold() == 0, "a queue lags from its beginning");
        self.cq.lag();
    }

    /// Returns whether the device has written a completion.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.cq.has_news()
    }

    /// Processes all new completions and hands each finished request to `done`. Returns the number of
    /// finished requests.
    #[inline(always)]
    pub(crate) fn reap(&mut self, now: Time, done: &mut impl FnMut(Completion<B>)) -> usize {
        if self.stats.latencies_ns.is_some() {
            return self.reap_timed(now, done);
        }
        self.reap_lap::<false>(now, done)
    }

    /// A separate copy of the loop, so that not measuring costs nothing.
    #[inline(never)]
    fn reap_timed(&mut self, now: Time, done: &mut impl FnMut(Completion<B>)) -> usize {
        self.reap_lap::<true>(now, done)
    }

    #[inline(always)]
    fn reap_lap<const TIMED: bool>(
        &mut self,
        now: Time,
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        let mut unfinished = 0;
        let mut reports = self.sq.reports(self.qid);
        // At most one lap: a device that never stops writing cannot hold the CPU here.
        let lap = self.cq.depth();
        let mut left = lap;
        while left > 0
            && let Some(entry) = self.cq.pop()
        {
            left -= 1;
            if TIMED {
                self.measure(now, entry.cid());
            }
            if !reports.take(entry.report()) {
                let (is_ours, next) = self.accept_report(&entry.cqe(), reports);
                reports = next;
                if !is_ours {
                    unfinished += 1;
                    continue;
                }
            }
            if !self.accept(entry, done) {
                unfinished += 1;
            }
        }
        debug_assert!(left + unfinished <= lap, "each entry is counted once");
        if left < lap {
            self.sq.expect(lap - left);
            self.sq.observe(&reports);
            self.stats.completion_rings += u64::from(self.cq.ring_if_many());
            probe::probe!(adit, reap, self.qid.0, lap - left - unfinished);
        }
        (lap - left - unfinished) as usize
    }

    /// Records the latency of the command about to end, unless it is being aborted: its deadline no longer
    /// tells when it began.
    fn measure(&mut self, now: Time, cid: Cid) {
        let Some(index) = self.slots.find(cid) else { return };
        debug_assert_eq!(self.slots.get(index).cid(), cid, "a slot is found by its identifier");
        if self.is_ending(index) {
            return;
        }
        let deadline = self.slots.get(index).deadline.as_ns();
        let took_ns = now.as_ns().saturating_sub(deadline.saturating_sub(self.timeout_ns));
        probe::probe!(adit, complete, self.qid.0, cid.0, took_ns);
        if let Some(latencies) = &mut self.stats.latencies_ns {
            latencies.saturating_record(took_ns);
        }
    }

    /// Ends the command of a completion of this queue. Returns whether a request finished.
    ///
    /// Only successes of plain commands end here, so that `done` as compiled into this loop need not look at the result.
    #[inline(always)]
    fn accept(&mut self, entry: Arrival, done: &mut impl FnMut(Completion<B>)) -> bool {
        if entry.status().is_success()
            && let Some(buffer) = self.slots.end_plain(entry.cid())
        {
            debug_assert!(self.slots.find(entry.cid()).is_none(), "a command ends once");
            done(Completion { buffer, result: Ok(entry.dw0()) });
            return true;
        }
        self.accept_other(entry, done)
    }

    /// Handles a completion with an error, or that names no plain command.
    #[cold]
    #[inline(never)]
    fn accept_other(&mut self, entry: Arrival, done: &mut impl FnMut(Completion<B>)) -> bool {
        let (cid, result) = (entry.cid(), outcome(entry));
        if let Some(buffer) = self.slots.end_plain(cid) {
            debug_assert!(self.slots.find(cid).is_none(), "a command ends once");
            done(Completion { buffer, result });
            return true;
        }
        let Some(index) = self.slots.find_special(cid) else {
            self.violated(Violation::UnknownCid(cid));
            return false;
        };
        assert_eq!(self.slots.find(cid), Some(index), "only a command in flight ends");
        self.finish_special(index, result).map(done).is_some()
    }

    /// Handles a report that does not follow the last one: the position wrapped, or is implausible. A head
    /// outside the ring is a violation. An implausible one inside is ignored: firmware may have queued
    /// completions out of order. Returns whether the completion is of this queue, and the next reports.
    #[cold]
    #[inline(never)]
    fn accept_report(&mut self, entry: &Cqe, reports: Reports) -> (bool, Reports) {
        if entry.sqid() != self.qid {
            self.violated(Violation::WrongSqid(entry.sqid()));
            return (false, reports);
        }
        self.sq.observe(&reports);
        if self.sq.observe_head(entry.sqhd()) {
            assert!(u32::from(entry.sqhd()) < self.sq.depth(), "a plausible head is in the ring");
            return (true, self.sq.reports(self.qid));
        } else if u32::from(entry.sqhd()) < self.sq.depth() {
            self.stats.stale_sqheads += 1;
        } else {
            self.violated(Violation::BadSqhd(entry.sqhd()));
        }
        (true, reports)
    }

    /// Counts a violation and makes the next poll handle it.
    #[cold]
    #[inline(never)]
    fn violated(&mut self, violation: Violation) {
        match violation {
            Violation::UnknownCid(_) => self.stats.unknown_cids += 1,
            Violation::WrongSqid(_) => self.stats.wrong_sqids += 1,
            Violation::BadSqhd(_) => self.stats.bad_sqheads += 1,
        }
        self.violation.get_or_insert(violation);
        self.next_deadline = Time::ZERO;
        assert!(self.stats.violations() > 0, "a violation is counted");
        assert!(self.violation.is_some(), "the next poll learns of a violation");
    }

    pub(crate) fn count_retry(&mut self) {
        self.stats.retries += 1;
        assert!(self.stats.retries <= self.slots.taken(), "a request sent again was posted");
    }

    pub(crate) fn count_recreation(&mut self) {
        self.stats.recreations += 1;
    }

    pub(crate) fn take_violation(&mut self) -> Option<Violation> {
        let violation = self.violation.take();
        assert!(violation.is_none() || self.stats.violations() > 0, "a violation is counted");
        violation
    }

    /// Restarts over cleared rings and reposts commands that were never announced to the device.
    pub(crate) fn restart(&mut self, unsent: &[Sqe]) {
        assert!(unsent.len() <= self.slots.in_flight(), "what is sent again is in flight");
        assert!(unsent.len() < self.sq.depth() as usize, "what is sent again has entries");
        self.sq.restart();
        self.cq.restart();
        self.violation = None;
        unsent.iter().for_each(|sqe| self.sq.push(sqe.to_qwords()));
        assert_eq!(self.sq.tail() as usize, unsent.len(), "the ring holds what is sent again");
        assert_eq!(self.sq.unsent().len(), unsent.len(), "the next ring announces all of it");
        // Makes the next check recompute it.
        self.next_deadline = Time::ZERO;
    }

    /// Publishes both positions in shadow doorbells from now on.
    pub(crate) fn set_shadows(&mut self, submission: Shadow, completion: Shadow) {
        assert_ne!(submission.index, completion.index, "each position has a word of its own");
        self.sq.set_shadow(submission);
        self.cq.set_shadow(completion);
    }

    /// Returns whether a deadline may have passed.
    #[inline(always)]
    pub(crate) fn may_be_overdue(&self, now: Time) -> bool {
        now >= self.next_deadline
    }

    /// Returns a time before which no command in flight is overdue.
    pub(crate) fn next_deadline(&self) -> Time {
        if self.slots.in_flight() == 0 { Time::NEVER } else { self.next_deadline }
    }

    /// Appends the slots of all overdue commands to `overdue` and updates the next deadline.
    pub(crate) fn take_overdue(&mut self, now: Time, overdue: &mut Vec<usize>) {
        let mut next = Time::NEVER;
        for index in self.slots.occupied() {
            let deadline = self.slots.get(index).deadline;
            if deadline <= now {
                overdue.push(index);
            } else {
                next = next.min(deadline);
            }
        }
        assert!(next > now || next == Time::NEVER, "an overdue command is taken");
        self.next_deadline = next;
    }

    pub(crate) fn extend(&mut self, index: usize, deadline: Time) {
        let cid = self.slots.get(index).cid();
        assert_eq!(self.slots.find(cid), Some(index), "only a command in flight has a deadline");
        self.slots.get_mut(index).deadline = deadline;
        self.next_deadline = self.next_deadline.min(deadline);
        assert!(self.next_deadline <= deadline, "no deadline is missed");
    }

    /// Returns the commands in flight, counting each command of a split request.
    pub(crate) fn in_flight(&self) -> usize {
        let in_flight = self.slots.in_flight();
        debug_assert!(in_flight <= self.extras.len(), "each command in flight has a slot");
        in_flight
    }

    pub(crate) fn stats(&self) -> Stats {
        let in_flight = self.slots.taken() - self.slots.returned();
        assert!(self.stats.resets <= self.slots.returned(), "what was reset has ended");
        assert!(self.stats.aborts <= self.slots.taken(), "a command is aborted once");
        assert!(
            in_flight <= self.extras.len() as u64,
            "what was posted and not ended is in flight"
        );
        Stats {
            submitted: self.slots.taken(),
            completed: self.slots.returned(),
            ..self.stats.clone()
        }
    }

    pub(crate) fn qid(&self) -> Qid {
        self.qid
    }

    /// Returns the address space its buffers are mapped in.
    pub(crate) fn domain(&self) -> DomainId {
        self.domain
    }
}

/// Encodes a transfer of one segment that fits one command and needs no new list. Returns `None` otherwise;
/// the planner then handles or rejects it.
#[inline(always)]
fn in_one<B: IoBuffer>(
    domain: DomainId,
    stats: &mut Stats,
    transfer: &LbaCommand<'_>,
    buffer: &B,
) -> Option<[u64; 8]> {
    if transfer.namespace.is_plain() {
        encode::<true, B>(domain, stats, transfer, buffer)
    } else {
        encode::<false, B>(domain, stats, transfer, buffer)
    }
}

/// [`in_one`] for a namespace that is plain or not: what [`Namespace::is_plain`] rules out costs no instruction.
#[inline(always)]
fn encode<const PLAIN: bool, B: IoBuffer>(
    domain: DomainId,
    stats: &mut Stats,
    transfer: &LbaCommand<'_>,
    buffer: &B,
) -> Option<[u64; 8]> {
    let namespace = transfer.namespace;
    if buffer.segment_count() != 1 || !buffer.is_in(domain) || namespace.domain() != domain {
        return None;
    }
    let segment = buffer.segment(0);
    let limits = namespace.limits();
    // The rotation turns a partial LBA into high bits, and the subtraction wraps 0: both exceed the limit.
    let count = segment.len.rotate_right(limits.lba_shift);
    if count.wrapping_sub(1) >= namespace.max_lbas() {
        return None;
    }
    if namespace.lba_count().checked_sub(transfer.lba.0)? < count {
        return None;
    }
    if !PLAIN && limits.boundary_lbas != 0 && segment.len > limits.to_boundary_bytes(transfer.lba.0)
    {
        return None;
    }
    debug_assert_eq!(count << limits.lba_shift, segment.len, "the segment is whole LBAs");
    debug_assert!(segment.len <= limits.max_bytes, "one command may carry the segment");
    let pointer = direct_pointer::<PLAIN, B>(stats, segment, namespace, buffer)?;
    stats.bytes += segment.len;
    let tags = if PLAIN { 0 } else { namespace.prinfo().tags(transfer.lba) };
    Some(transfer.qwords(transfer.lba, count, pointer, tags))
}

/// Returns a data pointer if it needs no new list.
#[inline(always)]
fn direct_pointer<const PLAIN: bool, B: IoBuffer>(
    stats: &mut Stats,
    segment: Segment,
    namespace: &Namespace,
    buffer: &B,
) -> Option<Pointer> {
    let Segment { iova, len } = segment;
    debug_assert!(len > 0 && u32::try_from(len).is_ok(), "a command has 1 to 2^32 - 1 bytes");
    if !PLAIN && namespace.takes_sgls() && (iova.0 | len) & namespace.sgl_mask() == 0 {
        stats.sgl_commands += 1;
        return Some(Pointer::data_block(iova, len as u32));
    }
    if !iova.0.is_multiple_of(4) {
        return None;
    }
    let offset = iova.0 % PAGE_BYTES;
    // Counted from the start of the first page.
    let end = offset + len;
    if end <= PAGE_BYTES {
        return Some(Pointer::prps(iova, Iova(0)));
    }
    let second = Iova(iova.0 - offset + PAGE_BYTES);
    debug_assert!(second.0.is_multiple_of(PAGE_BYTES), "the second page is a page");
    if end <= 2 * PAGE_BYTES {
        return Some(Pointer::prps(iova, second));
    }
    let list = buffer.prebuilt(0)?.list(second, end - PAGE_BYTES);
    stats.prebuilt_lists += 1;
    Some(Pointer::prps(iova, list))
}

fn outcome(entry: Arrival) -> Result<u32, CommandError> {
    let status = entry.status();
    if status.is_success() { Ok(entry.dw0()) } else { Err(CommandError::Status(status)) }
}

#[cfg(test)]
mod by_hand;
#[cfg(test)]
mod direct;
