//! Copies between a command's buffer and memory of the queue's that the device uses in its place.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::IoBuffer;
use crate::sys::{Atomics, SharedBytes, SharedBytesMut};
use crate::transfer::Position;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounce {
    /// From the buffer to the bounce memory, before a write.
    Out,
    /// From the bounce memory to the buffer, after a read.
    Back,
}

/// Copies `bytes` of `buffer`, from `start` on, to or from the start of `bounce`.
///
/// The command that uses `bounce` must not be in flight: not yet posted, or already ended.
pub(crate) fn bounce_copy<B: IoBuffer>(
    buffer: &B,
    start: Position,
    bytes: u64,
    bounce: &Atomics,
    way: Bounce,
) {
    assert!(bytes as usize <= bounce.len(), "a bounce fits its page");
    let (mut position, mut done) = (start, 0usize);
    while (done as u64) < bytes {
        let segment = buffer.segment(position.segment);
        let len = (segment.len - position.offset).min(bytes - done as u64) as usize;
        // SAFETY: the offset is inside the segment, which the buffer owns exclusively (`IoBuffer`).
        let ours = unsafe { buffer.pointer(position.segment).add(position.offset as usize) };
        let theirs = NonNull::new(bounce.as_ptr()).expect("memory is never at address zero");
        // SAFETY: `done + len` is at most `bytes`, which fits `bounce`.
        let theirs = unsafe { theirs.add(done) };
        let (from, to) = match way {
            Bounce::Out => (ours, theirs),
            Bounce::Back => (theirs, ours),
        };
        // SAFETY: both runs are `len` long and mapped meanwhile; the device uses neither now, as the caller states, and
        // there are no references to either.
        let (from, mut to) = unsafe { (SharedBytes::new(from, len), SharedBytesMut::new(to, len)) };
        to.copy_from(from);
        done += len;
        position = Position { segment: position.segment + 1, offset: 0 };
    }
}
