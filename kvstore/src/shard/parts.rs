//! Parts of objects: where their bytes lie on a device, and their memory while commands use it.
//!
//! [`extract`] maps a part to its units and its checksums. Of an item's [`Memory`], what is here is idle; what was
//! taken is in flight and comes back at its old offset. Buffers that were split are joined again, so that the caller
//! gets back what it gave.

use std::ops::Range;

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::sys::SharedBytes;
use smallvec::SmallVec;

use super::batch::{Buffers, Sums};
use super::request::Part;
use super::space::Spaces;
use crate::error::Failure;
use crate::media::checksum;
use crate::model::layout::Layout;
use crate::model::object::{Object, piece_bytes, plain_units};
use crate::model::place::UNIT_BYTES;
use crate::model::plan;

/// The extent of a part within its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extract {
    /// Its length in bytes, as the caller counts.
    pub(super) bytes: u64,
    /// Bytes of memory that it takes, in whole units.
    pub(super) padded_bytes: u64,
    /// Its first checksum, and the piece that each covers.
    pub(super) first_checksum: u32,
    pub(super) pieces: Pieces,
}

/// Locates a part and appends its places to `parts`, as those of `item`.
///
/// # Errors
/// [`Failure::Part`] if the object has no such part.
pub(super) fn extract(
    spaces: &Spaces,
    object: &Object,
    part: &Part,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Result<Extract, Failure> {
    match (spaces.layout(object.layout), part) {
        (None, Part::All) => plain(object, 0..object.bytes, item, parts),
        (None, Part::Bytes(range)) => plain(object, range.clone(), item, parts),
        (None, Part::Layer(_)) => {
            Err(Failure::Part("a plain object has no layers: ask for bytes of it"))
        }
        (Some(layout), Part::All) => {
            Ok(runs(layout, object, 0..layout.block().layers, item, parts))
        }
        (Some(layout), Part::Layer(layer)) if *layer < layout.block().layers => {
            Ok(runs(layout, object, *layer..*layer + 1, item, parts))
        }
        (Some(_), Part::Layer(_)) => Err(Failure::Part("the layout has no such layer")),
        (Some(layout), Part::Bytes(range)) => {
            Ok(runs(layout, object, layers_of(layout, range)?, item, parts))
        }
    }
}

/// Returns the layers whose bytes are a range of a KV block.
fn layers_of(layout: &Layout, range: &Range<u64>) -> Result<Range<u32>, Failure> {
    let (all, layer) = (layout.block_units() * UNIT_BYTES, layout.run_units() * UNIT_BYTES);
    let (start, end) = (range.start, range.end.min(all));
    if start >= end {
        return Err(Failure::Part("the range has no bytes of the object"));
    }
    if !start.is_multiple_of(layer) || !end.is_multiple_of(layer) {
        return Err(Failure::Part("a range of a KV block begins and ends where its layers do"));
    }
    Ok((start / layer) as u32..(end / layer) as u32)
}

fn plain(
    object: &Object,
    range: Range<u64>,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Result<Extract, Failure> {
    // A power of two, so shifts and masks replace divisions.
    let piece = piece_bytes(object.bytes);
    let (shift, within) = (piece.trailing_zeros(), piece - 1);
    let (start, end) = (range.start, range.end.min(object.bytes));
    let is_empty = object.bytes == 0 && start == 0;
    if start >= end && !is_empty {
        return Err(Failure::Part("the range has no bytes of the object"));
    }
    if start & within != 0 || (end & within != 0 && end != object.bytes) {
        return Err(Failure::Part(
            "a range begins and ends where pieces of the object do, or at its end",
        ));
    }
    let (bytes, padded_bytes) = (end - start, plain_units(end - start) * UNIT_BYTES);
    let count = ((bytes + within) >> shift).max(1);
    parts.push(plan::Part {
        place: object.place.plus(start / UNIT_BYTES),
        item,
        offset: 0,
        bytes: padded_bytes,
    });
    let pieces = Pieces {
        count: count as u32,
        stride_bytes: piece,
        piece_bytes: piece,
        last_bytes: bytes - (count - 1) * piece,
    };
    Ok(Extract { bytes, padded_bytes, first_checksum: (start >> shift) as u32, pieces })
}

fn runs(
    layout: &Layout,
    object: &Object,
    layers: Range<u32>,
    item: u32,
    parts: &mut Vec<plan::Part>,
) -> Extract {
    let run_bytes = layout.run_units() * UNIT_BYTES;
    let count = layers.end - layers.start;
    for (index, layer) in layers.clone().enumerate() {
        let run = layout.run(layer);
        let place = object.place.plus(run.start);
        parts.push(plan::Part { place, item, offset: index as u64 * run_bytes, bytes: run_bytes });
    }
    let per_layer = u32::from(layout.block().tensors_per_layer);
    let pieces = Pieces {
        count: count * per_layer,
        stride_bytes: layout.tensor_units() * UNIT_BYTES,
        piece_bytes: layout.tensor_bytes(),
        last_bytes: layout.tensor_bytes(),
    };
    let bytes = u64::from(count) * run_bytes;
    Extract { bytes, padded_bytes: bytes, first_checksum: layers.start * per_layer, pieces }
}

/// Runs of memory by offset in the item, in order.
type Parts = SmallVec<[(u64, Buffer); 2]>;

/// Runs of an item's memory, each with a checksum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) count: u32,
    /// Bytes from the start of one piece to the start of the next.
    pub(super) stride_bytes: u64,
    /// Bytes of each piece except the last.
    pub(super) piece_bytes: u64,
    pub(super) last_bytes: u64,
}

impl Pieces {
    /// Returns the offset and the length of piece `index`.
    pub(super) fn run(&self, index: u32) -> (u64, u64) {
        let is_last = index + 1 == self.count;
        let len = if is_last { self.last_bytes } else { self.piece_bytes };
        (u64::from(index) * self.stride_bytes, len)
    }

    /// Returns whether each piece, of those in `bytes`, matches its checksum.
    pub(super) fn are_intact(&self, bytes: &[u8], sums: impl Iterator<Item = u32>) -> bool {
        self.each_intact(bytes, sums, |_| ())
    }

    /// Like [`Pieces::are_intact`]; passes each piece that does, and what follows up to the next, to `then`, while the cache
    /// has it.
    pub(super) fn each_intact(
        &self,
        bytes: &[u8],
        mut sums: impl Iterator<Item = u32>,
        mut then: impl FnMut(Range<usize>),
    ) -> bool {
        (0..self.count).all(|index| {
            let (offset, len) = self.run(index);
            let piece = &bytes[offset as usize..(offset + len) as usize];
            let is_intact = sums.next() == Some(checksum::of(piece));
            if is_intact {
                let is_last = index + 1 == self.count;
                let end = if is_last { bytes.len() as u64 } else { offset + self.stride_bytes };
                then(offset as usize..end as usize);
            }
            is_intact
        })
    }

    /// Zeroes what lies in `bytes` between the pieces and behind them.
    pub(super) fn zero_gaps(&self, bytes: &mut [u8]) {
        let mut rest = bytes;
        for index in 0..self.count {
            let (_, len) = self.run(index);
            let stride =
                if index + 1 == self.count { rest.len() } else { self.stride_bytes as usize };
            let (piece, behind) = rest.split_at_mut(stride);
            piece[len as usize..].fill(0);
            rest = behind;
        }
    }
}

/// Bytes that are copied at a time to be summed: a cache has them, and the stack.
const SUMMED_BYTES: usize = 8 << 10;

#[derive(Debug, Default)]
pub(super) struct Memory {
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
