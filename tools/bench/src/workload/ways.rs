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
    pub(super) fn new(workload: &Workload, read_percent: u8) -> Ways {
        match (workload.reads, workload.writes, workload.trims) {
            (_, true, true) => Ways::TrimThenWrite,
            (true, true, false) => Ways::Mixed(read_percent),
            // Reads with trims are in logs only, whose ways are not chosen here.
            (true, false, _) => Ways::Only(Way::Read),
            (false, true, false) => Ways::Only(Way::Write),
            (false, false, _) => Ways::Only(Way::Trim),
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
