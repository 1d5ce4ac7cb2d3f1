//! Mapped device registers.
//!
//! A [`Window`] is a run of a mapped BAR (or of a software controller's register page). Accesses are atomic, naturally
//! aligned and exactly as wide as asked, as PCIe requires. They are not volatile, because the other side may be this
//! process, which reads the page as [`super::Atomics`]: a volatile access beside an atomic one would be a data race. A
//! compiler fence beside each access keeps the compiler from dropping or merging accesses. Offsets come from the
//! specification's constants or were checked when a [`Register32`] was made, so an offset out of bounds is our own bug
//! and panics.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

use memmap2::{MmapOptions, MmapRaw};

/// A bounds-checked run of mapped registers. Clones share the mapping.
#[derive(Clone)]
pub struct Window {
    map: Arc<MmapRaw>,
    offset: usize,
    len: usize,
}

impl Window {
    /// Maps `len` bytes from `offset` of a file for reading and writing, shared with all its mappings. Touching a page
    /// beyond the file's end raises SIGBUS.
    ///
    /// # Errors
    /// The system's error: the file is not open for both, or `offset` is inside a page.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Window> {
        let map = MmapOptions::new().offset(offset).len(len).map_raw(file.as_raw_fd())?;
        Ok(Window { len: map.len(), map: Arc::new(map), offset: 0 })
    }

    /// Makes a page of memory without a file, which works under Miri.
    #[cfg(test)]
    pub(crate) fn of_a_page() -> Window {
        let map = MmapOptions::new().len(4096).map_anon().expect("anonymous memory");
        Window { len: map.len(), map: Arc::new(map.into()), offset: 0 }
    }

    /// Returns `len` bytes from `offset` of this window, or `None` if the BAR ends before that.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Window> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Window {
            map: Arc::clone(&self.map),
            offset: self.offset + offset,
            len,
        })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.len), "register {offset:#x} outside its window");
        assert!(
            (self.offset + offset).is_multiple_of(align_of::<T>()),
            "register {offset:#x} misaligned"
        );
        // SAFETY: the sum stays inside the mapping, checked above and in `slice`.
        unsafe { self.map.as_mut_ptr().add(self.offset + offset).cast() }
    }

    /// Reads a 32-bit register.
    pub fn read32(&self, offset: usize) -> u32 {
        let at = self.at::<u32>(offset);
        // SAFETY: `at` is inside the live mapping and aligned.
        let value = unsafe { AtomicU32::from_ptr(at) }.load(Relaxed);
        compiler_fence(SeqCst);
        u32::from_le(value)
    }

    /// Writes a 32-bit register.
    pub fn write32(&self, offset: usize, value: u32) {
        let at = self.at::<u32>(offset);
        compiler_fence(SeqCst);
        // SAFETY: `at` is inside the live mapping, which is writable, and aligned.
        unsafe { AtomicU32::from_ptr(at) }.store(value.to_le(), Relaxed);
    }

    /// Reads a 64-bit register with one access.
    pub fn read64(&self, offset: usize) -> u64 {
        let at = self.at::<u64>(offset);
        // SAFETY: `at` is inside the live mapping and aligned.
        let value = unsafe { AtomicU64::from_ptr(at) }.load(Relaxed);
        compiler_fence(SeqCst);
        u64::from_le(value)
    }

    /// Writes a 64-bit register with one access.
    pub fn write64(&self, offset: usize, value: u64) {
        let at = self.at::<u64>(offset);
        compiler_fence(SeqCst);
        // SAFETY: `at` is inside the live mapping, which is writable, and aligned.
        unsafe { AtomicU64::from_ptr(at) }.store(value.to_le(), Relaxed);
    }

    /// Returns the register at `offset` with its bounds checked once, or `None` outside the window.
    pub fn register32(&self, offset: usize) -> Option<Register32> {
        let end = offset.checked_add(4)?;
        (end <= self.len && (self.offset + offset).is_multiple_of(4))
            .then(|| Register32 { at: self.at(offset), window: self.clone() })
    }

    /// Replaces the memory behind the window by `file` from `offset` on, for every clone, slice and register of it. An
    /// equal device has taken the place of the old one.
    ///
    /// # Errors
    /// The system's error; the window then stays unchanged. Offset and window must be whole pages.
    pub(crate) fn replace(&self, file: &File, offset: u64) -> io::Result<()> {
        let at = self.as_ptr();
        let whole = (at.addr() as u64 | self.len as u64 | offset).is_multiple_of(4096);
        if !whole || self.len == 0 {
            return Err(io::Error::other("only whole pages can be mapped anew"));
        }
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (access, how) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: these pages are inside the mapping that `self.map` owns, and stay mapped throughout:
        // the kernel replaces them in one step. They are registers or shared memory, accessed
        // atomically, so that their users expect them to change.
        let mapped =
            unsafe { libc::mmap(at.cast(), self.len, access, how, file.as_raw_fd(), offset) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Views the window as shared memory; only for memory behind a BAR (a controller memory buffer), not for registers
    /// with side effects.
    ///
    /// # Panics
    /// If the window is not a multiple of 8 bytes at an aligned place.
    pub fn atomics(&self) -> super::Atomics {
        let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(self.clone());
        let at = std::ptr::NonNull::new(self.as_ptr()).expect("a mapping is never at address zero");
        // SAFETY: `owner` keeps the mapping; no references to a window's bytes are made.
        unsafe { super::Atomics::new(at, self.len, owner) }
    }

    /// Returns the first byte's address, for sharing the window with another device or viewing it as
    /// [`super::Atomics`].
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `offset` is inside the mapping, checked in `slice`.
        unsafe { self.map.as_mut_ptr().add(self.offset) }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x}+{:#x})", self.offset, self.len)
    }
}

/// A 32-bit register at a checked place: a doorbell.
///
/// Clone it to hand the register to its next writer: the device expects one writer at a time.
#[derive(Clone)]
pub struct Register32 {
    at: *mut u32,
    window: Window,
}

// SAFETY: the pointer is into a mapping that `window` keeps alive and unmoved;
// atomic accesses to device registers may come from any one thread.
unsafe impl Send for Register32 {}

impl Register32 {
    /// Writes the register. Pair with [`super::barrier::before_doorbell`], whose fence keeps the compiler from merging
    /// two writes.
    #[inline(always)]
    pub fn write(&self, value: u32) {
        // SAFETY: checked when the register was made; `window` keeps it mapped.
        unsafe { AtomicU32::from_ptr(self.at) }.store(value.to_le(), Relaxed);
    }

    /// Returns the window that holds the register and keeps it mapped.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the register's address, for another agent that rings it (a GPU).
    pub fn as_ptr(&self) -> *mut u32 {
        self.at
    }
}

impl fmt::Debug for Register32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Register32({:p})", self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SharedPages;
    use std::os::fd::AsFd;

    fn onto(pages: &SharedPages) -> Window {
        Window::map(pages.file(), 0, pages.len()).expect("mapped")
    }

    fn window(len: usize) -> Window {
        onto(&SharedPages::allocate(len).expect("memory"))
    }

    #[test]
    fn registers_read_back_in_every_width() {
        let w = window(4096);
        w.write64(0x28, 0x1122_3344_5566_7788);
        assert_eq!(w.read32(0x28), 0x5566_7788);
        assert_eq!(w.read32(0x2c), 0x1122_3344);
        w.register32(0x1000 - 4).expect("last register").write(7);
        assert_eq!(w.read32(0xffc), 7);
    }

    #[test]
    fn a_slice_cannot_leave_its_window() {
        let w = window(8192);
        let s = w.slice(4096, 4096).expect("second page");
        s.write32(0, 9);
        assert_eq!(w.read32(4096), 9);
        assert!(w.slice(4096, 4097).is_none());
        assert!(w.slice(usize::MAX, 2).is_none());
        assert!(s.register32(4096).is_none());
        assert!(s.register32(2).is_none());
    }

    #[test]
    fn a_replaced_window_keeps_its_registers() {
        let pages = |value| {
            let pages = SharedPages::allocate(8192).expect("memory");
            onto(&pages).write32(4096, value);
            pages
        };
        let (old, new) = (pages(1), pages(2));
        let file = |pages: &SharedPages| {
            File::from(pages.file().try_clone_to_owned().expect("descriptor"))
        };
        let whole = onto(&old);
        let second = whole.slice(4096, 4096).expect("a page");
        let register = second.register32(0).expect("a register");
        assert_eq!(second.read32(0), 1);
        whole.replace(&file(&new), 0).expect("replaced");
        assert_eq!(second.read32(0), 2);
        register.write(3);
        assert_eq!((onto(&old).read32(4096), onto(&new).read32(4096)), (1, 3));
        assert!(whole.replace(&file(&new), 1).is_err(), "inside a page");
        assert!(whole.slice(0, 8).expect("inside").replace(&file(&new), 0).is_err());
    }

    #[test]
    fn a_file_that_may_only_be_read_is_no_window() {
        let file = File::open("/proc/self/exe").expect("this test");
        let error = Window::map(file.as_fd(), 0, 4096).expect_err("registers are written");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    #[should_panic(expected = "outside its window")]
    fn an_offset_outside_is_our_bug() {
        window(4096).read32(4096);
    }
}
