//! Access to a controller: one small trait, three buses.
//!
//! | bus | device | its access to memory |
//! |---|---|---|
//! | [`vfio`] | a real PCIe function bound to vfio-pci | confined by the IOMMU |
//! | [`vfio_user`] | a controller in another process, over a socket | what it is handed |
//! | [`soft`] | the software controller in this process | what is mapped for it |
//!
//! A bus provides registers, DMA addresses, a reset, interrupts and a clock, and knows nothing of NVMe. No
//! I/O calls it, except to ring a doorbell of a vfio-user server that does not let it be mapped.

mod clock;
pub mod iova;
mod mapped;
mod notices;
pub mod pci;
pub mod soft;
pub mod vfio;
pub mod vfio_user;

pub(crate) use clock::Clock;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use self::pci::VirtualFunction;
use crate::Time;
use crate::error::{Error, Result};
use crate::spec::Iova;
use crate::sys::{Backing, HostRange, Register32, Window};

/// A doorbell of the device, as the bus can reach it. Clone it only to hand it to its next user.
#[derive(Clone, Debug)]
pub enum Doorbell {
    /// Mapped into this process: ringing is one store.
    Mapped(Register32),
    /// Reached by a message: ringing is a [`Bus::write32`].
    Message(MessageDoorbell),
}

/// A doorbell written by a message; [`Doorbell::message`] creates one.
#[derive(Clone, Debug)]
pub struct MessageDoorbell {
    bus: Arc<dyn Bus>,
    /// Offset in BAR0.
    offset: u32,
}

impl Doorbell {
    /// Returns the doorbell at `offset` of BAR0, rung by [`Bus::write32`].
    ///
    /// # Safety
    /// As [`Bus::doorbell`].
    #[allow(unsafe_code)]
    pub unsafe fn message(bus: Arc<dyn Bus>, offset: u32) -> Doorbell {
        Doorbell::Message(MessageDoorbell { bus, offset })
    }

    /// Writes the doorbell. Earlier writes to ring memory become visible to the device first.
    #[inline(always)]
    pub fn ring(&self, value: u32) {
        crate::sys::barrier::before_doorbell();
        match self {
            Doorbell::Mapped(register) => register.write(value),
            Doorbell::Message(doorbell) => doorbell.ring(value),
        }
    }
}

impl MessageDoorbell {
    #[allow(unsafe_code)]
    #[cold]
    #[inline(never)]
    fn ring(&self, value: u32) {
        // SAFETY: the creator of the doorbell answers for what is rung.
        unsafe { self.bus.write32(self.offset, value) };
    }
}

/// A device's location, for placing memory and threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// PCI address (`0000:01:00.0`), if any.
    pub pci_address: Option<String>,
    /// NUMA node, if the kernel reports one.
    pub numa_node: Option<u32>,
}

/// An event of the device outside its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusEvent {
    /// The bus reported an unrecoverable error (AER).
    Error,
    /// The system requests the device's removal (hot unplug, unbind): close it soon.
    RemovalRequested,
    /// The device is gone: the connection broke.
    Gone,
}

/// Access to a controller. Offsets are into BAR0; all values little-endian as the host sees them.
///
/// Implementations are used from any thread. A device that is gone reads as all ones, as on PCIe; accessing a
/// register is never an error.
///
/// # Safety
/// The driver hands out memory according to a bus's answers. Addresses that [`Bus::map`] and [`Bus::reserve`]
/// return are not used twice at a time and reach the memory given and no other; after a successful
/// [`Bus::unmap`] the device reaches it no more; after a successful [`Bus::reset`] it reads and writes
/// nothing until it is set up anew; after a successful [`Bus::cut_off`] it reaches no memory ever again.
///
/// Calls that steer the device's DMA are unsafe, so that safe code reaches a device only through
/// [`crate::Controller`].
#[allow(unsafe_code)]
pub unsafe trait Bus: Send + Sync + fmt::Debug {
    /// Returns the target string of the device, for messages.
    fn device(&self) -> &str;

    /// Reads a 32-bit register.
    fn read32(&self, offset: u32) -> u32;
    /// Writes a 32-bit register.
    ///
    /// # Safety
    /// The write does not make the device read or write memory that this process uses otherwise: queue
    /// addresses name memory that is mapped for the device and the caller's, and a doorbell announces entries
    /// whose commands keep to such memory.
    unsafe fn write32(&self, offset: u32, value: u32);
    /// Reads a 64-bit register.
    fn read64(&self, offset: u32) -> u64;
    /// Writes a 64-bit register.
    ///
    /// # Safety
    /// As [`Bus::write32`].
    unsafe fn write64(&self, offset: u32, value: u64);

    /// Returns the doorbell at `offset`.
    ///
    /// # Safety
    /// Every value rung there keeps to the contract of [`Bus::write32`], for as long as the doorbell is used.
    ///
    /// # Errors
    /// If BAR0 does not reach that far.
    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell>;

    /// Returns whether the doorbells of I/O queues are memory of a process that polls it: ringing them costs what
    /// a shadow doorbell costs, which then saves nothing and needs a fence for each ring.
    fn doorbells_are_memory(&self) -> bool {
        false
    }

    /// Maps `len` bytes at `offset` of BAR `bar` (the controller memory buffer).
    ///
    /// # Safety
    /// Every write there keeps to the contract of [`Bus::write32`], for as long as the window is used.
    ///
    /// # Errors
    /// If the BAR is absent, too short or may not be mapped.
    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window>;

    /// Makes memory visible to the device and returns its address there, 4 KiB aligned.
    ///
    /// # Safety
    /// The memory stays allocated until [`Bus::unmap`], [`Bus::cut_off`] or the end of the bus took it from
    /// the device, and no Rust reference to its bytes is used while the device may write them.
    ///
    /// # Errors
    /// Each refusal by name: the memlock limit, the container's mapping limit, no address space left in the
    /// IOMMU's ranges, no file behind the memory.
    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova>;

    /// Removes a mapping: the device can no longer access the memory.
    ///
    /// # Safety
    /// The caller mapped that memory, and nothing uses its device addresses any more: the bus may give them
    /// to other memory.
    ///
    /// # Errors
    /// If the system refuses; the memory must then be leaked, not freed.
    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()>;

    /// Makes `len` bytes from `offset` of `file` visible to the device and returns their address there, 4 KiB
    /// aligned, even if this process cannot access them: a dma-buf of another device's memory. [`Bus::unmap`]
    /// removes the mapping.
    ///
    /// # Safety
    /// As [`Bus::map`], of the file's bytes.
    ///
    /// # Errors
    /// If the bus cannot map files, or the system refuses this one.
    unsafe fn map_file(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Iova> {
        let _ = (file, offset);
        let what = format!("cannot map {len} bytes of a file for DMA");
        let why = "this bus reaches only memory that is mapped into this process";
        Err(Error::refused(self.device(), what, why, "map the file and register the mapping"))
    }

    /// Reserves `len` bytes of device address space without a mapping (for the controller memory buffer), for
    /// the life of the bus.
    ///
    /// # Errors
    /// If no such range is free.
    fn reserve(&self, len: u64) -> Result<Iova>;

    /// Returns the backing that memory needs for [`Bus::map`].
    fn backing(&self) -> Backing {
        Backing::Any
    }

    /// Resets the function; all its DMA has stopped when this returns. The function then answers and may
    /// start DMA again, whatever happened to its link.
    ///
    /// # Errors
    /// If the device or the system cannot reset it.
    fn reset(&self) -> Result<()>;

    /// Removes all memory from the device for good: the last resort if it cannot be reset. Nothing can be
    /// mapped afterwards; memory that was mapped may be freed.
    ///
    /// # Errors
    /// If the bus cannot do this, or fails to.
    fn cut_off(&self) -> Result<()> {
        let what = "cannot cut the device off from memory";
        Err(Error::device(
            self.device(),
            what,
            "end this process and the other one that drives the device",
        ))
    }

    /// Returns the number of interrupt vectors, possibly 0.
    fn vector_count(&self) -> u16;

    /// Enables vectors `0..count` and returns an eventfd for each.
    ///
    /// # Errors
    /// If there are fewer vectors or the system refuses.
    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>>;

    /// Returns an event since the last call, without waiting.
    fn take_event(&self) -> Option<BusEvent>;

    /// Returns the current time.
    fn now(&self) -> Time;

    /// Returns milliseconds since 1970, for the controller's timestamp.
    fn unix_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }

    /// Pauses for `at_most` or less: yields or sleeps on a real machine, steps a software controller without
    /// its own thread.
    fn pause(&self, at_most: Duration);

    /// Returns the device's location.
    fn locality(&self) -> Locality;

    /// Returns its place on its physical function, if it is a virtual function.
    fn virtual_function(&self) -> Option<VirtualFunction> {
        None
    }
}
