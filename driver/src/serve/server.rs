//! The server's loop: step the controller, poll the sockets, idle.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::device::Device;
use super::gaps::{IdleGaps, Watch};
use super::pace::{Looks, Rest};
use super::peer::{Incoming, Message, Peer};
use super::refusal::Refusal;
use super::session::Session;
use super::socket::Socket;
use super::{Options, system};
use crate::Time;
use crate::bus::vfio_user::wire::FLAG_NO_REPLY;
use crate::error::Result;
use crate::soft::Controller;

/// How long a thread without a client sleeps before it checks whether to stop.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// Turns between two readings of the clock, which takes about as long as an empty turn, where nothing is timed: a turn
/// that spins is below 0.1 us, one with work below 10 us.
const TURNS_PER_CLOCK: u32 = 8;
/// Messages handled before the controller steps again.
const MESSAGES_PER_LOOK: usize = 32;
/// Maximum connections that have not negotiated yet; beyond it, the oldest is dropped.
const WAITING_MAX: usize = 8;
/// How long each has to negotiate.
const WAITING_TIME: Duration = Duration::from_secs(5);
/// Interval of accepting connections while there is a client.
const ACCEPT_EVERY: Duration = Duration::from_millis(1);
/// Pause of accepting after the system refused to.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why a client is dropped whose memory raised a bus error.
const MEMORY_LOST: &str = "its memory's file was shortened, or has no room for more pages";

/// An event of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client connected and negotiated.
    ClientCame,
    /// How long the device waited for the client that is gone now; only with [`Options::watches_gaps`], and if there were
    /// I/O queues.
    Idled(IdleGaps),
    /// The client is gone; the controller was reset and the client's memory unmapped.
    ClientGone {
        /// The reason.
        why: String,
    },
    /// Another client connected meanwhile and was told that the device is busy.
    TurnedAway,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::ClientCame => f.write_str("a client came"),
            Event::Idled(gaps) => gaps.fmt(f),
            Event::ClientGone { why } => {
                write!(f, "the client is gone: {why}; the controller was reset")
            }
            Event::TurnedAway => {
                f.write_str("rejected another client: the server takes one at a time")
            }
        }
    }
}

/// A software controller served at a socket.
///
/// Call [`Server::turn`] in a loop, or [`Server::run`].
#[derive(Debug)]
pub struct Server {
    socket: Socket,
    device: Device,
    options: Options,
    client: Option<(Peer, Session)>,
    /// Connections that have not negotiated yet, with their deadlines.
    waiting: VecDeque<(Peer, Time)>,
    accepts_from: Time,
    /// Accepting failed, so that waiting for a connection would not block.
    cannot_accept: bool,
    looks: Looks,
    gaps: Option<Box<Watch>>,
    /// Shadow doorbells are read only after a ring, and the client knows.
    dozes: bool,
    events: VecDeque<Event>,
}

impl Server {
    /// Listens at `socket`. Replaces the socket of a dead server, and removes its own at the end.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a path longer than a socket's 107 bytes; [`crate::Error::Refused`] if another
    /// server listens, another kind of file has that name, or the folder's rights do not permit it.
    pub fn bind(socket: &Path, controller: Controller, options: Options) -> Result<Server> {
        Ok(Server {
            socket: Socket::bind(socket)?,
            device: Device::new(controller, &options),
            options,
            client: None,
            waiting: VecDeque::new(),
            accepts_from: Time::ZERO,
            cannot_accept: false,
            looks: Looks::default(),
            gaps: options.watches_gaps.then(|| Box::new(Watch::new())),
            dozes: false,
            events: VecDeque::new(),
        })
    }

    /// Returns the path that clients connect to.
    pub fn socket(&self) -> &Path {
        self.socket.path()
    }

    /// Returns the controller, between two turns.
    pub fn controller(&mut self) -> &mut Controller {
        &mut self.device.controller
    }

    /// Returns the number of memory pieces that the client has handed over.
    pub fn mapping_count(&self) -> usize {
        self.device.memory.piece_count()
    }

    /// Takes the oldest event since the last call.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Does the pending work, within bounds and without blocking; returns whether there was any.
    #[inline]
    pub fn turn(&mut self, now: Time) -> bool {
        let taken = if self.client.is_some() { self.device.step(now) } else { 0 };
        if let Some(gaps) = &mut self.gaps
            && self.device.controller.has_io_queues()
        {
            gaps.turned(now, taken, self.device.controller.next_due().is_some());
        }
        if self.device.memory.is_lost() {
            tracing::warn!("disconnected the client: {MEMORY_LOST}");
            self.leave_client(MEMORY_LOST);
        }
        let handled = self.looks.is_due(now) && self.look(now);
        self.looks.stir();
        let worked = taken > 0 || handled;
        if worked && self.dozes {
            self.doze(false);
        }
        worked
    }

    /// Serves until `stops` is set, which takes effect within a tenth of a second; reports events to `listener`. Then
    /// drops the client and flushes the media.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the last flush fails.
    pub fn run(&mut self, stops: &AtomicBool, listener: &mut dyn FnMut(&Event)) -> Result<()> {
        let origin = Instant::now();
        let present = || Time::ZERO + origin.elapsed();
        let (mut now, mut last_work) = (Time::ZERO, Time::ZERO);
        let (mut turns, mut is_timed) = (0, true);
        while !stops.load(Ordering::Acquire) {
            turns += 1;
            if is_timed || turns >= TURNS_PER_CLOCK {
                (now, turns) = (present(), 0);
                is_timed = self.gaps.is_some() || self.device.controller.keeps_time();
            }
            if self.turn(now) {
                last_work = now;
            } else if self.rest(now, now.since(last_work)) {
                turns = TURNS_PER_CLOCK;
            }
            while let Some(event) = self.take_event() {
                listener(&event);
            }
        }
        let ended = self.end(present());
        while let Some(event) = self.take_event() {
            listener(&event);
        }
        ended
    }

    /// Drops the client, if any, and flushes the media.
    ///
    /// # Errors
    /// [`crate::Error::Device`] when the flush fails: the last writes may be lost.
    pub fn end(&mut self, now: Time) -> Result<()> {
        self.leave_client("the server ends");
        self.device.shut_down(now)
    }

    /// Passes the time until the next turn; returns whether that may take long.
    fn rest(&mut self, now: Time, idle: Duration) -> bool {
        let rest = match &self.client {
            Some(_) => self.options.pace.rest(idle),
            None => Rest::Sleep(STOP_LOOK),
        };
        // The controller's own deadlines: a timed command, a change of CSTS.
        let due = self.device.controller.next_due().filter(|_| self.client.is_some());
        let due_in = due.map(|due| due.since(now));
        match rest {
            Rest::Spin => {
                std::hint::spin_loop();
                return false;
            }
            Rest::Yield => std::thread::yield_now(),
            // This step asks for rings and sees what came just before.
            Rest::Sleep(_) if !self.dozes => {
                self.doze(true);
                self.device.step(now);
            }
            // Sleeps end late rather than early.
            Rest::Sleep(_) if due_in.is_some_and(|due_in| due_in < 2 * self.options.pace.nap) => {
                std::thread::yield_now();
            }
            Rest::Sleep(time) => {
                let time = due_in.map_or(time, |due_in| time.min(due_in / 2));
                let until_news = self.sleep(time);
                self.looks.slept(until_news);
            }
        }
        true
    }

    /// Asks clients to ring for every change of a shadow doorbell, or to stop that.
    fn doze(&mut self, dozes: bool) {
        self.dozes = dozes;
        self.device.controller.poll_shadow(!dozes);
    }

    /// Returns true if something arrived.
    fn sleep(&self, at_most: Duration) -> bool {
        let client = self.client.iter().map(|(peer, _)| peer.awaits());
        let waiting = self.waiting.iter().map(|(peer, _)| peer.awaits());
        let listener = (!self.cannot_accept).then(|| (self.socket.as_fd(), false));
        system::wait(&client.chain(waiting).chain(listener).collect::<Vec<_>>(), at_most)
    }

    /// Polls the sockets; returns true if there were messages. The current client comes first, so that one that hung up
    /// is gone before the next is considered.
    fn look(&mut self, now: Time) -> bool {
        let handled = self.hear_client();
        let accepted = now >= self.accepts_from && self.accept(now);
        let greeted = self.greet(now);
        self.looks.looked(now, handled || accepted || greeted);
        handled || accepted || greeted
    }

    fn hear_client(&mut self) -> bool {
        let mut handled = 0;
        while handled < MESSAGES_PER_LOOK {
            let Some((peer, session)) = &mut self.client else { break };
            match peer.receive() {
                Incoming::Nothing => break,
                Incoming::Message(message) => {
                    handled += 1;
                    if let Err(why) = converse(peer, session, &mut self.device, message) {
                        self.leave_client(&why);
                    }
                }
                Incoming::Gone(why) => self.leave_client(&why),
                Incoming::Nonsense(why) => {
                    tracing::warn!("left the client: {why}");
                    self.leave_client(&why);
                }
            }
        }
        handled > 0
    }

    /// Resets the controller, then unmaps the memory.
    fn leave_client(&mut self, why: &str) {
        if self.client.take().is_none() {
            return;
        }
        if let Err(why) = self.device.forget_client() {
            tracing::error!("the doorbells of the last client stay in use: {why}");
        }
        let idled = self.gaps.as_mut().and_then(|gaps| gaps.take());
        self.events.extend(idled.map(Event::Idled));
        self.events.push_back(Event::ClientGone { why: why.to_owned() });
    }

    fn accept(&mut self, now: Time) -> bool {
        self.accepts_from = now + ACCEPT_EVERY;
        self.cannot_accept = false;
        let accepted = self.socket.accept().and_then(|stream| stream.map(Peer::new).transpose());
        match accepted {
            Ok(None) => false,
            Ok(Some(peer)) => {
                if self.waiting.len() >= WAITING_MAX {
                    self.waiting.pop_front();
                }
                self.waiting.push_back((peer, now + WAITING_TIME));
                true
            }
            Err(why) => {
                tracing::warn!(
                    "cannot take a client: {why}; raise the limit of open files (ulimit -n)"
                );
                self.accepts_from = now + ACCEPT_PAUSE;
                self.cannot_accept = true;
                false
            }
        }
    }

    /// Hears connections that have not negotiated. The first to do so becomes the client; while there is a client, the
    /// others are told that the device is busy.
    fn greet(&mut self, now: Time) -> bool {
        let mut handled = false;
        for (mut peer, until) in mem::take(&mut self.waiting) {
            match peer.receive() {
                Incoming::Nothing if now < until => self.waiting.push_back((peer, until)),
                Incoming::Nothing => tracing::warn!("a connection closed without a request"),
                Incoming::Gone(why) => {
                    tracing::debug!("a connection closed before its first request: {why}")
                }
                Incoming::Nonsense(why) => tracing::warn!("rejected a client: {why}"),
                Incoming::Message(message) => {
                    handled = true;
                    self.welcome(peer, message);
                }
            }
        }
        handled
    }

    fn welcome(&mut self, mut peer: Peer, message: Message) {
        // Unread requests of a client that hung up do not delay the next one.
        if self.client.as_ref().is_some_and(|(client, _)| client.is_hung_up()) {
            self.leave_client("it closed the connection");
        }
        if self.client.is_some() {
            peer.answer(&message.header, Err(Refusal::new(libc::EBUSY, "")));
            // A fresh socket has room for a header; otherwise, closing it suffices.
            let _ = peer.flush();
            return self.events.push_back(Event::TurnedAway);
        }
        let mut session = Session::default();
        match converse(&mut peer, &mut session, &mut self.device, message) {
            Ok(()) => {
                self.client = Some((peer, session));
                self.events.push_back(Event::ClientCame);
            }
            Err(why) => tracing::warn!("rejected a client: {why}"),
        }
    }
}

/// Executes and answers a request; an error ends the conversation.
fn converse(
    peer: &mut Peer,
    session: &mut Session,
    device: &mut Device,
    message: Message,
) -> std::result::Result<(), String> {
    let header = message.header;
    let outcome = session.handle(device, message);
    if header.flags & FLAG_NO_REPLY == 0 || outcome.is_err() && !session.is_negotiated() {
        peer.answer(&header, outcome);
    }
    peer.flush().map_err(|why| format!("cannot reply: {why}"))?;
    if session.is_negotiated() { Ok(()) } else { Err("it sent no version request".to_owned()) }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.leave_client("the server ends");
    }
}
