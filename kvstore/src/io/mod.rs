//! I/O to one device: the order of requests, and the queue pair they go through.
//!
//! `schedule` decides what to send next and bounds what is in flight; `lane` sends, retries and reports completions.
//! Neither knows what the bytes mean, waits, or reads a clock.

pub(crate) mod lane;
pub(crate) mod schedule;
