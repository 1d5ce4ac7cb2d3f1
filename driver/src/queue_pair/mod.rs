//! The engine of a queue pair: the commands in flight, the buffers they own, and how requests become
//! commands.
//!
//! | file | job |
//! |---|---|
//! | `command` | commands as a caller builds them |
//! | `outcome` | their completions; the reasons for failing or rejecting them |
//! | `core` | the path of an I/O: post, ring, reap |
//! | `slots` | commands in flight: identifier with generation, buffer, deadline |
//! | `ring` | ring arithmetic over atomics, doorbells, shadow doorbells |
//! | `slow` | the rare: splitting, lists, bouncing, ending commands in flight |
//! | `lists` | the pages that lists and bounced data borrow |
//!
//! It must not know a controller, a clock or another queue. The admin queue is such an engine;
//! [`crate::QueuePair`] is one with its controller.

mod command;
pub(crate) mod core;
mod lists;
mod outcome;
pub(crate) mod ring;
mod slots;
mod slow;

pub use self::command::Command;
pub(crate) use self::command::{Body, Bounds, LbaCommand};
pub use self::core::{Latencies, Stats};
pub(crate) use self::lists::PagePool;
pub use self::outcome::{CommandError, Completion, Errno, RejectReason, Rejected};
pub(crate) use self::slots::Slots;
