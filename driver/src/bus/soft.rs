//! The bus of the software controller: registers by call, doorbells by shared memory, DMA through a table of
//! mappings.
//!
//! The controller either has its own thread ([`Drive::Thread`]) or is stepped by its callers
//! ([`Drive::Manual`]): time is then virtual and passes only in [`Bus::pause`] and [`SoftBus::advance`], so
//! that a run can be repeated exactly.
//!
//! One lock holds the controller and the DMA table: after [`Bus::unmap`] no step can still use the memory.
#![allow(unsafe_code)]

mod script;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::notices::into_owned;
use super::{Bus, BusEvent, Doorbell, Locality};
use crate::Time;
use crate::error::{Error, Result};
use crate::soft::{CMB_BAR, Controller, DOORBELLS_OFFSET, DmaResult, Fault, HostMemory, Options};
use crate::spec::Iova;
use crate::sys::{DmaTable, HostRange, SharedPages, Window};

pub use script::Script;

/// Start of device addresses: using zero or a host pointer as one must fail.
const IOVA_START: u64 = 1 << 32;
const IOVA_END: u64 = 1 << 56;
const PAGE: u64 = 4096;
/// Rounds without work before the thread yields, and before it sleeps.
const SPINS: u32 = 500;
const YIELDS: u32 = 2_000;
const SLEEP: Duration = Duration::from_micros(50);
/// Virtual time that passes in a pause that finds work.
const WORK_TAKES: Duration = Duration::from_micros(1);

/// The way the controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// By its own thread, on the machine's clock.
    Thread,
    /// By calls of [`SoftBus::step`] or [`Bus::pause`], in virtual time.
    Manual,
}

struct BusState {
    controller: Controller,
    table: DmaTable,
    /// Files of [`Bus::map_file`] by device address, as mapped into this process.
    files: BTreeMap<u64, MmapRaw>,
    iova_next: u64,
    events: VecDeque<BusEvent>,
    /// Whether [`BusEvent::Gone`] was reported since the device was last plugged in.
    is_gone: bool,
}

struct Shared {
    state: Mutex<BusState>,
    /// Callers waiting for the lock; the thread yields to them.
    callers: AtomicUsize,
    stops: AtomicBool,
    origin: Instant,
    drive: Drive,
    virtual_ns: AtomicU64,
}

/// A software controller in this process.
pub struct SoftBus {
    device: String,
    shared: Arc<Shared>,
    doorbells: Window,
    cmb: Option<Window>,
    vector_count: u16,
    thread: Option<JoinHandle<()>>,
}

impl SoftBus {
    /// Creates a controller and its bus.
    ///
    /// # Errors
    /// As [`Controller::new`]; [`Error::Refused`] if the thread cannot be started.
    pub fn new(options: Options, drive: Drive) -> Result<Arc<SoftBus>> {
        let device = format!("soft:{}", options.storage);
        let controller = Controller::new(options)?;
        let window = |pages: &SharedPages| {
            Window::map(pages.file(), 0, pages.len()).map_err(|why| {
                let what = format!("map {} bytes of a BAR", pages.len());
                Error::refused(&device, what, why, "free memory or ask for less")
            })
        };
        let doorbells = window(controller.doorbells())?;
        let cmb = controller.cmb().map(|cmb| window(cmb.pages())).transpose()?;
        let vector_count = controller.vector_count();
        let state = BusState {
            controller,
            table: DmaTable::default(),
            files: BTreeMap::new(),
            iova_next: IOVA_START,
            events: VecDeque::new(),
            is_gone: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            callers: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
            origin: Instant::now(),
            drive,
            virtual_ns: AtomicU64::new(0),
        });
        let thread = match drive {
            Drive::Manual => None,
            Drive::Thread => Some(spawn(&device, Arc::clone(&shared))?),
        };
        Ok(Arc::new(SoftBus { device, shared, doorbells, cmb, vector_count, thread }))
    }

    /// Steps the controller once; returns the number of commands taken.
    pub fn step(&self) -> usize {
        self.shared.lock().step(self.shared.now())
    }

    /// Advances virtual time without stepping; no effect on the machine's clock.
    pub fn advance(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.shared.virtual_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Calls `f` with the controller, which is locked meanwhile.
    pub fn with_controller<R>(&self, f: impl FnOnce(&mut Script<'_>) -> R) -> R {
        f(&mut Script(&mut self.shared.lock().controller))
    }

    /// Calls `f` with the memory mapped for the controller, so that a test can write there as the device.
    ///
    /// # Safety
    /// No Rust reference to the bytes that `f` writes is used meanwhile.
    pub unsafe fn with_memory<R>(&self, f: impl FnOnce(&dyn HostMemory) -> R) -> R {
        f(&self.shared.lock().table)
    }

    /// Runs the commands that a hook held back; returns their number.
    pub fn release_held(&self) -> usize {
        let state = &mut *self.shared.lock();
        state.controller.release_held(&state.table)
    }

    /// Returns the number of the controller's accesses to unmapped addresses.
    pub fn dma_faults(&self) -> u64 {
        self.shared.lock().table.faults()
    }

    /// Returns the bytes mapped for the controller.
    pub fn mapped_bytes(&self) -> u64 {
        self.shared.lock().table.mapped_bytes()
    }

    /// Unplugs the device: registers read all ones and nothing is executed. It also loses power, as in
    /// [`SoftBus::cut_power`].
    pub fn unplug(&self) {
        self.shared.unplug();
    }

    /// Plugs the device in again, uninitialized.
    pub fn replug(&self) {
        let mut state = self.shared.lock();
        state.controller.restore_power();
        state.is_gone = false;
    }

    /// Cuts the device's power without a bus event: registers read all ones. The controller's seed and the
    /// number of earlier power cuts decide what the write cache and commands in flight leave on the media.
    pub fn cut_power(&self) {
        let state = &mut *self.shared.lock();
        let seed = state.controller.cut_seed();
        state.controller.cut_power(&state.table, seed);
    }

    /// Restores power: the device must be brought up again.
    pub fn restore_power(&self) {
        self.replug();
    }

    /// Returns when the controller next acts by itself, without new commands; see [`Controller::next_due`].
    pub fn next_due(&self) -> Option<Time> {
        self.shared.lock().controller.next_due()
    }

    /// Makes [`Bus::take_event`] report `event`.
    pub fn report(&self, event: BusEvent) {
        self.shared.lock().events.push_back(event);
    }

    fn read(&self, offset: u32, width: u32) -> u64 {
        self.shared.lock().controller.read_register(offset, width)
    }

    fn write(&self, offset: u32, width: u32, value: u64) {
        self.shared.lock().controller.write_register(offset, width, value);
    }

    /// Steps, then advances time: barely if there was work, else up to the next due time.
    fn step_and_advance(&self, at_most: Duration) {
        let at_most = if self.step() > 0 { at_most.min(WORK_TAKES) } else { at_most };
        let now = self.shared.now();
        let until = self.next_due().filter(|due| *due > now);
        self.advance(until.map_or(at_most, |due| at_most.min(due.since(now))));
    }

    fn refused(&self, what: &str, why: impl ToString, fix: &str) -> Error {
        Error::refused(&self.device, what, why, fix)
    }
}

impl Drop for SoftBus {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the controller has been printed already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BusState> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.callers.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    fn now(&self) -> Time {
        match self.drive {
            Drive::Thread => Time::ZERO + self.origin.elapsed(),
            Drive::Manual => Time::from_ns(self.virtual_ns.load(Ordering::Relaxed)),
        }
    }

    fn unplug(&self) {
        let state = &mut *self.lock();
        state.controller.remove(&state.table);
        state.notice_removal();
    }

    /// Runs the thread: spins, then yields, then sleeps while idle.
    fn run(&self) {
        let mut idle = 0u32;
        while !self.stops.load(Ordering::Acquire) {
            if self.callers.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let taken = self.lock().step(self.now());
            idle = if taken > 0 { 0 } else { idle.saturating_add(1) };
            match idle {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ if self.is_due_soon() => std::thread::yield_now(),
                _ => std::thread::park_timeout(SLEEP),
            }
        }
    }

    /// Returns whether something is due before a sleep would end; sleeps end late rather than early.
    fn is_due_soon(&self) -> bool {
        let due = self.lock().controller.next_due();
        due.is_some_and(|due| due.since(self.now()) < 2 * SLEEP)
    }
}

impl BusState {
    fn step(&mut self, now: Time) -> usize {
        let taken = self.controller.step(&self.table, now);
        if self.controller.is_removed() {
            self.notice_removal();
        }
        taken
    }

    fn notice_removal(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) {
            self.events.push_back(BusEvent::Gone);
        }
    }

    /// Takes `len` bytes of device address space, followed by a gap.
    fn take_iova(&mut self, len: u64) -> Option<u64> {
        let iova = self.iova_next;
        let end = iova.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        if end >= IOVA_END {
            return None;
        }
        self.iova_next = end + PAGE;
        Some(iova)
    }
}

fn spawn(device: &str, shared: Arc<Shared>) -> Result<JoinHandle<()>> {
    let run = move || {
        if catch_unwind(AssertUnwindSafe(|| shared.run())).is_err() {
            tracing::error!("the thread of a software controller panicked, which is a bug");
            // No command waits for its deadline on a controller that no thread drives.
            shared.unplug();
        }
    };
    std::thread::Builder::new().name("adit-soft".to_owned()).spawn(run).map_err(|why| {
        Error::refused(device, "start the controller's thread", why, "raise the thread limit")
    })
}

impl HostMemory for DmaTable {
    #[inline]
    fn read(&self, iova: Iova, into: &mut [u8]) -> DmaResult {
        DmaTable::read(self, iova.0, into).ok_or(Fault)
    }

    #[inline]
    fn fetch(&self, iova: Iova, into: &mut [u8; 64]) -> DmaResult {
        DmaTable::load512(self, iova.0, into).ok_or(Fault)
    }

    #[inline]
    fn write(&self, iova: Iova, from: &[u8]) -> DmaResult {
        DmaTable::write(self, iova.0, from).ok_or(Fault)
    }

    #[inline]
    fn load32(&self, iova: Iova) -> std::result::Result<u32, Fault> {
        DmaTable::load32(self, iova.0).ok_or(Fault)
    }

    #[inline]
    fn store32(&self, iova: Iova, value: u32) -> DmaResult {
        DmaTable::store32(self, iova.0, value).ok_or(Fault)
    }

    #[inline]
    fn post(&self, iova: Iova, entry: &[u8; 16]) -> DmaResult {
        DmaTable::store128(self, iova.0, entry).ok_or(Fault)
    }
}

// SAFETY: addresses only ever rise, and the controller reaches memory through the table alone.
unsafe impl Bus for SoftBus {
    fn device(&self) -> &str {
        &self.device
    }

    fn read32(&self, offset: u32) -> u32 {
        self.read(offset, 4) as u32
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.write(offset, 4, u64::from(value));
    }

    fn read64(&self, offset: u32) -> u64 {
        self.read(offset, 8)
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.write(offset, 8, value);
    }

    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        let offset_in = Some(offset as usize).filter(|_| offset >= DOORBELLS_OFFSET);
        let register = offset_in.and_then(|offset| self.doorbells.register32(offset));
        register.map(Doorbell::Mapped).ok_or_else(|| {
            let what = format!("it has no doorbell at {offset:#x} of BAR0");
            Error::device(&self.device, what, "use fewer queues")
        })
    }

    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        let whole = self.cmb.as_ref().filter(|_| bar == CMB_BAR);
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        whole.zip(range).and_then(|(cmb, (offset, len))| cmb.slice(offset, len)).ok_or_else(|| {
            let what = format!("map {len} bytes at {offset:#x} of BAR{bar}");
            self.refused(&what, "the BAR ends before that", "give it a buffer with 'cmb=SIZE'")
        })
    }

    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        let mut state = self.shared.lock();
        let len = memory.len as u64;
        let what = format!("map {len} bytes for DMA");
        let iova = state.take_iova(len).ok_or_else(|| {
            self.refused(&what, "no device address space is left", "open the device anew")
        })?;
        // SAFETY: the caller keeps the memory until `unmap`, and has no references while the device writes.
        if unsafe { state.table.insert(iova, memory.at, len, memory.is_writable) } {
            return Ok(Iova(iova));
        }
        Err(self.refused(&what, "the range is empty", "map at least one page"))
    }

    unsafe fn map_file(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Iova> {
        let what = format!("map {len} bytes of a file for DMA");
        let refused = |why: &dyn fmt::Display| {
            let fix = "give it a file that can be mapped, at a multiple of 4096";
            Error::refused(&self.device, &what, why, fix)
        };
        let bytes = usize::try_from(len).map_err(|why| refused(&why))?;
        let mapped = MmapOptions::new().offset(offset).len(bytes).map_raw(file.as_raw_fd());
        let map = mapped.map_err(|why| refused(&why))?;
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        let mut state = self.shared.lock();
        let iova =
            state.take_iova(len).ok_or_else(|| refused(&"no device address space is left"))?;
        // SAFETY: the mapping stays with the table until `unmap`, and there are no references to it.
        if unsafe { state.table.insert(iova, at, len, true) } {
            state.files.insert(iova, map);
            return Ok(Iova(iova));
        }
        Err(refused(&"the range is empty"))
    }

    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        let mut state = self.shared.lock();
        if state.table.remove(iova.0, len) {
            state.files.remove(&iova.0);
            return Ok(());
        }
        drop(state);
        let what = format!("unmap {len} bytes at {iova}");
        Err(self.refused(&what, "there is no such mapping", "unmap exactly what was mapped"))
    }

    fn reserve(&self, len: u64) -> Result<Iova> {
        self.shared.lock().take_iova(len).map(Iova).ok_or_else(|| {
            let what = format!("reserve {len} bytes of address space");
            self.refused(&what, "no device address space is left", "open the device anew")
        })
    }

    fn reset(&self) -> Result<()> {
        if self.shared.lock().controller.reset() {
            return Ok(());
        }
        Err(self.refused("reset the function", "the controller refuses", "cut its power"))
    }

    fn vector_count(&self) -> u16 {
        self.vector_count
    }

    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>> {
        let what = format!("enable {count} interrupt vectors");
        if count > self.vector_count {
            let why = format!("it has {}", self.vector_count);
            return Err(self.refused(&what, why, "use fewer queues or poll"));
        }
        let refused = |why| self.refused(&what, why, "raise the open file limit (ulimit -n)");
        let fds = (0..count).map(|_| EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC));
        let fds = fds.collect::<std::io::Result<Vec<EventFd>>>().map_err(refused)?;
        let given = fds.iter().map(|fd| fd.try_clone().map(into_owned));
        let given = given.collect::<std::io::Result<Vec<OwnedFd>>>().map_err(refused)?;
        self.shared.lock().controller.set_interrupt(Some(Box::new(move |vector| {
            if let Some(fd) = fds.get(usize::from(vector)) {
                // Fails only if the counter is full: then the waiter has been woken already.
                let _ = fd.write(1);
            }
        })));
        Ok(given)
    }

    fn take_event(&self) -> Option<BusEvent> {
        self.shared.lock().events.pop_front()
    }

    fn now(&self) -> Time {
        self.shared.now()
    }

    fn pause(&self, at_most: Duration) {
        match self.shared.drive {
            Drive::Thread if at_most < SLEEP => std::thread::yield_now(),
            Drive::Thread => std::thread::sleep(at_most),
            Drive::Manual => self.step_and_advance(at_most),
        }
    }

    fn locality(&self) -> Locality {
        Locality::default()
    }
}

impl fmt::Debug for SoftBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftBus({}, {:?})", self.device, self.shared.drive)
    }
}

#[cfg(test)]
mod tests;
