//! Endless kernels of this process by GPU: CUDA calls that wait for every kernel would wait for them.
//!
//! While one runs, nothing is freed or unloaded: such resources are leaked, and logged. While rings run one, the
//! crate's entry points refuse to allocate or load. No endless kernel begins while something is being created or freed.
//! No lock is held during CUDA's calls. Kernels of other code are not tracked.

use super::gpu::Gpu;
use crate::{Error, Result};
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an endless kernel waits for creations and releases before it begins: compiling device code takes seconds,
/// more on a busy machine.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

static STATE: Mutex<Users> = Mutex::new(Users { kernels: Vec::new(), busy: Vec::new() });
static CHANGED: Condvar = Condvar::new();

/// State by GPU, in CUDA's numbering.
struct Users {
    /// The running kernels, and what runs them.
    kernels: Vec<(i32, Runner)>,
    /// The GPU of each creation or release in progress.
    busy: Vec<i32>,
}

/// What runs an endless kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// Rings, for as long as their user wants: no other caller may wait for that.
    Rings,
    /// A measurement or a check, which creates what it needs in the right order.
    #[cfg(any(test, feature = "internals"))]
    Controller,
}

/// Registers an endless kernel, from before its launch until it has ended.
#[derive(Debug)]
pub struct Endless {
    kernel: (i32, Runner),
}

/// Registers a creation or release: no endless kernel begins meanwhile.
#[derive(Debug)]
pub(crate) struct Busy {
    device: i32,
}

impl Endless {
    /// Waits until nothing is being created or freed on this GPU, then begins. The caller itself must not be creating
    /// anything.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if that takes too long; for rings [`Error::Refused`] while the kernel of other rings runs.
    pub fn begin(gpu: &Gpu, runner: Runner) -> Result<Endless> {
        let device = gpu.device();
        let is_busy = |state: &mut Users| state.busy.contains(&device);
        let waited = CHANGED.wait_timeout_while(lock(), BEGINS_WITHIN, is_busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let fix = "see what they wait for, such as control blocks that are never issued";
            let what = "what other threads make and free on this GPU";
            return Err(Error::timed_out(what, BEGINS_WITHIN, fix));
        }
        if runner == Runner::Rings && state.kernels.contains(&(device, runner)) {
            return Err(behind_rings("let a persistent kernel run"));
        }
        state.kernels.push((device, runner));
        Ok(Endless { kernel: (device, runner) })
    }

    /// Gives up on a kernel that does not stop: nothing waits for it, or creates anything that would, until the process
    /// ends.
    pub fn give_up(self) {
        lock().kernels.push((self.kernel.0, Runner::Rings));
        std::mem::forget(self);
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        take_out(&mut lock().kernels, self.kernel);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        take_out(&mut lock().busy, self.device);
        CHANGED.notify_all();
    }
}

impl Gpu {
    /// Permits creating what CUDA would delay until a persistent kernel of rings ends.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] while such a kernel runs on this GPU.
    pub(crate) fn may_make(&self, what: impl Display) -> Result<Busy> {
        let mut state = lock();
        if state.kernels.contains(&(self.device(), Runner::Rings)) {
            return Err(behind_rings(what));
        }
        Ok(state.begin(self.device()))
    }

    /// Permits returning a resource to CUDA; returns `None` and logs a leak while an endless kernel runs.
    pub(super) fn may_free(&self, what: impl Display) -> Option<Busy> {
        let mut state = lock();
        if state.kernels.iter().any(|(device, _)| *device == self.device()) {
            tracing::warn!("{what} are leaked: CUDA would wait for a kernel that does not end");
            return None;
        }
        Some(state.begin(self.device()))
    }
}

impl Users {
    fn begin(&mut self, device: i32) -> Busy {
        self.busy.push(device);
        Busy { device }
    }
}

fn behind_rings(what: impl Display) -> Error {
    let why =
        "the persistent kernel of other rings runs on this GPU, and CUDA may wait for its end";
    Error::refused(what, why, "stop the other rings first")
}

fn take_out<T: PartialEq>(list: &mut Vec<T>, one: T) {
    let place = list.iter().position(|other| *other == one);
    list.swap_remove(place.expect("it was put there, and is taken once"));
}

fn lock() -> MutexGuard<'static, Users> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
