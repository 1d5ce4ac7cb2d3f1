//! What requests are made of: a store of this process, or a connection to one.

use std::sync::Arc;
use std::time::Duration;

use adit_kvstore::Key;
use adit_kvstore::layout::Layout as Shape;
use pyo3::prelude::*;

use crate::blocks::{Layout, Lease};
use crate::connection::Connection;
use crate::errors;
use crate::inside::{Inside, PutArguments, wait};
use crate::job::Job;
use crate::requests::Maker;
use crate::view::View;

/// An open store or connection, or a closed one.
#[derive(Clone)]
pub(crate) enum Source {
    Store(Arc<Inside>),
    Client(Arc<Connection>),
}

impl Source {
    /// Runs `ask` detached, with what makes requests.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once it is closed.
    pub(crate) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Maker) -> T + Send,
    ) -> PyResult<T> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                Ok(py.detach(|| ask(&session)))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                Ok(py.detach(|| ask(&link)))
            }
        }
    }

    /// Stores objects, and runs `then` with the job, detached.
    ///
    /// # Errors
    /// As [`Source::ask`] and [`PutArguments::resolve`] or [`PutArguments::resolve_there`].
    pub(crate) fn put<T: Send>(
        &self,
        py: Python<'_>,
        items: Vec<(Key, View)>,
        with: PutArguments<'_, '_>,
        then: impl FnOnce(&Maker, Job) -> T + Send,
    ) -> PyResult<T> {
        match self {
            Source::Store(store) => {
                let (with, session) = (with.resolve(py, store)?, store.session(py)?);
                Ok(py.detach(|| then(&session, session.put(items, &with))))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let with = with.resolve_there(py, &link)?;
                Ok(py.detach(|| then(&link, link.put(items, &with))))
            }
        }
    }

    /// Leases the objects of `keys` before the first miss for `time`.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn lease(
        &self,
        py: Python<'_>,
        keys: &[Key],
        time: Duration,
    ) -> PyResult<Py<Lease>> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                let lease = wait(py, || session.store.lease(keys, time))?;
                let count = lease.count();
                Lease::new(py, lease, count)
            }
            Source::Client(connection) => {
                let lease = connection.ask(py, |client| client.lease(keys, time))?;
                let count = lease.count();
                Lease::new(py, lease, count)
            }
        }
    }

    /// Defines a layout of KV blocks.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn layout(&self, py: Python<'_>, shape: Shape) -> PyResult<Layout> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                Ok(Layout::of_store(wait(py, || session.store.layout(shape))?))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let defined = py.detach(|| link.client.layout(shape));
                let defined = defined.map_err(|why| errors::of_shared(py, &why))?;
                Ok(Layout::of_client(defined, link.number))
            }
        }
    }

    /// Ends the store or the connection. Does nothing if it has ended.
    ///
    /// # Errors
    /// `ForkedError` in another process; the store's.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Source::Store(store) => store.close(py),
            Source::Client(connection) => connection.close(py),
        }
    }
}
