//! Opens a server: connects, queries everything once, then builds the bus.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use vfio_bindings::bindings::vfio::{
    VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};

use super::connection::{Answer, Connection};
use super::describe::{self, Limits};
use super::{
    ADDRESSES, Addresses, Options, PAGE, VfioUser, areas, command, in_words, promise, wire,
};
use crate::bus::clock::Clock;
use crate::bus::iova::IovaSpace;
use crate::bus::mapped::MappedRuns;
use crate::bus::notices::Notices;
use crate::error::{Error, Result};

/// Connects to the server at `socket`; see [`VfioUser::open_with`].
pub(super) fn open(socket: &Path, options: Options) -> Result<VfioUser> {
    let name = format!("vfio-user:{}", socket.display());
    promise::check(&name)?;
    let mut connection = Connection::connect(socket, options.deadline)
        .map_err(|why| connect_failed(&name, &why, options.deadline))?;
    let answer = describe_all(&mut connection)
        .and_then(|described| command::enable(&mut connection).map(|()| described));
    let described = answer.map_err(|failure| {
        let fix = "check that the socket is a vfio-user server's and that no other client has it";
        Error::refused(&name, "cannot open", in_words(&failure), fix)
    })?;
    described.into_bus(name, socket, connection, options)
}

fn connect_failed(name: &str, why: &io::Error, deadline: Duration) -> Error {
    let (why, fix) = why_not_connected(why, deadline);
    Error::refused(name, "cannot connect", why, fix)
}

/// Returns why connecting failed, and the remedy.
pub(super) fn why_not_connected(why: &io::Error, deadline: Duration) -> (String, &'static str) {
    match why.kind() {
        io::ErrorKind::NotFound => ("there is no such socket".to_owned(), "start the server first"),
        io::ErrorKind::ConnectionRefused => {
            ("no server listens there any more".to_owned(), "start the server again")
        }
        io::ErrorKind::PermissionDenied => (
            "permission denied".to_owned(),
            "run as the server's user, or let it open the socket up",
        ),
        io::ErrorKind::WouldBlock => (
            format!("the server accepted no connection within {} ms", deadline.as_millis()),
            "end the other client first: a controller has one",
        ),
        _ => (why.to_string(), "name the server's socket"),
    }
}

/// Answers to the queries on opening.
pub(super) struct Described {
    pub(super) shape: DeviceShape,
    pub(super) bar0: describe::ServerRegion,
}

/// Properties the driver relies on while it has the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceShape {
    pub(super) limits: Limits,
    pub(super) can_reset: bool,
    pub(super) bar0_len: u64,
    pub(super) doorbells: Vec<Range<u64>>,
    pub(super) vector_count: u16,
    /// Whether there are interrupts for errors and for removal requests.
    pub(super) notices: [bool; 2],
}

pub(super) fn describe_all(connection: &mut Connection) -> Answer<Described> {
    let limits = describe::negotiate(connection)?;
    let info = describe::device_info(connection)?;
    let bar0 = describe::region(connection, 0)?;
    let mut irqs = [0; 3];
    let kinds = [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX];
    for (count, index) in irqs.iter_mut().zip(kinds) {
        if index < info.irq_count {
            *count = describe::irq_count(connection, index)?;
        }
    }
    let [vectors, errors, requests] = irqs;
    let shape = DeviceShape {
        limits,
        can_reset: info.flags & wire::DEVICE_CAN_RESET != 0,
        bar0_len: bar0.len,
        doorbells: areas::doorbell_areas(&bar0),
        vector_count: u16::try_from(vectors).unwrap_or(u16::MAX),
        notices: [errors > 0, requests > 0],
    };
    Ok(Described { shape, bar0 })
}

impl Described {
    fn into_bus(
        self,
        name: String,
        socket: &Path,
        connection: Connection,
        options: Options,
    ) -> Result<VfioUser> {
        let mut doorbells = MappedRuns::default();
        if options.map_doorbells {
            if self.shape.doorbells.is_empty() && self.bar0.file.is_some() {
                tracing::warn!(
                    "{name}: its doorbells are not in a memory file, so each ring is a message; let the server keep its socket's folder on a tmpfs, such as /run or /dev/shm"
                );
            }
            for area in &self.shape.doorbells {
                let window = areas::map_area(&self.bar0, area.clone()).map_err(|why| {
                    let fix = "restart the server, or open it without mapped doorbells";
                    Error::refused(&name, "cannot map its doorbells", why, fix)
                })?;
                doorbells.push(area.start, window);
            }
        }
        let space = IovaSpace::new(&[ADDRESSES.start..=ADDRESSES.end - 1], PAGE);
        let [errors, requests] = self.shape.notices;
        let mut bus = VfioUser {
            name,
            socket: socket.to_owned(),
            options,
            clock: Clock::start(),
            shape: self.shape,
            doorbells,
            notices: Notices::default(),
            loss_told: AtomicBool::new(false),
            given: Mutex::default(),
            connection: Mutex::new(connection),
            addresses: Mutex::new(Addresses { space, live: BTreeMap::new() }),
        };
        bus.notices.errors = bus.listen(errors, VFIO_PCI_ERR_IRQ_INDEX)?;
        bus.notices.requests = bus.listen(requests, VFIO_PCI_REQ_IRQ_INDEX)?;
        Ok(bus)
    }
}
