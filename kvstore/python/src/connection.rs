//! A connection behind the Python objects that use it, and its end.

use std::sync::{PoisonError, RwLock};

use adit_kvshare::Client;
use adit_kvshare::client::Pending;
use pyo3::prelude::*;

use crate::errors;
use crate::forked::Ours;
use crate::link::Link;
use crate::waiting;

/// An open connection, or a closed one.
pub(crate) struct Connection {
    link: Ours<RwLock<Option<Link>>>,
}

impl Connection {
    /// Wraps a connection.
    pub(crate) fn new(link: Link) -> Connection {
        Connection { link: Ours::new(RwLock::new(Some(link))) }
    }

    fn lock(&self, py: Python<'_>) -> PyResult<&RwLock<Option<Link>>> {
        self.link.get().ok_or_else(|| errors::forked(py))
    }

    /// Returns what to make requests with.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once it is closed.
    pub(crate) fn link(&self, py: Python<'_>) -> PyResult<Link> {
        let link = self.lock(py)?.read().unwrap_or_else(PoisonError::into_inner).clone();
        link.ok_or_else(|| errors::closed(py))
    }

    /// Makes one request and waits for it, detached.
    ///
    /// # Errors
    /// As [`Connection::link`]; the request's.
    pub(crate) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Client) -> Pending<T> + Send,
    ) -> PyResult<T> {
        let link = self.link(py)?;
        let answer = waiting::answer(py, || ask(&link.client))?;
        answer.map_err(|unfinished| errors::of_shared(py, &unfinished.error))
    }

    /// Makes no more requests. Those in progress go on.
    ///
    /// # Errors
    /// `ForkedError` in another process.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let link = self.lock(py)?.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(link));
        Ok(())
    }
}
