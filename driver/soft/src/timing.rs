//! Timing of a drive: when a command that is fetched now completes.
//!
//! Reads and writes each pass a serial pipe with the drive's bandwidth and IOPS, and then a latency that commands spend
//! in parallel, as in flash. A lone command takes the drive's latency; from the queue depth that fills the pipe on, the
//! drive runs at its bandwidth. Writes end in a buffer that drains at the speed of the flash; while it has room, they
//! pass at the buffer's pace. While reads and large writes overlap, both also pass a third pipe with their combined
//! bandwidth.
//!
//! `docs/use/faults.md` gives the source of each profile's figures.

use std::fmt;
use std::str::FromStr;

use super::words::unknown;
use crate::error::{Error, Result};
use adit_shared::Time;

/// A drive whose timing to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimingModel {
    /// Samsung PM9D3a, PCIe 5.0 (`pm9d3a`).
    Pm9d3a,
    /// Samsung 990 PRO, PCIe 4.0 (`990pro`).
    Samsung990Pro,
    /// Solidigm D7-PS1010 as one of four in the Tutti paper's array (`d7-ps1010`).
    D7Ps1010,
}

/// A drive's figures. Latencies are for a lone command of 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingProfile {
    /// Read latency in nanoseconds.
    pub read_ns: u64,
    /// Write latency in nanoseconds, while the buffer has room.
    pub write_ns: u64,
    /// Flush latency in nanoseconds.
    pub flush_ns: u64,
    /// Read bandwidth in bytes per second.
    pub read_bytes_per_s: u64,
    /// Maximum reads per second.
    pub read_iops: u64,
    /// Write bandwidth in bytes per second while the buffer has room.
    pub buffered_bytes_per_s: u64,
    /// Maximum writes per second while the buffer has room.
    pub buffered_iops: u64,
    /// Size of the buffer in bytes.
    pub buffer_bytes: u64,
    /// Write bandwidth in bytes per second with a full buffer: its drain rate.
    pub write_bytes_per_s: u64,
    /// Maximum writes per second with a full buffer.
    pub write_iops: u64,
    /// Combined bandwidth of reads and large writes in bytes per second.
    pub mixed_bytes_per_s: u64,
}

const GB: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

const PM9D3A: TimingProfile = TimingProfile {
    read_ns: 65_000,
    write_ns: 10_000,
    flush_ns: 10_000,
    read_bytes_per_s: 12 * GB,
    read_iops: 2_000_000,
    buffered_bytes_per_s: 12 * GB,
    buffered_iops: 2_000_000,
    buffer_bytes: 16 * MIB,
    write_bytes_per_s: 6_800_000_000,
    write_iops: 250_000,
    mixed_bytes_per_s: 6_800_000_000,
};

const SAMSUNG_990_PRO: TimingProfile = TimingProfile {
    read_ns: 45_000,
    write_ns: 12_500,
    flush_ns: 1_000_000,
    read_bytes_per_s: 7_450_000_000,
    read_iops: 1_400_000,
    buffered_bytes_per_s: 6_900_000_000,
    buffered_iops: 1_550_000,
    buffer_bytes: 216 * GB,
    write_bytes_per_s: 1_400_000_000,
    write_iops: 340_000,
    mixed_bytes_per_s: 6_900_000_000,
};

const D7_PS1010: TimingProfile = TimingProfile {
    read_ns: 60_000,
    write_ns: 8_000,
    flush_ns: 10_000,
    read_bytes_per_s: 7_250_000_000,
    read_iops: 3_100_000,
    buffered_bytes_per_s: 7_250_000_000,
    buffered_iops: 3_100_000,
    buffer_bytes: 16 * MIB,
    write_bytes_per_s: 3 * GB,
    write_iops: 400_000,
    mixed_bytes_per_s: 3 * GB,
};

const NAMES: [&str; 3] = ["pm9d3a", "990pro", "d7-ps1010"];

impl TimingModel {
    /// All models.
    pub const ALL: [TimingModel; 3] =
        [TimingModel::Pm9d3a, TimingModel::Samsung990Pro, TimingModel::D7Ps1010];

    /// Returns the drive's figures.
    pub const fn profile(self) -> TimingProfile {
        match self {
            TimingModel::Pm9d3a => PM9D3A,
            TimingModel::Samsung990Pro => SAMSUNG_990_PRO,
            TimingModel::D7Ps1010 => D7_PS1010,
        }
    }
}

impl fmt::Display for TimingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[*self as usize])
    }
}

impl FromStr for TimingModel {
    type Err = Error;

    fn from_str(name: &str) -> Result<TimingModel> {
        let found = TimingModel::ALL.into_iter().find(|model| NAMES[*model as usize] == name);
        found.ok_or_else(|| {
            let why = format!("{}; there are {}", unknown("drive", name, &NAMES), NAMES.join(", "));
            Error::invalid("model", why)
        })
    }
}

/// The work that a command causes in the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Data comes from the flash.
    Read { bytes: u64 },
    /// Data goes to the flash.
    Write { bytes: u64 },
    /// Makes the buffer durable.
    Flush,
    /// Changes only tables.
    Tables,
}

/// Picoseconds: at 10 GB/s, a nanosecond is ten bytes.
type Ps = u128;

const PS_PER_NS: Ps = 1000;
const PS_PER_S: Ps = 1_000_000_000_000;
/// Size of the command that latencies refer to.
const LONE_BYTES: u64 = 4096;
/// Smallest large write, which slows reads down.
const LARGE_BYTES: u64 = 64 << 10;
/// How long after its end a command still counts as overlapping with new ones.
const LINGER_NS: u64 = 50_000;

/// Serves one command at a time, in order of arrival.
#[derive(Debug, Default)]
struct Pipe {
    free_at: Ps,
}

impl Pipe {
    /// Passes a command that costs `cost`; returns when it is through.
    fn pass(&mut self, now: Ps, cost: Ps) -> Ps {
        self.free_at = self.free_at.max(now) + cost;
        self.free_at
    }
}

#[derive(Debug)]
pub(super) struct Timing {
    profile: TimingProfile,
    reads: Pipe,
    writes: Pipe,
    drain: Pipe,
    mixed: Pipe,
    reads_until: Time,
    large_writes_until: Time,
}

impl Timing {
    pub(super) fn new(profile: TimingProfile) -> Timing {
        Timing {
            profile,
            reads: Pipe::default(),
            writes: Pipe::default(),
            drain: Pipe::default(),
            mixed: Pipe::default(),
            reads_until: Time::ZERO,
            large_writes_until: Time::ZERO,
        }
    }

    /// Returns when a command fetched at `now` is done.
    pub(super) fn due(&mut self, now: Time, effort: Effort) -> Time {
        let after = |ns: u64| now + std::time::Duration::from_nanos(ns);
        match effort {
            Effort::Read { bytes } => self.read(now, bytes),
            Effort::Write { bytes } => self.write(now, bytes),
            Effort::Flush => after(self.profile.flush_ns),
            Effort::Tables => after(self.profile.write_ns),
        }
    }

    fn read(&mut self, now: Time, bytes: u64) -> Time {
        let TimingProfile { read_ns, read_bytes_per_s, read_iops, .. } = self.profile;
        let at = ps(now);
        let mut through = self.reads.pass(at, cost(bytes, read_bytes_per_s, read_iops));
        if now < self.large_writes_until {
            through = through.max(self.pass_mixed(at, bytes));
        }
        let lone = cost(LONE_BYTES, read_bytes_per_s, read_iops);
        let due = time(through + fixed(read_ns, lone));
        self.reads_until = self.reads_until.max(lingering(due));
        due
    }

    fn write(&mut self, now: Time, bytes: u64) -> Time {
        let TimingProfile { write_ns, buffered_bytes_per_s, buffered_iops, .. } = self.profile;
        let TimingProfile { write_bytes_per_s, write_iops, buffer_bytes, .. } = self.profile;
        let at = ps(now);
        let mut through = self.writes.pass(at, cost(bytes, buffered_bytes_per_s, buffered_iops));
        let drained = self.drain.pass(at, cost(bytes, write_bytes_per_s, write_iops));
        // The time to drain what the buffer holds back.
        let buffered = cost(buffer_bytes, write_bytes_per_s, u64::MAX);
        through = through.max(drained.saturating_sub(buffered));
        let is_large = bytes >= LARGE_BYTES;
        if is_large && now < self.reads_until {
            through = through.max(self.pass_mixed(at, bytes));
        }
        let lone = cost(LONE_BYTES, buffered_bytes_per_s, buffered_iops);
        let due = time(through + fixed(write_ns, lone));
        if is_large {
            self.large_writes_until = self.large_writes_until.max(lingering(due));
        }
        due
    }

    fn pass_mixed(&mut self, at: Ps, bytes: u64) -> Ps {
        self.mixed.pass(at, cost(bytes, self.profile.mixed_bytes_per_s, u64::MAX))
    }
}

/// Returns how long a pipe is busy with one command.
fn cost(bytes: u64, bytes_per_s: u64, iops: u64) -> Ps {
    (Ps::from(bytes) * PS_PER_S / Ps::from(bytes_per_s)).max(PS_PER_S / Ps::from(iops))
}

/// Returns the part of a latency outside the pipe.
fn fixed(latency_ns: u64, lone: Ps) -> Ps {
    (Ps::from(latency_ns) * PS_PER_NS).saturating_sub(lone)
}

fn ps(time: Time) -> Ps {
    Ps::from(time.as_ns()) * PS_PER_NS
}

fn time(ps: Ps) -> Time {
    Time::from_ns(u64::try_from(ps.div_ceil(PS_PER_NS)).unwrap_or(u64::MAX))
}

fn lingering(due: Time) -> Time {
    due + std::time::Duration::from_nanos(LINGER_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps `depth` commands in flight until `count` are done; returns bytes per second.
    fn bandwidth(timing: &mut Timing, effort: Effort, depth: usize, count: usize) -> u64 {
        let bytes = match effort {
            Effort::Read { bytes } | Effort::Write { bytes } => bytes,
            Effort::Flush | Effort::Tables => 0,
        };
        let mut due =
            std::collections::BinaryHeap::from(vec![std::cmp::Reverse(Time::ZERO); depth]);
        let mut now = Time::ZERO;
        for _ in 0..count {
            now = due.pop().expect("depth").0;
            due.push(std::cmp::Reverse(timing.due(now, effort)));
        }
        u64::try_from(u128::from(bytes) * count as u128 * 1_000_000_000 / u128::from(now.as_ns()))
            .expect("fits")
    }

    #[test]
    fn a_full_buffer_slows_writes_to_what_the_flash_takes() {
        let profile = TimingProfile { buffer_bytes: GB, ..SAMSUNG_990_PRO };
        let mut timing = Timing::new(profile);
        let effort = Effort::Write { bytes: MIB };
        let burst = bandwidth(&mut timing, effort, 16, 900);
        assert!(
            burst.abs_diff(profile.buffered_bytes_per_s) < profile.buffered_bytes_per_s / 20,
            "{burst}"
        );
        let sustained = bandwidth(&mut Timing::new(profile), effort, 16, 40_000);
        assert!(
            sustained.abs_diff(profile.write_bytes_per_s) < profile.write_bytes_per_s / 20,
            "{sustained}"
        );
    }

    #[test]
    fn commands_without_data_take_their_latency() {
        let mut timing = Timing::new(PM9D3A);
        assert_eq!(timing.due(Time::from_ns(5), Effort::Flush), Time::from_ns(10_005));
        assert_eq!(timing.due(Time::from_ns(5), Effort::Tables), Time::from_ns(10_005));
    }

    #[test]
    fn names_parse_as_they_print() {
        for model in TimingModel::ALL {
            assert_eq!(model.to_string().parse::<TimingModel>().expect("known"), model);
        }
        let error = "pm9d3".parse::<TimingModel>().expect_err("a typo").to_string();
        assert!(error.contains("did you mean 'pm9d3a'?") && error.contains("d7-ps1010"), "{error}");
    }
}
