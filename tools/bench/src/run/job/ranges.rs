//! Trims of several ranges (`num_range`): each range is a place of the workload.

use std::collections::BTreeMap;

use adit_driver::spec::DsmRange;

use crate::workload::Step;

/// The ranges of trims that have not ended.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Most ranges of a trim.
    pub(super) most: usize,
    /// By the number of the trim's first step.
    pub(super) of_trims: BTreeMap<u64, Vec<DsmRange>>,
}

impl Ranges {
    /// Returns `None` if each trim has one range.
    pub(super) fn of(num_range: u32) -> Option<Ranges> {
        let most = num_range as usize;
        (most > 1).then(|| Ranges { most, of_trims: BTreeMap::new() })
    }

    /// Forgets a trim that has ended.
    pub(super) fn forget(&mut self, step: Step) {
        self.of_trims.remove(&step.number);
    }
}
