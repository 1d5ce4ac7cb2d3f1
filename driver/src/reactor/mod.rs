//! Poller threads, pinned to cores, that do I/O for other threads.
//!
//! A [`crate::QueuePair`] has one owner. Threads that each drive their own do not need this module: that is
//! the fastest way. A [`Reactor`] takes requests from any thread, on any async runtime or none, and sends
//! them through a few queue pairs.
//!
//! ```text
//!  any thread, any runtime              one thread a core
//!  client.read(lba, buffer) -> mailbox -> post, ring -> device
//!  pending.await | .wait()  <- cell    <- poll       <-
//! ```
//!
//! ```
//! use adit_driver::reactor::{Reactor, ReactorOptions};
//! use adit_driver::spec::Lba;
//! use adit_driver::{Completion, Controller, ControllerOptions};
//!
//! let target = "soft:mem=16M".parse()?;
//! let controller = Controller::open(&target, &ControllerOptions::default())?;
//! let namespace = controller.namespace_of(&target)?;
//!
//! let reactor = Reactor::start(ReactorOptions::near(&controller))?;
//! let client = reactor.attach(&controller, &namespace)?;
//! std::thread::scope(|scope| {
//!     for number in 0..4u8 {
//!         let (controller, client) = (&controller, client.clone());
//!         scope.spawn(move || -> adit_driver::Result<()> {
//!             let (lba, mut buffer) = (Lba(8 * u64::from(number)), controller.allocate(4096)?);
//!             buffer.fill(number);
//!             // `.await` works like `.wait()`, on any runtime.
//!             let Completion { buffer, result } = client.write(lba, buffer)?.wait()?;
//!             assert!(result.is_ok());
//!             let Completion { buffer, .. } = client.read(lba, buffer)?.wait()?;
//!             assert!(buffer.iter().all(|byte| *byte == number));
//!             Ok(())
//!         });
//!     }
//! });
//! # Ok::<(), adit_driver::Error>(())
//! ```
//!
//! Guarantees:
//!
//! - **Nothing is lost.** Each request ends once, with its buffer; [`Unfinished::Lost`] explains the
//!   exceptions. Dropping a [`Pending`] does not free what the device may still write: the reactor keeps the
//!   buffer until the command ends.
//! - **Nothing is unbounded.** Mailboxes have a fixed size and return the request when full; commands have
//!   the deadlines of their queue pair.
//! - **Order** of posting, for each handle and thread: see [`Client`].
//! - **Retries** as the status and the controller allow ([`Retry`]).
//! - **No allocation for a request** once a client has as many cells as requests in flight, unless a
//!   [`Pending`] is dropped unanswered.
//! - **An idle thread sleeps** ([`Idle`]). Open the controller with [`crate::ControllerOptions::interrupts`] to
//!   let it sleep while commands are in flight, too.
//!
//! | file | job |
//! |---|---|
//! | `client`, `pending`, `outcome` | what callers hold |
//! | `port` | requests on their way to a lane |
//! | `lane`, `flights`, `retry` | one controller's requests on one core; no thread, no clock |
//! | `thread` | the lanes of a [`crate::runtime::Poller`] |

mod client;
mod flights;
mod lane;
mod outcome;
mod pending;
mod port;
mod retry;
mod thread;

use std::sync::Arc;
use std::time::Duration;

pub use client::{Client, Submitting};
pub use lane::{Lane, Turn};
pub use outcome::{Data, Lost, RefuseReason, Refused, Unfinished};
pub use pending::Pending;
pub use port::Stats;
pub use retry::Retry;

use crate::bus::Locality;
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::runtime::{Alarm, Cores, Idle, Mailbox, Place, Poller, Seat};
use thread::Lanes;

/// Options for starting a reactor.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// The threads and their cores. Default one thread, pinned to a core of the reactor's choice: it polls a device.
    pub cores: Cores,
    /// The device's location, which [`Cores::Count`] prefers and [`Cores::Near`] keeps to. Default unknown.
    pub near: Locality,
    /// Entries of each queue: one less can be in flight for each controller on each core. Default 256.
    pub queue_depth: u32,
    /// Most requests waiting to be posted, for each controller on each core; 1 to 65536. Default 256.
    pub mailbox_depth: usize,
    /// Time limit of a command from its posting, before it is aborted. Default 10 s.
    pub timeout: Duration,
    /// Time limit of an aborted command before its queue is recreated. Default 2 s.
    pub abort_timeout: Duration,
    /// Record command latencies, in [`Client::queue_stats`]. Default false.
    pub latencies: bool,
    /// Retries of failed requests, unless the client sets its own.
    pub retry: Retry,
    /// Whether the first thread returns an out-of-service controller to service with [`Controller::recover`];
    /// that thread serves nothing else meanwhile. Requests wait for it and are sent again as `retry` allows.
    /// If it fails, they are refused, and it is tried again after 1 s, 2 s, 4 s and so on, up to a minute.
    /// Default false: they are refused until the program recovers the controller.
    pub auto_recover: bool,
    /// When an idle thread pauses and sleeps.
    pub idle: Idle,
    /// Time that a dropped reactor waits for its requests. Default 15 s.
    pub drain_timeout: Duration,
}

impl Default for ReactorOptions {
    fn default() -> Self {
        ReactorOptions {
            cores: Cores::Count(1),
            near: Locality::default(),
            queue_depth: 256,
            mailbox_depth: 256,
            timeout: Duration::from_secs(10),
            abort_timeout: Duration::from_secs(2),
            latencies: false,
            retry: Retry::default(),
            auto_recover: false,
            idle: Idle::default(),
            drain_timeout: Duration::from_secs(15),
        }
    }
}

impl ReactorOptions {
    /// Returns the defaults, on a core near `controller`.
    pub fn near(controller: &Controller) -> ReactorOptions {
        ReactorOptions { near: controller.locality(), ..ReactorOptions::default() }
    }

    fn check(&self) -> Result<()> {
        if (1..=65536).contains(&self.mailbox_depth) {
            return Ok(());
        }
        let what = format!("a reactor's mailbox for {} requests", self.mailbox_depth);
        Err(Error::invalid(what, "mailbox_depth is 1 to 65536"))
    }
}

/// Poller threads that drive queue pairs for clients.
///
/// Dropping it refuses new requests, waits for those in flight at most [`ReactorOptions::drain_timeout`],
/// deletes the queue pairs and joins the threads.
#[derive(Debug)]
pub struct Reactor {
    options: ReactorOptions,
    cores: Vec<usize>,
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    inbox: Arc<Mailbox<Lane>>,
    poller: Poller<()>,
}

impl Reactor {
    /// Starts the threads, which sleep until a controller is attached.
    ///
    /// # Errors
    /// [`Error::Invalid`] for cores that do not exist and other invalid options, [`Error::Refused`] if the
    /// system grants no thread or eventfd.
    pub fn start(options: ReactorOptions) -> Result<Reactor> {
        options.check()?;
        let places = options.cores.choose(&options.near)?;
        let cores = places.iter().filter_map(Place::core).collect();
        let threads = Vec::with_capacity(places.len());
        let mut reactor = Reactor { options, cores, threads };
        for (number, place) in places.into_iter().enumerate() {
            // If a later thread fails to start, the drop of the reactor ends the earlier ones.
            let thread = reactor.spawn(number, place)?;
            reactor.threads.push(thread);
        }
        Ok(reactor)
    }

    fn spawn(&self, number: usize, place: Place) -> Result<Thread> {
        let ReactorOptions { idle, drain_timeout, .. } = self.options;
        let alarm = Alarm::new()?;
        // All lanes are urgent, as there is no limit to them.
        let inbox = Arc::new(Mailbox::new(1, Arc::clone(&alarm), drop));
        let lanes = Lanes::new(Arc::clone(&inbox), drain_timeout);
        let name = format!("adit-reactor-{}", place.core().unwrap_or(number));
        let seat = Seat { name, place, idle };
        let poller = Poller::spawn(seat, alarm, || Some(lanes))?;
        Ok(Thread { inbox, poller })
    }

    /// Creates a queue pair of `controller` for each thread and returns a client for `namespace`;
    /// [`Client::with_namespace`] returns clients for others. The queue pairs are deleted once the last
    /// client is dropped and its requests have ended.
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`]; [`Error::Invalid`] for another controller's namespace.
    pub fn attach(&self, controller: &Controller, namespace: &Namespace) -> Result<Client> {
        let alarms: Vec<_> =
            self.threads.iter().map(|thread| Arc::clone(thread.poller.alarm())).collect();
        let (lanes, client) = lane::attach(controller, namespace, &self.options, &alarms)?;
        for (thread, lane) in self.threads.iter().zip(lanes) {
            thread.inbox.send_urgent(lane).map_err(|_| {
                let why =
                    "one of its threads has ended, and the log says why; start another reactor";
                Error::invalid("attaching to a reactor", why)
            })?;
        }
        Ok(client)
    }

    /// Returns the cores that its threads are pinned to, in the kernel's numbering; none if they are not pinned.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.threads.iter().for_each(|thread| thread.poller.stop());
        for Thread { poller, .. } in self.threads.drain(..) {
            // If dropped inside a waker, this is one of its own threads, which ends by itself.
            if !poller.is_own() {
                poller.join();
            }
        }
    }
}
