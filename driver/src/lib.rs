//! NVMe from user space: a driver that owns its queue pairs.
//!
//! A [`Target`] (`vfio:0000:01:00.0`, `vfio-user:PATH`, `soft:mem=1G`) names a drive. [`Controller::open`] brings
//! it up; the controller allocates DMA memory ([`Buffer`]) and creates [`QueuePair`]s. A [`Namespace`] builds
//! [`Command`]s. A command owns its buffer while it is in flight and gives it back in its [`Completion`].
//!
//! ```
//! use adit_driver::spec::Lba;
//! use adit_driver::{Buffer, Controller, ControllerOptions, QueuePair, QueuePairOptions, Target};
//!
//! let target: Target = "soft:mem=1M".parse()?;
//! let controller = Controller::open(&target, &ControllerOptions::default())?;
//! let namespace = controller.namespace_of(&target)?;
//! let mut queue: QueuePair<Buffer> = controller.create_queue_pair(QueuePairOptions::default())?;
//!
//! let buffer = controller.allocate(4096)?;
//! queue.submit(controller.now(), namespace.read(Lba(0), buffer))?;
//! while queue.in_flight() > 0 {
//!     queue.poll(controller.now(), |done| println!("{:?}", done.result));
//!     queue.check()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that should run on kernel files and block devices too (`uring:`, `psync:`, ...) opens a [`Device`]
//! in the place of a controller.
//!
//! | in reading order | what it is |
//! |---|---|
//! | [`target`] | the text that names a device |
//! | [`controller`] | bring-up, admin commands, queue pairs, events, recovery, shutdown |
//! | [`memory`] | buffers, and memory of other owners |
//! | [`queue_pair`] | commands in flight and how they end |
//! | [`error`] | every other failure, by its remedy |
//! | [`paths`] | a device by any path, the driver's or the kernel's |
//! | [`runtime`], [`reactor`] | threads that own queue pairs for programs in which any thread asks for I/O, and futures |
//! | [`transfer`] | ranges of LBAs and memory to commands, for own planners |
//! | [`bus`], [`sys`] | access to a device; mapped memory and registers |
//! | [`lock`] | what one process at a time has |
//! | [`spec`], [`soft`] | wire types; a software controller that shares no logic with the driver |
//!
//! `docs/ARCHITECTURE.md` has the map of the repository.

pub mod bus;
pub mod controller;
pub mod error;
mod file_mapping;
mod locality;
pub mod lock;
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

pub use adit_shared::{Time, deadline};
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

/// Compiles and runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
