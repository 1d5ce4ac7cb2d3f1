//! How the commands of an I/O control block ended.
//!
//! A status is what the device said, or one of three ends that device code gives itself. What the device said is not
//! believed further than that: it decides nothing but what is reported here.

use std::fmt;
use std::time::Duration;

use adit_driver::spec::Status;

/// Device code's own ends (layout.h, `Ended`).
pub(crate) const TIMED_OUT: u32 = 0x10000;
pub(crate) const NOT_SENT: u32 = 0x10001;
pub(crate) const RESET: u32 = 0x10002;

/// How a command ended that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The device completed it with this status.
    Status(Status),
    /// No completion came before the deadline of its control block; the device may still do it.
    TimedOut,
    /// The deadline passed, or the rings were stopped, before it was sent.
    NotSent,
    /// Its ring went out of service while it was in flight.
    Reset,
    /// Device code wrote a status that has no meaning.
    Unknown(u32),
}

impl Ended {
    /// What a status word says; `None` is success.
    pub(crate) fn of(word: u32) -> Option<Ended> {
        match word {
            0 => None,
            TIMED_OUT => Some(Ended::TimedOut),
            NOT_SENT => Some(Ended::NotSent),
            RESET => Some(Ended::Reset),
            word if word < 1 << 15 => Some(Ended::Status(Status::from_bits(word as u16))),
            word => Some(Ended::Unknown(word)),
        }
    }

    /// Whether the same transfer may succeed when it is asked for again.
    pub fn is_retryable(self) -> bool {
        match self {
            Ended::Status(status) => status.is_retryable(),
            Ended::TimedOut | Ended::NotSent | Ended::Reset => true,
            Ended::Unknown(_) => false,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Status(status) => write!(f, "{status}"),
            Ended::TimedOut => f.write_str("no completion before the deadline"),
            Ended::NotSent => f.write_str("not sent before the deadline"),
            Ended::Reset => f.write_str("its ring went out of service"),
            Ended::Unknown(word) => write!(f, "a status without meaning ({word:#x})"),
        }
    }
}

/// What became of the transfers of one call of `get_iocb`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Commands that the transfers were cut into.
    pub commands: u64,
    /// The position (from 0, in the order given) of each transfer with a command that failed, and how, in order of
    /// position; a transfer of several commands is there for each that failed.
    pub failed: Vec<(usize, Ended)>,
    /// From the first command that was sent to the last that ended, on the GPU's clock; the longest of its control
    /// blocks.
    pub took: Duration,
}

impl Outcome {
    /// Whether every command succeeded.
    pub fn is_success(&self) -> bool {
        self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_one_meaning() {
        assert_eq!(Ended::of(0), None);
        assert_eq!(Ended::of(0x0281), Some(Ended::Status(Status::from_bits(0x0281))));
        assert_eq!(Ended::of(TIMED_OUT), Some(Ended::TimedOut));
        assert_eq!(Ended::of(NOT_SENT), Some(Ended::NotSent));
        assert_eq!(Ended::of(RESET), Some(Ended::Reset));
        assert_eq!(Ended::of(0x8000), Some(Ended::Unknown(0x8000)));
        assert!(!Ended::Unknown(0x8000).is_retryable() && Ended::TimedOut.is_retryable());
    }
}
