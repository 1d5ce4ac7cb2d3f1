//! A control block as issued, and how it ended for the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::commands::layout::Context;
use crate::commands::outcome::NOT_SENT;

/// A control block to execute. All its contexts belong to one device.
pub(crate) struct Work<E> {
    /// The device's position in the engine's list.
    pub(crate) device: usize,
    /// The final value of `done`; never 0.
    pub(crate) generation: u32,
    /// The commands; their address is the offset in the region.
    pub(crate) contexts: Arc<[Context]>,
    /// GPU memory is neither read nor written before this has happened.
    pub(crate) after: Option<E>,
    /// Address of a word of GPU memory that becomes `generation` when everything is over.
    pub(crate) done: u64,
    /// Address of a word of GPU memory per context, initialised to 0 by the issuer. The engine writes those of failed
    /// contexts, before `done`.
    pub(crate) statuses: u64,
    /// Time limit from the first command on, which is after `after` has happened.
    pub(crate) timeout: Duration,
    /// The state visible to the CPU.
    pub(crate) progress: Arc<Progress>,
}

/// How a control block ended, for the CPU.
#[derive(Debug)]
pub(crate) struct Progress {
    done: AtomicU32,
    took_ns: AtomicU64,
    statuses: Box<[AtomicU32]>,
}

impl Progress {
    /// Creates the progress of a control block of `contexts` contexts.
    pub(crate) fn new(contexts: usize) -> Progress {
        Progress {
            done: AtomicU32::new(0),
            took_ns: AtomicU64::new(0),
            statuses: (0..contexts).map(|_| AtomicU32::new(NOT_SENT)).collect(),
        }
    }

    /// Returns the finished generation, or 0 before. Once set, the other values are valid.
    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    /// Returns the number of contexts that did not succeed.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> usize {
        (0..self.statuses.len()).filter(|context| self.status(*context) != 0).count()
    }

    /// Returns the time from the first command to the end of the last, in nanoseconds.
    pub(crate) fn took_ns(&self) -> u64 {
        self.took_ns.load(Ordering::Relaxed)
    }

    /// Returns how a context ended ([`crate::commands::outcome::Ended::of`] decodes it).
    pub(crate) fn status(&self, context: usize) -> u32 {
        self.statuses[context].load(Ordering::Relaxed)
    }

    /// Ends a control block that has not begun.
    pub(super) fn fail(&self, generation: u32, status: u32) {
        self.finish(generation, &vec![status; self.statuses.len()], Duration::ZERO);
    }

    pub(super) fn finish(&self, generation: u32, statuses: &[u32], took: Duration) {
        for (word, status) in self.statuses.iter().zip(statuses) {
            word.store(*status, Ordering::Relaxed);
        }
        self.took_ns.store(took.as_nanos() as u64, Ordering::Relaxed);
        self.done.store(generation, Ordering::Release);
    }
}
