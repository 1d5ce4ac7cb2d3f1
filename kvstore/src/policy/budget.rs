//! The write budget: the bytes per day that may be written to a device, so that it reaches its required lifetime.
//!
//! Invariants: in any span of time, at most its share of the daily bytes is allowed, plus an hour's worth carried
//! over and one write. A write larger than an hour's worth is allowed once an hour's worth has accumulated, and its
//! excess is owed afterwards.

use std::time::Duration;

use adit_driver::Time;
use adit_driver::spec::log::SmartHealth;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DAY_NS: i128 = DAY.as_nanos() as i128;
/// Hours per day: one hour's worth can be carried over.
const HOURS: u64 = 24;
/// Full drive writes assumed until the log is informative: 0.3 per day for five years, which is low for a
/// read-intensive drive.
const DRIVE_WRITES_ASSUMED: u128 = 547;
/// Below this percentage used, the log's estimate is too coarse to use alone.
const TELLING_PERCENT: u8 = 2;

/// A budget of bytes to write.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    bytes_per_day: u64,
    /// Available bytes, times the nanoseconds of a day: exact at any rate. Negative after a large write.
    level: i128,
    filled: Time,
}

impl Budget {
    /// Creates a budget of `bytes_per_day`, with an hour's worth available at once.
    pub(crate) fn new(now: Time, bytes_per_day: u64) -> Budget {
        let level = i128::from(bytes_per_day / HOURS) * DAY_NS;
        Budget { bytes_per_day, level, filled: now }
    }

    /// Creates the budget with which the drive's remaining endurance lasts for `lifetime` from now; 0 bytes if it is
    /// already worn out.
    ///
    /// The log reports the percentage of the endurance used, and the bytes written for it. While the percentage is
    /// too small to be informative, the drive is assumed to endure at least 547 times its capacity.
    pub(crate) fn from_endurance(
        now: Time,
        log: &SmartHealth,
        capacity_bytes: u64,
        lifetime: Duration,
    ) -> Budget {
        let left = left_bytes(log, capacity_bytes);
        let per_day = left.saturating_mul(DAY.as_nanos()) / lifetime.as_nanos().max(1);
        Budget::new(now, u64::try_from(per_day).unwrap_or(u64::MAX))
    }

    /// Returns the bytes that may be written per day.
    pub(crate) fn bytes_per_day(&self) -> u64 {
        self.bytes_per_day
    }

    /// Returns whether `bytes` may be written now, and counts them as written if so.
    pub(crate) fn allow(&mut self, now: Time, bytes: u64) -> bool {
        self.fill(now);
        let hour_bytes = self.bytes_per_day / HOURS;
        let needed = i128::from(bytes.min(hour_bytes.max(1))) * DAY_NS;
        let allowed = bytes == 0 || self.level >= needed;
        if allowed {
            self.level -= i128::from(bytes) * DAY_NS;
        }
        allowed
    }

    /// Adds what has accumulated since the last call.
    fn fill(&mut self, now: Time) {
        let elapsed_ns = now.since(self.filled).as_nanos() as i128;
        let full = i128::from((self.bytes_per_day / HOURS).max(1)) * DAY_NS;
        self.level = (self.level + elapsed_ns * i128::from(self.bytes_per_day)).min(full);
        self.filled = self.filled.max(now);
    }
}

/// Returns the bytes that can still be written to the drive. The percentage used is a whole number, so one more is
/// assumed.
fn left_bytes(log: &SmartHealth, capacity_bytes: u64) -> u128 {
    let written = log.data_written_bytes();
    let percent = log.percentage_used;
    if percent >= 100 {
        return 0;
    }
    let by_log = written.saturating_mul(100) / (u128::from(percent) + 1);
    let assumed = u128::from(capacity_bytes) * DRIVE_WRITES_ASSUMED;
    let endurance = if percent < TELLING_PERCENT { by_log.max(assumed) } else { by_log };
    endurance.saturating_sub(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    const HOUR: Duration = Duration::from_secs(3600);
    const TB: u64 = 1_000_000_000_000;

    fn log(percent: u8, written_bytes: u128) -> SmartHealth {
        let mut log = SmartHealth::new_zeroed();
        log.percentage_used = percent;
        log.data_units_written = (written_bytes / 512_000).into();
        log
    }

    fn per_day(percent: u8, written_bytes: u128, days: u32) -> u64 {
        let log = log(percent, written_bytes);
        Budget::from_endurance(Time::ZERO, &log, TB, DAY * days).bytes_per_day()
    }

    #[test]
    fn an_hours_worth_is_carried_over_and_no_more() {
        let mut budget = Budget::new(Time::ZERO, 2400);
        let later = Time::ZERO + 10 * HOUR;
        assert!(budget.allow(later, 100) && !budget.allow(later, 1));
        assert!(!budget.allow(later + HOUR / 2, 51) && budget.allow(later + HOUR / 2, 50));
        assert!(!budget.allow(later, 1), "time that goes back adds nothing");
    }

    #[test]
    fn a_large_write_is_allowed_and_paid_for() {
        let mut budget = Budget::new(Time::ZERO, 2400);
        assert!(budget.allow(Time::ZERO, 300));
        assert!(!budget.allow(Time::ZERO + 2 * HOUR, 1));
        assert!(budget.allow(Time::ZERO + 3 * HOUR, 100));
        assert!(!budget.allow(Time::ZERO + 3 * HOUR, 1));
        assert!(budget.allow(Time::ZERO + 4 * HOUR, 100));
    }

    #[test]
    fn a_budget_of_nothing_allows_nothing() {
        let mut budget = Budget::new(Time::ZERO, 0);
        assert!(!budget.allow(Time::ZERO + DAY * 9, 1) && budget.allow(Time::ZERO, 0));
    }

    #[test]
    fn a_drives_log_gives_the_rest_of_its_endurance() {
        let tb = u128::from(TB);
        assert_eq!(per_day(49, 500 * tb, 365), 500 * TB / 365, "half is left");
        assert_eq!(per_day(100, 500 * tb, 365), 0);
        assert_eq!(per_day(255, 500 * tb, 365), 0);
        assert_eq!(per_day(0, 0, 547), TB, "a new drive's log does not tell");
        assert_eq!(per_day(0, 47 * tb, 500), 4653 * TB / 500, "more than was assumed");
        assert_eq!(per_day(50, u128::MAX, 1), 0, "nonsense is not believed");
        assert!(
            Budget::from_endurance(Time::ZERO, &log(9, tb), TB, Duration::ZERO).bytes_per_day()
                > TB
        );
    }

    proptest! {
        #[test]
        fn no_span_of_time_has_more_than_its_share_an_hour_and_one_write(
            bytes_per_day in 0..1_000_000u64,
            steps in prop::collection::vec((0..4_000_000_000_000u64, 0..100_000u64), 1..60),
        ) {
            let mut budget = Budget::new(Time::ZERO, bytes_per_day);
            let (mut now_ns, mut written, mut largest) = (0, 0, 0);
            for (pause_ns, bytes) in steps {
                now_ns += pause_ns;
                if budget.allow(Time::from_ns(now_ns), bytes) {
                    written += bytes;
                    largest = largest.max(bytes);
                }
                let share = u128::from(bytes_per_day) * u128::from(now_ns) / DAY_NS as u128;
                let most = share + u128::from(bytes_per_day / HOURS) + u128::from(largest);
                prop_assert!(u128::from(written) <= most + 1);
            }
        }
    }
}
