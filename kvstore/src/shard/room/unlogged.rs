//! Log lines about evictions that the operator can avoid: once a minute at most.

use std::time::Duration;

use adit_driver::Time;

/// Evictions for another reason than space are logged this often at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Evictions for one reason that were not logged yet.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    objects: u64,
    /// When they may be logged.
    from: Time,
}

impl Unlogged {
    /// Counts an eviction, and logs those so far once a minute. With `warns`, the first is a warning.
    pub(super) fn note(&mut self, now: Time, warns: bool, why: impl FnOnce() -> String) {
        self.objects += 1;
        if now < self.from {
            return;
        }
        let (objects, why) = (self.objects, why());
        if warns && self.from == Time::ZERO {
            tracing::warn!("an object was evicted although there was space: {why}");
        } else {
            tracing::info!("{objects} objects were evicted although there was space: {why}");
        }
        *self = Unlogged { objects: 0, from: now + LOG_INTERVAL };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_despite_space_are_logged_at_once_and_then_counted_for_a_minute() {
        let mut unlogged = Unlogged::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let after = |unlogged: &mut Unlogged, seconds| {
            unlogged.note(at(seconds), false, || "a test".to_owned());
            (unlogged.objects, unlogged.from)
        };
        assert_eq!(after(&mut unlogged, 5), (0, at(65)));
        assert_eq!(after(&mut unlogged, 5), (1, at(65)));
        assert_eq!(after(&mut unlogged, 64), (2, at(65)));
        assert_eq!(after(&mut unlogged, 65), (0, at(125)));
    }
}
