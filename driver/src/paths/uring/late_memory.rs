//! Tracks memory registered with a ring after its creation: which regions are pinned, in which table slots.
//!
//! A queue registers the memory known at its creation. A region allocated later is registered on request, or after
//! some uses: pinning it costs about as much as one unpinned transfer. A long region has several pieces, each in a
//! slot. This does not keep the region alive. Once it is freed, nothing in flight uses it, since requests own their
//! buffers; its slots are then emptied and reused.
//!
//! Invariants: an address is looked up together with its region, so that new memory at an old region's
//! address is never mistaken for it; pieces are sorted by address, and live ones do not overlap. It does not
//! call the kernel (`uring::ring` does).

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::memory::Region;

/// Regions whose uses are counted at a time.
const CANDIDATES_MAX: usize = 1024;
/// Transfers of a region before it is pinned.
const USES: u32 = 4;
/// Largest region to register unasked: pinning it delays a request.
const REGION_BYTES_MAX: usize = 1 << 30;

#[derive(Debug)]
struct LatePiece {
    start: usize,
    end: usize,
    slot: u16,
    region: Weak<Region>,
}

/// A region without a slot, and its number of uses.
#[derive(Debug)]
struct Candidate {
    region: Weak<Region>,
    uses: u32,
}

/// The regions registered later, and candidates for registration.
#[derive(Debug)]
pub(super) struct LateMemory {
    pieces: Vec<LatePiece>,
    free: Vec<u16>,
    /// Sorted by the address of the region's `Arc`.
    candidates: Vec<Candidate>,
    /// The next piece to check for a freed region.
    next: usize,
}

impl LateMemory {
    /// Starts empty, with free slots.
    pub(super) fn new(slots: Range<u16>) -> LateMemory {
        // Allocates nothing later, on the I/O path.
        let pieces = Vec::with_capacity(slots.len());
        let (free, candidates) = (slots.rev().collect(), Vec::with_capacity(CANDIDATES_MAX));
        LateMemory { pieces, free, candidates, next: 0 }
    }

    /// Returns the slot of `region` that contains `len` bytes at `at`, if there is one.
    #[inline]
    pub(super) fn find(&self, at: usize, len: usize, region: &Arc<Region>) -> Option<u16> {
        let behind = self.pieces.partition_point(|piece| piece.start <= at);
        let piece = &self.pieces[behind.checked_sub(1)?];
        let is_it = std::ptr::eq(Weak::as_ptr(&piece.region), Arc::as_ptr(region));
        (is_it && at + len <= piece.end).then_some(piece.slot)
    }

    /// Counts a transfer of a region without a slot; returns whether to register it now.
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
            Err(at) if self.candidates.len() < CANDIDATES_MAX => {
                let region = Arc::downgrade(region);
                self.candidates.insert(at, Candidate { region, uses: 1 });
                false
            }
            Err(_) => {
                // Restart the count of regions that were refused or found no slot, too.
                self.candidates.retain(|one| one.region.strong_count() > 0 && one.uses < USES);
                false
            }
        }
    }

    pub(super) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Takes back an emptied or unused slot.
    pub(super) fn give_slot(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// Returns whether a piece of `region` has a slot.
    pub(super) fn has(&self, region: &Arc<Region>) -> bool {
        self.pieces.iter().any(|piece| std::ptr::eq(piece.region.as_ptr(), Arc::as_ptr(region)))
    }

    /// Returns whether no piece has any of these addresses. Memory of the caller's can be in two regions.
    pub(super) fn is_clear(&self, Range { start, end }: Range<usize>) -> bool {
        let at = self.pieces.partition_point(|piece| piece.start < start);
        let before = at.checked_sub(1).map(|before| &self.pieces[before]);
        before.is_none_or(|before| before.end <= start)
            && self.pieces.get(at).is_none_or(|next| end <= next.start)
    }

    /// Records the piece of a region at these addresses, which are [clear](Self::is_clear), in a slot.
    pub(super) fn add(
        &mut self,
        region: &Arc<Region>,
        Range { start, end }: Range<usize>,
        slot: u16,
    ) {
        assert!(
            self.is_clear(start..end),
            "pieces lie beside each other: they are found by address"
        );
        let at = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(at, LatePiece { start, end, slot, region: Arc::downgrade(region) });
        self.candidates.retain(|one| !std::ptr::eq(one.region.as_ptr(), Arc::as_ptr(region)));
    }

    /// Returns whether a region is freed whose slot is to be emptied; checks one region per call.
    #[inline]
    pub(super) fn has_gone(&mut self) -> bool {
        self.next += 1;
        if self.next >= self.pieces.len() {
            self.next = 0;
        }
        self.pieces.get(self.next).is_some_and(|piece| piece.region.strong_count() == 0)
    }

    /// Removes freed regions and returns their slots, which are to be emptied.
    pub(super) fn remove_gone(&mut self) -> Vec<u16> {
        self.remove(|region| region.strong_count() == 0)
    }

    /// Removes the pieces of `region` and returns their slots, which are to be emptied.
    pub(super) fn remove_region(&mut self, region: &Arc<Region>) -> Vec<u16> {
        self.remove(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(region)))
    }

    fn remove(&mut self, which: impl Fn(&Weak<Region>) -> bool) -> Vec<u16> {
        let gone = |piece: &mut LatePiece| which(&piece.region);
        self.pieces.extract_if(.., gone).map(|piece| piece.slot).collect()
    }

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
        let mut late = LateMemory::new(7..99);
        let (one, other) = (allocate_for_host(8192), allocate_for_host(8192));
        let (one, other) = (one.expect("memory").region(), other.expect("memory").region());
        let worth: Vec<bool> = (0..6).map(|_| late.is_worth_it(&one)).collect();
        assert_eq!(worth, [false, false, false, true, false, false]);
        assert!(!late.is_worth_it(&other), "each is counted for itself");
    }

    #[test]
    fn a_part_of_a_region_is_found_and_nothing_beyond_it() {
        let mut late = LateMemory::new(7..99);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let ((at, len), region) = (place(&buffer), buffer.region());
        assert_eq!(late.find(at, len, &region), None);
        let slot = late.take_slot().expect("a slot");
        late.add(&region, at..at + region.bytes(), slot);
        assert_eq!((slot, late.find(at, len, &region)), (7, Some(7)));
        assert_eq!(late.find(at + 4096, 4096, &region), Some(7));
        assert_eq!(late.find(at, region.bytes() + 1, &region), None, "a byte past the end");
        let other = allocate_for_host(4096).expect("memory");
        assert_eq!(late.find(at, len, &other.region()), None, "another region's memory");
    }

    #[test]
    fn pieces_of_a_region_are_found_each_for_itself_and_removed_together() {
        let mut late = LateMemory::new(0..99);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let ((at, _), region) = (place(&buffer), buffer.region());
        let (middle, end) = (at + (16 << 10), at + (64 << 10));
        for piece in [middle..end, at..middle] {
            let slot = late.take_slot().expect("a slot");
            late.add(&region, piece, slot);
        }
        assert!(late.has(&region));
        assert_eq!(late.find(at, 16 << 10, &region), Some(1));
        assert_eq!(late.find(middle, 48 << 10, &region), Some(0));
        assert_eq!(late.find(middle - 1, 2, &region), None, "two pieces");
        assert_eq!(late.remove_region(&region), [1, 0]);
        assert!(!late.has(&region) && late.is_empty());
    }

    #[test]
    fn addresses_are_clear_only_beside_all_pieces() {
        let mut late = LateMemory::new(0..99);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let ((at, len), slot) = (place(&buffer), late.take_slot().expect("a slot"));
        late.add(&buffer.region(), at..at + len, slot);
        for (start, end) in
            [(at, at + len), (at + 1, at + 2), (at - 1, at + 1), (at - 1, at + len + 1)]
        {
            assert!(!late.is_clear(start..end));
        }
        assert!(!late.is_clear(at + len - 1..at + len + 9));
        assert!(late.is_clear(at - 9..at) && late.is_clear(at + len..at + len + 9));
    }

    #[test]
    fn a_region_that_is_gone_is_not_found_by_its_address_and_its_slot_is_emptied() {
        let mut late = LateMemory::new(0..99);
        let buffer = allocate_for_host(64 << 10).expect("memory");
        let (at, len) = place(&buffer);
        let slot = late.take_slot().expect("a slot");
        late.add(&buffer.region(), at..at + len, slot);
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
        let mut late = LateMemory::new(0..99);
        let mut alive = Vec::new();
        for index in 0..3 * CANDIDATES_MAX {
            let buffer = allocate_for_host(4096).expect("memory");
            late.is_worth_it(&buffer.region());
            if index % 64 == 0 {
                alive.push(buffer);
            }
        }
        assert!(late.candidates.len() <= CANDIDATES_MAX);
        let last = alive.pop().expect("one").region();
        assert!((0..=USES).any(|_| late.is_worth_it(&last)), "it is still counted");
    }
}
