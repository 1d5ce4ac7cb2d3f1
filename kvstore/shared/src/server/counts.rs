//! The counters of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Serving;

/// The counters of all clients.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) clients_now: AtomicU64,
    pub(super) clients: AtomicU64,
    pub(super) clients_expelled: AtomicU64,
    pub(super) clients_turned_away: AtomicU64,
    /// Apart from the others, as mappings outlive their client until the store gives them back.
    pub(super) mapped_bytes_now: Arc<AtomicU64>,
    /// The number of these mappings.
    pub(super) mappings_now: Arc<AtomicU64>,
    pub(super) requests_now: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) leases_now: AtomicU64,
    /// Bytes of leased objects, counted once for each lease, and of objects being written in parts.
    pub(super) held_bytes_now: AtomicU64,
}

impl Counts {
    /// Returns the counters' values.
    pub(super) fn read(&self) -> Serving {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Serving {
            clients_now: of(&self.clients_now),
            clients: of(&self.clients),
            clients_expelled: of(&self.clients_expelled),
            clients_turned_away: of(&self.clients_turned_away),
            mapped_bytes_now: of(&self.mapped_bytes_now),
            requests_now: of(&self.requests_now),
            requests: of(&self.requests),
            leases_now: of(&self.leases_now),
        }
    }
}

/// Adds `more` to a counter if that keeps it within `most`; otherwise returns its value.
pub(super) fn add(counter: &AtomicU64, more: u64, most: u64) -> Result<u64, u64> {
    let with = |has: u64| has.checked_add(more).filter(|all| *all <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with)
}
