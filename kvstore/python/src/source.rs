//! What requests are made of: a store of this process, or a connection to one.

use std::sync::Arc;
use std::time::Duration;

use adit_kvshare::client::Info;
use adit_kvstore::layout::Layout as Shape;
use adit_kvstore::store::ObjectInfo;
use adit_kvstore::{Key, Version};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::blocks::{Layout, Lease};
use crate::bytes;
use crate::connection::Connection;
use crate::errors;
use crate::inside::{Inside, PutArguments, wait};
use crate::job::Job;
use crate::requests::Maker;
use crate::view::View;
use crate::waiting;

/// An open store or connection, or a closed one.
#[derive(Clone)]
pub(crate) enum Source {
    Store(Arc<Inside>),
    Client(Arc<Connection>),
}

/// What is known about an object.
pub(crate) struct Known {
    pub(crate) bytes: u64,
    pub(crate) version: Version,
    pub(crate) ttl_s: Option<u64>,
    pub(crate) tenant: String,
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

    /// Reads an object, with its version.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn get_versioned<'py>(
        &self,
        py: Python<'py>,
        key: Key,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                let value = wait(py, || session.store.get(key))?;
                let Some(value) = value else { return Ok(None) };
                Ok(Some((bytes::of(py, (&value[..]).into())?, value.version().0)))
            }
            Source::Client(connection) => {
                let value = connection.ask(py, |client| client.get(key))?;
                let Some(value) = value else { return Ok(None) };
                Ok(Some((bytes::of(py, value.bytes())?, value.version().0)))
            }
        }
    }

    /// Returns what the store knows about an object.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn info(&self, py: Python<'_>, key: Key) -> PyResult<Option<Known>> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                let info = wait(py, || session.store.info(key))?;
                Ok(info.map(|ObjectInfo { bytes, version, ttl_s, tenant, .. }| Known {
                    bytes,
                    version,
                    ttl_s,
                    tenant: tenant.into(),
                }))
            }
            Source::Client(connection) => {
                let info = connection.ask(py, |client| client.info(key))?;
                Ok(info.map(|Info { bytes, version, ttl_s, tenant }| Known {
                    bytes,
                    version,
                    ttl_s,
                    tenant,
                }))
            }
        }
    }

    /// Removes an object if it has this version.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn delete_if(&self, py: Python<'_>, key: Key, version: Version) -> PyResult<bool> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                wait(py, || session.store.delete_if(key, version))
            }
            Source::Client(connection) => {
                connection.ask(py, |client| client.delete_if(key, version))
            }
        }
    }

    /// Lets an object never expire.
    ///
    /// # Errors
    /// As [`Source::ask`]; the request's.
    pub(crate) fn persist(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                wait(py, || session.store.persist(key))
            }
            Source::Client(connection) => connection.ask(py, |client| client.persist(key)),
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
                let client = link.client.clone();
                let defined = waiting::apart(py, move || client.layout(shape))?;
                let defined = defined.map_err(|why| errors::of_shared(py, &why))?;
                Ok(Layout::of_client(defined, &link))
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
