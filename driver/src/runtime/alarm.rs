//! Puts a thread to sleep, and wakes it when there is work.
//!
//! A sender leaves its work, *then* calls [`Alarm::tell`]; the sleeper clears the call, *then* looks for work.
//! A SeqCst fence separates the two steps on both sides, so at least one sees the other: either the sleeper
//! finds the work, or the sender finds no call that is still uncleared. It then leaves one: an alarm with a call
//! does not sleep, and one that sleeps is woken through its eventfd, which stays readable until it is read.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::task::Wake;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::wait::LONG;
use crate::error::{Error, Result};

/// The thread is awake and was not told since its last sleep.
const AWAKE: u8 = 0;
/// There may be work that the thread has not seen.
const TOLD: u8 = 1;
/// The thread sleeps, or is about to.
const ASLEEP: u8 = 2;

/// One thread's sleep. As a [`std::task::Waker`], it also ends what that thread waits for elsewhere.
#[derive(Debug)]
pub struct Alarm {
    state: AtomicU8,
    /// The thread must end.
    stops: AtomicBool,
    eventfd: EventFd,
    sleeps: AtomicU64,
    wakes: AtomicU64,
}

impl Alarm {
    /// Creates an alarm for one thread.
    ///
    /// # Errors
    /// [`Error::Refused`] if no more files may be open.
    pub fn new() -> Result<Arc<Alarm>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let eventfd = EventFd::from_flags(flags).map_err(|why| {
            let fix = "raise the limit of open files (ulimit -n)";
            Error::refused("a poller thread", "make an eventfd", why, fix)
        })?;
        let (stops, sleeps, wakes) = Default::default();
        Ok(Arc::new(Alarm { state: AtomicU8::new(AWAKE), stops, eventfd, sleeps, wakes }))
    }

    /// Ends the thread's sleep, or prevents its next. Call it after leaving work for the thread.
    #[inline]
    pub fn tell(&self) {
        if !self.was_told() {
            self.ring();
        }
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.tell();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Does the sender's half, after it left work.
    #[inline]
    fn was_told(&self) -> bool {
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == TOLD
    }

    fn ring(&self) {
        // Only the first of several senders makes the system call.
        if self.state.swap(TOLD, Ordering::AcqRel) == ASLEEP {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            // Fails only if the counter is full: then the sleeper has been woken already.
            let _ = self.eventfd.write(1);
        }
    }

    /// Sleeps until [`Alarm::tell`], an interrupt of `interrupts` or the end of `at_most`; does not sleep if there
    /// was a call since the last time. Clears raised interrupts: look for completions, and for all work, afterwards.
    /// Returns whether one of `interrupts` was raised.
    pub fn sleep(&self, at_most: Duration, interrupts: &[BorrowedFd<'_>]) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let mut is_interrupted = false;
        if self.state.compare_exchange(AWAKE, ASLEEP, order.0, order.1).is_ok() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            is_interrupted = self.wait(at_most, interrupts);
            let state = self.state.load(Ordering::Relaxed);
            assert_ne!(state, AWAKE, "an alarm has one sleeper, which wakes here");
        }
        self.take_note();
        is_interrupted
    }

    /// Does the sleeper's half, before it looks for work.
    #[inline]
    fn take_note(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn wait(&self, at_most: Duration, interrupts: &[BorrowedFd<'_>]) -> bool {
        let files = std::iter::once(self.eventfd.as_fd()).chain(interrupts.iter().copied());
        let mut files: Vec<PollFd<'_>> =
            files.map(|file| PollFd::new(file, PollFlags::POLLIN)).collect();
        match ppoll(&mut files, Some(TimeSpec::from_duration(at_most.min(LONG))), None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return false,
            Err(why) => {
                tracing::error!("a thread cannot wait for its eventfds and naps instead: {why}");
                std::thread::sleep(at_most.min(Duration::from_micros(100)));
                return false;
            }
        }
        let is_raised = |file: &&PollFd<'_>| file.any() == Some(true);
        for file in files.iter().filter(is_raised) {
            // Non-blocking, as all eventfds here; the count does not matter.
            let _ = nix::unistd::read(file, &mut [0; 8]);
        }
        files[1..].iter().any(|file| is_raised(&file))
    }

    /// Returns how often the thread slept, and how often a sender woke it.
    pub fn counts(&self) -> (u64, u64) {
        (self.sleeps.load(Ordering::Relaxed), self.wakes.load(Ordering::Relaxed))
    }
}

/// An eventfd that ends the sleep when it is raised, for what signals without a call: a queue's completions. One that was
/// raised while the thread was awake makes its next sleep end at once.
impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.tell();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_that_was_told_does_not_sleep_once() {
        let alarm = Alarm::new().expect("alarm");
        alarm.tell();
        alarm.sleep(LONG, &[]);
        assert_eq!(alarm.counts(), (0, 0), "it did not sleep, and was not woken");
        alarm.sleep(Duration::ZERO, &[]);
        assert_eq!(alarm.counts(), (1, 0), "it was told once");
    }

    #[test]
    fn what_raises_its_eventfd_ends_the_sleep_once() {
        let alarm = Alarm::new().expect("alarm");
        nix::unistd::write(alarm.as_fd(), &1u64.to_ne_bytes()).expect("raised");
        let started = Instant::now();
        assert!(!alarm.sleep(LONG, &[]), "its own eventfd is no interrupt");
        assert!(started.elapsed() < LONG / 2, "it was raised while awake");
        alarm.sleep(Duration::from_millis(1), &[]);
        assert_eq!(alarm.counts(), (2, 0), "no call");
    }

    #[test]
    fn an_interrupt_ends_the_sleep_and_is_cleared() {
        let alarm = Alarm::new().expect("alarm");
        let interrupt = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
        interrupt.write(3).expect("raised");
        assert!(alarm.sleep(LONG, &[interrupt.as_fd()]));
        assert!(!alarm.sleep(Duration::ZERO, &[interrupt.as_fd()]), "it was read");
        assert_eq!(alarm.counts(), (2, 0));
        assert_eq!(interrupt.read(), Err(Errno::EAGAIN), "it was read");
    }

    /// Runs both halves at the same moment, repeatedly: at least one must see the other. Without either
    /// fence, a CPU's store buffer could hide both.
    #[test]
    fn the_sleeper_or_the_sender_tells_the_other() {
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
        let sender_tells = |rounds: usize| -> Vec<bool> {
            let round = |round: usize| {
                meet(2 * round as u64 + 1);
                delay(round % 31);
                work.store(true, Ordering::Relaxed);
                let tells = !alarm.was_told();
                meet(2 * round as u64 + 2);
                tells
            };
            (0..rounds).map(round).collect()
        };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| sender_tells(ROUNDS));
            let mut sleeper_sees = Vec::with_capacity(ROUNDS);
            for round in 0..ROUNDS as u64 {
                alarm.state.store(TOLD, Ordering::Relaxed);
                work.store(false, Ordering::Relaxed);
                meet(2 * round + 1);
                delay(round as usize % 37);
                alarm.take_note();
                sleeper_sees.push(work.load(Ordering::Relaxed));
                meet(2 * round + 2);
            }
            let sender_tells = sender.join().expect("no panic");
            let blind =
                sleeper_sees.iter().zip(&sender_tells).filter(|(a, b)| !**a && !**b).count();
            assert_eq!(blind, 0, "wake-ups lost in {ROUNDS} rounds");
        });
    }

    /// One thread hands over a number at a time and waits until it is seen; the other sleeps, in principle
    /// forever, while there is no new one. A lost wake-up stops both.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 20_000;
        let alarm = Alarm::new().expect("alarm");
        let given = Arc::new(AtomicU64::new(0));
        let seen = Arc::new(AtomicU64::new(0));
        let sleeper = std::thread::spawn({
            let (alarm, given, seen) = (Arc::clone(&alarm), Arc::clone(&given), Arc::clone(&seen));
            move || {
                let mut last = 0;
                while last < ROUNDS {
                    let slept = Instant::now();
                    alarm.sleep(LONG, &[]);
                    assert!(slept.elapsed() < LONG, "slept through number {}", last + 1);
                    last = given.load(Ordering::Acquire);
                    seen.store(last, Ordering::Release);
                }
            }
        });
        for round in 1..=ROUNDS {
            given.store(round, Ordering::Release);
            alarm.tell();
            while seen.load(Ordering::Acquire) < round && !sleeper.is_finished() {
                // Every other round meets the sleeper while it goes to sleep, not after.
                if round % 2 == 0 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        sleeper.join().expect("it saw every number in time");
        assert!(alarm.counts().0 > 0, "it did sleep: {:?}", alarm.counts());
    }
}
