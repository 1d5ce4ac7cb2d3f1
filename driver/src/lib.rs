//! NVMe from user space.

pub mod bus;
pub mod controller;
pub mod error;
mod locality;
pub mod memory;
mod namespace;
pub mod queue_pair;
mod ring;
mod slots;
pub mod soft;
pub mod spec;
pub mod sys;
pub mod target;
mod time;
pub mod transfer;

pub use controller::{Controller, ControllerInfo, ControllerOptions, Placement};
pub use error::{Error, Result};
pub use memory::{Buffer, IoBuffer};
pub use namespace::Namespace;
pub use queue_pair::{
    Command, CommandError, Completion, QueuePair, QueuePairOptions, RejectReason, Rejected, Stats,
};
pub use target::Target;
pub use time::Time;

/// The README, whose example is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
