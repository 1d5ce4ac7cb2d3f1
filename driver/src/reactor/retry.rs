//! When a request that failed is tried again.
//!
//! A status with DNR set, or of a kind that fails the same way again, ends the
//! request at once. Otherwise the controller may say how long to wait (CRD and CRDT, NVMe Base 2.0
//! sections 3.3.3.2.1 and 5.17.2.1); where it does not, the first retry comes at
//! once and the next ones after a delay that doubles. What was caught in a reset is sent again
//! once the controller is in service.

use std::time::Duration;

use crate::controller::Controller;
use crate::queue_pair::{Bounds, CommandError};

use super::mailbox::Action;

/// The second retry's delay, which doubles from there.
const BACKOFF: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// How often a request is tried again, and whether it may be written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries after the first; 0 hands every error to the caller. Default 4.
    pub times: u8,
    /// Whether a request that may have written without completing (`may_have_written` of
    /// [`CommandError`]) is sent again. What a [`crate::Namespace`] makes leaves the same data
    /// behind when it is carried out twice, so the default is true; set it to false where another
    /// writer may come between the two. [`crate::Command::raw`] is not sent again then,
    /// whatever this says.
    pub repeat: bool,
}

impl Retry {
    /// Every error goes to the caller.
    pub const NEVER: Retry = Retry { times: 0, repeat: false };
}

impl Default for Retry {
    fn default() -> Self {
        Retry { times: 4, repeat: true }
    }
}

impl Retry {
    /// How long to wait before a request that ended with `error` is sent again after `failures`
    /// failures, this one included; `None` gives the error to the caller.
    pub(super) fn delay(
        self,
        error: &CommandError,
        action: &Action,
        failures: u8,
        controller: &Controller,
    ) -> Option<Duration> {
        if failures > self.times || !self.may_repeat(error, action) {
            return None;
        }
        Some(controller.retry_delay(error)?.max(backoff(failures)))
    }

    fn may_repeat(self, error: &CommandError, action: &Action) -> bool {
        // What a raw command does, the driver does not know.
        let is_known =
            !matches!(action, Action::Raw { bounds: None | Some(Bounds { domain: None, .. }), .. });
        let may_have_written = match error {
            CommandError::TimedOut { may_have_written }
            | CommandError::Reset { may_have_written } => *may_have_written,
            // The controller says that it failed, and so that nobody saw it succeed.
            CommandError::Status(_) => false,
            CommandError::System(_) | CommandError::Short { .. } => true,
        };
        !may_have_written || (self.repeat && is_known)
    }
}

/// Nothing before the first retry; then more and more.
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
