//! The function's eventfds: MSI-X vectors, errors, removal requests.

use std::os::fd::OwnedFd;

use vfio_bindings::bindings::vfio::{
    VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};
use vfio_ioctls::VfioDevice;
use vmm_sys_util::eventfd::EventFd;

use crate::bus::notices::{Notices, into_owned, new_eventfd};
use crate::error::{Error, Result};

/// Registers with the kernel for the events the function can report.
pub(super) fn listen_for_notices(name: &str, device: &VfioDevice) -> Result<Notices> {
    let errors = listen(name, device, VFIO_PCI_ERR_IRQ_INDEX)?;
    let requests = listen(name, device, VFIO_PCI_REQ_IRQ_INDEX)?;
    Ok(Notices { errors, requests })
}

fn listen(name: &str, device: &VfioDevice, index: u32) -> Result<Option<EventFd>> {
    if count(device, index) == 0 {
        return Ok(None);
    }
    let eventfd = new_eventfd(name)?;
    enable(name, device, index, &[&eventfd])?;
    Ok(Some(eventfd))
}

pub(super) fn vector_count(device: &VfioDevice) -> u16 {
    u16::try_from(count(device, VFIO_PCI_MSIX_IRQ_INDEX)).unwrap_or(u16::MAX)
}

/// Enables the first `wanted` vectors and returns their eventfds; earlier ones stop.
pub(super) fn enable_vectors(name: &str, device: &VfioDevice, wanted: u16) -> Result<Vec<OwnedFd>> {
    if wanted > vector_count(device) {
        return Err(Error::invalid(
            format!("{name}: {wanted} interrupt vectors"),
            format!("the function has {}", vector_count(device)),
        ));
    }
    // The kernel changes the number of vectors only while none is enabled.
    let _ = device.disable_irq(VFIO_PCI_MSIX_IRQ_INDEX);
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let eventfds: Vec<EventFd> = (0..wanted).map(|_| new_eventfd(name)).collect::<Result<_>>()?;
    enable(name, device, VFIO_PCI_MSIX_IRQ_INDEX, &eventfds.iter().collect::<Vec<_>>())?;
    Ok(eventfds.into_iter().map(into_owned).collect())
}

/// Disables all interrupts, before the device is closed.
pub(super) fn disable_all(device: &VfioDevice) {
    for index in [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX] {
        if count(device, index) != 0 {
            // Closing the device file disables them anyway.
            let _ = device.disable_irq(index);
        }
    }
}

fn count(device: &VfioDevice, index: u32) -> u32 {
    device.get_irq_info(index).map_or(0, |irq| irq.count)
}

fn enable(name: &str, device: &VfioDevice, index: u32, eventfds: &[&EventFd]) -> Result<()> {
    device.enable_irq(index, eventfds.to_vec()).map_err(|why| {
        let count = eventfds.len();
        Error::refused(
            name,
            format!("cannot enable {count} interrupts of index {index}"),
            why,
            "ask for fewer, or look for vfio-pci in the kernel log (dmesg)",
        )
    })
}
