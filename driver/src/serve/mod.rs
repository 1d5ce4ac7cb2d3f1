//! Serving a software controller to other processes, over vfio-user.
//!
//! A [`Server`] listens at a Unix socket and speaks the vfio-user protocol (0.1), so that whoever
//! drives NVMe controllers by that protocol can attach: this crate by `vfio-user:PATH`, SPDK's driver, a
//! virtual machine. One client at a time; another is told that the device is busy.
//!
//! ```no_run
//! use adit_driver::serve::{Options, Server};
//! use adit_driver::soft;
//! use std::sync::atomic::AtomicBool;
//!
//! let controller = soft::Controller::new("mem=1G".parse()?)?;
//! let mut server = Server::bind("/run/x/cntrl".as_ref(), controller, Options::default())?;
//! let stops = AtomicBool::new(false);
//! server.run(&stops, &mut |event| println!("{event}"))?;
//! # Ok::<(), adit_driver::Error>(())
//! ```
//!
//! One thread does everything, so that between two steps of the controller nothing of the client's
//! memory is in use and it can be taken away; nothing is locked per command. Only closing what clients handed over, which
//! can wait, is left to threads of its own, 16 at most.
//!
//! **The client is not trusted** to speak the protocol: a message that is wrong is answered with an
//! error and logged with the reason; one after which the stream makes no sense ends the connection. When
//! a client goes, in the middle of a command or not, the controller is reset, and only then its
//! memory is unmapped. A client that shortens a file of its memory, which only works where the file cannot be
//! sealed, is left: the first piece of memory that is handed over puts a SIGBUS handler in place, which passes on all
//! bus errors but those of that memory. A handler that the program sets later takes that away;
//! [`Options::sealed_memory_only`] does without.
//!
//! Not there: migration, dirty page tracking, memory without a file (it would need
//! the client to answer reads and writes), INTx and MSI.

mod closing;
mod config_space;
mod device;
mod interrupts;
mod memory;
mod pace;
mod peer;
mod refusal;
mod server;
mod session;
mod signaller;
mod socket;
mod system;

pub use pace::Pace;
pub use server::{Event, Server};

/// How clients reach the doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellAccess {
    /// Clients may map the doorbell page.
    #[default]
    Mapped,
    /// Each ring is a message; Doorbell Buffer Config makes most of them unnecessary.
    Messages,
}

/// How to serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How clients reach the doorbells.
    pub doorbells: DoorbellAccess,
    /// Refuses memory whose file can be made shorter. Files that allow it are sealed in any case; without this, a
    /// client that shortens one of the others is left.
    pub sealed_memory_only: bool,
    /// When the server's thread gives its core away.
    pub pace: Pace,
}
