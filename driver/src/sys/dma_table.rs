//! Maps device addresses to memory of this process: the IOMMU of a software controller.
//!
//! An access must lie within one mapping. Owners leave gaps between mappings, so that an overrun faults as on hardware.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
        if before.is_some_and(|(_, mapping)| mapping.iova + mapping.len > iova) {
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

    /// Total bytes of all mappings.
    pub fn mapped_bytes(&self) -> u64 {
        self.mappings.values().map(|mapping| mapping.len).sum()
    }

    /// Number of accesses outside all mappings and of writes to read-only ones.
    pub fn faults(&self) -> u64 {
        self.faults.get()
    }

    /// Returns where `len` bytes at `iova` are, or `None` and counts a fault.
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
        let mapping = self.mappings.range(..=iova).next_back().map(|(_, mapping)| *mapping);
        let found = mapping.and_then(|mapping| mapping.locate(iova, len, access));
        match found {
            Some(_) => slot.set(mapping),
            None => self.faults.set(self.faults.get() + 1),
        }
        found
    }

    fn locate_aligned(&self, iova: u64, len: u64, access: Access) -> Option<NonNull<u8>> {
        self.locate(iova, len, access).filter(|at| (at.addr().get() as u64).is_multiple_of(len))
    }

    /// Fills `into` from `iova`.
    #[inline]
    pub fn read(&self, iova: u64, into: &mut [u8]) -> Option<()> {
        let from = self.locate(iova, into.len() as u64, Access::Read)?;
        // SAFETY: `locate` checked the range, `insert`'s caller keeps it mapped. Bytes the host
        // changes meanwhile arrive in any mixture, as over PCIe; they are copied, not interpreted.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// Writes all of `from` at `iova`.
    #[inline]
    pub fn write(&self, iova: u64, from: &[u8]) -> Option<()> {
        let to = self.locate(iova, from.len() as u64, Access::Write)?;
        // SAFETY: as in `read`; the memory was given to the device to write.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Some(())
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
