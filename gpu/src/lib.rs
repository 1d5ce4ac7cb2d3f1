//! NVMe queue pairs that a GPU drives.
//!
//! A GPU's warps write submission entries and reap completions themselves; the CPU prepares once per layer of a model.
//! Building this crate needs no CUDA. Without a GPU, without its driver or with too old a driver, calls return
//! [`Error::Unavailable`] with the reason.
//!
//! | step | call | who works |
//! |---|---|---|
//! | memory that GPU and controllers reach | [`Pool::allocate`], [`Pool::register`] | CPU, once |
//! | queues and rings over some [`Device`]s | [`GioUring::init_queue`] with [`Options`] | CPU, once |
//! | [`Transfer`]s cut into control blocks; [`Pages`] places a store's plan in the pool | [`GioUring::get_iocb`] | CPU, once per layer |
//! | execution behind the event given before | [`GioUring::issue_io`] | GPU |
//! | a [`Stream`] waits for the data | [`GioUring::wait_cqe`] | GPU |
//! | checksums compared | [`GioUring::verify`] | GPU |
//! | how each command ended | [`GioUring::wait`] gives an [`IocbOutcome`] | CPU, later |
//!
//! If the GPU cannot drive the devices' queues, CPU threads carry the same calls out, and [`GioUring::description`] says
//! why. [`Pages`] has an example; `docs/use/gpu.md` explains the algorithm.
//!
//! From the bottom up, a folder uses only those before it:
//!
//! | folder | holds |
//! |---|---|
//! | `cuda` | calls of CUDA, device code compiled and loaded |
//! | `reach` | memory, queues and doorbells that GPU and controllers both reach |
//! | `commands` | transfers cut into contexts, the layout shared with device code, how commands end |
//! | `staged` | the same commands carried out by CPU threads |
//! | `rings` | control blocks, the rings in GPU memory and their kernels |
//!
//! The feature `internals` exports parts of these folders to the tools that measure and check them. They change without
//! notice.
// Without the feature, items that are `pub` inside are unreachable from outside. With it, they need no documentation.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
#![cfg_attr(feature = "internals", allow(missing_docs))]

mod commands;
mod cuda;
pub mod error;
mod options;
mod reach;
mod rings;
mod staged;

#[cfg(feature = "internals")]
pub mod internals;

pub use adit_driver::transfer::{Direction, Slice, Transfer};

/// The version whose streams and events [`Stream::from_cudarc`] and [`Event::from_cudarc`] take.
pub use cudarc;

pub use commands::outcome::{Ended, IocbOutcome};
pub use cuda::program::{Compiled, SOURCES, compile, compile_kernels, compiler_version};
pub use cuda::{Attributes, Event, Gpu, GpuInfo, HostCopies, Priority, Stream};
pub use error::{Error, Result};
pub use options::{DoorbellChoice, EngineChoice, KernelChoice, Options, Place, ProxyOptions};
pub use reach::device::Device;
pub use reach::pages::Pages;
pub use reach::paths::{Carried, MemoryPath, PathReport};
pub use reach::pool::{Pool, REGIONS_MAX};
pub use rings::iocb::Iocbs;
pub use rings::uring::{Description, GioUring, Stats, WaitAddresses};
pub use rings::verify::{Check, Verdicts, Verifying};

// Compiles the page's example.
#[cfg(doctest)]
#[doc = include_str!("../../docs/use/gpu.md")]
struct Page;
