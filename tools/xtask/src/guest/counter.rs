//! Determines the frequency of the time stamp counter, which an emulated guest reads directly.
//!
//! Otherwise the guest measures it at boot against emulated timers, which a busy host delays: it has found a
//! tenth of the real frequency, which made its seconds that much shorter. With the value given, the guest boots
//! sooner and its deadlines match real time.

use std::sync::LazyLock;

/// Number of ticks to convert to nanoseconds, enough for all digits.
const TICKS: u64 = 1_000_000_000_000;

/// The result without an invariant counter, where nanoseconds are counted.
const NO_COUNTER_KHZ: u64 = 1_000_000;

static KHZ: LazyLock<Option<u64>> = LazyLock::new(|| {
    let ns = quanta::Clock::new().delta_as_nanos(0, TICKS);
    khz(ns)
});

/// Returns the kernel's parameter after a space; empty if the guest must measure itself.
pub(super) fn kernel_word() -> String {
    KHZ.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"))
}

/// Returns the frequency at which [`TICKS`] take `ticks_take_ns`.
fn khz(ticks_take_ns: u64) -> Option<u64> {
    let khz = (TICKS * NO_COUNTER_KHZ).checked_div(ticks_take_ns)?;
    (khz != NO_COUNTER_KHZ).then_some(khz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequency_is_told_and_nanoseconds_are_not_taken_for_one() {
        assert_eq!(khz(385_188_426_000), Some(2_596_132));
        assert_eq!(khz(TICKS), None);
        assert_eq!(khz(0), None);
    }

    #[test]
    fn what_the_kernel_is_told_is_a_number_of_its_range() {
        let word = kernel_word();
        let told = word.strip_prefix(" tsc_early_khz=").map(|khz| khz.parse::<u32>());
        assert!(word.is_empty() || told.is_some_and(|khz| khz.is_ok()));
    }
}
