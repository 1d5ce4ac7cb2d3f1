//! Puts a poller's thread to sleep, and wakes it when a request comes.
//!
//! Two flags prevent lost wake-ups. The sleeper marks itself asleep, *then* looks for work; a sender leaves
//! its work, *then* checks for a sleeper. A SeqCst fence separates the two steps on both sides, so at least
//! one sees the other: either the sleeper finds the work and does not sleep, or the sender finds the sleeper
//! and writes its eventfd, which stays readable until it is read.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::error::{Error, Result};

/// One thread's sleep flag and eventfd.
#[derive(Debug)]
pub(super) struct Alarm {
    asleep: AtomicBool,
    eventfd: EventFd,
    sleeps: AtomicU64,
    wakes: AtomicU64,
}

impl Alarm {
    /// Creates an alarm for one thread.
    ///
    /// # Errors
    /// [`Error::Refused`] if no more files may be open.
    pub(super) fn new() -> Result<Alarm> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let eventfd = EventFd::from_flags(flags).map_err(|why| {
            let fix = "raise the limit of open files (ulimit -n)";
            Error::refused("the reactor", "cannot make an eventfd", why, fix)
        })?;
        let (asleep, sleeps, wakes) = Default::default();
        Ok(Alarm { asleep, eventfd, sleeps, wakes })
    }

    /// Wakes the thread if it sleeps. Call it after leaving work that [`Alarm::sleep`]'s `has_work` detects.
    #[inline]
    pub(super) fn wake(&self) {
        if self.is_asleep() {
            self.ring();
        }
    }

    /// The sleeper's half, before it looks for work.
    #[inline]
    fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sender's half, after it left work.
    #[inline]
    fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    #[cold]
    fn ring(&self) {
        // Only the first of several senders makes the system call.
        if self.asleep.swap(false, Ordering::Relaxed) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            // Fails only if the counter is full: then the sleeper has been woken already.
            let _ = self.eventfd.write(1);
        }
    }

    /// Sleeps until [`Alarm::wake`] is called, an interrupt of `interrupts` is raised or `at_most` passes;
    /// does not sleep if there is work. Clears raised interrupts: look for completions afterwards.
    pub(super) fn sleep(
        &self,
        at_most: Duration,
        interrupts: &[BorrowedFd<'_>],
        has_work: impl FnOnce() -> bool,
    ) {
        self.fall_asleep();
        if !has_work() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            self.wait(at_most, interrupts);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    fn wait(&self, at_most: Duration, interrupts: &[BorrowedFd<'_>]) {
        let files = std::iter::once(self.eventfd.as_fd()).chain(interrupts.iter().copied());
        let mut files: Vec<PollFd<'_>> =
            files.map(|file| PollFd::new(file, PollFlags::POLLIN)).collect();
        let at_most = at_most.min(Duration::from_secs(3600));
        match ppoll(&mut files, Some(TimeSpec::from_duration(at_most)), None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return,
            Err(why) => {
                tracing::error!("the reactor cannot wait for its eventfds and naps instead: {why}");
                std::thread::sleep(at_most.min(Duration::from_micros(100)));
                return;
            }
        }
        for file in files.iter().filter(|file| file.any() == Some(true)) {
            // Non-blocking, as all eventfds here; the count does not matter.
            let _ = nix::unistd::read(file, &mut [0; 8]);
        }
    }

    /// Returns how often the thread slept, and how often a sender woke it.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sleeps.load(Ordering::Relaxed), self.wakes.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_that_is_there_keeps_it_awake() {
        let alarm = Alarm::new().expect("alarm");
        alarm.sleep(LONG, &[], || true);
        alarm.wake();
        assert_eq!(alarm.counts(), (0, 0), "nobody slept, so nobody was woken");
    }

    #[test]
    fn an_interrupt_ends_the_sleep_and_is_cleared() {
        let alarm = Alarm::new().expect("alarm");
        let interrupt = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
        interrupt.write(3).expect("raised");
        alarm.sleep(LONG, &[interrupt.as_fd()], || false);
        assert_eq!(alarm.counts(), (1, 0));
        assert_eq!(interrupt.read(), Err(Errno::EAGAIN), "it was read");
    }

    /// Runs both halves at the same moment, repeatedly: at least one must see the other. Without either
    /// fence, a CPU's store buffer could hide both.
    #[test]
    fn the_sleeper_or_the_sender_sees_the_other() {
        const ROUNDS: usize = 50_000;
        let alarm = Alarm::new().expect("alarm");
        let (work, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
        // Both threads leave it at the same moment.
        let meet = |meeting: u64| {
            arrived.fetch_add(1, Ordering::AcqRel);
            let mut looks = 0u32;
            while arrived.load(Ordering::Acquire) < 2 * meeting {
                looks += 1;
                if looks.is_multiple_of(1000) {
                    std::thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
            }
        };
        // One thread notices the other's arrival late; try every delay.
        let delay = |round: usize| (0..round).for_each(|_| std::hint::spin_loop());
        let sender_sees = |rounds: usize| -> Vec<bool> {
            let round = |round: usize| {
                meet(2 * round as u64 + 1);
                delay(round % 31);
                work.store(true, Ordering::Relaxed);
                let sees = alarm.is_asleep();
                meet(2 * round as u64 + 2);
                sees
            };
            (0..rounds).map(round).collect()
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| sender_sees(ROUNDS));
            let mut sleeper_sees = Vec::with_capacity(ROUNDS);
            for round in 0..ROUNDS as u64 {
                alarm.asleep.store(false, Ordering::Relaxed);
                work.store(false, Ordering::Relaxed);
                meet(2 * round + 1);
                delay(round as usize % 37);
                alarm.fall_asleep();
                sleeper_sees.push(work.load(Ordering::Relaxed));
                meet(2 * round + 2);
            }
            let sender_sees = sender.join().expect("no panic");
            let blind = sleeper_sees.iter().zip(&sender_sees).filter(|(a, b)| !**a && !**b).count();
            assert_eq!(blind, 0, "wake-ups lost in {ROUNDS} rounds");
        });
    }

    /// One thread hands over a number at a time and waits until it is seen; the other sleeps, in principle
    /// for ever, while there is no new one. A lost wake-up stops both.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 20_000;
        let alarm = Arc::new(Alarm::new().expect("alarm"));
        let given = Arc::new(AtomicU64::new(0));
        let seen = Arc::new(AtomicU64::new(0));
        let sleeper = std::thread::spawn({
            let (alarm, given, seen) = (Arc::clone(&alarm), Arc::clone(&given), Arc::clone(&seen));
            move || {
                let mut last = 0;
                while last < ROUNDS {
                    let is_new = || given.load(Ordering::Acquire) != last;
                    let slept = std::time::Instant::now();
                    alarm.sleep(LONG, &[], is_new);
                    assert!(slept.elapsed() < LONG, "slept through number {}", last + 1);
                    last = given.load(Ordering::Acquire);
                    seen.store(last, Ordering::Release);
                }
            }
        });
        for round in 1..=ROUNDS {
            given.store(round, Ordering::Release);
            alarm.wake();
            while seen.load(Ordering::Acquire) < round && !sleeper.is_finished() {
                // Every other round meets the sleeper while it goes to sleep, not after.
                if round % 2 == 0 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        sleeper.join().expect("it saw every number in time");
        assert!(alarm.counts().0 > 0, "it did sleep: {:?}", alarm.counts());
    }
}
