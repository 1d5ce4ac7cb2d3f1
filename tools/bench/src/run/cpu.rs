//! The system's counts for a thread.

use std::ops::{Add, Sub};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Times and counts of one or several threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) user_us: i64,
    pub(crate) system_us: i64,
    /// Voluntary and involuntary.
    pub(crate) context_switches: i64,
    /// Involuntary context switches.
    pub(crate) preemptions: i64,
    pub(crate) major_faults: i64,
    pub(crate) minor_faults: i64,
}

impl Cpu {
    /// Returns the counts since the calling thread started; all zero if the system provides none.
    pub(crate) fn of_this_thread() -> Cpu {
        getrusage(UsageWho::RUSAGE_THREAD).map_or_else(|_| Cpu::default(), |usage| Cpu::of(&usage))
    }

    fn of(usage: &Usage) -> Cpu {
        Cpu {
            user_us: usage.user_time().num_microseconds(),
            system_us: usage.system_time().num_microseconds(),
            context_switches: usage.voluntary_context_switches()
                + usage.involuntary_context_switches(),
            preemptions: usage.involuntary_context_switches(),
            major_faults: usage.major_page_faults(),
            minor_faults: usage.minor_page_faults(),
        }
    }

    /// Returns the difference to an earlier reading.
    pub(crate) fn since(&self, earlier: &Cpu) -> Cpu {
        self.with(earlier, i64::sub)
    }

    /// Adds another thread's counts.
    pub(crate) fn merge(&mut self, other: &Cpu) {
        *self = self.with(other, i64::add);
    }

    fn with(&self, other: &Cpu, of: fn(i64, i64) -> i64) -> Cpu {
        Cpu {
            user_us: of(self.user_us, other.user_us),
            system_us: of(self.system_us, other.system_us),
            context_switches: of(self.context_switches, other.context_switches),
            preemptions: of(self.preemptions, other.preemptions),
            major_faults: of(self.major_faults, other.major_faults),
            minor_faults: of(self.minor_faults, other.minor_faults),
        }
    }
}
