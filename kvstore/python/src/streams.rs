//! Objects of any length: the source of a reader in `adit._streams`, and puts from Python files and iterables.

use std::io::{self, Read};
use std::mem;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use adit_driver::sys::SharedBytesMut;
use adit_kvshare::client::ClientPieces;
use adit_kvstore::shard::{Failure, Outcome};
use adit_kvstore::store::{self, Reader, StorePieces};
use adit_kvstore::{Error, Key, KvStore, Result};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::connection::Connection;
use crate::errors;
use crate::forked::Ours;
use crate::link::Link;
use crate::lock::lock;
use crate::numbers;
use crate::scope;
use crate::source::{PutArguments, Source, with_session};
use crate::view::View;
use crate::waiting::{self, TURN, wait};

/// Bytes requested from Python at once.
const CHUNK: usize = 1 << 20;

/// A reader of either kind.
enum Any {
    Store(Reader<StorePieces>),
    Client(Remote),
}

/// A reader over a connection, which may reconnect.
struct Remote {
    reader: Reader<ClientPieces>,
    connection: Arc<Connection>,
    key: Key,
    /// The era of the reader's link.
    era: u64,
}

impl Remote {
    /// Returns the connection's present link, if this reader uses an older one.
    fn newer(&self) -> Option<Link> {
        // A closed connection has no link: readers begun before continue on theirs.
        self.connection.current().filter(|link| link.era != self.era)
    }

    /// Switches to the connection's present link.
    ///
    /// # Errors
    /// Errors of the server; [`Failure::Conflict`] if the object was replaced or removed.
    fn go_on(&mut self) -> Result<()> {
        let Some(link) = self.newer() else { return Ok(()) };
        let reader = link.session.store.reader(self.key.clone())?;
        let found = reader.as_ref().map(Reader::version);
        match reader {
            Some(reader) if reader.version() == self.reader.version() => {
                (self.reader, self.era) = (reader, link.era);
                Ok(())
            }
            _ => Err(Failure::Conflict { found }.into()),
        }
    }
}

/// The object behind a ``Reader``.
#[pyclass(frozen, module = "adit._adit")]
pub(crate) struct Pieces {
    /// `None` once it is closed.
    reader: Ours<Arc<Mutex<Option<Any>>>>,
    bytes: u64,
    version: u64,
}

impl Pieces {
    /// Returns a reader of an object, if there is one.
    ///
    /// # Errors
    /// As [`Source::begin`]; the store's.
    pub(crate) fn of(py: Python<'_>, source: &Source, key: Key) -> PyResult<Option<Pieces>> {
        let reader = match source {
            Source::Store(store) => {
                let session = store.session(py)?;
                wait(py, || session.store.reader(key))?.map(Any::Store)
            }
            Source::Client(connection) => {
                let link = connection.link(py)?;
                let (client, of) = (link.session.store.clone(), key.clone());
                let reader = waiting::tried(py, move || client.reader(of))?;
                let (connection, era) = (Arc::clone(connection), link.era);
                let remote = |reader| Any::Client(Remote { reader, connection, key, era });
                reader.map(remote)
            }
        };
        Ok(reader.map(|reader| {
            let (bytes, version) = match &reader {
                Any::Store(reader) => (reader.object_bytes(), reader.version().0),
                Any::Client(remote) => (remote.reader.object_bytes(), remote.reader.version().0),
            };
            let reader = Ours::new(Arc::new(Mutex::new(Some(reader))));
            Pieces { reader, bytes, version }
        }))
    }
}

impl Any {
    /// Copies as many bytes at a position as fit; returns their number, 0 at the end. Without `waits`, returns `None`
    /// if it would have to wait.
    fn read(
        &mut self,
        position: u64,
        into: SharedBytesMut<'_>,
        waits: bool,
    ) -> Option<Result<usize>> {
        fn read<P: store::Pieces>(
            reader: &mut Reader<P>,
            position: u64,
            into: SharedBytesMut<'_>,
            waits: bool,
        ) -> Option<Result<usize>> {
            if reader.position() != position {
                reader.set_range(position..reader.object_bytes());
            }
            let is_there = waits || reader.has_bytes();
            is_there.then(|| reader.read_into(into))
        }
        match self {
            Any::Store(reader) => read(reader, position, into, waits),
            Any::Client(remote) if !waits && remote.newer().is_some() => None,
            Any::Client(remote) => match remote.go_on() {
                Ok(()) => read(&mut remote.reader, position, into, waits),
                Err(why) => Some(Err(why)),
            },
        }
    }
}

fn closed() -> Error {
    Failure::Closed.into()
}

#[pymethods]
impl Pieces {
    fn __repr__(&self) -> String {
        let is_open = self.reader.get().is_some_and(|reader| {
            // If the lock is taken, a waiting thread has the reader, so it is open.
            reader.try_lock().map_or(true, |reader| reader.is_some())
        });
        let state = scope::state(is_open);
        format!("Pieces({} bytes, version {}, {state})", self.bytes, self.version)
    }

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

    /// Read bytes at a position into a buffer, up to the object's end; return their number.
    fn readinto(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::position)] position: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (reader, view) = (self.reader.here(py)?, View::writable(buffer)?);
        let mut done = 0;
        while done < view.len() {
            let at = position.saturating_add(done as u64);
            let there = py.detach(|| {
                // A thread whose caller has left may have the reader.
                let Ok(mut reader) = reader.try_lock() else { return None };
                let Some(reader) = &mut *reader else { return Some(Err(closed())) };
                reader.read(at, view.bytes_mut().slice(done..view.len()), false)
            });
            let read = match there {
                Some(read) => read,
                None => {
                    // The thread must not use the buffer: a memoryview of io.BufferedReader's memory does not keep it
                    // alive, and the caller may leave. It reads the first byte, after which the reader has the piece.
                    let reader = Arc::clone(reader);
                    let (read, first) = waiting::apart(py, move || {
                        let mut reader = lock(&reader);
                        let mut first = [0_u8];
                        let read = reader.as_mut().ok_or_else(closed).and_then(|reader| {
                            reader.read(at, first.as_mut_slice().into(), true).expect("it waits")
                        });
                        (read, first)
                    })?;
                    if let Ok(1) = read {
                        view.write_at(done, first[..].into());
                    }
                    read
                }
            };
            let read = read.map_err(|why| errors::of(py, &why))?;
            if read == 0 {
                break;
            }
            done += read;
        }
        Ok(done)
    }

    /// Drop the pieces read ahead.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let reader = Arc::clone(self.reader.here(py)?);
        waiting::apart(py, move || *lock(&reader) = None)
    }
}

/// A source of bytes in Python: a file with a method `read`, or buffers to concatenate.
enum Supply {
    File(Py<PyAny>),
    /// The present buffer, and the number of its bytes taken.
    Buffers(Py<PyIterator>, Option<(View, usize)>),
}

impl Supply {
    fn of(source: &Bound<'_, PyAny>) -> PyResult<Supply> {
        if source.hasattr("read")? {
            return Ok(Supply::File(source.clone().unbind()));
        }
        Ok(Supply::Buffers(source.try_iter()?.unbind(), None))
    }

    /// Reads the next bytes; returns their number, 0 at the end.
    fn read(&mut self, py: Python<'_>, into: &mut [u8]) -> PyResult<usize> {
        match self {
            Supply::File(source) => {
                let room = into.len();
                let view = View::readable(&source.bind(py).call_method1("read", (room,))?)?;
                if view.len() > room {
                    let text = format!("read({room}) returned {} bytes", view.len());
                    return Err(errors::named(py, "InvalidError", &text));
                }
                py.detach(|| view.bytes().read(0, &mut into[..view.len()]));
                Ok(view.len())
            }
            Supply::Buffers(buffers, begun) => loop {
                if let Some((view, taken)) = begun
                    && *taken < view.len()
                {
                    let bytes = into.len().min(view.len() - *taken);
                    py.detach(|| view.bytes().read(*taken, &mut into[..bytes]));
                    *taken += bytes;
                    return Ok(bytes);
                }
                let Some(next) = buffers.bind(py).clone().next() else { return Ok(0) };
                *begun = Some((View::readable(&next?)?, 0));
            },
        }
    }
}

/// A message from the thread of a put to its caller, which calls Python.
enum News {
    /// Memory to fill.
    Wanted(Vec<u8>),
    Ended(Result<Outcome>),
}

/// Reads the bytes that the caller of a put provides.
struct Given {
    news: Sender<News>,
    /// The filled memory, shortened at the source's end. Disconnects if the caller has raised or left.
    given: Receiver<Vec<u8>>,
    memory: Vec<u8>,
}

impl Read for Given {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let gone = || io::Error::other("its caller gave it up");
        let mut memory = mem::take(&mut self.memory);
        memory.resize(into.len().min(CHUNK), 0);
        self.news.send(News::Wanted(memory)).map_err(|_| gone())?;
        self.memory = self.given.recv().map_err(|_| gone())?;
        into[..self.memory.len()].copy_from_slice(&self.memory);
        Ok(self.memory.len())
    }
}

/// Stores `bytes` bytes of `source`, or all if that is `None`. Returns whether the store took the object. A separate
/// thread waits for the store while this one reads.
///
/// # Errors
/// The exception that `source` or a signal's handler raises; as [`Source::put_with`].
pub(crate) fn put_from(
    py: Python<'_>,
    to: &Source,
    (key, bytes): (Key, Option<u64>),
    source: &Bound<'_, PyAny>,
    with: PutArguments<'_, '_>,
) -> PyResult<bool> {
    let mut supply = Supply::of(source)?;
    let (news, mut heard) = mpsc::channel();
    let (give, given) = mpsc::channel();
    let from = Given { news: news.clone(), given, memory: Vec::new() };
    let with = to.put_with(py, with)?;
    let put: Box<dyn FnOnce() -> Result<Outcome> + Send> = with_session!(to, py, |session| {
        Box::new(move || session.store.put_from(key, bytes, from, &with))
    });
    let put = move || drop(news.send(News::Ended(put())));
    thread::Builder::new().name("adit-puts".to_owned()).spawn(put)?;
    let (mut give, mut raised) = (Some(give), None);
    let put = loop {
        let (received, back) = py.detach(move || (heard.recv_timeout(TURN), heard));
        heard = back;
        match received {
            Ok(News::Ended(put)) => break put,
            Ok(News::Wanted(mut memory)) => match supply.read(py, &mut memory) {
                Ok(bytes) => {
                    memory.truncate(bytes);
                    give.iter().for_each(|give| drop(give.send(mem::take(&mut memory))));
                }
                // The put fails by this, so that nothing of it remains when this returns.
                Err(why) => (give, raised) = (None, Some(why)),
            },
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => panic!("a thread that puts ended in a panic"),
        }
    };
    match put {
        Ok(outcome) => Ok(outcome == Outcome::Stored),
        Err(why) => Err(raised.unwrap_or_else(|| errors::of(py, &why))),
    }
}
