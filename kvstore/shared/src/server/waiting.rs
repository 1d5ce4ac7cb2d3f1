//! Connections that have not greeted, limited apart from clients, whose places they do not use.
//!
//! There are few places, each held for some seconds. When all are taken, the oldest connection that has sent nothing is
//! closed for the next.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The most connections that have not greeted.
const WAITING_MAX: usize = 16;

struct Connection {
    number: u64,
    stream: UnixStream,
    state: GreetingState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GreetingState {
    Silent,
    /// Its greeting is being handled.
    Greets,
    /// It was closed for another.
    Dropped,
}

impl Connection {
    /// Returns whether it has sent nothing, as far as the system knows.
    fn is_silent(&self) -> bool {
        let mut polled = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        self.state == GreetingState::Silent && poll(&mut polled, PollTimeout::ZERO) == Ok(0)
    }
}

/// The connections that have not greeted, the oldest first.
#[derive(Default)]
pub(super) struct Waiting {
    connections: Mutex<VecDeque<Connection>>,
    left: Condvar,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there is a place for another connection. If there is none, makes one and waits up to `at_most`
    /// for it.
    pub(super) fn has_room(&self, at_most: Duration) -> bool {
        let mut connections = self.lock();
        if connections.len() < WAITING_MAX {
            return true;
        }
        if !connections.iter().any(|it| it.state == GreetingState::Dropped)
            && let Some(oldest) = connections.iter_mut().find(|it| it.is_silent())
        {
            oldest.state = GreetingState::Dropped;
            // Its thread notices; if the system refuses, the time limit of greetings ends it.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        let waited = self.left.wait_timeout(connections, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0.len() < WAITING_MAX
    }

    /// Adds a connection, for which there is a place.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn add(&self, number: u64, stream: &UnixStream) -> io::Result<()> {
        let stream = stream.try_clone()?;
        self.lock().push_back(Connection { number, stream, state: GreetingState::Silent });
        Ok(())
    }

    /// Notes that a connection's greeting is being handled. Returns false if it was closed for another.
    pub(super) fn greets(&self, number: u64) -> bool {
        let mut connections = self.lock();
        let connection = connections.iter_mut().find(|it| it.number == number);
        let Some(connection) = connection.filter(|it| it.state == GreetingState::Silent) else {
            return false;
        };
        connection.state = GreetingState::Greets;
        true
    }

    /// Removes a connection that has greeted or is gone. Returns whether it was closed for another.
    pub(super) fn remove(&self, number: u64) -> bool {
        let mut connections = self.lock();
        let at = connections.iter().position(|it| it.number == number);
        let removed = at.and_then(|at| connections.remove(at));
        drop(connections);
        self.left.notify_one();
        removed.is_some_and(|it| it.state == GreetingState::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn the_oldest_that_has_said_nothing_makes_room() {
        let waiting = Waiting::default();
        let mut theirs = Vec::new();
        for number in 0..WAITING_MAX as u64 {
            assert!(waiting.has_room(SHORT), "{number}");
            let (ours, their) = UnixStream::pair().expect("a pair");
            waiting.add(number, &ours).expect("added");
            theirs.push(their);
        }
        assert!(waiting.greets(0), "its greeting has come");
        theirs[1].write_all(b"x").expect("sent");
        assert!(!waiting.has_room(SHORT), "its thread has yet to notice");
        assert_eq!(theirs[2].read(&mut [0]).expect("the end"), 0);
        assert!(!waiting.has_room(SHORT), "no other has to go");
        theirs[3].set_nonblocking(true).expect("set");
        assert!(theirs[3].read(&mut [0]).is_err(), "it stays");
        assert!(!waiting.greets(2), "too late");
        assert!(waiting.remove(2) && !waiting.remove(2));
        assert!(waiting.has_room(SHORT));
        assert!(!waiting.remove(0), "it was a client's");
    }
}
