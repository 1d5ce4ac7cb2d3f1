//! Eventfds of the function: its MSI-X vectors, its errors, requests to give it back.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use vfio_bindings::bindings::vfio::{
    VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};
use vfio_ioctls::VfioDevice;
use vmm_sys_util::eventfd::EventFd;

use crate::bus::BusEvent;
use crate::error::{Error, Result};

const EVENTFD_FLAGS: i32 = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;

/// Notices about the function that come outside its queues.
///
/// Without a listener for requests, an unplug waits until the device file is
/// closed by chance; with one, the kernel's unplug takes as long as we do.
pub(super) struct Notices {
    /// Absent where the function cannot report (no AER).
    errors: Option<EventFd>,
    requests: Option<EventFd>,
}

impl Notices {
    /// Registers with the kernel for whatever the function offers.
    pub(super) fn register(name: &str, device: &VfioDevice) -> Result<Notices> {
        let errors = listen(name, device, VFIO_PCI_ERR_IRQ_INDEX)?;
        let requests = listen(name, device, VFIO_PCI_REQ_IRQ_INDEX)?;
        Ok(Notices { errors, requests })
    }

    /// What came since the last call. Requests go first: they want an answer.
    pub(super) fn take(&self) -> Option<BusEvent> {
        let came = |eventfd: &Option<EventFd>| eventfd.as_ref().is_some_and(|fd| fd.read().is_ok());
        if came(&self.requests) {
            Some(BusEvent::RemovalRequested)
        } else if came(&self.errors) {
            Some(BusEvent::Error)
        } else {
            None
        }
    }
}

fn listen(name: &str, device: &VfioDevice, index: u32) -> Result<Option<EventFd>> {
    if count(device, index) == 0 {
        return Ok(None);
    }
    let eventfd = new_eventfd(name)?;
    enable(name, device, index, &[&eventfd])?;
    Ok(Some(eventfd))
}

/// How many MSI-X vectors the function has.
pub(super) fn vector_count(device: &VfioDevice) -> u16 {
    u16::try_from(count(device, VFIO_PCI_MSIX_IRQ_INDEX)).unwrap_or(u16::MAX)
}

/// Enables the first vectors and returns their eventfds; earlier ones stop.
pub(super) fn enable_vectors(name: &str, device: &VfioDevice, wanted: u16) -> Result<Vec<OwnedFd>> {
    if wanted > vector_count(device) {
        return Err(Error::invalid(
            format!("{name}: {wanted} interrupt vectors"),
            format!("the function has {}", vector_count(device)),
        ));
    }
    // The kernel takes a new number of vectors only while none is enabled.
    let _ = device.disable_irq(VFIO_PCI_MSIX_IRQ_INDEX);
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let eventfds: Vec<EventFd> = (0..wanted).map(|_| new_eventfd(name)).collect::<Result<_>>()?;
    enable(name, device, VFIO_PCI_MSIX_IRQ_INDEX, &eventfds.iter().collect::<Vec<_>>())?;
    Ok(eventfds.into_iter().map(into_owned).collect())
}

/// Disables every kind of interrupt that may be enabled; before the device is closed.
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

fn new_eventfd(name: &str) -> Result<EventFd> {
    EventFd::new(EVENTFD_FLAGS).map_err(|why| {
        Error::refused(
            name,
            "cannot make an eventfd",
            why,
            "raise the limit of open files (ulimit -n)",
        )
    })
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

#[allow(unsafe_code)]
fn into_owned(eventfd: EventFd) -> OwnedFd {
    // SAFETY: the descriptor was just given up by its only owner.
    unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_taken_once_each_and_requests_first() {
        let eventfd = || new_eventfd("test").expect("eventfd");
        let notices = Notices { errors: Some(eventfd()), requests: Some(eventfd()) };
        assert_eq!(notices.take(), None);
        for fd in [&notices.errors, &notices.requests] {
            fd.as_ref().expect("present").write(1).expect("write");
        }
        assert_eq!(notices.take(), Some(BusEvent::RemovalRequested));
        assert_eq!(notices.take(), Some(BusEvent::Error));
        assert_eq!(notices.take(), None);
        assert_eq!(Notices { errors: None, requests: None }.take(), None);
    }
}
