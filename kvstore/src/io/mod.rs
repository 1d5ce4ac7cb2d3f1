//! I/O to one device: the order of requests, and the queue pair they go through.
//!
//! `schedule` decides what to send next and bounds what is in flight; `lane` sends, retries and reports completions.
//! `memory` lends out registered memory. `figures` and `latency` count commands and how long they take.
//! None knows what the bytes mean, waits, or reads a clock.

pub(crate) mod figures;
pub(crate) mod lane;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod schedule;
