//! Kernels of this process that run until they are told to end, by GPU: CUDA's calls that wait for every kernel would
//! wait for them.
//!
//! While one runs nothing is freed or unloaded: it is left to the process's end, and logged. What would allocate or load
//! for others is refused at the crate's entries, while it is rings that run one. Kernels of others' are not known here.

use super::gpu::Gpu;
use crate::{Error, Result};
use std::fmt::Display;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The kernels that run, each by its GPU and by who runs it. Whoever frees holds it, so that none starts meanwhile.
static RUNNING: RwLock<Vec<(i32, Runner)>> = RwLock::new(Vec::new());

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

/// That no such kernel runs, nor begins to while this lives.
pub(super) struct NothingEndless {
    _running: RwLockReadGuard<'static, Vec<(i32, Runner)>>,
}

impl Endless {
    /// Begins.
    pub(crate) fn begin(gpu: &Gpu, runner: Runner) -> Endless {
        let kernel = (gpu.device(), runner);
        write().push(kernel);
        Endless { kernel }
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let mut running = write();
        let place = running.iter().position(|kernel| *kernel == self.kernel);
        running.swap_remove(place.expect("it was put there, and is taken once"));
    }
}

impl Gpu {
    /// Refuses what CUDA would delay until a persistent kernel of rings ends.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] while such a kernel runs on this GPU.
    pub(crate) fn refuse_behind_rings(&self, what: impl Display) -> Result<()> {
        if !read().contains(&(self.device(), Runner::Rings)) {
            return Ok(());
        }
        let why =
            "the persistent kernel of other rings runs on this GPU, and CUDA may wait for its end";
        Err(Error::refused(what, why, "stop the other rings first"))
    }

    /// Leave to give something back to CUDA; none, and a word in the log, while a kernel runs that does not end.
    pub(super) fn may_free(&self, what: impl Display) -> Option<NothingEndless> {
        let running = read();
        if running.iter().any(|(device, _)| *device == self.device()) {
            tracing::warn!("{what} are leaked: CUDA would wait for a kernel that does not end");
            return None;
        }
        Some(NothingEndless { _running: running })
    }
}

fn read() -> RwLockReadGuard<'static, Vec<(i32, Runner)>> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Vec<(i32, Runner)>> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}
