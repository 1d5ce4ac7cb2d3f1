//! Lends runs of memory to requests: of callers' memory registered with a store, or of memory shared with a server.
//!
//! A request has exclusive use of its run. Memory in use by another request is not lent again but copied, so that
//! overlapping requests are slower, never wrong.

use std::sync::{Arc, Mutex, Weak};

use adit_kvshare::{Divide, Pieces};

use crate::lock::lock;

/// A piece of memory, and its idle runs.
pub(crate) struct Lending<M> {
    start: usize,
    len: usize,
    /// `None` once it is closed.
    idle: Mutex<Option<Pieces<M>>>,
    /// An empty part that keeps the mapping when a lost server does not return runs.
    _anchor: Option<M>,
}

/// All memory whose runs are lent.
pub(crate) enum Lender<M> {
    /// A store's registered regions, kept until they are closed.
    Registered(Vec<Arc<Lending<M>>>),
    /// Memory that a client shares with its server, kept until the last Python object that refers to it is gone.
    Shared(Mutex<Vec<Weak<Lending<M>>>>),
}

/// A run's place, to which it returns.
pub(crate) struct Loan<M> {
    of: Arc<Lending<M>>,
    offset: usize,
}

impl<M: Divide> Lending<M> {
    /// Wraps all of the memory at the address `start`.
    pub(crate) fn new(start: usize, all: M) -> Arc<Lending<M>> {
        let (len, idle) = (all.bytes(), Mutex::new(Some(Pieces::new(all))));
        Arc::new(Lending { start, len, idle, _anchor: None })
    }

    /// Wraps all of the memory at the address `start`, and keeps it mapped.
    pub(crate) fn anchored(start: usize, mut all: M) -> Arc<Lending<M>> {
        let len = all.bytes();
        let _anchor = Some(all.split_off(len));
        Arc::new(Lending { start, len, idle: Mutex::new(Some(Pieces::new(all))), _anchor })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory still lends runs.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.idle).is_some()
    }

    /// Returns whether any of the `len` bytes at an address lies in this memory.
    pub(crate) fn overlaps(&self, address: usize, len: usize) -> bool {
        address < self.start + self.len && self.start < address.saturating_add(len)
    }

    /// Takes the `len` bytes at an address, unless they lie elsewhere or a request uses some of them.
    pub(crate) fn take(self: &Arc<Lending<M>>, address: usize, len: usize) -> Option<(M, Loan<M>)> {
        let offset = address.checked_sub(self.start).filter(|offset| *offset < self.len)?;
        let run = lock(&self.idle).as_mut()?.take(offset, len)?;
        Some((run, Loan { of: Arc::clone(self), offset }))
    }

    /// Stops lending and returns the memory, or `None` if it was closed before.
    ///
    /// # Errors
    /// The number of bytes in use by requests, if any. Nothing changes then.
    pub(crate) fn close(&self) -> Result<Option<Pieces<M>>, usize> {
        let mut idle = lock(&self.idle);
        match idle.as_ref().map_or(0, Pieces::bytes_in_use) {
            0 => Ok(idle.take()),
            in_use => Err(in_use),
        }
    }
}

impl<M: Divide> Lender<M> {
    /// Takes the `len` bytes at an address from the memory that contains them, unless a request uses some.
    pub(crate) fn take(&self, address: usize, len: usize) -> Option<(M, Loan<M>)> {
        match self {
            Lender::Registered(regions) => regions.iter().find_map(|it| it.take(address, len)),
            Lender::Shared(shared) => {
                // The last of them to be dropped takes its memory back from the server, which must not happen under
                // the lock.
                let held: Vec<_> = lock(shared).iter().filter_map(Weak::upgrade).collect();
                held.iter().find_map(|it| it.take(address, len))
            }
        }
    }

    /// Adds shared memory. Has no effect on registered regions, whose list is replaced instead.
    pub(crate) fn add(&self, memory: &Arc<Lending<M>>) {
        if let Lender::Shared(shared) = self {
            let mut shared = lock(shared);
            shared.retain(|it| it.strong_count() > 0);
            shared.push(Arc::downgrade(memory));
        }
    }

    /// Returns whether some memory can be lent.
    pub(crate) fn has_memory(&self) -> bool {
        match self {
            Lender::Registered(regions) => !regions.is_empty(),
            Lender::Shared(shared) => lock(shared).iter().any(|it| it.strong_count() > 0),
        }
    }
}

impl<M: Divide> Loan<M> {
    /// Takes back a request's run, or `None` if the store has ended or a device may still write it; such a run is not
    /// lent again.
    pub(crate) fn give(self, run: Option<M>) {
        let Some(run) = run else { return };
        // A run of closed memory is dropped without the lock, because dropping may wait for the interpreter.
        let mut idle = lock(&self.of.idle);
        if let Some(idle) = idle.as_mut() {
            idle.give(self.offset, run);
        }
    }
}
