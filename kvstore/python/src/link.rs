//! A connection to a served store in one era.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_kvshare::{Client, KvStore, Result, Span};

use crate::lending::{Lender, Lending};
use crate::lock::lock;
use crate::reaper::Reaper;
use crate::session::Session;

/// Numbers connections.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A connection in one era: its session, and the thread that takes answers for its queues.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) session: Arc<Session<Client>>,
    /// Number of the connection in this process.
    pub(crate) number: u64,
    /// The number of times that it was connected again. Layouts are known to the server of one era.
    pub(crate) era: u64,
    /// The thread that takes answers for queues, once it is started.
    reaper: Arc<Mutex<Option<Arc<Reaper>>>>,
}

impl Link {
    /// Wraps a connection whose requests must be answered within `timeout`.
    pub(crate) fn new(store: Client, timeout: Duration) -> Link {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (era, copied, reaper) = Default::default();
        let (lender, timeout) = (Lender::Shared(Mutex::default()), Some(timeout));
        let session = Arc::new(Session { store, lender, copied, timeout });
        Link { session, number, era, reaper }
    }

    /// Returns the link over a new connection that replaces this one, whose server is lost. Creates a pool at once if
    /// this link had one, so that requests do not wait for it, and drops the memory, which no other server can map.
    ///
    /// # Errors
    /// As [`Client::make_pool`].
    pub(crate) fn again(&self, store: Client) -> Result<Link> {
        if self.session.store.has_pool() {
            store.make_pool()?;
        }
        if self.session.lender.has_memory() {
            tracing::warn!(
                "memory of Client.allocate from before the loss of the server is copied from now on: allocate anew for \
                 transfers without a copy"
            );
        }
        let Session { copied, timeout, .. } = &*self.session;
        let (copied, timeout) = (Arc::clone(copied), *timeout);
        let session =
            Arc::new(Session { store, lender: Lender::Shared(Mutex::default()), copied, timeout });
        Ok(Link { session, era: self.era + 1, ..self.clone() })
    }

    /// Allocates shared memory.
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Arc<Lending<Span>>> {
        let memory = self.session.store.allocate(bytes)?;
        let lending = Lending::anchored(memory.as_ptr().addr(), memory);
        self.session.lender.add(&lending);
        Ok(lending)
    }

    /// Returns the thread that takes answers for the connection's queues.
    ///
    /// # Errors
    /// The system's error, if it has no thread left.
    pub(crate) fn reaper(&self) -> io::Result<Arc<Reaper>> {
        let mut reaper = lock(&self.reaper);
        if let Some(reaper) = &*reaper {
            return Ok(Arc::clone(reaper));
        }
        let started = Arc::new(Reaper::start()?);
        *reaper = Some(Arc::clone(&started));
        Ok(started)
    }
}
