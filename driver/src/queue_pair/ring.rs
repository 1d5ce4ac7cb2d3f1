//! The two rings of a queue pair: arithmetic over shared memory.
//!
//! A [`SubmissionRing`] is filled at its tail; the device reports how far it has read (SQHD). A
//! [`CompletionRing`] is read at its head; an entry is new when its phase bit equals the phase of the current
//! lap (NVMe Base 2.0 sections 3.3.1 and 3.3.3.2).
//!
//! Ring memory is atomics: the device writes it while the driver reads it. Entries are copied out before they
//! are examined, and indices from the device are checked before use.

use std::sync::atomic::Ordering;

use crate::bus::Doorbell;
use crate::spec::{Cid, Cqe, Qid, Sqe, Status};
use crate::sys::{Atomics, Ring, barrier};

/// 64-bit words of a submission queue entry.
const SQE_WORDS: usize = 8;
/// 64-bit words of a completion queue entry.
const CQE_WORDS: usize = 2;
/// The most entries whose lines are asked for at once: about as many as a core waits for at a time.
const EXPECTED_MAX: u32 = 8;
/// The phase tag in a completion's last dword.
const PHASE: u32 = 1 << 16;

const _: () = assert!(SQE_WORDS * size_of::<u64>() == size_of::<Sqe>());
const _: () = assert!(CQE_WORDS * size_of::<u64>() == size_of::<Cqe>());

/// A shadow doorbell and its event index: 32-bit words in the pages given to the controller with Doorbell
/// Buffer Config.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) doorbells: Atomics,
    pub(crate) events: Atomics,
    /// Index of the 32-bit word in both.
    pub(crate) index: usize,
    /// Always ring the real doorbell: emulators differ in how they treat the admin queue's shadow.
    pub(crate) ring_always: bool,
}

impl Shadow {
    /// Clears the values of an earlier queue with this identifier: a controller trusts the shadow as soon as
    /// the new queue exists.
    pub(crate) fn clear(&self) {
        self.assert_inside();
        self.doorbells.dwords()[self.index].store(0, Ordering::Relaxed);
        self.events.dwords()[self.index].store(0, Ordering::Relaxed);
    }

    /// Publishes `value`; returns whether to ring the real doorbell too.
    fn publish(&self, old: u32, value: u32) -> bool {
        debug_assert!(old.max(value) <= u32::from(u16::MAX), "positions have 16 bits");
        barrier::before_doorbell();
        self.doorbells.dwords()[self.index].store(value.to_le(), Ordering::Relaxed);
        barrier::between_shadow_and_event();
        let event = u32::from_le(self.events.dwords()[self.index].load(Ordering::Relaxed));
        self.ring_always || passed(event as u16, old as u16, value as u16)
    }

    /// Asserts that both pages have the word.
    fn assert_inside(&self) {
        assert!(self.index < self.doorbells.dwords().len(), "a shadow doorbell lies in its page");
        assert!(self.index < self.events.dwords().len(), "an event index lies in its page");
    }
}

/// Returns whether going from `old` to `new` passes `event`, modulo 2^16.
fn passed(event: u16, old: u16, new: u16) -> bool {
    let is_passed = new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
    debug_assert!(!is_passed || old != new, "a position that stays passes nothing");
    is_passed
}

/// A doorbell and its last value.
#[derive(Debug)]
pub(crate) struct Bell {
    doorbell: Doorbell,
    shadow: Option<Shadow>,
    last: u32,
}

impl Bell {
    pub(crate) fn new(doorbell: Doorbell, shadow: Option<Shadow>) -> Bell {
        shadow.iter().for_each(Shadow::assert_inside);
        Bell { doorbell, shadow, last: 0 }
    }

    fn set_shadow(&mut self, shadow: Shadow) {
        shadow.assert_inside();
        shadow.doorbells.dwords()[shadow.index].store(self.last.to_le(), Ordering::Relaxed);
        self.shadow = Some(shadow);
    }

    #[inline(always)]
    fn ring(&mut self, value: u32) {
        debug_assert!(value <= u32::from(u16::MAX), "a position has 16 bits");
        let old = std::mem::replace(&mut self.last, value);
        if self.shadow.as_ref().is_none_or(|shadow| shadow.publish(old, value)) {
            self.doorbell.ring(value);
        }
    }
}

#[derive(Debug)]
pub(crate) struct SubmissionRing {
    /// Positioned at the tail.
    entries: Ring<SQE_WORDS>,
    /// The device's read position from its last valid completion.
    head: u32,
    bell: Bell,
}

impl SubmissionRing {
    /// Creates a ring of `depth` entries over zeroed memory.
    pub(crate) fn new(entries: Atomics, depth: u32, bell: Bell) -> SubmissionRing {
        assert!((2..=65536).contains(&depth), "a queue has 2 to 65536 entries");
        let entries = Ring::new(entries, depth);
        SubmissionRing { entries, head: 0, bell }
    }

    /// Publishes the tail in a shadow doorbell too, from now on.
    pub(crate) fn set_shadow(&mut self, shadow: Shadow) {
        self.bell.set_shadow(shadow);
    }

    /// Writes an entry at the tail. The caller keeps at most `depth - 1` entries outstanding, so the entry is
    /// free.
    #[inline(always)]
    pub(crate) fn push(&mut self, command: [u64; SQE_WORDS]) {
        let at = self.tail();
        self.entries.visit(|entry| {
            for (word, value) in entry.iter().zip(command) {
                word.store(value.to_le(), Ordering::Relaxed);
            }
            Some(())
        });
        debug_assert_ne!(self.tail(), at, "the next entry has another place");
    }

    /// Returns the entries pushed since the last ring, never announced to the device. It can still access
    /// them and may have changed them.
    pub(crate) fn unsent(&self) -> Vec<Sqe> {
        assert!(self.bell.last < self.depth(), "the device was told of an entry of the ring");
        let mut ring = self.entries.clone();
        ring.move_to(self.bell.last);
        let mut unsent = Vec::new();
        while ring.at() != self.tail() {
            let read = ring.visit(|entry| {
                Some(Sqe::from_dwords(std::array::from_fn(|dword| {
                    let qword = u64::from_le(entry[dword / 2].load(Ordering::Relaxed));
                    (qword >> (dword % 2 * 32)) as u32
                })))
            });
            unsent.extend(read.map(|(sqe, _)| sqe));
        }
        assert!(unsent.len() < self.depth() as usize, "the ring is read once");
        unsent
    }

    /// Returns the index of the next entry.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.entries.at()
    }

    /// Discards the entries pushed since the last ring.
    pub(crate) fn rewind(&mut self) {
        self.entries.move_to(self.bell.last);
        assert!(self.unsent().is_empty(), "all that was not sent is taken back");
    }

    /// Resets the ring for a newly created queue.
    pub(crate) fn restart(&mut self) {
        self.entries.move_to(0);
        (self.head, self.bell.last) = (0, 0);
        assert!(self.unsent().is_empty(), "a new queue has no entries");
    }

    pub(crate) fn depth(&self) -> u32 {
        self.entries.count()
    }

    /// Asks for the cache lines of the next entries, of as many as commands that ended, so that they are here when the next
    /// commands are written: a store to a line of the device's core holds up all later stores. The device has read these
    /// entries before.
    #[inline(always)]
    pub(crate) fn expect(&self, ended: u32) {
        debug_assert!(ended <= self.depth(), "a lap ends at most all");
        self.entries.prefetch(ended.min(EXPECTED_MAX));
    }

    /// Announces the entries pushed since the last ring; returns `false` if there are none.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> bool {
        let news = self.tail() != self.bell.last;
        if news {
            self.bell.ring(self.tail());
        }
        debug_assert_eq!(self.bell.last, self.tail(), "the device is told of every entry");
        news
    }

    /// Stores the device's read position; returns `false` if it is implausible: outside the ring, backwards,
    /// or beyond the tail.
    pub(crate) fn observe_head(&mut self, sqhd: u16) -> bool {
        let (sqhd, tail) = (u32::from(sqhd), self.tail());
        assert!(self.head < self.depth(), "the read position is in the ring");
        let plausible = if self.head <= tail {
            (self.head..=tail).contains(&sqhd)
        } else {
            sqhd < self.entries.count() && (sqhd >= self.head || sqhd <= tail)
        };
        if plausible {
            self.head = sqhd;
        }
        assert!(self.head < self.depth(), "the read position stays in the ring");
        plausible
    }

    /// Returns the values that completions of queue `qid` may report until the read position wraps or an
    /// entry is pushed.
    #[inline(always)]
    pub(crate) fn reports(&self, qid: Qid) -> Reports {
        let end = if self.head <= self.tail() { self.tail() } else { self.entries.count() - 1 };
        debug_assert!(self.head <= end, "the read position is in the ring");
        debug_assert!(end < self.depth(), "what is plausible is in the ring");
        Reports { last: u32::from(qid.0) << 16 | self.head, ahead: end - self.head }
    }

    /// Adopts the read position that `reports` ended with.
    #[inline(always)]
    pub(crate) fn observe(&mut self, reports: &Reports) {
        self.head = reports.last & 0xffff;
        debug_assert!(self.head < self.depth(), "the read position stays in the ring");
    }
}

/// The queue and read position that completions report (dword 2: SQID in bits 31:16, SQHD in bits 15:0),
/// checked with one comparison. A copy, so that it stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reports {
    last: u32,
    /// Distance from `last` to the last plausible position.
    ahead: u32,
}

impl Reports {
    /// Stores a report if it names this queue and is neither earlier than the last one nor implausibly late.
    ///
    /// The plausible values run from `last` to `last + ahead`; their upper halves are equal.
    #[inline(always)]
    pub(crate) fn take(&mut self, dword: u32) -> bool {
        let step = dword.wrapping_sub(self.last);
        let plausible = step <= self.ahead;
        debug_assert!((self.last & 0xffff) + self.ahead <= 0xffff, "positions have 16 bits");
        if plausible {
            debug_assert_eq!(
                self.last >> 16,
                dword >> 16,
                "the reports of one queue are plausible"
            );
            self.last = dword;
            self.ahead -= step;
        }
        plausible
    }
}

/// A completion as read: two words, of which the common case examines only the second, as a whole. The
/// compiler would not recombine them from the fields of a [`Cqe`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    low: u64,
    high: u64,
}

impl Arrival {
    /// Returns queue and read position (dword 2), as [`Reports::take`] checks them.
    #[inline(always)]
    pub(crate) fn report(self) -> u32 {
        self.high as u32
    }

    #[inline(always)]
    pub(crate) fn cid(self) -> Cid {
        Cid((self.high >> 32) as u16)
    }

    #[inline(always)]
    pub(crate) fn status(self) -> Status {
        Status::from_bits((self.high >> 49) as u16)
    }

    /// Returns the command's result (dword 0).
    #[inline(always)]
    pub(crate) fn dw0(self) -> u32 {
        self.low as u32
    }

    pub(crate) fn cqe(self) -> Cqe {
        let Arrival { low, high } = self;
        let dwords = [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32];
        let cqe = Cqe::from_dwords(dwords);
        debug_assert_eq!(cqe.cid(), self.cid(), "both ways to read an entry name the same command");
        debug_assert_eq!(cqe.status(), self.status(), "both ways to read an entry give its status");
        cqe
    }
}

/// Returns whether an entry's second word has this lap's phase.
#[inline(always)]
fn is_new(high: u64, phase: u32) -> bool {
    ((high >> 32) as u32 ^ phase) & PHASE == 0
}

#[derive(Debug)]
pub(crate) struct CompletionRing {
    /// Positioned at the head.
    entries: Ring<CQE_WORDS>,
    /// This lap's phase bit, at its place in an entry's last dword.
    phase: u32,
    bell: Bell,
    /// The most entries taken that the device is not told of yet.
    lag_max: u32,
}

impl CompletionRing {
    /// Creates a ring of `depth` entries over zeroed memory: the first lap's phase is 1.
    pub(crate) fn new(entries: Atomics, depth: u32, bell: Bell) -> CompletionRing {
        assert!((2..=65536).contains(&depth), "a queue has 2 to 65536 entries");
        CompletionRing { entries: Ring::new(entries, depth), phase: PHASE, bell, lag_max: 0 }
    }

    /// Tells the device of entries taken only once they are an eighth of the ring, from now on. The line of the
    /// doorbells then passes to the device's core less often. The caller sees to it that no entry is missing.
    pub(crate) fn lag(&mut self) {
        self.lag_max = self.depth() / 8;
        assert!(self.lag_max < self.depth(), "the device learns of the entries in every lap");
    }

    /// Returns the entries taken that the device was not told of.
    #[inline(always)]
    pub(crate) fn untold(&self) -> u32 {
        let (at, last) = (self.entries.at(), self.bell.last);
        let untold = if at >= last { at - last } else { at + self.depth() - last };
        debug_assert!(untold < self.depth(), "the device learns of the entries in every lap");
        untold
    }

    /// Gives the entries read so far back to the device if they are many; returns whether it did.
    #[inline(always)]
    pub(crate) fn ring_if_many(&mut self) -> bool {
        let is_due = self.untold() > self.lag_max;
        if is_due {
            self.ring();
        }
        debug_assert!(self.untold() <= self.lag_max, "a lag has a limit");
        is_due
    }

    /// Publishes the head in a shadow doorbell too, from now on.
    pub(crate) fn set_shadow(&mut self, shadow: Shadow) {
        self.bell.set_shadow(shadow);
    }

    /// Returns whether the device has written the entry at the head.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        debug_assert!(self.phase & !PHASE == 0, "the phase is one bit");
        is_new(u64::from_le(self.entries.current()[1].load(Ordering::Relaxed)), self.phase)
    }

    /// Takes the entry at the head, if the device has written it.
    ///
    /// Loads the word with the phase first, with Acquire: the other word must not be read before the phase
    /// shows that it is valid.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Arrival> {
        let (at, phase) = (self.entries.at(), self.phase);
        let (arrival, wraps) = self.entries.visit(|entry| {
            let high = u64::from_le(entry[1].load(Ordering::Acquire));
            is_new(high, phase)
                .then(|| Arrival { low: u64::from_le(entry[0].load(Ordering::Relaxed)), high })
        })?;
        if wraps {
            // Not from `phase`, which the compiler would keep for it.
            self.phase = !(arrival.high >> 32) as u32 & PHASE;
        }
        debug_assert_ne!(self.entries.at(), at, "the next entry has another place");
        debug_assert_eq!(self.phase != phase, self.entries.at() == 0, "a lap has one phase");
        Some(arrival)
    }

    /// Resets the ring for a queue newly created over cleared memory.
    pub(crate) fn restart(&mut self) {
        self.entries.move_to(0);
        (self.phase, self.bell.last) = (PHASE, 0);
    }

    /// Gives the entries read so far back to the device.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        debug_assert!(self.entries.at() < self.depth(), "the head is in the ring");
        self.bell.ring(self.entries.at());
    }

    pub(crate) fn depth(&self) -> u32 {
        self.entries.count()
    }
}

#[cfg(test)]
mod laps;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Backing, HostMemory, Window};
    use std::sync::Arc;

    fn ring(depth: u32) -> SubmissionRing {
        let memory = HostMemory::allocate(65536, Backing::Any, &|_, _| ()).expect("memory");
        let register = Window::of_a_page().register32(0).expect("inside");
        SubmissionRing::new(
            Arc::new(memory).atomics(),
            depth,
            Bell::new(Doorbell::Mapped(register), None),
        )
    }

    #[test]
    fn only_heads_between_the_last_one_and_the_tail_are_plausible() {
        for (head, tail) in [(0, 0), (0, 3), (2, 6), (6, 1), (7, 0), (3, 2)] {
            for sqhd in 0..20u16 {
                let mut ring = ring(8);
                ring.head = head;
                ring.entries.move_to(tail);
                let pushed = (tail + 8 - head) % 8;
                let naive = (0..=pushed).any(|ahead| (head + ahead) % 8 == u32::from(sqhd));
                assert_eq!(ring.observe_head(sqhd), naive, "{sqhd} with {head}..{tail}");
                assert_eq!(ring.head, if naive { u32::from(sqhd) } else { head });
            }
        }
    }

    #[test]
    fn reports_are_the_plausible_heads_of_one_queue_up_to_the_end_of_the_ring() {
        for (head, tail) in [(0, 0), (0, 3), (2, 6), (6, 1), (7, 0), (3, 2)] {
            for (sqid, sqhd) in (0..4u16).flat_map(|sqid| (0..20u16).map(move |sqhd| (sqid, sqhd)))
            {
                let mut ring = ring(8);
                ring.head = head;
                ring.entries.move_to(tail);
                let mut reports = ring.reports(Qid(2));
                let taken = reports.take(u32::from(sqid) << 16 | u32::from(sqhd));
                let in_order = u32::from(sqhd) >= head && ring.observe_head(sqhd);
                assert_eq!(taken, sqid == 2 && in_order, "{sqid}:{sqhd} with {head}..{tail}");
                ring.observe(&reports);
                assert_eq!(ring.head, if taken { u32::from(sqhd) } else { ring.head });
                assert!(reports.take(2 << 16 | ring.head), "the same again");
            }
        }
    }

    #[test]
    fn reports_of_the_largest_ring_do_not_run_into_the_next_queue() {
        let mut ring = ring(65536 / 64);
        ring.head = 1;
        ring.entries.move_to(1023);
        let mut reports = ring.reports(Qid(7));
        assert!(!reports.take(8 << 16) && !reports.take(6 << 16 | 0xffff));
        assert!(reports.take(7 << 16 | 1023) && !reports.take(7 << 16 | 1022));
    }

    #[test]
    fn an_arrival_says_what_the_entry_says() {
        let (low, high) = (0x1122_3344_5566_7788, 0x8c05_abcd_0007_0123);
        let arrival = Arrival { low, high };
        let cqe = arrival.cqe();
        assert_eq!((cqe.dw0.get(), cqe.dw1.get()), (0x5566_7788, 0x1122_3344));
        assert_eq!(arrival.dw0(), cqe.dw0.get());
        assert_eq!((arrival.cid(), arrival.status()), (cqe.cid(), cqe.status()));
        assert_eq!(arrival.report(), u32::from(cqe.sqid().0) << 16 | u32::from(cqe.sqhd()));
    }

    #[test]
    fn event_index_is_passed_only_when_the_tail_moves_over_it() {
        assert!(passed(0, 0, 1));
        assert!(!passed(1, 0, 1));
        assert!(passed(3, 2, 6));
        assert!(!passed(6, 2, 6));
        assert!(passed(0xffff, 0xfffe, 2));
        assert!(!passed(5, 0xfffe, 2));
    }
}
