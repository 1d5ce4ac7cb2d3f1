//! A control block as it is handed over, and how it ended as the CPU sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::layout::Context;
use crate::outcome::NOT_SENT;

/// A control block to be carried out. Every context is of one device.
pub(crate) struct Work<E> {
    /// Which device, by its place in the list that the engine was made over.
    pub(crate) device: usize,
    /// What `done` becomes; never 0.
    pub(crate) generation: u32,
    /// The commands; their address is the offset in the region.
    pub(crate) contexts: Arc<[Context]>,
    /// GPU memory is neither read nor written before this has happened.
    pub(crate) after: Option<E>,
    /// Address of a word of GPU memory that becomes `generation` when all is over.
    pub(crate) done: u64,
    /// Address of a word of GPU memory for each context. The engine writes those of contexts that fail, before `done`;
    /// whoever issues sets them to 0.
    pub(crate) statuses: u64,
    /// From the first command on, and not before `after` has happened.
    pub(crate) timeout: Duration,
    /// How far it is, for the CPU.
    pub(crate) progress: Arc<Progress>,
}

/// How a control block ended, as the CPU sees it.
#[derive(Debug)]
pub(crate) struct Progress {
    done: AtomicU32,
    took_ns: AtomicU64,
    statuses: Box<[AtomicU32]>,
}

impl Progress {
    /// Of a control block of so many contexts.
    pub(crate) fn new(contexts: usize) -> Progress {
        Progress {
            done: AtomicU32::new(0),
            took_ns: AtomicU64::new(0),
            statuses: (0..contexts).map(|_| AtomicU32::new(NOT_SENT)).collect(),
        }
    }

    /// The generation that is over: 0 before. What else there is to ask is there once it is.
    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    /// Contexts that ended with anything but success.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> usize {
        (0..self.statuses.len()).filter(|context| self.status(*context) != 0).count()
    }

    /// From the first command to the end of the last, in nanoseconds.
    pub(crate) fn took_ns(&self) -> u64 {
        self.took_ns.load(Ordering::Relaxed)
    }

    /// How a context ended ([`crate::outcome::Ended::of`] reads it).
    pub(crate) fn status(&self, context: usize) -> u32 {
        self.statuses[context].load(Ordering::Relaxed)
    }

    /// Ends a control block of which nothing was begun.
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
