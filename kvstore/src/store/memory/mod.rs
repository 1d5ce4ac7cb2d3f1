//! Registered memory: the store's pools, and memory that callers lend.
//!
//! | file | holds |
//! |---|---|
//! | `fair_queue` | a queue for a scarce resource |
//! | `pool` | reused registered memory and its queue |
//! | `segments` | memory as a list of buffers |
//! | `payload`, `unfinished` | the data of a call, and the error of one that failed |
//! | `lent` | which part of callers' memory devices use in place; the rest is copied |
//! | `data` | data in registered memory, or waiting for it |
//! | `copy_mode` | whether a transfer that could go in place is copied because that is cheaper |
//! | `copy_out` | bytes read, on their way to the caller's memory |

mod copy_mode;
mod copy_out;
mod data;
mod fair_queue;
mod lent;
mod payload;
mod pool;
pub(crate) mod segments;
mod unfinished;

pub(crate) use self::copy_mode::{CopyMode, TimedTransfer};
pub(crate) use self::copy_out::CopyOut;
pub(crate) use self::data::{Data, RegisteredData, Unregistered};
pub(crate) use self::lent::{DeviceReach, Origin};
pub use self::payload::Payload;
pub use self::pool::PoolBuffer;
pub(crate) use self::pool::{Counts, Pool, Pools, QueuedTake, regions};
pub use self::unfinished::Unfinished;
