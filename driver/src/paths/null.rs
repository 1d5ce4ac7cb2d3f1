//! The `null:` path, which does no I/O: measures a benchmark's own cost.

use super::info::{DeviceInfo, QueueOptions};
use super::request::{CommandQueue, Request};
use crate::Time;
use crate::error::Result;
use crate::memory::IoBuffer;
use crate::queue_pair::{Completion, RejectReason, Rejected, Stats};
use crate::target::KernelTarget;

/// The most requests in flight, limited only by memory.
const DEPTH_MAX: u32 = 65_535;

/// The `null:` device; it has no state.
#[derive(Clone, Debug)]
pub(super) struct NullDevice;

/// Returns the properties of the device that `target` describes.
pub(super) fn info(target: &KernelTarget) -> DeviceInfo {
    DeviceInfo {
        device: target.device(),
        bytes: target.bytes,
        lba_bytes: target.lba_bytes,
        command_bytes_max: u64::MAX,
        boundary_bytes: 0,
        queue_depth_max: DEPTH_MAX,
        queue_count_max: u16::MAX,
        is_write_protected: false,
        deallocates: true,
        deallocate_lbas_max: u64::MAX,
        is_synchronous: false,
        is_preallocated: false,
        has_holes: false,
        is_cached: false,
        protection: None,
    }
}

impl NullDevice {
    pub(super) fn create_queue<B>(&self, options: &QueueOptions) -> NullQueue<B> {
        let depth = options.depth.min(DEPTH_MAX) as usize;
        NullQueue {
            posted: Vec::with_capacity(depth),
            rung: Vec::with_capacity(depth),
            depth,
            stats: Stats::default(),
        }
    }
}

/// A queue whose requests complete at the first poll after the ring, with unchanged buffers.
#[derive(Debug)]
pub struct NullQueue<B> {
    posted: Vec<B>,
    rung: Vec<B>,
    depth: usize,
    stats: Stats,
}

impl<B: IoBuffer> CommandQueue<B> for NullQueue<B> {
    #[inline]
    fn post(&mut self, _now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        if self.posted.len() + self.rung.len() == self.depth {
            return Err(Rejected { buffer: request.buffer, reason: RejectReason::Full });
        }
        self.posted.push(request.buffer);
        self.stats.submitted += 1;
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        if self.rung.is_empty() {
            std::mem::swap(&mut self.posted, &mut self.rung);
        } else {
            self.rung.append(&mut self.posted);
        }
        self.stats.submission_rings += 1;
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let count = self.rung.len();
        for buffer in self.rung.drain(..) {
            done(Completion { buffer, result: Ok(0) });
        }
        self.stats.completed += count as u64;
        count
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}
