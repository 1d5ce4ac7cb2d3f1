//! The controller's side of the rings (NVMe Base 2.0 section 3.3).
//!
//! Invariant: a completion only goes into an entry that the host has consumed. Completions without room wait, and a
//! submission queue whose completion queue is full is not served.

use std::collections::VecDeque;

use super::doorbells::{Doorbells, SILENT, Side};
use super::memory::{Dma, Fault};
use adit_spec::{Cqe, Iova};

const CQE_BYTES: u64 = 16;
/// Completions that are posted together: those of a cache line.
const GATHERED: usize = 4;
const SQE_BYTES: u64 = 64;

/// The shadow doorbells of Doorbell Buffer Config (NVMe Base 2.0 section 8.6).
#[derive(Clone, Copy, Debug)]
pub(super) struct Shadow {
    /// The host's values.
    pub(super) doorbells: u64,
    /// Where the host reads the values at which it must ring.
    pub(super) event_indexes: u64,
    /// Bytes of each buffer: one page.
    pub(super) bytes: u64,
    /// Whether the shadow is polled without a ring.
    pub(super) polled: bool,
}

impl Shadow {
    /// Returns the addresses of a doorbell's value and event index; the admin queue and queues beyond the page have
    /// none.
    fn place(&self, doorbells: &Doorbells, qid: u16, side: Side) -> Option<(Iova, Iova)> {
        let offset = doorbells.index(qid, side) as u64 * 4;
        (qid != 0 && offset + 4 <= self.bytes)
            .then_some((Iova(self.doorbells + offset), Iova(self.event_indexes + offset)))
    }
}

/// The queues that exist, by identifier.
pub(super) struct Queues {
    pub(super) submission: Vec<Option<SubmissionQueue>>,
    pub(super) completion: Vec<Option<CompletionQueue>>,
    /// The existing queues, so that a step does not scan all possible ones.
    pub(super) submission_ids: Vec<u16>,
    pub(super) completion_ids: Vec<u16>,
    /// Position of the queue that is served first in this step.
    pub(super) first: usize,
}

impl Queues {
    pub(super) fn new(count: u16) -> Queues {
        Queues {
            submission: (0..count).map(|_| None).collect(),
            completion: (0..count).map(|_| None).collect(),
            submission_ids: Vec::new(),
            completion_ids: Vec::new(),
            first: 0,
        }
    }

    /// Returns the submission queue that is served as number `turn` of this step.
    pub(super) fn in_turn(&self, turn: usize) -> Option<u16> {
        let at = self.first.wrapping_add(turn).checked_rem(self.submission_ids.len())?;
        Some(self.submission_ids[at])
    }

    pub(super) fn clear(&mut self) {
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
        self.submission_ids.clear();
        self.completion_ids.clear();
    }
}

/// Sources of doorbell values.
pub(super) struct Rings<'a> {
    pub(super) doorbells: &'a Doorbells,
    pub(super) shadow: Option<Shadow>,
    pub(super) dma: &'a Dma<'a>,
}

/// Result of reading a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Same,
    Value(u32),
}

/// What a queue remembers of its doorbell.
#[derive(Clone, Copy, Debug)]
struct Ear {
    /// The value last read from the register, if there is no shadow.
    heard: u32,
    /// Whether its shadow is read without a ring.
    awake: bool,
}

impl Ear {
    /// Of a doorbell that was silenced.
    const NEW: Ear = Ear { heard: SILENT, awake: true };
}

impl Rings<'_> {
    /// Reads a doorbell, whose queue took its position from it as `known`.
    #[inline]
    fn look(&self, qid: u16, side: Side, ear: &mut Ear, known: u32) -> Result<Look, Fault> {
        let place = self.shadow.and_then(|shadow| shadow.place(self.doorbells, qid, side));
        match place {
            None => {
                Ok(self.doorbells.news(qid, side, &mut ear.heard).map_or(Look::Same, Look::Value))
            }
            Some(place) => self.look_at_shadow(qid, side, place, &mut ear.awake, known),
        }
    }

    /// Reads a doorbell with a shadow. `awake` tells whether the queue is active, so that the shadow is read without a
    /// ring.
    fn look_at_shadow(
        &self,
        qid: u16,
        side: Side,
        (value, event): (Iova, Iova),
        awake: &mut bool,
        known: u32,
    ) -> Result<Look, Fault> {
        let rung = self.doorbells.take(qid, side);
        *awake |= rung.is_some() || self.shadow.is_some_and(|shadow| shadow.polled);
        if !*awake {
            return Ok(Look::Same);
        }
        let found = self.dma.load32(value)?;
        let is_polled = self.shadow.is_some_and(|shadow| shadow.polled);
        match (found != known, is_polled) {
            (true, false) => return Ok(Look::Value(found)),
            // The shadow is read again, so the host need not ring: its next values do not pass the one just behind, not
            // even where the ring wraps.
            (true, true) => {
                self.dma.store32(event, found.wrapping_sub(1))?;
                return Ok(Look::Value(found));
            }
            (false, true) => return Ok(Look::Same),
            (false, false) => {}
        }
        self.fall_asleep(value, event, awake, known)
    }

    /// Asks for a ring at any value after `known`, then reads once more: the host may have advanced before it saw the
    /// request.
    fn fall_asleep(
        &self,
        value: Iova,
        event: Iova,
        awake: &mut bool,
        known: u32,
    ) -> Result<Look, Fault> {
        if self.dma.load32(event)? != known {
            self.dma.store32(event, known)?;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let found = self.dma.load32(value)?;
        *awake = found != known;
        Ok(if found == known { Look::Same } else { Look::Value(found) })
    }
}

#[derive(Debug)]
pub(super) struct SubmissionQueue {
    pub(super) qid: u16,
    pub(super) cqid: u16,
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    ear: Ear,
    /// CIDs of commands to end instead of executing.
    pub(super) aborts: Vec<u16>,
}

impl SubmissionQueue {
    pub(super) fn new(qid: u16, cqid: u16, base: u64, entries: u32) -> SubmissionQueue {
        let (head, tail, ear, aborts) = (0, 0, Ear::NEW, Vec::new());
        SubmissionQueue { qid, cqid, base, entries, head, tail, ear, aborts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Reads the tail doorbell; returns false if the host wrote an impossible value.
    #[inline]
    pub(super) fn refresh(&mut self, rings: &Rings<'_>) -> Result<bool, Fault> {
        match rings.look(self.qid, Side::Tail, &mut self.ear, self.tail)? {
            Look::Same => Ok(true),
            Look::Value(tail) if tail < self.entries => {
                self.tail = tail;
                Ok(true)
            }
            Look::Value(_) => Ok(false),
        }
    }

    /// Takes the entry at the head.
    #[inline]
    pub(super) fn fetch(&mut self, dma: &Dma<'_>, into: &mut [u8; 64]) -> Result<(), Fault> {
        dma.fetch(self.address(self.head), into)?;
        self.head = self.after(self.head);
        Ok(())
    }

    /// Returns the SQHD for completions from now on.
    pub(super) fn head(&self) -> u16 {
        self.head as u16
    }

    /// Marks command `cid` to be ended when fetched; returns false if it is not in the queue.
    pub(super) fn abort_waiting(&mut self, dma: &Dma<'_>, cid: u16) -> bool {
        let mut at = self.head;
        while at != self.tail {
            let mut cdw0 = [0; 4];
            let read = dma.read(self.address(at), &mut cdw0);
            if read.is_ok() && cdw0[2..] == cid.to_le_bytes() && !self.aborts.contains(&cid) {
                self.aborts.push(cid);
                return true;
            }
            at = self.after(at);
        }
        false
    }

    /// Returns whether [`SubmissionQueue::abort_waiting`] marked this command, and unmarks it.
    #[inline]
    pub(super) fn take_abort(&mut self, cid: u16) -> bool {
        if self.aborts.is_empty() {
            return false;
        }
        let before = self.aborts.len();
        self.aborts.retain(|marked| *marked != cid);
        self.aborts.len() != before
    }

    fn address(&self, index: u32) -> Iova {
        Iova(self.base.wrapping_add(u64::from(index) * SQE_BYTES))
    }

    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.entries { 0 } else { index + 1 }
    }
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) qid: u16,
    /// Interrupt vector, if interrupts are enabled.
    pub(super) vector: Option<u16>,
    /// Submission queues that complete here.
    pub(super) sq_count: u32,
    /// Whether posted entries still await an interrupt.
    pub(super) is_raised: bool,
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    phase: bool,
    ear: Ear,
    waiting: VecDeque<Cqe>,
    /// Entries in their places before the tail that are not written yet, in one cache line.
    gathered: [[u8; 16]; GATHERED],
    gathered_count: usize,
}

impl CompletionQueue {
    pub(super) fn new(qid: u16, base: u64, entries: u32, vector: Option<u16>) -> CompletionQueue {
        CompletionQueue {
            qid,
            vector,
            sq_count: 0,
            is_raised: false,
            base,
            entries,
            head: 0,
            tail: 0,
            phase: true,
            ear: Ear::NEW,
            waiting: VecDeque::new(),
            gathered: [[0; 16]; GATHERED],
            gathered_count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.after(self.tail) == self.head
    }

    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.entries { 0 } else { index + 1 }
    }

    /// Returns how many entries the host has not consumed, as of the last doorbell read.
    fn unconsumed(&self) -> u32 {
        (self.tail + self.entries - self.head) % self.entries
    }

    /// Reads the head doorbell; returns false if the host wrote an impossible value.
    fn refresh(&mut self, rings: &Rings<'_>) -> Result<bool, Fault> {
        let Look::Value(head) = rings.look(self.qid, Side::Head, &mut self.ear, self.head)? else {
            return Ok(true);
        };
        let consumed = (head.wrapping_add(self.entries).wrapping_sub(self.head)) % self.entries;
        if head >= self.entries || consumed > self.unconsumed() {
            return Ok(false);
        }
        self.head = head;
        Ok(true)
    }

    /// Returns whether completions wait for room.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether a completion posted now finds room. Clears `valid` if the host wrote an impossible head.
    #[inline]
    pub(super) fn has_room(&mut self, rings: &Rings<'_>, valid: &mut bool) -> Result<bool, Fault> {
        if self.is_full() {
            *valid &= self.refresh(rings)?;
        }
        while !self.waiting.is_empty() && !self.is_full() {
            self.post_waiting(rings.dma)?;
            if self.is_full() {
                *valid &= self.refresh(rings)?;
            }
        }
        Ok(!self.is_full())
    }

    fn post_waiting(&mut self, dma: &Dma<'_>) -> Result<(), Fault> {
        match self.waiting.pop_front() {
            Some(cqe) => self.write(dma, cqe, false),
            None => Ok(()),
        }
    }

    /// Posts a completion, or keeps it until there is room. If `gathers`, the host may see it only with the next ones
    /// or after [`CompletionQueue::publish`].
    #[inline]
    pub(super) fn post(&mut self, dma: &Dma<'_>, cqe: Cqe, gathers: bool) -> Result<(), Fault> {
        if self.is_full() || !self.waiting.is_empty() {
            self.waiting.push_back(cqe);
            return Ok(());
        }
        self.write(dma, cqe, gathers)
    }

    /// Writes a completion with the wrong phase tag, if there is room.
    pub(super) fn post_unseen(&mut self, dma: &Dma<'_>, cqe: Cqe) -> Result<(), Fault> {
        if self.is_full() || !self.waiting.is_empty() {
            return Ok(());
        }
        self.phase ^= true;
        let written = self.publish(dma).and_then(|()| self.write(dma, cqe, false));
        self.phase ^= true;
        written
    }

    /// Puts an entry at the tail and writes it, or later with others.
    #[inline]
    fn write(&mut self, dma: &Dma<'_>, cqe: Cqe, gathers: bool) -> Result<(), Fault> {
        let [dw0, dw1, dw2, dw3] = cqe.to_dwords();
        let dw3 = dw3 & !(1 << 16) | u32::from(self.phase) << 16;
        let word =
            u128::from(dw0) | u128::from(dw1) << 32 | u128::from(dw2) << 64 | u128::from(dw3) << 96;
        self.gathered[self.gathered_count] = word.to_le_bytes();
        self.gathered_count += 1;
        self.tail += 1;
        if !gathers || (self.tail as usize).is_multiple_of(GATHERED) || self.tail == self.entries {
            self.publish(dma)?;
        }
        if self.tail == self.entries {
            self.tail = 0;
            self.phase ^= true;
        }
        Ok(())
    }

    /// Writes the gathered entries.
    #[inline]
    pub(super) fn publish(&mut self, dma: &Dma<'_>) -> Result<(), Fault> {
        let count = std::mem::take(&mut self.gathered_count);
        if count == 0 {
            return Ok(());
        }
        let first = u64::from(self.tail) - count as u64;
        let at = self.base.wrapping_add(first * CQE_BYTES);
        self.is_raised = true;
        dma.post(Iova(at), &self.gathered[..count])
    }
}
