//! The bus between the driver and the software controller, where mischief happens and the laws are checked.
//!
//! Time is virtual. While the driver waits and nothing happens, time passes ever faster: a wait of minutes takes a
//! few hundred polls.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_driver::bus::soft::{Drive, SoftBus};
use adit_driver::bus::{Bus, BusEvent, Doorbell, Locality};
use adit_driver::soft::{DmaResult, HostMemory};
use adit_driver::spec::Iova;
use adit_driver::sys::{HostRange, Window};
use adit_driver::{Error, Result, Time};

use super::mischief::{Action, Mischief, Refusal};
use crate::input::Input;

/// Limit of bus accesses per call of the user. The longest waits make a few thousand.
const CALLS_MAX: u64 = 200_000;
/// The longest time that one pause lets pass.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Pauses without work until time stops accelerating.
const IDLE_MAX: u32 = 16;

/// A bus that passes accesses on, and misbehaves.
pub(super) struct HostileBus {
    pub(super) soft: Arc<SoftBus>,
    mischief: Arc<Mutex<Mischief>>,
    counters: Counters,
}

/// Events counted by the bus.
#[derive(Debug, Default)]
struct Counters {
    /// Accesses since the user's last call.
    calls: AtomicU64,
    /// Pauses since the controller last had work.
    idle: AtomicU64,
    refused_resets: AtomicU64,
    refused_unmaps: AtomicU64,
    cut_offs: AtomicU64,
}

impl HostileBus {
    pub(super) fn new(make: &str, input: Input) -> Arc<HostileBus> {
        let soft = SoftBus::new(make.parse().expect("options"), Drive::Manual).expect("bus");
        let mischief = Arc::new(Mutex::new(Mischief::new(input)));
        let judge = Arc::clone(&mischief);
        soft.with_controller(|controller| {
            controller.set_hook(move |sqe, qid| lock(&judge).judge(sqe, qid));
        });
        Arc::new(HostileBus { soft, mischief, counters: Counters::default() })
    }

    /// Passes the input to `f`, for the user's choices.
    pub(super) fn choose<R>(&self, f: impl FnOnce(&mut Input) -> R) -> R {
        f(&mut lock(&self.mischief).input)
    }

    /// Returns whether the bus has refused a reset, which the controller's memory needs to become free again.
    pub(super) fn may_be_stuck(&self) -> bool {
        self.counters.refused_resets.load(Ordering::Relaxed) > 0
    }

    /// Runs a call of the user and checks that it ends in time.
    pub(super) fn bounded<R>(&self, what: &str, bound: Duration, f: impl FnOnce() -> R) -> R {
        self.counters.calls.store(0, Ordering::Relaxed);
        let started = self.now();
        let result = f();
        let took = self.now().since(started);
        assert!(took <= bound, "{what} took {took:?}, which is more than {bound:?}");
        result
    }

    /// Checks what must hold when the driver has released everything.
    pub(super) fn check_end(&self) {
        let refused = self.counters.refused_unmaps.load(Ordering::Relaxed);
        let (left, honest) = {
            let mischief = lock(&self.mischief);
            (mischief.live.len() as u64, mischief.is_honest())
        };
        assert!(self.may_be_stuck() || left <= refused, "{left} mappings are left");
        while self.soft.step() > 0 {}
        self.soft.release_held();
        if honest {
            assert_eq!(self.soft.dma_faults(), 0, "memory was unmapped too early");
        }
    }

    /// Gives the device an opportunity to act.
    fn moment(&self) {
        let calls = self.counters.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < CALLS_MAX, "one call accesses the bus without end");
        let action = lock(&self.mischief).next();
        if let Some(action) = action {
            self.act(action);
        }
    }

    fn act(&self, action: Action) {
        let soft = &self.soft;
        match action {
            // The device cannot access memory that was unmapped meanwhile.
            Action::Write { at, bytes } => self.reach(at, |memory, at| memory.write(at, &bytes)),
            Action::Post { at, entry } => self.reach(at, |memory, at| memory.post(at, &entry)),
            Action::Flip { at, bit } => self.reach(at, |memory, at| flip(memory, at, bit)),
            Action::Release => drop(soft.release_held()),
            Action::Die => soft.with_controller(|controller| controller.fail()),
            Action::Refuse(refusal, on) => soft.with_controller(|controller| match refusal {
                Refusal::Disable => controller.refuse_disable(on),
                Refusal::Enable => controller.hang_enable(on),
                Refusal::SubsystemReset => controller.refuse_subsystem_reset(on),
            }),
            Action::Delays(enable, disable) => {
                soft.with_controller(|controller| controller.set_delays(enable, disable));
            }
            Action::Vanish => soft.unplug(),
            Action::Return => soft.replug(),
            Action::Restart => drop(soft.with_controller(|controller| controller.reset())),
            Action::Report(event) => soft.report(event),
            Action::NamespaceChanged(nsid) => {
                soft.with_controller(|controller| controller.namespace_changed(nsid));
            }
            Action::AttachNamespace(nsid, on) => {
                soft.with_controller(|controller| controller.attach_namespace(nsid, on));
            }
            Action::Temperature(kelvin) => {
                soft.with_controller(|controller| controller.set_temperature(kelvin));
            }
        }
    }

    /// Accesses memory as the device, if the address is mapped now. An access beyond the end of its mapping changes
    /// nothing.
    fn reach(&self, at: u64, access: impl FnOnce(&dyn HostMemory, Iova) -> DmaResult) {
        let is_mapped = {
            let mischief = lock(&self.mischief);
            let before = mischief.live.range(..=at).next_back();
            before.is_some_and(|(start, len)| at - start < *len)
        };
        if is_mapped {
            // SAFETY: the fuzzer's one thread is in a call to the bus, in which it uses no buffer.
            let _ = unsafe { self.soft.with_memory(|memory| access(memory, Iova(at))) };
        }
    }

    fn refused<T>(&self, what: &str) -> Result<T> {
        Err(Error::device(self.device(), what, "nothing"))
    }

    fn wrote(&self, offset: u32, value: u64) {
        self.counters.idle.store(0, Ordering::Relaxed);
        lock(&self.mischief).see_write(offset, value);
    }
}

fn lock(mischief: &Mutex<Mischief>) -> MutexGuard<'_, Mischief> {
    mischief.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inverts a bit of a completion entry.
fn flip(memory: &dyn HostMemory, at: Iova, bit: u8) -> DmaResult {
    let mut entry = [0; 16];
    memory.read(at, &mut entry)?;
    entry[usize::from(bit / 8)] ^= 1 << (bit % 8);
    memory.post(at, &entry)
}

/// Decrements a count; returns whether it was above 0.
fn take(count: &mut u8) -> bool {
    let is_left = *count > 0;
    *count = count.saturating_sub(1);
    is_left
}

impl fmt::Debug for HostileBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostileBus({:?}, {:?})", self.soft, self.counters)
    }
}

// SAFETY: it passes mapping, unmapping and resets on to a bus that keeps the promise, or refuses them;
// what the device writes on its own account goes through that bus's table of what is mapped.
unsafe impl Bus for HostileBus {
    fn device(&self) -> &str {
        self.soft.device()
    }

    fn read32(&self, offset: u32) -> u32 {
        self.moment();
        let truth = self.soft.read32(offset).into();
        lock(&self.mischief).shown(offset, truth) as u32
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.moment();
        self.wrote(offset, value.into());
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write32(offset, value) };
    }

    fn read64(&self, offset: u32) -> u64 {
        self.moment();
        let truth = self.soft.read64(offset);
        lock(&self.mischief).shown(offset, truth)
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.moment();
        self.wrote(offset, value);
        // SAFETY: passed on to our caller.
        unsafe { self.soft.write64(offset, value) };
    }

    unsafe fn doorbell(self: Arc<Self>, offset: u32) -> Result<Doorbell> {
        if lock(&self.mischief).refuses_doorbells {
            return self.refused("no doorbell");
        }
        // SAFETY: passed on to our caller.
        unsafe { Arc::clone(&self.soft).doorbell(offset) }
    }

    unsafe fn bar_window(&self, bar: u8, offset: u64, len: u64) -> Result<Window> {
        self.moment();
        // SAFETY: passed on to our caller.
        unsafe { self.soft.bar_window(bar, offset, len) }
    }

    unsafe fn map(&self, memory: HostRange<'_>) -> Result<Iova> {
        self.moment();
        if take(&mut lock(&self.mischief).refuses_maps)
            || self.counters.cut_offs.load(Ordering::Relaxed) > 0
        {
            return self.refused("no mapping");
        }
        let before = self.soft.mapped_bytes();
        // SAFETY: passed on to our caller.
        let iova = unsafe { self.soft.map(memory) }?;
        let len = self.soft.mapped_bytes() - before;
        lock(&self.mischief).live.insert(iova.0, len);
        Ok(iova)
    }

    unsafe fn unmap(&self, iova: Iova, len: u64) -> Result<()> {
        self.moment();
        if take(&mut lock(&self.mischief).refuses_unmaps) {
            self.counters.refused_unmaps.fetch_add(1, Ordering::Relaxed);
            return self.refused("no unmapping");
        }
        // SAFETY: passed on to our caller.
        unsafe { self.soft.unmap(iova, len) }?;
        let known = lock(&self.mischief).live.remove(&iova.0);
        assert_eq!(known, Some(len), "mapped before, and once");
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<Iova> {
        self.soft.reserve(len)
    }

    fn reset(&self) -> Result<()> {
        self.moment();
        if lock(&self.mischief).refuses_reset {
            self.counters.refused_resets.fetch_add(1, Ordering::Relaxed);
            return self.refused("no reset");
        }
        self.soft.reset()
    }

    fn cut_off(&self) -> Result<()> {
        if lock(&self.mischief).refuses_cut_off {
            return self.refused("not cut off");
        }
        self.counters.cut_offs.fetch_add(1, Ordering::Relaxed);
        self.soft.unplug();
        Ok(())
    }

    fn vector_count(&self) -> u16 {
        self.soft.vector_count()
    }

    fn enable_vectors(&self, count: u16) -> Result<Vec<OwnedFd>> {
        self.soft.enable_vectors(count)
    }

    fn take_event(&self) -> Option<BusEvent> {
        self.moment();
        self.soft.take_event()
    }

    fn now(&self) -> Time {
        self.soft.now()
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn pause(&self, at_most: Duration) {
        self.moment();
        if self.soft.step() > 0 {
            self.counters.idle.store(0, Ordering::Relaxed);
            self.soft.advance(at_most.min(Duration::from_micros(1)));
        } else {
            let idle = self.counters.idle.fetch_add(1, Ordering::Relaxed).min(IDLE_MAX.into());
            self.soft.advance(at_most.saturating_mul(1 << idle).min(PAUSE_MAX.max(at_most)));
        }
        self.moment();
    }

    fn locality(&self) -> Locality {
        Locality::default()
    }
}
