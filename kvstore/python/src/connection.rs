//! A connection behind the Python objects that use it, which reconnects after the loss of its server.
//!
//! When the server is lost, calls fail at once, and a thread reconnects until it succeeds or the connection is closed.
//! Then calls go to the new server, also those of older queues, futures and readers.

use std::io::ErrorKind;
use std::path::{self, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use adit_kvshare::{Client, ClientOptions, Error};
use pyo3::prelude::*;

use crate::errors;
use crate::forked::Ours;
use crate::link::Link;
use crate::lock::lock;

/// The first pause between two attempts to connect; pauses double up to `LAST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum length of a socket's path, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// An open connection, or a closed one.
pub(crate) struct Connection {
    link: Ours<RwLock<Option<Link>>>,
    route: Arc<Route>,
    pace: Mutex<Pace>,
    /// Whether the server is lost and the system had no thread left to reconnect.
    needs_thread: AtomicBool,
}

/// The server's address, and whether to connect to it again.
struct Route {
    path: PathBuf,
    options: ClientOptions,
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// The delay of the first attempt after a loss: none, unless servers are lost right after connecting.
struct Pace {
    connected: Instant,
    pause: Duration,
}

impl Pace {
    fn new() -> Pace {
        Pace { connected: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Returns the delay before the first attempt.
    fn after_loss(&mut self) -> Duration {
        if self.connected.elapsed() >= self.pause {
            self.pause = FIRST_PAUSE;
            return Duration::ZERO;
        }
        let wait = self.pause;
        self.pause = longer(wait);
        wait
    }
}

fn longer(pause: Duration) -> Duration {
    (2 * pause).min(LAST_PAUSE)
}

impl Route {
    /// Waits; returns false if the connection ends.
    fn rest(&self, pause: Duration) -> bool {
        let rested = self.ended.wait_timeout_while(lock(&self.is_over), pause, |is_over| !*is_over);
        !*rested.unwrap_or_else(PoisonError::into_inner).0
    }

    fn end(&self) {
        *lock(&self.is_over) = true;
        self.ended.notify_all();
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub(crate) fn open(
        path: PathBuf,
        options: ClientOptions,
    ) -> adit_kvshare::Result<Arc<Connection>> {
        let link = Link::new(Client::connect(&path, &options)?, options.timeout);
        // The process may have changed its folder when it reconnects.
        let whole = path::absolute(&path).ok();
        let whole = whole.filter(|whole| whole.as_os_str().len() <= SOCKET_PATH_MAX);
        let (is_over, ended) = Default::default();
        let route = Arc::new(Route { path: whole.unwrap_or(path), options, is_over, ended });
        let (pace, needs_thread) = (Mutex::new(Pace::new()), AtomicBool::new(false));
        let place = Ours::new(RwLock::new(Some(link.clone())));
        let connection = Arc::new(Connection { link: place, route, pace, needs_thread });
        connection.watch(&link);
        Ok(connection)
    }

    /// Arranges that this connection reconnects once the server of a link is lost.
    fn watch(self: &Arc<Connection>, link: &Link) {
        let connection = Arc::downgrade(self);
        link.session.store.when_lost(move |why| {
            // A closed connection may still have jobs in flight.
            let Some(connection) = connection.upgrade().filter(|it| it.current().is_some()) else {
                return;
            };
            let socket = connection.route.path.display();
            tracing::warn!(
                "the server of the store at {socket} is lost ({why}): calls fail until it is back"
            );
            connection.come_back();
        });
    }

    /// Starts a thread that reconnects.
    fn come_back(self: &Arc<Connection>) {
        let wait = lock(&self.pace).after_loss();
        let (connection, route) = (Arc::downgrade(self), Arc::clone(&self.route));
        let name = "adit-connects".to_owned();
        let started = thread::Builder::new().name(name).spawn(move || {
            connect_again(&connection, &route, wait);
        });
        // If the system has no thread left, the next call tries again.
        self.needs_thread.store(started.is_err(), Ordering::Relaxed);
    }

    /// Returns the link for requests, unless the connection is closed or belongs to another process.
    pub(crate) fn current(&self) -> Option<Link> {
        self.link.get()?.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces a link whose server is lost, unless the connection was closed meanwhile.
    fn renew(self: &Arc<Connection>, link: Link) {
        let Some(place) = self.link.get() else { return };
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = place.as_mut().map(|now| std::mem::replace(now, link.clone())) else {
            return;
        };
        drop(place);
        // Dropped without the lock, because unmapping its memory takes a while.
        drop(old);
        lock(&self.pace).connected = Instant::now();
        // A warning, so that every log that shows the loss also shows the return.
        tracing::warn!("the server of the store at {} is back", self.route.path.display());
        self.watch(&link);
    }

    /// Returns the link for requests.
    ///
    /// # Errors
    /// `ForkedError` in another process; `ClosedError` once the connection is closed.
    pub(crate) fn link(self: &Arc<Connection>, py: Python<'_>) -> PyResult<Link> {
        self.link.here(py)?;
        let needs_thread = &self.needs_thread;
        if needs_thread.load(Ordering::Relaxed) && needs_thread.swap(false, Ordering::Relaxed) {
            self.come_back();
        }
        self.current().ok_or_else(|| errors::closed(py))
    }

    /// Refuses further requests. Those in progress continue.
    ///
    /// # Errors
    /// `ForkedError` in another process.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let place = self.link.here(py)?;
        let link = place.write().unwrap_or_else(PoisonError::into_inner).take();
        self.route.end();
        py.detach(|| drop(link));
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child lacks the thread, and may have a copy of a lock that another thread held.
        if self.link.get().is_some() {
            self.route.end();
        }
    }
}

/// Reconnects until it succeeds or the connection is closed.
fn connect_again(connection: &Weak<Connection>, route: &Route, mut wait: Duration) {
    let (mut pause, mut told) = (wait.max(FIRST_PAUSE), String::new());
    while route.rest(wait) {
        // Hold no reference while waiting, so that the connection ends when its owner drops it.
        let Some(old) = connection.upgrade().and_then(|it| it.current()) else { return };
        let made =
            Client::connect(&route.path, &route.options).and_then(|client| old.again(client));
        drop(old);
        match made {
            Ok(link) => {
                if let Some(connection) = connection.upgrade() {
                    connection.renew(link);
                }
                return;
            }
            Err(why) => tell(&why, &mut told),
        }
        (wait, pause) = (pause, longer(pause));
    }
}

/// Logs the reason for a failed connection, unless no server runs or the reason was already logged.
fn tell(why: &Error, told: &mut String) {
    let runs = match why {
        Error::System { why, .. } => {
            !matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        }
        Error::Lost { .. } => false,
        _ => true,
    };
    let text = why.to_string();
    if runs && *told != text {
        tracing::warn!("cannot connect to the store's server again: {text}");
        *told = text;
    }
}
