//! Lists that do not fit in an entry: long keys, and the checksums of objects of several pieces.
//!
//! Each list has a number that is stable until it is removed; numbers are reused. An empty arena costs nothing.

/// Assumed overhead of the allocator per list.
const OVERHEAD_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct Arena<T> {
    lists: Vec<Box<[T]>>,
    free: Vec<u32>,
    heap_bytes: usize,
}

impl<T: Copy> Arena<T> {
    pub(super) const fn new() -> Arena<T> {
        Arena { lists: Vec::new(), free: Vec::new(), heap_bytes: 0 }
    }

    /// Stores a list, which must not be empty.
    pub(super) fn insert(&mut self, list: &[T]) -> u32 {
        assert!(!list.is_empty(), "an empty list is a free one");
        self.heap_bytes += size_of_val(list) + OVERHEAD_BYTES;
        if let Some(number) = self.free.pop() {
            self.lists[number as usize] = list.into();
            return number;
        }
        let number = u32::try_from(self.lists.len()).expect("fewer lists than objects");
        self.lists.push(list.into());
        number
    }

    pub(super) fn get(&self, number: u32) -> &[T] {
        &self.lists[number as usize]
    }

    /// Frees a list.
    ///
    /// # Panics
    /// If it is free.
    pub(super) fn remove(&mut self, number: u32) {
        let list = std::mem::take(&mut self.lists[number as usize]);
        assert!(!list.is_empty(), "list {number} is removed twice");
        self.heap_bytes -= size_of_val(&*list) + OVERHEAD_BYTES;
        self.free.push(number);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.heap_bytes
            + self.lists.capacity() * size_of::<Box<[T]>>()
            + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_list_leaves_its_number_and_its_bytes() {
        let mut arena = Arena::new();
        let (first, second) = (arena.insert(&[1_u32, 2]), arena.insert(&[3]));
        let full_bytes = arena.heap_bytes;
        arena.remove(first);
        assert_eq!(arena.heap_bytes, full_bytes - 8 - OVERHEAD_BYTES);
        assert_eq!(arena.insert(&[4, 5]), first);
        assert_eq!((arena.get(first), arena.get(second)), (&[4, 5][..], &[3][..]));
        assert_eq!(arena.heap_bytes, full_bytes);
    }
}
