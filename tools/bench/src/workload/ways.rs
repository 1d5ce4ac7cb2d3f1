//! Chooses the way of the next I/O.

use adit_load::{Stream, happens};

use crate::options::Workload;
use crate::way::Way;

/// The ways of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// A single way.
    Only(Way),
    /// Reads with this percentage, and writes.
    Mixed(u8),
    /// Each place is trimmed, then written.
    TrimThenWrite,
}

impl Ways {
    /// Converts `workload`, with `read_percent` for a mix.
    ///
    /// # Errors
    /// There is no such workload; lists the existing ones.
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

    /// Returns the way of a new place; a mix uses the random number of the position.
    #[inline]
    pub(super) fn pick(self, random: Stream, position: u64) -> Way {
        match self {
            Ways::Only(way) => way,
            Ways::Mixed(percent) if happens(random.at(position), percent) => Way::Read,
            Ways::Mixed(_) => Way::Write,
            Ways::TrimThenWrite => Way::Trim,
        }
    }

    /// Returns the ways that get new places; a write after a trim reuses the trim's place and length.
    pub(super) fn all(self) -> Vec<Way> {
        match self {
            Ways::Only(way) => vec![way],
            Ways::Mixed(_) => vec![Way::Read, Way::Write],
            Ways::TrimThenWrite => vec![Way::Trim],
        }
    }
}
