//! A driver over the software controller in virtual time, with a watch between them: it counts mappings, notes what is
//! unmapped from an enabled controller, and can lie about registers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::bus::pci::VirtualFunction;
use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::bus::{Bus, BusEvent, Doorbell, Locality};
use adit_driver::soft::Verdict;
use adit_driver::spec::{AdminOpcode, IoOpcode, Iova, Nsid, Qid, Sqe};
use adit_driver::sys::{HostRange, Window};
use adit_driver::{
    Completion, Controller, ControllerOptions, Error, IoBuffer, Namespace, QueuePair,
    QueuePairOptions, Result, Time,
};

const CC: u32 = 0x14;
/// How long anything may take, in virtual time.
const PATIENCE: Duration = Duration::from_secs(300);

/// Maps a register's offset and value to the value that the driver sees.
type Lie = Box<dyn FnMut(u32, u64) -> u64 + Send>;

/// The bus between driver and controller, which watches and lies.
pub(crate) struct Watch {
    pub(crate) soft: Arc<SoftBus>,
    /// Mapped lengths by address.
    live: Mutex<BTreeMap<u64, u64>>,
    /// Lengths unmapped while CC.EN was set.
    early: Mutex<Vec<u64>>,
    lie: Mutex<Option<Lie>>,
    reset_fails: AtomicBool,
    resets: AtomicUsize,
    /// Whether the bus can cut the device off, and whether it has.
    can_cut_off: AtomicBool,
    is_cut_off: AtomicBool,
    no_vectors: AtomicBool,
    no_doorbells: AtomicBool,
    virtual_function: Mutex<Option<VirtualFunction>>,
}

impl Watch {
    pub(crate) fn new(tail: &str) -> Arc<Watch> {
        let soft = SoftBus::new(tail.parse().expect("options"), Drive::Manual).expect("bus");
        Arc::new(Watch {
            soft,
            live: Mutex::default(),
            early: Mutex::default(),
            lie: Mutex::default(),
            reset_fails: AtomicBool::new(false),
            resets: AtomicUsize::new(0),
            can_cut_off: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            no_vectors: AtomicBool::new(false),
            no_doorbells: AtomicBool::new(false),
            virtual_function: Mutex::default(),
        })
    }

    pub(crate) fn mapped(&self) -> usize {
        self.live.lock().expect("not poisoned").len()
    }

    /// Takes the lengths that were unmapped while the controller was enabled.
    pub(crate) fn take_early_unmaps(&self) -> Vec<u64> {
        std::mem::take(&mut self.early.lock().expect("not poisoned"))
    }

    /// Shows the driver `lie(offset, truth)` for each register.
    pub(crate) fn lie(&self, lie: impl FnMut(u32, u64) -> u64 + Send + 'static) {
        *self.lie.lock().expect("not poisoned") = Some(Box::new(lie));
    }

    /// Shows the driver the real registers again.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn tell_the_truth(&self) {
        *self.lie.lock().expect("not poisoned") = None;
    }

    pub(crate) fn fail_reset(&self) {
        self.reset_fails.store(true, Ordering::Relaxed);
    }

    /// Number of requested function resets.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn resets(&self) -> usize {
        self.resets.load(Ordering::Relaxed)
    }

    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn allow_reset(&self) {
        self.reset_fails.store(false, Ordering::Relaxed);
    }

    /// Lets the bus cut the device off from memory from now on, as an IOMMU can.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn allow_cut_off(&self) {
        self.can_cut_off.store(true, Ordering::Relaxed);
    }

    /// Offers no interrupt vectors from now on.
    pub(crate) fn hide_vectors(&self) {
        self.no_vectors.store(true, Ordering::Relaxed);
    }

    /// Passes for a virtual function of a drive from now on.
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) fn be_virtual(&self, function: VirtualFunction) {
        *self.virtual_function.lock().expect("not poisoned") = Some(function);
    }

    /// Hides the doorbells, as behind a BAR that is too short, or shows them again.
    pub(crate) fn hide_doorbells(&self, hides: bool) {
        self.no_doorbells.store(hides, Ordering::Relaxed);
    }

    fn refused<T>(&self) -> Result<T> {
        Err(Error::device(self.device(), "it refuses", "none"))
    }

    fn shown(&self, offset: u32, truth: u64) -> u64 {
        match &mut *self.lie.lock().expect("not poisoned") {
            Some(lie) => lie(offset, truth),
            None => truth,
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.soft.fmt(f)
    }
}

// SAFETY: it passes on to a bus that keeps the promise; what it lies about is registers.
#[allow(unsafe_code)]
unsafe impl Bus for Watch {
    fn device(&self) -> &str {
        self.soft.device()
    }
    fn read32(&self, offset: u32) -> u32 {
        self.shown(offset, self.soft.read32(offset).into()) as u32
    }
    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write32(offset, value) };
    }
    fn read64(&self, offset: u32) -> u64 {
        self.shown(offset, self.soft.read64(offset))
    }
    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write64(offset, value) };
    }
    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        if self.no_doorbells.load(Ordering::Relaxed) {
            return self.refused();
        }
        // SAFETY: passed on to our caller.
        unsafe { Arc::clone(&self.soft).doorbell(offset) }
    }
    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        // SAFETY: passed on to our caller.
        unsafe { self.soft.bar_window(bar, offset, len) }
    }
    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        if self.is_cut_off.load(Ordering::Relaxed) {
            return self.refused();
        }
        let len = memory.bytes();
        // SAFETY: passed on to our caller.
        let iova = unsafe { self.soft.map(memory) }?;
        self.live.lock().expect("not poisoned").insert(iova.0, len);
        Ok(iova)
    }
    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        if self.is_cut_off.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.soft.read32(CC) & 1 == 1 && self.soft.read32(CC) != u32::MAX {
            self.early.lock().expect("not poisoned").push(len);
        }
        // SAFETY: passed on to our caller.
        unsafe { self.soft.unmap(iova, len) }?;
        let before = self.live.lock().expect("not poisoned").remove(&iova.0);
        assert_eq!(before, Some(len), "mapped before");
        Ok(())
    }
    fn cut_off(&self) -> Result<()> {
        if !self.can_cut_off.load(Ordering::Relaxed) {
            return self.refused();
        }
        for (iova, len) in std::mem::take(&mut *self.live.lock().expect("not poisoned")) {
            // SAFETY: after this the device is to reach nothing.
            unsafe { self.soft.unmap(Iova(iova), len) }?;
        }
        self.is_cut_off.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn reserve(&self, len: u64) -> Result<Iova> {
        self.soft.reserve(len)
    }
    fn reset(&self) -> Result<()> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        if self.reset_fails.load(Ordering::Relaxed) {
            return self.refused();
        }
        self.soft.reset()
    }
    fn vector_count(&self) -> u16 {
        if self.no_vectors.load(Ordering::Relaxed) { 0 } else { self.soft.vector_count() }
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
    fn pause(&self, at_most: Duration) {
        self.soft.pause(at_most);
    }
    fn locality(&self) -> Locality {
        self.soft.locality()
    }
    fn virtual_function(&self) -> Option<VirtualFunction> {
        self.virtual_function.lock().expect("not poisoned").clone()
    }
}

/// An open controller with its bus and first namespace.
pub(crate) struct Rig {
    pub(crate) bus: Arc<Watch>,
    pub(crate) controller: Controller,
    pub(crate) namespace: Namespace,
}

impl Rig {
    pub(crate) fn new(tail: &str) -> Rig {
        Rig::open(Watch::new(tail), &ControllerOptions::default())
    }

    pub(crate) fn open(bus: Arc<Watch>, options: &ControllerOptions) -> Rig {
        let controller =
            Controller::attach(Arc::<Watch>::clone(&bus), options).expect("controller");
        let namespace = controller.namespace(Nsid(1)).expect("namespace");
        Rig { bus, controller, namespace }
    }

    pub(crate) fn pair<B: IoBuffer>(&self, depth: u32) -> QueuePair<B> {
        let options = QueuePairOptions { depth, ..QueuePairOptions::default() };
        self.controller.create_queue_pair(options).expect("queue pair")
    }

    pub(crate) fn now(&self) -> Time {
        self.controller.now()
    }

    pub(crate) fn hook(&self, hook: impl FnMut(&Sqe, Qid) -> Verdict + Send + 'static) {
        self.bus.soft.with_controller(|controller| controller.set_hook(hook));
    }

    pub(crate) fn clear_hook(&self) {
        self.bus.soft.with_controller(|controller| controller.clear_hook());
    }

    pub(crate) fn all_io(&self, verdict: Verdict) {
        self.hook(move |_, qid| if qid.is_admin() { Verdict::Run } else { verdict });
    }

    pub(crate) fn all_reads(&self, verdict: Verdict) {
        self.hook(move |sqe, qid| {
            if !qid.is_admin() && sqe.io_opcode() == IoOpcode::READ {
                verdict
            } else {
                Verdict::Run
            }
        });
    }

    /// Gives every admin command with `opcode` `verdict`.
    pub(crate) fn admin(&self, opcode: AdminOpcode, verdict: Verdict) {
        self.hook(move |sqe, qid| {
            if qid.is_admin() && sqe.admin_opcode() == opcode { verdict } else { Verdict::Run }
        });
    }

    pub(crate) fn settle(&self) {
        while self.bus.soft.step() > 0 {}
    }

    /// Polls until nothing is in flight; returns the completions.
    pub(crate) fn drain<B: IoBuffer>(&self, pair: &mut QueuePair<B>) -> Vec<Completion<B>> {
        let mut finished = Vec::new();
        let started = self.now();
        while pair.in_flight() > 0 {
            pair.poll(self.now(), |completion| finished.push(completion));
            assert!(self.now().since(started) < PATIENCE, "{pair:?} never finished");
            self.controller.pause(Duration::from_millis(1));
        }
        finished
    }

    pub(crate) fn bounded<R>(&self, f: impl FnOnce() -> R) -> R {
        let started = self.now();
        let result = f();
        assert!(self.now().since(started) < PATIENCE, "took {:?}", self.now().since(started));
        result
    }

    /// Checks that nothing is left mapped and no unmapped memory was accessed.
    pub(crate) fn finish(self) {
        let Rig { bus, controller, namespace } = self;
        drop((controller, namespace));
        while bus.soft.step() > 0 {}
        bus.soft.release_held();
        assert_eq!(bus.soft.dma_faults(), 0, "memory was unmapped too early");
        assert_eq!(bus.mapped(), 0, "mappings are left");
    }
}
