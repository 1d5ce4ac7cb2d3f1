//! Memory for puts and reads.

use std::cell::RefCell;
use std::collections::BTreeMap;

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::{Device, DeviceOptions};
use adit_kvstore::UNIT_BYTES;

use crate::random::Random;

/// Bytes taken from the system at a time.
const REGION_BYTES: usize = 1 << 20;
/// Maximum regions kept for the next run.
const SPARE_MAX: usize = 64;

thread_local! {
    /// Whole regions of finished runs, because the system takes long to make them.
    static SPARE: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
    /// The source of memory.
    static DEVICE: Device = {
        let target = "null:".parse().expect("a target");
        Device::open(&target, &DeviceOptions::default()).expect("nothing to open")
    };
}

/// Runs of a power of two of units, and memory not cut yet. The next run reuses whole regions: their contents are
/// arbitrary, otherwise they are as new.
#[derive(Default)]
pub(crate) struct Pool {
    /// Indexed by the logarithm of their units.
    free: Vec<Vec<Buffer>>,
    rest: Option<Buffer>,
    /// Starts and lengths of the regions that these runs were cut from.
    regions: BTreeMap<u64, usize>,
    /// Whole regions that were given back.
    whole: Vec<Buffer>,
}

impl Pool {
    /// Allocates separate memory.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Buffer {
        if let Some(at) = self.whole.iter().position(|buffer| buffer.len() == bytes) {
            return self.whole.swap_remove(at);
        }
        let spare = SPARE.with_borrow_mut(|spare| {
            let at = spare.iter().position(|buffer| buffer.len() == bytes)?;
            Some(spare.swap_remove(at))
        });
        let allocate = || DEVICE.with(|device| device.allocate(bytes));
        spare.unwrap_or_else(|| allocate().expect("the machine has memory"))
    }

    /// Takes back memory of [`Pool::allocate`], in one piece.
    pub(crate) fn give_whole(&mut self, memory: Buffer) {
        self.whole.push(memory);
    }

    /// Takes at least `bytes` in whole units, in one or several pieces.
    pub(crate) fn take(&mut self, bytes: u64, random: &mut Random) -> AnyBuffer {
        let units = bytes.div_ceil(UNIT_BYTES).max(1) as usize;
        if random.chance(60) {
            return AnyBuffer::One(self.run(units.next_power_of_two().trailing_zeros() as usize));
        }
        let mut left = units;
        let mut pieces = Vec::new();
        while left > 0 {
            let largest = left.ilog2() as usize;
            let class = random.index(largest + 1).max(largest.saturating_sub(2));
            left -= 1 << class;
            pieces.push(self.run(class));
        }
        AnyBuffer::Many(pieces)
    }

    /// Returns a run of 2 to the power of `class` units.
    fn run(&mut self, class: usize) -> Buffer {
        if let Some(run) = self.free.get_mut(class).and_then(Vec::pop) {
            return run;
        }
        let bytes = (UNIT_BYTES as usize) << class;
        let mut run = match self.rest.take() {
            Some(rest) if rest.len() >= bytes => rest,
            rest => {
                rest.into_iter().for_each(|rest| self.keep(rest));
                self.region(REGION_BYTES.max(bytes))
            }
        };
        self.rest = Some(run.split_off(bytes));
        run
    }

    /// Allocates a region to cut runs from.
    fn region(&mut self, bytes: usize) -> Buffer {
        let region = self.allocate(bytes);
        self.regions.insert(region.iova().0, bytes);
        region
    }

    pub(crate) fn give(&mut self, memory: AnyBuffer) {
        match memory {
            AnyBuffer::None => {}
            AnyBuffer::One(buffer) => self.keep(buffer),
            AnyBuffer::Many(buffers) => buffers.into_iter().for_each(|buffer| self.keep(buffer)),
        }
    }

    /// Neighbours may come back joined: cut them again.
    fn keep(&mut self, mut buffer: Buffer) {
        while !buffer.is_empty() {
            let class = (buffer.len() / UNIT_BYTES as usize).ilog2() as usize;
            let rest = buffer.split_off((UNIT_BYTES as usize) << class);
            if self.free.len() <= class {
                self.free.resize_with(class + 1, Vec::new);
            }
            self.free[class].push(std::mem::replace(&mut buffer, rest));
        }
    }
}

impl Drop for Pool {
    /// Keeps whole regions for the next run.
    fn drop(&mut self) {
        let mut runs: Vec<Buffer> = self.free.drain(..).flatten().chain(self.rest.take()).collect();
        runs.sort_unstable_by_key(|run| run.iova().0);
        let mut joined: Vec<Buffer> = Vec::new();
        for run in runs {
            let apart = match joined.last_mut() {
                Some(last) => last.join(run).err(),
                None => Some(run),
            };
            joined.extend(apart);
        }
        joined.retain(|region| self.regions.get(&region.iova().0) == Some(&region.len()));
        let whole = joined.into_iter().chain(self.whole.drain(..));
        // A thread that is ending keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            let places = SPARE_MAX.saturating_sub(spare.len());
            spare.extend(whole.take(places));
        });
    }
}

/// Returns the bytes of all pieces.
pub(crate) fn length(memory: &AnyBuffer) -> usize {
    pieces(memory).map(|piece| piece.len()).sum()
}

/// Returns all bytes, in order.
pub(crate) fn gather(memory: &AnyBuffer) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length(memory));
    pieces(memory).for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Copies bytes into the memory; the rest stays unchanged.
pub(crate) fn scatter(memory: &mut AnyBuffer, mut bytes: &[u8]) {
    for piece in pieces_mut(memory) {
        let len = piece.len().min(bytes.len());
        piece[..len].copy_from_slice(&bytes[..len]);
        bytes = &bytes[len..];
    }
}

pub(crate) fn pieces(memory: &AnyBuffer) -> impl Iterator<Item = &Buffer> {
    let slice = match memory {
        AnyBuffer::None => &[],
        AnyBuffer::One(buffer) => std::slice::from_ref(buffer),
        AnyBuffer::Many(buffers) => &buffers[..],
    };
    slice.iter()
}

pub(crate) fn pieces_mut(memory: &mut AnyBuffer) -> impl Iterator<Item = &mut Buffer> {
    let slice = match memory {
        AnyBuffer::None => &mut [],
        AnyBuffer::One(buffer) => std::slice::from_mut(buffer),
        AnyBuffer::Many(buffers) => &mut buffers[..],
    };
    slice.iter_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_whole_units_and_comes_back() {
        let (mut pool, mut random) = (Pool::default(), Random::new(3));
        for bytes in [1, 4096, 4097, 50_000, 3 << 20] {
            for _ in 0..8 {
                let memory = pool.take(bytes, &mut random);
                assert!(length(&memory) as u64 >= bytes);
                assert!(pieces(&memory).all(|piece| piece.len().is_multiple_of(4096)));
                pool.give(memory);
            }
        }
        let before = pool.free.iter().map(Vec::len).sum::<usize>();
        let memory = pool.take(4096, &mut random);
        assert_eq!(pool.free.iter().map(Vec::len).sum::<usize>(), before - pieces(&memory).count());
    }
}
