//! An open store behind the Python objects that use it, and its end.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use adit_driver::Buffer;
use adit_kvstore::shard::Failure;
use adit_kvstore::store::Tenant;
use adit_kvstore::{Error, Store};
use pyo3::prelude::*;

use crate::errors;
use crate::forked::Ours;
use crate::lending::{Lender, Lending};
use crate::lock::lock;
use crate::session::Session;
use crate::view::View;
use crate::waiting::{self, wait};

/// The stores of this process, closed at its end.
static OPEN: Mutex<Vec<Weak<Inside>>> = Mutex::new(Vec::new());

/// Closes every open store. Runs at the end of the process, because a store that is only dropped ends as in a crash.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    let open = match OPEN.lock() {
        Ok(mut open) => std::mem::take(&mut *open),
        Err(_) => return,
    };
    for store in open.iter().filter_map(Weak::upgrade) {
        // A forked child leaves its parent's stores alone.
        let ended = if store.session.get().is_some() { store.close(py) } else { Ok(()) };
        if let Err(why) = ended {
            why.write_unraisable(py, None);
        }
    }
}

/// An open store, or a closed one.
pub(crate) struct Inside {
    session: Ours<RwLock<Option<Arc<Session<Store>>>>>,
    /// Tenants used so far, by name.
    tenants: Mutex<HashMap<String, Tenant>>,
    /// Held while memory is registered, so that registrations run one at a time.
    registering: Mutex<()>,
    /// Set once the store is being closed; the channel disconnects when it has ended.
    closing: OnceLock<Arc<Mutex<Receiver<()>>>>,
}

impl Inside {
    /// Wraps a store, which is closed at the end of the process at the latest.
    pub(crate) fn new(store: Store) -> Arc<Inside> {
        let copied = Arc::new(AtomicU64::new(0));
        let (lender, timeout) = (Lender::Registered(Vec::new()), None);
        let session = Arc::new(Session { store, lender, copied, timeout });
        let session = Ours::new(RwLock::new(Some(session)));
        let (tenants, registering, closing) = Default::default();
        let inside = Arc::new(Inside { session, tenants, registering, closing });
        let mut open = lock(&OPEN);
        open.retain(|store| store.strong_count() > 0);
        open.push(Arc::downgrade(&inside));
        inside
    }

    /// Returns what to make requests with.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once the store is closed.
    pub(crate) fn session(&self, py: Python<'_>) -> PyResult<Arc<Session<Store>>> {
        let session = self.session.here(py)?.read().unwrap_or_else(PoisonError::into_inner);
        session.clone().ok_or_else(|| errors::closed(py))
    }

    /// Returns the tenant of this name.
    pub(crate) fn tenant(&self, py: Python<'_>, name: &str) -> PyResult<Tenant> {
        let session = self.session(py)?;
        let known = || lock(&self.tenants);
        if let Some(tenant) = known().get(name) {
            return Ok(tenant.clone());
        }
        let tenant = wait(py, || session.store.tenant(name))?;
        known().insert(name.to_owned(), tenant.clone());
        Ok(tenant)
    }

    /// Registers memory with the devices. Refuses to register a byte twice: in a device's queue, each belongs to one
    /// region.
    ///
    /// # Errors
    /// `BadBufferError` if some of the memory is registered; errors of the store.
    pub(crate) fn register(
        self: &Arc<Inside>,
        py: Python<'_>,
        view: View,
    ) -> PyResult<Arc<Lending<Buffer>>> {
        self.session.here(py)?;
        let inside = Arc::clone(self);
        let registered = waiting::apart_or(
            py,
            move || inside.registered(view),
            |registered| {
                // The caller has left and has no region to close.
                drop(registered.map(|memory| memory.close()));
            },
        )?;
        registered.map_err(|why| match why {
            Unregistered::Failed(why) => errors::of(py, &why),
            Unregistered::Overlap(_view) => {
                let text = "some of the memory is registered already: register each byte once";
                errors::named(py, "BadBufferError", text)
            }
        })
    }

    fn registered(&self, view: View) -> Result<Arc<Lending<Buffer>>, Unregistered> {
        let closed = || Unregistered::Failed(Failure::Closed.into());
        let session = self.session.get().ok_or_else(closed)?;
        let _one = lock(&self.registering);
        let opened = session.read().unwrap_or_else(PoisonError::into_inner).clone();
        let opened = opened.ok_or_else(closed)?;
        let Session { store, lender: Lender::Registered(regions), copied, timeout } = &*opened
        else {
            unreachable!("a store's memory is registered")
        };
        let (start, len) = (view.address(), view.len());
        let open: Vec<_> = regions.iter().filter(|region| region.is_open()).collect();
        if open.iter().any(|region| region.overlaps(start, len)) {
            return Err(Unregistered::Overlap(view));
        }
        let mut memory = view.into_memory().map_err(|why| Unregistered::Failed(why.into()))?;
        if !memory.gather_pages() {
            tracing::debug!("{len} bytes stay in the pages that they are in");
        }
        let buffer = store.register(memory).map_err(Unregistered::Failed)?;
        let shared = Lending::new(start, buffer);
        let lender = Lender::Registered(open.into_iter().chain([&shared]).cloned().collect());
        let (store, copied) = (store.clone(), Arc::clone(copied));
        let renewed = Arc::new(Session { store, lender, copied, timeout: *timeout });
        if let Some(opened) = &mut *session.write().unwrap_or_else(PoisonError::into_inner) {
            *opened = renewed;
        }
        Ok(shared)
    }

    /// Ends the store and waits for its end, even if an earlier call gave up waiting. Does nothing if it has ended.
    pub(crate) fn close(self: &Arc<Inside>, py: Python<'_>) -> PyResult<()> {
        let mut session = self.session.here(py)?.write().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = session.take() else {
            drop(session);
            let Some(closing) = self.closing.get().cloned() else { return Ok(()) };
            return waiting::apart(py, move || {
                let _ = lock(&closing).recv();
            });
        };
        let (ending, ended) = mpsc::channel();
        let _ = self.closing.set(Arc::new(Mutex::new(ended)));
        drop(session);
        // The store ends even if the caller stops waiting; the end of the process then waits for it.
        let (inside, store) = (Arc::clone(self), opened.store.clone());
        let ended = waiting::apart(py, move || {
            let ended = store.close().wait();
            drop::<(Sender<()>, _)>((ending, inside));
            ended
        });
        // Registered memory is freed with the last request that uses it.
        py.detach(|| drop(opened));
        ended?.map(drop).map_err(|unfinished| errors::of(py, &unfinished.error))
    }
}

/// The reason why memory was not registered.
enum Unregistered {
    Failed(Error),
    /// Some of the memory is already registered; the view must be released attached.
    Overlap(View),
}
