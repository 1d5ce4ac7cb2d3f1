//! A real PCIe function, bound to vfio-pci and fenced by the IOMMU.
//!
//! Opening first checks everything it can (`admission`), so a refused device keeps its state. Then it opens
//! the device, maps BAR0 as far as allowed, listens for errors and removal requests, and enables memory
//! accesses and bus mastering. Closing reverses this: interrupts off, bus mastering off, memory unmapped,
//! device closed. A [`Window`] or doorbell that outlives the bus keeps the device file open.

mod admission;
mod config;
mod dma;
mod explain;
mod interrupts;
mod ioctl;
mod iommu;
#[cfg(feature = "iommufd")]
mod iommufd;
mod region;
mod reset;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_ioctls::VfioDevice;

use self::admission::Machine;
use self::config::MsixTable;
use self::dma::Dma;
use self::region::VfioRegion;
use super::clock::Clock;
use super::notices::Notices;
use super::pci::{PciFunction, VirtualFunction};
use super::{Bus, BusEvent, Doorbell, Locality, mapped};
use crate::Time;
use crate::error::{Error, Result};
use crate::spec::Iova;
use crate::sys::{HostRange, Window};

/// Whether this build has the feature `iommufd`; without it, functions are opened through a VFIO container.
pub const HAS_IOMMUFD: bool = cfg!(feature = "iommufd");

/// An NVMe controller on PCIe, driven through VFIO.
pub struct Vfio {
    name: String,
    locality: Locality,
    /// As of its opening: sysfs forgets it before the function is gone.
    virtual_function: Option<VirtualFunction>,
    clock: Clock,
    msix: Option<MsixTable>,
    config: VfioRegion,
    bar0: VfioRegion,
    notices: Notices,
    device: Arc<VfioDevice>,
    dma: Dma,
    /// Keeps the device open, and so its sysfs directory, until vfio-ioctls has looked its group up for the
    /// last time: that look-up would panic after an unplug.
    _last: OwnedFd,
}

impl Vfio {
    /// Opens the function at `bdf` (`0000:01:00.0` or `01:00.0`).
    ///
    /// # Errors
    /// [`Error::Target`] for an invalid PCI address; [`Error::Refused`] with reason and remedy for any
    /// obstacle. The device is then unchanged.
    pub fn open(bdf: &str) -> Result<Arc<Vfio>> {
        let machine = Machine { sysfs: Path::new("/sys"), vfio: Path::new("/dev/vfio") };
        let admitted = admission::admit(machine, bdf)?;
        let address = admitted.function.address().to_string();
        let name = format!("vfio:{address}");
        let opened = iommu::open(&name, &admitted)?;
        let dma = Dma::new(&name, opened.iommu, &opened.info);
        Self::start(name, &admitted.function, Arc::new(opened.device), dma)
    }

    fn start(
        name: String,
        function: &PciFunction,
        device: Arc<VfioDevice>,
        dma: Dma,
    ) -> Result<Arc<Vfio>> {
        let refused = |what: &str, why: std::io::Error| {
            Error::refused(&name, what, why, "look for vfio-pci in the kernel log (dmesg)")
        };
        let last = ioctl::duplicate(&*device).map_err(|why| refused("cannot open", why))?;
        let config = VfioRegion::unmapped(&device, VFIO_PCI_CONFIG_REGION_INDEX);
        let msix = config::msix_table(&config.read(0));
        let bar0 = VfioRegion::mapped(&device, VFIO_PCI_BAR0_REGION_INDEX, msix)
            .map_err(|why| refused("cannot map its registers", why))?;
        let notices = interrupts::listen_for_notices(&name, &device)?;
        // The last step, after everything that can fail: it alone changes the device.
        config::enable(&config);
        let clock = Clock::start();
        let pci_address = Some(function.address().to_string());
        Ok(Arc::new(Vfio {
            name,
            locality: Locality { pci_address, numa_node: function.numa_node() },
            virtual_function: function.virtual_function(),
            clock,
            msix,
            config,
            bar0,
            notices,
            device,
            dma,
            _last: last,
        }))
    }
}

// SAFETY: addresses come from one allocator and the kernel's IOMMU mappings follow them.
#[allow(unsafe_code)]
unsafe impl Bus for Vfio {
    fn device(&self) -> &str {
        &self.name
    }

    fn read32(&self, offset: u32) -> u32 {
        self.bar0.read32(offset.into())
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.bar0.write32(offset.into(), value);
    }

    fn read64(&self, offset: u32) -> u64 {
        self.bar0.read64(offset.into())
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.bar0.write64(offset.into(), value);
    }

    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        let mapped = self.bar0.window(offset.into(), 4);
        // SAFETY: passed on to our caller.
        unsafe { mapped::doorbell(Arc::<Self>::clone(&self), self.bar0.len(), offset, mapped) }
    }

    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        let cannot = |why: String| {
            Error::device(&self.name, format!("cannot map BAR{bar}: {why}"), "do without it")
        };
        mapped::check_bar(bar).map_err(cannot)?;
        let region = VfioRegion::unmapped(&self.device, bar.into());
        let areas = region.mappable(self.msix);
        mapped::window_range(offset, len, region.len(), &areas).map_err(cannot)?;
        region.map(offset, len).map_err(|why| cannot(why.to_string()))
    }

    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        self.dma.map(memory).map(Iova)
    }

    unsafe fn map_file(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Iova> {
        self.dma.map_file(file, offset, len).map(Iova)
    }

    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        self.dma.unmap(iova.0, len)
    }

    fn reserve(&self, len: u64) -> Result<Iova> {
        self.dma.reserve(len).map(Iova)
    }

    fn reset(&self) -> Result<()> {
        let device = ioctl::borrow(&*self.device);
        reset::when_free(&self.clock, || ioctl::reset(device)).map_err(|why| {
            Error::refused(
                &self.name,
                "cannot reset the function",
                why,
                "close it and unbind it from vfio-pci, or power-cycle the slot",
            )
        })?;
        // A link that went down resets the command register, and the BARs, which the kernel restores when
        // memory is enabled. After a failed reset, the function does not regain the DMA it lost.
        config::enable(&self.config);
        Ok(())
    }

    fn cut_off(&self) -> Result<()> {
        self.dma.cut_off()
    }

    fn vector_count(&self) -> u16 {
        interrupts::vector_count(&self.device)
    }

    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>> {
        interrupts::enable_vectors(&self.name, &self.device, count)
    }

    fn take_event(&self) -> Option<BusEvent> {
        self.notices.take()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn pause(&self, at_most: Duration) {
        self.clock.pause(at_most);
    }

    fn locality(&self) -> Locality {
        self.locality.clone()
    }

    fn virtual_function(&self) -> Option<VirtualFunction> {
        self.virtual_function.clone()
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        interrupts::disable_all(&self.device);
        config::disable_bus_master(&self.config);
        self.dma.unmap_all();
    }
}

impl fmt::Debug for Vfio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vfio({})", self.name)
    }
}
