//! The server: gives several processes of a machine one store.
//!
//! The store's own threads take requests from the rings ([`Store::attach_feed`]) and answer them; each client also has a
//! thread for what it says over the socket. **A client is not trusted** to follow the protocol: each word that it writes
//! is read once and checked, its memory is sealed before it is mapped, and nothing waits for it. A client that breaks a
//! rule of the rings or of the socket is disconnected; a request that makes no sense is refused. When a client leaves,
//! even in the middle of a transfer, requests that have not begun are cancelled, its leases end, and its memory is
//! unmapped once no device has it.
//!
//! Clients do trust each other with objects, as threads of one process would: any may replace, delete or lease any
//! object. A client that writes its memory during its own put spoils that object: the next read of it is a miss. What is read is
//! verified by the client. The server believes no claim that an object is damaged: asked to look, it reads to memory of its
//! own, and verifies there.

mod counts;
mod desk;
mod mapped;
mod outcome;
mod page;
mod session;
mod taking;
mod waiting;

use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::serve::parts::Socket;
use adit_kvstore::Store;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};
use crate::wire::Serving;
use counts::Counts;
use waiting::Waiting;

/// How often the server looks whether it is to end.
const LOOK_MS: u16 = 50;
/// How often to tell of connections that were turned away.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Settings of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The permissions of the socket. Default 0600: this user's processes.
    pub mode: u32,
    /// The most clients at a time; others get the answer that there are too many. Default 64.
    pub clients_max: u64,
    /// The most bytes of memory that a client may share. Default 16 GiB.
    pub client_bytes_max: u64,
    /// The most bytes that all clients together may share, their rings included. Default 256 GiB.
    pub all_bytes_max: u64,
    /// The most layouts that a client may use. Default 8.
    pub client_layouts_max: usize,
    /// No client brings another layout into a store in which so many have objects or are in use, of the 255 that can.
    /// Default 128.
    pub all_layouts_max: usize,
    /// No client brings another tenant into a store that has so many, of the 255 that it can have: the others are the
    /// operator's. Default 128.
    pub tenants_max: usize,
    /// The longest lease, of those that ask for longer ones. Default an hour.
    pub lease_max: Duration,
    /// The share of the store in percent that one client may hold by leases and by objects that it writes in parts; all of
    /// them together may hold twice that. Default 25.
    pub client_hold_percent: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: 0o600,
            clients_max: 64,
            client_bytes_max: 16 << 30,
            all_bytes_max: 256 << 30,
            client_layouts_max: 8,
            all_layouts_max: 128,
            tenants_max: 128,
            lease_max: Duration::from_secs(3600),
            client_hold_percent: 25,
        }
    }
}

/// What happened to a client. Numbers count up from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has greeted.
    ClientCame {
        /// Its number.
        client: u64,
        /// The number of its process, as it says.
        process: u64,
    },
    /// A client is gone.
    ClientGone {
        /// Its number.
        client: u64,
        /// Why.
        why: String,
        /// Whether it was disconnected for breaking a rule.
        is_expelled: bool,
    },
    /// Connections were turned away, reported once a second at most: there were too many clients, or too many
    /// connections that did not greet.
    TurnedAway {
        /// How many, since the last of these events.
        connections: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::ClientCame { client, process } => {
                write!(f, "client {client} came (process {process})")
            }
            Event::ClientGone { client, why, is_expelled: false } => {
                write!(f, "client {client} is gone: {why}")
            }
            Event::ClientGone { client, why, is_expelled: true } => {
                write!(f, "client {client} was disconnected: {why}")
            }
            Event::TurnedAway { connections } => {
                write!(f, "turned away {connections} connections: there are too many")
            }
        }
    }
}

/// A server at a socket.
#[derive(Debug)]
pub struct Server {
    socket: Socket,
    options: Options,
    counts: Arc<Counts>,
    /// Readable once the server ends.
    end: EventFd,
}

impl Server {
    /// Listens at `path`. Replaces the socket of a server that is gone, and no other file.
    ///
    /// # Errors
    /// [`Error::Driver`] if another server or file is there; [`Error::System`] for the system's reasons.
    pub fn bind(path: &Path, options: Options) -> Result<Server> {
        let socket = Socket::bind(path)?;
        let mode = fs::set_permissions(path, Permissions::from_mode(options.mode));
        mode.map_err(|why| Error::system(format!("set the rights of {}", path.display()), why))?;
        // These came before the rights were set.
        let accept = |why| Error::system("accept clients", why);
        while socket.accept().map_err(accept)?.is_some() {}
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let end =
            EventFd::from_flags(flags).map_err(|why| Error::system("make an eventfd", why))?;
        Ok(Server { socket, options, counts: Arc::default(), end })
    }

    /// Returns where it listens.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Returns its counters.
    pub fn counts(&self) -> Serving {
        self.counts.read()
    }

    /// Serves `store` until `stops` is set, and reports clients to `tell`, from any thread. Then finishes the requests in
    /// progress and lets the clients go; the caller closes the store.
    ///
    /// # Errors
    /// [`Error::Store`] if a thread of the store has died; [`Error::System`] if clients cannot be waited for. Clients are
    /// let go then, too.
    pub fn run(
        &self,
        store: &Store,
        stops: &AtomicBool,
        tell: &(dyn Fn(&Event) + Sync),
    ) -> Result<()> {
        let (ends, waiting) = (AtomicBool::new(false), Waiting::default());
        let common = session::Common {
            store,
            options: &self.options,
            counts: &self.counts,
            stops: &ends,
            end: &self.end,
            waiting: &waiting,
            tell,
        };
        thread::scope(|scope| {
            let served = self.accept(scope, &common, stops);
            ends.store(true, Ordering::Release);
            // Wakes every session, as the counter is never read.
            let woken = self.end.write(1).map_err(|why| Error::system("end the sessions", why));
            served.and(woken.map(drop))
        })
    }

    /// Accepts clients until `stops` is set.
    fn accept<'scope>(
        &self,
        scope: &'scope thread::Scope<'scope, '_>,
        common: &'scope session::Common<'_>,
        stops: &AtomicBool,
    ) -> Result<()> {
        let look = Duration::from_millis(LOOK_MS.into());
        let (mut number, mut told) = (0, Told::default());
        while !stops.load(Ordering::Relaxed) {
            common.store.check()?;
            told.tell(common);
            if !common.waiting.has_room(look) {
                continue;
            }
            let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, LOOK_MS) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(why) => return Err(Error::system("wait for clients", why)),
            }
            let accepted = self.socket.accept().and_then(|stream| {
                let Some(stream) = stream else { return Ok(None) };
                number += 1;
                common.waiting.add(number, &stream).map(|()| Some(stream))
            });
            let stream = match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(why) => {
                    // Too many open files, for example: clients that are there go on.
                    tracing::warn!("cannot accept a client: {why}");
                    thread::sleep(look);
                    continue;
                }
            };
            let builder = thread::Builder::new().name(format!("adit-client-{number}"));
            let started = builder.spawn_scoped(scope, move || session::run(common, number, stream));
            if let Err(why) = started {
                common.waiting.remove(number);
                tracing::warn!("cannot start a thread for a client: {why}");
            }
        }
        told.rest(common);
        Ok(())
    }
}

/// How many connections that were turned away have been told of.
#[derive(Default)]
struct Told {
    connections: u64,
    at: Option<Instant>,
}

impl Told {
    fn tell(&mut self, common: &session::Common<'_>) {
        if self.at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            self.rest(common);
        }
    }

    fn rest(&mut self, common: &session::Common<'_>) {
        let all = common.counts.clients_turned_away.load(Ordering::Relaxed);
        let connections = all - self.connections;
        if connections > 0 {
            (self.connections, self.at) = (all, Some(Instant::now()));
            (common.tell)(&Event::TurnedAway { connections });
        }
    }
}
