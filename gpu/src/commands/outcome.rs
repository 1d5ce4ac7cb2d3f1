//! How the commands of an I/O control block ended.
//!
//! A status is the device's, or one of three that device code assigns itself. The device's status is only reported;
//! nothing else depends on it.

use std::fmt;
use std::time::Duration;

use adit_driver::spec::Status;

/// Statuses of device code itself (layout.h, `Ended`).
pub const TIMED_OUT: u32 = 0x10000;
pub const NOT_SENT: u32 = 0x10001;
pub const RESET: u32 = 0x10002;

/// How an unsuccessful command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The device completed it with this status.
    Status(Status),
    /// No completion arrived before its control block's deadline; the device may still execute it.
    TimedOut,
    /// The deadline passed, or the rings were stopped, before it was sent.
    NotSent,
    /// Its ring went out of service while it was in flight.
    Reset,
    /// Device code wrote an unknown status.
    Unknown(u32),
}

impl Ended {
    /// Decodes a status word; `None` is success.
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

/// The result of the transfers of one call of `get_iocb`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IocbOutcome {
    /// Number of commands that the transfers were split into.
    pub commands: u64,
    /// Position (from 0, in the order given) and result of each failed command's transfer, in order of position; a
    /// transfer appears once for each of its failed commands.
    pub failed: Vec<(usize, Ended)>,
    /// Time from the first command sent to the last one ended, on the GPU's clock; the longest of the control blocks.
    pub took: Duration,
}

impl IocbOutcome {
    /// Returns whether every command succeeded.
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
    }
}
