//! The memory of an item while commands use it.
//!
//! Buffers in an item's [`Memory`] are idle. Those taken are in flight and come back at their old offsets. Split
//! buffers are joined again, so that the caller gets back what it gave.

use std::ops::Range;

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::sys::SharedBytes;
use smallvec::SmallVec;

use super::extract::Pieces;
use crate::media::checksum;

/// Checksums, stored inline if there are few.
pub(crate) type Sums = SmallVec<[u32; 4]>;

/// Runs of memory by offset in the item, in order.
type Parts = SmallVec<[(u64, Buffer); 2]>;

/// The buffers of a command, in order.
pub(super) enum Buffers {
    One(Option<Buffer>),
    Many(std::vec::IntoIter<Buffer>),
}

impl Buffers {
    pub(super) fn of(memory: AnyBuffer) -> Buffers {
        match memory {
            AnyBuffer::None => Buffers::One(None),
            AnyBuffer::One(buffer) => Buffers::One(Some(buffer)),
            AnyBuffer::Many(buffers) => Buffers::Many(buffers.into_iter()),
        }
    }
}

impl Iterator for Buffers {
    type Item = Buffer;

    fn next(&mut self) -> Option<Buffer> {
        match self {
            Buffers::One(buffer) => buffer.take(),
            Buffers::Many(buffers) => buffers.next(),
        }
    }
}

/// Bytes that are copied at a time to be summed: a cache has them, and the stack.
const SUMMED_BYTES: usize = 8 << 10;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    parts: Parts,
}

impl Memory {
    pub(super) fn of(memory: AnyBuffer) -> Memory {
        let mut parts = Parts::new();
        let mut end = 0;
        for buffer in Buffers::of(memory) {
            let len = buffer.len() as u64;
            parts.push((end, buffer));
            end += len;
        }
        Memory { parts }
    }

    /// Returns the idle bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, buffer)| buffer.len() as u64).sum()
    }

    /// Returns whether each buffer but the last is whole units, so that commands can begin at any unit.
    pub(super) fn is_whole(&self, unit_bytes: u64) -> bool {
        self.parts.iter().all(|(_, buffer)| (buffer.len() as u64).is_multiple_of(unit_bytes))
    }

    /// Returns whether a queue can use all of it.
    pub(super) fn is_accepted(&self, accepts: impl Fn(&Buffer) -> bool) -> bool {
        self.parts.iter().all(|(_, buffer)| accepts(buffer))
    }

    /// Returns whether others may write to some of it at any time.
    pub(super) fn is_shared(&self) -> bool {
        self.parts.iter().any(|(_, buffer)| buffer.is_shared())
    }

    /// Takes out `bytes` at `offset`, in order.
    ///
    /// # Panics
    /// If any of them are in flight.
    pub(super) fn take(&mut self, offset: u64, bytes: u64, into: &mut Vec<Buffer>) {
        if let [(start, buffer)] = &*self.parts
            && (*start, buffer.len() as u64) == (offset, bytes)
        {
            return into.extend(self.parts.pop().map(|(_, buffer)| buffer));
        }
        let (mut from, end) = (offset, offset + bytes);
        while from < end {
            let at =
                self.parts.partition_point(|(start, buffer)| start + buffer.len() as u64 <= from);
            assert!(
                at < self.parts.len() && self.parts[at].0 <= from,
                "only what is idle is taken"
            );
            if self.parts[at].0 < from {
                self.split(at, from);
                continue;
            }
            if self.parts[at].0 + self.parts[at].1.len() as u64 > end {
                self.split(at, end);
            }
            let (_, buffer) = self.parts.remove(at);
            from += buffer.len() as u64;
            into.push(buffer);
        }
    }

    fn split(&mut self, at: usize, offset: u64) {
        let (start, buffer) = &mut self.parts[at];
        let tail = buffer.split_off((offset - *start) as usize);
        self.parts.insert(at + 1, (offset, tail));
    }

    /// Puts back what was taken at `offset`.
    pub(super) fn put(&mut self, offset: u64, buffer: Buffer) {
        let at = self.parts.partition_point(|(start, _)| *start < offset);
        self.parts.insert(at, (offset, buffer));
    }

    /// Reassembles the caller's memory, all of which must be idle.
    pub(super) fn into_any(mut self) -> AnyBuffer {
        if self.parts.len() <= 1 {
            return self.parts.pop().map_or(AnyBuffer::None, |(_, buffer)| AnyBuffer::One(buffer));
        }
        let mut parts = self.parts.into_iter().map(|(_, buffer)| buffer);
        let mut last = parts.next().expect("there are several");
        let mut before = Vec::new();
        for next in parts {
            if let Err(next) = last.join(next) {
                before.push(std::mem::replace(&mut last, next));
            }
        }
        if before.is_empty() {
            return AnyBuffer::One(last);
        }
        before.push(last);
        AnyBuffer::Many(before)
    }

    /// Fills the first bytes of it, all of which must be idle, with `bytes`.
    pub(super) fn fill(&mut self, mut bytes: &[u8]) {
        for (_, buffer) in &mut self.parts {
            let (now, later) = bytes.split_at(bytes.len().min(buffer.len()));
            buffer.bytes_mut().write(0, now);
            bytes = later;
        }
        assert!(bytes.is_empty(), "there is memory for all of it");
    }

    /// Copies its first bytes, which must be idle, to all of `into`.
    pub(super) fn copy_to(&self, into: &mut [u8]) {
        let mut filled = 0;
        self.each_run(0, into.len() as u64, |buffer, run| {
            buffer.bytes().read(run.start, &mut into[filled..filled + run.len()]);
            filled += run.len();
        });
        assert_eq!(filled, into.len(), "all of it is there");
    }

    /// Calls `f` with the idle buffers of `bytes` at `offset`, in order, and which of their bytes those are.
    fn each_run(&self, offset: u64, bytes: u64, mut f: impl FnMut(&Buffer, Range<usize>)) {
        for (start, buffer) in &self.parts {
            let from = offset.max(*start);
            let to = (offset + bytes).min(start + buffer.len() as u64);
            if from < to {
                f(buffer, (from - start) as usize..(to - start) as usize);
            }
        }
    }

    /// Returns the checksum of `bytes` at `offset`, all of which must be idle.
    fn checksum(&self, offset: u64, bytes: u64) -> u32 {
        if let [(0, buffer)] = &*self.parts
            && !buffer.is_shared()
        {
            return checksum::of(&buffer[offset as usize..(offset + bytes) as usize]);
        }
        let mut running = checksum::Running::new();
        self.each_run(offset, bytes, |buffer, run| sum(buffer, run, &mut running));
        running.finish()
    }

    pub(super) fn checksums(&self, pieces: &Pieces, sums: &mut Sums) {
        for index in 0..pieces.count {
            let (offset, bytes) = pieces.run(index);
            sums.push(self.checksum(offset, bytes));
        }
    }

    /// Returns whether each piece matches its checksum.
    pub(super) fn is_intact(&self, pieces: &Pieces, mut sums: impl Iterator<Item = u32>) -> bool {
        (0..pieces.count).all(|index| {
            let (offset, bytes) = pieces.run(index);
            sums.next() == Some(self.checksum(offset, bytes))
        })
    }

    /// Zeroes `bytes` at `offset`, so that only the object's data reaches a device.
    pub(super) fn zero(&mut self, offset: u64, bytes: u64) {
        for (start, buffer) in &mut self.parts {
            let from = offset.max(*start);
            let to = (offset + bytes).min(*start + buffer.len() as u64);
            if from < to {
                let run = (from - *start) as usize..(to - *start) as usize;
                buffer.bytes_mut().slice(run).zero();
            }
        }
    }
}

/// Adds bytes of a buffer to a checksum.
fn sum(buffer: &Buffer, run: Range<usize>, running: &mut checksum::Running) {
    match buffer.is_shared() {
        true => sum_shared(buffer.bytes().slice(run), running),
        false => running.update(&buffer[run]),
    }
}

/// Adds bytes that others may write to a checksum, as copies.
pub(super) fn sum_shared(bytes: SharedBytes<'_>, running: &mut checksum::Running) {
    let mut copy = [0; SUMMED_BYTES];
    for at in (0..bytes.len()).step_by(SUMMED_BYTES) {
        let copy = &mut copy[..SUMMED_BYTES.min(bytes.len() - at)];
        bytes.read(at, copy);
        running.update(copy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::{Device, DeviceOptions};
    use proptest::prelude::*;

    fn memory(buffers: &[usize]) -> AnyBuffer {
        let device = Device::open(&"null:".parse().expect("a target"), &DeviceOptions::default());
        let device = device.expect("nothing");
        let buffer = |len: &usize| device.allocate(*len).expect("memory");
        AnyBuffer::Many(buffers.iter().map(buffer).collect())
    }

    fn numbered(memory: &mut Memory) {
        for (start, buffer) in &mut memory.parts {
            for (at, byte) in buffer.iter_mut().enumerate() {
                *byte = ((*start as usize + at) / 512) as u8;
            }
        }
    }

    #[test]
    fn memory_comes_back_as_it_was_given() {
        let mut item = Memory::of(memory(&[8192, 4096]));
        let mut taken = Vec::new();
        item.take(4096, 8192, &mut taken);
        assert_eq!(taken.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [4096, 4096]);
        assert_eq!(item.bytes(), 4096);
        let last = taken.pop().expect("two");
        item.put(8192, last);
        item.put(4096, taken.pop().expect("one"));
        let AnyBuffer::Many(buffers) = item.into_any() else { panic!("two buffers were given") };
        assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [8192, 4096]);
    }

    #[test]
    fn a_flipped_byte_is_found_wherever_pieces_meet_buffers() {
        let mut item = Memory::of(memory(&[4096, 8192, 4096]));
        numbered(&mut item);
        let pieces = Pieces { count: 3, stride_bytes: 6144, piece_bytes: 6000, last_bytes: 100 };
        let mut sums = Sums::new();
        item.checksums(&pieces, &mut sums);
        assert!(item.is_intact(&pieces, sums.iter().copied()));
        for (offset, is_checked) in
            [(0, true), (5999, true), (6000, false), (12_387, true), (12_388, false)]
        {
            let mut taken = Vec::new();
            item.take(offset, 1, &mut taken);
            taken[0][0] ^= 1;
            item.put(offset, taken.pop().expect("a byte"));
            assert_eq!(item.is_intact(&pieces, sums.iter().copied()), !is_checked, "at {offset}");
            item.take(offset, 1, &mut taken);
            taken[0][0] ^= 1;
            item.put(offset, taken.pop().expect("a byte"));
        }
    }

    #[test]
    fn zeroes_go_where_they_are_asked_for_in_whichever_buffer() {
        let mut item = Memory::of(memory(&[4096, 8192, 4096]));
        for (offset, bytes) in [(5000, 3000), (12_000, 1000), (4095, 2), (0, 16_384)] {
            item.parts.iter_mut().for_each(|(_, buffer)| buffer.fill(7));
            item.zero(offset, bytes);
            let all = item.parts.iter().flat_map(|(_, buffer)| buffer.iter().copied());
            for (at, byte) in (0..).zip(all) {
                let is_zeroed = (offset..offset + bytes).contains(&at);
                assert_eq!(byte == 0, is_zeroed, "at {at} of {bytes} bytes at {offset}");
            }
        }
    }

    proptest! {
        #[test]
        fn cuts_in_any_order_lose_nothing(
            buffers in proptest::collection::vec(1usize..5, 1..4),
            cuts in proptest::collection::vec(any::<u64>(), 0..6),
        ) {
            let lens: Vec<usize> = buffers.iter().map(|units| units * 4096).collect();
            let mut item = Memory::of(memory(&lens));
            numbered(&mut item);
            let total = item.bytes();
            let mut ends: Vec<u64> = cuts.iter().map(|cut| cut % total).chain([0, total]).collect();
            ends.sort_unstable();
            ends.dedup();
            let runs: Vec<(u64, u64)> = ends.windows(2).map(|w| (w[0], w[1] - w[0])).collect();
            let mut out = Vec::new();
            for (offset, bytes) in runs.iter().rev() {
                let mut taken = Vec::new();
                item.take(*offset, *bytes, &mut taken);
                prop_assert_eq!(taken.iter().map(|b| b.len() as u64).sum::<u64>(), *bytes);
                out.push((*offset, taken));
            }
            prop_assert_eq!(item.bytes(), 0);
            for (mut offset, taken) in out {
                for buffer in taken {
                    let len = buffer.len() as u64;
                    item.put(offset, buffer);
                    offset += len;
                }
            }
            let AnyBuffer::Many(back) = item.into_any() else {
                prop_assert_eq!(lens.len(), 1);
                return Ok(());
            };
            prop_assert_eq!(back.iter().map(|b| b.len()).collect::<Vec<_>>(), lens);
            let first = back.iter().flat_map(|b| b.iter().copied());
            prop_assert!(first.enumerate().all(|(at, byte)| byte == (at / 512) as u8));
        }
    }
}
