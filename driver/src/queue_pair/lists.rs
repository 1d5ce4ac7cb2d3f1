//! The list and bounce pages of one queue.
//!
//! Commands that touch more than two pages outside a prebuilt list, or scattered data, borrow pages here and
//! return them on completion. All pages are mapped when the queue is created; borrowing only moves an index.

use std::sync::atomic::Ordering;

use crate::spec::Iova;
use crate::sys::Atomics;
use crate::transfer::{LIST_PAGES_PER_COMMAND, ListMemory, PAGE_BYTES};

/// A stack of mapped pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    memory: Atomics,
    iova: Iova,
    count: usize,
    free: Vec<u16>,
}

impl PagePool {
    pub(crate) fn new(memory: Atomics, iova: Iova) -> PagePool {
        let count = memory.len() / PAGE_BYTES as usize;
        assert!(memory.len().is_multiple_of(PAGE_BYTES as usize), "the pool is whole pages");
        assert!(iova.0.is_multiple_of(PAGE_BYTES), "the device addresses whole pages");
        let free = (0..u16::try_from(count).expect("a queue has few pages")).rev().collect();
        PagePool { memory, iova, count, free }
    }

    pub(crate) fn free(&self) -> usize {
        debug_assert!(self.free.len() <= self.count, "no more is free than there is");
        self.free.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Borrows a page; the caller has checked that one is free.
    pub(crate) fn take(&mut self) -> u16 {
        let page = self.free.pop().expect("the pages were counted before the first was taken");
        debug_assert!(usize::from(page) < self.count, "the page is the pool's");
        page
    }

    pub(crate) fn give_back(&mut self, page: u16) {
        debug_assert!(!self.free.contains(&page), "a page is given back once");
        assert!(usize::from(page) < self.count, "the page is the pool's");
        self.free.push(page);
        assert!(self.free.len() <= self.count, "no more is free than there is");
    }

    pub(crate) fn iova_of(&self, page: u16) -> Iova {
        debug_assert!(usize::from(page) < self.count, "the page is the pool's");
        Iova(self.iova.0 + u64::from(page) * PAGE_BYTES)
    }

    pub(crate) fn memory_of(&self, page: u16) -> Atomics {
        debug_assert!(usize::from(page) < self.count, "the page is the pool's");
        self.memory.slice(usize::from(page) * PAGE_BYTES as usize, PAGE_BYTES as usize)
    }
}

/// The list pages that one command borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Borrowed {
    pages: [u16; LIST_PAGES_PER_COMMAND],
    count: u8,
}

impl Borrowed {
    pub(crate) fn take(pool: &mut PagePool, count: usize) -> Borrowed {
        assert!(count <= LIST_PAGES_PER_COMMAND, "the planner knows the limit");
        let before = pool.free();
        let mut borrowed = Borrowed { count: count as u8, ..Borrowed::default() };
        borrowed.pages[..count].fill_with(|| pool.take());
        assert_eq!(pool.free() + count, before, "what is borrowed is not free");
        borrowed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn give_back(&mut self, pool: &mut PagePool) {
        let before = pool.free();
        let count = usize::from(std::mem::take(&mut self.count));
        self.pages[..count].iter().for_each(|&page| pool.give_back(page));
        assert_eq!(pool.free(), before + count, "what was borrowed is free");
        assert!(self.is_empty(), "pages are given back once");
    }

    pub(crate) fn memory<'a>(&'a self, pool: &'a PagePool) -> BorrowedLists<'a> {
        BorrowedLists { borrowed: self, pool }
    }
}

pub(crate) struct BorrowedLists<'a> {
    borrowed: &'a Borrowed,
    pool: &'a PagePool,
}

impl ListMemory for BorrowedLists<'_> {
    fn page_iova(&self, page: usize) -> Iova {
        assert!(page < usize::from(self.borrowed.count), "the page was borrowed");
        self.pool.iova_of(self.borrowed.pages[page])
    }

    fn write(&mut self, page: usize, index: usize, value: u64) {
        assert!(page < usize::from(self.borrowed.count), "the page was borrowed");
        assert!(index < PAGE_BYTES as usize / 8, "the word is in the page");
        let word = usize::from(self.borrowed.pages[page]) * (PAGE_BYTES as usize / 8) + index;
        self.pool.memory.words()[word].store(value.to_le(), Ordering::Relaxed);
    }
}
