//! The server: shares one store among several processes of a machine.
//!
//! The store's own threads take requests from the rings ([`Store::attach_feed`]) and answer them; each client also has
//! a thread for its messages on the socket. **A client is not trusted** to follow the protocol: each word that it
//! writes is read once and checked, its memory is sealed before it is mapped, and nothing waits for it. A client that
//! breaks a rule of the rings or of the socket is disconnected; an invalid request is refused. When a client leaves,
//! even in the middle of a transfer, requests that have not begun are cancelled, its leases end, and its memory is
//! unmapped once no device has it.
//!
//! Clients trust each other with objects, as threads of one process do: each may replace, delete or lease any object. A
//! client that writes its memory during its own put spoils that object: the next read of it is a miss. The client
//! verifies the bytes that it reads. The server does not trust a client's report of a damaged object: it reads the
//! object into its own memory and verifies it there.

mod counts;
mod desk;
mod link;
mod mapped;
mod options;
mod outcome;
mod page;
mod session;
mod taking;
mod waiting;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::serve::parts::Socket;
use adit_kvstore::{Error, Result, Store};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

pub use options::{Event, Options};

use crate::wire::Serving;
use counts::Counts;
use waiting::Waiting;

/// How often the server checks whether it has to stop.
const LOOK_MS: u16 = 50;
/// The shortest time between two reports of refused connections.
const TELL_EVERY: Duration = Duration::from_secs(1);

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
        // Refuses connections made before the permissions were set.
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

    /// Serves `store` until `stops` is set, and reports clients to `tell`, from any thread. Then finishes the requests
    /// in progress and disconnects the clients; the caller closes the store.
    ///
    /// # Errors
    /// [`Error::Store`] if a thread of the store has died; [`Error::System`] if clients cannot be waited for. Clients
    /// are disconnected then, too.
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
            told.tell(common, false);
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
                    // Too many open files, for example: connected clients continue.
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
        told.tell(common, true);
        Ok(())
    }
}

/// The number of refused connections that have been reported.
#[derive(Default)]
struct Told {
    connections: u64,
    at: Option<Instant>,
}

impl Told {
    /// Reports the connections since the last report, if it is time for one or this is the end.
    fn tell(&mut self, common: &session::Common<'_>, is_end: bool) {
        let all = common.counts.clients_turned_away.load(Ordering::Relaxed);
        let connections = all - self.connections;
        let is_due = is_end || self.at.is_none_or(|at| at.elapsed() >= TELL_EVERY);
        if connections > 0 && is_due {
            (self.connections, self.at) = (all, Some(Instant::now()));
            (common.tell)(&Event::TurnedAway { connections });
        }
    }
}
