//! A controller in another process, reached over a Unix socket.
//!
//! A client of the vfio-user protocol: SPDK's nvmf target and `adit softnvme` serve it. Memory is handed over
//! as files, so it must have one; doorbells are mapped if the server offers that, else sent as messages.
//! Registers below the doorbells are always messages: the server must see each access.
//!
//! [`Bus::reset`] reconnects to a restarted server: see `reconnect.rs`.
//!
//! What the server says is not trusted: see `connection.rs`. What it writes to the memory that it is handed
//! cannot be checked: a program promises that its servers keep to NVMe ([`trust_servers`]) before it connects.
//! One attack remains: a server that shrinks the file behind the mapped doorbells, which turns the next ring
//! into a bus error. [`Options::map_doorbells`] turns the mapping off for servers not trusted that far.

mod areas;
mod command;
mod connection;
mod describe;
mod open;
mod promise;
mod reconnect;
mod socket;
pub(crate) mod wire;

pub use self::promise::trust_servers;
#[cfg(feature = "serve")]
pub(crate) use self::socket::{connect, is_hung_up};

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;
use vmm_sys_util::eventfd::EventFd;
use zerocopy::IntoBytes;

use self::connection::{Answer, Connection, Failure};
use self::open::DeviceShape;
use self::wire::{Command, DmaMap, DmaUnmap, RegionAccess, SetIrqs};
use super::clock::Clock;
use super::iova::IovaSpace;
use super::mapped::{self, MappedRuns};
use super::notices::{Notices, into_owned, new_eventfd};
use super::{Bus, BusEvent, Doorbell, Locality};
use crate::Time;
use crate::error::{Error, Result};
use crate::spec::register::doorbell_sq;
use crate::spec::{Iova, Qid};
use crate::sys::{Backing, HostRange, Window};

/// Addresses every server's IOMMU accepts; real ones have 48 bits or more.
const ADDRESSES: Range<u64> = 0..1 << 48;
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// Default time limit of each answer of a server.
pub const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for the connection to a server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time limit of each answer.
    pub deadline: Duration,
    /// Whether to map the doorbells if the server offers it.
    pub map_doorbells: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { deadline: SERVER_TIMEOUT, map_doorbells: true }
    }
}

/// An NVMe controller behind a vfio-user socket.
pub struct VfioUser {
    name: String,
    socket: PathBuf,
    options: Options,
    clock: Clock,
    shape: DeviceShape,
    doorbells: MappedRuns,
    notices: Notices,
    /// Whether [`Bus::take_event`] reported the loss of the connection.
    loss_told: AtomicBool,
    addresses: Mutex<Addresses>,
    given: Mutex<Given>,
    connection: Mutex<Connection>,
}

struct Addresses {
    space: IovaSpace,
    /// The mappings, by address.
    live: BTreeMap<u64, Mapping>,
}

/// Memory handed to the server, with the file to hand over again.
struct Mapping {
    len: u64,
    file: OwnedFd,
    offset: u64,
    is_writable: bool,
}

/// Objects that users of the bus hold and a new connection must keep serving. Locks are taken in the order
/// addresses, given, connection.
#[derive(Default)]
struct Given {
    /// Our descriptors of the eventfds of vectors `0..`.
    vectors: Vec<OwnedFd>,
    /// Mapped parts of BARs, each with its BAR and offset.
    windows: Vec<(u8, u64, Window)>,
}

impl VfioUser {
    /// Connects to the server at `socket` with the default [`Options`].
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no vfio-user server of a PCI device, or before [`trust_servers`].
    pub fn open(socket: &Path) -> Result<Arc<VfioUser>> {
        VfioUser::open_with(socket, Options::default())
    }

    /// Connects to the server at `socket`.
    ///
    /// # Errors
    /// As [`VfioUser::open`].
    pub fn open_with(socket: &Path, options: Options) -> Result<Arc<VfioUser>> {
        open::open(socket, options).map(Arc::new)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere leaves at worst an unread reply, which the next id check finds.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        // Both maps change together, without a panic between.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        // Both lists are replaced or pushed to as a whole.
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a register; returns all ones on failure.
    fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let access = access(offset, N);
        let mut connection = self.connection();
        let answer = connection.request(Command::RegionRead, &[access.as_bytes()]);
        let data = answer.ok().and_then(|body| {
            let data = body.get(size_of::<RegionAccess>()..)?;
            (wire::first(body) == Some(access)).then_some(data)
        });
        data.and_then(|data| data.try_into().ok()).unwrap_or([u8::MAX; N])
    }

    fn write(&self, offset: u32, bytes: &[u8]) {
        let access = access(offset, bytes.len());
        // A failed write is lost, as on a bus; reads show the device's state.
        let _ = self.connection().request(Command::RegionWrite, &[access.as_bytes(), bytes]);
    }

    fn failed(&self, what: String, failure: &Failure) -> Error {
        match failure {
            Failure::Refused(_) => {
                let fix = "see the server's log";
                Error::refused(&self.name, what, in_words(failure), fix)
            }
            Failure::Broken(reason) => {
                Error::Failed { device: self.name.clone(), reason: reason.clone() }
            }
        }
    }

    fn take(&self, addresses: &mut Addresses, len: u64) -> Result<u64> {
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { PAGE };
        addresses.space.place(&self.name, len, align)
    }

    fn check_mappable(&self, memory: HostRange<'_>, live: usize) -> Result<(OwnedFd, u64)> {
        let what = || format!("cannot map {} bytes for DMA", memory.len);
        if live as u64 >= self.shape.limits.dma_maps {
            let why = format!("all {} mappings of the server's max_dma_maps are in use", live);
            return Err(Error::refused(&self.name, what(), why, "map fewer, larger regions"));
        }
        let (file, offset) = memory.file.ok_or_else(|| {
            Error::refused(
                &self.name,
                what(),
                "the memory has no file that the server could map",
                "register a mapping of a memfd instead",
            )
        })?;
        let file = file.try_clone_to_owned().map_err(|why| {
            Error::refused(&self.name, what(), why, "raise the limit of open files (ulimit -n)")
        })?;
        Ok((file, offset))
    }

    fn unmap_now(&self, address: u64, len: u64) -> Result<()> {
        let argsz = size_of::<DmaUnmap>() as u32;
        let ask = DmaUnmap { argsz, flags: 0, address, size: len };
        let what = || format!("cannot unmap {len} bytes at device address {address:#x}");
        let mut connection = self.connection();
        let body = connection
            .request(Command::DmaUnmap, &[ask.as_bytes()])
            .map_err(|failure| self.failed(what(), &failure))?;
        // Check the unmapped size, if the server reports one.
        match wire::first::<DmaUnmap>(body) {
            Some(done) if (done.address, done.size) != (address, len) => Err(Error::device(
                &self.name,
                format!("{}: it unmapped {} bytes at {:#x}", what(), done.size, done.address),
                "close the device; the memory stays reserved",
            )),
            _ => Ok(()),
        }
    }
}

fn access(offset: u32, len: usize) -> RegionAccess {
    RegionAccess { offset: offset.into(), region: 0, count: len as u32 }
}

fn in_words(failure: &Failure) -> String {
    match failure {
        Failure::Refused(0) => "the server refused without a reason".to_owned(),
        Failure::Refused(errno) => {
            format!("the server refused: {}", io::Error::from_raw_os_error(*errno))
        }
        Failure::Broken(reason) => reason.clone(),
    }
}

impl VfioUser {
    fn listen(&self, offered: bool, index: u32) -> Result<Option<EventFd>> {
        if !offered {
            return Ok(None);
        }
        let eventfd = new_eventfd(&self.name)?;
        // A server may count an interrupt that it cannot signal; it is then ignored.
        let set = set_irqs(&mut self.connection(), index, 0, &[eventfd.as_raw_fd()]);
        Ok(set.is_ok().then_some(eventfd))
    }

    fn reset_device(&self, connection: &mut Connection) -> Result<()> {
        let what = || "cannot reset the controller".to_owned();
        if !self.shape.can_reset {
            let why = "the server does not offer a reset";
            return Err(Error::refused(&self.name, what(), why, "restart the server"));
        }
        let answer = connection.request(Command::DeviceReset, &[]).map(drop);
        let answer = answer.and_then(|()| command::enable(connection));
        answer.map_err(|failure| self.failed(what(), &failure))
    }

    /// Sends the eventfds of vectors `0..`, in as many messages as needed.
    fn set_vectors(&self, connection: &mut Connection, vectors: &[OwnedFd]) -> Answer<()> {
        let files: Vec<RawFd> = vectors.iter().map(AsRawFd::as_raw_fd).collect();
        let mut start = 0;
        for some in files.chunks(self.shape.limits.files) {
            set_irqs(connection, VFIO_PCI_MSIX_IRQ_INDEX, start, some)?;
            start += some.len() as u32;
        }
        Ok(())
    }
}

/// Sends eventfds, or disables the whole kind if there are none.
fn set_irqs(connection: &mut Connection, index: u32, start: u32, files: &[RawFd]) -> Answer<()> {
    let data = if files.is_empty() { wire::IRQ_DATA_NONE } else { wire::IRQ_DATA_EVENTFD };
    let ask = SetIrqs {
        argsz: size_of::<SetIrqs>() as u32,
        flags: data | wire::IRQ_ACTION_TRIGGER,
        index,
        start,
        count: files.len() as u32,
    };
    connection.request_with_files(Command::DeviceSetIrqs, &[ask.as_bytes()], files).map(drop)
}

/// Hands memory to the server, at device address `address`.
fn map_memory(connection: &mut Connection, address: u64, mapping: &Mapping) -> Answer<()> {
    let argsz = size_of::<DmaMap>() as u32;
    let Mapping { len, offset, is_writable, .. } = *mapping;
    let flags = if is_writable { wire::DMA_READ_WRITE } else { wire::DMA_READ };
    let ask = DmaMap { argsz, flags, offset, address, size: len };
    let files = [mapping.file.as_raw_fd()];
    connection.request_with_files(Command::DmaMap, &[ask.as_bytes()], &files).map(drop)
}

// SAFETY: addresses come from one allocator and are mapped and unmapped by the server's word, which is all
// there is: the module says what a server can do.
#[allow(unsafe_code)]
unsafe impl Bus for VfioUser {
    fn device(&self) -> &str {
        &self.name
    }

    fn read32(&self, offset: u32) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    fn read64(&self, offset: u32) -> u64 {
        u64::from_le_bytes(self.read(offset))
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        let mapped = self.doorbells.find(offset.into(), 4);
        // SAFETY: passed on to our caller.
        unsafe { mapped::doorbell(Arc::<Self>::clone(&self), self.shape.bar0_len, offset, mapped) }
    }

    fn doorbells_are_memory(&self) -> bool {
        self.doorbells.find(doorbell_sq(Qid(1), 0).into(), 8).is_some()
    }

    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        let cannot = |why: String| {
            Error::device(&self.name, format!("cannot map BAR{bar}: {why}"), "do without it")
        };
        mapped::check_bar(bar).map_err(cannot)?;
        let region = describe::region(&mut self.connection(), bar.into())
            .map_err(|failure| cannot(in_words(&failure)))?;
        let range = mapped::window_range(offset, len, region.len, &region.areas).map_err(cannot)?;
        let window = areas::map_area(&region, range).map_err(|why| cannot(why.to_string()))?;
        self.given().windows.push((bar, offset, window.clone()));
        Ok(window)
    }

    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        let size = memory.len as u64;
        let mut addresses = self.addresses();
        let (file, offset) = self.check_mappable(memory, addresses.live.len())?;
        let address = self.take(&mut addresses, size)?;
        let mapping = Mapping { len: size, file, offset, is_writable: memory.is_writable };
        let answer = map_memory(&mut self.connection(), address, &mapping);
        match answer {
            Ok(()) => {
                addresses.live.insert(address, mapping);
                Ok(Iova(address))
            }
            Err(failure) => {
                // A server that broke off may have mapped it, so the address is not reused.
                if matches!(failure, Failure::Refused(_)) {
                    addresses.space.free(address, size);
                }
                Err(self.failed(format!("cannot map {size} bytes for DMA"), &failure))
            }
        }
    }

    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        let mut addresses = self.addresses();
        if addresses.live.get(&iova.0).is_none_or(|mapping| mapping.len != len) {
            let what = format!("unmapping {len} bytes at device address {:#x}", iova.0);
            return Err(Error::invalid(what, "no such mapping was made"));
        }
        self.unmap_now(iova.0, len)?;
        addresses.live.remove(&iova.0);
        addresses.space.free(iova.0, len);
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<Iova> {
        self.take(&mut self.addresses(), len).map(Iova)
    }

    fn backing(&self) -> Backing {
        Backing::SharedFile
    }

    fn reset(&self) -> Result<()> {
        let mut connection = self.connection();
        if !connection.is_gone() {
            let done = self.reset_device(&mut connection);
            if !connection.is_gone() {
                return done;
            }
        }
        drop(connection);
        reconnect::reconnect(self)
    }

    fn vector_count(&self) -> u16 {
        self.shape.vector_count
    }

    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>> {
        if count > self.shape.vector_count {
            let what = format!("{}: {count} interrupt vectors", self.name);
            return Err(Error::invalid(
                what,
                format!("the device has {}", self.shape.vector_count),
            ));
        }
        let what = |failure| self.failed(format!("cannot enable {count} interrupts"), &failure);
        let mut given = self.given();
        if count == 0 {
            let disabled = set_irqs(&mut self.connection(), VFIO_PCI_MSIX_IRQ_INDEX, 0, &[]);
            disabled.map_err(what)?;
            given.vectors.clear();
            return Ok(Vec::new());
        }
        let ours: Vec<OwnedFd> =
            (0..count).map(|_| new_eventfd(&self.name).map(into_owned)).collect::<Result<_>>()?;
        let theirs = ours.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<OwnedFd>>>();
        let theirs = theirs.map_err(|why| {
            let what = format!("cannot enable {count} interrupts");
            Error::refused(&self.name, what, why, "raise the limit of open files (ulimit -n)")
        })?;
        self.set_vectors(&mut self.connection(), &ours).map_err(what)?;
        given.vectors = ours;
        Ok(theirs)
    }

    fn take_event(&self) -> Option<BusEvent> {
        if self.connection().is_gone() {
            return (!self.loss_told.swap(true, Ordering::Relaxed)).then_some(BusEvent::Gone);
        }
        self.notices.take()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn pause(&self, at_most: Duration) {
        self.clock.pause(at_most);
    }

    fn locality(&self) -> Locality {
        Locality::default()
    }
}

impl Drop for VfioUser {
    fn drop(&mut self) {
        let live = std::mem::take(&mut self.addresses().live);
        for (address, mapping) in live {
            // Closing the connection ends the mapping too, if the server works.
            if self.unmap_now(address, mapping.len).is_err() {
                break;
            }
        }
    }
}

impl fmt::Debug for VfioUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioUser({})", self.name)
    }
}
