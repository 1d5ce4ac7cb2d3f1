//! One I/O, from its choice to its completion.

use adit_driver::Time;
use adit_driver::memory::Prefix;

use crate::data::Identity;
use crate::workload::Step;

/// The owner data a job's requests carry through a queue.
pub(crate) type Owned = (Prefix, Tag);

/// Identifies the buffer and the file of an I/O in flight, in one word. A queue moves its owner data several
/// times; loading recently stored data in smaller pieces would stall until earlier stores finish, including
/// those to contested ring entries. The rest of an I/O stays with the job, by slot ([`Flight`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(super) fn new(slot: u32, file: u32) -> Tag {
        Tag(u64::from(file) << 32 | u64::from(slot))
    }

    /// Returns the index of the job's buffer.
    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Returns the index of the job's file.
    pub(crate) fn file(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An I/O in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) work: Work,
    /// When it was due by its rate, or first sent. Its latency counts from then, or else from when it was
    /// posted.
    pub(super) since: Option<Time>,
    /// When it was ready to be sent to the device.
    pub(super) posted: Time,
    /// When it had been sent.
    pub(super) told: Time,
}

impl Flight {
    /// An unused slot.
    pub(super) const NONE: Flight = Flight {
        work: Work::new(What::Flush(0)),
        since: None,
        posted: Time::ZERO,
        told: Time::ZERO,
    };
}

/// One I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) what: What,
    /// The expected content of a read.
    pub(super) expected: Option<Identity>,
    /// How often it was sent before, and the start of its latency.
    pub(super) retried: Option<(u8, Time)>,
}

impl Work {
    /// Creates an I/O that is sent for the first time and not checked.
    pub(super) const fn new(what: What) -> Work {
        Work { what, expected: None, retried: None }
    }
}

/// The operation of an I/O.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Step(Step),
    /// Flushes this file.
    Flush(u32),
}

impl What {
    /// Returns the index of the job's file.
    #[inline]
    pub(super) fn file(&self) -> u32 {
        match self {
            What::Step(step) => step.file,
            What::Flush(file) => *file,
        }
    }
}
