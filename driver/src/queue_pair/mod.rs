//! The engine of a queue pair, below any controller: what is in flight, what it
//! owns, and how requests become commands.
//!
//! | file | job |
//! |---|---|
//! | `command` | commands as a caller builds them, and what comes back |
//! | `core` | the path of an I/O: post, ring, reap |
//! | `slow` | what is rare: splitting, lists, bouncing, ending what was in flight |
//! | `lists` | the pages that lists and bounced data borrow |
//!
//! Nothing here knows a controller, a clock or another queue. The admin queue is
//! such an engine, and [`crate::QueuePair`] is one with its controller.

mod command;
pub(crate) mod core;
mod lists;
mod slow;

pub(crate) use self::command::{Body, Bounds, Transfer};
pub use self::command::{Command, CommandError, Completion, Errno, RejectReason, Rejected};
pub use self::core::{Latencies, Stats};
pub(crate) use self::lists::PagePool;
