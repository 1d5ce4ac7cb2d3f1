//! Meeting a server again that went away: a new connection behind the old bus.
//!
//! What users of the bus hold stays valid: device addresses, doorbells, parts of BARs, eventfds. So the
//! device must have the same shape as before; whether it is the same controller is for the
//! driver to find out, by what it identifies as. The controller is reset before it is given memory.
//!
//! One attempt, within the bus's deadline for a request (twice that, if the last answer is late). What
//! went wrong leaves the bus as it was: gone. Whether the process that served before still has the memory
//! is not known: it was handed over, and only its end takes it back.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vfio_bindings::bindings::vfio::{VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};

use super::connection::{Connection, Failure};
use super::open::{self, Described, Shape};
use super::{Addresses, Given, VfioUser, areas, describe, in_words, map_memory, set_irqs};
use crate::error::{Error, Result};

/// Connects anew and brings the new connection to where the old one was.
pub(super) fn reconnect(bus: &VfioUser) -> Result<()> {
    let addresses = bus.addresses();
    let given = bus.given();
    let mut connection = bus.connection();
    if !connection.is_gone() {
        // Somebody else was faster, and has reset the controller.
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
        Error::refused(&bus.name, "the connection was lost and cannot be made anew", why, fix)
    })?;
    fresh.limit_to(Some(Instant::now() + deadline));
    Ok(fresh)
}

fn refused(bus: &VfioUser, failure: Failure) -> Error {
    let fix = "check that no other client has the server, or open the device anew";
    Error::refused(&bus.name, "cannot go on with the server", in_words(&failure), fix)
}

/// Refuses a device that what was handed out does not fit.
fn check_shape(bus: &VfioUser, new: &Shape) -> Result<()> {
    let old = &bus.shape;
    let enough = new.limits.files >= old.limits.files && new.limits.dma_maps >= old.limits.dma_maps;
    let same = Shape { limits: old.limits, ..new.clone() } == *old;
    if enough && same {
        return Ok(());
    }
    let what = format!("the server has another device now ({new:x?} instead of {old:x?})");
    Err(Error::device(&bus.name, what, "serve the one from before, or open the device anew"))
}

/// Memory at the addresses it had, then eventfds.
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

/// The new server's memory in place of the old one's, last, when everything else is well.
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
