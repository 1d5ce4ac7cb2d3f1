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
//! - **An idle thread sleeps** ([`crate::runtime::Idle`]). Open the controller with [`crate::ControllerOptions::interrupts`] to
//!   let it sleep while commands are in flight, too.
//!
//! | file | job |
//! |---|---|
//! | `options` | the options of a reactor |
//! | `client`, `pending`, `outcome` | what callers hold |
//! | `port` | requests on their way to a lane |
//! | `lane`, `flights`, `retry` | one controller's requests on one core; no thread, no clock |
//! | `thread` | the lanes of a [`crate::runtime::Poller`] |

mod client;
mod flights;
mod lane;
mod options;
mod outcome;
mod pending;
mod port;
mod retry;
mod thread;

use std::sync::Arc;

pub use client::{Client, Submitting};
pub use lane::{Lane, Turn};
pub use options::ReactorOptions;
pub use outcome::{Data, Lost, RefuseReason, Refused, Unfinished};
pub use pending::Pending;
pub use port::Stats;
pub use retry::Retry;

use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::runtime::{Alarm, Mailbox, Pinning, Poller, Seat};
use thread::Lanes;

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
        let cores = places.iter().filter_map(Pinning::core).collect();
        let threads = Vec::with_capacity(places.len());
        let mut reactor = Reactor { options, cores, threads };
        for (number, place) in places.into_iter().enumerate() {
            // If a later thread fails to start, the drop of the reactor ends the earlier ones.
            let thread = reactor.spawn(number, place)?;
            reactor.threads.push(thread);
        }
        Ok(reactor)
    }

    fn spawn(&self, number: usize, place: Pinning) -> Result<Thread> {
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
