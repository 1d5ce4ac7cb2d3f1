//! Counters since the controller was created, as its logs report them (NVMe Base 2.0 section 5.16.1).

use std::collections::VecDeque;

use crate::command::Command;
use crate::page::put;
use adit_spec::Status;

/// Entries of the error log (Identify Controller ELPE, which is zero-based).
pub(crate) const ERROR_ENTRIES: usize = 64;
pub(crate) const ERROR_ENTRY_BYTES: usize = 64;
const START_KELVIN: u16 = 300;
/// SMART data units are thousands of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;
const WARNING_TEMPERATURE: u8 = 1 << 1;

#[derive(Clone, Copy, Debug)]
struct ErrorEntry {
    number: u64,
    sqid: u16,
    cid: u16,
    status: Status,
    lba: u64,
    nsid: u32,
}

/// Counters since the controller was created.
#[derive(Debug)]
pub(crate) struct Statistics {
    pub(crate) temperature_kelvin: u16,
    /// Critical warnings other than the temperature's.
    pub(crate) critical_warning: u8,
    bytes_read: u64,
    bytes_written: u64,
    reads: u64,
    writes: u64,
    error_count: u64,
    errors: VecDeque<ErrorEntry>,
    /// Number of times that the controller was powered on.
    pub(crate) power_cycles: u64,
    /// Number of times that power was lost without a prior shutdown.
    pub(crate) unsafe_shutdowns: u64,
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics {
            temperature_kelvin: START_KELVIN,
            critical_warning: 0,
            bytes_read: 0,
            bytes_written: 0,
            reads: 0,
            writes: 0,
            error_count: 0,
            errors: VecDeque::with_capacity(ERROR_ENTRIES),
            power_cycles: 1,
            unsafe_shutdowns: 0,
        }
    }
}

impl Statistics {
    #[inline]
    pub(crate) fn read(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes_read += bytes;
    }

    #[inline]
    pub(crate) fn written(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes_written += bytes;
    }

    pub(crate) fn record(&mut self, command: &Command, status: Status) {
        self.error_count += 1;
        if self.errors.len() == ERROR_ENTRIES {
            self.errors.pop_back();
        }
        self.errors.push_front(ErrorEntry {
            number: self.error_count,
            sqid: command.sqid.0,
            cid: command.cid,
            status,
            lba: if command.sqid.is_admin() { 0 } else { command.qword(10) },
            nsid: command.nsid,
        });
    }

    /// Writes the Error Information log.
    pub(crate) fn put_errors(&self, page: &mut [u8]) {
        for (slot, error) in page.chunks_exact_mut(ERROR_ENTRY_BYTES).zip(&self.errors) {
            put(slot, 0, error.number.to_le_bytes());
            put(slot, 8, error.sqid.to_le_bytes());
            put(slot, 10, error.cid.to_le_bytes());
            put(slot, 12, (error.status.bits() << 1).to_le_bytes());
            // The error names no parameter of the command.
            put(slot, 14, u16::MAX.to_le_bytes());
            put(slot, 16, error.lba.to_le_bytes());
            put(slot, 24, error.nsid.to_le_bytes());
        }
    }

    /// Writes the SMART / Health log.
    pub(crate) fn put_smart(&self, page: &mut [u8], threshold_kelvin: u16) {
        let is_hot = self.temperature_kelvin >= threshold_kelvin;
        let heat = if is_hot { WARNING_TEMPERATURE } else { 0 };
        put(page, 0, [self.critical_warning | heat]);
        put(page, 1, self.temperature_kelvin.to_le_bytes());
        // Available spare and its threshold, in percent.
        put(page, 3, [100, 10]);
        put(page, 32, self.bytes_read.div_ceil(DATA_UNIT_BYTES).to_le_bytes());
        put(page, 48, self.bytes_written.div_ceil(DATA_UNIT_BYTES).to_le_bytes());
        put(page, 64, self.reads.to_le_bytes());
        put(page, 80, self.writes.to_le_bytes());
        put(page, 112, self.power_cycles.to_le_bytes());
        put(page, 144, self.unsafe_shutdowns.to_le_bytes());
        put(page, 176, self.error_count.to_le_bytes());
    }
}
