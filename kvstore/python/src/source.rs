//! A store of this process, or a connection to one, behind one Python object.

use std::sync::Arc;

use adit_kvstore::layout::Layout as Shape;
use adit_kvstore::store::PutWith;
use pyo3::prelude::*;

use crate::arguments;
use crate::blocks::{Layout, defined_at};
use crate::connection::Connection;
use crate::inside::Inside;
use crate::job::Job;
use crate::link::Link;
use crate::options;
use crate::session::Call;

/// An open store or connection, or a closed one.
#[derive(Clone)]
pub(crate) enum Source {
    Store(Arc<Inside>),
    Client(Arc<Connection>),
}

/// The options of a put, as Python says them.
#[derive(Default)]
pub(crate) struct PutArguments<'a, 'py> {
    pub(crate) ttl: Option<f64>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) after: Option<&'a Bound<'py, PyAny>>,
    pub(crate) layout: Option<&'a Layout>,
    pub(crate) if_absent: bool,
    pub(crate) if_version: Option<u64>,
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
    /// Makes the requests of a call, detached, and passes on the job with its link, if any.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once the source is closed.
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

    /// Returns the options of a put.
    ///
    /// # Errors
    /// As [`Source::begin`] and [`arguments::key`]; `InvalidError` for a time that is none, for two conditions, for a
    /// layout of another source, and for what a connection does not have.
    pub(crate) fn put_with(&self, py: Python<'_>, with: PutArguments<'_, '_>) -> PyResult<PutWith> {
        let condition = options::condition(py, with.if_absent, with.if_version)?;
        let ttl = with.ttl.map(|ttl| options::seconds(py, "ttl", ttl)).transpose()?;
        match self {
            Source::Store(store) => {
                let tenant = with.tenant.map(|name| store.tenant(py, name)).transpose()?;
                let after = with.after.map(arguments::key).transpose()?;
                let layout = with.layout.map(|layout| layout.for_store(py)).transpose()?;
                Ok(PutWith { tenant, ttl, after, layout, condition })
            }
            Source::Client(connection) => {
                if let Some(name) = with.tenant {
                    let fix =
                        "objects of a connection belong to the tenant that adit.connect names";
                    return Err(options::invalid(py, "the tenant", name, fix));
                }
                if with.after.is_some() {
                    let fix = "leave it out: a connection does not choose the places of objects";
                    return Err(options::invalid(py, "after", "a key", fix));
                }
                let link = connection.link(py)?;
                let layout = with.layout.map(|layout| layout.for_client(py, &link)).transpose()?;
                Ok(PutWith { ttl, layout, condition, ..PutWith::default() })
            }
        }
    }

    /// Defines a layout of KV blocks.
    ///
    /// # Errors
    /// As [`Source::begin`]; the error of the request.
    pub(crate) fn layout(&self, py: Python<'_>, shape: Shape) -> PyResult<Layout> {
        match self {
            Source::Store(store) => {
                Ok(Layout::new(defined_at(py, &store.session(py)?.store, shape)?, None))
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let defined = defined_at(py, &link.session.store, shape)?;
                Ok(Layout::new(defined, Some(&link)))
            }
        }
    }

    /// Ends the store or the connection. Does nothing if it has ended.
    ///
    /// # Errors
    /// `ForkedError` in another process; the error of the store.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Source::Store(store) => store.close(py),
            Source::Client(connection) => connection.close(py),
        }
    }
}
