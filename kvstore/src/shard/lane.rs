//! The way to one device: its queue, what waits for it, and memory for metadata.
//!
//! Every command that is pushed comes back exactly once as [`Finished`], with its memory. What failed for a passing
//! reason is sent again first, [`ATTEMPTS`] times at most. Once the device is out of service nothing is sent any more
//! and all that waits comes back failed.

use std::collections::VecDeque;

use adit_driver::device::{CommandQueue, Operation, Request};
use adit_driver::memory::{AnyBuffer, Buffer};
use adit_driver::{CommandError, RejectReason, Time};

use crate::schedule::{Class, Schedule};

/// Bytes of memory that a lane needs for metadata, in buffers of [`LANE_BUFFER_BYTES`].
pub const LANE_MEMORY_BYTES: usize = 4 << 20;
/// Bytes of each buffer of a lane's memory.
pub const LANE_BUFFER_BYTES: usize = 256 << 10;
/// How often a command is sent at most.
const ATTEMPTS: u8 = 4;

/// What a command of the store's owns while it is in flight: memory, and where the answer goes.
pub type Load = (AnyBuffer, Tag);

/// Which command it is, and what is needed to send it again.
#[derive(Clone, Copy, Debug)]
pub struct Tag {
    purpose: Purpose,
    operation: Operation,
    class: Class,
    bytes: u64,
    attempts: u8,
}

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Command `command` of a request's batch.
    Batch { batch: u32, command: u32 },
    /// Blocks of the journal up to this one.
    Journal { end: u64 },
    /// A flush.
    Flush,
    /// A part of a checkpoint's body.
    Body,
    /// A checkpoint's header.
    Header,
    /// Advice that units hold nothing of value.
    Discard,
    /// A read or write of opening, which waits for it.
    Opening { index: u32 },
}

/// A command to be sent.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) purpose: Purpose,
    pub(super) operation: Operation,
    pub(super) class: Class,
    pub(super) memory: AnyBuffer,
    /// Bytes that it moves.
    pub(super) bytes: u64,
    /// When it is too late to send it.
    pub(super) deadline: Time,
}

/// Why a command failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// It was never sent, since its deadline passed.
    #[error("its deadline passed before it was sent")]
    Expired,
    /// The device says no.
    #[error("{0}")]
    Command(#[from] CommandError),
    /// No queue takes it.
    #[error("{0}")]
    Rejected(RejectReason),
    /// The device is out of service.
    #[error("the device is out of service")]
    Gone,
}

/// A command that is over.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) purpose: Purpose,
    pub(super) memory: AnyBuffer,
    pub(super) result: Result<(), Fault>,
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
    /// Idle memory for metadata.
    pub(super) memory: Vec<Buffer>,
    waiting: Schedule<Command>,
    again: VecDeque<Command>,
    attempts: VecDeque<u8>,
    in_flight: usize,
    /// Why it is out of service.
    failure: Option<String>,
    /// Whether it has data that no flush was sent after.
    pub(super) is_dirty: bool,
    finished: Vec<Finished>,
}
