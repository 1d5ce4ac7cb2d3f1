//! The state that the handles and requests of a client share: its requests, its doorbells, and the sleep of its
//! threads.
//!
//! One of the threads that wait for answers sleeps on the doorbell, and the others sleep on it. The one that wakes
//! takes all answers.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::control::Control;
use super::options::ClientOptions;
use super::requests::{Ended, Requests};
use crate::memory::Span;
use crate::ring::{ANYTHING, Sleep};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

/// Numbers connections.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The reason of a loss that the server does not explain.
const HANG_UP: &str = "it closed the connection";
/// The interval at which to check for room and memory, which are not signalled.
const LOOK: Duration = Duration::from_millis(1);
/// The interval at which a thread checks while another sleeps on the doorbell.
const REST: Duration = Duration::from_millis(50);
/// A function that is called with the reason once the server is lost.
pub(super) type Hook = Box<dyn FnOnce(&str) + Send>;

/// The interval at which a thread checks beside an event loop.
const GLANCE: Duration = Duration::from_micros(100);

/// The state of a client behind all of its handles.
pub(super) struct Shared {
    /// The connection's number in this process.
    pub(super) number: u64,
    state: Mutex<Guarded>,
    arrived: Condvar,
    pub(super) control: Arc<Control>,
    /// The same socket, to notice a hang-up.
    stream: UnixStream,
    sleep: Sleep,
    pub(super) bell: EventFd,
    server_bell: EventFd,
    pub(super) options: ClientOptions,
}

struct Guarded {
    state: Requests,
    /// A thread sleeps on the doorbell.
    has_sleeper: bool,
    /// An event loop watches the doorbell.
    is_watched: bool,
    /// The thread that serves futures has to poll them.
    is_roused: bool,
    /// Threads that wait for another one.
    waiters: usize,
    when_lost: Option<Hook>,
}

impl Shared {
    pub(super) fn new(
        state: Requests,
        (control, stream): (Arc<Control>, UnixStream),
        sleep: Sleep,
        (bell, server_bell): (EventFd, EventFd),
        options: ClientOptions,
    ) -> Arc<Shared> {
        let guarded = Guarded {
            state,
            has_sleeper: false,
            is_watched: false,
            is_roused: false,
            waiters: 0,
            when_lost: None,
        };
        Arc::new(Shared {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(guarded),
            arrived: Condvar::new(),
            control,
            stream,
            sleep,
            bell,
            server_bell,
            options,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the state, then does the work that was left for afterwards.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Requests) -> T) -> T {
        let mut guarded = self.lock();
        let done = work(&mut guarded.state);
        let is_watched = guarded.is_watched;
        self.unlock(guarded, is_watched);
        done
    }

    /// Unlocks, then does the work that was left for afterwards. `tells_loop`: an event loop has to look at its requests,
    /// too.
    fn unlock(&self, mut guarded: MutexGuard<'_, Guarded>, tells_loop: bool) {
        let afterwards = guarded.state.afterwards();
        let has_waiters = guarded.waiters > 0;
        let loss = guarded.loss();
        drop(guarded);
        if afterwards.is_lost {
            // Disconnects a server that broke the protocol, which wakes the thread that sleeps until it answers.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        if afterwards.has_asked && self.sleep.must_ring(0) {
            // Fails only with a full counter: then the server has been woken already.
            let _ = self.server_bell.write(1);
        }
        // Without waiters the system call would be wasted.
        if afterwards.ended > 0 && has_waiters {
            self.arrived.notify_all();
        }
        if afterwards.ended > 0 && tells_loop {
            let _ = self.bell.write(1);
        }
        afterwards.finish();
        if let Some((tell, why)) = loss {
            tell(&why);
        }
    }

    /// Sets the function that is called once the server is lost.
    pub(super) fn when_lost(&self, then: Hook) {
        let mut guarded = self.lock();
        guarded.when_lost = Some(then);
        self.unlock(guarded, false);
    }

    /// Waits for the request in a slot, and returns its answer unless `until` passes.
    pub(super) fn wait(&self, slot: u32, until: Instant) -> Option<Ended> {
        loop {
            let ended = self.with(|state| state.turn_for(slot));
            let left = until.saturating_duration_since(Instant::now());
            if ended.is_some() || left.is_zero() {
                return ended;
            }
            let guarded = self.lock();
            if !guarded.state.has_ended(slot) {
                self.idle(guarded, Some(slot), left);
            }
        }
    }

    /// Gives back memory of the pool, for which requests may wait.
    pub(super) fn give_pooled(&self, span: Span) {
        self.with(|state| {
            state.give_pooled(span);
            state.turn();
        });
    }

    /// Sleeps until an answer comes, the doorbell is rung or `at_most` has passed; maybe shorter beside other threads.
    pub(super) fn watch(&self, at_most: Duration) {
        let guarded = self.lock();
        if guarded.is_roused {
            drop(guarded);
        } else {
            self.idle(guarded, None, at_most);
        }
        self.lock().is_roused = false;
    }

    /// Sleeps until an answer comes, or that of the request in `slot`: on the doorbell, or on a thread that does.
    fn idle(&self, mut guarded: MutexGuard<'_, Guarded>, slot: Option<u32>, at_most: Duration) {
        if guarded.is_watched || guarded.has_sleeper {
            // The sleeper may wait for its own answer only.
            self.sleep.widen();
            if !guarded.state.has_news() {
                self.rest(guarded, at_most);
            }
            return;
        }
        guarded.has_sleeper = true;
        let is_alone = guarded.waiters == 0 && !guarded.state.has_line();
        let until = slot.filter(|_| is_alone).map_or(ANYTHING, u64::from);
        let at_most = if guarded.state.waits_for_room() { LOOK.min(at_most) } else { at_most };
        drop(guarded);
        self.sleep(slot, until, at_most);
    }

    /// Ends a thread's [`Shared::watch`], or its next one.
    pub(super) fn rouse(&self) {
        // A thread that sleeps on the doorbell for itself may take the ring.
        self.lock().is_roused = true;
        let _ = self.bell.write(1);
        self.arrived.notify_all();
    }

    /// Waits for the thread that sleeps on the doorbell, or looks again beside an event loop.
    fn rest(&self, mut guarded: MutexGuard<'_, Guarded>, left: Duration) {
        let rest = match (guarded.is_watched, guarded.state.has_line()) {
            (true, _) => GLANCE,
            (false, true) => LOOK,
            (false, false) => REST,
        };
        guarded.waiters += 1;
        let rested = self.arrived.wait_timeout(guarded, left.min(rest));
        rested.unwrap_or_else(PoisonError::into_inner).0.waiters -= 1;
    }

    /// Sleeps on the doorbell, as the only thread that does, until the request in `slot` has ended or the server rings
    /// for `until`.
    fn sleep(&self, slot: Option<u32>, until: u64, at_most: Duration) {
        self.sleep.announce(until);
        let is_over = {
            let guarded = self.lock();
            // A thread that began to wait before the announcement found nothing to widen.
            if guarded.waiters > 0 {
                self.sleep.widen();
            }
            // Another thread may have taken the answer.
            slot.is_some_and(|slot| guarded.state.has_ended(slot)) || guarded.state.has_news()
        };
        if !is_over {
            let mut files = [
                PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.stream.as_fd(), PollFlags::POLLHUP),
            ];
            // It counts whole milliseconds: the rest of one would be no sleep.
            let at_most = u64::try_from(at_most.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
            let at_most = Duration::from_millis(at_most);
            let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
            // A signal or a failure looks like the end of the time.
            let _ = poll(&mut files, at_most);
            if files[1].any() == Some(true) {
                self.lose(HANG_UP);
            }
        }
        self.sleep.end();
        let _ = self.bell.read();
        let mut guarded = self.lock();
        guarded.has_sleeper = false;
        let has_waiters = guarded.waiters > 0;
        drop(guarded);
        if has_waiters {
            self.arrived.notify_all();
        }
    }

    /// Takes the last answers, and ends all other requests.
    pub(super) fn lose(&self, why: &str) {
        self.with(|state| {
            state.turn();
            state.lose(why);
        });
    }

    /// Takes all answers that have arrived, for an event loop that watches the doorbell, and lets the next one ring it.
    pub(super) fn reap(&self) {
        let _ = self.bell.read();
        self.sleep.announce(ANYTHING);
        let mut guarded = self.lock();
        guarded.is_watched = true;
        guarded.state.turn();
        self.unlock(guarded, false);
        let mut files = [PollFd::new(self.stream.as_fd(), PollFlags::POLLHUP)];
        if poll(&mut files, PollTimeout::ZERO).is_ok_and(|count| count > 0) {
            self.lose(HANG_UP);
        }
    }
}

impl Guarded {
    /// Returns the function to call because the server is lost, once.
    fn loss(&mut self) -> Option<(Hook, String)> {
        let why = self.state.why_lost()?;
        self.when_lost.take().map(|tell| (tell, why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{self, Answering, Rings};
    use crate::wire::{Code, Done};
    use adit_driver::sys::{Backing, HostMemory};
    use nix::sys::eventfd::EfdFlags;
    use std::io::Read;

    const PATIENCE: Duration = Duration::from_secs(20);
    const DEPTH: u64 = 4;

    /// Returns what a client shares, its rings, and the server's end of the socket.
    fn made() -> (Arc<Shared>, Rings, UnixStream) {
        let memory = HostMemory::allocate(ring::bytes(DEPTH), Backing::Any, &|_, _| ());
        let rings = Rings::new(Arc::new(memory.expect("memory")).atomics(), DEPTH);
        let (stream, server) = UnixStream::pair().expect("a pair");
        let control = (Control::new(stream.try_clone().expect("a descriptor")), stream);
        let bell = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
        let (state, sleep) = (Requests::new(&rings, DEPTH), Sleep::of_client(&rings));
        let options = ClientOptions::default();
        (Shared::new(state, control, sleep, (bell(), bell()), options), rings, server)
    }

    #[test]
    fn a_server_that_is_given_up_learns_it() {
        let (shared, _rings, mut server) = made();
        server.set_read_timeout(Some(PATIENCE)).expect("set");
        shared.lose("it answered what was not asked");
        assert_eq!(server.read(&mut [0]).expect("the end"), 0, "nothing of the client is left");
    }

    #[test]
    fn the_longest_watch_sleeps_until_it_is_roused() {
        let (shared, rings, _server) = made();
        let server = Sleep::of_server(&rings);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| shared.watch(Duration::MAX));
            while !server.other_sleeps() && !watcher.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(!watcher.is_finished(), "nothing came");
            shared.rouse();
            watcher.join().expect("no panic");
        });
    }

    #[test]
    fn a_sleep_widens_for_a_thread_that_began_to_wait_before_it() {
        let (shared, rings, _server) = made();
        // One thread is about to sleep until the answer with tag 1; another began to wait for tag 2.
        let mut guarded = shared.lock();
        (guarded.has_sleeper, guarded.waiters) = (true, 1);
        drop(guarded);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| shared.sleep(None, 1, PATIENCE));
            let server = Sleep::of_server(&rings);
            while !server.other_sleeps() {
                std::thread::yield_now();
            }
            let mut answering = Answering::new(&rings);
            answering.push(&Done::new(Code::Done, 0, 0).with_tag(2));
            answering.publish();
            // If it is not to be rung yet, it looks once more, and sees the answer.
            if server.must_ring(2) {
                shared.bell.write(1).expect("rung");
            }
            sleeper.join().expect("no panic");
        });
        assert!(begin.elapsed() < PATIENCE, "the answer of the other thread ends the sleep");
    }
}
