//! The bus between driver and software controller, which watches both.
//!
//! It knows what is mapped and what the device can access (its queues' rings and the buffers of commands in flight),
//! and records every offence against law 3. It can also misbehave: unplug the device, refuse a reset, lie about
//! registers, withhold doorbells. Time is virtual, and passes faster the longer the driver waits for nothing, so that
//! a wait of half a minute takes a hundred steps instead of a hundred thousand.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::bus::{Bus, BusEvent, Doorbell, Locality};
use adit_driver::soft::Options;
use adit_driver::spec::Iova;
use adit_driver::sys::{HostRange, Window};
use adit_driver::{Error, Result, Time};

const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
/// How often an idle wait may double.
const DOUBLINGS_MAX: u32 = 12;
/// Time that passes in a pause in which the controller had work to do.
const BUSY: Duration = Duration::from_micros(1);
/// The wall clock at virtual time zero, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// Memory that the device can access because of one of its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The queue; 0 is the admin queue.
    pub(crate) qid: u16,
    /// Its address on the bus.
    pub(crate) iova: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    pub(crate) what: Reached,
}

/// The use of memory that the device can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// A submission ring.
    Submission,
    /// A completion ring.
    Completion,
    /// The data of a request.
    Data(u64),
}

/// A wrong register value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lie {
    /// The register.
    pub(crate) offset: u32,
    /// Bits that read as set.
    pub(crate) sets: u64,
    pub(crate) reads: u32,
}

/// State shared by the bus and the controller's hook.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    mapped: BTreeMap<u64, u64>,
    reachable: Vec<Reach>,
    offences: Vec<String>,
    /// Accesses of the device to unmapped addresses that are forgiven.
    forgiven: u64,
    /// Whether it is unplugged or without power.
    is_away: bool,
    refuses_reset: bool,
    /// Whether the bus can cut the device off, and whether it has.
    can_cut_off: bool,
    is_cut_off: bool,
    lie: Option<Lie>,
    idle: u32,
}

impl Watched {
    /// Records memory that the device was told of.
    pub(crate) fn reach(&mut self, reach: Reach) {
        self.reachable.push(reach);
    }

    /// Forgets the ring of a deleted queue.
    pub(crate) fn forget_ring(&mut self, qid: u16, ring: Reached) {
        self.reachable.retain(|reach| reach.qid != qid || reach.what != ring);
    }

    /// Forgets all rings; requests in flight on them wait for new queues, or end.
    fn forget_rings(&mut self) {
        self.reachable.retain(|reach| matches!(reach.what, Reached::Data(_)));
    }

    fn has_submission(&self, qid: u16) -> bool {
        self.reachable.iter().any(|reach| reach.qid == qid && reach.what == Reached::Submission)
    }

    /// Forgets the data of a request that has ended.
    pub(crate) fn forget_data(&mut self, tag: u64) {
        self.reachable.retain(|reach| reach.what != Reached::Data(tag));
    }

    fn check_unmap(&mut self, iova: u64, len: u64) {
        let meets = |reach: &&Reach| {
            let is_ring = !matches!(reach.what, Reached::Data(_));
            reach.iova < iova + len
                && iova < reach.iova + reach.len
                && (is_ring || self.has_submission(reach.qid))
        };
        if let Some(reach) = self.reachable.iter().find(meets) {
            let offence =
                format!("{len} bytes at {iova:#x} were unmapped while the device had {reach:?}");
            self.offences.push(offence);
        }
    }

    fn shown(&mut self, offset: u32, truth: u64) -> u64 {
        match &mut self.lie {
            Some(lie) if lie.offset == offset && lie.reads > 0 => {
                lie.reads -= 1;
                truth | lie.sets
            }
            _ => truth,
        }
    }
}

/// The shared state, also held by the controller's hook.
pub(crate) type Watch = Arc<Mutex<Watched>>;

/// Locks, even after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bus that watches driver and controller.
pub(crate) struct SimBus {
    pub(crate) soft: Arc<SoftBus>,
    watch: Watch,
}

impl SimBus {
    pub(crate) fn new(options: Options) -> Arc<SimBus> {
        let soft = SoftBus::new(options, Drive::Manual).expect("the shape's options are valid");
        Arc::new(SimBus { soft, watch: Watch::default() })
    }

    pub(crate) fn watch(&self) -> MutexGuard<'_, Watched> {
        lock(&self.watch)
    }

    pub(crate) fn share(&self) -> Watch {
        Arc::clone(&self.watch)
    }

    /// Steps the controller; returns the number of commands it fetched.
    pub(crate) fn step(&self) -> usize {
        let taken = self.soft.step();
        self.forget_if_disabled();
        taken
    }

    /// Steps the controller until it has nothing to do.
    pub(crate) fn settle(&self) {
        while self.step() > 0 {}
    }

    pub(crate) fn release_held(&self) -> usize {
        self.soft.release_held()
    }

    pub(crate) fn advance(&self, duration: Duration) {
        self.soft.advance(duration);
    }

    /// Unplugs the device, or only cuts its power: it reads as all ones and does nothing.
    pub(crate) fn take_away(&self, pulls_out: bool) {
        if pulls_out {
            self.soft.unplug()
        } else {
            self.soft.cut_power()
        }
        let mut watch = self.watch();
        watch.is_away = true;
        watch.forget_rings();
    }

    /// Brings the device back, disabled.
    pub(crate) fn bring_back(&self) {
        self.soft.replug();
        self.watch().is_away = false;
    }

    pub(crate) fn is_away(&self) -> bool {
        self.watch().is_away
    }

    pub(crate) fn refuse_reset(&self, refuses: bool) {
        self.watch().refuses_reset = refuses;
    }

    pub(crate) fn refuses_reset(&self) -> bool {
        self.watch().refuses_reset
    }

    /// Returns whether the controller is ready and has not failed.
    pub(crate) fn is_running(&self) -> bool {
        self.soft.read32(CSTS) & 3 == 1
    }

    /// Returns whether commands wait for firmware (CSTS.PP).
    pub(crate) fn is_pausing(&self) -> bool {
        !self.is_away() && self.soft.read32(CSTS) >> 5 & 1 == 1
    }

    /// Sets whether the bus can cut the device off from memory if nothing else stops it.
    pub(crate) fn allow_cut_off(&self, allows: bool) {
        let mut watch = self.watch();
        watch.can_cut_off = allows;
        // As on a newly opened bus.
        watch.is_cut_off = false;
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.watch().is_cut_off
    }

    pub(crate) fn report(&self, event: BusEvent) {
        self.soft.report(event);
    }

    pub(crate) fn lie(&self, lie: Option<Lie>) {
        self.watch().lie = lie;
    }

    pub(crate) fn mapped(&self) -> usize {
        self.watch().mapped.len()
    }

    /// Returns the first offence seen.
    pub(crate) fn offence(&self) -> Option<String> {
        let stray = self.soft.dma_faults() - self.watch().forgiven;
        if stray > 0 {
            return Some(format!("the device met {stray} addresses that were not mapped"));
        }
        self.watch().offences.first().cloned()
    }

    /// Forgives the device's accesses to unmapped addresses so far.
    pub(crate) fn forgive_strays(&self) {
        let strays = self.soft.dma_faults();
        self.watch().forgiven = strays;
    }

    /// Returns whether the device may be accessing memory.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_away() && (self.soft.read32(CC) & 1 == 1 || self.soft.read32(CSTS) & 1 == 1)
    }

    /// Breaks law 3 on purpose: unmaps a ring, as a driver would that frees it too early.
    pub(crate) fn unmap_early(&self) {
        let watch = self.watch();
        let is_ring = |reach: &&Reach| !matches!(reach.what, Reached::Data(_));
        let Some(ring) = watch.reachable.iter().find(is_ring) else { return };
        let found = watch.mapped.range(..=ring.iova).next_back().map(|(iova, len)| (*iova, *len));
        drop(watch);
        if let Some((iova, len)) = found {
            // SAFETY: none; yet the software controller's addresses are never given away again.
            unsafe { self.unmap(Iova(iova), len) }.expect("it is mapped");
        }
    }

    fn forget_if_disabled(&self) {
        if !self.is_live() {
            self.watch().forget_rings();
        }
    }
}

impl std::fmt::Debug for SimBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.soft.fmt(f)
    }
}

// SAFETY: memory is mapped, unmapped and reset by a bus that keeps the promise; what may lie here is
// registers, and what may be refused says so.
unsafe impl Bus for SimBus {
    fn device(&self) -> &str {
        self.soft.device()
    }

    fn read32(&self, offset: u32) -> u32 {
        let truth = self.soft.read32(offset);
        self.watch().shown(offset, truth.into()) as u32
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.watch().idle = 0;
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write32(offset, value) };
        self.forget_if_disabled();
    }

    fn read64(&self, offset: u32) -> u64 {
        let truth = self.soft.read64(offset);
        self.watch().shown(offset, truth)
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.watch().idle = 0;
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write64(offset, value) };
        self.forget_if_disabled();
    }

    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        // SAFETY: passed on to our caller.
        unsafe { Arc::clone(&self.soft).doorbell(offset) }
    }

    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        // SAFETY: passed on to our caller.
        unsafe { self.soft.bar_window(bar, offset, len) }
    }

    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        if self.is_cut_off() {
            return Err(Error::device(self.device(), "it is cut off from memory", "none"));
        }
        let len = memory.bytes();
        // SAFETY: passed on to our caller.
        let iova = unsafe { self.soft.map(memory) }?;
        self.watch().mapped.insert(iova.0, len);
        Ok(iova)
    }

    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        let mut watch = self.watch();
        // Cutting the device off has unmapped everything.
        let Some(mapped) = watch.mapped.remove(&iova.0) else { return Ok(()) };
        if mapped != len {
            watch.offences.push(format!("{iova} was mapped with {mapped} bytes, not {len}"));
        }
        drop(watch);
        if self.is_live() {
            self.watch().check_unmap(iova.0, len);
        }
        // SAFETY: passed on to our caller.
        unsafe { self.soft.unmap(iova, len) }
    }

    fn cut_off(&self) -> Result<()> {
        if !self.watch().can_cut_off {
            return Err(Error::device(self.device(), "it cannot be cut off from memory", "none"));
        }
        let mapped = std::mem::take(&mut self.watch().mapped);
        for (iova, len) in mapped {
            // SAFETY: after this the device is to reach nothing.
            unsafe { self.soft.unmap(Iova(iova), len) }?;
        }
        let mut watch = self.watch();
        watch.forget_rings();
        watch.is_cut_off = true;
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<Iova> {
        self.soft.reserve(len)
    }

    fn reset(&self) -> Result<()> {
        if self.watch().refuses_reset {
            return Err(Error::device(self.device(), "it refuses to be reset", "none"));
        }
        self.soft.reset()?;
        self.forget_if_disabled();
        Ok(())
    }

    fn vector_count(&self) -> u16 {
        self.soft.vector_count()
    }

    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>> {
        self.soft.enable_vectors(count)
    }

    fn take_event(&self) -> Option<BusEvent> {
        self.soft.take_event()
    }

    fn now(&self) -> Time {
        self.soft.now()
    }

    fn unix_ms(&self) -> u64 {
        EPOCH_MS + self.now().as_ns() / 1_000_000
    }

    fn pause(&self, at_most: Duration) {
        if self.step() > 0 {
            self.watch().idle = 0;
            return self.advance(at_most.min(BUSY));
        }
        let idle = self.watch().idle;
        self.watch().idle = (idle + 1).min(DOUBLINGS_MAX);
        self.advance(at_most * (1 << idle));
    }

    fn locality(&self) -> Locality {
        Locality::default()
    }
}
