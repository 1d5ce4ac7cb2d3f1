//! Communication between jobs and their watchers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::outcome::JobOutcome;
use crate::way::{PerWay, Way};

/// A job's progress. Only the job writes it, except for the two requests.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress {
    ios: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    /// 99th percentile of all latencies so far, in nanoseconds.
    p99_ns: AtomicU64,
    /// How often counting restarted: once, after the ramp.
    restarts: AtomicU32,
    is_running: AtomicBool,
    /// When it began to count, and when it ended.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
    /// Requests that the job end.
    stop: AtomicBool,
    /// Requests the job's counts so far.
    wants_snapshot: AtomicBool,
    snapshot: Mutex<Option<Box<JobOutcome>>>,
}

impl Progress {
    /// Publishes one way's counts.
    #[inline]
    pub(crate) fn store(&self, way: Way, ios: u64, bytes: u64) {
        self.ios[way as usize].store(ios, Ordering::Relaxed);
        self.bytes[way as usize].store(bytes, Ordering::Relaxed);
    }

    /// Returns the I/Os and bytes of each way.
    pub(crate) fn load(&self) -> PerWay<(u64, u64)> {
        let of = |way: Way| {
            let at = way as usize;
            (self.ios[at].load(Ordering::Relaxed), self.bytes[at].load(Ordering::Relaxed))
        };
        PerWay(Way::ALL.map(of))
    }

    /// Publishes the 99th percentile of latencies in nanoseconds.
    pub(crate) fn set_p99_ns(&self, ns: u64) {
        self.p99_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the 99th percentile of latencies in nanoseconds.
    pub(crate) fn p99_ns(&self) -> u64 {
        self.p99_ns.load(Ordering::Relaxed)
    }

    /// Restarts counting from zero.
    pub(crate) fn restart(&self) {
        for way in Way::ALL {
            self.store(way, 0, 0);
        }
        self.times.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(Instant::now());
        self.restarts.fetch_add(1, Ordering::Release);
    }

    /// Returns how often counting restarted.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Acquire)
    }

    /// Records that the job begins or has ended.
    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let at = if is_running { &mut times.0 } else { &mut times.1 };
        *at = Some(Instant::now());
    }

    /// Returns when it began to count and when it ended.
    pub(crate) fn times(&self) -> (Option<Instant>, Option<Instant>) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the job runs.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Requests that the job end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether the job should end.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests the counts so far.
    pub(crate) fn ask_for_snapshot(&self) {
        self.wants_snapshot.store(true, Ordering::Relaxed);
    }

    /// Returns whether the counts are requested.
    #[inline]
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.wants_snapshot.load(Ordering::Relaxed)
    }

    /// Delivers the counts.
    pub(crate) fn give_snapshot(&self, outcome: JobOutcome) {
        self.wants_snapshot.store(false, Ordering::Relaxed);
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(outcome));
    }

    /// Takes the delivered counts.
    pub(crate) fn take_snapshot(&self) -> Option<Box<JobOutcome>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
