//! Objects of any length: what a reader of `adit._streams` reads from, and puts from what Python can read.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use adit_kvshare::Error as Shared;
use adit_kvshare::client::ClientPieces;
use adit_kvshare::wire::Code;
use adit_kvstore::Key;
use adit_kvstore::shard::{Failure, Outcome};
use adit_kvstore::store::{Reader, StorePieces};
use pyo3::prelude::*;

use crate::connection::Connection;
use crate::errors;
use crate::forked::Ours;
use crate::inside::{PutArguments, wait};
use crate::source::Source;
use crate::view::View;

/// The bytes that Python is asked for at once.
const CHUNK: usize = 1 << 20;

/// A reader of either kind.
enum Any {
    Store(Reader<StorePieces>),
    Client(Remote),
}

/// A reader over a connection, which may come back from a loss.
struct Remote {
    reader: Reader<ClientPieces>,
    connection: Arc<Connection>,
    key: Key,
    /// Of the link that it reads through.
    era: u64,
}

impl Remote {
    /// Reads through the connection's link of today.
    ///
    /// # Errors
    /// The server's; [`Code::Conflict`] if the object was replaced or removed.
    fn go_on(&mut self) -> Result<(), Shared> {
        let link = self.connection.current().filter(|link| link.era != self.era);
        // Those that were begun go on after a close.
        let Some(link) = link else { return Ok(()) };
        let reader = link.client.reader(self.key.clone())?;
        let found = reader.as_ref().map(Reader::version);
        match reader {
            Some(reader) if reader.version() == self.reader.version() => {
                (self.reader, self.era) = (reader, link.era);
                Ok(())
            }
            _ => {
                let text = Failure::Conflict { found }.to_string();
                Err(Shared::Refused { code: Code::Conflict, text, value: 0, found })
            }
        }
    }
}

/// The object behind a ``Reader``.
#[pyclass(frozen, module = "adit._adit")]
pub(crate) struct Pieces {
    /// `None` once it is closed.
    reader: Ours<Mutex<Option<Any>>>,
    bytes: u64,
    version: u64,
}

impl Pieces {
    /// Returns a reader of an object, if there is one.
    ///
    /// # Errors
    /// As [`Source::ask`]; the store's.
    pub(crate) fn of(py: Python<'_>, source: &Source, key: Key) -> PyResult<Option<Pieces>> {
        let reader = match source {
            Source::Store(store) => {
                let session = store.session(py)?;
                wait(py, || session.store.reader(key))?.map(Any::Store)
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let reader = py.detach(|| link.client.reader(key.clone()));
                let (connection, era) = (Arc::clone(connection), link.era);
                let remote = |reader| Any::Client(Remote { reader, connection, key, era });
                reader.map_err(|why| errors::of_shared(py, &why))?.map(remote)
            }
        };
        Ok(reader.map(|reader| {
            let (bytes, version) = match &reader {
                Any::Store(reader) => (reader.object_bytes(), reader.version().0),
                Any::Client(remote) => (remote.reader.object_bytes(), remote.reader.version().0),
            };
            Pieces { reader: Ours::new(Mutex::new(Some(reader))), bytes, version }
        }))
    }

    /// Passes the reader to `with`, detached: a thread that has it may wait to be attached.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        with: impl FnOnce(&mut Option<Any>) -> T + Send,
    ) -> PyResult<T> {
        let reader = self.reader.get().ok_or_else(|| errors::forked(py))?;
        Ok(py.detach(|| with(&mut reader.lock().unwrap_or_else(PoisonError::into_inner))))
    }
}

/// Why a reader failed.
enum Failed {
    Store(adit_kvstore::Error),
    Client(Shared),
}

#[pymethods]
impl Pieces {
    /// Length of the object in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    /// Version of the object.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// Read the bytes at a position into a buffer; return how many.
    fn readinto(
        &self,
        py: Python<'_>,
        position: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let view = View::writable(buffer)?;
        let read = self.with(py, |reader| match reader {
            None => Err(Failed::Store(Failure::Closed.into())),
            Some(Any::Store(reader)) => {
                go_to(reader, position);
                reader.read_into(view.bytes_mut()).map_err(Failed::Store)
            }
            Some(Any::Client(remote)) => {
                remote.go_on().map_err(Failed::Client)?;
                go_to(&mut remote.reader, position);
                remote.reader.read_into(view.bytes_mut()).map_err(Failed::Client)
            }
        })?;
        read.map_err(|why| match why {
            Failed::Store(why) => errors::of(py, &why),
            Failed::Client(why) => errors::of_shared(py, &why),
        })
    }

    /// Give up what was read ahead.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |reader| *reader = None)
    }
}

/// Goes on at a position, if that is another.
fn go_to<P: adit_kvstore::store::Pieces>(reader: &mut Reader<P>, position: u64) {
    if reader.position() != position {
        reader.set_range(position..reader.object_bytes());
    }
}

/// What Python reads, for a store that has no interpreter.
struct Readable {
    /// With a method `read`.
    source: Py<PyAny>,
    /// What it raised.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Read for Readable {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = Python::attach(|py| {
            let room = into.len().min(CHUNK);
            let bytes = self.source.bind(py).call_method1("read", (room,))?;
            let view = View::readable(&bytes)?;
            if view.len() > room {
                let text = format!("read({room}) returned {} bytes", view.len());
                return Err(errors::named(py, "InvalidError", &text));
            }
            view.read(&mut into[..view.len()]);
            Ok(view.len())
        });
        read.map_err(|why| {
            let text = why.to_string();
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            io::Error::other(text)
        })
    }
}

/// Stores what `source` reads: `bytes` of it, or all if that is `None`. Returns whether the store took it.
///
/// # Errors
/// What `source` raises; as [`Source::put`].
pub(crate) fn put_from(
    py: Python<'_>,
    to: &Source,
    (key, bytes): (Key, Option<u64>),
    source: Py<PyAny>,
    with: PutArguments<'_, '_>,
) -> PyResult<bool> {
    let raised = Arc::new(Mutex::new(None));
    let readable = Readable { source, raised: Arc::clone(&raised) };
    let put = match to {
        Source::Store(store) => {
            let (with, session) = (with.resolve(py, store)?, store.session(py)?);
            let put = py.detach(|| session.store.put_from(key, bytes, readable, &with));
            put.map(|outcome| outcome == Outcome::Stored).map_err(|why| errors::of(py, &why))
        }
        Source::Client(connection) => {
            let link = connection.link(py)?;
            let with = with.resolve_there(py, &link)?;
            let put = py.detach(|| link.client.put_from(key, bytes, readable, &with));
            put.map_err(|why| errors::of_shared(py, &why))
        }
    };
    let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
    put.map_err(|why| raised.unwrap_or(why))
}
