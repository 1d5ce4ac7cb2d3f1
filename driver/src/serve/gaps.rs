//! How long the device waits for its client: the gaps between the last command and the next one.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Time;

/// The longest gap that percentiles tell from a longer one.
const GAP_NS_MAX: u64 = 3600 * 1_000_000_000;

/// How long a client left the device without a command, from its first I/O queue to its last command. A gap begins when
/// everything fetched is done and no queue holds more; the command that ends it is counted. The clock is read in each turn
/// of the server, some 0.1 us apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleGaps {
    /// Commands fetched.
    pub commands: u64,
    /// Gaps.
    pub gaps: u64,
    /// All gaps together.
    pub idle: Duration,
    /// From the first command to the last.
    pub span: Duration,
    /// The gap that half of all do not exceed, to two digits.
    pub p50: Duration,
    /// The gap that 99 % do not exceed, to two digits.
    pub p99: Duration,
    /// The longest gap.
    pub longest: Duration,
}

impl fmt::Display for IdleGaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.idle.as_secs_f64() * 100.0 / self.span.as_secs_f64().max(1e-9);
        write!(
            f,
            "the device was idle for {share:.1} % of {:.1?}: {} gaps between {} commands, p50 {:.1?}, p99 {:.1?}, \
             longest {:.1?}",
            self.span, self.gaps, self.commands, self.p50, self.p99, self.longest
        )
    }
}

/// Gathers [`IdleGaps`].
#[derive(Debug)]
pub(super) struct Watch {
    lengths_ns: Histogram<u64>,
    commands: u64,
    idle: Duration,
    longest: Duration,
    first: Option<Time>,
    last: Time,
    /// When the device ran out of work.
    idle_from: Option<Time>,
}

impl Watch {
    pub(super) fn new() -> Watch {
        let lengths_ns =
            Histogram::new_with_bounds(1, GAP_NS_MAX, 2).expect("bounds that go together");
        let (idle, longest) = (Duration::ZERO, Duration::ZERO);
        Watch {
            lengths_ns,
            commands: 0,
            idle,
            longest,
            first: None,
            last: Time::ZERO,
            idle_from: None,
        }
    }

    /// Notes a turn at `now` that fetched `taken` commands, and whether others are still being carried out.
    pub(super) fn turned(&mut self, now: Time, taken: usize, is_busy: bool) {
        if taken == 0 {
            if !is_busy && self.first.is_some() {
                self.idle_from.get_or_insert(now);
            }
            return;
        }
        self.first.get_or_insert(now);
        (self.last, self.commands) = (now, self.commands + taken as u64);
        let Some(from) = self.idle_from.take() else { return };
        let gap = now.since(from);
        self.idle += gap;
        self.longest = self.longest.max(gap);
        self.lengths_ns.saturating_record(gap.as_nanos() as u64);
    }

    /// Returns what was seen, and starts anew; `None` without a command.
    pub(super) fn take(&mut self) -> Option<IdleGaps> {
        let Watch { lengths_ns, commands, idle, longest, first, last, .. } =
            std::mem::replace(self, Watch::new());
        let percentile =
            |percent| Duration::from_nanos(lengths_ns.value_at_percentile(percent)).min(longest);
        Some(IdleGaps {
            commands,
            gaps: lengths_ns.len(),
            idle,
            span: last.since(first?),
            p50: percentile(50.0),
            p99: percentile(99.0),
            longest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1000)
    }

    #[test]
    fn a_gap_lies_between_the_end_of_all_work_and_the_next_command() {
        let mut watch = Watch::new();
        assert_eq!(watch.take(), None);
        // Nothing is missing before the first command, nor after the last.
        watch.turned(at(0), 0, false);
        watch.turned(at(100), 32, false);
        watch.turned(at(400), 0, true);
        watch.turned(at(500), 0, false);
        watch.turned(at(550), 0, false);
        watch.turned(at(700), 2, true);
        watch.turned(at(701), 1, false);
        watch.turned(at(900), 0, false);
        let seen = watch.take().expect("commands");
        assert_eq!((seen.commands, seen.gaps), (35, 1));
        let us = |us| Duration::from_micros(us);
        assert_eq!((seen.idle, seen.span, seen.longest), (us(200), us(601), us(200)));
        assert_eq!((seen.p50, seen.p99), (us(200), us(200)));
        assert_eq!(watch.take(), None, "the next client starts anew");
    }

    #[test]
    fn percentiles_tell_short_gaps_from_long_ones() {
        let (mut watch, mut now) = (Watch::new(), 0);
        for number in 0..100 {
            watch.turned(at(now), 1, false);
            now += 10;
            watch.turned(at(now), 0, false);
            now += if number % 10 == 0 { 1000 } else { 5 };
        }
        watch.turned(at(now), 1, false);
        let seen = watch.take().expect("commands");
        assert_eq!((seen.gaps, seen.idle), (100, Duration::from_micros(90 * 5 + 10 * 1000)));
        let is_about = |time: Duration, us: u64| {
            time.abs_diff(Duration::from_micros(us)) <= Duration::from_micros(us) / 50
        };
        assert!(is_about(seen.p50, 5) && is_about(seen.p99, 1000), "{seen:?}");
        assert!(seen.to_string().contains("100 gaps between 101 commands"), "{seen}");
    }
}
