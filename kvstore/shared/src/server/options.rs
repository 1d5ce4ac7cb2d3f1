//! A server's settings, and the events that it reports.

use std::fmt;
use std::time::Duration;

/// Settings of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The permissions of the socket. Default 0600: this user's processes.
    pub mode: u32,
    /// The most clients at a time; further ones are refused. Default 64.
    pub clients_max: u64,
    /// The most bytes of memory that a client may share. Default 16 GiB.
    pub client_bytes_max: u64,
    /// The most bytes that all clients together may share, their rings included. Default 256 GiB.
    pub all_bytes_max: u64,
    /// The most layouts that a client may use. Default 8.
    pub client_layouts_max: usize,
    /// The number of layouts, of the 255 that a store can have, from which on clients define no further ones. Default
    /// 128.
    pub all_layouts_max: usize,
    /// The number of tenants, of the 255 that a store can have, from which on clients name no further ones: the rest is
    /// reserved for the operator. Default 128.
    pub tenants_max: usize,
    /// The longest lease; longer requests are shortened to it. Default one hour.
    pub lease_max: Duration,
    /// The share of the store in percent that one client may hold by leases and by objects that it writes in parts; all
    /// of them together may hold twice that. Default 25.
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

/// An event that the server reports about its clients. Clients are numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has greeted.
    ClientCame {
        /// The client's number.
        client: u64,
        /// The number of its process, as the client states it.
        process: u64,
    },
    /// A client is gone.
    ClientGone {
        /// The client's number.
        client: u64,
        /// Why the session ended.
        why: String,
        /// Whether it was disconnected for breaking a rule.
        is_expelled: bool,
    },
    /// Connections were refused, because there were too many clients or too many connections without a greeting.
    /// Reported at most once a second.
    TurnedAway {
        /// The number since the last of these events.
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
