//! Bytes that others may write at any time: another process that maps them, a device, threads outside Rust.
//!
//! No reference to such bytes may exist, since the compiler takes what a reference shows for unchanging: it may read a
//! byte again that was checked before, or read a copy's origin instead of the copy. [`SharedBytes`] and
//! [`SharedBytesMut`] stand for slices of them and only copy. What a copy holds is then plain bytes: decide on copies.
#![allow(unsafe_code)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("bytes that others may write are copied on x86-64 and AArch64 only");

use std::arch::asm;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// A run of bytes that others may write, to be read.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    at: NonNull<u8>,
    len: usize,
    _of: PhantomData<&'a [u8]>,
}

/// A run of bytes that others may read and write, to be written.
pub struct SharedBytesMut<'a> {
    at: NonNull<u8>,
    len: usize,
    _of: PhantomData<&'a mut [u8]>,
}

// SAFETY: its bytes are only copied, which any number of threads may do at the same time.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedBytesMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytesMut<'_> {}

/// Copies `len` bytes, of which others may write any meanwhile: each byte of the copy is one that was there.
///
/// To the compiler this is a relaxed atomic load and store of each byte, of which Rust has no copy that is fast: the
/// instructions are memcpy's, called where the compiler cannot see what is called.
///
/// # Safety
/// Both runs are mapped for `len` bytes, `from` to be read and `to` to be written, and do not overlap. No reference to
/// bytes of `to` is used meanwhile, and no mutable one to bytes of `from`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: memcpy touches these bytes and no others, whatever they hold, and takes and leaves registers as C does.
    // Without options the block may read and write any memory, so that the compiler keeps no byte across it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "call {copy}",
            copy = in(reg) libc::memcpy as *const (),
            in("rdi") to,
            in("rsi") from,
            in("rdx") len,
            clobber_abi("C"),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "blr {copy}",
            copy = in(reg) libc::memcpy as *const (),
            in("x0") to,
            in("x1") from,
            in("x2") len,
            clobber_abi("C"),
        );
    }
}

impl<'a> SharedBytes<'a> {
    /// Wraps `len` bytes at `at`.
    ///
    /// # Safety
    /// They stay mapped and readable during `'a`, and no mutable reference to them is used in this process meanwhile.
    pub unsafe fn new(at: NonNull<u8>, len: usize) -> SharedBytes<'a> {
        SharedBytes { at, len, _of: PhantomData }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// Returns the bytes of a range.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn slice(self, range: Range<usize>) -> SharedBytes<'a> {
        let at = place(self.at, self.len, &range);
        SharedBytes { at, len: range.len(), _of: PhantomData }
    }

    /// Copies the bytes from `at` on to all of `into`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(self, at: usize, into: &mut [u8]) {
        let from = self.slice(at..at.saturating_add(into.len()));
        SharedBytesMut::from(into).copy_from(from);
    }

    /// Returns the bytes as a slice.
    ///
    /// # Safety
    /// Nothing writes them as long as the slice is used: no other process, no device, no other thread.
    pub unsafe fn as_slice(self) -> &'a [u8] {
        // SAFETY: they stay mapped during `'a`, as their maker promised, and unchanged, as our caller does.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Returns a copy.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: this run is readable; the new memory has room for as much and belongs to no one else. All of it is
        // written before it counts.
        unsafe {
            copy(self.as_ptr(), bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes
    }
}

impl<'a> SharedBytesMut<'a> {
    /// Wraps `len` bytes at `at`.
    ///
    /// # Safety
    /// They stay mapped, readable and writable during `'a`, and no reference to them is used in this process meanwhile.
    pub unsafe fn new(at: NonNull<u8>, len: usize) -> SharedBytesMut<'a> {
        SharedBytesMut { at, len, _of: PhantomData }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns the bytes of a range.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn slice(&mut self, range: Range<usize>) -> SharedBytesMut<'_> {
        let at = place(self.at, self.len, &range);
        SharedBytesMut { at, len: range.len(), _of: PhantomData }
    }

    /// Copies all of `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        self.slice(at..at.saturating_add(from.len())).copy_from(from.into());
    }

    /// Copies bytes that are as many, and lie elsewhere.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn copy_from(&mut self, from: SharedBytes<'_>) {
        assert_eq!(self.len, from.len, "as many bytes are copied as there are");
        let apart = self.at.addr().get().abs_diff(from.at.addr().get());
        assert!(apart >= self.len, "bytes are not copied to themselves");
        // SAFETY: both are mapped for as many bytes, as their makers promised, and lie apart.
        unsafe { copy(from.as_ptr(), self.as_ptr(), self.len) }
    }

    /// Returns the bytes as a slice to be written.
    ///
    /// # Safety
    /// Nothing else reads or writes them as long as the slice is used: no other process, no device, no other thread.
    pub unsafe fn into_mut_slice(self) -> &'a mut [u8] {
        // SAFETY: they stay mapped during `'a` and are borrowed mutably, as their maker promised, and are this caller's
        // alone, as it promises.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }

    /// Zeroes all of them.
    pub fn zero(&mut self) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..self.len).step_by(ZEROS.len()) {
            self.write(at, &ZEROS[..ZEROS.len().min(self.len - at)]);
        }
    }
}

/// Returns where a range of a run begins.
fn place(at: NonNull<u8>, len: usize, range: &Range<usize>) -> NonNull<u8> {
    assert!(range.start <= range.end && range.end <= len, "{range:?} is not inside of {len} bytes");
    // SAFETY: it begins inside the run or at its end, checked above.
    unsafe { at.add(range.start) }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    fn from(bytes: &'a [u8]) -> SharedBytes<'a> {
        SharedBytes { at: NonNull::from(bytes).cast(), len: bytes.len(), _of: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for SharedBytesMut<'a> {
    fn from(bytes: &'a mut [u8]) -> SharedBytesMut<'a> {
        let len = bytes.len();
        SharedBytesMut { at: NonNull::from(bytes).cast(), len, _of: PhantomData }
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({:p}+{:#x})", self.at, self.len)
    }
}

impl fmt::Debug for SharedBytesMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytesMut({:p}+{:#x})", self.at, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    #[test]
    fn copies_are_of_the_bytes_asked_for_and_no_others() {
        let from: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        for (at, len) in [(0, 0), (0, 1), (3, 7), (5, 64), (1, 4096), (4096, 65_000), (70_000, 0)] {
            let mut into = vec![0xee; len + 2];
            SharedBytes::from(&from[..]).read(at, &mut into[1..=len]);
            assert_eq!((into[0], into[len + 1]), (0xee, 0xee), "{len} bytes at {at}");
            assert_eq!(into[1..=len], from[at..at + len]);
            let mut whole = vec![0xee; 70_000];
            SharedBytesMut::from(&mut whole[..]).write(at, &from[at..at + len]);
            assert!(whole[..at].iter().chain(&whole[at + len..]).all(|byte| *byte == 0xee));
            assert_eq!(whole[at..at + len], from[at..at + len]);
        }
        assert_eq!(SharedBytes::from(&from[..]).slice(9..5009).to_vec(), from[9..5009]);
        let mut gone = vec![7; 9000];
        SharedBytesMut::from(&mut gone[1..8999]).zero();
        assert_eq!((gone[0], gone[8999]), (7, 7));
        assert!(gone[1..8999].iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "3..8 is not inside of 7 bytes")]
    fn no_byte_behind_the_end_is_read() {
        SharedBytes::from(&[0; 7][..]).read(3, &mut [0; 5]);
    }

    #[test]
    #[should_panic(expected = "is not inside of 7 bytes")]
    fn a_range_whose_end_overflows_is_outside() {
        SharedBytesMut::from(&mut [0; 7][..]).write(usize::MAX, &[1]);
    }

    #[test]
    fn bytes_that_another_thread_writes_are_what_was_there() {
        let bytes: Vec<AtomicU8> = (0..4096).map(|_| AtomicU8::new(1)).collect();
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in (1..=2).cycle() {
                    bytes.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
                    if stops.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let at = NonNull::from(&bytes[..]).cast();
            // SAFETY: the vector outlives the copies, and there are only atomics of its bytes.
            let shared = unsafe { SharedBytes::new(at, bytes.len()) };
            for _ in 0..2000 {
                let copied = shared.to_vec();
                let again = copied.clone();
                assert!(copied.iter().all(|byte| (1..=2).contains(byte)));
                assert_eq!(copied, again, "a copy does not change");
            }
            stops.store(true, Ordering::Relaxed);
        });
    }
}
