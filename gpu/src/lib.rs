//! NVMe queue pairs that a GPU drives.
//!
//! Building this crate needs no CUDA. Without a GPU, without its driver or with too old a driver, calls return
//! [`Error::Unavailable`] with the reason. `docs/gpu.md` gives the overview.

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
mod pages;
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

pub use adit_driver::transfer::{Direction, Slice, Transfer};
pub use cuda::{Attributes, Event, Gpu, GpuInfo, Priority, Stream};
pub use error::{Error, Result};
pub use iocb::Iocbs;
pub use options::{DoorbellChoice, EngineChoice, KernelChoice, Options, Place};
pub use outcome::{Ended, Outcome};
pub use pages::Pages;
pub use paths::{MemoryPath, PathReport, probe};
pub use pool::{Pool, REGIONS_MAX};
pub use program::{Compiled, SOURCES, compile};
pub use proxy::ProxyOptions;
pub use uring::{Description, Device, GioUring, Stats, WaitAddresses};

// Compiles the page's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Page;
