//! Figures of a device, for one lane or for all: counters that only grow, and present sizes.

use std::ops::AddAssign;

use adit_driver::Time;
use adit_driver::paths::Operation;

use crate::io::latency::Latencies;

/// The figures of a lane, or the sum over several lanes of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFigures {
    /// From sending a command to its completion, for each [`DeviceFigures::OPERATIONS`]; failed commands included.
    pub(crate) latencies: [Latencies; 4],
    /// Bytes read by commands that succeeded.
    pub(crate) read_bytes: u64,
    /// Bytes written by commands that succeeded.
    pub(crate) written_bytes: u64,
    /// Commands that the device failed, repetitions included.
    pub(crate) errors: u64,
    /// Commands in flight now.
    pub(crate) in_flight: u64,
    /// Commands that wait to be sent now.
    pub(crate) waiting: u64,
    /// Lanes whose device is out of service.
    pub(crate) failed: u64,
}

impl DeviceFigures {
    /// The names of the operations, in the order of the latencies.
    pub(crate) const OPERATIONS: [&'static str; 4] = ["read", "write", "flush", "deallocate"];

    /// Counts a command that was sent and completed at these times.
    #[inline]
    pub(crate) fn completed(
        &mut self,
        (sent_at, now): (Time, Time),
        (operation, bytes): (Operation, u64),
        is_ok: bool,
    ) {
        debug_assert!(sent_at <= now, "a command is sent before it completes");
        let moved = if is_ok { bytes } else { 0 };
        self.errors += u64::from(!is_ok);
        let kind = match operation {
            Operation::Read(_) => {
                self.read_bytes += moved;
                0
            }
            Operation::Write(_) => {
                self.written_bytes += moved;
                1
            }
            Operation::Flush => 2,
            Operation::Deallocate(..) => 3,
        };
        self.latencies[kind].record(sent_at, now);
    }
}

impl AddAssign for DeviceFigures {
    fn add_assign(&mut self, other: DeviceFigures) {
        let DeviceFigures {
            latencies,
            read_bytes,
            written_bytes,
            errors,
            in_flight,
            waiting,
            failed,
        } = other;
        self.latencies.iter_mut().zip(latencies).for_each(|(mine, theirs)| *mine += theirs);
        self.read_bytes += read_bytes;
        self.written_bytes += written_bytes;
        self.errors += errors;
        self.in_flight += in_flight;
        self.waiting += waiting;
        self.failed += failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_driver::spec::Lba;

    #[test]
    fn commands_count_by_operation_and_failures_move_no_bytes() {
        let mut figures = DeviceFigures::default();
        let times = (Time::from_ns(1000), Time::from_ns(4000));
        figures.completed(times, (Operation::Read(Lba(0)), 4096), true);
        figures.completed(times, (Operation::Write(Lba(0)), 8192), true);
        figures.completed(times, (Operation::Write(Lba(0)), 8192), false);
        figures.completed(times, (Operation::Flush, 0), true);
        figures.completed(times, (Operation::Deallocate(Lba(0), 8), 0), true);
        assert_eq!(figures.latencies.map(|latencies| latencies.count()), [1, 2, 1, 1]);
        assert_eq!((figures.read_bytes, figures.written_bytes, figures.errors), (4096, 8192, 1));
        let mut sum = figures;
        sum += DeviceFigures { in_flight: 2, waiting: 3, failed: 1, ..figures };
        assert_eq!(sum.latencies.map(|latencies| latencies.count()), [2, 4, 2, 2]);
        assert_eq!((sum.read_bytes, sum.written_bytes, sum.errors), (8192, 16384, 2));
        assert_eq!((sum.in_flight, sum.waiting, sum.failed), (2, 3, 1));
    }
}
