//! Maps device addresses to memory of this process: the IOMMU of a software controller.
//!
//! An access may go on from a mapping into its neighbour, as behind an IOMMU: guests hand over their memory in pieces of
//! any size. Owners that want an overrun to fault leave gaps between mappings.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{SharedBytes, SharedBytesMut};

#[derive(Clone, Copy)]
struct Mapping {
    iova: u64,
    len: u64,
    at: NonNull<u8>,
    is_writable: bool,
}

/// Direction of an access by the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Cached lookups, one per 64 KiB of address.
const CACHED: usize = 16;
const CACHE_SHIFT: u32 = 16;

/// Memory of this process by device address.
pub struct DmaTable {
    mappings: BTreeMap<u64, Mapping>,
    cache: [Cell<Option<Mapping>>; CACHED],
    faults: Cell<u64>,
}

// SAFETY: the pointers are to memory that the mapping's owner keeps valid for all threads.
unsafe impl Send for DmaTable {}

impl Default for DmaTable {
    fn default() -> DmaTable {
        DmaTable {
            mappings: BTreeMap::new(),
            cache: [const { Cell::new(None) }; CACHED],
            faults: Cell::new(0),
        }
    }
}

impl DmaTable {
    /// Maps `len` bytes at `at` to `iova`, writable if `is_writable`; returns false if that overlaps a mapping.
    ///
    /// # Safety
    /// The memory stays mapped and readable, and writable if it is to be, until [`DmaTable::remove`], and no plain Rust
    /// reference to it is used while the device may access it.
    pub unsafe fn insert(
        &mut self,
        iova: u64,
        at: NonNull<u8>,
        len: u64,
        is_writable: bool,
    ) -> bool {
        let Some(end) = iova.checked_add(len).filter(|end| *end > iova) else { return false };
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(_, mapping)| mapping.end() > iova) {
            return false;
        }
        self.mappings.insert(iova, Mapping { iova, len, at, is_writable });
        true
    }

    /// Removes the mapping of exactly `len` bytes at `iova`; returns false if there is none.
    pub fn remove(&mut self, iova: u64, len: u64) -> bool {
        if self.mappings.get(&iova).is_none_or(|mapping| mapping.len != len) {
            return false;
        }
        for slot in &self.cache {
            slot.set(None);
        }
        self.mappings.remove(&iova).is_some()
    }

    /// Returns the total bytes of all mappings.
    pub fn mapped_bytes(&self) -> u64 {
        self.mappings.values().map(|mapping| mapping.len).sum()
    }

    /// Returns the number of accesses outside all mappings and of writes to read-only ones.
    pub fn faults(&self) -> u64 {
        self.faults.get()
    }

    /// Returns where `len` bytes at `iova` are if they are in one mapping.
    #[inline]
    fn locate(&self, iova: u64, len: u64, access: Access) -> Option<NonNull<u8>> {
        let slot = &self.cache[(iova >> CACHE_SHIFT) as usize % CACHED];
        let hit = slot.get().and_then(|mapping| mapping.locate(iova, len, access));
        hit.or_else(|| self.look_up(slot, iova, len, access))
    }

    #[cold]
    fn look_up(
        &self,
        slot: &Cell<Option<Mapping>>,
        iova: u64,
        len: u64,
        access: Access,
    ) -> Option<NonNull<u8>> {
        let mapping = *self.mappings.range(..=iova).next_back()?.1;
        let found = mapping.locate(iova, len, access)?;
        slot.set(Some(mapping));
        Some(found)
    }

    /// Returns where an aligned word is, which is in one mapping as these are whole pages; `None` and counts a fault if it
    /// is in none.
    fn locate_aligned(&self, iova: u64, len: u64, access: Access) -> Option<NonNull<u8>> {
        let found = self.locate(iova, len, access);
        if found.is_none() {
            self.count_fault();
        }
        found.filter(|at| (at.addr().get() as u64).is_multiple_of(len))
    }

    fn count_fault(&self) {
        self.faults.set(self.faults.get() + 1);
    }

    /// Calls `copy` with each piece of `len` bytes at `iova`, which are in a mapping or in neighbours: its place, its offset
    /// and its length. `None` and counts a fault if a byte is in none, before any is copied.
    #[inline]
    fn pieces(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        mut copy: impl FnMut(NonNull<u8>, usize, usize),
    ) -> Option<()> {
        match self.locate(iova, len as u64, access) {
            Some(at) => copy(at, 0, len),
            None => return self.across(iova, len as u64, access, copy),
        }
        Some(())
    }

    /// [`DmaTable::pieces`] of several mappings.
    #[cold]
    fn across(
        &self,
        iova: u64,
        len: u64,
        access: Access,
        mut copy: impl FnMut(NonNull<u8>, usize, usize),
    ) -> Option<()> {
        let each = |copy: &mut dyn FnMut(NonNull<u8>, usize, usize)| {
            let end = iova.checked_add(len).filter(|end| *end > iova)?;
            let mut next = iova;
            while next < end {
                let mapping = self.mappings.range(..=next).next_back()?.1;
                let piece = mapping.end().min(end).checked_sub(next).filter(|piece| *piece > 0)?;
                copy(mapping.locate(next, piece, access)?, (next - iova) as usize, piece as usize);
                next += piece;
            }
            Some(())
        };
        let whole = each(&mut |_, _, _| ()).and_then(|()| each(&mut copy));
        if whole.is_none() {
            self.count_fault();
        }
        whole
    }

    /// Fills `into` from `iova`.
    #[inline]
    pub fn read(&self, iova: u64, into: &mut [u8]) -> Option<()> {
        let len = into.len();
        let copy = |from: NonNull<u8>, offset: usize, len: usize| {
            // SAFETY: `locate` or `across` checked the range, `insert`'s caller keeps it mapped and uses no reference to
            // it. Bytes the host changes meanwhile arrive in any mixture, as over PCIe.
            unsafe { SharedBytes::new(from, len) }.read(0, &mut into[offset..offset + len]);
        };
        self.pieces(iova, len, Access::Read, copy)
    }

    /// Fills `into` from the aligned entry at `iova`, a word at a time: shorter than a call of memcpy.
    #[inline]
    pub fn load512(&self, iova: u64, into: &mut [u8; 64]) -> Option<()> {
        let at = self.locate(iova, 64, Access::Read);
        let Some(at) = at.filter(|at| at.addr().get().is_multiple_of(8)) else {
            return self.read(iova, into);
        };
        for (index, bytes) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: mapped and aligned, both checked; the host writes ring memory atomically.
            let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast::<u64>().add(index)) };
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Some(())
    }

    /// Writes all of `from` at `iova`.
    #[inline]
    pub fn write(&self, iova: u64, from: &[u8]) -> Option<()> {
        let copy = |to: NonNull<u8>, offset: usize, len: usize| {
            // SAFETY: as in `read`; the memory was given to the device to write.
            unsafe { SharedBytesMut::new(to, len) }.write(0, &from[offset..offset + len]);
        };
        self.pieces(iova, from.len(), Access::Write, copy)
    }

    /// Reads a 32-bit word with acquire order.
    pub fn load32(&self, iova: u64) -> Option<u32> {
        let at = self.locate_aligned(iova, 4, Access::Read)?;
        // SAFETY: mapped and aligned, both checked; the host accesses such words atomically too.
        let word = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) };
        Some(u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes a 32-bit word with release order.
    pub fn store32(&self, iova: u64, value: u32) -> Option<()> {
        let at = self.locate_aligned(iova, 4, Access::Write)?;
        // SAFETY: as in `load32`.
        let word = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) };
        word.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// Writes 16 bytes, the second half with release order after the first.
    #[inline]
    pub fn store128(&self, iova: u64, bytes: &[u8; 16]) -> Option<()> {
        let at = self.locate_aligned(iova, 16, Access::Write)?;
        let value = u128::from_ne_bytes(*bytes);
        let (first, second) = if cfg!(target_endian = "little") {
            (value as u64, (value >> 64) as u64)
        } else {
            ((value >> 64) as u64, value as u64)
        };
        // SAFETY: mapped and aligned, both checked; the host reads ring memory atomically.
        let words = unsafe {
            [
                AtomicU64::from_ptr(at.as_ptr().cast()),
                AtomicU64::from_ptr(at.as_ptr().add(8).cast()),
            ]
        };
        words[0].store(first, Ordering::Relaxed);
        words[1].store(second, Ordering::Release);
        Some(())
    }
}

impl Mapping {
    fn end(&self) -> u64 {
        self.iova + self.len
    }

    #[inline]
    fn locate(&self, iova: u64, len: u64, access: Access) -> Option<NonNull<u8>> {
        let offset = iova.checked_sub(self.iova)?;
        let is_allowed = self.is_writable || access == Access::Read;
        let fits = offset.checked_add(len)? <= self.len && is_allowed;
        // SAFETY: the offset is inside the mapping, checked above.
        fits.then(|| unsafe { self.at.add(offset as usize) })
    }
}

impl std::fmt::Debug for DmaTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaTable({} mappings, {} faults)", self.mappings.len(), self.faults.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(memory: &mut [u64]) -> DmaTable {
        let at = NonNull::new(memory.as_mut_ptr().cast()).expect("not null");
        let mut table = DmaTable::default();
        // SAFETY: the slice outlives the table in each test and is not used meanwhile.
        unsafe {
            assert!(table.insert(0x1000, at, 64, true));
            assert!(!table.insert(0x103f, at, 64, true));
            assert!(!table.insert(0xfff, at, 2, true));
            assert!(!table.insert(u64::MAX, at, 2, true));
        }
        table
    }

    #[test]
    fn accesses_stay_inside_their_mapping() {
        let mut memory = [0; 8];
        let table = table(&mut memory);
        assert_eq!(table.write(0x1001, b"abc"), Some(()));
        let mut back = [0; 3];
        assert_eq!(table.read(0x1001, &mut back), Some(()));
        assert_eq!(&back, b"abc");
        assert_eq!(table.faults(), 0);
        for (iova, len) in [(0xfff, 1), (0x103f, 2), (0x1000, 65), (u64::MAX, 2), (0, 1)] {
            assert_eq!(table.read(iova, &mut vec![0; len]), None);
        }
        assert_eq!(table.faults(), 5);
    }

    #[test]
    fn words_are_aligned_and_little_endian() {
        let mut memory = [0; 8];
        let table = table(&mut memory);
        assert_eq!(table.store32(0x1004, 7), Some(()));
        assert_eq!((table.load32(0x1004), table.load32(0x1002)), (Some(7), None));
        let entry = std::array::from_fn(|index| index as u8);
        let mut whole = [0xee; 64];
        assert_eq!(table.load512(0x1000, &mut whole), Some(()));
        assert_eq!(whole, std::array::from_fn(|index| if index == 4 { 7 } else { 0 }));
        assert_eq!((table.load512(0x1008, &mut whole), table.faults()), (None, 1));
        let at = if memory.as_ptr().addr() % 16 == 0 { 0x1010 } else { 0x1018 };
        assert_eq!(table.store128(at, &entry), Some(()));
        let mut back = [0; 16];
        table.read(at, &mut back).expect("mapped");
        assert_eq!(back, entry);
    }

    #[test]
    fn what_may_only_be_read_cannot_be_written_even_after_it_was_read() {
        let mut memory = [7; 8];
        let at = NonNull::new(memory.as_mut_ptr().cast()).expect("not null");
        let mut table = DmaTable::default();
        // SAFETY: the array outlives the table and is not used meanwhile.
        assert!(unsafe { table.insert(0x1000, at, 64, false) });
        assert_eq!(table.load32(0x1000), Some(7));
        assert_eq!(table.write(0x1000, &[1]), None);
        assert_eq!((table.store32(0x1000, 1), table.store128(0x1000, &[1; 16])), (None, None));
        assert_eq!((table.load32(0x1000), table.faults()), (Some(7), 3));
    }

    /// A byte of device memory in the model: `None` where nothing is mapped.
    type Byte = Option<(u8, bool)>;

    /// An operation on a table: what it does, where, and on how many bytes.
    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Read,
        Write(u8),
        Remove,
    }

    /// Returns the result of an access by the rule that each byte must be mapped, and allowed.
    fn is_whole(bytes: &[Byte], at: usize, len: usize, writes: bool) -> bool {
        let range = bytes.get(at..at + len);
        let is_allowed = |byte: &Byte| byte.is_some_and(|(_, writable)| writable || !writes);
        len > 0 && range.is_some_and(|range| range.iter().all(is_allowed))
    }

    fn pieces() -> impl Strategy<Value = Vec<(usize, usize, bool)>> {
        let gap = prop_oneof![3 => Just(0usize), 1 => 1..5usize];
        prop::collection::vec((gap, 1..40usize, prop::bool::weighted(0.9)), 1..12)
    }

    fn operations() -> impl Strategy<Value = Vec<(Operation, usize, usize)>> {
        let what = prop_oneof![
            4 => Just(Operation::Read),
            4 => any::<u8>().prop_map(Operation::Write),
            1 => Just(Operation::Remove),
        ];
        prop::collection::vec((what, 0..300usize, 1..120usize), 1..60)
    }

    proptest! {
        /// Neighbours, gaps and holes against a list of bytes.
        #[test]
        fn accesses_span_neighbours_and_nothing_else(pieces in pieces(), operations in operations()) {
            const BASE: u64 = 0xfff0;
            // In another order than the device's, so that neighbours there are none here.
            let mut memory: Vec<Vec<u8>> = pieces.iter().map(|(_, len, _)| vec![0; *len]).collect();
            let (mut table, mut model, mut faults) = (DmaTable::default(), Vec::<Byte>::new(), 0);
            let mut mapped = Vec::new();
            for (memory, (gap, len, writable)) in memory.iter_mut().zip(&pieces) {
                model.extend(std::iter::repeat_n(None, *gap));
                let at = NonNull::new(memory.as_mut_ptr()).expect("not null");
                // SAFETY: the memory outlives the table and is not used meanwhile.
                let fits =
                    unsafe { table.insert(BASE + model.len() as u64, at, *len as u64, *writable) };
                prop_assert!(fits);
                mapped.push((model.len(), *len));
                model.extend(std::iter::repeat_n(Some((0, *writable)), *len));
            }
            for (operation, at, len) in operations {
                let iova = BASE + at as u64;
                let is_fault = match operation {
                    Operation::Read => {
                        let mut back = vec![0xaa; len];
                        let read = table.read(iova, &mut back);
                        let is_whole = is_whole(&model, at, len, false);
                        prop_assert_eq!(read.is_some(), is_whole);
                        let wanted = |index: usize| match is_whole {
                            true => model[at + index].expect("mapped").0,
                            false => 0xaa,
                        };
                        prop_assert!(back.iter().enumerate().all(|(index, byte)| *byte == wanted(index)));
                        !is_whole
                    }
                    Operation::Write(first) => {
                        let data: Vec<u8> = (0..len).map(|index| first.wrapping_add(index as u8)).collect();
                        let is_whole = is_whole(&model, at, len, true);
                        prop_assert_eq!(table.write(iova, &data).is_some(), is_whole);
                        if is_whole {
                            let bytes = model[at..].iter_mut().zip(&data);
                            bytes.for_each(|(byte, new)| *byte = Some((*new, true)));
                        }
                        !is_whole
                    }
                    Operation::Remove => {
                        let (at, len) = mapped[at % mapped.len()];
                        let was_there = model[at].is_some();
                        prop_assert_eq!(table.remove(BASE + at as u64, len as u64), was_there);
                        model[at..at + len].fill(None);
                        false
                    }
                };
                faults += u64::from(is_fault);
                prop_assert_eq!(table.faults(), faults);
            }
        }
    }

    #[test]
    fn what_was_removed_is_gone_even_from_the_cache() {
        let mut memory = [0; 8];
        let mut table = table(&mut memory);
        assert_eq!(table.load32(0x1000), Some(0));
        assert!(!table.remove(0x1000, 63));
        assert!(table.remove(0x1000, 64) && !table.remove(0x1000, 64));
        assert_eq!(table.load32(0x1000), None);
    }
}
