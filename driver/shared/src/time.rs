//! Time as an argument.
//!
//! The driver's core never reads a clock: every call that can expire takes the current [`Time`]. The bus owns
//! the clock, so the same core runs on the machine's monotonic clock and on a simulated one.

use std::fmt;
use std::ops::Add;
use std::time::{Duration, Instant};

/// A point on a bus's monotonic clock, in nanoseconds from an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than any event: the deadline of commands that may wait forever (only asynchronous event
    /// requests).
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the point `ns` nanoseconds after the origin.
    #[inline]
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// Returns nanoseconds since the origin.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A century, which is forever to a program. An [`Instant`] need not reach as far as a [`Duration`].
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns when a wait that begins now ends, for a thread that blocks: in a century if `at_most` is longer. Use it for
/// each time limit that a caller gives: adding [`Duration::MAX`] to an [`Instant`] panics.
pub fn deadline(at_most: Duration) -> Instant {
    Instant::now() + at_most.min(CENTURY)
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates at [`Time::NEVER`].
    #[inline]
    fn add(self, duration: Duration) -> Time {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(ns))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addition_saturates_at_never() {
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time::from_ns(5) + Duration::from_nanos(7), Time::from_ns(12));
    }

    #[test]
    fn any_limit_has_a_deadline() {
        let before = Instant::now();
        let short = deadline(Duration::from_secs(1));
        assert!(
            short >= before + Duration::from_secs(1) && short <= deadline(Duration::from_secs(1))
        );
        assert!(deadline(Duration::MAX) >= before + CENTURY);
    }

    #[test]
    fn since_is_zero_for_a_later_origin() {
        assert_eq!(Time::from_ns(3).since(Time::from_ns(9)), Duration::ZERO);
        assert_eq!(Time::from_ns(9).since(Time::from_ns(3)), Duration::from_nanos(6));
    }
}
