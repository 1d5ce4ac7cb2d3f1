//! The clock of buses with a real device: the machine's monotonic one.

use std::time::{Duration, Instant};

use crate::Time;

/// Longest single sleep of a register poll: short against any bring-up deadline (500 ms at least), long
/// against a context switch.
const NAP: Duration = Duration::from_micros(50);

/// Monotonic time since the bus was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        // u64 nanoseconds last 584 years.
        Time::from_ns(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Yields the CPU for at most `at_most`.
    pub(crate) fn pause(&self, at_most: Duration) {
        if at_most.is_zero() {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(at_most.min(NAP));
        }
    }
}
