//! Trims of several ranges (`num_range`): each range is a place of the workload.

use std::collections::BTreeMap;

use adit_driver::memory::Prefix;
use adit_driver::paths::CommandQueue;
use adit_driver::spec::{DsmRange, Lba};
use adit_driver::{Buffer, Rejected};

use super::{Job, Owned, Tag, What, Work};
use crate::workload::Step;

/// The ranges of trims that have not ended.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Most ranges of a trim.
    most: usize,
    /// By the number of the trim's first step.
    of_trims: BTreeMap<u64, Vec<DsmRange>>,
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

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Returns the next trim: as many steps as it has ranges, fewer at the end of the job.
    #[cold]
    pub(super) fn next_ranges(&mut self) -> Option<Work> {
        let most = self.ranges.as_ref()?.most;
        let mut trim = self.next_step()?;
        let mut list = vec![self.range_of(trim)];
        self.bytes_issued += trim.bytes;
        while list.len() < most
            && let Some(step) = self.next_step()
        {
            list.push(self.range_of(step));
            self.bytes_issued += step.bytes;
            trim.bytes += step.bytes;
        }
        self.ios_issued += 1;
        self.ranges.as_mut()?.of_trims.insert(trim.number, list);
        Some(Work::new(What::Step(trim)))
    }

    fn range_of(&self, step: Step) -> DsmRange {
        let shift = self.lba_shifts[step.file as usize];
        DsmRange::new(Lba(step.offset >> shift), (step.bytes >> shift) as u32)
    }

    /// Posts a trim of several ranges.
    #[cold]
    pub(super) fn post_ranges(
        &mut self,
        step: Step,
        buffer: Buffer,
        tag: Tag,
    ) -> Result<(), Rejected<Owned>> {
        let ranges = self.ranges.as_ref().expect("the job has some");
        let list = ranges.of_trims.get(&step.number).expect("kept until the trim ends");
        let buffer = (Prefix::new(buffer, size_of_val(&list[..])), tag);
        self.queue.post_ranges(self.times.now, list, buffer)
    }
}
