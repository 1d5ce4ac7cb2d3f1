//! NVMe queue pairs that a GPU drives.
//!
//! Nothing of CUDA is needed to build this crate. A machine without a GPU, without its driver or with too old a one gets
//! [`Error::Unavailable`] with the reason. `docs/gpu.md` has the map.

pub mod addressing;
#[cfg(test)]
mod alone;
pub mod bench;
mod controller;
mod cuda;
pub mod doctor;
mod doorbell;
mod engine;
pub mod error;
mod gates;
mod iocb;
mod layout;
mod options;
mod outcome;
mod paths;
mod pool;
mod program;
mod proxy;
mod queue;
mod queues;
mod rings;
pub mod selftest;
mod staged;
mod table;
mod topology;
mod transfer;
mod uring;

pub use cuda::{Attributes, Event, Gpu, GpuInfo, Priority, Stream};
pub use error::{Error, Result};
pub use iocb::Iocbs;
pub use options::{DoorbellChoice, EngineChoice, KernelChoice, Options, Place};
pub use outcome::{Ended, Outcome};
pub use paths::{MemoryPath, PathReport, probe};
pub use pool::{Pool, REGIONS_MAX};
pub use program::{Compiled, SOURCES, compile};
pub use proxy::ProxyOptions;
pub use transfer::{Direction, Transfer};
pub use uring::{Description, Device, GioUring, Stats, WaitAddresses};

// The page's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/gpu.md")]
struct Page;
