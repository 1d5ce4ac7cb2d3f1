//! What a controller hangs off: one small trait, three buses.
//!
//! | bus | module | the device is |
//! |---|---|---|
//! | [`vfio`] | real PCIe function bound to vfio-pci | fenced by the IOMMU |
//! | [`vfio_user`] | a controller in another process, over a socket | fenced by what it is handed |
//! | [`soft`] | the software controller in this process | ours |
//!
//! A bus gives registers, DMA addresses, a reset, interrupts and a clock, and
//! knows nothing of NVMe. Nothing here is called per I/O, except a doorbell of
//! a vfio-user server that does not let us map it.

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

use crate::Time;
use crate::error::{Error, Result};
use crate::spec::Iova;
use crate::sys::{Backing, HostRange, Register32, Window};

/// A doorbell of the device, as the bus can reach it. A clone is for handing it to whoever rings it from then on.
#[derive(Clone, Debug)]
pub enum Doorbell {
    /// Mapped into this process: ringing is one store.
    Mapped(Register32),
    /// Reached by a message: ringing is a [`Bus::write32`].
    Message(MessageDoorbell),
}

/// A doorbell that is written by a message; [`Doorbell::message`] makes one.
#[derive(Clone, Debug)]
pub struct MessageDoorbell {
    bus: Arc<dyn Bus>,
    /// Offset in BAR0.
    offset: u32,
}

impl Doorbell {
    /// The doorbell at `offset` of BAR0, rung by [`Bus::write32`].
    ///
    /// # Safety
    /// As [`Bus::doorbell`].
    #[allow(unsafe_code)]
    pub unsafe fn message(bus: Arc<dyn Bus>, offset: u32) -> Doorbell {
        Doorbell::Message(MessageDoorbell { bus, offset })
    }

    /// Writes the doorbell. Ring memory written before is visible to the device first.
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
        // SAFETY: the maker of the doorbell answers for what is rung.
        unsafe { self.bus.write32(self.offset, value) };
    }
}

/// Where a device sits, for placing memory and threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// PCI address (`0000:01:00.0`), where it has one.
    pub pci_address: Option<String>,
    /// NUMA node as the kernel reports it, where it does.
    pub numa_node: Option<u32>,
}

/// Something that happened to the device outside its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusEvent {
    /// The bus reported an unrecoverable error (AER).
    Error,
    /// The system asks for the device back (hot unplug, unbind): close it soon.
    RemovalRequested,
    /// The device is gone: the connection broke.
    Gone,
}

/// A way to reach a controller. Offsets are into BAR0; all values little-endian as the host sees them.
///
/// Implementations are used from any thread. A device that is gone reads as all ones,
/// as on PCIe; it is never an error to touch a register.
///
/// # Safety
/// The driver hands out memory by what a bus says. Addresses that [`Bus::map`] and [`Bus::reserve`]
/// return are not used twice at a time and reach the memory given and no other; after a
/// successful [`Bus::unmap`] the device reaches it no more; after a successful [`Bus::reset`] it
/// reads and writes nothing until it is set up anew; after a successful [`Bus::cut_off`] it
/// reaches no memory ever again.
///
/// What steers the device's DMA is unsafe to call, so that safe code reaches a device only through
/// [`crate::Controller`].
#[allow(unsafe_code)]
pub unsafe trait Bus: Send + Sync + fmt::Debug {
    /// The target string of the device, for messages.
    fn device(&self) -> &str;

    /// Reads a 32-bit register.
    fn read32(&self, offset: u32) -> u32;
    /// Writes a 32-bit register.
    ///
    /// # Safety
    /// The write does not make the device read or write memory that this process uses otherwise: queue
    /// addresses name memory that is mapped for the device and the caller's, and a doorbell announces
    /// entries whose commands keep to such memory.
    unsafe fn write32(&self, offset: u32, value: u32);
    /// Reads a 64-bit register.
    fn read64(&self, offset: u32) -> u64;
    /// Writes a 64-bit register.
    ///
    /// # Safety
    /// As [`Bus::write32`].
    unsafe fn write64(&self, offset: u32, value: u64);

    /// A doorbell at `offset`.
    ///
    /// # Safety
    /// Every value rung there keeps to the contract of [`Bus::write32`], for as long as the doorbell is used.
    ///
    /// # Errors
    /// When BAR0 does not reach that far.
    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell>;

    /// `len` bytes at `offset` of BAR `bar`, mapped (the controller memory buffer).
    ///
    /// # Safety
    /// Every write there keeps to the contract of [`Bus::write32`], for as long as the window is used.
    ///
    /// # Errors
    /// When the BAR is absent, too short or may not be mapped.
    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window>;

    /// Makes memory visible to the device and returns its address there, 4 KiB aligned.
    ///
    /// # Safety
    /// The memory stays allocated until [`Bus::unmap`], [`Bus::cut_off`] or the end of the bus took it from the
    /// device, and no Rust reference to its bytes is used while the device may write them.
    ///
    /// # Errors
    /// Each refusal by name: the memlock limit, the container's mapping limit,
    /// no address space left in the IOMMU's ranges, no file behind the memory.
    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova>;

    /// Takes memory back: afterwards the device cannot reach it.
    ///
    /// # Safety
    /// The caller mapped that memory, and nothing uses its device addresses any more: the bus may give them
    /// to other memory.
    ///
    /// # Errors
    /// When the system refuses; the memory must then be leaked, not freed.
    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()>;

    /// Makes `len` bytes from `offset` of `file` visible to the device and returns their address there, 4 KiB
    /// aligned, whether this process reaches them or not: a dma-buf of another device's memory. [`Bus::unmap`] takes
    /// them back.
    ///
    /// # Safety
    /// As [`Bus::map`], of the file's bytes.
    ///
    /// # Errors
    /// When the bus has no such means, or the system refuses the file.
    unsafe fn map_file(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Iova> {
        let _ = (file, offset);
        let what = format!("cannot map {len} bytes of a file for DMA");
        let why = "this bus reaches only memory that is mapped into this process";
        Err(Error::refused(self.device(), what, why, "map the file and register the mapping"))
    }

    /// Sets `len` bytes of device address space aside without mapping anything there
    /// (the controller memory buffer's place). Kept for the life of the bus.
    ///
    /// # Errors
    /// When no such range is free.
    fn reserve(&self, len: u64) -> Result<Iova>;

    /// What memory must be backed by for [`Bus::map`].
    fn backing(&self) -> Backing {
        Backing::Any
    }

    /// Resets the function; all its DMA has stopped when this returns. The function answers and may
    /// start DMA again then, whatever happened to its link.
    ///
    /// # Errors
    /// When the device or the system cannot.
    fn reset(&self) -> Result<()>;

    /// Takes all memory away from the device, for good: the last resort against one that cannot be
    /// reset. Nothing can be mapped afterwards; memory that was mapped may be freed.
    ///
    /// # Errors
    /// When the bus has no such means, or they fail.
    fn cut_off(&self) -> Result<()> {
        let what = "it cannot be cut off from memory";
        Err(Error::device(self.device(), what, "end this process, and the other that drives it"))
    }

    /// How many interrupt vectors there are; 0 where there are none.
    fn vector_count(&self) -> u16;

    /// Enables vectors `0..count` and returns an eventfd for each.
    ///
    /// # Errors
    /// When there are fewer vectors or the system refuses.
    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>>;

    /// What happened since the last call, without waiting.
    fn take_event(&self) -> Option<BusEvent>;

    /// The present.
    fn now(&self) -> Time;

    /// Milliseconds since 1970, for the controller's timestamp.
    fn unix_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }

    /// Lets `at_most` pass, or less: yields or sleeps on a real machine, steps a
    /// software controller that has no thread of its own.
    fn pause(&self, at_most: Duration);

    /// Where the device sits.
    fn locality(&self) -> Locality;
}
