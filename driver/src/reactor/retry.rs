//! Decides whether and when a failed request is retried.
//!
//! A status with DNR set, or of a kind that fails again, ends the request at once. Otherwise the controller
//! may state a delay (CRD and CRDT, NVMe Base 2.0 sections 3.3.3.2.1 and 5.17.2.1); if it does not, the first
//! retry is immediate and later delays double. Requests caught in a reset are sent again once the controller
//! is in service.

use std::time::Duration;

use crate::controller::Controller;
use crate::queue_pair::CommandError;

/// Delay of the second retry; doubles from there.
const BACKOFF: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// The number of retries, and whether a request may be written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts after the first; 0 returns every error to the caller. Default 4.
    pub times: u8,
    /// Whether to resend a request that may have written without completing (`may_have_written` of
    /// [`CommandError`]). Commands built by a [`crate::Namespace`] leave the same data when carried out
    /// twice, so the default is true; set it to false if another writer may come between the two.
    /// [`crate::Command::raw`] is never resent in this case.
    pub repeat: bool,
}

impl Retry {
    /// Returns every error to the caller.
    pub const NEVER: Retry = Retry { times: 0, repeat: false };
}

impl Default for Retry {
    fn default() -> Self {
        Retry { times: 4, repeat: true }
    }
}

impl Retry {
    /// Returns the delay before resending a request that ended with `error` after `failures` failures, this
    /// one included; `None` returns the error to the caller. `is_known` says that the driver knows what the
    /// command does.
    pub(super) fn delay(
        self,
        error: &CommandError,
        is_known: bool,
        failures: u8,
        controller: &Controller,
    ) -> Option<Duration> {
        if failures > self.times || !self.may_repeat(error, is_known) {
            return None;
        }
        Some(controller.retry_delay(error)?.max(backoff(failures)))
    }

    fn may_repeat(self, error: &CommandError, is_known: bool) -> bool {
        let may_have_written = match error {
            CommandError::TimedOut { may_have_written }
            | CommandError::Reset { may_have_written } => *may_have_written,
            // The controller reports a failure, so the write was not acknowledged.
            CommandError::Status(_) => false,
            CommandError::System(_) | CommandError::Short { .. } => true,
        };
        !may_have_written || (self.repeat && is_known)
    }
}

/// Returns zero before the first retry, then doubles up to the maximum.
fn backoff(failures: u8) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => BACKOFF.saturating_mul(1 << (more - 2).min(16)).min(BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_comes_at_once_and_later_ones_wait_longer_and_longer() {
        let waits: Vec<u128> = (1..=10).map(|n| backoff(n).as_millis()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 100, 100]);
        assert_eq!(backoff(u8::MAX), BACKOFF_MAX);
    }
}
