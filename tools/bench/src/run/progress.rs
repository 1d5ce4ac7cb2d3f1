//! What the jobs and those who watch them tell each other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use crate::outcome::JobOutcome;
use crate::way::{PerWay, Way};

/// How far a job is, for whoever watches it; only the job writes it, except for the two requests.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress {
    ios: [AtomicU64; 3],
    bytes: [AtomicU64; 3],
    /// 99th percentile of all latencies so far, in nanoseconds.
    p99_ns: AtomicU64,
    /// How often the job counted anew: after its ramp.
    restarts: AtomicU32,
    is_running: AtomicBool,
    /// When it began to count, and when it ended.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
    /// Asks the job to end.
    stop: AtomicBool,
    /// Asks the job for what it counted so far.
    wants_snapshot: AtomicBool,
    snapshot: Mutex<Option<Box<JobOutcome>>>,
}

impl Progress {
    /// The job counted so much in a way.
    #[inline]
    pub(crate) fn store(&self, way: Way, ios: u64, bytes: u64) {
        self.ios[way as usize].store(ios, Ordering::Relaxed);
        self.bytes[way as usize].store(bytes, Ordering::Relaxed);
    }

    /// I/Os and bytes of each way.
    pub(crate) fn load(&self) -> PerWay<(u64, u64)> {
        let of = |way: Way| {
            let at = way as usize;
            (self.ios[at].load(Ordering::Relaxed), self.bytes[at].load(Ordering::Relaxed))
        };
        PerWay(Way::ALL.map(of))
    }

    /// The 99th percentile of latencies, in nanoseconds.
    pub(crate) fn set_p99_ns(&self, ns: u64) {
        self.p99_ns.store(ns, Ordering::Relaxed);
    }

    /// See `set_p99_ns`.
    pub(crate) fn p99_ns(&self) -> u64 {
        self.p99_ns.load(Ordering::Relaxed)
    }

    /// The job counts from zero again.
    pub(crate) fn restart(&self) {
        for way in Way::ALL {
            self.store(way, 0, 0);
        }
        self.times.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0 = Some(Instant::now());
        self.restarts.fetch_add(1, Ordering::Release);
    }

    /// How often it did.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Acquire)
    }

    /// The job begins or has ended.
    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
        let mut times = self.times.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = if is_running { &mut times.0 } else { &mut times.1 };
        *at = Some(Instant::now());
    }

    /// Since when it counts, and until when it did.
    pub(crate) fn times(&self) -> (Option<Instant>, Option<Instant>) {
        *self.times.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Asks the job to end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks for what was counted so far.
    pub(crate) fn ask_for_snapshot(&self) {
        self.wants_snapshot.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    #[inline]
    pub(crate) fn wants_snapshot(&self) -> bool {
        self.wants_snapshot.load(Ordering::Relaxed)
    }

    /// Answers.
    pub(crate) fn give_snapshot(&self, outcome: JobOutcome) {
        self.wants_snapshot.store(false, Ordering::Relaxed);
        *self.snapshot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some(Box::new(outcome));
    }

    /// The answer, once.
    pub(crate) fn take_snapshot(&self) -> Option<Box<JobOutcome>> {
        self.snapshot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }
}
