//! Memory that a ring learns of while it works: which regions its kernel has pinned, and in which slots of its table.
//!
//! Memory that was there when a queue was made is registered with it. What is allocated later is registered when a
//! queue has used it some times: pinning it costs about as much as one transfer does without. A region is not kept
//! alive by this. Once it is gone, nothing in flight uses it, since requests own their buffers; its slot is then
//! emptied and used again.
//!
//! Invariants: an address is looked up together with the region that it is in, so that memory which came to lie where
//! another region was is never taken for that; pieces are in order of their addresses, and none that is alive overlaps
//! another. What it does not do: call the kernel (`kernel_ring`).

use std::sync::{Arc, Weak};

use crate::memory::Region;

/// Slots of a ring for memory that comes later.
pub(super) const LATE_SLOTS: u32 = 1024;
const SLOTS: usize = LATE_SLOTS as usize;
/// Transfers of a region before it is worth being pinned.
const USES: u32 = 4;
/// The largest region that is registered: the most that the kernel takes as one piece.
const REGION_BYTES_MAX: usize = 1 << 30;

/// A region in a slot.
#[derive(Debug)]
struct Piece {
    start: usize,
    end: usize,
    slot: u16,
    region: Weak<Region>,
}

/// A region that is in none, and how often it was used.
#[derive(Debug)]
struct Candidate {
    region: Weak<Region>,
    uses: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct LateMemory {
    pieces: Vec<Piece>,
    free: Vec<u16>,
    /// In order of the regions' own addresses.
    candidates: Vec<Candidate>,
    /// The piece that is looked at next, whether its region is gone.
    next: usize,
}

impl LateMemory {
    /// Nothing, and free slots from `first` on.
    pub(super) fn new(first: u16) -> LateMemory {
        let free = (first..first + LATE_SLOTS as u16).rev().collect();
        // Nothing is allocated on the way later.
        let (pieces, candidates) = (Vec::with_capacity(SLOTS), Vec::with_capacity(SLOTS));
        LateMemory { pieces, free, candidates, next: 0 }
    }

    /// The slot of `region`, if it has one and all of `len` bytes at `at` lie in it.
    #[inline]
    pub(super) fn find(&self, at: usize, len: usize, region: &Arc<Region>) -> Option<u16> {
        let behind = self.pieces.partition_point(|piece| piece.start <= at);
        let piece = &self.pieces[behind.checked_sub(1)?];
        let is_it = std::ptr::eq(Weak::as_ptr(&piece.region), Arc::as_ptr(region));
        (is_it && at + len <= piece.end).then_some(piece.slot)
    }

    /// Counts a transfer of a region that has no slot; whether it is now to have one.
    pub(super) fn is_worth_it(&mut self, region: &Arc<Region>) -> bool {
        if region.bytes() > REGION_BYTES_MAX {
            return false;
        }
        let key = |candidate: &Candidate| Weak::as_ptr(&candidate.region).addr();
        match self.candidates.binary_search_by_key(&Arc::as_ptr(region).addr(), key) {
            Ok(at) => {
                let candidate = &mut self.candidates[at];
                candidate.uses = candidate.uses.saturating_add(1);
                candidate.uses == USES
            }
            Err(at) if self.candidates.len() < SLOTS => {
                let region = Arc::downgrade(region);
                self.candidates.insert(at, Candidate { region, uses: 1 });
                false
            }
            Err(_) => {
                // Those that were refused, or for which there was no slot, may have their turn again, too.
                self.candidates.retain(|one| one.region.strong_count() > 0 && one.uses < USES);
                false
            }
        }
    }

    /// A slot that is empty.
    pub(super) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// A slot is empty: it was never filled, or is not any more.
    pub(super) fn give_slot(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// The kernel has a region in a slot. Regions that are gone were removed before.
    pub(super) fn add(&mut self, region: &Arc<Region>, slot: u16) {
        let start = region.start().as_ptr().addr();
        let end = start + region.bytes();
        let at = self.pieces.partition_point(|piece| piece.start < start);
        let is_clear = self.pieces.get(at).is_none_or(|next| end <= next.start);
        assert!(is_clear, "regions that are alive lie beside each other");
        self.pieces.insert(at, Piece { start, end, slot, region: Arc::downgrade(region) });
        self.candidates.retain(|one| !std::ptr::eq(one.region.as_ptr(), Arc::as_ptr(region)));
    }

    /// Whether a region is gone whose slot is to be emptied; looks at one at a time, each in its turn.
    #[inline]
    pub(super) fn has_gone(&mut self) -> bool {
        self.next += 1;
        if self.next >= self.pieces.len() {
            self.next = 0;
        }
        self.pieces.get(self.next).is_some_and(|piece| piece.region.strong_count() == 0)
    }

    /// Removes the regions that are gone, and gives their slots, which are to be emptied.
    pub(super) fn remove_gone(&mut self) -> Vec<u16> {
        let gone = |piece: &mut Piece| piece.region.strong_count() == 0;
        self.pieces.extract_if(.., gone).map(|piece| piece.slot).collect()
    }

    /// Whether the kernel has any.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Buffer, allocate_for_host};

    fn place(buffer: &Buffer) -> (usize, usize) {
        (buffer.as_ptr().addr(), buffer.len())
    }

    #[test]
    fn a_region_is_worth_a_slot_once_after_some_uses() {
        let mut late = LateMemory::new(7);
        let (one, other) = (allocate_for_host(8192), allocate_for_host(8192));
        let (one, other) = (one.expect("memory").region(), other.expect("memory").region());
        let worth: Vec<bool> = (0..6).map(|_| late.is_worth_it(&one)).collect();
        assert_eq!(worth, [false, false, false, true, false, false]);
        assert!(!late.is_worth_it(&other), "each is counted for itself");
    }

    #[test]
    fn a_part_of_a_region_is_found_and_nothing_beyond_it() {
        let mut late = LateMemory::new(7);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let ((at, len), region) = (place(&buffer), buffer.region());
        assert_eq!(late.find(at, len, &region), None);
        let slot = late.take_slot().expect("a slot");
        late.add(&region, slot);
        assert_eq!((slot, late.find(at, len, &region)), (7, Some(7)));
        assert_eq!(late.find(at + 4096, 4096, &region), Some(7));
        assert_eq!(late.find(at, region.bytes() + 1, &region), None, "a byte past the end");
        let other = allocate_for_host(4096).expect("memory");
        assert_eq!(late.find(at, len, &other.region()), None, "another region's memory");
    }

    #[test]
    fn a_region_that_is_gone_is_not_found_by_its_address_and_its_slot_is_emptied() {
        let mut late = LateMemory::new(0);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let (at, len) = place(&buffer);
        let slot = late.take_slot().expect("a slot");
        late.add(&buffer.region(), slot);
        assert!(!late.has_gone() && late.remove_gone().is_empty());
        drop(buffer);
        let stranger = allocate_for_host(64 << 10).expect("memory");
        assert_eq!(late.find(at, len, &stranger.region()), None);
        assert!(late.has_gone());
        assert_eq!(late.remove_gone(), [slot]);
        assert!(late.is_empty());
    }

    #[test]
    fn regions_that_were_used_once_make_way_when_they_are_gone() {
        let mut late = LateMemory::new(0);
        let mut alive = Vec::new();
        for index in 0..3 * LATE_SLOTS {
            let buffer = allocate_for_host(4096).expect("memory");
            late.is_worth_it(&buffer.region());
            if index % 64 == 0 {
                alive.push(buffer);
            }
        }
        assert!(late.candidates.len() <= SLOTS);
        let last = alive.pop().expect("one").region();
        assert!((0..=USES).any(|_| late.is_worth_it(&last)), "it is still counted");
    }
}
