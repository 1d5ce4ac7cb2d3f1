//! Kernels of this process that run until they are told to end, by GPU: CUDA's calls that wait for every kernel would
//! wait for them.
//!
//! While one runs nothing is freed or unloaded: it is left to the process's end, and logged. What would allocate or load
//! for others is refused at the crate's entries, while it is rings that run one. And none begins while something is made
//! or freed. Nothing is locked during CUDA's calls. Kernels of others' are not known here.

use super::gpu::Gpu;
use crate::{Error, Result};
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a kernel that does not end waits for what is made and freed before it begins: device code takes seconds to
/// compile, on a busy machine more.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

static STATE: Mutex<State> = Mutex::new(State { kernels: Vec::new(), busy: Vec::new() });
static CHANGED: Condvar = Condvar::new();

/// By GPU, as CUDA numbers them.
struct State {
    /// The kernels that run, and who runs them.
    kernels: Vec<(i32, Runner)>,
    /// For each of those who make or free something, where.
    busy: Vec<i32>,
}

/// Who runs a kernel that does not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// Rings, as long as their user wants: nobody else is to wait for that.
    Rings,
    /// A measurement or a check, which makes what it needs in the right order.
    Controller,
}

/// That a kernel runs that does not end by itself: held from before its launch until it has ended.
#[derive(Debug)]
pub(crate) struct Endless {
    kernel: (i32, Runner),
}

/// That something is made or freed: no such kernel begins meanwhile.
#[derive(Debug)]
pub(crate) struct Busy {
    device: i32,
}

impl Endless {
    /// Begins, once nothing is made or freed on this GPU. The caller makes nothing itself.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if that takes too long; for rings [`Error::Refused`] while others' kernel runs.
    pub(crate) fn begin(gpu: &Gpu, runner: Runner) -> Result<Endless> {
        let device = gpu.device();
        let is_busy = |state: &mut State| state.busy.contains(&device);
        let waited = CHANGED.wait_timeout_while(lock(), BEGINS_WITHIN, is_busy);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(Error::TimedOut {
                waited_for: "what other threads make and free on this GPU".to_owned(),
                after: BEGINS_WITHIN,
                fix: "see what they wait for, such as control blocks that are never issued".into(),
            });
        }
        if runner == Runner::Rings && state.kernels.contains(&(device, runner)) {
            return Err(behind_rings("let a persistent kernel run"));
        }
        state.kernels.push((device, runner));
        Ok(Endless { kernel: (device, runner) })
    }

    /// The kernel does not end when it is told to: nobody waits for it, or makes what would, until the process ends.
    pub(crate) fn give_up(self) {
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
    /// Leave to make what CUDA would delay until a persistent kernel of rings ends.
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

    /// Leave to give something back to CUDA; none, and a word in the log, while a kernel runs that does not end.
    pub(super) fn may_free(&self, what: impl Display) -> Option<Busy> {
        let mut state = lock();
        if state.kernels.iter().any(|(device, _)| *device == self.device()) {
            tracing::warn!("{what} are leaked: CUDA would wait for a kernel that does not end");
            return None;
        }
        Some(state.begin(self.device()))
    }
}

impl State {
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

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
