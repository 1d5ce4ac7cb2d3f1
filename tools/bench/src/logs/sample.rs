//! One I/O as it is logged.

use std::time::Duration;

/// An I/O as logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoSample {
    /// Submission latency, in nanoseconds.
    pub(crate) slat_ns: u64,
    /// Completion latency, in nanoseconds.
    pub(crate) clat_ns: u64,
    /// Total latency, in nanoseconds.
    pub(crate) lat_ns: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Byte offset.
    pub(crate) offset: u64,
    /// Issue time in nanoseconds from the start.
    pub(crate) issued_ns: u64,
}

/// Returns a time in nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}
