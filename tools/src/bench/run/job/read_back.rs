//! Checking what was written.

use adit_driver::device::CommandQueue;

use super::{Job, Owned, What, Work};
use crate::bench::data::Identity;
use crate::bench::errors::Kind;
use crate::bench::options::JobOptions;
use crate::bench::way::Way;
use crate::bench::workload::{Step, Written};

/// What is still to be read back.
pub(super) enum ToVerify {
    /// Everything that a pass wrote, without what an interrupted run had in flight.
    Pass(Written, Vec<u64>),
    /// The last few writes.
    Backlog(std::vec::IntoIter<Step>),
}

impl Iterator for ToVerify {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        match self {
            ToVerify::Pass(written, unknown) => {
                written.find(|step| !unknown.contains(&step.number))
            }
            ToVerify::Backlog(steps) => steps.next(),
        }
    }
}

/// How many writes are checked together, where not the whole pass is.
pub(super) fn backlog_of(options: &JobOptions) -> usize {
    options.verify.as_ref().and_then(|verify| verify.backlog).unwrap_or(0) as usize
}

impl<Q: CommandQueue<Owned>> Job<'_, Q> {
    /// Whether what is written is read back and checked.
    pub(super) fn reads_back(&self) -> bool {
        self.options.rw.writes
            && self.options.verify.as_ref().is_some_and(|verify| verify.do_verify)
    }

    /// Whether so much was written that it is to be checked before anything else is.
    #[inline]
    pub(super) fn checks_backlog(&self) -> bool {
        self.backlog_max > 0 && self.backlog.len() >= self.backlog_max
    }

    /// Reads back what the pass wrote, or what of it was not checked yet.
    pub(super) fn read_back_pass(&mut self) {
        let steps = if self.backlog_max > 0 {
            let steps: Vec<Step> = self.backlog.drain(..).collect();
            ToVerify::Backlog(steps.into_iter())
        } else {
            ToVerify::Pass(self.set.generator.written(), Vec::new())
        };
        self.read_back(steps);
    }

    /// Whether nothing is written, only what an earlier run wrote is checked.
    pub(super) fn reads_back_earlier(&self) -> bool {
        self.options.verify.as_ref().is_some_and(|verify| verify.only)
    }

    /// Checks what an earlier run wrote: as far as it came, or all that this job would write.
    pub(super) fn read_back_earlier(&mut self) {
        self.take_all_steps();
        self.read_back(ToVerify::Pass(self.set.generator.written(), Vec::new()));
    }

    /// Takes the steps of the first pass without doing anything.
    fn take_all_steps(&mut self) {
        let most = self.set.bytes_max.unwrap_or(u64::MAX);
        let mut bytes = 0;
        while bytes < most {
            let Some(step) = self.set.generator.next_step() else { return };
            bytes += step.bytes;
        }
    }

    pub(super) fn read_back(&mut self, steps: ToVerify) {
        self.to_verify = Some(steps);
        self.phase();
        self.to_verify = None;
    }

    /// The next block to check.
    pub(super) fn next_check(&mut self) -> Option<Work> {
        if self.is_stopped() {
            return None;
        }
        let unwritten = &self.unwritten;
        let step = self.to_verify.as_mut()?.find(|step| !unwritten.contains(&step.offset))?;
        let expected = Some(Identity { offset: step.offset, writer: Some(self.writer(step)) });
        Some(Work { what: What::Step(Step { way: Way::Read, ..step }), expected, retried: None })
    }

    /// Compares a block that was read with what it should be.
    #[inline(never)]
    pub(super) fn check(&mut self, block: &[u8], work: &Work) {
        let Some(expected) = work.expected else { return };
        if let Err(mismatch) = self.set.data.check(block, expected) {
            let message = mismatch.to_string();
            self.error(Kind::Verify, "Verify", message);
        }
        // Checking took time that is not the next I/O's.
        self.now = self.clock.now();
    }
}
