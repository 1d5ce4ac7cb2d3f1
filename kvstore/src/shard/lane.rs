//! The way to one device: its queue, what it can do, and memory for metadata.

use adit_driver::device::CommandQueue;
use adit_driver::memory::{AnyBuffer, Buffer};

/// Bytes of memory that a lane needs for metadata, in buffers of [`LANE_BUFFER_BYTES`].
pub const LANE_MEMORY_BYTES: usize = 4 << 20;
/// Bytes of each buffer of a lane's memory.
pub const LANE_BUFFER_BYTES: usize = 256 << 10;

/// What a command of the store's owns while it is in flight: memory, and where the answer goes.
pub type Load = (AnyBuffer, Tag);

/// Which command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Which of the shard's batches, or of its own purposes.
    pub(super) batch: u32,
    /// Which of the batch's commands.
    pub(super) command: u32,
    /// How often it was sent before.
    pub(super) attempts: u8,
}

/// What a shard must know of a device.
pub struct LaneInfo {
    /// Its name, for messages.
    pub device: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of an LBA, 512 to 4096.
    pub lba_bytes: u32,
    /// Most bytes of one command.
    pub command_bytes_max: u64,
    /// What one command must not cross a multiple of; 0 for nothing.
    pub boundary_bytes: u64,
    /// Most commands in flight.
    pub depth: u32,
    /// Whether it can be told that LBAs hold nothing of value.
    pub deallocates: bool,
    /// Whether its queue can use this memory.
    pub accepts: Box<dyn Fn(&AnyBuffer) -> bool + Send>,
}

/// The way to one device.
pub struct Lane<Q> {
    pub(super) queue: Q,
    pub(super) info: LaneInfo,
    pub(super) memory: Vec<Buffer>,
}

impl<Q: CommandQueue<Load>> Lane<Q> {
    /// A lane over `queue`. `memory` is [`LANE_MEMORY_BYTES`] that the device can use, in one piece.
    ///
    /// # Panics
    /// If there is less memory.
    pub fn new(queue: Q, info: LaneInfo, mut memory: Buffer) -> Lane<Q> {
        assert!(memory.len() >= LANE_MEMORY_BYTES, "a lane has memory for metadata");
        let count = LANE_MEMORY_BYTES / LANE_BUFFER_BYTES;
        let cut = |index| memory.split_off(index * LANE_BUFFER_BYTES);
        let memory = (0..count).rev().map(cut).collect();
        Lane { queue, info, memory }
    }
}
