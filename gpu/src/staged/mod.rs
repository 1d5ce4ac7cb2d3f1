//! The engine for machines where a GPU cannot drive the devices' queues: CPU threads read into pinned memory and copy
//! from there, or the other way round.
//!
//! ```text
//! issue(work) -> a thread's lane of the device
//! read:   device -> pinned chunk -> copy to the GPU          \  two stages: while a chunk is in the second,
//! write:  copy from the GPU -> pinned chunk -> device        /  the next ones are in the first
//! when all of a block is over: failed statuses, then `done`, on the stream of its copies
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `job` | one control block on its way |
//! | `lane` | the state machine of one device's queue pair: no thread, no clock |
//! | `buffers` | the pinned chunks of a lane |
//! | `copies` | what a lane asks of a GPU |
//!
//! The engine needs no memory that devices can reach but its own chunks, and no raw queues: shadow doorbells may be on.

mod copies;
mod job;

pub(crate) use job::{Progress, Work};
