//! NVMe from user space.
//!
//! A [`Target`] (`vfio:0000:01:00.0`, `vfio-user:PATH`, `soft:mem=1G`) opens a [`Controller`], which
//! allocates DMA memory ([`Buffer`]) and creates [`QueuePair`]s. A [`Namespace`] builds [`Command`]s, which
//! own their buffers while in flight:
//!
//! ```text
//! namespace.read(lba, buffer) -> Command -> queue.submit -> queue.poll -> Completion { buffer, result }
//! ```
//!
//! From the wire up: [`spec`] (bytes), [`sys`] (memory and registers), [`bus`] (access to a device),
//! [`transfer`] (ranges to commands), [`queue_pair`] (commands in flight), [`controller`]. Beside them,
//! [`runtime`] has the threads for programs in which any thread asks for I/O, and [`reactor`] is one such use.
//! [`soft`] is a software controller that shares none of the code it tests. `docs/ARCHITECTURE.md` has the map.

pub mod bus;
pub mod controller;
pub mod error;
mod file_mapping;
mod locality;
pub mod memory;
mod namespace;
pub mod paths;
mod protection;
pub mod queue_pair;
pub mod reactor;
mod refused;
pub mod runtime;
#[cfg(feature = "serve")]
pub mod serve;
pub mod sys;
pub mod target;
pub mod transfer;

pub use adit_shared::Time;
pub use adit_soft as soft;
pub use adit_spec as spec;
pub use controller::{
    Controller, ControllerInfo, ControllerOptions, Event, Placement, QueuePair, QueuePairOptions,
};
pub use error::{Error, Result};
pub use file_mapping::FileMapping;
pub use memory::{Buffer, IoBuffer};
pub use namespace::{Namespace, OverLimit};
pub use paths::{Device, DeviceOptions};
pub use protection::{Protection, ProtectionChecks};
pub use queue_pair::{Command, CommandError, Completion, Errno, RejectReason, Rejected, Stats};
pub use target::{KernelPath, KernelTarget, Target};

/// Compiles and runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
