//! Reconnects the bus to a server that went away.
//!
//! Users of the bus keep their device addresses, doorbells, parts of BARs and eventfds, so the device must
//! have the same shape as before; the driver checks by Identify whether it is the same controller. The
//! controller is reset before it is given memory.
//!
//! Makes one attempt, within the bus's deadline for a request (twice that, if the last answer is late). A
//! failure leaves the bus as it was: gone. The earlier server process may still have the memory handed to it;
//! only its end takes that back.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use vfio_bindings::bindings::vfio::{VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};

use super::connection::{Connection, Failure};
use super::open::{self, Described, DeviceShape};
use super::{Addresses, Given, VfioUser, areas, describe, in_words, map_memory, set_irqs};
use crate::error::{Error, Result};

/// Connects again and restores the old connection's state.
pub(super) fn reconnect(bus: &VfioUser) -> Result<()> {
    let addresses = bus.addresses();
    let given = bus.given();
    let mut connection = bus.connection();
    if !connection.is_gone() {
        // Another thread has reconnected and reset the controller.
        return Ok(());
    }
    let mut fresh = connect(bus)?;
    let described = open::describe_all(&mut fresh).map_err(|failure| refused(bus, failure))?;
    check_shape(bus, &described.shape)?;
    bus.reset_device(&mut fresh)?;
    hand_over(bus, &mut fresh, &addresses, &given).map_err(|failure| refused(bus, failure))?;
    map_again(bus, &mut fresh, &described, &given)?;
    fresh.limit_to(None);
    *connection = fresh;
    bus.loss_told.store(false, Ordering::Relaxed);
    tracing::info!("{}: connected again, {} mappings", bus.name, addresses.live.len());
    Ok(())
}

fn connect(bus: &VfioUser) -> Result<Connection> {
    let deadline = bus.options.deadline;
    let connected = Connection::connect(&bus.socket, deadline);
    let mut fresh = connected.map_err(|why| {
        let (why, fix) = open::why_not_connected(&why, deadline);
        Error::refused(&bus.name, "the connection was lost and cannot be restored", why, fix)
    })?;
    fresh.limit_to(Some(adit_shared::deadline(deadline)));
    Ok(fresh)
}

fn refused(bus: &VfioUser, failure: Failure) -> Error {
    let fix = "check that no other client has the server, or open the device again";
    Error::refused(&bus.name, "cannot continue with the server", in_words(&failure), fix)
}

/// Refuses a device that no longer fits what users of the bus hold.
fn check_shape(bus: &VfioUser, new: &DeviceShape) -> Result<()> {
    let old = &bus.shape;
    let enough = new.limits.files >= old.limits.files && new.limits.dma_maps >= old.limits.dma_maps;
    let same = DeviceShape { limits: old.limits, ..new.clone() } == *old;
    if enough && same {
        return Ok(());
    }
    let what = format!("the server has another device now ({new:x?} instead of {old:x?})");
    Err(Error::device(&bus.name, what, "serve the previous one, or open the device again"))
}

/// Restores memory at its addresses, then eventfds.
fn hand_over(
    bus: &VfioUser,
    fresh: &mut Connection,
    addresses: &Addresses,
    given: &Given,
) -> super::Answer<()> {
    for (address, mapping) in &addresses.live {
        map_memory(fresh, *address, mapping)?;
    }
    let notices = [
        (&bus.notices.errors, VFIO_PCI_ERR_IRQ_INDEX),
        (&bus.notices.requests, VFIO_PCI_REQ_IRQ_INDEX),
    ];
    for (eventfd, index) in notices {
        if let Some(eventfd) = eventfd {
            set_irqs(fresh, index, 0, &[eventfd.as_raw_fd()])?;
        }
    }
    bus.set_vectors(fresh, &given.vectors)
}

/// Replaces the old server's memory by the new one's. The last step, once all else has succeeded.
fn map_again(
    bus: &VfioUser,
    fresh: &mut Connection,
    described: &Described,
    given: &Given,
) -> Result<()> {
    let cannot = |what: &str, why: String| {
        let fix = "open the device anew";
        Error::refused(&bus.name, format!("cannot map its {what} again"), why, fix)
    };
    for (bar, start, window) in &given.windows {
        let region = describe::region(fresh, (*bar).into())
            .map_err(|failure| cannot("BARs", in_words(&failure)))?;
        let end = start + window.len() as u64;
        if !region.areas.iter().any(|area| area.start <= *start && end <= area.end) {
            return Err(cannot("BARs", format!("BAR{bar} has changed")));
        }
        areas::map_again(&region, *start, window).map_err(|why| cannot("BARs", why.to_string()))?;
    }
    for (start, window) in bus.doorbells.iter() {
        areas::map_again(&described.bar0, start, window)
            .map_err(|why| cannot("doorbells", why.to_string()))?;
    }
    Ok(())
}
