//! The GPU's side of a run: copies between its memory and pinned memory, and a model GPU for machines without one.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::shape::{Component, TensorId};

/// Copies between pinned memory and the computing device's memory.
///
/// Copy threads call it, each with its own pinned memory, which the drive also reads and writes, so that no further
/// copy is needed. When a call returns, even with an error, the device must no longer touch the pinned memory: the
/// drive may write it next. Implement the trait over `cudaMemcpyAsync` with one stream per thread, or over `HostCopies`
/// of `adit-gpu`; [`ModelGpu`] needs no GPU.
pub trait Gpu: Send + Sync + 'static {
    /// Fills `pinned` with a tensor's bytes from `offset` on.
    ///
    /// # Errors
    /// The device's failure, which the run reports.
    fn to_host(&self, tensor: TensorId, offset: u64, pinned: &mut [u8]) -> io::Result<()>;

    /// Copies `pinned` to a tensor's bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Gpu::to_host`].
    fn to_device(&self, tensor: TensorId, offset: u64, pinned: &[u8]) -> io::Result<()>;
}

/// Bytes between two stamps.
const PAGE: usize = 4096;
/// Bytes of a stamp.
const STAMP: usize = 8;

/// A copy engine for one direction: copies run one at a time, at a set bandwidth.
#[derive(Debug)]
struct Engine {
    /// The end of the last copy.
    free_at: Mutex<Instant>,
    bytes_per_second: u64,
}

impl Engine {
    fn new(bytes_per_second: u64) -> Engine {
        Engine { free_at: Mutex::new(Instant::now()), bytes_per_second }
    }

    /// Waits until a copy of `bytes`, queued behind earlier ones, would end.
    fn copy(&self, bytes: usize) {
        if self.bytes_per_second == 0 {
            return;
        }
        let took = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let ends_at = {
            let mut free_at = self.free_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *free_at = (*free_at).max(Instant::now()) + took;
            *free_at
        };
        std::thread::sleep(ends_at.saturating_duration_since(Instant::now()));
    }
}

/// A GPU that computes nothing. Copies of one direction run one at a time, at a set bandwidth. With stamps, it writes a
/// number into each 4 KiB page that it hands out and checks the number when the page returns.
#[derive(Debug)]
pub struct ModelGpu {
    to_host: Engine,
    to_device: Engine,
    stamps: bool,
    taken_bytes: AtomicU64,
}

impl ModelGpu {
    /// Creates a model with this bandwidth per direction, in bytes per second; with 0, copies take no time.
    pub fn new(bytes_per_second: u64, stamps: bool) -> ModelGpu {
        let engine = || Engine::new(bytes_per_second);
        let taken_bytes = AtomicU64::new(0);
        ModelGpu { to_host: engine(), to_device: engine(), stamps, taken_bytes }
    }

    /// Returns the bytes copied to the device so far.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }
}

impl Gpu for ModelGpu {
    fn to_host(&self, tensor: TensorId, offset: u64, pinned: &mut [u8]) -> io::Result<()> {
        if self.stamps {
            for (at, page) in stamped(offset, pinned.len()) {
                pinned[at..at + STAMP].copy_from_slice(&stamp(tensor, page));
            }
        }
        self.to_host.copy(pinned.len());
        Ok(())
    }

    fn to_device(&self, tensor: TensorId, offset: u64, pinned: &[u8]) -> io::Result<()> {
        if self.stamps {
            let wrong = stamped(offset, pinned.len())
                .find(|(at, page)| pinned[*at..*at + STAMP] != stamp(tensor, *page));
            if let Some((at, _)) = wrong {
                let at = offset + at as u64;
                return Err(io::Error::other(format!("{tensor}: wrong bytes at {at}")));
            }
        }
        self.to_device.copy(pinned.len());
        self.taken_bytes.fetch_add(pinned.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Lists the positions of stamps in `len` bytes from `offset` of a tensor on, with their page numbers.
fn stamped(offset: u64, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let first = (offset.next_multiple_of(PAGE as u64) - offset) as usize;
    let positions = (first..len).step_by(PAGE).filter(move |at| at + STAMP <= len);
    positions.map(move |at| (at, (offset + at as u64) / PAGE as u64))
}

fn stamp(tensor: TensorId, page: u64) -> [u8; STAMP] {
    let component = if tensor.component == Component::K { 1 } else { 2 };
    let name = u64::from(tensor.layer) << 2 | component;
    (name << 40 ^ page.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_tell_tensors_and_offsets_apart() {
        let gpu = ModelGpu::new(0, true);
        let [keys, values] = TensorId::pair(3);
        let mut pinned = vec![0; 5 * PAGE];
        gpu.to_host(keys, 512, &mut pinned).expect("a copy");
        gpu.to_device(keys, 512, &pinned).expect("the same bytes");
        assert_eq!(gpu.taken_bytes(), 5 * PAGE as u64);
        assert!(gpu.to_device(values, 512, &pinned).is_err());
        assert!(gpu.to_device(keys, 512 + PAGE as u64, &pinned).is_err());
        // A part with another begin still finds the stamps of the whole.
        gpu.to_device(keys, 1024, &pinned[512..]).expect("a part");
    }

    #[test]
    fn copies_of_one_direction_take_their_turn() {
        let gpu = ModelGpu::new(1 << 20, false);
        let tensor = TensorId::pair(0)[0];
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| gpu.to_device(tensor, 0, &[0; 1 << 14]).expect("a copy"));
            }
        });
        assert!(begun.elapsed() >= Duration::from_millis(31), "two copies of 1/64 s");
    }
}
