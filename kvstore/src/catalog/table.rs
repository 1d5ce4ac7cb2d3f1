//! Long arrays of zeroes: what a shard's tables are made of.
//!
//! An array is as long as it will ever be from the start, and gets memory from the system as it is first written, by
//! pages: room behind what is used costs none. Large pages are asked for, where the system gives them to
//! those who ask (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise` or `always`): a table is read here and
//! there, and of small pages there are more than a processor knows the places of.
//!
//! It does not grow, and does not give memory back before it goes.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An array of items that are zeroes at first.
#[derive(Debug)]
pub(crate) struct Table<T> {
    map: MmapMut,
    items: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Table<T> {
    /// An array of `len` items, at least one. The process ends where even the addresses for it cannot be had, as it does
    /// for a vector.
    pub(crate) fn new(len: usize) -> Table<T> {
        assert!(len > 0, "a table has an item or more");
        let layout = Layout::array::<T>(len).expect("a table is smaller than all memory");
        let map = MmapOptions::new().len(layout.size()).map_anon();
        let map = map.unwrap_or_else(|_| handle_alloc_error(layout));
        // Where there are no large pages, small ones do.
        let _ = map.advise(Advice::HugePage);
        Table { map, items: PhantomData }
    }

    /// Bytes of memory, once all of it is used.
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
