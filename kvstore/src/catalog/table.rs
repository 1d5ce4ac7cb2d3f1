//! Long zeroed arrays, the basis of a shard's tables.
//!
//! An array has its final length from the start and gets memory from the system by pages as they are first written,
//! so unused room costs nothing. It asks for large pages, where the system grants them on request
//! (`/sys/kernel/mm/transparent_hugepage/enabled` is `madvise` or `always`): a table is read at random, and with
//! small pages it would exceed the TLB.
//!
//! It does not grow, and does not give memory back before it is dropped.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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

    /// Returns the bytes of memory of the whole array.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.map.len()
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        <[T]>::ref_from_bytes(&self.map).expect("pages hold whole items, aligned")
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(&mut self.map).expect("pages hold whole items, aligned")
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
}
