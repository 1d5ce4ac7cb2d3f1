//! Memory for what is put and read.

use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::{Device, DeviceOptions};
use adit_kvstore::UNIT_BYTES;

use crate::random::Random;

/// Memory is taken from the system in so many bytes.
const REGION_BYTES: usize = 8 << 20;

/// Runs of a power of two of units, and what is not cut yet.
pub(crate) struct Pool {
    device: Device,
    /// By the logarithm of their units.
    free: Vec<Vec<Buffer>>,
    rest: Option<Buffer>,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        let target = "null:".parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("nothing to open");
        Pool { device, free: Vec::new(), rest: None }
    }

    /// Memory of its own.
    pub(crate) fn allocate(&self, bytes: usize) -> Buffer {
        self.device.allocate(bytes).expect("the machine has memory")
    }

    /// At least `bytes` in whole units, in one piece or several.
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

    /// A run of two to the power of `class` units.
    fn run(&mut self, class: usize) -> Buffer {
        if let Some(run) = self.free.get_mut(class).and_then(Vec::pop) {
            return run;
        }
        let bytes = (UNIT_BYTES as usize) << class;
        let fits = self.rest.as_ref().is_some_and(|rest| rest.len() >= bytes);
        let mut run = match self.rest.take() {
            Some(rest) if fits => rest,
            _ => self.allocate(REGION_BYTES.max(bytes)),
        };
        self.rest = Some(run.split_off(bytes));
        run
    }

    /// Takes memory back.
    pub(crate) fn give(&mut self, memory: AnyBuffer) {
        match memory {
            AnyBuffer::None => {}
            AnyBuffer::One(buffer) => self.keep(buffer),
            AnyBuffer::Many(buffers) => buffers.into_iter().for_each(|buffer| self.keep(buffer)),
        }
    }

    /// Neighbours may come back as one: they are cut again.
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

/// Bytes of all its pieces.
pub(crate) fn length(memory: &AnyBuffer) -> usize {
    pieces(memory).map(|piece| piece.len()).sum()
}

/// Its pieces, in order.
pub(crate) fn pieces(memory: &AnyBuffer) -> impl Iterator<Item = &Buffer> {
    let slice = match memory {
        AnyBuffer::None => &[],
        AnyBuffer::One(buffer) => std::slice::from_ref(buffer),
        AnyBuffer::Many(buffers) => &buffers[..],
    };
    slice.iter()
}

/// Its pieces, to be written to.
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
        let (mut pool, mut random) = (Pool::new(), Random::new(3));
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
