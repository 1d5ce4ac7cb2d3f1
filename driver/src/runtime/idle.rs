//! A poller's behaviour when idle: spin, then pause, then sleep.
//!
//! Spinning finds new work soonest and costs a core; sleeping costs nothing until the wake-up. A poller that
//! spins for as long as a wake-up takes at most doubles the cost of the best choice; the defaults follow that
//! rule.

use std::time::Duration;

use crate::Time;

/// When an idle poller goes from spinning to pausing to sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Time to poll without a break after the last activity. Default 50 us.
    pub spin: Duration,
    /// Time after that to alternate polling with yielding the CPU. Default 50 us.
    pub pause: Duration,
    /// After that it sleeps until a request or an interrupt comes. With commands in flight on a controller
    /// without interrupts it naps instead, for an eighth of its idle time so far and at most this long.
    /// Default 2 ms.
    pub sleep_max: Duration,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            spin: Duration::from_micros(50),
            pause: Duration::from_micros(50),
            sleep_max: Duration::from_millis(2),
        }
    }
}

/// The action before the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Poll again at once.
    Spin,
    /// Yield the CPU.
    Pause,
    /// Sleep; if nothing would wake the thread, at most this long.
    Sleep(Duration),
}

/// The shortest nap: below it, the system call dominates.
const NAP_MIN: Duration = Duration::from_micros(10);

/// Tracks how long a poller has been idle.
#[derive(Debug)]
pub struct Idling {
    options: Idle,
    since: Option<Time>,
}

impl Idling {
    /// Starts as busy.
    pub fn new(options: Idle) -> Idling {
        Idling { options, since: None }
    }

    /// Records activity.
    #[inline]
    pub fn busy(&mut self) {
        self.since = None;
    }

    /// Records an idle round that ends `now`; returns the action before the next.
    pub fn rest(&mut self, now: Time) -> Rest {
        let idle = now.since(*self.since.get_or_insert(now));
        let Idle { spin, pause, sleep_max } = self.options;
        if idle < spin {
            Rest::Spin
        } else if idle < spin + pause {
            Rest::Pause
        } else {
            Rest::Sleep((idle / 8).max(NAP_MIN).min(sleep_max))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idling_goes_from_spinning_to_pausing_to_longer_and_longer_naps() {
        let us = Duration::from_micros;
        let options = Idle { spin: us(20), pause: us(30), sleep_max: us(1000) };
        let mut idling = Idling::new(options);
        let start = Time::from_ns(7);
        let mut at = |after| idling.rest(start + us(after));
        assert_eq!(
            (at(0), at(19), at(20), at(49)),
            (Rest::Spin, Rest::Spin, Rest::Pause, Rest::Pause)
        );
        let naps = [at(50), at(160), at(4000), at(100_000)];
        assert_eq!(naps, [10, 20, 500, 1000].map(|nap| Rest::Sleep(us(nap))));
        idling.busy();
        assert_eq!(idling.rest(start + us(100_000)), Rest::Spin);
    }

    #[test]
    fn no_spinning_is_a_choice() {
        let zero = Duration::ZERO;
        let mut idling = Idling::new(Idle { spin: zero, pause: zero, sleep_max: zero });
        assert_eq!(idling.rest(Time::ZERO), Rest::Sleep(zero));
    }
}
