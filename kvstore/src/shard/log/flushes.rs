//! The flushes that make the journal durable, one at a time.

use std::time::Duration;

use adit_driver::Time;

/// Objects replaced since the last flush that make a flush due, and their bytes: after a power cut, an opening reads
/// as much, at most twice, besides what was replaced during the last flush.
const REPLACED_MAX: u64 = 4096;
const REPLACED_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, Debug)]
struct Flush {
    number: u64,
    /// Blocks before this one were ready when the flush began.
    end: u64,
    /// Devices that have not completed it.
    left: u32,
}

/// The flush in progress, and the numbers and times of those before it.
#[derive(Debug)]
pub(super) struct Flushes {
    under_way: Option<Flush>,
    begun: u64,
    ended: u64,
    /// When the last one began.
    at: Time,
    interval: Duration,
    /// Objects that were replaced since the last flush began, and their bytes.
    replaced: (u64, u64),
}

impl Flushes {
    pub(super) fn new(interval: Duration, now: Time) -> Flushes {
        Flushes { under_way: None, begun: 0, ended: 0, at: now, interval, replaced: (0, 0) }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns the number of the last one that began.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the number of the last one that ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns when the clock requires the next one.
    pub(super) fn next_at(&self) -> Time {
        self.at + self.interval
    }

    /// Counts an object of `bytes` that replaced another before its data was flushed.
    pub(super) fn note_replaced(&mut self, bytes: u64) {
        self.replaced = (self.replaced.0 + 1, self.replaced.1 + bytes);
    }

    /// Returns whether one is due: by the clock, or by what was replaced.
    pub(super) fn is_due(&self, now: Time) -> bool {
        now.since(self.at) >= self.interval
            || self.replaced.0 >= REPLACED_MAX
            || self.replaced.1 >= REPLACED_BYTES_MAX
    }

    /// Begins one on so many devices, which makes blocks before `end` durable. Returns its number.
    pub(super) fn begin(&mut self, now: Time, end: u64, devices: u32) -> u64 {
        self.begun += 1;
        self.at = now;
        self.replaced = (0, 0);
        self.under_way = Some(Flush { number: self.begun, end, left: devices });
        self.begun
    }

    /// Records that a device has ended one, unless it was abandoned.
    pub(super) fn flushed(&mut self, number: u64) {
        if let Some(flush) = self.under_way.as_mut().filter(|flush| flush.number == number) {
            flush.left -= 1;
        }
    }

    /// Ends the flush in progress if no device is left. Returns the end of the blocks that are durable.
    pub(super) fn take_ended(&mut self) -> Option<u64> {
        let flush = self.under_way.take_if(|flush| flush.left == 0)?;
        self.ended = flush.number;
        Some(flush.end)
    }

    /// Abandons the flush in progress if it is one of these: what it covered is not durable.
    pub(super) fn abandon(&mut self, is_it: impl Fn(u64) -> bool) {
        self.under_way.take_if(|flush| is_it(flush.number));
    }
}
