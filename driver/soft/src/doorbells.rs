//! The doorbell page (NVMe over PCIe Transport 1.0 section 3.1.2).
//!
//! Plain shared memory that the host stores to and the controller polls. A doorbell that nothing was written to holds
//! [`SILENT`], a value beyond every queue. Where each value matters once ([`Doorbells::news`]) polling only reads, so
//! that the host keeps the cache line. Where a ring also wakes a queue with a shadow ([`Doorbells::take`]) reading
//! resets it, so that each ring is seen even if it repeats the previous value.
//!
//! The layout is BAR0's: an unused page in place of the registers, then the doorbells. Exposing it as a BAR needs no
//! offset translation.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::memory::shared_pages;
use adit_shared::SharedPages;

/// Offset of the doorbells in BAR0.
pub const DOORBELLS_OFFSET: u32 = 0x1000;
pub(super) const SILENT: u32 = u32::MAX;
/// The dword of BAR0 that holds the first doorbell.
const FIRST: usize = DOORBELLS_OFFSET as usize / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Tail,
    Head,
}

#[derive(Debug)]
pub(super) struct Doorbells {
    pages: SharedPages,
    /// log2 of the distance between doorbells in dwords (CAP.DSTRD).
    stride: u8,
}

impl Doorbells {
    /// Creates the doorbells of queues `0..queue_count`.
    pub(super) fn new(queue_count: u16, stride: u8) -> Result<Doorbells> {
        let dwords = FIRST + ((usize::from(queue_count) * 2) << stride);
        let doorbells = Doorbells { pages: shared_pages(dwords * 4)?, stride };
        doorbells.silence();
        Ok(doorbells)
    }

    /// Switches to fresh memory, so that holders of the old mapping can ring nothing.
    pub(super) fn renew(&mut self) -> Result<()> {
        self.pages = shared_pages(self.pages.len())?;
        self.silence();
        Ok(())
    }

    pub(super) fn pages(&self) -> &SharedPages {
        &self.pages
    }

    /// Returns a doorbell's dword index, counted from the first; the shadow buffers have the same layout.
    #[inline]
    pub(super) fn index(&self, qid: u16, side: Side) -> usize {
        (usize::from(qid) * 2 + usize::from(side == Side::Head)) << self.stride
    }

    /// Returns the queue and side of the doorbell at `index`, if there is one.
    pub(super) fn at_index(&self, index: usize) -> Option<(u16, Side)> {
        let number = index >> self.stride;
        if number << self.stride != index || index >= self.pages.len() / 4 - FIRST {
            return None;
        }
        let side = if number.is_multiple_of(2) { Side::Tail } else { Side::Head };
        u16::try_from(number / 2).ok().map(|qid| (qid, side))
    }

    /// Returns the value last written if it differs from `seen`, which it becomes.
    #[inline]
    pub(super) fn news(&self, qid: u16, side: Side, seen: &mut u32) -> Option<u32> {
        let slot = self.pages.atomics().dwords().get(FIRST + self.index(qid, side))?;
        let value = u32::from_le(slot.load(Ordering::Acquire));
        if value == *seen {
            return None;
        }
        *seen = value;
        (value != SILENT).then_some(value)
    }

    /// Takes the value last written, if the doorbell was rung since the last call.
    #[inline]
    pub(super) fn take(&self, qid: u16, side: Side) -> Option<u32> {
        let slot = self.pages.atomics().dwords().get(FIRST + self.index(qid, side))?;
        if slot.load(Ordering::Relaxed) == SILENT {
            return None;
        }
        let value = u32::from_le(slot.swap(SILENT, Ordering::AcqRel));
        (value != SILENT).then_some(value)
    }

    /// Rings a doorbell for a host that cannot map the page.
    pub(super) fn ring(&self, index: usize, value: u32) {
        if let Some(slot) = self.pages.atomics().dwords().get(FIRST + index) {
            slot.store(value.to_le(), Ordering::Release);
        }
    }

    /// Forgets the pending ring of one doorbell.
    pub(super) fn silence_one(&self, qid: u16, side: Side) {
        self.ring(self.index(qid, side), SILENT);
    }

    pub(super) fn silence(&self) {
        for slot in &self.pages.atomics().dwords()[FIRST..] {
            slot.store(SILENT, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_seen_once_even_if_it_repeats_the_value() {
        let doorbells = Doorbells::new(3, 1).expect("memory");
        assert_eq!(doorbells.take(2, Side::Tail), None);
        for _ in 0..2 {
            doorbells.ring(doorbells.index(2, Side::Tail), 5);
            assert_eq!(doorbells.take(2, Side::Tail), Some(5));
            assert_eq!(doorbells.take(2, Side::Tail), None);
        }
        assert_eq!(doorbells.take(999, Side::Head), None);
    }

    #[test]
    fn each_value_is_news_once_and_stays_where_the_host_wrote_it() {
        let doorbells = Doorbells::new(3, 1).expect("memory");
        let (index, mut seen) = (doorbells.index(2, Side::Head), SILENT);
        assert_eq!(doorbells.news(2, Side::Head, &mut seen), None);
        for value in [5, 0, 5] {
            doorbells.ring(index, value);
            assert_eq!(doorbells.news(2, Side::Head, &mut seen), Some(value));
            assert_eq!(doorbells.news(2, Side::Head, &mut seen), None);
        }
        doorbells.silence_one(2, Side::Head);
        assert_eq!((doorbells.news(2, Side::Head, &mut seen), seen), (None, SILENT));
        assert_eq!(doorbells.news(999, Side::Head, &mut seen), None);
    }

    #[test]
    fn memory_is_laid_out_as_bar0_and_can_be_renewed() {
        let mut doorbells = Doorbells::new(2, 0).expect("memory");
        let old = doorbells.pages().atomics().clone();
        let ring = |value| old.dwords()[FIRST + 2].store(value, Ordering::Release);
        ring(7);
        assert_eq!(doorbells.take(1, Side::Tail), Some(7));
        doorbells.renew().expect("memory");
        ring(8);
        assert_eq!(doorbells.take(1, Side::Tail), None, "the old memory has no effect");
    }

    #[test]
    fn indexes_name_their_queue() {
        let doorbells = Doorbells::new(8, 2).expect("memory");
        let index = doorbells.index(3, Side::Head);
        assert_eq!(index, 7 * 4);
        assert_eq!(doorbells.at_index(index), Some((3, Side::Head)));
        assert_eq!(doorbells.at_index(index + 1), None);
        assert_eq!(doorbells.at_index(1 << 20), None);
    }
}
