//! Idling of the server's thread.
//!
//! Mapped doorbells and shadow doorbells wake no thread; the server polls them. When idle, the thread spins for a
//! moment, then yields the core between polls, then sleeps between them, longer after a while. A message wakes it at
//! once.

use std::time::Duration;

use crate::Time;

/// When the thread gives up its core. Durations count from the last command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Spins for this long.
    pub spin: Duration,
    /// Then yields between polls until this time.
    pub yield_until: Duration,
    /// Then sleeps this long between polls, until [`Pace::nap_until`].
    pub nap: Duration,
    /// When [`Pace::sleep`] replaces [`Pace::nap`].
    pub nap_until: Duration,
    /// The longest sleep between polls: the most that the first command after a long idle time waits, apart from the
    /// wake-up.
    pub sleep: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            spin: Duration::from_micros(100),
            yield_until: Duration::from_millis(2),
            nap: Duration::from_micros(50),
            nap_until: Duration::from_millis(20),
            sleep: Duration::from_millis(1),
        }
    }
}

/// How to pass the time until the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Spin,
    Yield,
    Sleep(Duration),
}

impl Pace {
    /// Chooses by how long the server has been idle.
    pub(super) fn rest(&self, idle: Duration) -> Rest {
        if idle < self.spin {
            Rest::Spin
        } else if idle < self.yield_until {
            Rest::Yield
        } else if idle < self.nap_until {
            Rest::Sleep(self.nap.min(self.sleep))
        } else {
            Rest::Sleep(self.sleep)
        }
    }
}

/// When to poll the socket, which costs a system call and so does not happen after every command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    next: Time,
    last: Time,
    /// The last sleep reported no news.
    is_quiet: bool,
    /// Polls left to do without a pause, since messages seldom come alone.
    eager: u32,
}

const LOOK_EVERY: Duration = Duration::from_micros(20);
/// Interval of polls without news: some connections wait for a deadline.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(100);
const EAGER_LOOKS: u32 = 64;

impl Looks {
    /// Returns whether a poll is due.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        if self.is_quiet {
            return now >= self.last + LOOK_AT_LEAST_EVERY;
        }
        self.eager > 0 || now >= self.next
    }

    /// Records a poll at `now` and whether it found messages.
    pub(super) fn looked(&mut self, now: Time, found: bool) {
        self.eager = if found { EAGER_LOOKS } else { self.eager.saturating_sub(1) };
        (self.last, self.next) = (now, now + LOOK_EVERY);
    }

    /// Records a sleep on the sockets and whether news ended it.
    pub(super) fn slept(&mut self, until_news: bool) {
        self.is_quiet = !until_news;
        self.next = Time::ZERO;
    }

    /// Marks the result of the last sleep as outdated.
    #[inline]
    pub(super) fn stir(&mut self) {
        self.is_quiet = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_nothing_happens_the_longer_it_rests() {
        let pace = Pace::default();
        assert_eq!(pace.rest(Duration::ZERO), Rest::Spin);
        assert_eq!(pace.rest(pace.spin), Rest::Yield);
        assert_eq!(pace.rest(pace.yield_until), Rest::Sleep(pace.nap));
        assert_eq!(pace.rest(Duration::from_secs(3600)), Rest::Sleep(pace.sleep));
        let quick = Pace { sleep: Duration::from_micros(10), ..pace };
        assert_eq!(quick.rest(pace.yield_until), Rest::Sleep(quick.sleep));
    }

    #[test]
    fn messages_bring_looks() {
        let mut looks = Looks::default();
        assert!(looks.is_due(Time::ZERO));
        looks.looked(Time::ZERO, false);
        assert!(!looks.is_due(Time::from_ns(19_999)) && looks.is_due(Time::from_ns(20_000)));
        looks.slept(true);
        assert!(looks.is_due(Time::from_ns(1)));
        looks.slept(false);
        assert!(
            !looks.is_due(Time::from_ns(99_999_999)) && looks.is_due(Time::from_ns(100_000_000))
        );
        looks.stir();
        looks.looked(Time::from_ns(1), true);
        for _ in 0..EAGER_LOOKS {
            assert!(looks.is_due(Time::from_ns(2)));
            looks.looked(Time::from_ns(2), false);
        }
        assert!(!looks.is_due(Time::from_ns(2)));
    }
}
