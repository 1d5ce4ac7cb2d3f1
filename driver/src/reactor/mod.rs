//! Poller threads, pinned to cores, that do other threads' I/O.
//!
//! A [`crate::QueuePair`] has one owner. A program whose threads each drive their own needs
//! nothing of this module: that is the fastest way there is. A [`Reactor`] is for
//! everybody else: requests from any thread, on any async runtime or none, through a
//! few queue pairs.
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
//!             // `.await` does as well as `.wait()`, on any runtime.
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
//! What is promised:
//!
//! - **Nothing is lost.** Each request ends once, with its buffer; the exceptions
//!   ([`Unfinished::Lost`]) say why. Dropping a [`Pending`] does not free what the device may still
//!   write: the buffer stays with the reactor until the command is over.
//! - **Nothing is unbounded.** Mailboxes are of fixed size and give the request back when full;
//!   commands have the deadlines of their queue pair.
//! - **Order** of posting, for each handle and thread: see [`Client`].
//! - **Retries** as the status and the controller ask ([`Retry`]).
//! - **No allocation for a request** once a client has as many cells as it has requests on
//!   their way, unless a [`Pending`] is dropped unanswered.
//! - **An idle thread sleeps** ([`Idle`]). Open the controller with
//!   [`crate::ControllerOptions::interrupts`] to have it sleep while commands are in flight, too.
//!
//! | file | job |
//! |---|---|
//! | `client`, `pending`, `outcome` | what callers hold |
//! | `mailbox`, `cell` | there and back between threads |
//! | `lane`, `flights`, `retry` | one controller's requests on one core; no thread, no clock |
//! | `poller`, `idle`, `alarm`, `cores` | the thread around it |

mod alarm;
mod cell;
mod client;
mod cores;
mod flights;
mod idle;
mod lane;
mod mailbox;
mod outcome;
mod pending;
mod poller;
mod retry;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use client::{Client, Submitting};
pub use cores::{Cores, pin};
pub use idle::{Idle, Idling, Rest};
pub use lane::{Lane, Turn};
pub use mailbox::Stats;
pub use outcome::{Data, Lost, RefuseReason, Refused, Unfinished};
pub use pending::Pending;
pub use retry::Retry;

use crate::bus::Locality;
use crate::controller::Controller;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use poller::{Inbox, Poller};

/// How a reactor is made.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// The cores, with one thread each. Default one, of the reactor's choice.
    pub cores: Cores,
    /// Where the device sits that [`Cores::Count`] looks for cores near to. Default unknown.
    pub near: Locality,
    /// Entries of each queue: one less is in flight for each controller on each core. Default 256.
    pub queue_depth: u32,
    /// Requests that may wait to be posted, for each controller on each core; 1 to 65536. Default 256.
    pub mailbox_depth: usize,
    /// How long a command may take, from when it is posted, before it is aborted. Default 10 s.
    pub timeout: Duration,
    /// How long an aborted command may take to end before its queue is created anew. Default 2 s.
    pub abort_timeout: Duration,
    /// Keep a histogram of how long commands take, in [`Client::queue_stats`]. Default false.
    pub latencies: bool,
    /// What becomes of requests that fail, unless the client says otherwise.
    pub retry: Retry,
    /// Whether a controller that is out of service is brought back with
    /// [`Controller::recover`] by the first thread, which serves nobody else meanwhile. Requests
    /// wait for that, and are sent again as `retry` says. Where it does not work, they are refused,
    /// and it is tried again after a second, two, four, up to a minute. Default false: they are refused
    /// until somebody recovers it.
    pub auto_recover: bool,
    /// When an idle thread pauses and sleeps.
    pub idle: Idle,
    /// How long a reactor that is dropped lets requests finish. Default 15 s.
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
    /// The defaults, on a core near `controller`.
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

/// Poller threads; see the module.
///
/// Dropping it refuses new requests, lets those on their way finish for at most
/// [`ReactorOptions::drain_timeout`], deletes the queue pairs and joins the threads.
#[derive(Debug)]
pub struct Reactor {
    options: ReactorOptions,
    cores: Vec<usize>,
    threads: Vec<(Arc<Inbox>, JoinHandle<()>)>,
}

impl Reactor {
    /// Starts the threads, which sleep until a controller is attached.
    ///
    /// # Errors
    /// [`Error::Invalid`] for cores that there are not and other impossible options,
    /// [`Error::Refused`] when the system gives no thread or eventfd.
    pub fn start(options: ReactorOptions) -> Result<Reactor> {
        options.check()?;
        let cores = options.cores.choose(&options.near)?;
        let threads = Vec::with_capacity(cores.len());
        let mut reactor = Reactor { options, cores, threads };
        for core in reactor.cores.clone() {
            // What was started goes with the reactor if the next one cannot be.
            let thread = reactor.spawn(core)?;
            reactor.threads.push(thread);
        }
        Ok(reactor)
    }

    fn spawn(&self, core: usize) -> Result<(Arc<Inbox>, JoinHandle<()>)> {
        let inbox = Arc::new(Inbox::new()?);
        let poller = Poller {
            inbox: Arc::clone(&inbox),
            core,
            idle: self.options.idle,
            drain_timeout: self.options.drain_timeout,
        };
        let thread = std::thread::Builder::new().name(format!("adit-reactor-{core}"));
        let thread = thread.spawn(move || poller.run()).map_err(|why| {
            Error::refused("the reactor", "start a thread", why, "raise the thread limit")
        })?;
        Ok((inbox, thread))
    }

    /// Gives each thread a queue pair of `controller` and returns a client that makes its
    /// commands for `namespace`; [`Client::with_namespace`] has clients for others. The queue pairs
    /// are deleted when the last client and what it sent is gone.
    ///
    /// # Errors
    /// As [`Controller::create_queue_pair`]; [`Error::Invalid`] for another controller's namespace.
    pub fn attach(&self, controller: &Controller, namespace: &Namespace) -> Result<Client> {
        let alarms: Vec<_> =
            self.threads.iter().map(|(inbox, _)| Arc::clone(&inbox.alarm)).collect();
        let (lanes, client) = lane::attach(controller, namespace, &self.options, &alarms)?;
        for ((inbox, _), lane) in self.threads.iter().zip(lanes) {
            inbox.give(lane)?;
        }
        Ok(client)
    }

    /// The cores of its threads, by the numbers that the kernel gives them.
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        for (inbox, _) in &self.threads {
            inbox.stop();
        }
        let this = std::thread::current().id();
        for (_, thread) in self.threads.drain(..) {
            // Dropped inside a waker, it runs on one of its own threads, which ends by itself.
            if thread.thread().id() != this {
                // A panic of the thread's was caught and logged there.
                let _ = thread.join();
            }
        }
    }
}
