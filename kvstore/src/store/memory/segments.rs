//! Memory as a list of buffers: lengths, splits and copies.

use adit_driver::Buffer;
use adit_driver::memory::{AnyBuffer, IoBuffer};

use crate::model::place::UNIT_BYTES;

/// Returns the length of the memory in bytes.
pub(crate) fn bytes_of(memory: &AnyBuffer) -> u64 {
    (0..memory.segment_count()).map(|index| memory.segment(index).len).sum()
}

/// Returns whether each buffer consists of whole units.
pub(super) fn is_whole(memory: &AnyBuffer) -> bool {
    (0..memory.segment_count()).all(|index| memory.segment(index).len.is_multiple_of(UNIT_BYTES))
}

pub(super) fn slice(memory: &AnyBuffer) -> &[Buffer] {
    match memory {
        AnyBuffer::None => &[],
        AnyBuffer::One(buffer) => std::slice::from_ref(buffer),
        AnyBuffer::Many(buffers) => buffers,
    }
}

pub(crate) fn list(memory: AnyBuffer) -> Vec<Buffer> {
    match memory {
        AnyBuffer::None => Vec::new(),
        AnyBuffer::One(buffer) => vec![buffer],
        AnyBuffer::Many(buffers) => buffers,
    }
}

pub(crate) fn any(mut parts: Vec<Buffer>) -> AnyBuffer {
    match parts.len() {
        0 => AnyBuffer::None,
        1 => AnyBuffer::One(parts.remove(0)),
        _ => AnyBuffer::Many(parts),
    }
}

/// Splits a list behind `head` bytes of its first buffer, or before all of it.
pub(crate) fn split(mut parts: Vec<Buffer>, head: usize) -> (Option<Buffer>, Vec<Buffer>) {
    if head == 0 {
        return (None, parts);
    }
    let rest = parts[0].split_off(head);
    let along = std::mem::replace(&mut parts[0], rest);
    (Some(along), parts)
}

/// Appends `rest` to `parts`, and rejoins a buffer that [`split`] has split.
pub(crate) fn joined(mut parts: Vec<Buffer>, rest: Vec<Buffer>) -> Vec<Buffer> {
    for next in rest {
        let left = match parts.last_mut() {
            Some(last) => last.join(next),
            None => Err(next),
        };
        parts.extend(left.err());
    }
    parts
}

/// Fills `into` with the first bytes of the caller's memory.
pub(super) fn gather(from: &[Buffer], into: &mut [u8]) {
    let mut filled = 0;
    for part in from {
        let len = part.len().min(into.len() - filled);
        part.bytes().read(0, &mut into[filled..filled + len]);
        filled += len;
    }
    assert_eq!(filled, into.len(), "the caller's memory has all of the object");
}

/// Copies `bytes` to the caller's memory from byte `at` on.
pub(crate) fn copy_at(mut at: usize, mut bytes: &[u8], into: &mut [Buffer]) {
    for buffer in into {
        let room = buffer.len().saturating_sub(at);
        let (now, later) = bytes.split_at(bytes.len().min(room));
        if !now.is_empty() {
            buffer.bytes_mut().write(at, now);
        }
        at = at.saturating_sub(buffer.len());
        bytes = later;
    }
    assert!(bytes.is_empty(), "what is read fits in the caller's memory");
}

/// Copies `bytes` to the beginning of the caller's memory, which must have room for them.
pub(crate) fn fill(bytes: &[u8], into: &mut AnyBuffer) {
    match into {
        AnyBuffer::None => copy_at(0, bytes, &mut []),
        AnyBuffer::One(buffer) => copy_at(0, bytes, std::slice::from_mut(buffer)),
        AnyBuffer::Many(buffers) => copy_at(0, bytes, buffers),
    }
}
