//! How fast the time stamp counter goes, which an emulated guest reads as it is.
//!
//! A guest that is not told measures it while it boots, against emulated timers that a busy host keeps waiting: it has
//! found a tenth of the truth, and its seconds were that much shorter. Told, it boots sooner and its deadlines are those
//! of the wall's clock.

use std::sync::LazyLock;

/// So many ticks are converted to nanoseconds: enough for every digit.
const TICKS: u64 = 1_000_000_000_000;

/// What comes out where there is no counter that always goes at one speed: nanoseconds themselves are counted then.
const NO_COUNTER_KHZ: u64 = 1_000_000;

static KHZ: LazyLock<Option<u64>> = LazyLock::new(|| {
    let ns = quanta::Clock::new().delta_as_nanos(0, TICKS);
    khz(ns)
});

/// The kernel's word for it, with a space before it; nothing where the guest is to find out for itself.
pub(super) fn kernel_word() -> String {
    KHZ.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"))
}

/// The frequency at which [`TICKS`] take so long.
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
