//! The two rings of a queue pair: arithmetic over shared memory.
//!
//! A [`SubmissionRing`] is filled at its tail; the device reports how far it
//! has read (SQHD). A [`CompletionRing`] is read at its head; an entry is new
//! when its phase bit equals the phase of the current lap (NVMe Base 2.0
//! sections 3.3.1 and 3.3.3.2).
//!
//! Ring memory is atomics: the device writes it while we read it. Entries are
//! copied out before they are looked at. Indices never come from the device
//! without a check.

use std::sync::atomic::Ordering;

use crate::bus::Doorbell;
use crate::spec::{Cqe, Sqe};
use crate::sys::{Atomics, Ring, barrier};

/// 64-bit words of a submission queue entry.
const SQE_WORDS: usize = 8;
/// 64-bit words of a completion queue entry.
const CQE_WORDS: usize = 2;
/// The phase tag in a completion's second 64-bit word (DW3 bit 16).
const PHASE: u64 = 1 << 48;

/// A shadow doorbell and its event index, both 32-bit words of the pages given
/// to the controller with Doorbell Buffer Config.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// The page of shadow doorbells.
    pub(crate) doorbells: Atomics,
    /// The page of event indices.
    pub(crate) events: Atomics,
    /// Index of the 32-bit word in both.
    pub(crate) index: usize,
    /// Ring the real doorbell always: emulators treat the admin queue's shadow in different ways.
    pub(crate) ring_always: bool,
}

impl Shadow {
    /// Forgets the queue that had this identifier before: a controller believes the shadow
    /// as soon as the new queue exists.
    pub(crate) fn clear(&self) {
        self.doorbells.dwords()[self.index].store(0, Ordering::Relaxed);
        self.events.dwords()[self.index].store(0, Ordering::Relaxed);
    }

    /// Publishes `value` and tells whether the controller wants the real doorbell rung as well.
    fn publish(&self, old: u32, value: u32) -> bool {
        barrier::before_doorbell();
        self.doorbells.dwords()[self.index].store(value.to_le(), Ordering::Relaxed);
        barrier::between_shadow_and_event();
        let event = u32::from_le(self.events.dwords()[self.index].load(Ordering::Relaxed));
        self.ring_always || passed(event as u16, old as u16, value as u16)
    }
}

/// Whether going from `old` to `new` passes `event`, all modulo 2^16.
fn passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A doorbell with the value it last had.
#[derive(Debug)]
pub(crate) struct Bell {
    doorbell: Doorbell,
    shadow: Option<Shadow>,
    last: u32,
}

impl Bell {
    pub(crate) fn new(doorbell: Doorbell, shadow: Option<Shadow>) -> Bell {
        Bell { doorbell, shadow, last: 0 }
    }

    fn set_shadow(&mut self, shadow: Shadow) {
        shadow.doorbells.dwords()[shadow.index].store(self.last.to_le(), Ordering::Relaxed);
        self.shadow = Some(shadow);
    }

    #[inline(always)]
    fn ring(&mut self, value: u32) {
        let old = std::mem::replace(&mut self.last, value);
        if self.shadow.as_ref().is_none_or(|shadow| shadow.publish(old, value)) {
            self.doorbell.ring(value);
        }
    }
}

/// The submission side.
#[derive(Debug)]
pub(crate) struct SubmissionRing {
    entries: Ring<SQE_WORDS>,
    tail: u32,
    /// The device's read position as its last valid completion gave it.
    head: u32,
    bell: Bell,
}

impl SubmissionRing {
    /// A ring of `depth` entries over zeroed memory.
    pub(crate) fn new(entries: Atomics, depth: u32, bell: Bell) -> SubmissionRing {
        assert!((2..=65536).contains(&depth), "a queue has 2 to 65536 entries");
        let entries = Ring::new(entries, depth);
        SubmissionRing { entries, tail: 0, head: 0, bell }
    }

    /// From now on publishes the tail in a shadow doorbell, too.
    pub(crate) fn set_shadow(&mut self, shadow: Shadow) {
        self.bell.set_shadow(shadow);
    }

    /// Writes an entry at the tail. The caller bounds what is outstanding to `depth - 1`,
    /// so the entry is free.
    #[inline(always)]
    pub(crate) fn push(&mut self, sqe: &Sqe) {
        let entry = self.entries.entry(self.tail);
        let words = sqe.to_qwords();
        for (word, value) in entry.iter().zip(words) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        self.tail = if self.tail + 1 == self.entries.count() { 0 } else { self.tail + 1 };
    }

    /// The entries pushed since the last ring, which the device was never told of, as they lie in
    /// its reach: it may have changed them.
    pub(crate) fn unsent(&self) -> Vec<Sqe> {
        let (mut index, mut unsent) = (self.bell.last, Vec::new());
        while index != self.tail {
            let entry = self.entries.entry(index);
            unsent.push(Sqe::from_dwords(std::array::from_fn(|dword| {
                let qword = u64::from_le(entry[dword / 2].load(Ordering::Relaxed));
                (qword >> (dword % 2 * 32)) as u32
            })));
            index = if index + 1 == self.entries.count() { 0 } else { index + 1 };
        }
        unsent
    }

    /// Where the next entry goes.
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    /// Takes back what was pushed since the last ring.
    pub(crate) fn rewind(&mut self) {
        self.tail = self.bell.last;
    }

    /// Starts anew with a queue that was just created.
    pub(crate) fn restart(&mut self) {
        (self.tail, self.head, self.bell.last) = (0, 0, 0);
    }

    /// Entries in the ring.
    pub(crate) fn depth(&self) -> u32 {
        self.entries.count()
    }

    /// Tells the device about everything pushed since the last ring; nothing if there is nothing.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> bool {
        let news = self.tail != self.bell.last;
        if news {
            self.bell.ring(self.tail);
        }
        news
    }

    /// Takes the device's read position, or returns `false` if it cannot be one:
    /// outside the ring, backwards, or beyond what was pushed.
    #[inline(always)]
    pub(crate) fn observe_head(&mut self, sqhd: u16) -> bool {
        let sqhd = u32::from(sqhd);
        let plausible = (self.head <= sqhd && sqhd <= self.tail) || self.is_ahead(sqhd);
        if plausible {
            self.head = sqhd;
        }
        plausible
    }

    /// Whether `sqhd` lies from the last read position to the tail when that run wraps around.
    #[cold]
    fn is_ahead(&self, sqhd: u32) -> bool {
        self.tail < self.head
            && sqhd < self.entries.count()
            && (sqhd >= self.head || sqhd <= self.tail)
    }
}

/// The completion side.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: Ring<CQE_WORDS>,
    head: u32,
    /// The phase bit of this lap, in place in an entry's second word.
    phase: u64,
    bell: Bell,
}

impl CompletionRing {
    /// A ring of `depth` entries over zeroed memory: the first lap's phase is 1.
    pub(crate) fn new(entries: Atomics, depth: u32, bell: Bell) -> CompletionRing {
        assert!((2..=65536).contains(&depth), "a queue has 2 to 65536 entries");
        let entries = Ring::new(entries, depth);
        CompletionRing { entries, head: 0, phase: PHASE, bell }
    }

    /// From now on publishes the head in a shadow doorbell, too.
    pub(crate) fn set_shadow(&mut self, shadow: Shadow) {
        self.bell.set_shadow(shadow);
    }

    /// Whether the device has written the entry at the head.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.is_new(self.entries.entry(self.head)[1].load(Ordering::Relaxed))
    }

    /// Whether an entry's second word has this lap's phase.
    #[inline(always)]
    fn is_new(&self, high: u64) -> bool {
        (u64::from_le(high) ^ self.phase) & PHASE == 0
    }

    /// The entry at the head if the device has written it, and moves on.
    ///
    /// The word with the phase is loaded first and with Acquire: the other word
    /// must not be read before the phase says that it is there.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Cqe> {
        let (head, depth) = (self.head, self.entries.count());
        let entry = self.entries.entry(head);
        let high = u64::from_le(entry[1].load(Ordering::Acquire));
        if !self.is_new(high.to_le()) {
            return None;
        }
        let low = u64::from_le(entry[0].load(Ordering::Relaxed));
        // From the local copy: the Acquire load makes the compiler forget what it read before.
        self.head = head + 1;
        if self.head == depth {
            self.head = 0;
            self.phase ^= PHASE;
        }
        Some(Cqe::from_dwords([low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]))
    }

    /// Starts anew with a queue that was just created over cleared memory.
    pub(crate) fn restart(&mut self) {
        (self.head, self.phase, self.bell.last) = (0, PHASE, 0);
    }

    /// Gives the entries read so far back to the device.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        self.bell.ring(self.head);
    }

    /// Entries in the ring.
    pub(crate) fn depth(&self) -> u32 {
        self.entries.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Backing, HostMemory, Window};
    use std::sync::Arc;

    fn ring(depth: u32) -> SubmissionRing {
        let memory = HostMemory::allocate(65536, Backing::Any, &|_, _| ()).expect("memory");
        let page = memmap2::MmapOptions::new().len(4096).map_anon().expect("memory");
        let register = Window::new(Arc::new(page.into())).register32(0).expect("inside");
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
                (ring.head, ring.tail) = (head, tail);
                let pushed = (tail + 8 - head) % 8;
                let naive = (0..=pushed).any(|ahead| (head + ahead) % 8 == u32::from(sqhd));
                assert_eq!(ring.observe_head(sqhd), naive, "{sqhd} with {head}..{tail}");
                assert_eq!(ring.head, if naive { u32::from(sqhd) } else { head });
            }
        }
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
