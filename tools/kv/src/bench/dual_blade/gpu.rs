//! A run's side of a real GPU: the pinned memory of each copy thread is the drive's and the GPU's.
//!
//! The GPU computes nothing. It holds one tensor for each copy thread, the one that the thread moved last, as an engine
//! that computes layer by layer needs few at a time.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use adit_gpu::HostCopies;
use adit_tensors::{Gpu, ModelGpu, RunOptions, TensorId};

use crate::failure::{Failure, Result};

/// Longest time of a copy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A GPU that copies and computes nothing.
#[derive(Debug)]
pub(super) struct RealGpu {
    lanes: Vec<Lane>,
    /// Puts numbers into pages and checks them, if bytes are verified.
    stamps: Option<ModelGpu>,
}

/// What a copy thread uses of the GPU.
#[derive(Debug)]
struct Lane {
    /// The thread, once it has made a copy.
    owner: OnceLock<ThreadId>,
    copies: Mutex<HostCopies>,
}

impl RealGpu {
    /// Opens a GPU and allocates its memory for a run; with `stamps`, bytes are verified as they are in its memory.
    ///
    /// # Errors
    /// There is no such GPU, or too little memory.
    pub(super) fn open(ordinal: u32, options: &RunOptions, stamps: bool) -> Result<RealGpu> {
        let gpu = adit_gpu::Gpu::open(ordinal)?;
        let lane = |_| Lane::open(&gpu, options.shape.tensor_bytes());
        let lanes = (0..options.threads()).map(lane).collect::<Result<_>>()?;
        Ok(RealGpu { lanes, stamps: stamps.then(|| ModelGpu::new(0, true)) })
    }

    /// Runs `copy` with the lane of this thread.
    fn with<T>(&self, copy: impl FnOnce(&mut HostCopies) -> io::Result<T>) -> io::Result<T> {
        let me = thread::current().id();
        let mine = self.lanes.iter().find(|lane| *lane.owner.get_or_init(|| me) == me);
        let lane = mine.ok_or_else(|| {
            let count = self.lanes.len();
            io::Error::other(format!("memory of the GPU is for {count} copy threads, not for more"))
        })?;
        copy(&mut lane.copies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lane {
    fn open(gpu: &Arc<adit_gpu::Gpu>, tensor_bytes: u64) -> Result<Lane> {
        let copies = Mutex::new(HostCopies::new(gpu, tensor_bytes, TIMEOUT)?);
        Ok(Lane { owner: OnceLock::new(), copies })
    }
}

impl Gpu for RealGpu {
    fn to_host(&self, tensor: TensorId, offset: u64, pinned: &mut [u8]) -> io::Result<()> {
        self.with(|copies| {
            if let Some(stamps) = &self.stamps {
                let mut computed = vec![0; pinned.len()];
                stamps.to_host(tensor, offset, &mut computed)?;
                copies.write_once(offset, &computed).map_err(io::Error::other)?;
            }
            copies.read(offset, pinned).map_err(io::Error::other)
        })
    }

    fn to_device(&self, tensor: TensorId, offset: u64, pinned: &[u8]) -> io::Result<()> {
        self.with(|copies| {
            copies.write(offset, pinned).map_err(io::Error::other)?;
            let Some(stamps) = &self.stamps else { return Ok(()) };
            let mut there = vec![0; pinned.len()];
            copies.read_once(offset, &mut there).map_err(io::Error::other)?;
            stamps.to_device(tensor, offset, &there)
        })
    }
}

/// Refuses a GPU that is not there, before a run is started.
///
/// # Errors
/// There is no GPU, or none with this number.
pub(super) fn check(ordinal: u32) -> Result<()> {
    let count = adit_gpu::Gpu::count()?;
    match ordinal < count {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "--gpu {ordinal}: there is no GPU {ordinal}; there are {count}, from 0 on"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use adit_tensors::{Model, Shape};

    use super::*;

    const PAGE: usize = 4096;

    /// Tensors of 65 pages, two copy threads.
    fn gpu(stamps: bool) -> RealGpu {
        let shape = Shape::new(Model::OPT_1_3B, 1, 64, 2).expect("a shape");
        let options = RunOptions { copy_threads: 2, ..RunOptions::new(shape) };
        RealGpu::open(0, &options, stamps).expect("the emulated GPU")
    }

    #[test]
    fn wrong_bytes_in_the_gpus_memory_are_found() {
        let name = concat!(module_path!(), "::wrong_bytes_in_the_gpus_memory_are_found");
        adit_gpu_emulated::alone("", name, || {
            let (gpu, [keys, values]) = (gpu(true), TensorId::pair(3));
            let mut pinned = vec![0xff; 8 * PAGE];
            gpu.to_host(keys, PAGE as u64, &mut pinned).expect("a copy");
            gpu.to_device(keys, PAGE as u64, &pinned).expect("the same bytes");
            assert!(gpu.to_device(values, PAGE as u64, &pinned).is_err(), "of another tensor");
            assert!(gpu.to_device(keys, 0, &pinned).is_err(), "of another place");
            pinned[5 * PAGE] ^= 1;
            let error = gpu.to_device(keys, PAGE as u64, &pinned).expect_err("damaged");
            assert!(error.to_string().contains("wrong bytes at"), "{error}");
        });
    }

    #[test]
    fn bytes_come_back_from_the_gpu() {
        let name = concat!(module_path!(), "::bytes_come_back_from_the_gpu");
        adit_gpu_emulated::alone("", name, || {
            let (gpu, tensor) = (gpu(false), TensorId::pair(0)[0]);
            let sent: Vec<u8> = (0..65 * PAGE).map(|index| (index % 251) as u8).collect();
            gpu.to_device(tensor, 0, &sent).expect("it fits");
            let mut back = vec![0; 2 * PAGE];
            gpu.to_host(tensor, PAGE as u64, &mut back).expect("it fits");
            assert!(back == sent[PAGE..3 * PAGE]);
            let error = gpu.to_host(tensor, 64 * PAGE as u64, &mut back).expect_err("beyond");
            assert!(error.to_string().contains("the memory has 266240"), "{error}");
        });
    }

    #[test]
    fn each_copy_thread_has_memory_of_its_own() {
        let name = concat!(module_path!(), "::each_copy_thread_has_memory_of_its_own");
        adit_gpu_emulated::alone("", name, || {
            let (gpu, tensor) = (gpu(false), TensorId::pair(0)[0]);
            let mut mine = vec![1; PAGE];
            gpu.to_device(tensor, 0, &mine).expect("the first thread");
            let other = || gpu.to_device(tensor, 0, &vec![2; PAGE]);
            thread::scope(|scope| scope.spawn(other).join()).expect("it ends").expect("the second");
            gpu.to_host(tensor, 0, &mut mine).expect("the first again");
            assert!(mine.iter().all(|byte| *byte == 1), "the other thread's is elsewhere");
            let third = thread::scope(|scope| scope.spawn(other).join()).expect("it ends");
            assert!(third.expect_err("no lane").to_string().contains("2 copy threads"));
        });
    }
}
