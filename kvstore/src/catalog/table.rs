//! Long zeroed arrays, the basis of a shard's tables.
//!
//! An array has its final length from the start and gets memory from the system by pages as they are first written,
//! so unused room costs nothing. Where items are expected, it can get memory before ([`Table::populate`]). It asks for
//! large pages, where the system grants them on request (`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise` or
//! `always`): a table is read at random, and with small pages it would exceed the TLB.
//!
//! It does not grow, and does not give memory back before it is dropped.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Why bytes of a map can be seen as items.
const WHOLE_ITEMS: &str = "pages hold whole items, aligned";

/// An array of items, initially zero.
#[derive(Debug)]
pub(crate) struct Table<T> {
    map: MmapMut,
    items: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Table<T> {
    /// Creates an array of `len` items, at least one. Aborts the process if even the address space is exhausted, as a
    /// vector does.
    pub(crate) fn new(len: usize) -> Table<T> {
        assert!(len > 0, "a table has an item or more");
        let layout = Layout::array::<T>(len).expect("a table is smaller than all memory");
        let map = MmapOptions::new().len(layout.size()).map_anon();
        let map = map.unwrap_or_else(|_| handle_alloc_error(layout));
        // Small pages will do if there are no large ones.
        let _ = map.advise(Advice::HugePage);
        Table { map, items: PhantomData }
    }

    /// Makes the system clear the memory of the first `len` items now and not as they are written. Before Linux 5.14
    /// this does nothing.
    pub(crate) fn populate(&self, len: usize) {
        assert!(len <= self.len(), "only items have memory");
        let _ = self.map.advise_range(Advice::PopulateWrite, 0, len * size_of::<T>());
    }

    /// Returns an item; `None` behind the end. For items of an odd length this is faster than indexing the slice, which
    /// divides by it.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let start = at as usize * size_of::<T>();
        let bytes = self.map.get(start..start + size_of::<T>())?;
        Some(T::ref_from_bytes(bytes).expect(WHOLE_ITEMS))
    }

    /// Returns an item for changes, as [`Table::get`] does.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let start = at as usize * size_of::<T>();
        let bytes = self.map.get_mut(start..start + size_of::<T>())?;
        Some(T::mut_from_bytes(bytes).expect(WHOLE_ITEMS))
    }

    /// Returns the bytes of memory of the whole array.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.map.len()
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        <[T]>::ref_from_bytes(&self.map).expect(WHOLE_ITEMS)
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(&mut self.map).expect(WHOLE_ITEMS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_zeroes_until_it_is_written() {
        for len in [1, 3, 1 << 20] {
            let mut table = Table::<[u32; 2]>::new(len);
            assert_eq!((table.len(), table.memory_bytes()), (len, 8 * len));
            assert!(table.iter().all(|item| *item == [0; 2]));
            table[len - 1] = [1, 2];
            assert_eq!(table.iter().filter(|item| **item == [1, 2]).count(), 1);
        }
    }

    #[test]
    fn an_item_is_the_same_by_itself_and_in_the_slice() {
        let mut table = Table::<[u8; 50]>::new(100);
        table.populate(60);
        for at in 0..100 {
            table.get_mut(at).expect("it is there").fill(at as u8 + 1);
        }
        assert!((0..100).all(|at| table.get(at) == Some(&table[at as usize])));
        assert!(table.iter().zip(1..).all(|(item, number)| *item == [number; 50]));
        assert!(table.get(100).is_none() && table.get_mut(u32::MAX).is_none());
    }
}
