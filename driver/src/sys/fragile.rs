//! Mappings of files that another process may shorten.
//!
//! An access beyond the end of such a file raises SIGBUS, as does one for which the file system has no page left. While
//! [`FragileMappings::guard`] runs, the handler of `bus_error.rs` replaces the affected mapping by zeroes: the access
//! continues, and [`FragileMappings::is_lost`] tells the owner to distrust the data. Accesses cost nothing extra.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use memmap2::MmapRaw;

/// Mappings by their start in this process.
#[derive(Debug, Default)]
pub(crate) struct FragileMappings {
    mappings: BTreeMap<usize, MmapRaw>,
    lost: AtomicBool,
}

thread_local! {
    /// The mappings that this thread's guard protects.
    static GUARDED: Cell<Option<NonNull<FragileMappings>>> = const { Cell::new(None) };
}

/// Restores the previous guard, also after a panic.
struct Before(Option<NonNull<FragileMappings>>);

impl Drop for Before {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        GUARDED.set(self.0);
    }
}

impl FragileMappings {
    /// Takes a mapping; returns its start, which also identifies it.
    pub(crate) fn insert(&mut self, map: MmapRaw) -> NonNull<u8> {
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        self.mappings.insert(at.addr().get(), map);
        at
    }

    pub(crate) fn remove(&mut self, start: usize) {
        self.mappings.remove(&start);
    }

    /// Unmaps everything and clears the loss.
    pub(crate) fn clear(&mut self) {
        *self = FragileMappings::default();
    }

    /// Returns whether zeroes replaced a mapping since the last [`FragileMappings::clear`].
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Runs `work`; its accesses to these mappings cannot end the process. The handler of `bus_error::catch` must be
    /// installed.
    #[inline]
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> T) -> T {
        let _before = Before(GUARDED.replace(Some(NonNull::from(self))));
        // The handler runs in this thread, so what it reads must be written before `work` begins.
        compiler_fence(Ordering::SeqCst);
        work()
    }

    /// Replaces the mapping around `at` by zeroes; returns false if there is none. Runs in a signal handler: it neither
    /// allocates nor locks.
    fn replace(&self, at: usize) -> bool {
        let around = self.mappings.range(..=at).next_back();
        let Some((start, map)) = around.filter(|(start, map)| at - *start < map.len()) else {
            return false;
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let start = *start as *mut libc::c_void;
        // SAFETY: the range is one mapping of ours, used by raw pointers only; its owner unmaps the same range later.
        let done = unsafe { libc::mmap(start, map.len(), protection, flags, -1, 0) };
        self.lost.store(true, Ordering::Relaxed);
        done == start
    }
}

/// Makes this thread's failed access to `at` find zeroes when repeated; returns false if no guard covers it.
pub(super) fn contain(at: usize) -> bool {
    // SAFETY: set by `guard`, which has borrowed the mappings until it takes the pointer away.
    GUARDED.get().is_some_and(|guarded| unsafe { guarded.as_ref() }.replace(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::bus_error;
    use memmap2::{MmapMut, MmapOptions};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::fs::File;

    const PAGES: usize = 4;

    #[test]
    fn what_a_file_lost_reads_as_zeroes_and_is_told() {
        bus_error::catch().expect("a handler");
        let file = File::from(memfd_create(c"test", MFdFlags::empty()).expect("memfd"));
        file.set_len(PAGES as u64 * 4096).expect("room");
        let map = || MmapOptions::new().len(PAGES * 4096).map_raw(&file).expect("mapped");
        let mut fragile = FragileMappings::default();
        let (at, _other) = (fragile.insert(map()), fragile.insert(map()));
        // SAFETY: the last page of the mapping, which stays until the end of the test.
        let last = unsafe { at.add((PAGES - 1) * 4096) };
        // SAFETY: as above; no reference to these bytes exists.
        let read = || unsafe { last.read_volatile() };
        // SAFETY: as above.
        let write = |value| unsafe { last.write_volatile(value) };
        fragile.guard(|| write(7));
        assert_eq!((fragile.guard(read), fragile.is_lost()), (7, false));
        file.set_len(4096).expect("shorter");
        assert_eq!((fragile.guard(read), fragile.is_lost()), (0, true));
        fragile.guard(|| write(9));
        assert_eq!(fragile.guard(read), 9);
        fragile.clear();
        assert!(!fragile.is_lost());
    }

    #[test]
    fn only_accesses_under_a_guard_are_contained() {
        let mut fragile = FragileMappings::default();
        let at = fragile.insert(MmapMut::map_anon(4096).expect("memory").into());
        assert!(!contain(at.addr().get()), "no guard");
        assert!(!fragile.guard(|| contain(at.addr().get() - 1)));
        assert!(!fragile.guard(|| contain(at.addr().get() + 4096)));
        assert!(fragile.guard(|| contain(at.addr().get() + 4095)));
        let unwound = std::panic::catch_unwind(|| fragile.guard(|| panic!("on purpose")));
        assert!(unwound.is_err() && !contain(at.addr().get()), "the guard is gone");
    }
}
