//! How the server's thread spends the time in which nothing happens.
//!
//! Doorbells that a client has mapped, and shadow doorbells, wake nobody: they are seen when they are
//! looked at. So the thread looks without pause for a moment, then lets others have the core
//! between two looks, then sleeps between them, longer after a while. A message wakes it at once.

use std::time::Duration;

use crate::Time;

/// When the thread gives its core away. Each duration is counted from the last command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Looks without pause for this long.
    pub spin: Duration,
    /// Then, up to here, yields between two looks.
    pub yield_until: Duration,
    /// Then, up to [`Pace::nap_until`], sleeps this long between two looks.
    pub nap: Duration,
    /// When [`Pace::sleep`] replaces [`Pace::nap`].
    pub nap_until: Duration,
    /// The longest sleep between two looks: what the first command after a long idle time waits at most,
    /// the wake-up aside.
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

/// What to do until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Spin,
    Yield,
    Sleep(Duration),
}

impl Pace {
    /// What to do when nothing happened for `idle`.
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

/// When the socket is looked at: each time costs a system call, so not between any two commands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    next: Time,
    last: Time,
    /// The system has just said that there is nothing.
    is_quiet: bool,
    /// Looks to come without a pause, since a message seldom comes alone.
    eager: u32,
}

const LOOK_EVERY: Duration = Duration::from_micros(20);
/// How often the sockets are looked at although the system says that nothing is there: some wait for a
/// time, not for news.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(100);
const EAGER_LOOKS: u32 = 64;

impl Looks {
    /// Whether it is time for one.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        if self.is_quiet {
            return now >= self.last + LOOK_AT_LEAST_EVERY;
        }
        self.eager > 0 || now >= self.next
    }

    /// After a look at `now` that found messages or did not.
    pub(super) fn looked(&mut self, now: Time, found: bool) {
        self.eager = if found { EAGER_LOOKS } else { self.eager.saturating_sub(1) };
        (self.last, self.next) = (now, now + LOOK_EVERY);
    }

    /// After a sleep on the sockets, which news ended or did not.
    pub(super) fn slept(&mut self, until_news: bool) {
        self.is_quiet = !until_news;
        self.next = Time::ZERO;
    }

    /// What the system said is old.
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
