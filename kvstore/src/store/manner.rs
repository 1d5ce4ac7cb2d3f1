//! In place or by copy: how a transfer between a device and a caller's memory goes.
//!
//! A device that reads and writes the caller's memory in place costs the processor nothing. But memory of small pages makes
//! many segments of a transfer, and the kernel many requests ([`BlockLimits`]), which some devices carry out at a third of
//! their rate; the store's own memory is of huge pages where there are some. The better one depends on the device. So:
//!
//! - [`Chooser::is_open`] says whether a transfer is open to choice at all: if the kernel would make much less of it by way of the
//!   store's memory. All others go in place: those of the driver's own queues, those into huge pages, short ones.
//! - [`Choice`] decides for these, for each device and direction, by what each manner has cost: time in which the device had some
//!   of it, and of the callers' threads for verifying and copying, for each byte. It begins in place, tries the other manner
//!   for a window of [`WINDOW_BYTES`], and again after pauses that double as long as that confirms it. A copy has to save an
//!   eighth.
//!
//! A copy needs memory of the pool. If there is none at once, the transfer goes in place and counts for the manner that was
//! chosen: that is what choosing it gives. Time is an argument of [`Choice`], which draws no random numbers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_driver::memory::IoBuffer;
use adit_driver::paths::{BlockLimits, BlockRequests};
use adit_driver::sys::PageKind;
use adit_driver::{Buffer, Device, Time};

/// Bytes after which a manner has shown what it costs.
const WINDOW_BYTES: u64 = 64 << 20;
/// Windows between two trials of the other manner.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1024;
/// So many times fewer segments are worth a trial, also if they are as many requests.
const FEWER: u64 = 8;

/// The beginning of a transfer that says what all of it is like. The question costs as much as it has pages.
const ASKED_BYTES_MAX: u64 = 4 << 20;

/// How a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// The device uses the caller's memory.
    InPlace,
    /// It uses the store's, and the caller's thread copies.
    Copied,
}

impl Manner {
    fn other(self) -> Manner {
        match self {
            Manner::InPlace => Manner::Copied,
            Manner::Copied => Manner::InPlace,
        }
    }
}

/// Decides for the transfers of one device in one direction.
pub(super) struct Chooser {
    limits: BlockLimits,
    /// Bytes that lie together in the store's memory.
    page_bytes: u64,
    clock: Device,
    choice: Mutex<Choice>,
}

impl Chooser {
    /// Creates those of reads and of writes, if the pages of memory matter to the device, and the store's, of which `pages` is
    /// the kind, are large.
    pub(super) fn pair(device: &Device, pages: PageKind) -> Option<[Arc<Chooser>; 2]> {
        let limits = device.block_limits()?;
        let page_bytes = pages.bytes() as u64;
        let new = || Chooser {
            limits,
            page_bytes,
            clock: device.clone(),
            choice: Mutex::new(Choice::new(device.now())),
        };
        (page_bytes > PageKind::Small.bytes() as u64).then(|| [Arc::new(new()), Arc::new(new())])
    }

    /// Returns whether `bytes` from the beginning of these buffers would be much less for the device by way of the store's
    /// memory.
    pub(super) fn is_open<'a>(
        &self,
        buffers: impl IntoIterator<Item = &'a Buffer>,
        bytes: u64,
    ) -> bool {
        let bytes = bytes.min(ASKED_BYTES_MAX);
        let (mut left, mut in_place) = (bytes, BlockRequests::default());
        for buffer in buffers {
            let (at, pages) = (buffer.pointer(0).addr().get() as u64, buffer.pages().bytes());
            let len = left.min(buffer.len() as u64);
            let made = self.limits.requests(at, len, pages as u64);
            in_place.requests += made.requests;
            in_place.segments += made.segments;
            left -= len;
        }
        let copied = self.limits.requests(0, bytes - left, self.page_bytes);
        in_place.requests > copied.requests || in_place.segments >= FEWER * copied.segments.max(1)
    }

    /// Chooses for a transfer of `bytes` that begins now.
    pub(super) fn begin(self: &Arc<Chooser>, bytes: u64) -> Ticket {
        let manner = self.choice().begin(self.clock.now());
        Ticket { chooser: Arc::clone(self), manner, bytes, is_with_device: true }
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transfer that was open to choice, until it has ended.
pub(super) struct Ticket {
    chooser: Arc<Chooser>,
    pub(super) manner: Manner,
    bytes: u64,
    is_with_device: bool,
}

impl Ticket {
    /// Notes that the device is done with it.
    pub(super) fn done(&mut self) {
        self.end(self.bytes);
    }

    /// Runs `work` on its bytes, which is a part of what it costs.
    pub(super) fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let since = self.chooser.clock.now();
        let result = work();
        let time = self.chooser.clock.now().since(since);
        self.chooser.choice().spent(self.manner, time);
        result
    }

    fn end(&mut self, bytes: u64) {
        if std::mem::take(&mut self.is_with_device) {
            self.chooser.choice().end(self.chooser.clock.now(), self.manner, bytes);
        }
    }
}

impl Drop for Ticket {
    /// Of a transfer that failed or was a miss, no bytes count.
    fn drop(&mut self) {
        self.end(0);
    }
}

/// What the manners have cost, and which is next.
///
/// A window measures one manner. Its time is that in which transfers of its manner were under way and none of the other: a
/// change in mid-stream counts for neither.
#[derive(Debug)]
struct Choice {
    /// The better manner, as far as is known, and its cost: nanoseconds for each MiB, smoothed.
    best: Manner,
    cost: Option<u64>,
    window: Window,
    /// Windows until the next trial, and between the one after and the next.
    until_trial: u32,
    pause: u32,
    in_flight: [u32; 2],
    since: Time,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    manner: Manner,
    bytes: u64,
    time: Duration,
}

impl Window {
    fn of(manner: Manner) -> Window {
        Window { manner, bytes: 0, time: Duration::ZERO }
    }

    /// Returns its nanoseconds for each MiB.
    fn cost(&self) -> u64 {
        let cost = (self.time.as_nanos() << 20) / u128::from(self.bytes.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

impl Choice {
    fn new(now: Time) -> Choice {
        Choice {
            best: Manner::InPlace,
            cost: None,
            window: Window::of(Manner::InPlace),
            until_trial: 1,
            pause: PAUSE_MIN,
            in_flight: [0; 2],
            since: now,
        }
    }

    /// Returns the manner of a transfer that begins now.
    fn begin(&mut self, now: Time) -> Manner {
        self.pass(now);
        // Better between two batches than within one.
        let is_idle = self.in_flight == [0; 2];
        if self.window.bytes >= WINDOW_BYTES * if is_idle { 1 } else { 2 } {
            self.turn();
        }
        self.in_flight[self.window.manner as usize] += 1;
        self.window.manner
    }

    /// Notes that a device is done with `bytes`.
    fn end(&mut self, now: Time, manner: Manner, bytes: u64) {
        self.pass(now);
        let left = &mut self.in_flight[manner as usize];
        assert!(*left > 0, "what ends has begun");
        *left -= 1;
        if manner == self.window.manner && self.in_flight[manner.other() as usize] == 0 {
            self.window.bytes += bytes;
        }
    }

    /// Notes time that callers' threads have spent.
    fn spent(&mut self, manner: Manner, time: Duration) {
        if manner == self.window.manner {
            self.window.time += time;
        }
    }

    fn pass(&mut self, now: Time) {
        let manner = self.window.manner;
        let [mine, others] = [manner, manner.other()].map(|one| self.in_flight[one as usize]);
        // Threads read the clock before they have the lock.
        let passed = now.since(self.since.min(now));
        if mine > 0 && others == 0 {
            self.window.time += passed;
        }
        self.since = self.since.max(now);
    }

    /// Ends a window, and begins the next.
    fn turn(&mut self) {
        let Window { manner, .. } = self.window;
        let cost = self.window.cost();
        let next = if manner == self.best {
            self.cost = Some(self.cost.map_or(cost, |before| before / 4 * 3 + cost / 4));
            self.until_trial -= 1;
            if self.until_trial == 0 { self.best.other() } else { self.best }
        } else {
            self.judge(manner, cost);
            self.until_trial = self.pause;
            self.best
        };
        self.window = Window::of(next);
    }

    /// Compares the cost of a trial with that of the better manner.
    fn judge(&mut self, tried: Manner, cost: u64) {
        let known = self.cost.expect("the better manner was measured before the other was tried");
        let is_better = match tried {
            Manner::Copied => cost < known / 8 * 7,
            Manner::InPlace => cost <= known,
        };
        if is_better {
            tracing::debug!("{tried:?} from now on: {cost} ns for each MiB, before {known}");
            (self.best, self.cost, self.pause) = (tried, Some(cost), PAUSE_MIN);
        } else {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A device with its own speed for each manner, and callers that make `depth` requests of a MiB at a time.
    struct Lab {
        choice: Choice,
        now: Time,
        /// Microseconds for each MiB, in place and copied: of the device, and of the callers.
        device: [u64; 2],
        callers: [u64; 2],
        copied: u64,
    }

    impl Lab {
        fn new(device: [u64; 2], callers: [u64; 2]) -> Lab {
            Lab { choice: Choice::new(Time::ZERO), now: Time::ZERO, device, callers, copied: 0 }
        }

        /// Moves batches, each of which begins when the last has ended.
        fn batches(&mut self, count: u64, depth: u64) {
            for _ in 0..count {
                let manners: Vec<Manner> =
                    (0..depth).map(|_| self.choice.begin(self.now)).collect();
                for manner in manners {
                    self.end(manner);
                }
                self.now = self.now + Duration::from_millis(3);
            }
        }

        /// Moves a stream that never pauses.
        fn stream(&mut self, count: u64, depth: u64) {
            let mut line: std::collections::VecDeque<Manner> =
                (0..depth).map(|_| self.choice.begin(self.now)).collect();
            for _ in 0..count {
                let manner = line.pop_front().expect("some are in flight");
                self.end(manner);
                line.push_back(self.choice.begin(self.now));
            }
            while let Some(manner) = line.pop_front() {
                self.end(manner);
            }
        }

        fn end(&mut self, manner: Manner) {
            self.now = self.now + Duration::from_micros(self.device[manner as usize]);
            self.choice.end(self.now, manner, MIB);
            self.choice.spent(manner, Duration::from_micros(self.callers[manner as usize]));
            self.copied += u64::from(manner == Manner::Copied);
        }
    }

    #[test]
    fn the_cheaper_manner_is_found_by_batches_and_by_streams() {
        for is_stream in [false, true] {
            let go = |device, callers| {
                let mut lab = Lab::new(device, callers);
                if is_stream {
                    lab.stream(4096, 32)
                } else {
                    lab.batches(256, 16)
                }
                (lab.choice.best, lab.copied)
            };
            let (best, copied) = go([1000, 400], [100, 200]);
            assert!(best == Manner::Copied && copied > 3500, "{copied} of 4096 were copied");
            let (best, copied) = go([400, 400], [40, 100]);
            assert!(best == Manner::InPlace && copied < 500, "{copied} of 4096 were copied");
        }
    }

    #[test]
    fn a_copy_has_to_save_an_eighth_and_is_given_up_once_it_saves_nothing() {
        let best = |device| {
            let mut lab = Lab::new(device, [0, 0]);
            lab.batches(64, 16);
            lab.choice.best
        };
        assert_eq!(best([1000, 900]), Manner::InPlace);
        assert_eq!(best([1000, 860]), Manner::Copied);
        let mut lab = Lab::new([1000, 800], [0, 0]);
        lab.batches(64, 16);
        assert_eq!(lab.choice.best, Manner::Copied);
        lab.device = [840, 800];
        lab.batches(512, 16);
        assert_eq!(lab.choice.best, Manner::Copied, "within the band it stays as it is");
        lab.device = [790, 800];
        lab.batches(2048, 16);
        assert_eq!(lab.choice.best, Manner::InPlace);
    }

    #[test]
    fn what_callers_spend_counts() {
        let mut lab = Lab::new([500, 400], [0, 100]);
        lab.batches(64, 16);
        assert_eq!(lab.choice.best, Manner::InPlace);
    }

    #[test]
    fn trials_become_rare_as_long_as_they_confirm_what_is_known() {
        let mut lab = Lab::new([400, 1200], [0, 0]);
        let trials: Vec<u64> = (0..8)
            .map(|_| {
                let before = lab.copied;
                lab.batches(512, 16);
                (lab.copied - before) / 64
            })
            .collect();
        assert_eq!(trials, [3, 1, 0, 1, 0, 0, 0, 1], "windows of the dearer manner");
    }

    #[test]
    fn time_without_transfers_and_failures_tell_nothing() {
        let mut choice = Choice::new(Time::ZERO);
        let mut now = Time::ZERO;
        for _ in 0..100 {
            now = now + Duration::from_secs(1);
            assert_eq!(choice.begin(now), Manner::InPlace);
            choice.end(now, Manner::InPlace, 0);
        }
        assert_eq!((choice.window.bytes, choice.window.time), (0, Duration::ZERO));
    }

    #[test]
    fn clocks_of_two_threads_that_cross_take_no_time_back() {
        let mut choice = Choice::new(Time::ZERO);
        let at = |us| Time::ZERO + Duration::from_micros(us);
        choice.begin(at(100));
        choice.begin(at(90));
        choice.end(at(200), Manner::InPlace, MIB);
        choice.end(at(195), Manner::InPlace, MIB);
        assert_eq!(
            (choice.window.time, choice.window.bytes),
            (Duration::from_micros(100), 2 * MIB)
        );
    }
}
