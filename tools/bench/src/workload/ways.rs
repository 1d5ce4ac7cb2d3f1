//! Which way the next I/O goes.

use super::random::{Stream, happens};
use crate::options::Workload;
use crate::way::Way;

/// The ways of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// All the same.
    Only(Way),
    /// Reads with this share in percent, and writes.
    Mixed(u8),
    /// Each place is trimmed, then written.
    TrimThenWrite,
}

impl Ways {
    /// The ways of `workload`, with `read_percent` of a mix.
    ///
    /// # Errors
    /// There is no such workload; says which there are.
    pub(super) fn new(workload: &Workload, read_percent: u8) -> Result<Ways, String> {
        match (workload.reads, workload.writes, workload.trims) {
            (true, false, false) => Ok(Ways::Only(Way::Read)),
            (false, true, false) => Ok(Ways::Only(Way::Write)),
            (false, false, true) => Ok(Ways::Only(Way::Trim)),
            (true, true, false) => Ok(Ways::Mixed(read_percent)),
            (false, true, true) => Ok(Ways::TrimThenWrite),
            _ => Err("these ways do not go together: use rw=read, write, trim, rw or trimwrite"
                .to_owned()),
        }
    }

    /// The way of a new place, where there is a choice by the random number of a position.
    #[inline]
    pub(super) fn pick(self, random: Stream, position: u64) -> Way {
        match self {
            Ways::Only(way) => way,
            Ways::Mixed(percent) if happens(random.at(position), percent) => Way::Read,
            Ways::Mixed(_) => Way::Write,
            Ways::TrimThenWrite => Way::Trim,
        }
    }

    /// Those that a place is chosen for; what was trimmed is then written, as long as it was.
    pub(super) fn all(self) -> Vec<Way> {
        match self {
            Ways::Only(way) => vec![way],
            Ways::Mixed(_) => vec![Way::Read, Way::Write],
            Ways::TrimThenWrite => vec![Way::Trim],
        }
    }
}
