//! A thread that does rounds of work, and rests when there is none.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::cores::Pinning;
use super::idle::{Idle, Idling, Rest};
use super::wait::{caught, shielded};
use crate::Time;
use crate::error::{Error, Result};

/// What a poller thread does. It lives on that thread, which drops it at the end.
pub trait Worker {
    /// The thread's result.
    type End;

    /// Does once all that can be done without waiting.
    fn round(&mut self) -> Round;

    /// Continues to end; called after each round once the thread must stop. Returns the result when it is over, after
    /// a limited time.
    fn end(&mut self) -> Option<Self::End>;

    /// Returns the eventfds that end the thread's sleep, besides its alarm.
    fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Called before each sleep: has interrupts raised for what comes in from now on. Returns whether something came in
    /// before; then the thread does another round instead.
    fn before_sleep(&mut self) -> bool {
        false
    }

    /// Called once after each [`Worker::before_sleep`], before the next round. `is_interrupted` says whether an interrupt
    /// was raised.
    fn after_sleep(&mut self, _is_interrupted: bool) {}

    /// Called once if the worker has panicked with message `why`, before it is dropped: tells those who wait for more
    /// than an answer.
    fn died(&mut self, _why: &str) {}
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// How much moved: 0 is an idle round.
    pub moved: usize,
    /// Time until the next round is due if nothing ends the sleep before.
    pub due_in: Duration,
    /// Whether something is expected that ends no sleep: the thread naps.
    pub naps: bool,
}

/// A place for a poller thread.
#[derive(Debug)]
pub struct Seat {
    /// The thread's name, for the system and the log.
    pub name: String,
    /// The cores it may run on. A core that it is pinned to counts as taken until it ends.
    pub place: Pinning,
    /// How it rests.
    pub idle: Idle,
}

/// A running poller thread, which ends with `E`. Dropping this neither stops it nor waits for it.
#[derive(Debug)]
pub struct Poller<E> {
    alarm: Arc<Alarm>,
    thread: JoinHandle<Option<E>>,
}

impl<E: Send + 'static> Poller<E> {
    /// Starts a thread that sleeps by `alarm`. It makes its worker there, and ends without a result if there is none.
    ///
    /// # Errors
    /// [`Error::Refused`] if the system grants no thread.
    pub fn spawn<W: Worker<End = E>>(
        seat: Seat,
        alarm: Arc<Alarm>,
        make: impl FnOnce() -> Option<W> + Send + 'static,
    ) -> Result<Poller<E>> {
        let Seat { name, place, idle } = seat;
        let builder = std::thread::Builder::new().name(name);
        let rounds =
            Rounds { alarm: Arc::clone(&alarm), idling: Idling::new(idle), origin: Instant::now() };
        let body = move || {
            place.enter();
            let end = rounds.live(make);
            drop(place);
            end
        };
        let thread = builder.spawn(body).map_err(|why| {
            let fix = "raise the limit on processes (ulimit -u), or use fewer cores";
            Error::refused("a poller thread", "start", why, fix)
        })?;
        Ok(Poller { alarm, thread })
    }

    /// Returns the thread's alarm.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Tells the thread to end.
    pub fn stop(&self) {
        self.alarm.stop();
    }

    /// Returns whether the calling thread is this one, which cannot join itself.
    pub fn is_own(&self) -> bool {
        self.thread.thread().id() == std::thread::current().id()
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the thread until `deadline`; returns whether it has ended.
    pub fn ends_by(&self, deadline: Instant) -> bool {
        while !self.is_over() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }

    /// Waits for the end of the thread; returns `None` if it had no worker, or panicked, which the log says.
    pub fn join(self) -> Option<E> {
        self.thread.join().ok().flatten()
    }
}

/// The loop of a thread.
struct Rounds {
    alarm: Arc<Alarm>,
    idling: Idling,
    /// Of the clock for resting; workers use those of their devices.
    origin: Instant,
}

impl Rounds {
    fn live<W: Worker>(mut self, make: impl FnOnce() -> Option<W>) -> Option<W::End> {
        let mut worker = shielded("it started", make).flatten()?;
        let ended =
            caught("it ran, which is a bug; its requests end unfinished", || self.run(&mut worker));
        if let Err(why) = &ended {
            let _ = shielded("it told of its end", || worker.died(why));
        }
        // Apart from the rounds: a drop that panics while another panic unwinds ends the process.
        let dropped = shielded("it ended", || drop(worker));
        ended.ok().filter(|_| dropped.is_some())
    }

    fn run<W: Worker>(&mut self, worker: &mut W) -> W::End {
        loop {
            let round = worker.round();
            // Checked even while work keeps coming: stopping must end it.
            let is_ending = self.alarm.is_stopping();
            if is_ending && let Some(end) = worker.end() {
                return end;
            }
            if round.moved > 0 {
                self.idling.busy();
                continue;
            }
            match self.idling.rest(Time::ZERO + self.origin.elapsed()) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Pause => std::thread::yield_now(),
                Rest::Sleep(nap) => {
                    // The end of an ending wakes no thread either.
                    let at_most = if round.naps || is_ending { nap } else { Duration::MAX };
                    let at_most = at_most.min(round.due_in);
                    let sleeps = !worker.before_sleep();
                    let is_interrupted = sleeps && self.alarm.sleep(at_most, &worker.interrupts());
                    worker.after_sleep(is_interrupted);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    /// Counts its rounds, and reads orders from a channel.
    struct Echo {
        orders: Receiver<u32>,
        seen: Vec<u32>,
        endings: usize,
        dropped: Arc<AtomicUsize>,
        died: Option<String>,
    }

    impl Worker for Echo {
        type End = Vec<u32>;

        fn round(&mut self) -> Round {
            let orders: Vec<u32> = self.orders.try_iter().collect();
            assert!(!orders.contains(&13), "as arranged");
            self.seen.extend(&orders);
            Round { moved: orders.len(), due_in: Duration::MAX, naps: false }
        }

        fn end(&mut self) -> Option<Vec<u32>> {
            self.endings += 1;
            (self.endings == 3).then(|| std::mem::take(&mut self.seen))
        }

        fn died(&mut self, why: &str) {
            self.died = Some(why.to_owned());
        }
    }

    impl Drop for Echo {
        fn drop(&mut self) {
            let has_13 = self.died.take().map(|why| why == "as arranged");
            assert_ne!(has_13, Some(false), "it is told why");
            assert_eq!(
                has_13.is_some(),
                self.endings == 0,
                "it is told of a panic, and of that only"
            );
            self.dropped.fetch_add(1, Ordering::Release);
        }
    }

    fn seat() -> Seat {
        let zero = Duration::ZERO;
        let idle = Idle { spin: zero, pause: zero, sleep_max: Duration::from_micros(50) };
        Seat { name: "a-poller".to_owned(), place: Pinning::default(), idle }
    }

    fn echo(orders: &[u32]) -> (Option<Vec<u32>>, usize) {
        let (sender, receiver) = channel();
        let (alarm, dropped) = (Alarm::new().expect("alarm"), Arc::default());
        let theirs = Arc::clone(&dropped);
        let make = move || {
            Some(Echo { orders: receiver, seen: vec![], endings: 0, dropped: theirs, died: None })
        };
        let poller = Poller::spawn(seat(), Arc::clone(&alarm), make).expect("a thread");
        assert!(!poller.is_own());
        for order in orders {
            // The receiver is gone after a panic.
            let _ = sender.send(*order);
            alarm.tell();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while orders.contains(&13) && !poller.is_over() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        poller.stop();
        (poller.join(), dropped.load(Ordering::Acquire))
    }

    #[test]
    fn a_thread_does_its_rounds_until_its_worker_has_ended() {
        assert_eq!(echo(&[1, 2, 3]), (Some(vec![1, 2, 3]), 1));
    }

    /// Has news before its first sleep, and an interrupt before its second.
    struct Fed {
        interrupt: EventFd,
        sleeps: usize,
        told: Vec<bool>,
    }

    impl Worker for Fed {
        type End = (usize, Vec<bool>);

        fn round(&mut self) -> Round {
            assert_eq!(self.told.len(), self.sleeps, "each sleep is announced, and its end too");
            Round { moved: 0, due_in: Duration::MAX, naps: false }
        }

        fn end(&mut self) -> Option<Self::End> {
            (self.told.len() >= 2).then(|| (self.sleeps, std::mem::take(&mut self.told)))
        }

        fn interrupts(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.interrupt.as_fd()]
        }

        fn before_sleep(&mut self) -> bool {
            self.sleeps += 1;
            if self.sleeps == 2 {
                self.interrupt.write(1).expect("raised");
            }
            self.sleeps == 1
        }

        fn after_sleep(&mut self, is_interrupted: bool) {
            self.told.push(is_interrupted);
        }
    }

    #[test]
    fn a_worker_is_told_before_and_after_each_sleep_and_what_ended_it() {
        let alarm = Alarm::new().expect("alarm");
        let interrupt = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("eventfd");
        let make = move || Some(Fed { interrupt, sleeps: 0, told: vec![] });
        let poller = Poller::spawn(seat(), Arc::clone(&alarm), make).expect("a thread");
        let deadline = Instant::now() + Duration::from_secs(60);
        while alarm.counts().0 < 2 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        poller.stop();
        let (sleeps, told) = poller.join().expect("it ended");
        assert_eq!((sleeps, &told[..2]), (told.len(), &[false, true][..]));
    }

    #[test]
    fn a_panic_ends_the_thread_without_a_result_and_drops_the_worker() {
        assert_eq!(echo(&[1, 13, 3]), (None, 1));
    }

    #[test]
    fn a_thread_without_a_worker_ends_without_a_result() {
        let alarm = Alarm::new().expect("alarm");
        let poller = Poller::spawn(seat(), alarm, || None::<Echo>).expect("a thread");
        assert_eq!(poller.join(), None);
    }
}
