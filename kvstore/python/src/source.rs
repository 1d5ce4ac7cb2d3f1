//! A store of this process, or a connection to one, behind one Python object.

use std::sync::Arc;
use std::time::Duration;

use adit_kvshare::{KvStore, StoredBytes};
use adit_kvstore::layout::Layout as Shape;
use adit_kvstore::store::{Lease, ObjectInfo, PutWith};
use adit_kvstore::{Key, Version};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::blocks::{Layout, defined_at};
use crate::bytes;
use crate::connection::Connection;
use crate::inside::{Inside, PutArguments};
use crate::job::Job;
use crate::link::Link;
use crate::session::Call;
use crate::view::View;
use crate::waiting::{self, wait};

/// An open store or connection, or a closed one.
#[derive(Clone)]
pub(crate) enum Source {
    Store(Arc<Inside>),
    Client(Arc<Connection>),
}

/// Evaluates an expression with the session of a source, of either type.
macro_rules! with_session {
    ($source:expr, $py:expr, |$session:ident| $then:expr) => {
        match $source {
            Source::Store(store) => {
                let $session = store.session($py)?;
                $then
            }
            Source::Client(connection) => {
                let $session = connection.link($py)?.session;
                $then
            }
        }
    };
}
pub(crate) use with_session;

impl Source {
    /// Makes the requests of a call, detached, and passes the job on with the link that it goes over, if any.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once it is closed.
    pub(crate) fn begin<T: Send>(
        &self,
        py: Python<'_>,
        call: Call,
        then: impl FnOnce(Option<&Link>, Job) -> T + Send,
    ) -> PyResult<T> {
        Ok(match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                py.detach(|| then(None, session.begin(call)))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                py.detach(|| then(Some(&link), link.session.begin(call)))
            }
        })
    }

    /// Stores objects, as [`Source::begin`] makes a call.
    ///
    /// # Errors
    /// As [`Source::begin`] and [`Source::put_with`].
    pub(crate) fn put<T: Send>(
        &self,
        py: Python<'_>,
        items: Vec<(Key, View)>,
        with: PutArguments<'_, '_>,
        then: impl FnOnce(Option<&Link>, Job) -> T + Send,
    ) -> PyResult<T> {
        let with = self.put_with(py, with)?;
        Ok(match self {
            Source::Store(store) => {
                let session = store.session(py)?;
                py.detach(|| then(None, session.put(items, &with)))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                py.detach(|| then(Some(&link), link.session.put(items, &with)))
            }
        })
    }

    /// Returns the options of a put.
    ///
    /// # Errors
    /// As [`PutArguments::resolve`] or [`PutArguments::resolve_there`].
    pub(crate) fn put_with(&self, py: Python<'_>, with: PutArguments<'_, '_>) -> PyResult<PutWith> {
        match self {
            Source::Store(store) => with.resolve(py, store),
            Source::Client(connection) => with.resolve_there(py, &connection.link(py)?),
        }
    }

    /// Reads one layer of KV blocks for the first turn of its job.
    ///
    /// # Errors
    /// As [`Source::begin`]; the inner error is that of [`crate::session::Session::get_layer`].
    pub(crate) fn get_layer(
        &self,
        py: Python<'_>,
        layer: u32,
        items: Vec<(Key, View)>,
    ) -> PyResult<Result<Job, (usize, Vec<View>)>> {
        with_session!(self, py, |session| {
            Ok(py.detach(|| session.get_layer(layer, items).map(waiting::begun)))
        })
    }

    /// Leases the objects of `keys` before the first miss for `time`.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn lease(&self, py: Python<'_>, keys: &[Key], time: Duration) -> PyResult<Lease> {
        with_session!(self, py, |session| wait(py, || session.store.lease(keys, time)))
    }

    /// Reads an object, with its version.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn get_versioned<'py>(
        &self,
        py: Python<'py>,
        key: Key,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        with_session!(self, py, |session| {
            let value = wait(py, || session.store.get(key))?;
            let Some(value) = value else { return Ok(None) };
            let version = StoredBytes::version(&value).0;
            Ok(Some((bytes::of(py, value.bytes())?, version)))
        })
    }

    /// Returns what the store knows about an object.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn info(&self, py: Python<'_>, key: Key) -> PyResult<Option<ObjectInfo>> {
        with_session!(self, py, |session| wait(py, || session.store.info(key)))
    }

    /// Removes an object if it has this version.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn delete_if(&self, py: Python<'_>, key: Key, version: Version) -> PyResult<bool> {
        with_session!(self, py, |session| wait(py, || session.store.delete_if(key, version)))
    }

    /// Lets an object never expire.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn persist(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        with_session!(self, py, |session| wait(py, || session.store.persist(key)))
    }

    /// Defines a layout of KV blocks.
    ///
    /// # Errors
    /// As [`Source::begin`]; the request's.
    pub(crate) fn layout(&self, py: Python<'_>, shape: Shape) -> PyResult<Layout> {
        match self {
            Source::Store(store) => {
                Ok(Layout::new(defined_at(py, store.session(py)?.store.clone(), shape)?, None))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let defined = defined_at(py, link.session.store.clone(), shape)?;
                Ok(Layout::new(defined, Some(&link)))
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
