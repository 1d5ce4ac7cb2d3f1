//! Chooses the mode of a transfer between a device and a caller's memory: in place, or by copy.
//!
//! A transfer in place costs the processor nothing. But small pages split it into many segments and many kernel
//! requests ([`BlockLimits`]), which some devices carry out at a third of their rate. The store's own memory uses huge
//! pages where available. The better mode depends on the device:
//!
//! - [`ModeChooser::is_open`] tells whether a transfer has a choice: whether a copy through the store's memory would
//!   take far fewer requests or segments. All others go in place: transfers of the driver's own queues, into huge
//!   pages, or of few bytes.
//! - [`CostChoice`] decides the rest, for each device and direction, by the cost of each mode per byte: the time in
//!   which the device had transfers, plus the callers' time to verify and copy. It begins in place, tries the other
//!   mode for a window of [`WINDOW_BYTES`], and again after pauses that double while trials confirm the choice. A copy
//!   must save an eighth.
//!
//! A copy needs pool memory. If none is free at once, the transfer goes in place and counts for the chosen mode,
//! because that is what the choice achieves. [`CostChoice`] takes the time as an argument and is deterministic.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_driver::memory::IoBuffer;
use adit_driver::paths::{BlockLimits, BlockRequests};
use adit_driver::runtime::lock;
use adit_driver::sys::PageKind;
use adit_driver::{Buffer, Device, Time};

/// Bytes that measure the cost of a mode.
const WINDOW_BYTES: u64 = 64 << 20;
/// Windows between two trials of the other mode.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1024;
/// A copy that saves this factor in segments is worth a trial, even if it takes as many requests.
const FEWER: u64 = 8;

/// Bytes of a transfer's beginning that represent the whole, because each inspected page costs time.
const ASKED_BYTES_MAX: u64 = 4 << 20;

/// The mode of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMode {
    /// The device uses the caller's memory.
    InPlace,
    /// The device uses the store's memory, and the caller's thread copies.
    Copied,
}

impl CopyMode {
    fn other(self) -> CopyMode {
        match self {
            CopyMode::InPlace => CopyMode::Copied,
            CopyMode::Copied => CopyMode::InPlace,
        }
    }
}

/// Chooses the mode of transfers of one device in one direction.
pub(crate) struct ModeChooser {
    limits: BlockLimits,
    /// Bytes of a page of the store's memory.
    page_bytes: u64,
    clock: Device,
    choice: Mutex<CostChoice>,
}

impl ModeChooser {
    /// Creates the choosers of reads and of writes. Returns `None` unless page size matters to the device and the
    /// store's `pages` are large.
    pub(crate) fn pair(device: &Device, pages: PageKind) -> Option<[Arc<ModeChooser>; 2]> {
        let limits = device.block_limits()?;
        let page_bytes = pages.bytes() as u64;
        let new = || ModeChooser {
            limits,
            page_bytes,
            clock: device.clone(),
            choice: Mutex::new(CostChoice::new(device.now())),
        };
        (page_bytes > PageKind::Small.bytes() as u64).then(|| [Arc::new(new()), Arc::new(new())])
    }

    /// Returns whether the first `bytes` bytes of these buffers would take far fewer requests or segments through the
    /// store's memory.
    pub(crate) fn is_open<'a>(
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

    /// Chooses the mode of a transfer of `bytes` that begins now.
    pub(crate) fn begin(self: &Arc<ModeChooser>, bytes: u64) -> TimedTransfer {
        let mode = lock(&self.choice).begin(self.clock.now());
        TimedTransfer { chooser: Arc::clone(self), mode, bytes, is_with_device: true }
    }
}

/// A timed transfer in progress whose mode was chosen.
pub(crate) struct TimedTransfer {
    chooser: Arc<ModeChooser>,
    pub(crate) mode: CopyMode,
    bytes: u64,
    is_with_device: bool,
}

impl TimedTransfer {
    /// Records that the device has completed the transfer.
    pub(crate) fn done(&mut self) {
        self.end(self.bytes);
    }

    /// Runs `work` on the transfer's bytes and adds its time to the cost.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let since = self.chooser.clock.now();
        let result = work();
        let time = self.chooser.clock.now().since(since);
        lock(&self.chooser.choice).spent(self.mode, time);
        result
    }

    fn end(&mut self, bytes: u64) {
        if std::mem::take(&mut self.is_with_device) {
            lock(&self.chooser.choice).end(self.chooser.clock.now(), self.mode, bytes);
        }
    }
}

impl Drop for TimedTransfer {
    /// Counts no bytes for a transfer that failed or was a miss.
    fn drop(&mut self) {
        self.end(0);
    }
}

/// The costs of the modes, and the mode of the next transfer.
///
/// A window measures one mode. It counts the time in which only transfers of its mode were in flight, so a change in
/// mid-stream counts for neither.
#[derive(Debug)]
struct CostChoice {
    /// The better mode so far; the next field is its smoothed cost in nanoseconds per MiB.
    best: CopyMode,
    cost: Option<u64>,
    window: CostWindow,
    /// Windows until the next trial; `pause` is the number of windows after that one.
    until_trial: u32,
    pause: u32,
    in_flight: [u32; 2],
    since: Time,
}

#[derive(Clone, Copy, Debug)]
struct CostWindow {
    mode: CopyMode,
    bytes: u64,
    time: Duration,
}

impl CostWindow {
    fn of(mode: CopyMode) -> CostWindow {
        CostWindow { mode, bytes: 0, time: Duration::ZERO }
    }

    /// Returns the cost in nanoseconds per MiB.
    fn cost(&self) -> u64 {
        let cost = (self.time.as_nanos() << 20) / u128::from(self.bytes.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

impl CostChoice {
    fn new(now: Time) -> CostChoice {
        CostChoice {
            best: CopyMode::InPlace,
            cost: None,
            window: CostWindow::of(CopyMode::InPlace),
            until_trial: 1,
            pause: PAUSE_MIN,
            in_flight: [0; 2],
            since: now,
        }
    }

    /// Returns the mode of a transfer that begins now.
    fn begin(&mut self, now: Time) -> CopyMode {
        self.pass(now);
        // Change the mode between batches rather than within one.
        let is_idle = self.in_flight == [0; 2];
        if self.window.bytes >= WINDOW_BYTES * if is_idle { 1 } else { 2 } {
            self.turn();
        }
        self.in_flight[self.window.mode as usize] += 1;
        self.window.mode
    }

    /// Records that the device has completed a transfer of `bytes`.
    fn end(&mut self, now: Time, mode: CopyMode, bytes: u64) {
        self.pass(now);
        let left = &mut self.in_flight[mode as usize];
        assert!(*left > 0, "what ends has begun");
        *left -= 1;
        if mode == self.window.mode && self.in_flight[mode.other() as usize] == 0 {
            self.window.bytes += bytes;
        }
    }

    /// Adds time that callers' threads have spent.
    fn spent(&mut self, mode: CopyMode, time: Duration) {
        if mode == self.window.mode {
            self.window.time += time;
        }
    }

    fn pass(&mut self, now: Time) {
        let mode = self.window.mode;
        let [mine, others] = [mode, mode.other()].map(|one| self.in_flight[one as usize]);
        // Threads read the clock before they take the lock, so `now` may lie before `since`.
        let passed = now.since(self.since.min(now));
        if mine > 0 && others == 0 {
            self.window.time += passed;
        }
        self.since = self.since.max(now);
    }

    /// Ends a window and begins the next.
    fn turn(&mut self) {
        let CostWindow { mode, .. } = self.window;
        let cost = self.window.cost();
        let next = if mode == self.best {
            self.cost = Some(self.cost.map_or(cost, |before| before / 4 * 3 + cost / 4));
            self.until_trial -= 1;
            if self.until_trial == 0 { self.best.other() } else { self.best }
        } else {
            self.judge(mode, cost);
            self.until_trial = self.pause;
            self.best
        };
        self.window = CostWindow::of(next);
    }

    /// Compares the cost of a trial with that of the better mode.
    fn judge(&mut self, tried: CopyMode, cost: u64) {
        let known = self.cost.expect("the better mode was measured before the other was tried");
        let is_better = match tried {
            CopyMode::Copied => cost < known / 8 * 7,
            CopyMode::InPlace => cost <= known,
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

    /// A device with a speed for each mode, and callers that make `depth` requests of one MiB at a time.
    struct Lab {
        choice: CostChoice,
        now: Time,
        /// The device's microseconds per MiB, in place and copied; the next field has the callers'.
        device: [u64; 2],
        callers: [u64; 2],
        copied: u64,
    }

    impl Lab {
        fn new(device: [u64; 2], callers: [u64; 2]) -> Lab {
            Lab { choice: CostChoice::new(Time::ZERO), now: Time::ZERO, device, callers, copied: 0 }
        }

        /// Moves batches one after another.
        fn batches(&mut self, count: u64, depth: u64) {
            for _ in 0..count {
                let modes: Vec<CopyMode> =
                    (0..depth).map(|_| self.choice.begin(self.now)).collect();
                for mode in modes {
                    self.end(mode);
                }
                self.now = self.now + Duration::from_millis(3);
            }
        }

        /// Moves a stream that never pauses.
        fn stream(&mut self, count: u64, depth: u64) {
            let mut line: std::collections::VecDeque<CopyMode> =
                (0..depth).map(|_| self.choice.begin(self.now)).collect();
            for _ in 0..count {
                let mode = line.pop_front().expect("some are in flight");
                self.end(mode);
                line.push_back(self.choice.begin(self.now));
            }
            while let Some(mode) = line.pop_front() {
                self.end(mode);
            }
        }

        fn end(&mut self, mode: CopyMode) {
            self.now = self.now + Duration::from_micros(self.device[mode as usize]);
            self.choice.end(self.now, mode, MIB);
            self.choice.spent(mode, Duration::from_micros(self.callers[mode as usize]));
            self.copied += u64::from(mode == CopyMode::Copied);
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
            assert!(best == CopyMode::Copied && copied > 3500, "{copied} of 4096 were copied");
            let (best, copied) = go([400, 400], [40, 100]);
            assert!(best == CopyMode::InPlace && copied < 500, "{copied} of 4096 were copied");
        }
    }

    #[test]
    fn a_copy_has_to_save_an_eighth_and_is_given_up_once_it_saves_nothing() {
        let best = |device| {
            let mut lab = Lab::new(device, [0, 0]);
            lab.batches(64, 16);
            lab.choice.best
        };
        assert_eq!(best([1000, 900]), CopyMode::InPlace);
        assert_eq!(best([1000, 860]), CopyMode::Copied);
        let mut lab = Lab::new([1000, 800], [0, 0]);
        lab.batches(64, 16);
        assert_eq!(lab.choice.best, CopyMode::Copied);
        lab.device = [840, 800];
        lab.batches(512, 16);
        assert_eq!(lab.choice.best, CopyMode::Copied, "within the band it stays as it is");
        lab.device = [790, 800];
        lab.batches(2048, 16);
        assert_eq!(lab.choice.best, CopyMode::InPlace);
    }

    #[test]
    fn what_callers_spend_counts() {
        let mut lab = Lab::new([500, 400], [0, 100]);
        lab.batches(64, 16);
        assert_eq!(lab.choice.best, CopyMode::InPlace);
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
        assert_eq!(trials, [3, 1, 0, 1, 0, 0, 0, 1], "windows of the dearer mode");
    }

    #[test]
    fn time_without_transfers_and_failures_tell_nothing() {
        let mut choice = CostChoice::new(Time::ZERO);
        let mut now = Time::ZERO;
        for _ in 0..100 {
            now = now + Duration::from_secs(1);
            assert_eq!(choice.begin(now), CopyMode::InPlace);
            choice.end(now, CopyMode::InPlace, 0);
        }
        assert_eq!((choice.window.bytes, choice.window.time), (0, Duration::ZERO));
    }

    #[test]
    fn clocks_of_two_threads_that_cross_take_no_time_back() {
        let mut choice = CostChoice::new(Time::ZERO);
        let at = |us| Time::ZERO + Duration::from_micros(us);
        choice.begin(at(100));
        choice.begin(at(90));
        choice.end(at(200), CopyMode::InPlace, MIB);
        choice.end(at(195), CopyMode::InPlace, MIB);
        assert_eq!(
            (choice.window.time, choice.window.bytes),
            (Duration::from_micros(100), 2 * MIB)
        );
    }
}
