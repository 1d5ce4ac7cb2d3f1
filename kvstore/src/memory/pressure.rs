//! Measures how long tasks wait for memory (PSI, `Documentation/accounting/psi.rst`).
//!
//! The kernel's averages go back ten seconds: by them, a single stall would take memory from a cache at each evaluation
//! for that long. This module compares the kernel's totals instead, over windows of at least a second that each count
//! once.

use std::time::{Duration, Instant};

/// A window ends with the first evaluation after this time.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// Caches do not grow while some task waits for a window divided by this, or longer.
const HOLD_PARTS: u32 = 20;
/// Caches shrink, whatever the budget says, if all tasks waited for a window divided by this, or longer.
const YIELD_PARTS: u32 = 10;

/// How long tasks have waited so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// At least one of them.
    pub some: Duration,
    /// All of them.
    pub full: Duration,
}

impl Waited {
    /// Parses a file of the kernel.
    pub(super) fn parse(text: &str) -> Option<Waited> {
        let total = |kind: &str| {
            let line = text.lines().find(|line| line.split(' ').next() == Some(kind))?;
            let word = line.split(' ').find_map(|word| word.strip_prefix("total="))?;
            word.parse().ok().map(Duration::from_micros)
        };
        Some(Waited { some: total("some")?, full: total("full")? })
    }
}

/// The action that a cache owes to tasks waiting for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strain {
    /// Nothing.
    #[default]
    None,
    /// It must not grow.
    Hold,
    /// It must shrink by a step.
    Yield,
}

/// Compares how long tasks have waited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    /// The window's begin, and the tasks' total waits at that time.
    begun: Option<(Instant, Waited)>,
    /// Whether some task waited for long in the last window.
    holds: bool,
}

impl Pressure {
    /// Evaluates how long tasks have waited until `now`: [`Strain::Yield`] once at most for each window.
    pub(super) fn evaluate(&mut self, waited: Waited, now: Instant) -> Strain {
        let (at, before) = *self.begun.get_or_insert((now, waited));
        // Another file's total, of a group that came or went, may be less.
        let some = waited.some.saturating_sub(before.some);
        let full = waited.full.saturating_sub(before.full);
        let window = now.saturating_duration_since(at);
        let holds = some >= window.max(WINDOW_MIN) / HOLD_PARTS;
        if window < WINDOW_MIN {
            return if holds || self.holds { Strain::Hold } else { Strain::None };
        }
        *self = Pressure { begun: Some((now, waited)), holds };
        if full >= window / YIELD_PARTS {
            Strain::Yield
        } else if holds {
            Strain::Hold
        } else {
            Strain::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_are_parsed() {
        let line =
            |kind, total| format!("{kind} avg10=0.31 avg60=0.00 avg300=0.00 total={total}\n");
        let of = |some, full| {
            let (some, full) = (Duration::from_micros(some), Duration::from_micros(full));
            Some(Waited { some, full })
        };
        assert_eq!(Waited::parse(&(line("some", "70") + &line("full", "9"))), of(70, 9));
        assert_eq!(Waited::parse(&line("some", "70")), None);
        assert_eq!(Waited::parse(&(line("some", "much") + &line("full", "9"))), None);
    }

    /// Evaluates every 100 ms while tasks wait for `waits` milliseconds of each; returns the results.
    fn evaluate(
        pressure: &mut Pressure,
        now: &mut (Instant, Waited),
        waits: &[u64],
    ) -> Vec<Strain> {
        let step = |wait: &u64| {
            let wait = Duration::from_millis(*wait);
            now.0 += Duration::from_millis(100);
            now.1 = Waited { some: now.1.some + wait, full: now.1.full + wait };
            pressure.evaluate(now.1, now.0)
        };
        waits.iter().map(step).collect()
    }

    #[test]
    fn a_stall_yields_once_and_then_holds_for_a_window() {
        let long_ago = Duration::from_secs(1000);
        let mut now = (Instant::now(), Waited { some: long_ago, full: long_ago });
        let mut pressure = Pressure::default();
        let mut of = |waits: &[u64]| evaluate(&mut pressure, &mut now, waits);
        assert_eq!(of(&[0]), [Strain::None], "what was before does not count");
        assert_eq!(of(&[0; 10]), [Strain::None; 10]);
        let stall = of(&[0, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(stall[..2], [Strain::None; 2]);
        assert_eq!(stall[2..9], [Strain::Hold; 7]);
        assert_eq!(stall[9], Strain::Yield);
        let after = of(&[0; 10]);
        assert_eq!(after[..9], [Strain::Hold; 9]);
        assert_eq!(after[9], Strain::None, "a window without waits");
    }

    #[test]
    fn small_waits_hold_and_the_share_counts_in_a_long_window() {
        let (start, mut pressure) = (Instant::now(), Pressure::default());
        let mut of = |s, some, full| {
            let waited =
                Waited { some: Duration::from_millis(some), full: Duration::from_millis(full) };
            pressure.evaluate(waited, start + Duration::from_secs(s))
        };
        assert_eq!(of(0, 0, 0), Strain::None);
        assert_eq!(of(1, 49, 49), Strain::None);
        assert_eq!(of(2, 99, 49), Strain::Hold, "5 % of a second");
        assert_eq!(of(12, 1098, 1048), Strain::Hold, "less than 10 % of ten seconds");
        assert_eq!(of(22, 2098, 2048), Strain::Yield);
        assert_eq!(of(32, 0, 0), Strain::None, "another group's total");
    }
}
