//! The only memory-unsafe code of the driver's core: mapped registers, DMA memory and the atomics over both.
//!
//! Everything above works with the safe types of this module:
//!
//! | type | what it is |
//! |---|---|
//! | [`Window`], [`Register32`] | mapped device registers, accessed atomically |
//! | [`HostMemory`] | memory of this process for DMA: allocated or the caller's |
//! | [`Atomics`] | a view of shared memory as atomics: rings, lists, shadow doorbells |
//! | [`SharedBytes`], [`SharedBytesMut`] | bytes that others may write at any time, which are only copied |
//! | [`SharedPages`] | memory that a software controller exposes as a BAR |
//! | [`DmaTable`] | a software controller's IOMMU: device address to memory |
//! | [`barrier`] | the two fences a doorbell needs |
//!
//! A device (or a software controller) writes this memory while we hold it, so nothing here hands out `&mut [u8]` to
//! memory in flight.

pub mod barrier;
pub(crate) mod bus_error;
mod dma_table;
pub(crate) mod file_io;
#[cfg(feature = "serve")]
pub(crate) mod fragile;
mod host_memory;
pub(crate) mod memory_file;
mod ring;
mod window;

pub use adit_shared::{
    Atomics, SharedBytes, SharedBytesMut, SharedPages, punch_hole, zero_mapping,
};
pub use dma_table::DmaTable;
pub use host_memory::{Backing, HostMemory, HostRange, PageKind};
pub use ring::Ring;
pub use window::{Register32, Window};
