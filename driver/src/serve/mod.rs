//! Serves a software controller to other processes, over vfio-user.
//!
//! A [`Server`] listens at a Unix socket and speaks the vfio-user protocol (0.1). Any NVMe driver that speaks it can
//! attach: this crate by `vfio-user:PATH`, SPDK's driver, a virtual machine. It serves one client at a time; others get
//! a busy error.
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
//! One thread does everything. Between two steps of the controller the client's memory is unused and can be unmapped,
//! without a lock per command. Only closing clients' files, which can block, has threads of its own, 16 at most.
//!
//! **The client is not trusted** to follow the protocol. An invalid message gets an error reply and a log entry; one
//! that makes the stream unreadable ends the connection. When a client leaves, even in the middle of a command, the
//! controller is reset before its memory is unmapped. A client that shortens an unsealable file of its memory is
//! dropped: the first piece handed over installs a SIGBUS handler, which passes on all bus errors except those in that
//! memory. A handler that the program installs later disables this protection; [`Options::sealed_memory_only`] works
//! without it.
//!
//! Not supported: migration, dirty page tracking, memory without a file (the client would have to answer reads and
//! writes), INTx and MSI.

mod closing;
mod config_space;
mod device;
mod gaps;
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

pub use gaps::IdleGaps;
pub use pace::Pace;
pub use server::{Event, Server};

/// Parts for servers of other kinds whose clients are not trusted either.
pub mod parts {
    pub use super::closing::close_elsewhere;
    pub use super::signaller::Signaller;
    pub use super::socket::Socket;
    pub use super::system::{is_eventfd, receive};
    pub use crate::sys::memory_file::{first_hole, page_bytes, seal_length, seal_pages};
}

/// How clients reach the doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellAccess {
    /// Clients may map the doorbell page.
    #[default]
    Mapped,
    /// Each ring is a message; Doorbell Buffer Config makes most of them unnecessary.
    Messages,
}

/// Settings of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How clients reach the doorbells.
    pub doorbells: DoorbellAccess,
    /// Refuses memory whose file can be shortened. Sealable files are sealed in any case; if this is off, a client that
    /// shortens an unsealable file is dropped.
    pub sealed_memory_only: bool,
    /// The most bytes of memory that a client may hand over. Each page of it that is not there yet, or is taken out later, is
    /// charged to this process when the controller touches it, so this is at most what the process may use. Memory on
    /// hugetlbfs does not count: it is reserved.
    pub client_bytes_max: Option<u64>,
    /// How the server's thread idles.
    pub pace: Pace,
    /// Measures how long the device waits for each client, which [`Event::Idled`] reports when the client is gone. The server
    /// then reads the clock in every turn.
    pub watches_gaps: bool,
}
