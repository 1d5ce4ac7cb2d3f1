//! A clock that is as cheap to read as the machine allows.
//!
//! If the processor's time stamp counter is invariant, it is calibrated against the system's monotonic clock
//! and read instead. The two are compared again at the end of a run: drift makes every latency wrong in
//! proportion, and the report says so.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_driver::Time;
use adit_driver::paths::Device;

use crate::outcome::ClockOutcome;

/// Returns the time in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// A thread's clock in the device's time, read without calling the device or the system.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    counter: quanta::Clock,
    origin_raw: u64,
    origin: Time,
}

impl Clock {
    /// Creates a clock that agrees with the device's now.
    pub(crate) fn of(device: &Device) -> Clock {
        let counter = quanta::Clock::new();
        // The device's reading lies between the counter's two readings.
        let (before, origin, after) = (counter.raw(), device.now(), counter.raw());
        Clock { counter, origin_raw: before + (after - before) / 2, origin }
    }

    /// Returns the current time.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        let ns = self.counter.delta_as_nanos(self.origin_raw, self.counter.raw());
        Time::from_ns(self.origin.as_ns() + ns)
    }
}

/// Compares the counter with the system's clock over a run.
#[derive(Debug)]
pub(crate) struct Check {
    counter: quanta::Clock,
    raw: u64,
    system: Instant,
}

impl Check {
    /// Starts the comparison.
    pub(crate) fn start() -> Check {
        let counter = quanta::Clock::new();
        let (system, raw) = (Instant::now(), counter.raw());
        Check { counter, raw, system }
    }

    /// Returns how far the counter drifted from the system's clock.
    pub(crate) fn finish(&self) -> ClockOutcome {
        let raw = self.counter.raw();
        let system = self.system.elapsed();
        let counted = Duration::from_nanos(self.counter.delta_as_nanos(self.raw, raw));
        let off = counted.as_secs_f64() - system.as_secs_f64();
        ClockOutcome { is_tsc: is_tsc(), drift_ppm: off / system.as_secs_f64() * 1e6 }
    }
}

/// Returns whether the counter is the processor's, which is used only if invariant.
fn is_tsc() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"]
        .iter()
        .all(|flag| flags.split_whitespace().any(|word| word == *flag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::DeviceOptions;

    #[test]
    fn the_clock_agrees_with_the_devices() {
        let target = "null:".parse().expect("a target");
        let device = Device::open(&target, &DeviceOptions::default()).expect("opens");
        let clock = Clock::of(&device);
        let check = Check::start();
        std::thread::sleep(Duration::from_millis(20));
        let apart = clock.now().as_ns().abs_diff(device.now().as_ns());
        assert!(apart < 2_000_000, "{apart} ns after 20 ms");
        assert!(check.finish().drift_ppm.abs() < 50_000.0, "{:?}", check.finish());
    }
}
