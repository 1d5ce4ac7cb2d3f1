//! A vfio-user server for tests: the software controller behind a socket.
//!
//! Protocol by the `vfio_user` crate's `Server`, so that our client is not
//! tested against itself. The doorbell page is offered for mapping or not; one
//! client at a time, one after the other.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit_driver::Time;
use adit_driver::soft::{CMB_BAR, Controller, DOORBELLS_OFFSET, Options};
use adit_driver::sys::{DmaTable, SharedPages};
use memmap2::{MmapOptions, MmapRaw};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_MSIX_IRQ_INDEX, vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

/// BARs, ROM, configuration space and VGA, as vfio-pci numbers them.
const REGION_COUNT: u32 = 9;
const IRQ_KINDS: u32 = 5;
const READ_WRITE: u32 = 0b11;
const MMAP: u32 = 0b100;
/// A doorbell that nobody rang: no queue is that long.
const SILENT: u32 = u32::MAX;

/// Whether clients may map the doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorbellPage {
    Mappable,
    Messages,
}

struct State {
    controller: Controller,
    table: DmaTable,
    /// What the client handed over, by address.
    mapped: BTreeMap<u64, MmapRaw>,
}

struct Shared {
    state: Mutex<State>,
    /// BAR0 as clients map it; only the doorbells in it are looked at.
    bar0: SharedPages,
    /// Eventfds of the MSI-X vectors.
    vectors: Mutex<Vec<Option<File>>>,
    stops: AtomicBool,
}

/// A running server; its socket goes away with it.
pub(crate) struct VfioUserServer {
    socket: PathBuf,
    shared: Arc<Shared>,
    stepper: Option<JoinHandle<()>>,
}

impl VfioUserServer {
    /// Serves a controller made of `options` at a fresh socket.
    pub(crate) fn start(options: Options, page: DoorbellPage) -> VfioUserServer {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-vfio-user-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let shared = share(Controller::new(options).expect("controller"));
        let server = server(&socket, &shared, page);
        let serving = Arc::clone(&shared);
        // Not joined: it waits in the protocol crate for a client that may never hang up.
        thread::spawn(move || serve(&server, &serving));
        let stepping = Arc::clone(&shared);
        let stepper = Some(thread::spawn(move || step_until_stopped(&stepping)));
        VfioUserServer { socket, shared, stepper }
    }

    /// Where clients connect.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls `f` with the controller, which does nothing else meanwhile.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn with_controller<R>(&self, f: impl FnOnce(&mut Controller) -> R) -> R {
        f(&mut self.shared.state().controller)
    }

    /// How many pieces of memory the client has handed over.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn mapping_count(&self) -> usize {
        self.shared.state().mapped.len()
    }
}

impl Drop for VfioUserServer {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        if let Some(stepper) = self.stepper.take() {
            let _ = stepper.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share(mut controller: Controller) -> Arc<Shared> {
    let bar0 = SharedPages::allocate(controller.bar0_bytes() as usize).expect("memory");
    for doorbell in doorbells(&bar0) {
        doorbell.store(SILENT, Ordering::Relaxed);
    }
    let vector_count = usize::from(controller.vector_count());
    let vectors = Mutex::new((0..vector_count).map(|_| None).collect());
    controller.set_interrupt(None);
    let state = State { controller, table: DmaTable::default(), mapped: BTreeMap::new() };
    let shared =
        Arc::new(Shared { state: Mutex::new(state), bar0, vectors, stops: AtomicBool::new(false) });
    let weak = Arc::downgrade(&shared);
    shared.state().controller.set_interrupt(Some(Box::new(move |vector| {
        if let Some(shared) = weak.upgrade() {
            signal(&shared.vectors, vector);
        }
    })));
    shared
}

fn doorbells(bar0: &SharedPages) -> &[AtomicU32] {
    &bar0.atomics().dwords()[DOORBELLS_OFFSET as usize / 4..]
}

fn signal(vectors: &Mutex<Vec<Option<File>>>, vector: u16) {
    let vectors = vectors.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(eventfd)) = vectors.get(usize::from(vector)) {
        let mut eventfd: &File = eventfd;
        // Full: the client has been told often enough.
        let _ = eventfd.write(&1u64.to_ne_bytes());
    }
}

fn server(socket: &Path, shared: &Shared, page: DoorbellPage) -> Server {
    let state = shared.state();
    let bar0_len = shared.bar0.len() as u64;
    let regions = (0..REGION_COUNT).map(|index| match index {
        0 => match page {
            DoorbellPage::Messages => region(index, bar0_len, None),
            DoorbellPage::Mappable => {
                let start = u64::from(DOORBELLS_OFFSET);
                let area = vfio_region_sparse_mmap_area { offset: start, size: bar0_len - start };
                region(index, bar0_len, Some((shared.bar0.file().as_raw_fd(), area)))
            }
        },
        _ if index == u32::from(CMB_BAR) => match state.controller.cmb() {
            None => region(index, 0, None),
            Some(cmb) => {
                let size = cmb.pages().len() as u64;
                let area = vfio_region_sparse_mmap_area { offset: 0, size };
                region(index, size, Some((cmb.pages().file().as_raw_fd(), area)))
            }
        },
        _ => region(index, 0, None),
    });
    let irqs = (0..IRQ_KINDS).map(|index| IrqInfo {
        index,
        flags: 1,
        count: match index {
            VFIO_PCI_MSIX_IRQ_INDEX => state.controller.vector_count().into(),
            _ => u32::from(index > VFIO_PCI_MSIX_IRQ_INDEX),
        },
    });
    Server::new(socket, true, irqs.collect(), regions.collect()).expect("socket")
}

fn region(
    index: u32,
    size: u64,
    mappable: Option<(RawFd, vfio_region_sparse_mmap_area)>,
) -> ServerRegion {
    let flags = if mappable.is_some() { READ_WRITE | MMAP } else { READ_WRITE };
    let argsz = size_of::<vfio_region_info>() as u32;
    let region_info = vfio_region_info { argsz, flags, index, cap_offset: 0, size, offset: 0 };
    ServerRegion {
        region_info,
        sparse_areas: mappable.iter().map(|&(_, area)| SparseArea { area }).collect(),
        mmap_fd: mappable.map(|(file, _)| file),
    }
}

fn serve(server: &Server, shared: &Arc<Shared>) {
    while !shared.stops.load(Ordering::Acquire) {
        let mut backend = Backend(Arc::clone(shared));
        // An error ends the client it came from; the next one gets a fresh device.
        let _ = server.run(&mut backend);
        let _ = backend.reset();
        shared.state().unmap_all();
    }
}

fn step_until_stopped(shared: &Shared) {
    let origin = Instant::now();
    let mut idle = 0;
    while !shared.stops.load(Ordering::Acquire) {
        let taken = shared.step(Time::ZERO + origin.elapsed());
        idle = if taken > 0 { 0 } else { idle + 1 };
        if idle > 100 {
            thread::sleep(Duration::from_micros(20));
        } else {
            thread::yield_now();
        }
    }
}

impl Shared {
    /// Hands the doorbells that were rung in the mapped page on, and steps.
    fn step(&self, now: Time) -> usize {
        let mut state = self.state();
        for (index, doorbell) in doorbells(&self.bar0).iter().enumerate() {
            if doorbell.load(Ordering::Relaxed) != SILENT {
                let value = u32::from_le(doorbell.swap(SILENT, Ordering::AcqRel));
                let offset = DOORBELLS_OFFSET + 4 * index as u32;
                state.controller.write_doorbell(offset, value);
            }
        }
        let State { controller, table, .. } = &mut *state;
        controller.step(table, now)
    }
}

impl State {
    fn unmap_all(&mut self) {
        for (address, map) in std::mem::take(&mut self.mapped) {
            self.table.remove(address, map.len() as u64);
        }
    }
}

struct Backend(Arc<Shared>);

fn refused(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let inside = offset + data.len() as u64 <= self.0.bar0.len() as u64;
        if region != 0 || !inside || !matches!(data.len(), 4 | 8) {
            return Err(refused(libc::EINVAL));
        }
        let value = self.0.state().controller.read_register(offset as u32, data.len() as u32);
        data.copy_from_slice(&value.to_le_bytes()[..data.len()]);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let inside = offset + data.len() as u64 <= self.0.bar0.len() as u64;
        if region != 0 || !inside || !matches!(data.len(), 4 | 8) {
            return Err(refused(libc::EINVAL));
        }
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(bytes);
        self.0.state().controller.write_register(offset as u32, data.len() as u32, value);
        Ok(())
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        let file = file.ok_or_else(|| refused(libc::EINVAL))?;
        let map: MmapRaw = MmapOptions::new().offset(offset).len(size as usize).map_raw(&file)?;
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        let mut state = self.0.state();
        // SAFETY: the mapping is kept beside the table and removed from it before it ends.
        if !unsafe { state.table.insert(address, at, size) } {
            return Err(refused(libc::EEXIST));
        }
        state.mapped.insert(address, map);
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let mut state = self.0.state();
        if !state.table.remove(address, size) {
            return Err(refused(libc::ENOENT));
        }
        state.mapped.remove(&address);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.0.state().controller.reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        _: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let mut vectors = self.0.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if count == 0 {
            vectors.fill_with(|| None);
        }
        for (place, file) in vectors.iter_mut().skip(start as usize).zip(files) {
            *place = Some(file);
        }
        Ok(())
    }
}
