//! Resource usage of this process: CPU time and memory.
//!
//! CPU time is that of all its threads, including ended ones and io_uring's workers, as accounted by the kernel.
//! Unattributed kernel work (interrupts, writing back the page cache) is not included.

use std::time::Duration;

use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Processor {
    /// # Errors
    /// Any error of the system.
    pub(crate) fn now() -> Result<Processor> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok(Processor { user: duration(usage.user_time()), system: duration(usage.system_time()) })
    }

    /// Returns the seconds of user and system time since `earlier`.
    pub(crate) fn seconds_since(self, earlier: Processor) -> (f64, f64) {
        let since = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64();
        (since(self.user, earlier.user), since(self.system, earlier.system))
    }
}

fn duration(time: TimeVal) -> Duration {
    Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
}

/// Returns the peak resident memory in bytes, without huge pages of hugetlbfs.
///
/// # Errors
/// Any error of the system.
pub(crate) fn resident_bytes_max() -> Result<u64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss() as u64 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_as_processor_time() {
        let before = Processor::now().expect("usage");
        let mut random = crate::chooser::Random::new(1);
        let mut seconds = (0.0, 0.0);
        while seconds.0 + seconds.1 < 0.02 {
            std::hint::black_box((0..10_000).map(|_| random.next()).fold(0, |a, b| a ^ b));
            seconds = Processor::now().expect("usage").seconds_since(before);
        }
        assert!(resident_bytes_max().expect("usage") > 1 << 20);
    }
}
