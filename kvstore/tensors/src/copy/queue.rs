//! A copy thread's queue to one device: drives a [`DirectQueue`] with the device's clock, and waits.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::memory::Buffer;
use adit_driver::paths::{CommandQueue, Device, DeviceQueue, QueueOptions};

use crate::direct::{DirectQueue, Direction, Load};
use crate::error::Result;
use crate::place::Span;
use crate::shape::TensorId;

/// The longest sleep between two checks of a time limit.
const NAP: Duration = Duration::from_millis(10);

/// Settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockingOptions {
    /// Maximum bytes of a command.
    pub(crate) command_bytes: u64,
    pub(crate) depth: u32,
    /// Time limit for the next completion.
    pub(crate) timeout: Duration,
}

/// A queue whose calls wait for the device.
#[derive(Debug)]
pub(crate) struct BlockingQueue {
    device: Device,
    pub(crate) core: DirectQueue<DeviceQueue<Load>>,
}

impl BlockingQueue {
    /// Opens a queue of `device`. `memory` is for transfers, `spare` for writes left behind.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn open(
        device: &Device,
        options: &BlockingOptions,
        memory: &Buffer,
        spare: Vec<Buffer>,
    ) -> Result<BlockingQueue> {
        let (info, timeout) = (device.info(), options.timeout);
        let depth = options.depth.clamp(1, info.queue_depth_max.max(1));
        let queue_options =
            QueueOptions { depth, timeout: timeout / 2, abort_timeout: timeout / 4 };
        let queue = device.create_queue(&queue_options, &[memory])?;
        let limits = (depth, options.command_bytes);
        let core = DirectQueue::new(queue, info, limits, timeout, spare);
        Ok(BlockingQueue { device: device.clone(), core })
    }

    /// Calls `step` with the present time until it has a result.
    fn drive<T>(
        &mut self,
        mut step: impl FnMut(&mut DirectQueue<DeviceQueue<Load>>, Time) -> Result<Option<T>>,
    ) -> Result<T> {
        self.core.expect_answers(self.device.now());
        loop {
            let now = self.device.now();
            if let Some(result) = step(&mut self.core, now)? {
                return Ok(result);
            }
            let has_answered = self.core.heard_at() == now;
            if !has_answered && !self.core.queue.wait(NAP) {
                std::thread::yield_now();
            }
        }
    }

    /// Moves the first bytes of `memory` to or from `span`. Returns the memory even after a failure, unless a command
    /// never ended: then the queue keeps it.
    pub(crate) fn transfer(
        &mut self,
        direction: Direction,
        span: Span,
        memory: Buffer,
    ) -> (Option<Buffer>, Result<()>) {
        self.core.begin(self.device.now(), direction, span, memory);
        let ended = self.drive(|core, now| Ok(core.advance(now)?.then_some(())));
        self.core.finish(self.device.now(), ended)
    }

    /// Begins to write `span`; `fill` puts its bytes into memory. Waits only while too many writes are left behind. The
    /// tensor must have none of them.
    ///
    /// # Errors
    /// Those of `fill` and of the device.
    pub(crate) fn write_behind(
        &mut self,
        tensor: TensorId,
        span: Span,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.drive(|core, now| Ok(core.has_room_behind(now)?.then_some(())))?;
        self.core.write_behind(tensor, span, fill)?;
        self.drive(|core, now| Ok(core.post_waiting(now)?.then_some(())))
    }

    /// Waits for the writes behind of a tensor, or of all tensors.
    ///
    /// # Errors
    /// The first failure of any write behind; it names the tensor.
    pub(crate) fn settle(&mut self, tensor: Option<TensorId>) -> Result<()> {
        self.drive(|core, now| Ok(core.has_settled(now, tensor)?.then_some(())))
    }

    /// Deallocates a run of LBAs, if the device can; `memory` is scratch memory.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn deallocate(&mut self, slba: u64, lbas: u64, memory: Buffer) -> Result<()> {
        let (mut at, end, mut memory) = (slba, slba + lbas, Some(memory));
        while let Some(most) = self.core.deallocates_at_once().filter(|_| at < end) {
            let count = most.min(end - at);
            let span = Span { slba: at, bytes: count * u64::from(self.core.lba_bytes()) };
            let scratch = memory.take().expect("it comes back from all that ends well");
            let (back, result) = self.transfer(Direction::Deallocate, span, scratch);
            result?;
            (memory, at) = (back, at + count);
        }
        Ok(())
    }
}
